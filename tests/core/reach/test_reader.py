"""What one file refers to, by the symbol that does: small sources, each with what must be found in them."""

import ast
from textwrap import dedent

import pytest

from verl_e2e.core.reach.program import BODY, encoding_of
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.syntax import annotated, assigned_names


def refs(source: str, symbol: str) -> set[str]:
    """The references of one symbol."""
    found = {item.name: item for item in summarize(dedent(source).encode()).symbols}
    return set(found[symbol].refs)


@pytest.mark.parametrize(
    ("source", "symbol", "expected"),
    (
        # What runs when the module is imported belongs to its body.
        ("class A:\n    x: int = field(default=make())\n", BODY, {"field", "make"}),
        ("from dataclasses import field\nclass A:\n    x: int = field(default_factory=made)\n", BODY, set()),
        ("from dataclasses import field\nclass A:\n    x: int = field(default=make())\n", BODY, {"make"}),
        ("class A:\n    x = lambda: late()\n", BODY, set()),
        ("class A:\n    x = made()\n", BODY, {"made"}),
        ("class A:\n    if flag():\n        x = made()\n    else:\n        y = other()\n", BODY,
         {"flag", "made", "other"}),
        ("class A(Base, meta=Kind): pass\n", BODY, {"Kind"}),
        ("class A:\n    @mark\n    def run(self, x=default()): pass\n", BODY, {"default", "mark", "^A.run"}),
        ("x = table[made()]\n", BODY, {"made"}),
        ("x = made\n", BODY, set()),
        ("x = made()\n", BODY, {"made"}),
        ("with opened() as f: f.read()\n", BODY, {"opened", "f.read"}),
        ("@register('name')\ndef f(): pass\n", BODY, {"register", "^f"}),
        # An implementation belongs to the function that it serves.
        ("@call.register\ndef _(x): done()\n", ":_", {"done"}),
        ("def f():\n    @call.register(int)\n    def _(x): done()\n", "f:_", {"done"}),
        # Functions: nested ones are part of the outer, with their decorators and defaults.
        ("def f():\n    @mark\n    def g(x=start()):\n        end()\n    return g\n", "f",
         {"mark", "start", "end", "g"}),
        ("def f():\n    try:\n        import a\n        a.go()\n    except ImportError:\n        other()\n", "f",
         {"a.go", "ImportError", "other"}),
        ("def f():\n    try:\n        go()\n    except ValueError:\n        other()\n", "f",
         {"go", "ValueError", "other"}),
        # Types: what is known of a local name names the class of an attribute.
        ("def f():\n    x: Thing = go()\n    x.run()\n", "f", {"go", "Thing().run"}),
        ("def f():\n    x = Thing()\n    x.run()\n", "f", {"Thing", "Thing().run"}),
        ("def f():\n    x = thing()\n    x.run()\n", "f", {"thing", "?.run"}),
        ("def f():\n    x.y: Thing = go()\n", "f", {"go", "x.y"}),
        ("def f():\n    x: int\n", "f", set()),
        ("def f(x: 'Optional[Thing]'): x.run()\n", "f", {"Thing().run"}),
        ("def f():\n    Thing().run()\n    make().run()\n", "f", {"Thing", "Thing().run", "make", "?.run"}),
        ("def f():\n    (a or b).run()\n", "f", {"a", "b", "?.run"}),
        ("def f():\n    super().run()\n", "f", {"super().run"}),
        ("class A:\n    def f(self): return self\n", "A.f", {"self"}),
        ("class A:\n    def f(this): return this.x\n", "A.f", {"?.x"}),
        ("def f(x):\n    match x:\n        case Kind(run=0, walk=[Kind(stop=y)]): pass\n", "f",
         {"Kind", "?.run", "?.walk", "?.stop"}),
        ("match x:\n    case Kind(run=0): pass\n", "", {"x", "Kind", "?.run"}),
        ("class A:\n    def f(cls): return cls.x\n", "A.f", {"self.x"}),
        ("def f(*, x=start(), y): pass\n", "f", {"start"}),
        ("def f(x):\n    return isinstance(x, Kind), getattr(x, 'run'), getattr(x, 'no name')\n", "f", {"?.run"}),
        ("def f(x):\n    setattr(x, 'run', made)\n", "f", {"?.run", "made"}),
        ("def f(x):\n    getattr(x, 'go', other.usual)()\n", "f", {"?.go", "other.usual"}),
        ("def f():\n    load('a.b.c'), load(('a.b', 'C'))\n", "f", {"load", "!a.b.c", "!a.b.C"}),
    ),
)  # fmt: skip
def test_what_a_symbol_refers_to(source: str, symbol: str, expected: set[str]) -> None:
    assert refs(source, symbol) == expected


def test_imports_tell_their_scope_and_whether_they_may_fail() -> None:
    source = """
        class A:
            import in_class
        def f():
            try:
                import guarded
            except (ImportError, OSError):
                pass
    """
    found = summarize(dedent(source).encode()).imports
    assert {(item.name, item.scope, item.guarded) for item in found} == {
        ("in_class", BODY, False),
        ("in_class", "A", False),
        ("guarded", "f", True),
    }


def test_a_lazy_module_names_what_its_tables_hold_and_nothing_else() -> None:
    table = b"WHERE = {'A': '.made', 'B': ('.made', 'B'), 'C': 3, 'D': 'no module', 4: 'x', 'E': []}\n"
    assert summarize(table + b"def __getattr__(name): pass\n").lazy == (("A", ".made"), ("B", ".made"))


@pytest.mark.parametrize(
    ("statement", "names"),
    (("x = y = 1", ("x", "y")), ("x: int = 1", ("x",)), ("x += 1", ("x",)), ("x.y = 1", ()), ("f()", ())),
)
def test_the_variables_that_a_statement_assigns(statement: str, names: tuple[str, ...]) -> None:
    assert assigned_names(ast.parse(statement).body[0]) == names


@pytest.mark.parametrize(
    ("annotation", "name"),
    (
        ("Thing", "Thing"),
        ("lib.Thing", "lib.Thing"),
        ("int", ""),
        ("Any", ""),
        ("'Thing'", "Thing"),
        ("'Thing ('", ""),
        ("None | Thing", "Thing"),
        ("Optional[Thing]", "Thing"),
        ("list[Thing]", ""),
        ("lib[0].Thing", "lib.Thing"),
    ),
)
def test_the_class_that_an_annotation_names(annotation: str, name: str) -> None:
    assert annotated(ast.parse(annotation, mode="eval").body) == name


@pytest.mark.parametrize(
    ("text", "encoding"),
    ((b"x = 1", "utf-8"), (b"# coding: latin-1\n", "iso-8859-1"), (b"# coding: none\n", ""), (None, "utf-8")),
)
def test_the_encoding_that_a_source_declares(text: bytes | None, encoding: str) -> None:
    assert encoding_of(text) == encoding


def test_what_python_refuses_for_another_reason_than_its_syntax_is_a_problem_too() -> None:
    assert summarize(b"x = 1\0").problem


def test_a_summary_tells_which_files_texts_name() -> None:
    assert summarize(b"import numba\nopen('data/a.json')\n").files == ("data/a.json",)
    assert summarize(b"x = 'a'\n").files == ()

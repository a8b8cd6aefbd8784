"""What can run, in small packages of the shapes that real ones have."""

import pytest

from tests.core.reach.programs import program, reach, runs
from verl_e2e.core.reach.program import Found, Node, Program
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.walk import Entry, Reach


def test_a_call_is_followed_and_a_neighbour_is_not() -> None:
    files = {"src/p/__init__.py": "", "src/p/a.py": "def f():\n    g()\ndef g(): pass\ndef h(): pass\n"}
    assert runs(reach(files, ("p.a", "f")), "p.a", "f", "g", "h", "") == [True, True, False, True]


def test_a_chain_begins_at_the_other_programs_line_and_ends_at_the_symbol() -> None:
    files = {"src/p/__init__.py": "", "src/p/a.py": "def f():\n    g()\ndef g(): pass\n"}
    chain = reach(files, ("p.a", "f")).chain(Node("p.a", "g"))
    assert [str(step.source) for step in chain] == ["caller.py:7 imports f", "p.a.f"]
    assert all(step.sure for step in chain)


def test_a_re_export_leads_to_the_definition() -> None:
    files = {
        "src/p/__init__.py": "from p.inner import *\n",
        "src/p/inner/__init__.py": "from .deep import f as g\n",
        "src/p/inner/deep.py": "def f(): pass\ndef other(): pass\n",
    }
    assert runs(reach(files, ("p", "g")), "p.inner.deep", "f", "other") == [True, False]


def test_a_namespace_package_lies_over_two_roots() -> None:
    files = {"src/n/a/x.py": "from n.b.y import f\ndef go():\n    f()\n", "more/n/b/y.py": "def f(): pass\n"}
    assert runs(reach(files, ("n.a.x", "go")), "n.b.y", "f") == [True]


@pytest.mark.parametrize(
    "factory",
    (
        "def make():\n    from p.made import Made\n    return Made()\n",
        "def make():\n    module, name = ('p.made', 'Made')\n    return load(module, name)()\n",
        "def make():\n    return load('p.made.Made')()\n",
        "import p.lazy\ndef make():\n    return p.lazy.Made()\n",
    ),
    ids=("inside a function", "module and name as text", "full name as text", "a module's __getattr__"),
)
def test_a_lazy_import_is_an_import(factory: str) -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/f.py": factory,
        "src/p/lazy.py": "_WHERE = {'Made': '.made'}\ndef __getattr__(name):\n    return load(_WHERE[name])\n",
        "src/p/made.py": "class Made:\n    def __init__(self): pass\n    def unused(self): pass\n",
    }
    assert runs(reach(files, ("p.f", "make")), "p.made", "Made.__init__", "Made.unused") == [True, False]


@pytest.mark.parametrize(
    ("path", "statement", "asked"),
    (
        # Python asks for `__path__` first.
        ("src/p/b.py", "from p.b import f", True),
        ("src/p/b.py", "import p.b", False),
        ("src/p/b/__init__.py", "from p.b import f", False),
        ("src/p/b/__init__.py", "from p.b import other", True),
        ("src/p/b/__init__.py", "from p.b import *", True),
    ),
)
def test_an_import_asks_a_modules_getattr_for_what_the_module_does_not_bind(
    path: str, statement: str, asked: bool
) -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": f"{statement}\ndef run(): pass\n",
        path: "def f(): pass\ndef __getattr__(name): pass\n",
    }
    assert runs(reach(files, ("p.a", "run")), "p.b", "__getattr__") == [asked]


@pytest.mark.parametrize("hook", ("_missing_", "_generate_next_value_", "__subclasshook__", "__prepare__"))
def test_what_python_calls_of_a_class_without_an_instance_runs_from_its_import_on(hook: str) -> None:
    files = {"src/p/a.py": f"def run(): pass\nclass Made(Enum):\n    def {hook}(cls): pass\n    def other(cls): pass\n"}
    assert runs(reach(files, ("p.a", "run")), "p.a", f"Made.{hook}", "Made.other") == [True, False]


def test_a_registered_class_is_alive_from_its_import_on() -> None:
    files = {
        "src/p/__init__.py": "from p import families\nfrom p.base import Base\n",
        "src/p/base.py": """
            class Base:
                @classmethod
                def register(cls, name): return lambda made: made
                def load(self):
                    return self.mapping()
                def mapping(self): raise NotImplementedError
        """,
        "src/p/families.py": """
            from p.base import Base
            @Base.register("one")
            class One(Base):
                def mapping(self): return helper()
                def spare(self): pass
            class Unregistered(Base):
                def mapping(self): pass
            def helper(): pass
        """,
    }
    found = reach(files, ("p", "Base"), ("", "load"))
    assert runs(found, "p.families", "One.mapping", "helper", "One.spare") == [True, True, False]
    assert runs(found, "p.families", "Unregistered.mapping") == [False]


@pytest.mark.parametrize(
    "again",
    (
        "Own = register(kind=1)(Own)\n",
        "if HAVE:\n    try:\n        Own = register(kind=1)(Own)\n    except Exception:\n        pass\n",
        "Own = register(Own)\n",
    ),
    ids=("a decoration written as a call", "under a condition", "without arguments"),
)
def test_a_class_that_is_registered_by_a_later_statement_is_alive_and_keeps_its_methods(again: str) -> None:
    files = {
        "src/p/__init__.py": "import p.family\ndef go(thing):\n    thing.work()\n",
        "src/p/family.py": "class Own:\n    def work(self):\n        used()\ndef used(): pass\n" + again,
    }
    assert runs(reach(files, ("p", "go")), "p.family", "Own.work", "used") == [True, True]


def test_no_definition_of_a_name_hides_what_another_does() -> None:
    text = """
        try:
            import fast
            def f():
                quick()
        except ImportError:
            def f():
                slow()
        class A:
            @property
            def size(self):
                return got()
            @size.setter
            def size(self, value):
                put()
        def quick(): pass
        def slow(): pass
        def got(): pass
        def put(): pass
        def go():
            f()
            A().size
    """
    files = {"src/p/__init__.py": "", "src/p/a.py": text}
    assert runs(reach(files, ("p.a", "go")), "p.a", "quick", "slow", "got", "put") == [True] * 4


def test_a_mixin_dispatches_to_the_class_that_uses_it_and_super_goes_up() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": """
            class Mixin:
                def wrap(self): return self.build()
            class Base(Mixin):
                def build(self): pass
                def finish(self): base()
            class Leaf(Base):
                def build(self): super().finish()
            def base(): pass
            def make(): return Leaf().wrap()
        """,
    }
    assert runs(reach(files, ("p.a", "make")), "p.a", "Mixin.wrap", "Leaf.build", "Base.finish", "base") == [True] * 4


def test_an_object_of_unknown_type_may_be_any_live_class_and_the_edge_says_so() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": """
            class Live:
                def go(self): pass
            class Dead:
                def go(self): pass
            def run(x):
                Live()
                x.go()
        """,
    }
    found = reach(files, ("p.a", "run"))
    assert runs(found, "p.a", "Live.go", "Dead.go") == [True, False]
    assert not found.chain(Node("p.a", "Live.go"))[-1].sure


def test_a_known_type_narrows_the_call() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": """
            class A:
                def go(self): pass
            class B:
                def go(self): pass
            def run(x: "A | None"):
                B
                x.go()
        """,
    }
    found = reach(files, ("p.a", "run"))
    assert runs(found, "p.a", "A.go", "B.go") == [True, False]


def test_a_foreign_base_may_call_any_method_of_its_subclass() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": "import torch\nclass M(torch.Module):\n    def forward(self): pass\n",
    }
    assert runs(reach(files, ("p.a", "M")), "p.a", "M.forward") == [True]


def test_an_implementation_runs_when_the_function_it_serves_is_called() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": """
            @dispatch
            def save(x): ...
            @dispatch
            def load(x): ...
            def register(kind):
                @save.impl(kind)
                def _save(x): saving()
                @load.impl(kind)
                def _load(x): loading()
            register(int)
            def saving(): pass
            def loading(): pass
            def main(): save(1)
        """,
    }
    assert runs(reach(files, ("p.a", "main")), "p.a", "saving", "loading") == [True, False]


def test_imports_for_a_type_checker_and_isinstance_make_nothing_run() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                import p.heavy
            from p.b import Kind
            def run(x): return isinstance(x, Kind)
        """,
        "src/p/b.py": "class Kind:\n    def __init__(self): pass\n",
        "src/p/heavy.py": "",
    }
    found = reach(files, ("p.a", "run"))
    assert "p.heavy" not in found.imported
    assert runs(found, "p.b", "Kind.__init__") == [False]


def test_an_attribute_that_the_other_program_uses_is_a_call() -> None:
    files = {"src/p/__init__.py": "", "src/p/a.py": "class A:\n    def used(self): pass\n    def unused(self): pass\n"}
    found = reach(files, ("p.a", "A"), ("", "used"))
    assert runs(found, "p.a", "A.used", "A.unused") == [True, False]


def test_a_name_that_is_gone_is_looked_for_elsewhere_and_doubted() -> None:
    files = {"src/p/__init__.py": "", "src/p/new.py": "def moved():\n    g()\ndef g(): pass\n", "src/p/old.py": ""}
    found = reach(files, ("p.old", "moved"))
    assert runs(found, "p.new", "moved", "g") == [True, True]
    assert not found.chain(Node("p.new", "g"))[0].sure
    assert [entry.attribute for entry in found.unresolved] == ["moved"]


def test_a_factory_that_is_gone_may_make_the_classes_that_its_name_says() -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/base.py": "class PLUG:\n    def __call__(self): pass\n",
        "src/p/kinds.py": "from p.base import PLUG\nclass Round(PLUG):\n    def __call__(self): pass\nclass Other:\n"
        "    def __call__(self): pass\n",
    }
    found = reach(files, ("p.base", "create_plug"))
    assert runs(found, "p.kinds", "Round.__call__", "Other.__call__") == [True, False]


@pytest.mark.parametrize(
    "text", ("def f(:\n", "\0", "# -*- coding: utf-8 -*-\n\xff", "from . import a\nfrom .b import *\nimport p.a.b.c\n")
)
def test_nothing_that_a_file_holds_stops_the_walk(text: str) -> None:
    found = Reach(
        Program({"p.a": "src/p/a.py"}, lambda _: summarize(text.encode("latin-1"))), [Entry("p.a", "f", "c.py", 1)]
    )
    assert "p.a" in found.imported


def test_classes_that_inherit_from_each_other_end() -> None:
    files = {"src/p/__init__.py": "", "src/p/a.py": "class A(B):\n    def f(self): self.g()\nclass B(A):\n    pass\n"}
    assert runs(reach(files, ("p.a", "A"), ("", "f")), "p.a", "A.f") == [True]


def test_a_module_that_is_gone_cannot_be_entered_and_one_that_is_there_is_imported() -> None:
    found = reach({"src/p/a.py": "go()\ndef go(): pass\n"}, ("p.a", None), ("p.gone", None))
    assert runs(found, "p.a", "", "go") == [True, True]
    assert [item.module for item in found.unresolved] == ["p.gone"]
    assert found.chain(Node("p.a", "nothing")) == ()
    assert [str(step.source) for step in found.chain(Node("p", ""))] == ["caller.py:7 imports p.a"]


@pytest.mark.parametrize(
    ("body", "expected"),
    (
        # Names that lead to a function, and names that lead nowhere.
        ("def f(): load('p.b.g')", True),
        ("def f(): load('p.gone.g'), load('foreign.module')", False),
        ("import p.b\ndef f(): use(p.b)", False),
        ("import p.b\ndef f(): p.b.g()", True),
        ("import p.b\ndef f(): p.b.gone()", False),
        ("from p.b import Made\ndef f(): Made().run()", True),
        ("from p.b import Made\ndef f():\n    x = Gone()\n    x.run()\n    Made", True),
        ("def f():\n    x = Gone()\n    x.run()", False),
        ("from p.b import Made\ndef f(x): x.run(), x.run(), Made", True),
        ("from p.b import Made\ndef f():\n    Made().run()\n    Made().run()", True),
        ("from p.b import Made\ndef f(): Made.run(1)", True),
        ("from p.b import Made\ndef f():\n    go()\n    Made().run()\ndef go(): Made().run()", True),
        ("from p.b import Made\ndef f(x):\n    go()\n    x.run()\n    Made\ndef go(x): x.run()", True),
        ("def f(): super().run()", False),
        ("from p.b import Made\nclass Own(Made):\n    def go(self): super().run()\ndef f(): Own().go()", True),
        ("from p.b import Made\nclass Mid(Made): pass\nclass Own(Mid):\n    def go(self): super().run()\n"
         "def f(): Own().go()", True),
        ("class Own:\n    def go(self): super().run()\ndef f(): Own().go()", False),
        ("from p.b import Made\nclass Own(Made):\n    def go(self): self.run()\ndef f(): Own().go()", True),
        ("class Own(ValueError):\n    def go(self): return self\ndef f(): Own().go()", False),
    ),
)  # fmt: skip
def test_where_a_reference_leads(body: str, expected: bool) -> None:
    files = {
        "src/p/__init__.py": "",
        "src/p/a.py": body,
        "src/p/b.py": "def g(): end()\nclass Made:\n    def run(self): end()\ndef end(): pass\n",
    }
    assert runs(reach(files, ("p.a", "f")), "p.b", "end") == [expected]


def test_a_method_that_was_called_before_its_class_lived_runs_all_the_same() -> None:
    files = {
        "src/p/a.py": "from p.b import Base\ndef f(x: Base, y):\n    x.run()\n    y.other()\n    late()\n"
        "def late():\n    from p.c import Below\n    Below()\n",
        "src/p/b.py": "class Base:\n    def run(self): pass\n",
        "src/p/c.py": "from p.b import Base\nclass Below(Base):\n    def run(self): pass\n    def other(self): pass\n",
    }
    found = reach(files, ("p.a", "f"))
    assert runs(found, "p.c", "Below.run", "Below.other") == [True, True]
    assert {found.steps[Node("p.c", f"Below.{name}")].how for name in ("run", "other")} == {"overrides", "may call"}
    assert [str(cls) for cls in found.definers("run")] == ["p.b.Base", "p.c.Below"] or found.definers("run")
    assert found.definers("nothing") == ()


@pytest.mark.parametrize(
    ("served", "expected"),
    (
        ("from p.a import call\n@call.register(int)\ndef _(x): done()\ndef done(): pass\n", True),
        ("@foreign.register(int)\ndef _(x): done()\ndef done(): pass\n", False),
    ),
)
def test_an_implementation_that_comes_after_the_function_that_it_serves(served: str, expected: bool) -> None:
    files = {"src/p/a.py": "def call(x):\n    later()\ndef later():\n    import p.b\n", "src/p/b.py": served}
    assert runs(reach(files, ("p.a", "call")), "p.b", "done") == [expected]


def test_who_leads_to_a_symbol_in_a_few_steps() -> None:
    files = {"src/p/a.py": "def a(): b()\ndef b(): c()\ndef c(): d()\ndef d(): a()\ndef e(): d()\n"}
    found = reach(files, ("p.a", "a"), ("p.a", "e"))
    assert {caller.symbol for caller in found.callers(Node("p.a", "d"))} == {"c", "e", "b", "a"}


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    (
        ("p.a", "g", "p.b.g"),
        ("p.a", "b", "p.b"),
        ("p", "a", "p.a"),
        ("p", "gone", ""),
        ("p.a", "foreign", ""),
        ("p.a", "itself", "p.itself"),
        ("p.loop", "x", ""),
        ("p.lazy", "Made", "p.b.g"),
        ("p.lazy", "Gone", ""),
        ("p.lazy", "Own", ""),
        ("p.star", "g", "p.b.g"),
        ("p.star", "nothing", ""),
        ("gone", "x", ""),
        ("n", "deep", "n.deep"),
    ),
)
def test_what_a_name_means_inside_a_module(module: str, name: str, expected: str) -> None:
    files = {
        "src/p/__init__.py": "from p import itself\n",
        "src/p/a.py": "from p.b import g\nfrom p import b\nfrom foreign import foreign\nfrom p import itself\n",
        "src/p/b.py": "def g(): pass\n",
        "src/p/itself.py": "",
        "src/p/loop.py": "from p.pool import x\n",
        "src/p/pool.py": "from p.loop import x\n",
        "src/p/lazy.py": "W = {'Made': 'p.alias', 'Gone': 'p.none', 'Own': 'p.lazy'}\ndef __getattr__(n): pass\n",
        "src/p/alias.py": "from p.b import g as Made\n",
        "src/p/star.py": "from foreign import *\nfrom p.b import *\n",
        "src/n/deep/x.py": "",
        "docs/conf.py": "",
    }
    found = program(files).lookup(module, name)
    assert (str(found.node) if found else "") == expected


def test_the_longest_beginning_of_a_dotted_name_that_is_known() -> None:
    tree = program({"src/p/a.py": "def f(): pass\n"})
    assert tree.full_name("p.a.f") == Found(Node("p.a", "f"), "function")
    assert tree.full_name("p.a.gone.deep") == Found(Node("p.a", ""), "module")
    assert tree.full_name("foreign.module") is None
    assert tree.dotted("p", ["a", "gone"]) == (Found(Node("p.a", ""), "module"), ["gone"])


MIXIN = {
    "src/p/__init__.py": "",
    "src/p/base.py": """
        class Base:
            def run(self):
                return self.prepare()
    """,
    "src/p/mixin.py": """
        class Mixin:
            def prepare(self):
                return 1
            def unused(self):
                return 2
    """,
    "src/p/whole.py": """
        from p.base import Base
        from p.mixin import Mixin

        class Whole(Base, Mixin):
            pass

        class Other(Base):
            def prepare(self):
                return 3
    """,
}


@pytest.mark.parametrize(
    "entries", [(("p.whole", "Whole"), ("", "run")), (("p.base", "Base"), ("", "run"), ("p.whole", "Whole"))]
)
def test_a_base_that_calls_what_only_a_mixin_of_the_subclass_has_reaches_it(
    entries: tuple[tuple[str, str | None], ...],
) -> None:
    found = reach(MIXIN, *entries)
    assert runs(found, "p.base", "Base.run") == [True]
    assert runs(found, "p.mixin", "Mixin.prepare", "Mixin.unused") == [True, False]
    assert runs(found, "p.whole", "Other.prepare") == [False]


def test_a_class_that_comes_to_live_after_the_call_brings_what_its_mixin_has() -> None:
    files = {**MIXIN, "src/p/late.py": "from p.base import Base\n\n\ndef go():\n    Base().run()\n    make()\n"}
    files["src/p/late.py"] += "\n\ndef make():\n    from p.whole import Whole\n    return Whole()\n"
    found = reach(files, ("p.late", "go"))
    assert runs(found, "p.mixin", "Mixin.prepare") == [True]

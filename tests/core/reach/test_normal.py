"""What the normal form takes away changes no run: each kind of edit, made in real sources, is held against bytecode."""

import ast
import dis
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.places import ROOT
from verl_e2e.core.reach.diff import compare
from verl_e2e.core.reach.normal import bound_names

# A module that reads docstrings may depend on every one, so an edit of one is a change there.
# Files that read no docstrings: of others none may go.
SOURCES = tuple(
    path
    for path in sorted((ROOT / "bot" / "verl_e2e" / "core").rglob("*.py"))
    if not any(name in path.read_text() for name in ("__doc__", "getdoc", "getsource"))
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def instructions(code: CodeType) -> Iterator[object]:
    """What a code object does, docstrings, jumps' offsets and idle instructions left out."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"NOP", "RESUME", "EXTENDED_ARG"}:
            continue
        if isinstance(instruction.argval, CodeType):
            yield tuple(instructions(instruction.argval))
        else:
            jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
            yield instruction.opname, None if jumps else shown(instruction.argval)


def shown(value: object) -> str:
    """A constant as text; a set has no order."""
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def compiled(text: str) -> tuple[object, ...]:
    """The instructions with every statement on one line and every function's end written out.

    Where lines end, and whether a function ends in a branch, decides only which blocks the compiler doubles.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            node.body.append(ast.Return(ast.Constant(None)))
    for node in ast.walk(ast.fix_missing_locations(tree)):
        for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
            if hasattr(node, name):
                setattr(node, name, 1)
    return tuple(instructions(compile(tree, "x", "exec", dont_inherit=True, optimize=2)))


def bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    return [node.body for node in ast.walk(tree) if isinstance(node, _Function | ast.If | ast.For | ast.With)]


def reformat(tree: ast.Module, _choose: random.Random) -> bool:
    return bool(tree.body)


def another_docstring(tree: ast.Module, choose: random.Random) -> bool:
    found = [item for item in ast.walk(tree) if isinstance(item, _Function | ast.ClassDef | ast.Module)]
    # A decorator of a function may read its docstring.
    found = [item for item in found if not isinstance(item, _Function) or not item.decorator_list]
    node = choose.choice([item for item in found if ast.get_docstring(item)])
    first = node.body[0]
    assert isinstance(first, ast.Expr)
    first.value = ast.Constant("Another text.")
    return True


def no_docstring(tree: ast.Module, choose: random.Random) -> bool:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and not node.decorator_list and ast.get_docstring(node) and len(node.body) > 1
    ]
    if found:
        del choose.choice(found).body[0]
    return bool(found)


IDLE: tuple[Callable[[], ast.stmt], ...] = (
    ast.Pass,
    lambda: ast.Expr(ast.Constant("idle")),
    lambda: ast.Expr(ast.Constant(...)),
)


def idle_statements(tree: ast.Module, choose: random.Random) -> bool:
    body = choose.choice(bodies(tree) or [tree.body])
    # Before a statement: after the last one it would be a block of its own, to which the compiler jumps.
    # Not before the first one, where a text would be a docstring.
    body.insert(choose.randrange(1, len(body)) if len(body) > 1 else 0, choose.choice(IDLE)())
    return True


def string_prefix(tree: ast.Module, choose: random.Random) -> bool:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    choose.choice(found).kind = "u"
    return True


def local_annotation(tree: ast.Module, choose: random.Random) -> bool:
    places = [
        (body, index)
        for function in ast.walk(tree)
        if isinstance(function, _Function)
        for body in [function.body]
        for index, statement in enumerate(body)
        if isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ]
    if not places:
        return False
    body, index = choose.choice(places)
    one = body[index]
    assert isinstance(one, ast.Assign)
    target = one.targets[0]
    assert isinstance(target, ast.Name)
    body[index] = ast.AnnAssign(target, ast.parse("missing[0]", mode="eval").body, one.value, simple=1)
    return True


EDITS: tuple[Callable[[ast.Module, random.Random], bool], ...] = (
    reformat,
    another_docstring,
    no_docstring,
    idle_statements,
    string_prefix,
    local_annotation,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda item: item.__name__)
@settings(deadline=None, max_examples=6)
@given(path=st.sampled_from(SOURCES), choose=st.randoms(use_true_random=False))
def test_an_edit_that_the_normal_form_takes_away_leaves_the_bytecode_as_it_is(
    edit: Callable[[ast.Module, random.Random], bool], path: Path, choose: random.Random
) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    if not edit(tree, choose):
        return
    edited = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    assert compiled(edited) == compiled(text)
    found = compare(text.encode(), edited.encode())
    assert (found.problem, found.changes, found.import_time) == ("", (), ())


@pytest.mark.parametrize("idle", ("pass", "...", "'idle'"))
@pytest.mark.parametrize(
    "head", ("def f(x):\n    x()", "def f(x):\n    for y in x:\n        y()", "def f():\n    return 1")
)
def test_an_idle_statement_at_the_end_of_a_body_is_taken_away(head: str, idle: str) -> None:
    depth = len(head.splitlines()[-1]) - len(head.splitlines()[-1].lstrip())
    assert quiet(f"{head}\n", f"{head}\n{' ' * depth}{idle}\n")
    assert quiet(f"{head}\n", f"{head}\n    {idle}\n")


def quiet(old: str, new: str) -> bool:
    found = compare(old.encode(), new.encode())
    return not found.problem and not (found.changes or found.import_time)


HEAD = "import logging\n\nlogger = logging.getLogger('n')\n\n\ndef f(x):\n    "


@pytest.mark.parametrize(
    "line",
    (
        "logger.info('TEXT %s', x)",
        "logger.log(10, 'TEXT', x.y)",
        "logging.warning(f'TEXT {x} b {x.y!r}')",
        "print('TEXT', x, sep='')",
        "raise ValueError('TEXT', x)",
        "raise RuntimeError(f'TEXT {x}') from x",
        "assert x, 'TEXT'",
        "assert x, f'TEXT {x.y}'",
    ),
)
def test_the_text_of_a_message_may_differ(line: str) -> None:
    assert quiet(HEAD + line.replace("TEXT", "one"), HEAD + line.replace("TEXT", "another"))


@pytest.mark.parametrize("hidden", ("x.clear()", "(x := 1)", "x[0]", "x + 1", "[x]", "lambda: x", "x.z", "y"))
@pytest.mark.parametrize(
    "line",
    ("logger.info('t', {})", "print(f'{{{}}}')", "raise ValueError('t', {})", "assert x, {}", "logger.info('t', a={})"),
)
def test_what_a_message_evaluates_may_not_differ(line: str, hidden: str) -> None:
    old, new = line.format("x"), line.format(f"({hidden})")
    assert not quiet(HEAD + old, HEAD + new)
    assert not quiet(HEAD + new, HEAD + old)


@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("def f(x):\n    logger.info('a', x)", "def f(x):\n    logger.error('a', x)"),
        ("def f(x):\n    raise OSError('a')", "def f(x):\n    raise OSError('b')"),
        ("def f(x):\n    raise SystemExit('a')", "def f(x):\n    raise SystemExit('b')"),
        ("def f(x):\n    raise ValueError(1)", "def f(x):\n    raise ValueError(2)"),
        (
            "ValueError = print\ndef f(x):\n    raise ValueError('a')",
            "ValueError = print\ndef f(x):\n    raise ValueError('b')",
        ),
        ("def f(print):\n    print('a')", "def f(print):\n    print('b')"),
        ("def f():\n    'doc'\n    return f.__doc__", "def f():\n    'other'\n    return f.__doc__"),
        ("@read\ndef f():\n    'doc'", "@read()\ndef f():\n    'other'"),
        ("class A:\n    x: int", "class A:\n    x: str"),
        ("def f(x: int): ...", "def f(x: missing): ..."),
        ("def f():\n    x: int\n    return x", "def f():\n    return x"),
        # Python compiles an annotation that it never evaluates: these make a generator, or a name local.
        ("def f():\n    x: int = 1", "def f():\n    x: (yield) = 1"),
        ("def f():\n    x: int", "def f():\n    x: A[(yield from x)]"),
        ("def f():\n    x = y", "def f():\n    x: (y := int) = y"),
        ("def f(a):\n    a.x: int = y", "def f(a):\n    a.x: A[y := int] = y"),
        # The text goes into a file that something may read.
        ("def f(x):\n    print('a', file=x)", "def f(x):\n    print('b', file=x)"),
        ("def f(x):\n    print(f'a{x}', **x)", "def f(x):\n    print(f'b{x}', **x)"),
        ("def f():\n    def g(x: int): ...", "def f():\n    def g(x: str): ..."),
        ("def f():\n    class A:\n        x: int", "def f():\n    class A:\n        x: str"),
        ("def f():\n    x = 1\n    return x", "def f():\n    y = 1\n    return y"),
        ("x = 1", "x = True"),
        ("x = 0.0", "x = -0.0"),
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = b'a'"),
        ("from typing import TYPE_CHECKING\n", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    f()\n"),
        ("def f():\n    logger.info('a')", "def f():\n    pass"),
    ),
)
def test_what_looks_alike_and_is_not_the_same_differs(old: str, new: str) -> None:
    assert not quiet(old, new)
    assert not quiet(new, old)


@pytest.mark.parametrize(
    ("head", "test", "is_quiet"),
    (
        ("from typing import TYPE_CHECKING\n", "TYPE_CHECKING", True),
        ("import typing\n", "typing.TYPE_CHECKING", True),
        ("from other import TYPE_CHECKING\n", "TYPE_CHECKING", False),
        ("from typing import TYPE_CHECKING\nTYPE_CHECKING = 1\n", "TYPE_CHECKING", False),
        ("from typing import TYPE_CHECKING\nfrom x import *\n", "TYPE_CHECKING", False),
        ("import typing\ntyping.TYPE_CHECKING = 1\n", "typing.TYPE_CHECKING", False),
        ("from typing import TYPE_CHECKING\n", "not TYPE_CHECKING", False),
    ),
)
def test_what_a_type_checker_imports_may_differ_below_typings_own_name(head: str, test: str, is_quiet: bool) -> None:
    block = f"{head}if {test}:\n    import torch\n"
    assert quiet(block, f"{block}    from x import y\n") is is_quiet
    # The test itself is executed, also above the import of its name.
    assert not quiet(head, block)
    assert not quiet(block, f"if {test}:\n    import torch\n{head}")


def test_in_a_function_a_type_checkers_block_stays() -> None:
    inside = "from typing import TYPE_CHECKING\n\n\ndef f():\n    {}return torch\n"
    assert not quiet(inside.format(""), inside.format("if TYPE_CHECKING:\n        import torch\n    "))


@pytest.mark.parametrize(
    "line", ("print('TEXT')", "assert f, 'TEXT'", "logging.info('TEXT')", "class A:\n    print('TEXT')")
)
def test_a_message_at_import_is_no_message_alone(line: str) -> None:
    old, new = (f"import logging\n{line}\ndef f(): ...\n".replace("TEXT", text) for text in ("one", "two"))
    assert not quiet(old, new)


DECORATED = "{}\n\n\n@{}\ndef f(x: int):\n    {}\n    return 1\n"


@pytest.mark.parametrize(
    ("head", "decorator", "plain"),
    (
        ("import functools", "functools.cache", True),
        ("from functools import cache as kept", "kept", True),
        ("from functools import lru_cache", "lru_cache(maxsize=1)", True),
        ("import torch\nimport torch.nn", "torch.no_grad()", True),
        ("", "property", True),
        # The name of Python's own, and not what it means.
        ("def cache(f): return f()", "cache", False),
        ("from functools import cache\ncache = print", "cache", False),
        ("from functools import cache\ndel cache", "cache", False),
        ("from x import cache", "cache", False),
        ("from functools import cache\nfrom x import *", "cache", False),
        ("try:\n    from functools import cache\nexcept ImportError:\n    from x import cache", "cache", False),
        ("import x as functools", "functools.cache", False),
        ("property = print", "property", False),
        ("from functools import cache", "cache(f)(g)", False),
        ("from functools import cache", "cache[0]", False),
        ("", "(lambda f: f())", False),
    ),
)
def test_a_decorator_that_is_not_surely_pythons_own_may_run_and_read_what_it_decorates(
    head: str, decorator: str, plain: bool
) -> None:
    old, other = (DECORATED.format(head, decorator, text) for text in ("'doc'", "'other'"))
    assert quiet(old, other) is plain
    runs = compare(old.encode(), old.replace("return 1", "return 2").encode())
    assert bool(runs.import_time) is not plain


@pytest.mark.parametrize(
    ("binding", "bound"),
    (
        ("def f(x):\n    match x:\n        case {**print}: pass", True),
        ("def f(x):\n    match x:\n        case [*print]: pass", True),
        ("def f(x):\n    global print", True),
        ("def f(x):\n    global other", False),
    ),
)
def test_print_is_a_message_only_where_nothing_binds_its_name(binding: str, bound: bool) -> None:
    old, new = (f"{binding}\ndef g():\n    print('{text}')\n" for text in ("a", "b"))
    assert quiet(old, new) is not bound


@pytest.mark.parametrize(("line", "is_quiet"), (("print(f'TEXT {x:>9}')", True), ("print(f'TEXT {x:{y}}')", False),
                                                ("table['f']('TEXT')", False)))  # fmt: skip
def test_a_format_may_be_constant_text_only(line: str, is_quiet: bool) -> None:
    assert quiet(HEAD + line.replace("TEXT", "one"), HEAD + line.replace("TEXT", "two")) is is_quiet


def test_a_type_parameter_binds_its_name_in_every_version_of_python() -> None:
    parameter = getattr(ast, "TypeVar", type("TypeVar", (ast.AST,), {"_fields": ("name",)}))
    assert list(bound_names(parameter("T"))) == ["T"]
    assert list(bound_names(ast.Pass())) == []

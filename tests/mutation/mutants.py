"""Mutants of source files: each edits one place so that what verl runs differs, or what its imports execute.

A mutant is text, never run. Edits that may leave a run as it is (equivalent mutants) are not made: constants of
messages, docstrings, lone constants, log calls, statements that do nothing.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EVIL = "exit(1)"
_LOGS = {"logger", "logging", "log", "warnings"}
_MESSAGES = ("print", "print_rank_0", "print_rank_last", "warn_rank_0", "log_single_rank", "warn_once")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit of one file."""

    # What kind of edit it is.
    operator: str
    # The symbol that was edited, empty for the module's own statements.
    symbol: str
    # The line that was edited.
    line: int
    # The whole file after the edit.
    text: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A list of statements and an index in it, with the statements around it, outermost first."""

    body: list[ast.stmt]
    index: int
    outer: tuple[ast.stmt, ...]

    @property
    def node(self) -> ast.stmt:
        return self.body[self.index]


class Source:
    """One file, and the mutants of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)

    def of_function(self, symbol: str, choose: random.Random, count: int) -> Iterator[Mutant]:
        """Some mutants of the code of a function or method."""
        for number, top in enumerate(self.tree.body):
            for path, node in _functions(top):
                if symbol == _symbol(top, node):
                    edits = list(_IN_FUNCTIONS.items())
                    choose.shuffle(edits)
                    made = 0
                    for name, edit in edits:
                        changed = self._edited(number, path, edit, choose)
                        if changed is not None and made < count:
                            made += 1
                            yield Mutant(name, symbol, node.lineno, changed)

    def of_import(self, choose: random.Random, count: int) -> Iterator[Mutant]:
        """Some mutants of the code that importing the file executes."""
        edits = list(_AT_IMPORT.items())
        choose.shuffle(edits)
        made = 0
        for name, edit in edits:
            tree = copy.deepcopy(self.tree)
            if made < count and edit(tree, choose):
                made += 1
                yield Mutant(name, "", 1, ast.unparse(ast.fix_missing_locations(tree)))

    def _edited(
        self,
        number: int,
        path: tuple[int, ...],
        edit: Callable[[_Function, random.Random], bool],
        choose: random.Random,
    ) -> str | None:
        top = copy.deepcopy(self.tree.body[number])
        node: ast.AST = top
        for index in path:
            node = node.body[index]  # type: ignore[attr-defined]
        assert isinstance(node, _Function)
        before = ast.unparse(top)
        if not edit(node, choose):
            return None
        after = ast.unparse(ast.fix_missing_locations(top))
        if after == before:
            return None
        first = min([top.lineno, *(item.lineno for item in getattr(top, "decorator_list", []))])
        end = self.tree.body[number].end_lineno or first
        return "".join([*self.lines[: first - 1], after, "\n", *self.lines[end:]])


def _functions(top: ast.stmt) -> Iterator[tuple[tuple[int, ...], _Function]]:
    if isinstance(top, _Function):
        yield (), top
    elif isinstance(top, ast.ClassDef):
        for index, statement in enumerate(top.body):
            if isinstance(statement, _Function):
                yield (index,), statement


def _symbol(top: ast.stmt, node: _Function) -> str:
    return node.name if node is top else f"{top.name}.{node.name}"  # type: ignore[attr-defined]


def _places(node: ast.AST, outer: tuple[ast.stmt, ...] = ()) -> Iterator[_Place]:
    """Every place of a statement that does something, at any depth."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            for index, statement in enumerate(body):
                if isinstance(statement, ast.stmt) and not _is_idle(statement):
                    yield _Place(body, index, outer)
                    yield from _places(statement, (*outer, statement))
    for handler in getattr(node, "handlers", []):
        yield from _places(handler, outer)


def _is_idle(node: ast.stmt) -> bool:
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name in _MESSAGES
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
            return _last(owner) in _LOGS
        case _:
            return False


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _expressions(function: _Function) -> list[ast.AST]:
    """The nodes of a function's statements, those of messages, annotations and lone constants left out."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt) and _is_idle(node):
            continue
        found.append(node)
        match node:
            case ast.Raise(exc=ast.Call(func=function_)):
                todo.append(function_)
            case ast.Assert(test=test):
                todo.append(test)
            case ast.AnnAssign(target=target, value=value):
                todo.extend([target, *([value] if value else [])])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                todo.extend(node.body)
            case ast.JoinedStr(values=values):
                todo.extend(item for item in values if isinstance(item, ast.FormattedValue))
            case _:
                todo.extend(ast.iter_child_nodes(node))
    return found


def _drop(function: _Function, choose: random.Random) -> bool:
    places = [item for item in _places(function) if not isinstance(item.node, _Function | ast.ClassDef)]
    if not places:
        return False
    place = choose.choice(places)
    place.body[place.index] = ast.Pass()
    return True


def _dedent(function: _Function, choose: random.Random) -> bool:
    """Move the last statement of a block behind the block."""
    blocks = [
        place
        for place in _places(function)
        if isinstance(place.node, ast.If | ast.For | ast.While | ast.With)
        and len(place.node.body) > 1
        and not _is_idle(place.node.body[-1])
    ]
    if not blocks:
        return False
    place = choose.choice(blocks)
    moved = place.node.body.pop()  # type: ignore[attr-defined]
    place.body.insert(place.index + 1, moved)
    return True


def _indent(function: _Function, choose: random.Random) -> bool:
    """Move a statement into the block before it."""
    places = [
        place
        for place in _places(function)
        if place.index and isinstance(place.body[place.index - 1], ast.If | ast.For | ast.While | ast.With)
    ]
    if not places:
        return False
    place = choose.choice(places)
    place.body[place.index - 1].body.append(place.node)  # type: ignore[attr-defined]
    del place.body[place.index]
    return True


def _swap(function: _Function, choose: random.Random) -> bool:
    places = [
        place
        for place in _places(function)
        if place.index
        and not _is_idle(place.body[place.index - 1])
        and ast.dump(place.node) != ast.dump(place.body[place.index - 1])
    ]
    if not places:
        return False
    place = choose.choice(places)
    before, after = place.body[place.index - 1], place.node
    place.body[place.index - 1], place.body[place.index] = after, before
    return True


def _negate(function: _Function, choose: random.Random) -> bool:
    tests = [node for node in _expressions(function) if isinstance(node, ast.If | ast.While | ast.IfExp)]
    if not tests:
        return False
    one = choose.choice(tests)
    one.test = ast.UnaryOp(ast.Not(), one.test)
    return True


def _constant(function: _Function, choose: random.Random) -> bool:
    constants = [
        node for node in _expressions(function) if isinstance(node, ast.Constant) and node.value is not Ellipsis
    ]
    if not constants:
        return False
    one = choose.choice(constants)
    one.value = _other(one.value)
    return True


def _other(value: object) -> str | bytes | complex:
    match value:
        case bool():
            return not value
        case int() | float() | complex():
            return value + 1
        case str():
            return value + "_"
        case bytes():
            return value + b"_"
        case _:
            return 0


def _attribute(function: _Function, choose: random.Random) -> bool:
    found = [node for node in _expressions(function) if isinstance(node, ast.Attribute)]
    if not found:
        return False
    choose.choice(found).attr += "_"
    return True


def _compare(function: _Function, choose: random.Random) -> bool:
    found = [node for node in _expressions(function) if isinstance(node, ast.Compare)]
    if not found:
        return False
    one = choose.choice(found)
    others = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn}
    one.ops[0] = others.get(type(one.ops[0]), ast.Eq)()
    return True


def _arithmetic(function: _Function, choose: random.Random) -> bool:
    found = [node for node in _expressions(function) if isinstance(node, ast.BinOp)]
    if not found:
        return False
    one = choose.choice(found)
    one.left, one.right = one.right, one.left
    return ast.dump(one.left) != ast.dump(one.right)


def _argument(function: _Function, choose: random.Random) -> bool:
    """Drop an argument of a call."""
    found = [node for node in _expressions(function) if isinstance(node, ast.Call) and (node.args or node.keywords)]
    if not found:
        return False
    one = choose.choice(found)
    (one.keywords or one.args).pop()
    return True


def _returned(function: _Function, choose: random.Random) -> bool:
    found = [node for node in _expressions(function) if isinstance(node, ast.Return) and node.value is not None]
    found = [node for node in found if not (isinstance(node.value, ast.Constant) and node.value.value is None)]
    if not found:
        return False
    choose.choice(found).value = None
    return True


def _jump(function: _Function, choose: random.Random) -> bool:
    found = [item for item in _places(function) if isinstance(item.node, ast.Continue | ast.Break)]
    if not found:
        return False
    place = choose.choice(found)
    place.body[place.index] = ast.Break() if isinstance(place.node, ast.Continue) else ast.Continue()
    return True


def _caught(function: _Function, choose: random.Random) -> bool:
    found = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
    if not found:
        return False
    choose.choice(found).type = ast.Name("ZeroDivisionError", ast.Load())
    return True


def _default(function: _Function, choose: random.Random) -> bool:
    defaults = function.args.defaults
    if not defaults:
        return False
    defaults[choose.randrange(len(defaults))] = _evil()
    return True


def _local_import(function: _Function, choose: random.Random) -> bool:
    found = [node for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
    if not found:
        return False
    choose.choice(found).names[0].name += "_"
    return True


def _swapped_arguments(function: _Function, choose: random.Random) -> bool:
    names = function.args.args
    movable = [index for index in range(1, len(names)) if names[index].arg not in {"self", "cls"}]
    movable = [index for index in movable if names[index - 1].arg not in {"self", "cls"}]
    if not movable:
        return False
    index = choose.choice(movable)
    names[index - 1], names[index] = names[index], names[index - 1]
    return True


def _nested_local(function: _Function, choose: random.Random) -> bool:
    """Hide a name of the module behind a local one that only a type checker's import binds."""
    used = sorted(
        {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    )
    if not used:
        return False
    block = ast.parse(f"if TYPE_CHECKING:\n    import {choose.choice(used)}").body
    function.body[0:0] = block
    return True


def _evil() -> ast.expr:
    return ast.parse(EVIL, mode="eval").body


def _hidden(text: str) -> Callable[[_Function, random.Random], bool]:
    """An edit that puts a statement with a side effect where a reader may not look for one."""

    def edit(function: _Function, choose: random.Random) -> bool:
        function.body[choose.choice([0, len(function.body) - 1]) : 0] = []
        function.body.insert(0, ast.parse(text).body[0])
        return True

    return edit


_IN_FUNCTIONS: dict[str, Callable[[_Function, random.Random], bool]] = {
    "drop a statement": _drop,
    "dedent a statement": _dedent,
    "indent a statement": _indent,
    "swap two statements": _swap,
    "negate a condition": _negate,
    "change a constant": _constant,
    "rename an attribute": _attribute,
    "change a comparison": _compare,
    "swap operands": _arithmetic,
    "drop an argument": _argument,
    "return nothing": _returned,
    "continue for break": _jump,
    "catch something else": _caught,
    "a default that runs": _default,
    "rename a local import": _local_import,
    "swap parameters": _swapped_arguments,
    "a type checker's import in a function": _nested_local,
    "a log call that runs": _hidden(f"logger.info({EVIL})"),
    "a log call that assigns": _hidden("logger.debug('%s', (self := None))"),
    "a print that runs": _hidden(f"print(f'{{{EVIL}}}')"),
    "a warning filter": _hidden("warnings.simplefilter('error')"),
    "a docstring that runs": _hidden(f"f'{{{EVIL}}}'"),
    "an assertion message that runs": _hidden(f"assert False, {EVIL}"),
    "a raised argument that runs": _hidden(f"raise ValueError({EVIL})"),
    "a nested decorator": _hidden(f"@{EVIL}\ndef inner():\n    pass"),
    "a nested annotation": _hidden(f"def inner(x: {EVIL}):\n    pass"),
    "a nested class base": _hidden(f"class Inner({EVIL}):\n    pass"),
    "a global": _hidden("global torch"),
}


def _anywhere(tree: ast.Module, choose: random.Random) -> int:
    """A place in the module behind its future imports."""
    first = max(
        [
            index + 1
            for index, statement in enumerate(tree.body)
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        ]
        or [1 if tree.body and isinstance(tree.body[0], ast.Expr) else 0]
    )
    return choose.randint(min(first, len(tree.body)), len(tree.body))


def _inserted(*texts: str) -> Callable[[ast.Module, random.Random], bool]:
    def edit(tree: ast.Module, choose: random.Random) -> bool:
        index = _anywhere(tree, choose)
        tree.body[index:index] = ast.parse("\n".join(texts)).body
        return True

    return edit


def _in_class(text: str) -> Callable[[ast.Module, random.Random], bool]:
    def edit(tree: ast.Module, choose: random.Random) -> bool:
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if not classes:
            return False
        choose.choice(classes).body.append(ast.parse(text).body[0])
        return True

    return edit


def _imports_of(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    return [
        item
        for item in tree.body
        if isinstance(item, ast.Import | ast.ImportFrom) and getattr(item, "module", "") != "__future__"
    ]


def _used_names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _drop_import(tree: ast.Module, choose: random.Random) -> bool:
    used = _used_names(tree)
    found = [
        (import_from, alias)
        for import_from in _imports_of(tree)
        for alias in import_from.names
        if (alias.asname or alias.name.partition(".")[0]) in used
    ]
    if not found:
        return False
    one, alias = choose.choice(found)
    one.names.remove(alias)
    if not one.names:
        tree.body.remove(one)
    return True


def _swap_aliases(tree: ast.Module, choose: random.Random) -> bool:
    used = _used_names(tree)
    found = [
        import_from
        for import_from in _imports_of(tree)
        if isinstance(import_from, ast.ImportFrom)
        and len(import_from.names) > 1
        and any((a.asname or a.name) in used for a in import_from.names[:2])
    ]
    if not found:
        return False
    first, second = choose.choice(found).names[:2]
    first.asname, second.asname = second.asname or second.name, first.asname or first.name
    return True


def _deeper_import(tree: ast.Module, choose: random.Random) -> bool:
    found = [import_from for import_from in _imports_of(tree) if isinstance(import_from, ast.ImportFrom)]
    if not found:
        return False
    choose.choice(found).level += 1
    return True


def _other_module(tree: ast.Module, choose: random.Random) -> bool:
    found = _imports_of(tree)
    if not found:
        return False
    one = choose.choice(found)
    if isinstance(one, ast.ImportFrom):
        one.module = f"{one.module or ''}_other"
    else:
        one.names[0].name += "_other"
    return True


def _other_guard(tree: ast.Module, choose: random.Random) -> bool:
    found = [item for item in tree.body if isinstance(item, ast.Try) and item.handlers]
    if not found:
        return False
    choose.choice(found).handlers[0].type = ast.Name("ZeroDivisionError", ast.Load())
    return True


def _unguarded(tree: ast.Module, choose: random.Random) -> bool:
    found = [index for index, statement in enumerate(tree.body) if isinstance(statement, ast.Try)]
    if not found:
        return False
    index = choose.choice(found)
    tree.body[index : index + 1] = tree.body[index].body  # type: ignore[attr-defined]
    return True


def _negated_block(tree: ast.Module, choose: random.Random) -> bool:
    found = [item for item in tree.body if isinstance(item, ast.If)]
    if not found:
        return False
    one = choose.choice(found)
    one.test = ast.UnaryOp(ast.Not(), one.test)
    return True


def _with_head(edit_class: Callable[[ast.ClassDef], None]) -> Callable[[ast.Module, random.Random], bool]:
    def edit(tree: ast.Module, choose: random.Random) -> bool:
        classes = [item for item in tree.body if isinstance(item, ast.ClassDef)]
        if not classes:
            return False
        edit_class(choose.choice(classes))
        return True

    return edit


def _on_function(edit_function: Callable[[_Function], None]) -> Callable[[ast.Module, random.Random], bool]:
    def edit(tree: ast.Module, choose: random.Random) -> bool:
        found = [item for item in tree.body if isinstance(item, _Function)]
        found += [
            two
            for item in tree.body
            if isinstance(item, ast.ClassDef)
            for two in item.body
            if isinstance(two, _Function)
        ]
        if not found:
            return False
        edit_function(choose.choice(found))
        return True

    return edit


def _annotate(function: _Function) -> None:
    function.returns = _evil()


def _future_annotations(tree: ast.Module) -> bool:
    return any(isinstance(item, ast.ImportFrom) and item.module == "__future__" for item in tree.body)


def _evil_annotation(tree: ast.Module, choose: random.Random) -> bool:
    return not _future_annotations(tree) and _on_function(_annotate)(tree, choose)


_AT_IMPORT: dict[str, Callable[[ast.Module, random.Random], bool]] = {
    "a statement that runs": _inserted(EVIL),
    "a variable that runs": _inserted(f"_unread = {EVIL}"),
    "an annotation that runs": _inserted(f"_unread: {EVIL} = 1"),
    "a default that runs at import": _inserted(f"def _unread(x={EVIL}):\n    pass"),
    "a keyword default that runs": _inserted(f"def _unread(*, x={EVIL}):\n    pass"),
    "a decorator that runs": _inserted(f"@{EVIL}\ndef _unread():\n    pass"),
    "a class body that runs": _inserted(f"class _Unread:\n    x = {EVIL}"),
    "a nested class body that runs": _inserted(f"class _Unread:\n    class Inner:\n        x = {EVIL}"),
    "a base that runs": _inserted(f"class _Unread({EVIL}):\n    pass"),
    "a class keyword that runs": _inserted(f"class _Unread(metaclass={EVIL}):\n    pass"),
    "an overload that runs": _inserted(f"@overload\ndef _unread(x={EVIL}):\n    ..."),
    "a negated type checker's block": _inserted(
        "from typing import TYPE_CHECKING", f"if not TYPE_CHECKING:\n    {EVIL}"
    ),
    "a type checker's else": _inserted(
        "from typing import TYPE_CHECKING", f"if TYPE_CHECKING:\n    pass\nelse:\n    {EVIL}"
    ),
    "a type checker's name of its own": _inserted("TYPE_CHECKING = True", "if TYPE_CHECKING:\n    import evil"),
    "a log call at import": _inserted(f"print({EVIL})"),
    "a docstring's place at import": _inserted(f"f'{{{EVIL}}}'"),
    "an assertion at import": _inserted(f"assert True, {EVIL}", f"assert {EVIL}"),
    "a changed sys.modules": _inserted("import sys", "sys.modules['torch'] = None"),
    "a deleted name": _inserted("del __name__"),
    "a star import": _inserted("from .tests import *"),
    "a redirected import": _inserted("import evil as torch"),
    "an import inside a class": _inserted("class _Unread:\n    import evil"),
    "a field that runs": _in_class(f"unread: int = {EVIL}"),
    "a class attribute that runs": _in_class(f"unread = {EVIL}"),
    "a class annotation that runs": _in_class(f"unread: {EVIL}"),
    "a method default that runs": _in_class(f"def unread(self, x={EVIL}):\n    pass"),
    "a hook": _in_class(f"def __init_subclass__(cls):\n    {EVIL}"),
    "drop an import that is used": _drop_import,
    "swap the aliases of an import": _swap_aliases,
    "a deeper relative import": _deeper_import,
    "another module": _other_module,
    "another except type": _other_guard,
    "an import without its guard": _unguarded,
    "a negated block": _negated_block,
    "another base": _with_head(lambda item: item.bases.insert(0, ast.Name("Unknown_", ast.Load()))),
    "another class decorator": _with_head(lambda item: item.decorator_list.insert(0, _evil())),
    "another keyword of a class": _with_head(lambda item: item.keywords.append(ast.keyword("metaclass", _evil()))),
    "another decorator": _on_function(lambda item: item.decorator_list.insert(0, _evil())),
    "another annotation": _evil_annotation,
    "a return at module level": _inserted("return"),
    "a nonlocal nowhere": _inserted("def _unread():\n    nonlocal nowhere"),
    "a doubled parameter": _inserted("def _unread(x, x):\n    pass"),
    "an unknown future import": _inserted("from __future__ import braces"),
}

"""The import-time code of one version of a file, as items that can be compared: all but the bodies of functions."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_e2e.core.reach.evaluates import (
    BUILTIN_NAMES,
    CONTAINERS,
    Annotations,
    annotations_of,
    has_builtin_decorators,
    is_immutable,
    is_literal,
    is_plain_field,
    names_in,
)
from verl_e2e.core.reach.nodes import children, walk
from verl_e2e.core.reach.normal import Frozen, all_bound_names, bound_names, freeze
from verl_e2e.core.reach.settled import NOTHING_SETTLED, Settled
from verl_e2e.core.reach.summary import BODY
from verl_e2e.core.reach.syntax import PLAIN_DECORATORS, dotted
from verl_e2e.core.reach.tree_numbers import TreeNumbers

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# What gives the names that an object has.
LISTS_NAMES = frozenset({"vars", "dir", "getmembers", "__dict__"})


@dataclass(frozen=True, slots=True)
class ImportedName:
    """One name that an import statement binds."""

    # The module, without the dots in front of it.
    module: str
    dots: int
    # What is taken from the module; None for the module itself.
    attribute: str | None
    alias: str | None

    @property
    def bound(self) -> str:
        """The name that is bound."""
        if self.alias:
            return self.alias
        return self.module.partition(".")[0] if self.attribute is None else self.attribute


@dataclass(frozen=True, slots=True)
class Item:
    """One statement of a body, or one name of an import statement."""

    # What it defines, empty for a statement that defines nothing by one name.
    name: str
    line: int
    # What of it runs at import, equal for equal code.
    frozen: Frozen
    # Whether it may come, go, move or change under conditions.
    light: bool = False
    unit: ImportedName | None = None
    node: ast.ClassDef | None = None
    # Whether it is an annotated class attribute, and whether that has a default.
    is_field: bool = False
    has_default: bool = False


def deferred(node: _Function, key: Callable[[object], Frozen]) -> Frozen:
    """What of a function runs when it is called, by the keys of its parts; annotations are not part of it."""
    arguments = node.args
    names = (
        tuple(parameter.arg for parameter in arguments.posonlyargs),
        tuple(item.arg for item in arguments.args),
        tuple(parameter.arg for parameter in arguments.kwonlyargs),
        *(item.arg if item else None for item in (arguments.vararg, arguments.kwarg)),
    )
    parts = (node.decorator_list, arguments.defaults, arguments.kw_defaults, node.body)
    return (type(node).__name__, names, *map(key, parts))


class Numbers:
    """What both versions share: what is settled, and numbers for their trees, whole and without bodies of functions."""

    def __init__(self, settled: Settled = NOTHING_SETTLED) -> None:
        self.settled = settled
        self.whole = TreeNumbers(settled.tokens)
        # Besides the tokens what stands for each function whose statement was read.
        self._outlines: dict[int, Frozen] = dict(settled.tokens)
        self._outlined = TreeNumbers(self._outlines)

    def skeleton(self, node: ast.AST) -> int:
        """The number of a statement without the bodies of the functions in it."""
        for inner in self.settled.outside(node):
            if isinstance(inner, _Function) and id(inner) not in self._outlines:
                self._outlines[id(inner)] = ("def", inner.name, *_evaluated_parts(inner))
        return self._outlined.of(node)

    @cached_property
    def bound(self) -> Counter[str]:
        """How often each name is bound in what is settled."""
        return Counter(all_bound_names(self.settled.nodes))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """What is mentioned there."""
        return frozenset(_mentions(self.settled.nodes))


@dataclass(frozen=True, slots=True)
class _Above:
    """The names whose line is above another one."""

    lines: Mapping[str, int]
    line: int

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.lines.get(name, self.line) < self.line


class ImportedCode:
    """The import-time code of one version; both versions share their numbers."""

    def __init__(self, tree: ast.Module, numbers: Numbers, outside: Sequence[ast.AST]) -> None:
        self.tree = tree
        self.numbers = numbers
        # The nodes outside of what is settled.
        self._nodes = outside

    @cached_property
    def bound(self) -> Counter[str]:
        """How often each name is bound, anywhere in the file."""
        return self.numbers.bound + Counter(all_bound_names(self._nodes))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """Every name, attribute and short text of the file that could stand for a name."""
        return self.numbers.mentioned.union(_mentions(self._nodes))

    @cached_property
    def lists_names(self) -> bool:
        """Whether the file may list its own names, so that each that comes or goes may be seen."""
        if "globals" in self.mentioned or ("modules" in self.mentioned and LISTS_NAMES & self.mentioned):
            return True
        calls = (node for node in _import_time_nodes(self.tree) if isinstance(node, ast.Call) and not node.args)
        return any(isinstance(call.func, ast.Name) and call.func.id in {"dir", "vars", "locals"} for call in calls)

    @cached_property
    def evaluated(self) -> frozenset[str]:
        """The names that import-time code reads, in whatever way."""
        found: set[str] = set()
        for node in _import_time_nodes(self.tree):
            found.update(_mentions([node]))
        return frozenset(found)

    @cached_property
    def imported_at(self) -> Mapping[str, int]:
        """The names that an unconditional import of the module binds and nothing else does, with its line."""
        found: dict[str, int] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update(dict.fromkeys((name for alias in node.names for name in bound_names(alias)), node.lineno))
        return {name: line for name, line in found.items() if self.bound[name] == 1 and not self.bound["*"]}

    def is_bound_at(self, names: Iterable[str], line: int) -> bool:
        """Whether every name is an import above a line, or a builtin that the file does not bind again."""
        return all(
            self.imported_at.get(name, line) < line or (name in BUILTIN_NAMES and not self.bound[name])
            for name in names
        )

    @cached_property
    def _constants(self) -> Mapping[str, int]:
        """The names that are bound once, to a constant by a statement of the module, each with its line."""
        found = {
            node.targets[0].id: node.lineno
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and is_immutable(node.value)
        }
        return {name: line for name, line in found.items() if self.bound[name] == 1 and not self.bound["*"]}

    def is_literal(self, node: ast.expr, line: int) -> bool:
        """Whether an expression at a line is made of constants, of names of constants, and of builtin containers."""
        return is_literal(node, _Above(self._constants, line), self._containers)

    @cached_property
    def _containers(self) -> frozenset[str]:
        """The builtin containers that the file does not bind again."""
        return frozenset(name for name in CONTAINERS if not self.bound[name])

    @cached_property
    def annotations(self) -> Annotations:
        """The annotations that importing this version evaluates."""
        return Annotations(self.tree)


def _mentions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    # By type, as there are far too many nodes to hold each against patterns.
    for node in nodes:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Store):
                yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.isidentifier():
                yield node.value
        elif isinstance(node, ast.Global):
            yield from node.names


def _import_time_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but those in the bodies and the annotations of functions, and but the lists of public names."""
    todo: list[ast.AST] = [item for item in tree.body if not is_public_list(item)]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, _Function):
            todo.extend((*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)))
        elif isinstance(node, ast.AnnAssign):
            todo.extend(filter(None, (node.target, node.value)))
        else:
            todo.extend(children(node))


@dataclass(frozen=True, slots=True)
class ItemReader:
    """Reads statements as items."""

    # The annotations that are known to evaluate.
    known: Annotations
    # Whether annotations of functions are left unevaluated, by the future import in both versions.
    lazy: bool

    def items(self, body: list[ast.stmt], side: ImportedCode, *, in_class: bool) -> Iterator[Item]:
        """The items of a module's or a class's body."""
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield self._function(node, side)
                case ast.ClassDef():
                    yield Item(node.name, node.lineno, side.numbers.skeleton(node), node=node)
                case ast.Import() | ast.ImportFrom():
                    yield from _units(node)
                case _:
                    yield self._assignment(node, side, in_class=in_class)

    def _function(self, node: _Function, side: ImportedCode) -> Item:
        if not all(dotted(item).rpartition(".")[2] in PLAIN_DECORATORS for item in node.decorator_list):
            return Item(
                node.name, node.lineno, ("def", side.numbers.skeleton(node), deferred(node, side.numbers.whole.of))
            )
        defaults = [
            default for default in (*node.args.defaults, *node.args.kw_defaults) if default and not is_literal(default)
        ]
        odd = [] if self.lazy else annotations_of(node)
        odd = [text for text in odd if not self._evaluates(text, side, node.lineno)]
        heavy = (*node.decorator_list, *defaults, *odd, *getattr(node, "type_params", ()))
        frozen = ("def", type(node).__name__, node.name, *(freeze(default) for default in heavy))
        light = len(heavy) == len(node.decorator_list) and has_builtin_decorators(node)
        return Item(node.name, node.lineno, frozen, light=light)

    def _evaluates(self, annotation: ast.expr, side: ImportedCode, line: int) -> bool:
        return self.known.evaluates(annotation) and side.is_bound_at(names_in([annotation]), line)

    def _assignment(self, node: ast.stmt, side: ImportedCode, *, in_class: bool) -> Item:
        frozen = side.numbers.skeleton(node)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                light = is_public_list(node) or side.is_literal(value, node.lineno)
                return Item(name, node.lineno, frozen, light=light)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                light = self._evaluates(annotation, side, node.lineno) and not _is_special(annotation)
                light = light and (value is None or is_plain_field(value))
                light = light and (value is None or side.is_bound_at(names_in([value]), node.lineno))
                return Item(name, node.lineno, frozen, light=light, is_field=in_class, has_default=value is not None)
            case _:
                return Item(BODY, getattr(node, "lineno", 1), frozen)


def _evaluated_parts(node: _Function) -> Iterator[Frozen]:
    yield freeze([*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)])
    yield freeze([*annotations_of(node), *getattr(node, "type_params", ())])


def _units(node: ast.Import | ast.ImportFrom) -> Iterator[Item]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            unit = ImportedName(alias.name, 0, None, alias.asname)
        else:
            unit = ImportedName(node.module or "", node.level, alias.name, alias.asname)
        yield Item(BODY, node.lineno, ("import", unit.module, unit.dots, unit.attribute, unit.alias), unit=unit)


def is_public_list(node: ast.AST) -> bool:
    """Whether a statement is `__all__` with nothing but texts in it."""
    match node:
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
            return all(isinstance(name, ast.Constant) and isinstance(name.value, str) for name in names)
        case _:
            return False


def _is_special(annotation: ast.expr) -> bool:
    """Whether a class attribute's annotation tells a dataclass more than a type."""
    special = {"ClassVar", "InitVar", "KW_ONLY"}
    return any(
        dotted(node).rpartition(".")[2] in special for node in walk(annotation) if isinstance(node, ast.expr)
    ) or (any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in walk(annotation)))

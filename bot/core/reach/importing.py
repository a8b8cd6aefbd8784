"""The code of a file that runs when it is imported: what of it differs, and what of that has provably no effect.

Import-time code is the tree without the bodies of functions. Equal code needs no proof. A difference without effect is

    a function with plain decorators, literal defaults and annotations that evaluate, added, removed or moved
    a variable that is assigned a literal, likewise, or with another literal
    a method or a literal class attribute in a class whose bases have no hooks
    one more name from a module that the file imports before, or one less that nothing uses
    another `__all__`

Each under conditions: some are seen in the file itself, the others are returned as claims for the program to prove.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from bot.core.reach.evaluates import (
    BUILTIN_NAMES,
    CONTAINERS,
    HARMLESS_MODULES,
    Annotations,
    annotations_of,
    has_builtin_decorators,
    has_future_annotations,
    is_immutable,
    is_literal,
    is_plain_field,
    names_in,
)
from bot.core.reach.normal import Frozen, bound_names, freeze
from bot.core.reach.summary import BODY
from bot.core.reach.syntax import PLAIN_DECORATORS, dotted

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class ClaimKind(StrEnum):
    """What has to hold in the program so that a difference has no effect."""

    # Nothing asks the module for this name at the base, so that its coming goes unseen.
    ADDED = "added"
    # Nothing asks the module for this name at the head.
    REMOVED = "removed"
    # Nothing imports `*` from the module.
    LISTED = "listed"
    # The import of `name` from `module` succeeds, and runs nothing that did not run before.
    IMPORTED = "imported"
    # The decorator `name` reads no docstring.
    UNREAD = "unread"
    # No base of the class named `name` looks at what its subclasses hold.
    HOOKLESS = "hookless"


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition that the program has to fulfil."""

    kind: ClaimKind
    # The name that is bound in the file, or the class.
    name: str
    # The symbol and line that the difference is told by.
    symbol: str
    line: int
    # For `imported`: the module, the dots in front of it, and what is taken from it (None: the module itself).
    module: str = ""
    dots: int = 0
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Differing:
    """A place where import-time code differs with an effect, or without a proof that it has none."""

    symbol: str
    line: int


@dataclass(frozen=True, slots=True)
class _Import:
    module: str
    dots: int
    attribute: str | None
    alias: str | None

    @property
    def bound(self) -> str:
        if self.alias:
            return self.alias
        return self.module.partition(".")[0] if self.attribute is None else self.attribute


@dataclass(frozen=True, slots=True)
class _Item:
    """One statement of a body. `light` marks one that may come, go or move under conditions, known by `name`."""

    name: str
    line: int
    frozen: Frozen
    light: bool = False
    unit: _Import | None = None
    node: ast.ClassDef | None = None
    # Whether it is an annotated class attribute, and whether that has a default.
    is_field: bool = False
    has_default: bool = False


def deferred(node: _Function) -> Frozen:
    """What of a function runs when it is called: equal for equal code; annotations are not part of it."""
    arguments = node.args
    names = (
        tuple(one.arg for one in arguments.posonlyargs),
        tuple(one.arg for one in arguments.args),
        tuple(one.arg for one in arguments.kwonlyargs),
        *(one.arg if one else None for one in (arguments.vararg, arguments.kwarg)),
    )
    parts = (node.decorator_list, arguments.defaults, arguments.kw_defaults, node.body)
    return (type(node).__name__, names, *(freeze(one) for one in parts))


class ImportedCode:
    """The import-time code of one version; nodes that have a token are the same on the other side."""

    def __init__(self, tree: ast.Module, tokens: Mapping[int, Frozen]) -> None:
        self.tree = tree
        self.tokens = tokens

    @cached_property
    def bound(self) -> Counter[str]:
        """How often each name is bound, anywhere in the file."""
        return Counter(name for node in ast.walk(self.tree) for name in bound_names(node))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """Every name, attribute and short text of the file that could stand for a name."""
        return frozenset(_mentions(ast.walk(self.tree)))

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
        known = frozenset(name for name, bound in self._constants.items() if bound < line)
        builtin = frozenset(name for name in CONTAINERS if not self.bound[name])
        return is_literal(node, known, builtin)

    @cached_property
    def annotations(self) -> Annotations:
        """The annotations that importing this version evaluates."""
        return Annotations(self.tree)


def _mentions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load() | ast.Del()) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text
            case ast.Global(names=names):
                yield from names
            case _:
                pass


def _import_time_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but those in the bodies and the annotations of functions, and but the lists of public names."""
    todo: list[ast.AST] = [one for one in tree.body if not _is_public_list(one)]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, _Function):
            todo.extend((*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)))
        elif isinstance(node, ast.AnnAssign):
            todo.extend(filter(None, (node.target, node.value)))
        else:
            todo.extend(ast.iter_child_nodes(node))


def import_differences(before: ImportedCode, after: ImportedCode) -> tuple[list[Differing], list[Claim]]:
    """Where import-time code differs with an effect, and the claims that make the other differences harmless."""
    return _Comparison(before, after).bodies(before.tree.body, after.tree.body, None)


_Found = tuple[list[Differing], list[Claim]]


class _Comparison:
    def __init__(self, before: ImportedCode, after: ImportedCode) -> None:
        self.before = before
        self.after = after
        self._known = before.annotations
        # Under the future import in both versions no annotation of a function is evaluated.
        self._lazy = has_future_annotations(before.tree) and has_future_annotations(after.tree)

    def bodies(
        self, old: list[ast.stmt], new: list[ast.stmt], owner: tuple[ast.ClassDef, ast.ClassDef] | None
    ) -> _Found:
        """Compare two bodies of a module, or of a class that both sides have."""
        ours, theirs = list(self._items(old, self.before, owner)), list(self._items(new, self.after, owner))
        claims: list[Claim] = []
        dropped = self._light(ours, theirs, owner, claims)
        if owner is None:
            dropped |= self._imports(ours, theirs, claims)
        left = [one for one in ours if (one.name, one.unit) not in dropped]
        came = [one for one in theirs if (one.name, one.unit) not in dropped]
        differing = self._residue(left, came, claims)
        return differing, claims

    def _residue(self, ours: list[_Item], theirs: list[_Item], claims: list[Claim]) -> list[Differing]:
        """Where what is left differs; a class that both have is looked into."""
        found: list[Differing] = []
        if [_outline(one) for one in ours] != [_outline(one) for one in theirs]:
            had, has = Counter(_outline(one) for one in ours), Counter(_outline(one) for one in theirs)
            only = [one for one in theirs if _outline(one) in has - had] + [
                one for one in ours if _outline(one) in had - has
            ]
            found = [Differing(one.name, one.line) for one in only] or [Differing(BODY, 1)]
        classes = {one.name: one for one in ours if one.node is not None}
        for item in theirs:
            other = classes.get(item.name)
            if item.node is None or other is None or other.node is None or item.frozen == other.frozen:
                continue
            inner, asked = self.bodies(other.node.body, item.node.body, (other.node, item.node))
            found.extend(inner)
            claims.extend(asked)
        return found

    def _light(
        self,
        ours: list[_Item],
        theirs: list[_Item],
        owner: tuple[ast.ClassDef, ast.ClassDef] | None,
        claims: list[Claim],
    ) -> set[tuple[str, _Import | None]]:
        """The names whose definitions may come, go, move or change."""
        old, new = _by_name(ours), _by_name(theirs)
        found: set[tuple[str, _Import | None]] = set()
        if owner is not None and not _is_open(*owner):
            return found
        for name in old.keys() | new.keys():
            was, now = old.get(name, []), new.get(name, [])
            if not self._may_move(name, was, now, owner, ours, theirs):
                continue
            found.add((name, None))
            item = (now or was)[0]
            if [one.frozen for one in was] == [one.frozen for one in now] and was:
                continue
            if owner is not None:
                label = owner[1].name
                claims.append(Claim(ClaimKind.HOOKLESS, label, f"{label}.{name}", item.line))
            elif not was or not now:
                kind = ClaimKind.REMOVED if was else ClaimKind.ADDED
                claims.append(Claim(ClaimKind.LISTED if name == "__all__" else kind, name, name, item.line))
            elif name == "__all__":
                claims.append(Claim(ClaimKind.LISTED, name, name, item.line))
        return found

    def _may_move(
        self,
        name: str,
        was: list[_Item],
        now: list[_Item],
        owner: tuple[ast.ClassDef, ast.ClassDef] | None,
        ours: list[_Item],
        theirs: list[_Item],
    ) -> bool:
        if not all(one.light for one in (*was, *now)) or len(was) > 1 or len(now) > 1:
            return False
        if name == "__all__" and owner is None:
            return True
        if name.startswith("__") and name.endswith("__"):
            return False
        if name in self.before.evaluated or name in self.after.evaluated:
            return False
        if any(one.is_field for one in (*was, *now)):
            same = [one.frozen for one in was] == [one.frozen for one in now]
            return not same and owner is not None and _fields_stay_ordered(now, ours, theirs)
        if owner is not None:
            return True
        if self.before.bound[name] > len(was) or self.after.bound[name] > len(now) or name in BUILTIN_NAMES:
            return False
        if not was:
            return name not in self.before.mentioned
        return bool(now) or name not in self.after.mentioned

    def _imports(self, ours: list[_Item], theirs: list[_Item], claims: list[Claim]) -> set[tuple[str, _Import | None]]:
        """The imported names that may come or go; those that both sides have keep their order."""
        old, new = [one.unit for one in ours if one.unit], [one.unit for one in theirs if one.unit]
        kept = set(old) & set(new)
        found: set[tuple[str, _Import | None]] = set()
        for units, items, adding in ((new, theirs, True), (old, ours, False)):
            for item in items:
                unit = item.unit
                if unit is None or unit in kept or not self._import_may_go(unit, units, kept, adding=adding):
                    continue
                found.add((item.name, unit))
                if adding:
                    claims.append(
                        Claim(ClaimKind.IMPORTED, unit.bound, BODY, item.line, unit.module, unit.dots, unit.attribute)
                    )
                kind = ClaimKind.ADDED if adding else ClaimKind.REMOVED
                claims.append(Claim(kind, unit.bound, BODY, item.line))
        return found

    def _import_may_go(self, unit: _Import, units: list[_Import], kept: set[_Import], *, adding: bool) -> bool:
        there, elsewhere = (self.after, self.before) if adding else (self.before, self.after)
        name = unit.bound
        if unit.attribute == "*" or unit.module == "__future__" or there.bound[name] > 1:
            return False
        if elsewhere.bound[name] or elsewhere.bound["*"] or name in elsewhere.mentioned or name in BUILTIN_NAMES:
            return False
        if unit.attribute is None:
            return unit.module in HARMLESS_MODULES and "." not in unit.module
        earlier = units[: units.index(unit)]
        return any(one in kept and (one.module, one.dots) == (unit.module, unit.dots) for one in earlier) or (
            not unit.dots and unit.module in HARMLESS_MODULES
        )

    def _items(
        self, body: list[ast.stmt], side: ImportedCode, owner: tuple[ast.ClassDef, ast.ClassDef] | None
    ) -> Iterator[_Item]:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield self._function(node, side)
                case ast.ClassDef():
                    yield _Item(node.name, node.lineno, _skeleton(node, side.tokens), node=node)
                case ast.Import() | ast.ImportFrom():
                    yield from _units(node)
                case _:
                    yield self._assignment(node, side, in_class=owner is not None)

    def _function(self, node: _Function, side: ImportedCode) -> _Item:
        if not all(dotted(one).rpartition(".")[2] in PLAIN_DECORATORS for one in node.decorator_list):
            return _Item(node.name, node.lineno, ("def", _skeleton(node, side.tokens), deferred(node)))
        defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one and not is_literal(one)]
        odd = [] if self._lazy else annotations_of(node)
        odd = [one for one in odd if not self._evaluates(one, side, node.lineno)]
        heavy = (*node.decorator_list, *defaults, *odd, *getattr(node, "type_params", ()))
        frozen = ("def", type(node).__name__, node.name, *(freeze(one) for one in heavy))
        light = len(heavy) == len(node.decorator_list) and has_builtin_decorators(node)
        return _Item(node.name, node.lineno, frozen, light=light)

    def _evaluates(self, annotation: ast.expr, side: ImportedCode, line: int) -> bool:
        return self._known.evaluates(annotation) and side.is_bound_at(names_in([annotation]), line)

    def _assignment(self, node: ast.stmt, side: ImportedCode, *, in_class: bool) -> _Item:
        frozen = _skeleton(node, side.tokens)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                light = _is_public_list(node) or side.is_literal(value, node.lineno)
                return _Item(name, node.lineno, frozen, light=light)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                light = self._evaluates(annotation, side, node.lineno) and not _is_special(annotation)
                light = light and (value is None or is_plain_field(value))
                light = light and (value is None or side.is_bound_at(names_in([value]), node.lineno))
                return _Item(name, node.lineno, frozen, light=light, is_field=in_class, has_default=value is not None)
            case _:
                return _Item(BODY, getattr(node, "lineno", 1), frozen)


def _by_name(items: Iterable[_Item]) -> dict[str, list[_Item]]:
    found: dict[str, list[_Item]] = {}
    for one in items:
        if one.unit is None:
            found.setdefault(one.name, []).append(one)
    found.pop(BODY, None)
    return found


def _outline(item: _Item) -> Frozen:
    """An item as it is compared with the others of its body; a class by its head, for its body is looked into."""
    return _class_head(item.node) if item.node is not None else (item.name, item.frozen)


def _class_head(node: ast.ClassDef) -> Frozen:
    parts = (node.bases, node.keywords, node.decorator_list, getattr(node, "type_params", []))
    return ("class", node.name, *(freeze(one) for one in parts))


def _skeleton(node: ast.AST, tokens: Mapping[int, Frozen]) -> Frozen:
    """A statement without the bodies of the functions in it."""
    if id(node) in tokens:
        return tokens[id(node)]
    found = dict(tokens)
    for inner in ast.walk(node):
        if isinstance(inner, _Function) and id(inner) not in found:
            found[id(inner)] = ("def", inner.name, *_evaluated_parts(inner))
    return freeze(node, found)


def _evaluated_parts(node: _Function) -> Iterator[Frozen]:
    yield freeze([*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)])
    yield freeze([*annotations_of(node), *getattr(node, "type_params", ())])


def _units(node: ast.Import | ast.ImportFrom) -> Iterator[_Item]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            unit = _Import(alias.name, 0, None, alias.asname)
        else:
            unit = _Import(node.module or "", node.level, alias.name, alias.asname)
        yield _Item(BODY, node.lineno, ("import", unit.module, unit.dots, unit.attribute, unit.alias), unit=unit)


def _is_public_list(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
            return all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in names)
        case _:
            return False


def _is_special(annotation: ast.expr) -> bool:
    """Whether a class attribute's annotation tells a dataclass more than a type."""
    special = {"ClassVar", "InitVar", "KW_ONLY"}
    return any(
        dotted(one).rpartition(".")[2] in special for one in ast.walk(annotation) if isinstance(one, ast.expr)
    ) or (any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in ast.walk(annotation)))


def _is_open(old: ast.ClassDef, new: ast.ClassDef) -> bool:
    """Whether a class may gain and lose what is light: its head is the same, and no decorator makes it special."""
    plain = {"dataclass", "runtime_checkable", "final"}
    return (
        _class_head(old) == _class_head(new)
        and not new.keywords
        and all(dotted(one).rpartition(".")[2] in plain for one in new.decorator_list)
    )


def _fields_stay_ordered(now: list[_Item], ours: list[_Item], theirs: list[_Item]) -> bool:
    """Whether a dataclass with the changed field can be made wherever the old one could, and its subclasses too.

    The field has a default, as another own field had before and has still, and no field without one follows.
    """
    had = {one.name for one in ours if one.is_field and one.has_default}
    has = {one.name for one in theirs if one.is_field and one.has_default}
    order = [one.has_default for one in theirs if one.is_field]
    return bool(had & has) and order == sorted(order) and all(one.has_default for one in now)

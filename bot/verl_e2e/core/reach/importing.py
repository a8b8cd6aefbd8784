"""The code of a file that runs when it is imported: what of it differs, and what of that has provably no effect.

Import-time code is the tree without the bodies of functions. Equal code needs no proof. A difference without effect is

    a function with plain decorators, literal defaults and annotations that evaluate, added, removed or moved
    a variable that is assigned a literal, likewise, or with another literal
    a method or a literal class attribute in a class whose bases have no hooks
    one more name from a module that the file imports before, or one less that nothing uses
    another `__all__`

Each under conditions, and not where the file lists its own names (`globals()`): some are seen in the file itself, the
others are returned as claims for the program to prove.
"""

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.reach.evaluates import BUILTIN_NAMES, HARMLESS_MODULES, has_future_annotations
from verl_e2e.core.reach.import_items import ImportedCode, ImportedName, Item, ItemReader
from verl_e2e.core.reach.normal import Frozen, freeze
from verl_e2e.core.reach.summary import BODY
from verl_e2e.core.reach.syntax import dotted


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
    # What the import of `name` from `module` loaded at the base is loaded at the head as well.
    LOADED = "loaded"
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
    # The symbol and line that the difference is reported at.
    symbol: str
    line: int
    # For `imported` and `loaded`: the module, the dots in front of it, and what is taken from it (None: the module).
    module: str = ""
    dots: int = 0
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Differing:
    """A place where import-time code differs with an effect, or without a proof that it has none."""

    symbol: str
    line: int


def import_differences(before: ImportedCode, after: ImportedCode) -> tuple[list[Differing], list[Claim]]:
    """Where import-time code differs with an effect, and the claims that make the other differences harmless."""
    return _Comparison(before, after).bodies(before.tree.body, after.tree.body, None)


# A class that both sides have, or None for the module.
_Owner = tuple[ast.ClassDef, ast.ClassDef] | None
# What tells an item from the others of its body.
_Key = tuple[str, ImportedName | None]
_Found = tuple[list[Differing], list[Claim]]


class _Comparison:
    def __init__(self, before: ImportedCode, after: ImportedCode) -> None:
        self.before = before
        self.after = after
        lazy = has_future_annotations(before.tree) and has_future_annotations(after.tree)
        self._reader = ItemReader(before.annotations, lazy)
        self._lists_names = before.lists_names or after.lists_names

    def bodies(self, old: list[ast.stmt], new: list[ast.stmt], owner: _Owner) -> _Found:
        """Compare two bodies of a module, or of a class that both sides have."""
        in_class = owner is not None
        ours = list(self._reader.items(old, self.before, in_class=in_class))
        theirs = list(self._reader.items(new, self.after, in_class=in_class))
        claims: list[Claim] = []
        dropped = self._light(ours, theirs, owner, claims)
        if owner is None:
            dropped |= self._imports(ours, theirs, claims)
        left = [own for own in ours if (own.name, own.unit) not in dropped]
        came = [other for other in theirs if (other.name, other.unit) not in dropped]
        differing = self._residue(left, came, claims)
        return differing, claims

    def _residue(self, ours: list[Item], theirs: list[Item], claims: list[Claim]) -> list[Differing]:
        """Where what is left differs; a class that both have is looked into."""
        found: list[Differing] = []
        if [_outline(own) for own in ours] != [_outline(entry) for entry in theirs]:
            had, has = Counter(_outline(own) for own in ours), Counter(_outline(entry) for entry in theirs)
            came, gone = has - had, had - has
            only = [entry for entry in theirs if _outline(entry) in came] + [
                own for own in ours if _outline(own) in gone
            ]
            found = [Differing(entry.name, entry.line) for entry in only] or [Differing(BODY, 1)]
        classes = {own.name: own for own in ours if own.node is not None}
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
        ours: list[Item],
        theirs: list[Item],
        owner: _Owner,
        claims: list[Claim],
    ) -> set[_Key]:
        """The names whose definitions may come, go, move or change."""
        old, new = _by_name(ours), _by_name(theirs)
        found: set[_Key] = set()
        if owner is not None and not _is_open(*owner):
            return found
        heights = _heights(ours, theirs), _heights(theirs, ours)
        fields_stay_ordered = _fields_stay_ordered(ours, theirs)
        for name in old.keys() | new.keys():
            was, now = old.get(name, []), new.get(name, [])
            moved = bool(was and now) and heights[0][name] != heights[1][name]
            if moved or not self._may_move(name, was, now, owner, fields_stay_ordered=fields_stay_ordered):
                continue
            found.add((name, None))
            item = (now or was)[0]
            if [entry.frozen for entry in was] == [entry.frozen for entry in now] and was:
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
        was: list[Item],
        now: list[Item],
        owner: _Owner,
        *,
        fields_stay_ordered: bool,
    ) -> bool:
        if not all(item.light for item in (*was, *now)) or len(was) > 1 or len(now) > 1:
            return False
        if owner is None and self._lists_names:
            return False
        if name == "__all__" and owner is None:
            return True
        if name.startswith("__") and name.endswith("__"):
            return False
        if name in self.before.evaluated or name in self.after.evaluated:
            return False
        if any(item.is_field for item in (*was, *now)):
            same = [item.frozen for item in was] == [item.frozen for item in now]
            may_change = fields_stay_ordered and all(item.has_default for item in now)
            return not same and owner is not None and may_change
        if owner is not None:
            return True
        if self.before.bound[name] > len(was) or self.after.bound[name] > len(now) or name in BUILTIN_NAMES:
            return False
        if not was:
            return name not in self.before.mentioned
        return bool(now) or name not in self.after.mentioned

    def _imports(self, ours: list[Item], theirs: list[Item], claims: list[Claim]) -> set[_Key]:
        """The imported names that may come or go; those that both sides have keep their order."""
        old, new = [own.unit for own in ours if own.unit], [other.unit for other in theirs if other.unit]
        kept = set(old) & set(new)
        found: set[_Key] = set()
        for units, items, adding in ((new, theirs, True), (old, ours, False)):
            follows = _following(units, kept)
            for item in items:
                unit = item.unit
                if unit is None or unit in kept or not self._import_may_go(unit, follows, adding=adding):
                    continue
                found.add((item.name, unit))
                runs, kind = (ClaimKind.IMPORTED, ClaimKind.ADDED) if adding else (ClaimKind.LOADED, ClaimKind.REMOVED)
                claims.append(Claim(runs, unit.bound, BODY, item.line, unit.module, unit.dots, unit.attribute))
                claims.append(Claim(kind, unit.bound, BODY, item.line))
        return found

    def _import_may_go(self, unit: ImportedName, follows: set[ImportedName], *, adding: bool) -> bool:
        """Whether an imported name may come or go; those of `follows` come after another one of their module."""
        there, elsewhere = (self.after, self.before) if adding else (self.before, self.after)
        name = unit.bound
        if unit.attribute == "*" or unit.module == "__future__" or there.bound[name] > 1 or self._lists_names:
            return False
        if elsewhere.bound[name] or elsewhere.bound["*"] or name in elsewhere.mentioned or name in BUILTIN_NAMES:
            return False
        if unit.attribute is None:
            return unit.module in HARMLESS_MODULES and "." not in unit.module
        return unit in follows or (not unit.dots and unit.module in HARMLESS_MODULES)


def _following(units: Iterable[ImportedName], kept: set[ImportedName]) -> set[ImportedName]:
    """The imported names before whose first place one that both sides have is taken from the same module."""
    modules: set[tuple[str, int]] = set()
    met: set[ImportedName] = set()
    found: set[ImportedName] = set()
    for unit in units:
        if unit not in met and (unit.module, unit.dots) in modules:
            found.add(unit)
        met.add(unit)
        if unit in kept:
            modules.add((unit.module, unit.dots))
    return found


def _by_name(items: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        if item.unit is None:
            found.setdefault(item.name, []).append(item)
    found.pop(BODY, None)
    return found


def _heights(items: list[Item], others: list[Item]) -> dict[str, int]:
    """How many statements that may not move and that both sides have are above each definition."""
    there = {_outline(other) for other in others if not other.light}
    found: dict[str, int] = {}
    above = 0
    for item in items:
        found[item.name] = above
        above += not item.light and _outline(item) in there
    return found


def _outline(item: Item) -> Frozen:
    """An item as it is compared with the others of its body; a class by its head, for its body is looked into."""
    return _class_head(item.node) if item.node is not None else (item.name, item.frozen)


def _class_head(node: ast.ClassDef) -> Frozen:
    parts = (node.bases, node.keywords, node.decorator_list, getattr(node, "type_params", []))
    return ("class", node.name, *(freeze(part) for part in parts))


def _is_open(old: ast.ClassDef, new: ast.ClassDef) -> bool:
    """Whether a class may gain and lose what is light: its head is the same, and no decorator makes it special."""
    plain = {"dataclass", "runtime_checkable", "final"}
    return (
        _class_head(old) == _class_head(new)
        and not new.keywords
        and all(dotted(item).rpartition(".")[2] in plain for item in new.decorator_list)
    )


def _fields_stay_ordered(ours: list[Item], theirs: list[Item]) -> bool:
    """Whether a dataclass with a changed field can be made wherever the old one could, and its subclasses too.

    The field must have a default, as another own field had before and has still, and no field without one follows.
    """
    had = {own.name for own in ours if own.is_field and own.has_default}
    has = {other.name for other in theirs if other.is_field and other.has_default}
    order = [other.has_default for other in theirs if other.is_field]
    return bool(had & has) and order == sorted(order)

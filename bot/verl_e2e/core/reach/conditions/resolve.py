"""From a condition to the settings that fulfil it, by the table; what the table does not know stays open."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.reach.conditions.formula import All, Any, Formula, Literal, Names, conjuncts, formula, text_of
from verl_e2e.core.reach.conditions.settings import ANY_RUN, Settings, joined
from verl_e2e.core.reach.conditions.size_names import (
    CHUNK_LISTS,
    FIRST_STAGE,
    GROUP_NAMES,
    LAST_STAGE,
    LAYER_SIZES,
    RANK_NAMES,
    SIZE_NAMES,
)
from verl_e2e.core.reach.conditions.table import (
    CONVERSION,
    EXPERT_ROWS,
    NAME_PARTS,
    NAME_SUBJECTS,
    Row,
    distance,
    rows_by_name,
)
from verl_e2e.core.reach.conditions.tested import Subject, Test, constants_pass, subject_of, test_of

# What a test that no row knows stands for, None where that is not known either.
Replacing = Callable[[Literal], Formula | None]
_ROWS = rows_by_name()
_TRIED_SIZES = (1, 2, 4, 8)
_HELD: Final = True
_LAYER_RULE: Final = "layer's tensor size"
_DEEPEST = 4
_EXPERT_AXES = frozenset({Axis.EXPERT, Axis.EXPERT_TENSOR})


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of a condition, and the parts that no setting is known for."""

    settings: Settings
    open: tuple[str, ...] = ()


def resolve(condition: Formula, path: str, carried: Replacing | None = None) -> Resolved:
    """The settings that fulfil a condition in a file, as far as the table knows them.

    `carried` says for a test that no row knows what the callers of the function would state in its place.
    """
    settings, unknown = ANY_RUN, list[str]()
    for part in conjuncts(condition):
        found = _resolved(part, path, 0, carried)
        both = joined(settings, found.settings)
        settings = both or settings
        if not _is_healthy(part):
            unknown.extend(found.open if both is not None else (text_of(part),))
    return Resolved(_between_stages(settings), tuple(dict.fromkeys(unknown)))


def _resolved(part: Formula, path: str, depth: int, carried: Replacing | None) -> Resolved:
    """The settings of a part, and what of it no setting is known for.

    A name that stands for several tests which all must hold gives what is known of them.
    """
    found = _settings_of(part, path, depth, carried)
    if found is not None:
        return Resolved(found)
    instead = _instead(part, depth, carried) if isinstance(part, Literal) else None
    settings, unknown = ANY_RUN, list[str]()
    for item in instead.parts if isinstance(instead, All) else ():
        inner = _resolved(item, path, depth + 1, carried)
        both = joined(settings, inner.settings)
        settings = both or settings
        unknown.extend(inner.open if both is not None else (text_of(item),))
    return Resolved(settings, tuple(unknown)) if settings.rules else Resolved(ANY_RUN, (text_of(part),))


def _instead(part: Literal, depth: int, carried: Replacing | None) -> Formula | None:
    """What a test stands for: the value of a local name, else what callers or a called function would state."""
    if part.test is None or depth >= _DEEPEST:
        return None
    replaced = _with_values(part.test, part.names)
    if replaced is not None:
        return formula(replaced, part.names)
    return carried(part) if carried is not None else None


def _is_healthy(part: Formula) -> bool:
    if isinstance(part, Literal):
        return part.healthy
    return bool(part.parts) and all(map(_is_healthy, part.parts))


def _between_stages(settings: Settings) -> Settings:
    """Neither the first nor the last stage: four stages, as three divide few numbers of layers."""
    if {"first stage", "last stage"} <= {*settings.rules} and settings.axes.get(Axis.PIPELINE) == 2:
        return replace(settings, axes={**settings.axes, Axis.PIPELINE: 4})
    return settings


def as_expert_sizes(settings: Settings) -> Settings:
    """The settings with the tensor size of a layer as the expert tensor size, where the layer is an expert's."""
    rules = {*settings.rules}
    if _LAYER_RULE not in rules or rules.isdisjoint(EXPERT_ROWS) or "moe" not in settings.features:
        return settings
    axes, limits = dict(settings.axes), dict(settings.limits)
    if Axis.TENSOR in axes:
        axes[Axis.EXPERT_TENSOR] = axes.pop(Axis.TENSOR)
    if Axis.TENSOR in limits:
        limits[Axis.EXPERT_TENSOR] = limits.pop(Axis.TENSOR)
    return replace(settings, axes=axes, limits=limits)


def _settings_of(part: Formula, path: str, depth: int, carried: Replacing | None = None) -> Settings | None:
    """The settings that fulfil a part; None where they are not known."""
    match part:
        case All(parts=parts):
            settings: Settings | None = ANY_RUN
            for item in parts:
                found = _settings_of(item, path, depth, carried)
                settings = joined(settings, found) if settings is not None and found is not None else None
            return settings
        case Any(parts=parts):
            ways = [found for item in parts if (found := _settings_of(item, path, depth, carried)) is not None]
            return min(ways, key=lambda way: (distance(way), way.count), default=None)
        case Literal(test=ast.expr() as test):
            known = _of_test(test, part.names, path, depth)
            instead = carried(part) if known is None and carried is not None else None
            return known if instead is None else _settings_of(instead, path, depth)
        case Literal():
            return None


def _of_test(test: ast.expr, names: Names, path: str, depth: int) -> Settings | None:
    found = next((settings for settings in _by_table(test, path) if settings is not None), None) or _of_two(test, names)
    if found is not None or depth >= _DEEPEST:
        return found
    replaced = _with_values(test, names)
    return None if replaced is None else _settings_of(formula(replaced, names), path, depth + 1)


def _of_two(test: ast.expr, names: Names) -> Settings | None:
    """The settings for a comparison of the sizes of two axes: the smallest ones that pass, those of experts last."""
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    sides = [
        names.get(side.id, side) if isinstance(side, ast.Name) else side for side in (test.left, *test.comparators)
    ]
    axes = [axis for side in sides if (axis := _size_axis(subject_of(side))) is not None]
    if len({*axes}) < len(sides):
        return None
    # (1, 1), then one of them larger, where it can be that of no expert.
    larger = [(2, 1), (1, 2)] if axes[1] in _EXPERT_AXES else [(1, 2), (2, 1)]
    for sizes in ((1, 1), *larger):
        if constants_pass(ast.Compare(ast.Constant(sizes[0]), test.ops, [ast.Constant(sizes[1])])):
            by_axis = dict(zip(axes, sizes, strict=True))
            return Settings(
                {axis: size for axis, size in by_axis.items() if size > 1},
                {axis: size for axis, size in by_axis.items() if size == 1},
                features=frozenset({"moe"} if _EXPERT_AXES.intersection(axes) else ()),
                rules=(f"{axes[0]} and {axes[1]} size",),
            )
    return None


def _with_values(test: ast.expr, names: Names) -> ast.expr | None:
    """The test with the name that it looks at replaced by the only value that the function gives it."""
    match test:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _with_values(operand, names)
            return None if inner is None else ast.UnaryOp(ast.Not(), inner)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            inner = _with_values(left, names) if isinstance(left, ast.Name) else None
            return None if inner is None else _compared(inner, ops, rights)
        case _:
            return None


def _compared(value: ast.expr, ops: list[ast.cmpop], rights: list[ast.expr]) -> ast.expr:
    """The comparison of a value, of each side of a choice; one of two constants as its result."""
    if not isinstance(value, ast.IfExp):
        compared = ast.Compare(value, ops, rights)
        passes = constants_pass(compared)
        return compared if passes is None else ast.Constant(passes)
    return ast.IfExp(value.test, _compared(value.body, ops, rights), _compared(value.orelse, ops, rights))


def _by_table(test: ast.expr, path: str) -> Iterator[Settings | None]:
    yield _of_name_test(test)
    found = test_of(test)
    if found is None:
        return
    yield _of_stage(found)
    yield _of_size(found)
    yield _of_rank(found, path)
    row = _ROWS.get(found.subject.name)
    if row is not None and row.under in path:
        yield _of_row(row, found)


def _of_row(row: Row, test: Test) -> Settings | None:
    for value, settings in row.values:
        if test.passes(value):
            return None if settings is None else replace(settings, rules=(row.name,))
    if row.free is not None:
        for constant in test.constants:
            if isinstance(constant, str | int | float | bool) and test.passes(constant):
                return replace(row.free(constant), rules=(row.name,))
    return None


def _of_stage(test: Test) -> Settings | None:
    name = test.subject.name
    kind = "first stage" if name in FIRST_STAGE else "last stage" if name in LAST_STAGE else ""
    if not kind:
        return None
    # Some rank holds the first stage, and some rank the last one, whatever the size.
    return Settings(rules=()) if test.passes(_HELD) else Settings(axes={Axis.PIPELINE: 2}, rules=(kind,))


def _of_size(test: Test) -> Settings | None:
    name, axis = test.subject.name, _size_axis(test.subject)
    if axis is None:
        return None
    absent = axis is Axis.VIRTUAL_PIPELINE and name != "len"
    fits = [size for size in _TRIED_SIZES if test.passes(None if absent and size == 1 else size)]
    if not fits:
        return None
    axes: dict[Axis, Value] = {axis: fits[0]} if fits[0] > 1 else {}
    limits = {axis: fits[-1]} if fits[-1] < _TRIED_SIZES[-1] else {}
    if axis in _EXPERT_AXES and axes:
        return Settings(axes, limits, features=frozenset({"moe"}), rules=(f"{axis} size",))
    return Settings(axes, limits, rules=(_LAYER_RULE if name in LAYER_SIZES else f"{axis} size",))


def _size_axis(subject: Subject | None) -> Axis | None:
    """The axis whose size a test looks at; None where it looks at something else."""
    if subject is None:
        return None
    if subject.name == "len":
        return Axis.VIRTUAL_PIPELINE if subject.owner in CHUNK_LISTS else None
    return SIZE_NAMES.get(subject.name) if subject.name != "size" else GROUP_NAMES.get(subject.owner)


def _of_rank(test: Test, path: str) -> Settings | None:
    axis = RANK_NAMES.get(test.subject.name)
    if axis is None:
        return None
    # Conversion counts the chunks of any model from 0; elsewhere it is None without a virtual pipeline.
    absent = axis is Axis.VIRTUAL_PIPELINE and CONVERSION not in path
    if absent and test.passes(None):
        return Settings(limits={axis: 1}, rules=(f"{axis} rank",))
    rank = next((rank for rank in range(4) if test.passes(rank)), None)
    if rank is None:
        return None
    size = max(rank + 1, 2 if absent else 1)
    features = frozenset({"moe"} if axis in _EXPERT_AXES and size > 1 else ())
    return Settings({axis: size} if size > 1 else {}, features=features, rules=(f"{axis} rank",))


def _of_name_test(test: ast.expr) -> Settings | None:
    """The settings for a test of a parameter's or module's name; another name always passes a negative test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ANY_RUN if _name_part(test.operand) is not None else None
    found = _name_part(test)
    if found is None:
        return None
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn | ast.NotEq):
        return ANY_RUN
    part, settings = found
    return None if settings is None else replace(settings, rules=(f"name: {part}",))


def _name_part(test: ast.expr) -> tuple[str, Settings | None] | None:
    """The row for the part of a name that a test looks for; None for any other test."""
    match test:
        case ast.Compare(left=ast.Constant(value=str(part)), ops=[ast.In() | ast.NotIn()], comparators=[looked_at]):
            subject = subject_of(looked_at)
        case ast.Call(
            func=ast.Attribute(value=looked_at, attr="endswith" | "startswith"), args=[ast.Constant(value=str(part))]
        ):
            subject = subject_of(looked_at)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=str(part))]):
            subject = subject_of(left)
        case _:
            return None
    if subject is None or not subject.name.endswith(NAME_SUBJECTS):
        return None
    return next((row for row in NAME_PARTS if row[0] in part), None)

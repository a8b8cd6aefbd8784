"""Which settings lead a run into changed code: a want for each group of changed lines with one condition."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.model.space_rules import OUTER_RANK
from verl_e2e.core.model.variant import BASE_WRAPPER
from verl_e2e.core.model.wants import Axis, ModelWant, Want
from verl_e2e.core.reach.conditions.callers import Demand, Ways
from verl_e2e.core.reach.conditions.carried import Carried
from verl_e2e.core.reach.conditions.code_tree import CodeTree, owner_of
from verl_e2e.core.reach.conditions.differences import Differences, guards_inside
from verl_e2e.core.reach.conditions.families import ANY_FAMILY, FamiliesOf, FamilyWays
from verl_e2e.core.reach.conditions.flow import FunctionFlow, Place
from verl_e2e.core.reach.conditions.formula import NOTHING, Formula, all_of, text_of
from verl_e2e.core.reach.conditions.predicates import Predicates
from verl_e2e.core.reach.conditions.resolve import Replacing, as_expert_sizes, resolve
from verl_e2e.core.reach.conditions.settings import ANY_RUN, Settings, joined
from verl_e2e.core.reach.conditions.standing import leaves_by_itself, standing_wants
from verl_e2e.core.reach.program import Node, module_name
from verl_e2e.core.reach.reached_functions import TouchedFunction, symbol_of_effect
from verl_e2e.core.reach.syntax import dotted

_MOST_WANTS = 400


def _no_family(_path: str) -> frozenset[str]:
    return ANY_FAMILY


def wants_of(
    functions: Iterable[TouchedFunction],
    trees: tuple[CodeTree, CodeTree],
    roots: Sequence[str],
    families_of: FamiliesOf = _no_family,
) -> tuple[Want, ...]:
    """The wants of the functions that a change touches; `trees` are the merge base's and the head's.

    A place that every run enters has no want, but for what a change of such code always wants. `families_of` tells the
    families that a file belongs to.
    """
    touched = list(functions)
    earlier = {(item.path, item.function.symbol): item.function.path for item in touched if item.earlier}
    differences = Differences()
    sides = {
        side: _Side(tree, roots, differences, families_of)
        for side, tree in zip((Side.MERGE_BASE, Side.HEAD), trees, strict=True)
    }
    found: dict[tuple[str, str, str, Side], Want] = {}
    for item in touched:
        function = item.function
        if item.earlier or not (function.reached and function.demanded and function.symbol):
            continue
        head = function.side is Side.HEAD
        other = sides[Side.MERGE_BASE if head else Side.HEAD]
        other_path = earlier.get((item.path, function.symbol), function.path) if head else item.path
        pair = other.flow(other_path, function.symbol)
        for want in _without_too_deep(sides[function.side].wants(function, pair)):
            key = want.path, want.symbol, want.condition, want.side
            known = found.setdefault(key, want)
            found[key] = replace(known, lines=tuple(sorted({*known.lines, *want.lines})))
    return tuple(found.values())[:_MOST_WANTS]


def _without_too_deep(wants: Iterator[Want]) -> Iterator[Want]:
    """The wants of a function as far as its code nests no deeper than it can be read."""
    try:
        yield from wants
    except RecursionError:
        return


@dataclass(frozen=True, slots=True)
class _Group:
    """Changed lines with one condition."""

    lines: tuple[int, ...]
    condition: Formula
    # What the functions that they newly call are guarded by inside, each with its file.
    called: tuple[tuple[Formula, str], ...] = ()


class _Side:
    """One tree with what is known of its functions."""

    def __init__(self, tree: CodeTree, roots: Sequence[str], differences: Differences, families_of: FamiliesOf) -> None:
        self._differences = differences
        self._tree = tree
        self._roots = roots
        self._ways = Ways(tree)
        self._families_of = families_of
        self._families = FamilyWays(tree, families_of)

    def flow(self, path: str, symbol: str) -> FunctionFlow | None:
        """A function of a file, or the one around it that is known; None where there is none."""
        flows = self._tree.flows(path)
        while flows is not None and symbol:
            found = flows.get(symbol)
            if found is not None:
                return found
            symbol = symbol.rpartition(".<locals>.")[0]
        return None

    def wants(self, function: ChangedFunction, other: FunctionFlow | None) -> Iterator[Want]:
        """The wants of one function."""
        flow = self.flow(function.path, function.symbol)
        if flow is None:
            return
        node = Node(module_name(function.path, self._roots) or "", symbol_of_effect(function.symbol))
        around, carried = (
            self._ways.into(node),
            _first_of(Predicates(self._tree, node), Carried(self._tree, node, flow)),
        )
        # What is in a family's own files needs no reason to be on a model of it.
        families = ANY_FAMILY if self._families_of(function.path) else self._families.into(node)
        for group in self._groups(function, flow, other):
            want = _on_families(_of_experts(_want(function, group, around, carried)), families)
            if want.condition:
                yield want
        for row in standing_wants(function.path, function.symbol):
            yield _on_families(_want_of(function, (), row.condition, row.settings, ()), families)

    def _groups(self, function: ChangedFunction, flow: FunctionFlow, other: FunctionFlow | None) -> Iterator[_Group]:
        found: dict[tuple[Formula, tuple[tuple[Formula, str], ...]], list[int]] = {}
        for line in function.lines:
            place = flow.place_at(line)
            guards = NOTHING if place is None else place.guards
            called = () if place is None else tuple(self._inside_called(place, function, other))
            for part in (NOTHING,) if place is None else self._differences.parts(place, other, flow):
                found.setdefault((all_of((flow.defined, guards, part)), called), []).append(line)
        if not function.lines:
            found[flow.defined, ()] = []
        yield from (_Group(tuple(lines), condition, called) for (condition, called), lines in found.items())
        if other is not None and function.side is Side.HEAD:
            yield from (
                _Group(function.lines, all_of((flow.defined, part))) for part in self._differences.guards(other, flow)
            )

    def _inside_called(
        self, place: Place, function: ChangedFunction, other: FunctionFlow | None
    ) -> Iterator[tuple[Formula, str]]:
        """What the functions are guarded by that a place newly calls, or calls no more."""
        module = module_name(function.path, self._roots) or ""
        owner = owner_of(Node(module, symbol_of_effect(function.symbol)))
        for call in self._differences.calls(place, other):
            parts = dotted(call.func).split(".")
            if parts[0] in {"self", "cls"} and owner is not None and len(parts) == 2:
                node = Node(module, f"{owner.symbol}.{parts[1]}")
            else:
                known, rest = self._tree.program.dotted(module, parts) if parts[0] else (None, [])
                if known is None or rest or known.kind != "function":
                    continue
                node = known.node
            path = self._tree.path_of(node.module)
            flow = self.flow(path, node.symbol)
            inside = NOTHING if flow is None else guards_inside(flow)
            if inside != NOTHING:
                yield inside, path


def _first_of(*ways: Replacing) -> Replacing:
    """The first formula that one of these gives in place of a test."""
    return lambda literal: next((found for way in ways if (found := way(literal)) is not None), None)


def _want(function: ChangedFunction, group: _Group, around: Sequence[Demand], carried: Replacing) -> Want:
    settings, unknown, texts = ANY_RUN, list[str](), list[str]()
    for number, (condition, path) in enumerate(((group.condition, function.path), *group.called)):
        # What a called function is guarded by inside is about parameters of its own.
        resolved = resolve(condition, path, None if number else carried)
        both = joined(settings, resolved.settings)
        unknown.extend(resolved.open if both is not None else (*resolved.open, text_of(condition)))
        settings = both or settings
        texts.append(text_of(condition))
    for demand in around:
        both = joined(settings, demand.settings) if demand.settings is not None else None
        settings = both or settings
        unknown.extend(() if both is not None else (demand.text,))
        texts.append(demand.text)
    return _want_of(
        function, group.lines, " and ".join(dict.fromkeys(filter(None, texts))), as_expert_sizes(settings), unknown
    )


def _on_families(want: Want, families: frozenset[str]) -> Want:
    """The want on a model of one of some families; as it is where any will do."""
    if not families:
        return want
    *others, last = sorted(families)
    text = f"a model of {', '.join(others)} or {last}" if others else f"a model of {last}"
    condition = f"{text} and {want.condition}" if want.condition else text
    return replace(want, condition=condition, families=families)


def _of_experts(want: Want) -> Want:
    """The want with what adapters of experts need: they leave by themselves in a save alone, and merged otherwise."""
    axes = dict(want.axes)
    if "moe" in want.model.features and leaves_by_itself(want.path, want.symbol):
        axes[Axis.RESUME] = True
    alpha = axes.get(Axis.ADAPTER_ALPHA)
    if axes.get(Axis.ADAPTER_SHARING) == "outer" and isinstance(alpha, int) and Axis.ADAPTER_RANK not in axes:
        # As large as it is meant to be, measured by the rank.
        axes[Axis.ADAPTER_ALPHA] = alpha * OUTER_RANK // int(BASE_WRAPPER["LORA_RANK"])
    return replace(want, axes=axes)


def _want_of(
    function: ChangedFunction, lines: tuple[int, ...], condition: str, settings: Settings, unknown: Iterable[str]
) -> Want:
    """A want for lines of a function."""
    return Want(
        path=function.path,
        symbol=function.symbol,
        lines=lines,
        condition=condition,
        axes=dict(settings.axes),
        limits=dict(settings.limits),
        overrides=dict(settings.overrides),
        model=ModelWant(settings.family, dict(settings.fields), settings.features, settings.absent),
        open=tuple(dict.fromkeys(unknown)),
        rules=settings.rules,
        side=function.side,
    )

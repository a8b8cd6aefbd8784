"""What the plan makes of a change of one path alone: how verl reaches its symbols, and which levels they ask for.

Everything here is read from that plan, so that an explanation never says anything else than the plan would.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

from verl_e2e.core.judge.wording import purpose_rows
from verl_e2e.core.model.change import on_one_line, readable
from verl_e2e.core.model.execution import ExecutionMaps
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.classify import Classified
from verl_e2e.core.plan.plan import MODULE_LEVEL, Plan, Reason
from verl_e2e.core.text.escape import count_of, one_line

_BY_NAME = "it is judged by its name, not by its inside"
_SHOWN_PLACES = 5
_UNREACHED = "verl does not reach it"
_RUNS_AT_IMPORT = "it runs when verl imports the module; a change that is proved to have no effect asks for nothing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One path, or one symbol of it."""

    path: str
    # The symbol, empty for the whole path.
    symbol: str
    # What a change of it asks for, level 0 among them where any is; empty for nothing.
    levels: tuple[Level, ...] = ()
    # The names of the policy's rules that ask.
    rules: tuple[str, ...] = ()
    # The chain from a line in verl to the symbol, outermost first; empty for a path.
    via: tuple[str, ...] = ()
    # Why it asks for nothing, or why a path asks for its levels.
    reason: str = ""
    # The measured jobs that entered the function, each with the kinds of processes that did; empty for a path.
    entered_by: tuple[str, ...] = ()
    # How many functions and lines of it are looked for in each planned job, were all of it changed.
    must_run: tuple[str, ...] = ()
    # The other consumers that reach it, each with the line of theirs that the chain starts from; empty for a path.
    reached_by: tuple[str, ...] = ()
    # What enters its places, each with the job that would be made for it, or with the reason why none would.
    places: tuple[str, ...] = ()


def explanations(
    planned: Plan, judged: Classified, symbol: str, names: Mapping[str, bool], condition: str = ""
) -> tuple[Explanation, ...]:
    """Explain a path from the plan of a change of it alone, and each of its symbols or the one that is named.

    `judged` is what the policy says about the path. `names` are its symbols in order, each with whether an import runs
    it, as it runs all but the bodies of functions. `condition` says which changes of the path ask for nothing all the
    same, empty for none.
    """
    name = readable(judged.path)
    reasons = [reason for reason in planned.reasons if reason.path == name]
    if planned.levels:
        general = [reason.reason for reason in reasons if reason.symbol is None or not reason.rule]
        by_name = [_BY_NAME] if judged.effects is None else []
        why = "; ".join(filter(None, (*dict.fromkeys(general), *by_name, condition)))
        whole = Explanation(judged.path, "", levels=planned.levels, rules=_rules(reasons), reason=why)
    else:
        why = "; ".join(f"{group.name}: {group.reason}" for group in planned.exempted)
        whole = Explanation(judged.path, "", reason=why)
    if judged.effects is None or judged.exemption is not None:
        return (whole,)
    wanted = [name for name in names if not symbol or name == symbol or name.startswith(f"{symbol}.")]
    body = _of_symbol(judged.path, MODULE_LEVEL, reasons)
    found = ((name, _of_symbol(judged.path, name, reasons)) for name in wanted)
    rows = tuple(
        replace(body, symbol=name, reason=_RUNS_AT_IMPORT) if names[name] and not row.levels and body.levels else row
        for name, row in found
    )
    return rows if symbol else (whole, *((body,) if body.levels else ()), *rows)


def with_must_run(explanation: Explanation, planned: Plan) -> Explanation:
    """The explanation with its places, and what is looked for of it, in the jobs of a plan of the whole path."""
    must_run = []
    for job in planned.jobs:
        own = [item for item in job.changed.required if item.symbol and item.path == readable(explanation.path)]
        if explanation.symbol:
            own = [item for item in own if f"{item.symbol}.".startswith(f"{explanation.symbol}.")]
        if own:
            lines = sum(len(function.lines) for function in own)
            must_run.append(f"{job.id}: {count_of(len(own), 'function')}, {count_of(lines, 'line')}")
    places = []
    for job in planned.jobs:
        purposes = [purpose for purpose in job.purposes if _is_own(explanation, purpose.path, purpose.symbol)]
        places += [f"{job.id} {row}" for row in purpose_rows(purposes, _SHOWN_PLACES)]
    for left in planned.not_covered:
        if _is_own(explanation, left.purpose.path, left.purpose.symbol):
            places += [f"no job {row}: {left.reason}" for row in purpose_rows([left.purpose])]
    open_ = (item for item in planned.not_entered if _is_own(explanation, item.function.path, item.function.symbol))
    places += [f"any job or none for {place}: {place.problem}" for place in islice(open_, _SHOWN_PLACES)]
    return replace(explanation, must_run=tuple(must_run), places=tuple(places))


def _is_own(explanation: Explanation, path: str, symbol: str) -> bool:
    """Whether a place is in what is explained; a path is explained whole by its symbols."""
    own = explanation.symbol
    return path == readable(explanation.path) and bool(own) and f"{symbol}.".startswith(f"{own}.")


def with_maps(explanation: Explanation, maps: ExecutionMaps) -> Explanation:
    """The explanation of a symbol with the measured jobs that entered it."""
    if not explanation.symbol:
        return explanation
    place = (explanation.path, explanation.symbol)
    entered = (f"{found.job} ({', '.join(found.enters(*place))})" for found in maps.entered_by(*place))
    return replace(explanation, entered_by=tuple(entered))


def render_explanation(explanation: Explanation) -> str:
    """One explanation as text, the chain below it."""
    symbol = f":{explanation.symbol}" if explanation.symbol else ""
    place = on_one_line(f"{explanation.path}{symbol}")
    if explanation.levels:
        levels = ", ".join(str(int(level)) for level in explanation.levels)
        rows = [f"{place}: level {levels} ({', '.join(explanation.rules) or 'no rule names it'})"]
        rows += [f"  {explanation.reason}"] if explanation.reason else []
        rows += [f"  {'  ' * depth}{step}" for depth, step in enumerate(explanation.via)]
    else:
        rows = [f"{place}: asks for nothing, {explanation.reason}"]
    rows += [f"  {other}" for other in explanation.reached_by]
    rows += [f"  looked for in {job}" for job in explanation.must_run]
    rows += [f"  place: {on_one_line(row)}" for row in explanation.places]
    rows += [f"  entered by {job}" for job in explanation.entered_by]
    return "\n".join(rows)


_MOST_ROWS, _MOST_WIDTH = 12, 100


def render_short_explanation(explanation: Explanation, full: str) -> str:
    """The same in at most 12 rows of 100 columns; the last one says that the option `full` shows the rest."""
    alone = replace(explanation, via=(), must_run=(), places=(), entered_by=(), reached_by=())
    rows = render_explanation(alone).splitlines()
    chain = explanation.via
    shown = [chain[0], "...", *chain[-3:]] if len(chain) > 5 else list(chain)
    rows += [f"  {'  ' * depth}{step}" for depth, step in enumerate(shown)]
    rows += [f"  {other}" for other in explanation.reached_by]
    for title, found in (
        ("looked for in", explanation.must_run),
        ("place:", explanation.places),
        ("entered by", explanation.entered_by),
    ):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        rows += [f"  {title} {one_line(found[0], _MOST_WIDTH - len(title) - len(more) - 3)}{more}"] if found else []
    short = [row if len(row) <= _MOST_WIDTH else f"{row[: _MOST_WIDTH - 4]} ..." for row in rows[: _MOST_ROWS - 1]]
    is_whole = short == render_explanation(explanation).splitlines()
    return "\n".join(short if is_whole else [*short, f"  {full} shows all of it"])


def render_short_explanations(found: Sequence[Explanation], full: str) -> str:
    """Each target in at most 12 rows, and then a row for each of the first symbols below it."""
    rows: list[str] = []
    above, below = Explanation("", ""), 0
    for item in found:
        if item.path == above.path and item.symbol.startswith(f"{above.symbol}." if above.symbol else ""):
            below += 1
            head = render_explanation(replace(item, via=(), reason="" if item.levels else item.reason)).splitlines()[0]
            if below < _MOST_ROWS:
                rows.append(f"  {one_line(head.removeprefix(item.path), _MOST_WIDTH - 2)}")
            elif below == _MOST_ROWS:
                rows.append(f"  and more symbols: {full} shows them")
            continue
        above, below = item, 0
        rows.append(render_short_explanation(item, full))
    return "\n".join(rows)


def explanation_json(explanation: Explanation) -> dict[str, object]:
    """One explanation as a document."""
    return {**asdict(explanation), "path": readable(explanation.path), "symbol": explanation.symbol or None}


def _of_symbol(path: str, name: str, reasons: list[Reason]) -> Explanation:
    own = [reason for reason in reasons if reason.symbol == name]
    if not own:
        return Explanation(path, name, reason=_UNREACHED)
    levels = tuple(sorted({Level.SMOKE, *(reason.level for reason in own)}))
    return Explanation(path, name, levels=levels, rules=_rules(own), via=own[0].via[:-1] if own[0].rule else own[0].via)


def _rules(reasons: Iterable[Reason]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason.rule for reason in reasons if reason.rule))

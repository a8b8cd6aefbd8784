"""A rehearsal for people and programs: the section of the card, and one JSON document."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace

from verl_e2e.core.compare.rehearsal import RANK, CellOutcome, CellVerdict, Difference, Rehearsal, Sight
from verl_e2e.core.pulls.ledger import RehearsalFailure
from verl_e2e.core.text.escape import code, count_of, markdown

_MOST_CELLS, _MOST_LINES, _MOST_NAMED = 20, 20, 2000
LIMITS = (
    "Runs on a CPU, on tiny models, with layers in plain PyTorch in the place of Transformer Engine's: kernels, FP8, "
    "fused rope, packed attention, CUDA graphs, FSDP and the rollout engine are not run."
)


def headline(found: Rehearsal) -> str:
    """The verdict in one sentence."""
    counts = {outcome: len(found.of(outcome)) for outcome in CellOutcome}
    parts = [f"{outcome.value} in {counts[outcome]}" for outcome in CellOutcome if counts[outcome]]
    return f"Rehearsal (CPU): {found.outcome.value} ({', '.join(parts)} of {len(found.cells)} cells)"


def first_failure(found: Rehearsal) -> RehearsalFailure | None:
    """What failed in the first cell that did, None where none did."""
    failed = ((cell, *row) for cell in found.of(CellOutcome.FAIL) for row in _failed(cell))
    first = next(failed, None)
    return first and RehearsalFailure(what=f"{first[0].cell}: {first[1]}", where=first[2], edited=first[0].cause)


def render_rehearsal(found: Rehearsal) -> str:
    """The section of the card, in Markdown."""
    rows = [f"### {markdown(headline(found))}", ""]
    if found.carried:
        ran, of_base = count_of(found.ran, "cell"), f"the other {found.carried} is that of a base"
        rows += [f"{ran} ran over the head. What counts for {of_base} in which nothing that runs there differs.", ""]
    for section in (_failures, _changes, _before, _unentered, _unnoticed):
        rows += section(found)
    rows += [markdown(f"{LIMITS} {found.environment}. {found.run.isolation}"), ""]
    return "\n".join(rows)


def rehearsal_json(found: Rehearsal) -> str:
    """The whole verdict as one JSON document."""
    document = asdict(found)
    for cell, given in zip(document["cells"], found.cells, strict=True):
        for name in ("head_error", "base_error"):
            error = getattr(given, name)
            cell[name] = None if error is None else error.model_dump(mode="json")
        for name in ("newly", "before_too", "fixed"):
            cell[name] = [finding.model_dump(mode="json") for finding in getattr(given, name)]
        for difference in cell["differences"]:
            # JSON has no word for it.
            difference["size"] = "inf" if difference["size"] == math.inf else difference["size"]
    for item, observation in zip(document["observations"], found.observations, strict=True):
        item["trials"] = [trial.model_dump(mode="json") for trial in observation.trials]
    document["run"] = found.run.model_dump(mode="json")
    document["equal_everywhere"] = found.equal_everywhere
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _failures(found: Rehearsal) -> Iterator[str]:
    failed = found.of(CellOutcome.FAIL)
    if not failed:
        return
    yield "| cell | what fails at the head and not at the base | where | likeliest changed function |"
    yield "|---|---|---|---|"
    for cell in failed[:_MOST_CELLS]:
        for what, where in _failed(cell):
            yield f"| {code(cell.cell)} | {markdown(what)} | {markdown(where)} | {code(cell.cause or 'none')} |"
    yield from _more(len(failed))


def _failed(cell: CellVerdict) -> Iterator[tuple[str, str]]:
    if cell.head_error is not None:
        yield f"{cell.head_error.type}: {cell.head_error.text}"[:300], cell.head_error.at
    for finding in cell.newly:
        yield f"{finding.oracle}: off by {_number(finding.off)}", finding.where


def _changes(found: Rehearsal) -> Iterator[str]:
    """What differs, folded by the changed function that is the likeliest cause."""
    changed = [cell for cell in found.cells if cell.differences or (cell.base_error and not cell.head_error)]
    if not changed:
        return
    others = [(cell, tuple(item for item in cell.differences if not _is_field(item))) for cell in changed]
    # Another value in another family is said too.
    fields = dict.fromkeys(
        f"{item.quantity.partition('.')[2]} {item.what}"
        for cell in changed
        for item in cell.differences
        if _is_field(item)
    )
    if fields:
        alone = sum(bool(cell.differences) and not left for cell, left in others)
        yield markdown(f"Fields of the configuration that are new or gone: {'; '.join(fields)}.", _MOST_NAMED)
        yield f"{alone} cells differ in nothing else." if alone else ""
        yield ""
    changed = [replace(cell, differences=left) for cell, left in others if left or not cell.differences]
    if not changed:
        return
    by_cause: dict[str, list[CellVerdict]] = {}
    for cell in changed:
        by_cause.setdefault(cell.cause, []).append(cell)
    yield "| likeliest changed function | cells | first quantity that differs | largest difference |"
    yield "|---|---|---|---|"
    for cause, cells in sorted(by_cause.items(), key=lambda pair: -len(pair[1]))[:_MOST_CELLS]:
        names = ", ".join(cell.cell for cell in cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")
        first = next((cell.differences[0] for cell in cells if cell.differences), None)
        sized = [difference for cell in cells for difference in cell.differences if difference.size is not None]
        largest = max(sized, key=lambda difference: difference.size or 0.0, default=None)
        shown = "it runs now"
        if first is not None:
            by = "" if first.size is None or first.what != "differs" else f" by {_number(first.size)}"
            shown = f"{_plain(first.quantity)} {first.what}{by}"
        size = "" if largest is None else f"{_plain(largest.quantity)} by {_number(largest.size)}"
        yield f"| {code(cause or 'no changed function')} | {markdown(names)} | {markdown(shown)} | {markdown(size)} |"
    yield from _more(len(by_cause))


def _is_field(difference: Difference) -> bool:
    """Whether a field of the provider's configuration is there on one side alone: a difference of every cell."""
    return difference.one_sided and difference.quantity.startswith(("provider@", "provider_final@"))


def _before(found: Rehearsal) -> Iterator[str]:
    """What the base has too, which says nothing about the change."""
    failing = [(cell.cell, [item.oracle for item in cell.before_too]) for cell in found.cells]
    blocked = found.of(CellOutcome.BLOCKED)
    of_base = [(cell.cell, [cell.base_error.type]) for cell in blocked if cell.base_error and not cell.host_error]
    of_host = [(cell.cell, [cell.host_error.text]) for cell in blocked if cell.host_error]
    fixed = [(cell.cell, [item.oracle for item in cell.fixed]) for cell in found.cells]
    for title, cells in (
        ("Fails at the base too", failing),
        ("Does not run at the base, so nothing was compared", of_base),
        ("Gave nothing to compare for a reason of the host, so rehearse again", of_host),
        ("Fails at the base and no longer at the head", fixed),
    ):
        by_reason: dict[str, list[str]] = {}
        for name, what in cells:
            if what:
                by_reason.setdefault(", ".join(what), []).append(name)
        rows = (
            f"{len(names)} cells ({reason})" if len(names) > _MOST_CELLS else f"{', '.join(names)} ({reason})"
            for reason, names in by_reason.items()
        )
        if named := "; ".join(rows):
            yield f"- {title}: {markdown(named, _MOST_NAMED)}"
    yield ""


def _unentered(found: Rehearsal) -> Iterator[str]:
    if not found.changed:
        yield "No function that a run executes is changed."
    elif not found.unentered:
        yield f"The cells entered all changed lines of {found.changed} functions."
    else:
        yield f"Changed and entered by no cell, in {len(found.unentered)} of {found.changed} functions:"
    if len(found.unentered) <= _MOST_LINES:
        for item in found.unentered:
            place = f"{item.path}:{item.symbol}" if item.symbol else item.path
            lines = f", lines {', '.join(map(str, item.lines[:12]))}" if item.lines else ""
            yield f"- {code(place)}{lines}"
    else:
        by_path: dict[str, list[str]] = {}
        for item in found.unentered:
            by_path.setdefault(item.path, []).append(item.symbol or "the module")
        for path, symbols in sorted(by_path.items(), key=lambda pair: -len(pair[1]))[:_MOST_CELLS]:
            rest = f" and {len(symbols) - 3} more" if len(symbols) > 3 else ""
            yield f"- {code(path)}: {markdown(', '.join(symbols[:3]))}{rest}"
        yield from _more(len(by_path))
    yield ""


def _unnoticed(found: Rehearsal) -> Iterator[str]:
    """The changed functions that cells entered and in which no fault would be noticed, or none was judged."""
    if not found.observations:
        return
    counts = {sight: [item for item in found.observations if item.sight is sight] for sight in Sight}
    unseen = [*counts[Sight.UNNOTICED], *counts[Sight.UNJUDGED]]
    seen = f"Faults were put into the changed functions that cells entered, {found.observe.described}. "
    seen += f"A fault was noticed in {len(counts[Sight.OBSERVED])} of {len(found.observations)}"
    yield markdown(f"{seen}; not in these:" if unseen else f"{seen}.")
    for item in unseen[:_MOST_LINES]:
        shown = {trial.fault for trial in item.trials if trial.noticed}
        faults = dict.fromkeys(trial.fault for trial in item.trials if trial.fault not in shown)
        cells = dict.fromkeys(trial.cell for trial in item.trials)
        what = f"entered, and nothing here would notice: {', '.join(faults)} (in {', '.join(cells)})"
        if item.sight is Sight.UNJUDGED:
            what = f"not judged, because {item.reason}"
        yield f"- {code(item.function)}: {markdown(what)}"
    yield from _more(len(unseen), _MOST_LINES)
    yield ""


def _more(count: int, most: int = _MOST_CELLS) -> Iterator[str]:
    if count > most:
        yield f"\n{count - most} more are in the JSON document."
    yield ""


def _plain(quantity: str) -> str:
    """A quantity without the number of the first rank."""
    return quantity.removesuffix(f"{RANK}0").replace(f"{RANK}0.", ".")


def _number(value: float | str | None) -> str:
    return value if isinstance(value, str) else f"{value:.1e}"

"""The causes that come and go, as text for a terminal and as a document."""

from collections.abc import Iterable, Iterator

from verl_e2e.core.pulls.flaky import FlakyCause
from verl_e2e.core.report.attempts_text import cause_words
from verl_e2e.core.text.escape import one_line

NONE = "no cause came and went: no attempt disagreed with another, and no failure was on two pull requests"
FLAKY_SCHEMA = 1


def flaky_text(found: Iterable[FlakyCause]) -> str:
    """A few lines for each cause, with what an entry of the policy's quarantine needs."""
    return "\n".join(line for item in found for line in _rows(item)) or NONE


def _rows(item: FlakyCause) -> Iterator[str]:
    mark = f" fingerprint {item.fingerprint}" if item.fingerprint else ""
    yield f"{item.cause_id}{mark}"
    yield f"  {cause_words(item.cause_id)}; a {item.found}"
    yield f"  {_count(item.runs, 'run')}, the last on {item.last:%Y-%m-%d}, in {one_line(', '.join(item.job_ids), 300)}"
    if item.stages:
        yield f"  at {', '.join(item.stages)}"
    yield (
        f"  {_count(item.disagreed, 'head')} where another attempt passed, {_count(item.pulls, 'pull request')}, "
        f"{_count(item.merge_bases, 'merge base')}"
    )


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def flaky_json(found: Iterable[FlakyCause]) -> dict[str, object]:
    """The same as a document."""
    rows = [
        {
            "cause": item.cause_id,
            "fingerprint": item.fingerprint,
            "class": item.found.name.lower(),
            "jobs": list(item.job_ids),
            "stages": [str(stage) for stage in item.stages],
            "runs": item.runs,
            "heads_that_passed": item.disagreed,
            "pull_requests": item.pulls,
            "merge_bases": item.merge_bases,
            "last": item.last.isoformat(),
        }
        for item in found
    ]
    return {"schema": FLAKY_SCHEMA, "causes": rows}

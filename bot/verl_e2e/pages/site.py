"""The pages of the service, from frozen values: runs of all repositories, of a pull request, and one run."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.policy import PolicyValue
from verl_e2e.core.pulls.ledger import Override, Run, RunState
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot
from verl_e2e.core.pulls.retry import RetryClass, class_of
from verl_e2e.core.pulls.run_lines import (
    Glance,
    RunCount,
    RunLine,
    line_of,
    slots_in_use,
    tallies,
    waiting_reasons,
    week_of,
)
from verl_e2e.core.report.run_text import log_row
from verl_e2e.pages.report import templates, verdict_parts

# Before and after the part of a page that changes, and where the login's link belongs; no value can hold them.
LIVE = ('<main id="live">', "</main>")
LOGIN = "<!-- login -->"


# Of a line of a log: in a row of the overview, and on the page of its run.
_MOST_OF_ROW, _MOST_OF_LINE = 160, 400


@dataclass(frozen=True, slots=True)
class QueueNow:
    """The queue as pages show it."""

    snapshot: QueueSnapshot
    pools: Collection[Pool]
    now: datetime


def render_overview(
    queue: QueueNow,
    repositories: Collection[str],
    running: Sequence[RunLine],
    ended: Sequence[RunLine],
    glances: Mapping[str, Glance],
) -> str:
    """What runs, what waits and why, and the newest results; `running` has all that is not over.

    `glances` are looks at some of those that run, by key.
    """
    reasons = waiting_reasons(queue.snapshot, queue.pools, queue.now)
    return _render(
        "overview.html",
        repositories=repositories,
        slots=slots_in_use(queue.snapshot, queue.pools, queue.now),
        running=[
            (line, glance.where, log_row(glance.last_lines[-1])[:_MOST_OF_ROW] if glance.last_lines else "")
            for line in running
            if line.state is not RunState.QUEUED
            for glance in [glances.get(line.key, Glance())]
        ],
        waiting=[
            (line, reasons.get(line.key) or "the back end is asked for it")
            for line in reversed(running)
            if line.state is RunState.QUEUED
        ],
        ended=ended,
    )


def render_pull(queue: QueueNow, lines: Sequence[RunLine], overrides: Collection[Override], web_url: str) -> str:
    """The runs of a pull request by head, the newest first; there is at least one. `web_url` is GitHub's."""
    heads: dict[str, list[RunLine]] = defaultdict(list)
    for line in lines:
        heads[line.head_sha].append(line)
    return _render(
        "pull.html",
        repository=lines[0].repository,
        number=lines[0].number,
        heads=[(head, sorted(of_head, key=lambda line: line.job_id)) for head, of_head in heads.items()],
        overrides=overrides,
        reasons=waiting_reasons(queue.snapshot, queue.pools, queue.now),
        web_url=web_url,
    )


def render_run(queue: QueueNow, run: Run, glance: Glance) -> str:
    """One run: its verdict as the report of its folder shows it, or where it stands and the end of its log."""
    verdict: Verdict | None = read_verdict(run.verdict) if run.verdict else None
    return _render(
        "run.html",
        run=run,
        line=line_of(run),
        why=waiting_reasons(queue.snapshot, queue.pools, queue.now).get(run.key, ""),
        how_far=glance.where,
        last_lines=[log_row(line)[:_MOST_OF_LINE] for line in glance.last_lines],
        log_url=run.url if run.url.startswith(("https://", "http://")) else "",
        **(verdict_parts(verdict) if verdict else {"verdict": None}),
    )


# More causes than this are not worth a row.
_CAUSES = 30


def render_history(since: datetime, counts: Collection[RunCount], overrides: Collection[Override]) -> str:
    """What the runs came to by week, level, family and cause, and whose what blocked them was."""
    by_week = tallies(counts, lambda count: (week_of(count.day),))
    titles: dict[Level | None, str] = {level: f"{level.value} {level.title}" for level in Level}
    titles[None] = "rehearsal, only shown, or not known"
    by_level = tallies(counts, lambda count: (titles[count.level],))
    given_by_week = Counter(week_of(entry.at.date()) for entry in overrides)
    given_by_level = Counter(titles[entry.level] for entry in overrides)
    tables = (
        ("week", "Monday", sorted(by_week, key=lambda row: row.title, reverse=True), given_by_week),
        ("level", "level", sorted(by_level, key=lambda row: row.title), given_by_level),
        ("family", "family", tallies(counts, lambda count: (count.family or "of the level's own model",)), None),
        ("who blocked", "whose it was", tallies(counts, _who_blocked), None),
        ("cause", "what kept it from a pass", tallies(counts, lambda count: count.causes)[:_CAUSES], None),
    )
    return _render("history.html", since=since, tables=tables, overrides=len(overrides))


def _who_blocked(count: RunCount) -> tuple[str, ...]:
    if count.result is not Result.BLOCKED:
        return ()
    found = class_of(count.causes, undecided=False)
    return ("code under test, not shown whose" if found is RetryClass.CHANGE else found.value,)


def render_policy(repository: str, values: Sequence[PolicyValue] | str) -> str:
    """Each key of the policy with where it comes from, or why the policy is not known."""
    known = not isinstance(values, str)
    return _render("policy.html", repository=repository, values=values if known else (), why="" if known else values)


def render_missing() -> str:
    """What is said of a page that is not there, or not for this visitor."""
    return _render("missing.html")


@cache
def site_file(name: str) -> str:
    """The text of `style.css` or `live.js`."""
    return _render(name)


def _render(name: str, **values: object) -> str:
    return templates.get_template(name).render(**values)

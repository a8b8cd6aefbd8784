"""The card of a pull request from what is known of it and what was decided."""

from bot.core.pulls.conduct import Steps, hold
from bot.core.pulls.gate import GateState, JobState
from bot.core.pulls.gate import Standing as JobStanding
from bot.core.pulls.ledger import Run
from bot.core.pulls.pull_card import EarlierHead, JobRow, PullCard, Standing, row_of, standing_of
from bot.core.pulls.situation import Situation

_SHOWN_HISTORY = 10
_OF_GATE = {
    GateState.SUCCESS: Standing.PASS,
    GateState.FAILURE: Standing.FAIL,
    GateState.IN_PROGRESS: Standing.RUNNING,
    GateState.ACTION_REQUIRED: Standing.BLOCKED,
}
_OF_JOB = {
    JobState.PASSED: Standing.PASS,
    JobState.OVERRIDDEN: Standing.OVERRIDDEN,
    JobState.FAILED: Standing.FAIL,
    JobState.BLOCKED: Standing.BLOCKED,
    JobState.RUNNING: Standing.RUNNING,
    JobState.WAITING: Standing.WAITING,
    JobState.SKIPPED: Standing.SKIPPED,
    JobState.HELD: Standing.WAITING,
}
_WORST = (Standing.FAIL, Standing.BLOCKED, Standing.CANCELLED, Standing.RUNNING, Standing.WAITING, Standing.PASS)


def card_of(situation: Situation, steps: Steps) -> PullCard:
    """What the card shows once the steps are taken."""
    required = any(one.wanted.required for one in steps.standings)
    nothing = steps.gate.state is GateState.SUCCESS and not required
    return PullCard(
        head_sha=situation.head_sha,
        standing=Standing.NOTHING_REQUIRED if nothing else _OF_GATE[steps.gate.state],
        sentence=steps.gate.title,
        jobs=tuple(_row(one) for one in steps.standings),
        plan=situation.plan,
        notices=_notices(situation),
        overrides=situation.overrides,
        history=_history(situation),
        reproduce=_reproduce(situation),
        problem=situation.problem,
    )


def _row(standing: JobStanding) -> JobRow:
    planned, shown = float(standing.wanted.gpu_minutes), _OF_JOB[standing.state]
    if standing.run is not None:
        made = row_of(standing.run, shown, planned=planned)
        return made if made.detail and standing.override is None else _said(made, standing.because)
    wanted = standing.wanted
    return JobRow(wanted.id, shown, wanted.required, standing.because, planned=planned)


def _said(row: JobRow, detail: str) -> JobRow:
    return JobRow(
        row.job_id,
        row.standing,
        row.required,
        detail,
        attempt=row.attempt,
        planned=row.planned,
        used=row.used,
        url=row.url,
        verdict=row.verdict,
    )


def _notices(situation: Situation) -> tuple[str, ...]:
    held = hold(situation)
    remarks = situation.plan.remarks[:1] if situation.plan is not None and _counts_short(situation) else ()
    return (*((held,) if held and held != situation.problem else ()), *remarks, *situation.broken[:5])


def _counts_short(situation: Situation) -> bool:
    return situation.plan is not None and any("every level is run" in one for one in situation.plan.remarks[:1])


def _history(situation: Situation) -> tuple[EarlierHead, ...]:
    """The earlier heads, the latest first, each with the worst of what its last runs came to."""
    of_head: dict[str, dict[str, Run]] = {}
    for run in sorted(situation.earlier, key=lambda one: (one.created, one.attempt)):
        last = of_head.setdefault(run.head_sha, {})
        last[run.job_id] = run
    rows = [_earlier(head, tuple(last.values())) for head, last in reversed(of_head.items())]
    return tuple(rows[:_SHOWN_HISTORY])


def _earlier(head: str, runs: tuple[Run, ...]) -> EarlierHead:
    standings = {standing_of(one): one for one in runs}
    worst = next(one for one in _WORST if one in standings)
    run = standings[worst]
    return EarlierHead(head, worst, f"{run.job_id}: {run.sentence or run.reason or run.state}")


def _reproduce(situation: Situation) -> str:
    if situation.plan is None or not situation.plan.levels:
        return ""
    base, head = situation.plan.base, situation.plan.head
    return f"verl-e2e check --repo Megatron-Bridge --verl verl --base {base} --head {head} --out result"

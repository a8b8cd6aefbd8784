"""The card of a pull request from what is known of it and what was decided."""

from dataclasses import replace

from verl_e2e.core.judge import wording
from verl_e2e.core.model.record import SUSPECTS_WORD
from verl_e2e.core.pulls.commands import needs_leave
from verl_e2e.core.pulls.decide import Actions
from verl_e2e.core.pulls.forge import Pull
from verl_e2e.core.pulls.gate import JobStanding, joined_execution, minutes_left
from verl_e2e.core.pulls.ledger import Approval, JobStatus, Run, status_of_run
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import is_image_pinned
from verl_e2e.core.report.attempts_text import attempt_rows, attempts_line, queue_notices, used_minutes
from verl_e2e.core.report.checks import rehearsal_block, rehearsal_line
from verl_e2e.core.report.pull_card import EarlierHead, JobRow, PullCard, row_of

_REHEARSAL_SHARE = 4_000
_SHOWN_HISTORY = 10
_WORST = (
    JobStatus.FAILED,
    JobStatus.BLOCKED,
    JobStatus.UNEXECUTED,
    JobStatus.CANCELLED,
    JobStatus.RUNNING,
    JobStatus.WAITING,
    JobStatus.PASSED,
)


# Jobs that no verdict stands for yet.
_TO_RUN = frozenset({JobStatus.RUNNING, JobStatus.WAITING, JobStatus.HELD})
_OWN = ", ".join(" of ".join(reversed(name.split("#"))) for name in SUSPECTS_WORD)
OWN_WORD = (
    "This head runs only with an approval, so mind whose word its evidence is: the code under test could choose, in "
    f"isolation too, what is in {_OWN}. The recorder saw the rest itself, as commits, commands, times, exit code and "
    "GPU memory."
)
NOT_PINNED = (
    "No verdict of another pull request is reused: the image is named by its tag alone. To change that, a maintainer "
    "sets `image.digest` in the policy."
)


def pull_card_of(target_state: TargetState, steps: Actions) -> PullCard:
    """What the card shows after the actions."""
    target, plan, rehearsal = target_state.target, target_state.plan, steps.rehearsal
    levels = plan.levels if plan is not None else ()
    # A head that a person had to let run, and that did.
    approvals = (entry for entry in target_state.entries if isinstance(entry, Approval))
    let = isinstance(target, Pull) and needs_leave(target, approvals)
    ran = any(standing.run is not None and standing.run.verdict for standing in steps.standings)
    reproduce = ""
    if plan is not None and levels:
        of = f"--base {plan.base} --head {plan.head}"
        reproduce = f"verl-e2e check --repo Megatron-Bridge --verl verl {of} --out result"
    return PullCard(
        head_sha=target_state.head_sha,
        status=steps.gate.status,
        sentence=steps.gate.title,
        jobs=tuple(_row(standing) for standing in steps.standings),
        plan=plan,
        notices=_notices(target_state, steps),
        overrides=target_state.overrides,
        uncounted=(*target_state.refused, *target_state.counted.uncounted),
        history=_history(target_state),
        reproduce=reproduce,
        problem="" if steps.gate.says_obstacle else target_state.problem,
        executed=joined_execution(steps.standings),
        minutes_left=minutes_left(steps.standings),
        limitations=(OWN_WORD,) if let and ran else (),
        rehearsal=rehearsal_line(rehearsal, levels) if rehearsal is not None else "",
        rehearsal_blocks=rehearsal_block(rehearsal, _REHEARSAL_SHARE) if rehearsal is not None else (),
    )


def _row(standing: JobStanding) -> JobRow:
    wanted, run = standing.wanted, standing.run
    # What cannot be run costs nothing.
    planned = float(wanted.gpu_minutes) if wanted.job is not None or run is not None else 0.0
    row = JobRow(wanted.id, standing.state, wanted.required, standing.reason, planned=planned)
    if run is not None:
        row = row_of(run, standing.state, planned=planned)
        others = (standing.override, standing.hold, standing.attempt, standing.quarantine, standing.disagrees_with)
        # Whether the words of the last run say all about the job's status.
        says_all = standing.state not in (JobStatus.ACCEPTED, JobStatus.WAITING) and all(
            item is None for item in others
        )
        texts = (row.detail if says_all and row.detail else standing.reason, attempts_line(standing))
        detail = "; ".join(text for text in texts if text)
        row = replace(row, detail=detail, used=used_minutes(standing), attempts=attempt_rows(standing))
    requested = wording.requested_work(wanted.job) if wanted.job is not None else ""
    return replace(row, options=wanted.options, requested=requested)


def _notices(target_state: TargetState, steps: Actions) -> tuple[str, ...]:
    """What a reader must see at once; the heading says why the jobs are held, a notice says what to do about it."""
    found, plan = steps.standings, target_state.plan
    # The heading has the obstacle without the command.
    rows = [steps.gate.action] if steps.gate.action else []
    rows += [f"{item.wanted.id} is {item.reason}." for item in found if item.quarantine is not None]
    rows += [f"{item.wanted.id}: {item.reason}." for item in found if item.disagrees_with is not None]
    holds = {item.hold: None for item in found if item.hold is not None}
    again = [item.repetition for item in found if item.repetition]
    rows += [f"{text[:1].upper()}{text[1:]}." for text in (*again, *(hold.action for hold in holds)) if text]
    rows += queue_notices(target_state, steps.gate.status)
    left = (item for item in found if item.state is JobStatus.UNCOVERABLE)
    rows += [f"Not covered by {item.wanted.id}: {item.reason}." for item in left]
    rows += (*plan.switched_off, *plan.incomplete[:2]) if plan is not None else ()
    rows += target_state.broken[:5]
    # What keeps jobs that have to run from taking over the verdict of another pull request, if the policy does.
    jobs = [item.wanted.job for item in found if item.state in _TO_RUN and item.wanted.reuse_key]
    if target_state.policy.gate.reuse_h and any(job is not None and not is_image_pinned(job) for job in jobs):
        rows.append(NOT_PINNED)
    return tuple(rows)


def _history(target_state: TargetState) -> tuple[EarlierHead, ...]:
    """The earlier heads, the latest first, each with the worst result of its last runs."""
    of_head: dict[str, dict[str, Run]] = {}
    for run in sorted(target_state.earlier, key=lambda item: (item.created, item.attempt)):
        last = of_head.setdefault(run.head_sha, {})
        last[run.job_id] = run
    rows = []
    for head, last in list(reversed(of_head.items()))[:_SHOWN_HISTORY]:
        by_status = {status_of_run(run): run for run in last.values()}
        worst = next(status for status in _WORST if status in by_status)
        run = by_status[worst]
        rows.append(EarlierHead(head, worst, f"{run.job_id}: {run.sentence or run.reason or run.state}"))
    return tuple(rows)

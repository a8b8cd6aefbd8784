"""The one comment that a pull request gets: verdict first, a table of jobs, everything else folded.

The card is deterministic and stays within 60,000 characters at any size of its input. One that fits is shown whole; of
one that does not, each block keeps to its share and loses rows from its end, and says so. Every foreign text goes
through `verl_e2e.core.text.escape`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.execution import EXECUTED_TITLE, execution_line, execution_rows
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.judge.wording import merged_limitations, purpose_rows, requested_work
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import SUSPECTS_WORD
from verl_e2e.core.plan.plan import Plan, Reason
from verl_e2e.core.pulls.commands import needs_leave
from verl_e2e.core.pulls.decide import Actions
from verl_e2e.core.pulls.forge import Pull
from verl_e2e.core.pulls.gate import JobStanding, joined_execution, minutes_left
from verl_e2e.core.pulls.ledger import Approval, JobStatus, Run, status_of_run
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import is_image_pinned, origin_text
from verl_e2e.core.report.attempts_text import attempt_rows, attempts_line, queue_notices, used_minutes
from verl_e2e.core.report.checks import next_step, rehearsal_block, rehearsal_failure, rehearsal_line
from verl_e2e.core.report.verdict_rows import (
    curves,
    deliverable_rows,
    failure_block,
    failure_rows,
    failure_title,
    key_lines,
    links,
    requested_rows,
    verdict_sentence,
)
from verl_e2e.core.text.escape import (
    TextBlock,
    code,
    count_of,
    fit_blocks,
    folded,
    folded_text,
    markdown,
    one_line,
    sentence,
    summary_html,
)

# First in every card; only a comment of our own App that starts with it is taken for ours.
MARKER = "<!-- verl-e2e:card:v1 -->"
MAX_CARD = 60_000
_CUT = "_Cut to fit._"
_ALL_REASONS = "- Comment `/verl-e2e plan` for every reason."
_PLANNED_AGAIN = "This head is planned again in a few minutes."
_ANY = 10**9
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


# The jobs whose failures a card tells before its table, and how many.
_ENDED_BADLY, _MOST_FAILURES = (JobStatus.FAILED, JobStatus.BLOCKED, JobStatus.UNEXECUTED), 2
# How many rows of a fold a card shows that tells a failure, and how long one is.
_MOST_TOLD, _MOST_ROW = 3, 160
# A job with the verdict of its run, and one that may have none.
_Judged = tuple[JobStanding, Verdict]
_Read = tuple[JobStanding, Verdict | None]
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


def render_pull_card(target_state: TargetState, steps: Actions) -> str:
    """The comment's Markdown after the actions, the marker first, at most 60,000 characters."""
    read = tuple((item, read_verdict(item.run.verdict) if item.run else None) for item in steps.standings)
    told, rehearsal = _failures(read, steps.gate.status), steps.rehearsal
    failed = rehearsal is not None and rehearsal.status is JobStatus.FAILED
    blocks = (
        _head(target_state, steps, told),
        *([rehearsal_failure(rehearsal)] if rehearsal is not None and failed else ()),
        *(_told(item, verdict) for item, verdict in told),
        *_tables(target_state, steps.standings, {item.wanted.id for item, _ in told}, fold=bool(told) or failed),
        *_folds(target_state, steps, told or read, told=bool(told)),
    )
    most = MAX_CARD - len(MARKER) - 1
    whole = fit_blocks(tuple(replace(block, share=_ANY) for block in blocks), _ANY, _CUT)
    return f"{MARKER}\n{whole if len(whole) <= most else fit_blocks(blocks, most, _CUT)}"


def _head(target_state: TargetState, steps: Actions, told: Sequence[_Judged]) -> TextBlock:
    gate, plan = steps.gate, target_state.plan
    # What is told in whole below is only named here.
    title = " and ".join(failure_title(item.wanted.id, verdict) for item, verdict in told)
    title = title if told and gate.status in _ENDED_BADLY else f"{gate.status.word} - {gate.title}"
    rehearsal = steps.rehearsal
    failed = rehearsal is not None and rehearsal.status is JobStatus.FAILED
    if rehearsal is not None and failed and gate.of_rehearsal and not told:
        title = f"CPU {REHEARSAL} failed, caused by this change"
    heading = f"### {gate.status.icon} verl-e2e: {sentence(title, 600)}\n"
    planned, used = sum(map(_planned, steps.standings)), sum(map(used_minutes, steps.standings))
    minutes = minutes_left(steps.standings)
    left = f", about {minutes} minutes to an answer where no job waits" if minutes else ""
    cost = (
        f", GPU minutes: {used:.1f} used, about {planned:.0f} planned{left}" if (planned or used) and not told else ""
    )
    rows = [f"Head `{target_state.head_sha[:12]}`{cost}"]
    # What to do about a failure is told below.
    notices = card_notices(target_state, steps) if not failed or told else ()
    rows += [f"> {sentence(notice, 600)}" for notice in notices]
    if target_state.problem and not gate.says_obstacle:
        rows.append(f"> {sentence(target_state.problem, 1000)}")
    if rehearsal is not None and not failed:
        line = rehearsal_line(rehearsal, plan.levels if plan is not None else ())
        rows.append(f"> {sentence(line, 1000)}")
    executed = execution_line(joined_execution(steps.standings), done=gate.status is not JobStatus.RUNNING)
    if executed and not told:
        rows.append(f"> {EXECUTED_TITLE}: {sentence(executed, 1500)}")
    for override in target_state.overrides:
        who, why = markdown(override.actor, 60), sentence(override.reason, 300)
        rows.append(f"> ⚠️ Level {int(override.level)} overridden by {who} on `{override.head_sha[:12]}`: {why}")
    for item in (*target_state.refused, *target_state.counted.uncounted):
        who, why = markdown(item.override.actor, 60), sentence(item.why, 300)
        rows.append(f"> ⚠️ The override of level {int(item.override.level)} by {who} does not count: {why}")
    return TextBlock(heading, tuple(rows), "", 8_000)


def _told(item: JobStanding, verdict: Verdict) -> TextBlock:
    address = links(item.run.url) if item.run is not None else ""
    return failure_block(item.wanted.id, verdict, step=next_step(item, verdict), address=address)


def _planned(standing: JobStanding) -> float:
    """GPU minutes that a job was estimated to take; what cannot be run costs nothing."""
    wanted = standing.wanted
    return float(wanted.gpu_minutes) if wanted.job is not None or standing.run is not None else 0.0


def card_notices(target_state: TargetState, steps: Actions) -> tuple[str, ...]:
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
    rows += [_PLANNED_AGAIN] if plan is not None and plan.passing else []
    rows += target_state.broken[:5]
    # What keeps jobs that have to run from taking over the verdict of another pull request, if the policy does.
    jobs = [item.wanted.job for item in found if item.state in _TO_RUN and item.wanted.reuse_key]
    if target_state.policy.gate.reuse_h and any(job is not None and not is_image_pinned(job) for job in jobs):
        rows.append(NOT_PINNED)
    return tuple(rows)


def _failures(read: Sequence[_Read], status: JobStatus) -> tuple[_Judged, ...]:
    """The first required jobs that ended badly, and whose verdict tells why: fails before the rest."""
    # While others run, one of them may enter the changed code.
    badly = _ENDED_BADLY if status in _ENDED_BADLY else _ENDED_BADLY[:2]
    ended = [row for row in read if row[0].wanted.required and row[0].state in badly and row[0].run is not None]
    first = sorted(ended, key=lambda row: _ENDED_BADLY.index(row[0].state))[:_MOST_FAILURES]
    return tuple((item, verdict) for item, verdict in first if verdict is not None and failure_rows(verdict))


def _tables(
    target_state: TargetState, standings: Sequence[JobStanding], shown: Collection[str], *, fold: bool
) -> Iterator[TextBlock]:
    """The jobs of verl, then those of each other consumer that the policy names, with what the gate makes of them."""
    rules = target_state.policy.consumers
    yield _table([item for item in standings if item.wanted.consumer not in rules], shown, fold=fold)
    for name, rule in rules.items():
        own = [item for item in standings if item.wanted.consumer == name]
        if own:
            decides = "required" if rule.level == "require" else "shown, the gate does not ask for it"
            yield _table(own, shown, fold=fold, title=f"{CONSUMERS[name].title} ({decides})")


def _table(standings: Sequence[JobStanding], shown: Collection[str], *, fold: bool, title: str = "") -> TextBlock:
    """The jobs; those whose failure is told above have no reason of their own."""
    if not standings:
        return TextBlock("", (), "", 100)
    rows = []
    for standing in standings:
        wanted, run = standing.wanted, standing.run
        detail = standing.reason
        if run is not None:
            said = run.sentence or run.reason
            said = f"{origin_text(run)}: {said}" if run.carried_from else said
            others = (standing.override, standing.hold, standing.attempt, standing.quarantine, standing.disagrees_with)
            # Whether the words of the last run say all about the job's status.
            alone = all(item is None for item in others)
            alone = alone and standing.state not in (JobStatus.ACCEPTED, JobStatus.WAITING)
            detail, before = said if alone and said else detail, attempts_line(standing)
            detail = "see above" if wanted.id in shown and alone else detail
            detail = f"{detail}; {before}" if before else detail
        again = f" (attempt {run.attempt})" if run is not None and run.attempt > 1 else ""
        planned, minutes = _planned(standing), used_minutes(standing)
        used = f"{minutes:.1f}" if minutes else "0" if planned else ""
        cells = (
            markdown(wanted.id, 80) + (f" {code(wanted.options, 200)}" if wanted.options else "") + again,
            f"{standing.state.icon} {standing.state.word}",
            "yes" if wanted.required else "no" if wanted.shown else "extra",
            f"{used} of about {planned:.0f}" if planned else used,
            verdict_sentence(detail, 400) + (links(run.url) if run is not None else ""),
        )
        rows.append(f"| {' | '.join(cells)} |")
    heading = "| job | result | required | GPU minutes | reason |\n|---|---|---|---|---|"
    if fold:
        return folded(f"{title or 'Jobs'} ({len(rows)})", (heading, *rows), 9_000)
    return TextBlock(f"**{title}**\n\n{heading}" if title else heading, tuple(rows), "", 9_000)


def _folds(target_state: TargetState, steps: Actions, read: Sequence[_Read], *, told: bool) -> Iterator[TextBlock]:
    """The folded blocks. Their shares, with those of head and table, add up to at most the size of the card.

    Beside a failure that is told they are short: the check of each job has all of it.
    """
    plan, most = target_state.plan, _MOST_TOLD if told else _ANY
    if steps.rehearsal is not None:
        yield from rehearsal_block(steps.rehearsal, _REHEARSAL_SHARE // 3 if told else _REHEARSAL_SHARE)
    judged: list[_Judged] = [(item, verdict) for item, verdict in read if verdict is not None]
    share = max(700, 6_000 // max(1, len(judged)))
    evidence = []
    for standing, verdict in judged:
        title = summary_html(standing.wanted.id, 80)
        table, drawn = deliverable_rows(verdict), tuple(curves(verdict))
        if table and not told:
            yield folded(f"Deliverables of {title}", (*requested_rows(verdict), "", *table), share)
        if drawn:
            yield folded_text(f"Curves of {title}", drawn, min(share, 2_500))
        evidence.append(f"{standing.wanted.id}: {standing.state.word}")
        evidence += [f"  {one_line(line, _MOST_ROW if told else 300)}" for line in verdict.repositories[: most + 1]]
        evidence += [f"  {line}" for line in (*key_lines(verdict)[-most:], *verdict.calls[-most:])]
    waiting = ((item.wanted.id, item.wanted.job) for item, verdict in read if verdict is None)
    requested = [f"{job_id}: {requested_work(job)}" for job_id, job in waiting if job is not None]
    yield from _bullets("Requested, without a verdict yet", requested, 1_500)
    every = (item for item in steps.standings if item.run is not None)
    attempts = [f"{standing.wanted.id}, {attempt}" for standing in every for attempt in attempt_rows(standing)]
    yield from _bullets("Attempts", attempts, 1_200)
    functions = tuple(one_line(line, 400) for line in execution_rows(joined_execution(steps.standings)))
    if functions:
        yield folded_text(f"Changed functions ({len(functions)})", functions[:most], 2_500)
    # What the jobs leave open, each once and with its jobs, but for what a job that passed shows.
    named = [(standing.wanted.id, verdict) for standing, verdict in judged]
    left = merged_limitations(named, named=len(steps.standings) > 1)
    yield from _bullets("Limitations", (*_own_word(target_state, steps), *left), 5_000, most)
    followups = dict.fromkeys(text for _, verdict in judged for text in verdict.followups)
    yield from _bullets("Follow-ups", tuple(followups), 3_000, most)
    if evidence:
        yield folded_text("Evidence", tuple(evidence), 4_000)
    if plan is not None and not told:
        yield from reason_blocks(plan, 6_000)
    elif plan is not None:
        yield folded("Plan", (*(f"- {_why(level, plan)}" for level in plan.levels), _ALL_REASONS), 2_000)
    heads = earlier_heads(target_state)
    if heads:
        rows = tuple(
            f"- `{head[:12]}` {status.icon} {status.word}: {sentence(said, 300)}" for head, status, said in heads[:most]
        )
        yield folded(f"Earlier heads ({len(heads)})", rows, 2_000)
    commits = f"--base {plan.base} --head {plan.head}" if plan is not None else ""
    trainers = dict.fromkeys(job.consumer for job in plan.jobs) if plan is not None else {}
    commands = tuple(
        f"verl-e2e check --repo Megatron-Bridge --verl {name} {commits} --out result"
        if name == VERL.name
        else f"verl-e2e check --consumer {name} --repo Megatron-Bridge --verl {name} {commits} --out result-{name}"
        for name in trainers
    )
    if commands:
        yield folded_text("Reproduce", commands, 2_000)


def _own_word(target_state: TargetState, steps: Actions) -> tuple[str, ...]:
    """What to mind of a head that a person had to let run, and that did."""
    approvals = (entry for entry in target_state.entries if isinstance(entry, Approval))
    let = isinstance(target_state.target, Pull) and needs_leave(target_state.target, approvals)
    return (OWN_WORD,) if let and any(item.run is not None and item.run.verdict for item in steps.standings) else ()


def _bullets(title: str, rows: Sequence[str], share: int, most: int = _ANY) -> Iterator[TextBlock]:
    if rows:
        more = [f"- {len(rows) - most} more are in the check of the job."] if len(rows) > most else []
        shown = (*(f"- {verdict_sentence(row, 500)}" for row in rows[:most]), *more)
        yield folded(f"{title} ({len(rows)})", shown, share)


def earlier_heads(target_state: TargetState) -> tuple[tuple[str, JobStatus, str], ...]:
    """The earlier heads, the latest first, each with the worst result of its last runs and what that run says."""
    of_head: dict[str, dict[str, Run]] = {}
    # What is only shown says nothing of a head.
    told = (run for run in target_state.earlier if not run.shown)
    for run in sorted(told, key=lambda item: (item.created, item.attempt)):
        last = of_head.setdefault(run.head_sha, {})
        last[run.job_id] = run
    rows = []
    for head, last in list(reversed(of_head.items()))[:_SHOWN_HISTORY]:
        by_status = {status_of_run(run): run for run in last.values()}
        worst = next(status for status in _WORST if status in by_status)
        run = by_status[worst]
        rows.append((head, worst, f"{run.job_id}: {run.sentence or run.reason or run.state}"))
    return tuple(rows)


SHOWN_PLACES = 4
SHOWN_STEPS = 8


def reason_blocks(plan: Plan, share: int) -> tuple[TextBlock, ...]:
    """A folded block for each required level and one for the rest; together they take about `share` characters."""
    each = max(600, share // (len(plan.levels) + 1))
    asked = ((at, tuple(_required_rows(at, plan))) for at in plan.levels)
    blocks = [folded_text(f"Why {_why(at, plan)}", rows, each) for at, rows in asked if rows]
    rest = tuple(_other_rows(plan))
    title = "Levels that are not required, and why" if plan.levels else "Why no level is required"
    return (*blocks, *([folded_text(title, rest, each)] if rest else []))


def _why(level: Level, plan: Plan) -> str:
    """How much of the change requires a level, and how many jobs it has."""
    paths = {reason.path for reason in plan.reasons if reason.level is level and reason.path is not None}
    verb = "requires" if len(paths) == 1 else "require"
    asked = f"{count_of(len(paths), 'changed path')} {verb} it" if paths else "requested"
    jobs = count_of(sum(job.variant.level is level and job.consumer == VERL.name for job in plan.jobs), "job")
    return f"level {int(level)}, {level.title}: {asked}, {jobs}"


def _required_rows(level: Level, plan: Plan) -> Iterator[str]:
    groups: dict[str, list[Reason]] = {}
    for reason in plan.reasons:
        if reason.level is level:
            groups.setdefault(reason.reason, []).append(reason)
    for text, reasons in groups.items():
        yield text
        placed = [reason for reason in reasons if reason.path is not None]
        for reason in placed[:SHOWN_PLACES]:
            yield f"  {reason.path}" + (f": {reason.symbol}" if reason.symbol else "")
            # The chain from verl, outermost first; a long one is shortened in the middle, because its ends say most.
            via, left, head = reason.via, len(reason.via) - SHOWN_STEPS + 1, SHOWN_STEPS // 2
            if left > 1:
                via = (*via[:head], f"... {count_of(left, 'step')} ...", *via[head + left :])
            yield from (f"    {step}" for step in via)
        if len(placed) > SHOWN_PLACES:
            yield f"  and {count_of(len(placed) - SHOWN_PLACES, 'more place')}"
    for job in plan.jobs:
        rows = purpose_rows(job.purposes) if job.variant.level is level else ()
        yield from (f"job {job.id}: {row}" for row in rows)


def _other_rows(plan: Plan) -> Iterator[str]:
    """Why other levels are not required, what the planned jobs do not show or are not known to, and the rest."""
    if len({item.reason for item in plan.not_required}) == 1 and not plan.levels:
        yield plan.not_required[0].reason
    else:
        yield from (f"Level {int(item.level)}, {item.level.title}: {item.reason}" for item in plan.not_required)
    yield from (*plan.switched_off, *plan.incomplete, *plan.notes)
    for open_place in plan.not_covered[:SHOWN_PLACES]:
        yield from (f"No job is planned {row}: {open_place.reason}" for row in purpose_rows([open_place.purpose]))
    if len(plan.not_covered) > SHOWN_PLACES:
        yield f"No job is planned for {count_of(len(plan.not_covered) - SHOWN_PLACES, 'more place')}"
    for place in plan.not_entered[:SHOWN_PLACES]:
        yield f"It is not known whether a planned job enters {place}: {place.problem}"
    if len(plan.not_entered) > SHOWN_PLACES:
        yield f"Nor is it known of {count_of(len(plan.not_entered) - SHOWN_PLACES, 'more place')}"
    for unshown in plan.unshown:
        more = f" and {len(unshown.places) - 1} more" if len(unshown.places) > 1 else ""
        yield f"Level {int(unshown.level)} {unshown.reason}, so it cannot show {unshown.places[0]}{more}"
    if not plan.levels and plan.looked_at is not None:
        yield plan.looked_at.sentence
    yield from (f"Bridge test chosen: {test.test}: {test.reason}" for test in plan.tests.tests)
    for item in plan.exempted if plan.levels else ():
        yield f"Set aside: {count_of(item.count, 'path')} in {item.name} ({item.reason})"

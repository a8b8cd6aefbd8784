"""The plan of a change as people read it: levels, folded reasons, jobs and their estimated cost, and what must run.

With it what verl makes of the settings of jobs, as text and as JSON.
"""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.wording import purpose_rows
from verl_e2e.core.model.change import on_one_line
from verl_e2e.core.model.execution import ChangedFunction, Purpose, Side
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import SettingsCheck
from verl_e2e.core.plan.contract import ContractFinding, Kind
from verl_e2e.core.plan.measured_jobs import Place
from verl_e2e.core.plan.plan import JobOutline, Plan
from verl_e2e.core.text.escape import count_of

SHOWN_PATHS = 3

# What a command says before it is silent for a while.
READING = "Reading what {} uses of Megatron-Bridge ..."
PLANNING = "Planning: reading what verl can reach; about a minute the first time, seconds after that ..."
MAKING_DEMO = "Planning a change of a small repository with the layout of Megatron-Bridge, made just now ...\n"


def render_plan_text(plan: Plan) -> str:
    """The plan in plain text, one block for each level; at most a few paths for each reason at any size."""
    unshown = [f"  level {int(item.level)} {item.reason}: {_first(item.places)}" for item in plan.unshown]
    not_required = [
        f"Level {int(item.level)}, {item.level.title}: not required, {item.reason}" for item in plan.not_required
    ]
    reasons = {item.reason for item in plan.not_required}
    if not plan.levels and len(reasons) == 1:
        not_required = [f"Not required, every level: {reasons.pop()}"]
    blocks = (
        _head(plan),
        *(_required(level, plan) for level in plan.levels),
        ("Beside verl:", *_jobs_of(others)) if (others := _others(plan)) else (),
        _not_covered(plan),
        _not_entered(plan),
        # What the models of the planned jobs leave out.
        ("What the planned jobs cannot show of the change:", *unshown) if unshown else (),
        _changed_code(plan),
        _tests(plan),
        not_required,
        _foot(plan),
    )
    return "\n\n".join(text for block in blocks if (text := "\n".join(block))) + "\n"


# A terminal of usual size shows the short plan without scrolling.
MOST_ROWS, MOST_COLUMNS = 25, 100
_SHORT_HEAD = ("level", "GPUs", "min", "jobs", "because")
_MOST_JOBS, _MOST_PLACE = 44, 74


def render_short_plan(plan: Plan, contract: Sequence[str] = (), trainer: str = VERL.title) -> str:
    """The plan in at most 25 rows of 100 columns: the cost, a row for each level, what is missing, what to ask next.

    `contract` are the uses of the trainer that the head no longer supports, which decide before any level.
    """
    rows = [
        f"Plan for {plan.base[:12]}..{plan.head[:12]}: {_levels(plan)}",
        *([_cost(plan)] if plan.levels or plan.jobs else []),
    ]
    rows += _some("Incomplete: ", plan.incomplete, 3)
    rows += _some(f"{trainer} breaks on this: ", contract, 4)
    rows += _some("Note: ", plan.notes, 1)
    if plan.levels:
        table = [_SHORT_HEAD, *(_short_row(level, plan) for level in plan.levels)]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        rows += ["", *("  ".join([*map(str.ljust, row, widths), row[4]]).rstrip() for row in table), ""]
    else:
        rows += _some("Because: ", sorted({item.reason for item in plan.not_required}), 6)
        rows += _some("", [plan.looked_at.sentence] if plan.looked_at is not None else [], 3)
    rows += _some("Beside verl: ", [f"{job.id}: {job.reason}" for job in _others(plan)], 1)
    rows += _some("Cannot pass as planned: ", [f"{job.id}: {job.blocked}" for job in plan.blocked_jobs], 1)
    rows += _some("Not covered: ", [f"{job.id}: {job.uncoverable}" for job in plan.uncoverable_jobs], 1)
    places = [next(iter(purpose_rows((item.purpose,))), "").removeprefix("for ") for item in plan.not_covered]
    rows += _some("No job for: ", [_tail(place) for place in places], 1)
    rows += _some("Not known to be entered: ", [_tail(str(place)) for place in plan.not_entered], 1)
    rows += _some("Not shown by the jobs: ", [f"level {int(item.level)} {item.reason}" for item in plan.unshown], 1)
    first = f"--why {int(plan.levels[-1])}, " if plan.levels else ""
    rows.append(f"More: {first}--why PATH, --full, --json")
    return "".join(f"{row if len(row) <= MOST_COLUMNS else row[: MOST_COLUMNS - 3].rstrip() + '...'}\n" for row in rows)


def render_why(plan: Plan, about: str) -> str:
    """Why the plan asks for a level, by its number, or what it asks for because of a path; empty where neither is."""
    level = next((level for level in Level if about == str(int(level))), None)
    if level in plan.levels:
        return "\n".join(_required(level, plan)) + "\n"
    if level is not None:
        reasons = [item.reason for item in plan.not_required if item.level is level]
        return f"Level {int(level)}, {level.title}: not required, {'; '.join(reasons)}\n"
    found = [item for item in plan.reasons if item.path == about or f"{item.path}:{item.symbol}" == about]
    rows = []
    for item in found:
        rows.append(f"Level {int(item.level)}: {item.reason}{f' ({item.symbol})' if item.symbol else ''}")
        rows += [f"  {on_one_line(step)}" for step in item.via]
    return "\n".join(dict.fromkeys(rows)) + "\n" * bool(rows)


def _levels(plan: Plan) -> str:
    """The levels that are required, in words."""
    return f"level {', '.join(str(int(level)) for level in plan.levels)}" if plan.levels else "no level is required"


def _cost(plan: Plan) -> str:
    """What the plan takes, and from what that is known."""
    runnable = [job for job in plan.jobs if not job.obstacles]
    known_from = " and ".join(sorted({str(job.cost_basis) for job in runnable})) or "nothing is run"
    most = max((job.gpu_count for job in runnable), default=0)
    cost = f"about {plan.gpu_minutes} GPU minutes ({known_from}), {count_of(most, 'GPU')} at most"
    return f"{count_of(len(plan.jobs), 'job')}, {cost}"


def _short_row(level: Level, plan: Plan) -> tuple[str, ...]:
    """A level: its number, what its jobs take, their names, and the reason that the most places give."""
    jobs = [job for job in plan.jobs if job.variant.level is level]
    counted = Counter(reason.reason for reason in plan.reasons if reason.level is level)
    reason = counted.most_common(1)[0][0] if counted else next((job.reason for job in jobs if job.reason), "")
    more = f" (and {len(counted) - 1} more)" if len(counted) > 1 else ""
    shown: list[str] = []
    for job in jobs:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(job.id) > _MOST_JOBS:
            break
        shown.append(job.id)
    names = ", ".join(shown) + (f" +{len(jobs) - len(shown)}" if len(jobs) > len(shown) else "")
    minutes = sum(job.gpu_minutes for job in jobs if not job.obstacles)
    return str(int(level)), str(max((job.gpu_count for job in jobs), default=0)), str(minutes), names, reason + more


def _some(title: str, found: Sequence[str], most: int) -> list[str]:
    """The first of some sentences in so many rows at most, and how many more sentences there are."""
    if not found:
        return []
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    text, width = f"{title}{on_one_line(found[0])}", MOST_COLUMNS - len(more)
    rows = textwrap.wrap(text, width, subsequent_indent=" " * len(title), max_lines=most, placeholder=" ...")
    if rows == [f"{title}..."]:
        # A first word that does not fit, as that of a place, is cut and not left out.
        rows = [f"{text[: width - 4]} ..."]
    return [*rows[:-1], rows[-1] + more]


def _tail(place: str) -> str:
    """A place by its end, where a reader finds the function."""
    return place if len(place) <= _MOST_PLACE else f"...{place[3 - _MOST_PLACE :]}"


def _head(plan: Plan) -> Iterator[str]:
    yield f"Plan for {plan.base[:12]}..{plan.head[:12]}: {_levels(plan)}"
    yield from (f"The plan is incomplete: {on_one_line(sentence)}" for sentence in plan.incomplete)
    yield from plan.notes
    if not (plan.levels or plan.jobs):
        return
    yield _cost(plan)
    if plan.minutes_to_answer:
        minutes = count_of(plan.minutes_to_answer, "minute")
        yield f"Time to an answer: about {minutes} where no job waits for a machine"
    if plan.blocked_jobs:
        stopped = sorted({int(job.variant.level) for job in plan.blocked_jobs})
        yield (
            f"{count_of(len(plan.blocked_jobs), 'job')} cannot pass as planned and will not run, so the gate stays "
            f"closed until the policy has what is missing or level {' and '.join(map(str, stopped))} is overridden: "
            f"{', '.join(job.id for job in plan.blocked_jobs)}"
        )
    yield from (f"Not covered by {job.id}: {on_one_line(job.uncoverable)}" for job in plan.uncoverable_jobs)


def _required(level: Level, plan: Plan) -> Iterator[str]:
    """The reasons with their paths, each with the start of the chain from verl where the symbol is known; the jobs."""
    yield f"Level {int(level)}, {level.title}: required"
    groups: dict[str, list[str]] = {}
    for reason in (reason for reason in plan.reasons if reason.level is level):
        places = groups.setdefault(reason.reason, [])
        if reason.path is not None:
            entry = f", from {on_one_line(reason.via[0])}" if len(reason.via) > 1 else ""
            symbol = "" if reason.symbol is None else f": {on_one_line(reason.symbol)}{entry}"
            places.append(f"{on_one_line(reason.path)}{symbol}")
    for text, paths in groups.items():
        yield f"  {text}"
        yield from (f"    {path}" for path in paths[:SHOWN_PATHS])
        if len(paths) > SHOWN_PATHS:
            yield f"    and {count_of(len(paths) - SHOWN_PATHS, 'more path')}"
    yield from _jobs_of([job for job in plan.jobs if job.variant.level is level])


def _others(plan: Plan) -> list[JobOutline]:
    """The jobs of other trainers at levels that verl does not need."""
    return [job for job in plan.jobs if job.consumer != VERL.name and job.variant.level not in plan.levels]


def _jobs_of(jobs: Iterable[JobOutline]) -> Iterator[str]:
    for job in jobs:
        yield f"  {_job_line(job)}"
        rows = (*job.notes, *([job.reason] if job.reason else []), *purpose_rows(job.purposes))
        yield from (f"    {on_one_line(row)}" for row in rows)


def _job_line(job: JobOutline) -> str:
    """What a job takes, the features that it switches on and by which script, and those that no run of verl shows."""
    named = job.checkpoint.model_id if job.checkpoint else ""
    if job.obstacles and job.uncoverable:
        return f"job {job.id}: not covered: {job.blocked}"
    if job.obstacles:
        model = f" on {named}" if job.checkpoint else ""
        return f"job {job.id}{model}: cannot pass as planned, so it is not run: {job.blocked}"
    fitted = job.fitted().reason
    gpus = count_of(job.gpu_count, "GPU") + (f" ({fitted})" if fitted else "")
    parts = [f"job {job.id}: {gpus}", f"about {job.gpu_minutes} GPU minutes ({job.cost_basis})", named]
    parts += [f"after {', '.join(job.requires)}"] * bool(job.requires)
    parts += [f"by {job.script}"] * (job.script != CONSUMERS[job.consumer].script)
    parts += [f"shows {', '.join(feature.name for feature in job.features)}"] * bool(job.features)
    read = [feature for feature in job.not_shown if feature.is_read_of(job.family)]
    parts += [f"no script of verl shows {', '.join(feature.name for feature in read)}"] * bool(read)
    parts += [f"without {item.name} ({item.unread})" for item in job.not_shown if item not in read]
    parts += [f"its checkpoint has no {' and no '.join(job.absent)}"] * bool(job.absent)
    return ", ".join(parts)


def _not_covered(plan: Plan) -> Iterator[str]:
    """The places of the change that no job is planned for, by what enters them."""
    by_reason: dict[str, list[Purpose]] = {}
    for item in plan.not_covered:
        by_reason.setdefault(item.reason, []).append(item.purpose)
    if by_reason:
        yield f"No job is planned for {count_of(len(plan.not_covered), 'place')} of the change:"
    for reason, purposes in by_reason.items():
        yield f"  {on_one_line(reason)}"
        yield from (f"    {on_one_line(row)}" for row in purpose_rows(purposes))


def _not_entered(plan: Plan) -> Iterator[str]:
    """The places that nothing is known to enter, by the reason."""
    by_reason: dict[str, list[Place]] = {}
    for place in plan.not_entered:
        by_reason.setdefault(place.problem, []).append(place)
    for reason, places in by_reason.items():
        count = count_of(len(places), "place")
        yield f"It is not known whether a planned job enters {count} of the change, for {reason}:"
        yield from (f"  {on_one_line(str(place))}" for place in places[:SHOWN_PATHS])
        if len(places) > SHOWN_PATHS:
            yield f"  and {len(places) - SHOWN_PATHS} more"


def _changed_code(plan: Plan) -> Iterator[str]:
    """What of the change runs must execute; nothing where no function of it is known and none is unread."""
    code = plan.changed
    if not code:
        return
    if code.required:
        yield f"Changed code that at least one run must execute: {_amount(code.required)}"
    required = ((job.id, job.changed.required) for job in plan.jobs)
    yield from (f"  looked for in {job_id}: {_amount(functions)}" for job_id, functions in required if functions)
    removed = [function for function in code.functions if function.side is Side.MERGE_BASE and function.reached]
    if removed:
        yield f"Removed code, looked for in runs on the merge base: {_amount(removed)}"
    unreached = [function for function in code.functions if not function.reached]
    if unreached:
        places = [f"{item.path}:{item.symbol}" if item.symbol else item.path for item in unreached]
        yield f"Changed code that verl does not reach by its sources: {_first(places)}"
    for path, reason in list(code.unread.items())[:SHOWN_PATHS]:
        yield f"Which functions differ is not known for {on_one_line(path)}: {on_one_line(reason)}"
    if len(code.unread) > SHOWN_PATHS:
        yield f"  nor for {count_of(len(code.unread) - SHOWN_PATHS, 'more file')}"
    if code.left_out:
        yield f"Changed functions and files that are not listed: {code.left_out}"


def _amount(functions: Collection[ChangedFunction]) -> str:
    """How many functions and lines."""
    named, lines = sum(bool(item.symbol) for item in functions), sum(len(item.lines) for item in functions)
    return f"{count_of(named, 'function')}, {count_of(lines, 'line')}"


def _first(places: Sequence[str]) -> str:
    """The first of some places, and how many more there are."""
    more = f" and {len(places) - SHOWN_PATHS} more" if len(places) > SHOWN_PATHS else ""
    return ", ".join(map(on_one_line, places[:SHOWN_PATHS])) + more


def _tests(plan: Plan) -> Iterator[str]:
    """The chosen Bridge tests with the reason for each; nothing where the plan chose none."""
    tests = plan.tests.tests
    if tests:
        yield f"Bridge tests chosen for this change, besides those of the policy, for {plan.tests.limit_s} s at most:"
    for item in tests:
        gpus = f", needs {count_of(item.gpu_count, 'GPU')}" if item.gpu_count else ""
        yield f"  {on_one_line(item.test)}: {on_one_line(item.reason)}{gpus}"
    yield from (f"  {on_one_line(sentence)}" for sentence in plan.tests.left_out)


def _foot(plan: Plan) -> Iterator[str]:
    if plan.families:
        yield f"Families: {', '.join(plan.families)}"
    if plan.features:
        yield f"Features: {', '.join(plan.features)}"
    yield from plan.switched_off
    if not plan.levels and plan.looked_at is not None:
        yield plan.looked_at.sentence
    for item in plan.exempted if plan.levels else ():
        yield f"Set aside: {count_of(item.count, 'path')} in {item.name} ({item.reason})"


def render_contract(findings: Iterable[ContractFinding]) -> str:
    """The contract findings as text, breaks first; empty when all of verl's uses still work."""
    breaks = [finding for finding in findings if finding.kind is not Kind.SKEW]
    if not breaks:
        return ""
    rows = [f"  {finding.kind}: {on_one_line(str(finding))}" for finding in breaks]
    return "\n".join(["verl's uses of Bridge that the head no longer supports:", *rows]) + "\n"


def settings_text(checks: Sequence[SettingsCheck]) -> str:
    """A line for each job, the reasons below it, and a summary with what was not checked."""
    lines = []
    for check in checks:
        lines.append(f"{'accepted' if check.accepted else 'refused '}  {check.job_id}")
        lines += [f"    {reason}" for reason in (check.refused, *check.mismatches) if reason]
    accepted = sum(check.accepted for check in checks)
    unchecked = dict.fromkeys(check.unchecked for check in checks if check.unchecked)
    return "\n".join([*lines, f"{accepted} of {len(checks)} accepted", *(f"not checked: {text}" for text in unchecked)])


def settings_json(checks: Sequence[SettingsCheck]) -> dict[str, object]:
    """The same as a document."""
    return {
        "schema": 1,
        "jobs": [
            {
                "id": check.job_id,
                "accepted": check.accepted,
                "refused": check.refused,
                "mismatches": list(check.mismatches),
                "unchecked": check.unchecked,
            }
            for check in checks
        ],
    }

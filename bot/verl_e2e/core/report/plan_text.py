"""The plan of a change as people read it: levels, folded reasons, jobs and their estimated cost, and what must run.

With it what verl makes of the settings of jobs, as text and as JSON.
"""

from collections.abc import Iterable, Iterator, Sequence

from verl_e2e.core.judge.wording import purpose_rows
from verl_e2e.core.model.change import on_one_line
from verl_e2e.core.model.execution import ChangedFunction, Purpose, Side
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import SettingsCheck
from verl_e2e.core.plan.contract import Finding, Kind
from verl_e2e.core.plan.measured_jobs import Place
from verl_e2e.core.plan.plan import JobOutline, Plan, Reason
from verl_e2e.core.plan.policy import Feature
from verl_e2e.core.text.escape import count_of

_SHOWN = 3


def changed_code_lines(plan: Plan) -> Iterator[str]:
    """A block of the plan text; nothing where no function of the change is known and none is unread."""
    code = plan.changed
    if not code:
        return
    if code.required:
        yield f"Changed code that at least one run must execute: {amount(code.required)}"
    yield from (
        f"  looked for in {job.id}: {amount(job.changed.required)}" for job in plan.jobs if job.changed.required
    )
    removed = [function for function in code.functions if function.side is Side.MERGE_BASE and function.reached]
    if removed:
        yield f"Removed code, looked for in runs on the merge base: {amount(removed)}"
    unreached = [function for function in code.functions if not function.reached]
    if unreached:
        more = f" and {len(unreached) - _SHOWN} more" if len(unreached) > _SHOWN else ""
        names = ", ".join(map(function_place, unreached[:_SHOWN]))
        yield f"Changed code that verl does not reach by its sources: {names}{more}"
    for path, reason in list(code.unread.items())[:_SHOWN]:
        yield f"Which functions differ is not known for {on_one_line(path)}: {on_one_line(reason)}"
    if len(code.unread) > _SHOWN:
        yield f"  nor for {count_of(len(code.unread) - _SHOWN, 'more file')}"
    if code.left_out:
        yield f"Changed functions and files that are not listed: {code.left_out}"


def amount(functions: Iterable[ChangedFunction]) -> str:
    """How many functions and lines."""
    listed = list(functions)
    named = [function for function in listed if function.symbol]
    lines = sum(len(function.lines) for function in listed)
    return f"{count_of(len(named), 'function')}, {count_of(lines, 'line')}"


def function_place(function: ChangedFunction) -> str:
    """A function by its path and name."""
    name = f"{function.path}:{function.symbol}" if function.symbol else function.path
    return on_one_line(name)


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


SHOWN_PATHS = 3

# What a command says before it is silent for a while.
READING_VERL = "Reading what verl uses of Megatron-Bridge ..."
PLANNING = "Planning: reading what verl can reach; about a minute the first time, seconds after that ..."
MAKING_DEMO = "Planning a change of a small repository with the layout of Megatron-Bridge, made just now ...\n"


def render_plan_text(plan: Plan) -> str:
    """The plan in plain text, one block for each level; at most a few paths for each reason at any size."""
    blocks = [_head(plan)]
    blocks.extend(_required(level, plan) for level in plan.levels)
    blocks.append("\n".join(_not_covered(plan)))
    blocks.append("\n".join(_not_entered(plan)))
    blocks.append("\n".join(_unshown(plan)))
    blocks.append("\n".join(changed_code_lines(plan)))
    blocks.append("\n".join(_tests(plan)))
    if plan.not_required:
        blocks.append("\n".join(_not_required_lines(plan)))
    blocks.append("\n".join(_foot(plan)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _tests(plan: Plan) -> Iterable[str]:
    """The chosen Bridge tests with the reason for each; nothing where the plan chose none."""
    tests = plan.tests.tests
    if tests:
        yield f"Bridge tests chosen for this change, besides those of the policy, for {plan.tests.limit_s} s at most:"
    for item in tests:
        gpus = f", needs {count_of(item.gpu_count, 'GPU')}" if item.gpu_count else ""
        yield f"  {on_one_line(item.test)}: {on_one_line(item.reason)}{gpus}"
    yield from (f"  {on_one_line(sentence)}" for sentence in plan.tests.left_out)


def _head(plan: Plan) -> str:
    span = f"{plan.base[:12]}..{plan.head[:12]}"
    basis = [*(f"The plan is incomplete: {on_one_line(sentence)}" for sentence in plan.incomplete), *plan.notes]
    if not plan.levels:
        return "\n".join([f"Plan for {span}: no level is required", *basis])
    levels = ", ".join(str(int(level)) for level in plan.levels)
    most = max((job.gpu_count for job in plan.jobs if not job.obstacles), default=0)
    basis_of_cost = sorted({str(job.cost_basis) for job in plan.jobs if not job.obstacles})
    known_from = " and ".join(basis_of_cost) or "nothing is run"
    cost = f"about {plan.gpu_minutes} GPU minutes ({known_from}), {count_of(most, 'GPU')} at most"
    lines = [f"Plan for {span}: level {levels}", *basis, f"{count_of(len(plan.jobs), 'job')}, {cost}"]
    if plan.minutes_to_answer:
        minutes = count_of(plan.minutes_to_answer, "minute")
        lines.append(f"Time to an answer: about {minutes} where no job waits for a machine")
    if plan.blocked_jobs:
        stopped = sorted({int(job.variant.level) for job in plan.blocked_jobs})
        lines.append(
            f"{count_of(len(plan.blocked_jobs), 'job')} cannot pass as planned and will not run, so the gate stays "
            f"closed until the policy has what is missing or level {' and '.join(map(str, stopped))} is overridden: "
            f"{', '.join(job.id for job in plan.blocked_jobs)}"
        )
    lines.extend(f"Not covered by {job.id}: {on_one_line(job.uncoverable)}" for job in plan.uncoverable_jobs)
    return "\n".join(lines)


def _required(level: Level, plan: Plan) -> str:
    lines = [f"Level {int(level)}, {level.title}: required"]
    reasons = [reason for reason in plan.reasons if reason.level is level]
    lines.extend(f"  {line}" for line in _folded(reasons))
    for job in plan.jobs:
        if job.variant.level is level:
            lines.append(f"  {_job_line(job)}")
            lines.extend(f"    {on_one_line(note)}" for note in job.notes)
            lines.extend([f"    {on_one_line(job.reason)}"] if job.reason else [])
            lines.extend(f"    {on_one_line(row)}" for row in purpose_rows(job.purposes))
    return "\n".join(lines)


def _not_covered(plan: Plan) -> Iterable[str]:
    """The places of the change that no job is planned for, by what enters them."""
    by_reason: dict[str, list[Purpose]] = {}
    for item in plan.not_covered:
        by_reason.setdefault(item.reason, []).append(item.purpose)
    if by_reason:
        yield f"No job is planned for {count_of(len(plan.not_covered), 'place')} of the change:"
    for reason, purposes in by_reason.items():
        yield f"  {on_one_line(reason)}"
        yield from (f"    {on_one_line(row)}" for row in purpose_rows(purposes))


def _not_entered(plan: Plan) -> Iterable[str]:
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


def _unshown(plan: Plan) -> Iterable[str]:
    """What the models of the planned jobs leave out, by level."""
    if plan.unshown:
        yield "What the planned jobs cannot show of the change:"
    for item in plan.unshown:
        more = f" and {len(item.places) - SHOWN_PATHS} more" if len(item.places) > SHOWN_PATHS else ""
        places = ", ".join(map(on_one_line, item.places[:SHOWN_PATHS]))
        yield f"  level {int(item.level)} {item.reason}: {places}{more}"


def _folded(reasons: Iterable[Reason]) -> Iterable[str]:
    groups: dict[str, list[str]] = {}
    for reason in reasons:
        groups.setdefault(reason.reason, []).extend(_places(reason))
    for text, paths in groups.items():
        yield text
        yield from (f"  {path}" for path in paths[:SHOWN_PATHS])
        if len(paths) > SHOWN_PATHS:
            yield f"  and {count_of(len(paths) - SHOWN_PATHS, 'more path')}"


def _places(reason: Reason) -> Iterable[str]:
    """The place of the reason, with the start of the chain from verl where the symbol is known."""
    if reason.path is None:
        return
    place = on_one_line(reason.path)
    if reason.symbol is None:
        yield place
        return
    entry = f", from {on_one_line(reason.via[0])}" if len(reason.via) > 1 else ""
    yield f"{place}: {on_one_line(reason.symbol)}{entry}"


def _job_line(job: JobOutline) -> str:
    after = f", after {', '.join(job.requires)}" if job.requires else ""
    if job.obstacles:
        model = f" on {job.checkpoint.model_id}" if job.checkpoint else ""
        if job.uncoverable:
            return f"job {job.id}: not covered: {job.blocked}"
        return f"job {job.id}{model}: cannot pass as planned, so it is not run: {job.blocked}"
    reason = job.fitted().reason
    gpus = count_of(job.gpu_count, "GPU") + (f" ({reason})" if reason else "")
    model = job.checkpoint.model_id if job.checkpoint else ""
    cost = f"about {job.gpu_minutes} GPU minutes ({job.cost_basis})"
    return f"job {job.id}: {gpus}, {cost}, {model}{after}{_features_text(job)}"


def _features_text(job: JobOutline) -> str:
    """The features that the job switches on, by which script, and those that no run of verl can show."""
    script = "" if job.script == WRAPPER_SCRIPT else f", by {job.script}"
    shown = f", shows {_names(job.features)}" if job.features else ""
    read = tuple(feature for feature in job.not_shown if feature.is_read_of(job.family))
    unscripted = f", no script of verl shows {_names(read)}" if read else ""
    without = "".join(f", without {item.name} ({item.unread})" for item in job.not_shown if item not in read)
    absent = f", its checkpoint has no {' and no '.join(job.absent)}" if job.absent else ""
    return script + shown + unscripted + without + absent


def _names(features: Iterable[Feature]) -> str:
    return ", ".join(feature.name for feature in features)


def _not_required_lines(plan: Plan) -> Iterable[str]:
    reasons = {item.reason for item in plan.not_required}
    if not plan.levels and len(reasons) == 1:
        yield f"Not required, every level: {reasons.pop()}"
        return
    for item in plan.not_required:
        yield f"Level {int(item.level)}, {item.level.title}: not required, {item.reason}"


def _foot(plan: Plan) -> Iterable[str]:
    if plan.families:
        yield f"Families: {', '.join(plan.families)}"
    if plan.features:
        yield f"Features: {', '.join(plan.features)}"
    yield from plan.switched_off
    if not plan.levels and plan.looked_at is not None:
        yield plan.looked_at.sentence
    if plan.levels:
        for item in plan.exempted:
            yield f"Set aside: {count_of(item.count, 'path')} in {item.name} ({item.reason})"


def render_contract(findings: Iterable[Finding]) -> str:
    """The contract findings as text, breaks first; empty when all of verl's uses still work."""
    breaks = [finding for finding in findings if finding.kind is not Kind.SKEW]
    if not breaks:
        return ""
    rows = [f"  {finding.kind}: {on_one_line(str(finding))}" for finding in breaks]
    return "\n".join(["verl's uses of Bridge that the head no longer supports:", *rows]) + "\n"

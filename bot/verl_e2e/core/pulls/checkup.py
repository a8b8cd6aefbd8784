"""What a check-up of an installation finds: each thing looked at, as a sentence with its fix."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.model.access import Absence
from verl_e2e.core.pulls.forge import BranchRules, DeliveryAttempt, Installation, Machine

_READ_WRITE = ("read", "write", "admin")


class Health(StrEnum):
    """How a thing was found. A note needs nothing, or time alone; an error needs a fix."""

    OK = "ok"
    NOTE = "note"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SetupFinding:
    """One thing that was looked at; `fix` says what to do, empty where nothing is to be done."""

    about: str
    state: Health
    sentence: str
    fix: str = ""


def ok_finding(about: str, sentence: str) -> SetupFinding:
    """Nothing to do."""
    return SetupFinding(about, Health.OK, sentence)


# Clocks that differ by no more agree for every purpose here.
FAR_OFF_S = 60.0


def error_finding(about: str, sentence: str, fix: str) -> SetupFinding:
    """Something to fix."""
    return SetupFinding(about, Health.ERROR, sentence, fix)


def note_finding(about: str, sentence: str, fix: str = "") -> SetupFinding:
    """Something to know."""
    return SetupFinding(about, Health.NOTE, sentence, fix)


_OF_ABSENCE: Mapping[Absence, tuple[Health, str]] = {
    Absence.OPEN: (Health.NOTE, "opens the gate for everyone, for the fork of a stranger as well"),
    Absence.APPROVE_STRANGERS: (
        Health.OK,
        "needs an approval but for heads of authors with a role in the repository",
    ),
    Absence.APPROVE: (Health.OK, "needs an approval wherever a run would need one"),
}


def of_absence(none: Absence) -> SetupFinding:
    """What the gate asks of a change that requires no run."""
    state, what = _OF_ABSENCE[none]
    fix = f"set gate.none: {Absence.APPROVE_STRANGERS} in the policy" if state is Health.NOTE else ""
    return SetupFinding("gate", state, f"a change that requires no run {what} (gate.none: {none})", fix)


def of_installation(
    found: Installation | None, repository: str, needed: Mapping[str, str], events: Collection[str]
) -> Iterator[SetupFinding]:
    """The App in the repository: whether it is installed, with the permissions and the events that it needs."""
    about = "app"
    if found is None:
        yield error_finding(about, f"our App is not installed in {repository}", "install it there, from the App's page")
        return
    if found.suspended:
        yield error_finding(about, "our App's installation is suspended", "let an owner of the account unsuspend it")
    missing = [
        f"{name}: {access}"
        for name, access in sorted(needed.items())
        if found.permissions.get(name) not in _READ_WRITE[_READ_WRITE.index(access) :]
    ]
    accept = "set them in the App's settings, then accept the new permissions where the App is installed"
    if missing:
        yield error_finding("permissions", f"our App does not have {', '.join(missing)}", accept)
    else:
        yield ok_finding("permissions", f"our App has the {len(needed)} permissions that it needs")
    untold = sorted(set(events) - found.events)
    if untold:
        more = "; merge_group needs the permission merge_queues: read" if "merge_group" in untold else ""
        yield error_finding(
            "events", f"our App does not receive {', '.join(untold)}", f"subscribe to them in its settings{more}"
        )
    else:
        yield ok_finding("events", f"our App receives the {len(events)} events that it acts on")


def of_clock(ahead_s: float) -> SetupFinding:
    """Whether the two clocks agree: tokens are made by GitHub's, and the times of runs by ours."""
    if abs(ahead_s) <= FAR_OFF_S:
        return ok_finding("clock", "this machine's clock agrees with GitHub's")
    where = "behind" if ahead_s > 0 else "ahead of"
    fix = "set it by NTP; tokens are made by GitHub's clock meanwhile, and the times of runs are wrong"
    return note_finding("clock", f"this machine's clock is {abs(ahead_s):.0f} s {where} GitHub's", fix)


def of_sources(refusals: Mapping[str, str]) -> Iterator[SetupFinding]:
    """Whether the repositories of jobs can be fetched, each address with why it cannot; the nodes were not asked."""
    for url, why in refusals.items():
        if why:
            fix = "the hosts of jobs fetch it as this machine was asked to: see that they can"
            yield error_finding("sources", f"this machine cannot fetch from {url}: {why}", fix)
        else:
            yield ok_finding("sources", f"this machine can fetch from {url}, as the hosts of jobs will")


def of_branch(rules: BranchRules, branch: str, gate: str, app_id: int, patience_s: int) -> Iterator[SetupFinding]:
    """The gate: required on the branch, by our App and no one else; and a merge queue that waits for it."""
    about, ours = "required check", [item for item in rules.required if item.name == gate]
    bind = f"require the check {gate!r} on {branch} with our App ({app_id}) as its source"
    wrong = [own for own in ours if own.app_id not in (None, app_id)]
    if not ours:
        yield error_finding(
            about, f"nothing requires {gate!r} on {branch}: a pull request may be merged without it", bind
        )
    elif wrong:
        yield error_finding(
            about, f"{wrong[0].source} wants {gate!r} on {branch} from App {wrong[0].app_id}, not ours", bind
        )
    elif all(own.app_id is None for own in ours):
        yield error_finding(
            about, f"{ours[0].source} takes {gate!r} on {branch} from anyone who may write a status", bind
        )
    else:
        yield ok_finding(about, f"{gate!r} is required on {branch}, from our App alone")
    minutes = rules.queue_minutes
    if minutes is not None and minutes * 60 > patience_s:
        yield ok_finding("merge queue", f"the merge queue waits {minutes} min, longer than the gate takes to answer")
    elif minutes is not None:
        message = f"the merge queue waits {minutes} min, and the gate may take {patience_s // 60} min to answer"
        fix = "let the queue wait longer, or set gate.merge_queue_deadline_s lower in the policy"
        yield error_finding("merge queue", message, fix)


def of_dispatch_branch(branch: str, default: str) -> SetupFinding:
    """Where jobs run: on a branch of their own, or on the one whose caches and environments others rely on."""
    about = "dispatch branch"
    if branch != default:
        return ok_finding(about, f"jobs run on {branch}, so their caches are not those of {default}")
    message = f"jobs run on {default}, so approved code may write the caches that other workflows of {default} restore"
    made = "`git switch --orphan verl-e2e`, add the workflow file alone, push"
    fix = f"make a branch that holds only the workflow ({made}), and name it in VERL_E2E_WORKFLOW_REF"
    return error_finding(about, message, fix)


def of_workflow(state: str, found: bytes | None, ours: bytes, path: str, branch: str) -> SetupFinding:
    """The workflow that runs jobs: there, switched on, and that of this version."""
    about, copy = "workflow", f"copy this version's {path} to {branch}"
    if found is None or not state:
        return error_finding(about, f"{branch} has no {path} that GitHub knows, so no job can start", copy)
    if state != "active":
        return error_finding(
            about, f"{path} is {state.replace('_', ' ')}", "enable it on the repository's Actions page"
        )
    # Two checkouts of one file may have other line ends.
    theirs, expected = ([line.rstrip() for line in text.strip().splitlines()] for text in (found, ours))
    if theirs != expected:
        return error_finding(about, f"{path} on {branch} differs from this version's", copy)
    return ok_finding(about, f"{path} on {branch} is active and this version's")


def of_runners(machines: Collection[Machine], runners: Mapping[int, tuple[str, ...]]) -> Iterator[SetupFinding]:
    """For each size that a job may ask for: a runner with its labels that would take it."""

    def size_for(gpu_count: int) -> int:
        return min((size for size in runners if size >= gpu_count), default=0)

    counts = {variant.gpu_count for variant in VARIANTS}
    for size in sorted({size_for(count) for count in counts} - {0}):
        labels = runners[size]
        about, words = f"runners for {size} GPU{'s' if size > 1 else ''}", ", ".join(labels)
        fit = [machine for machine in machines if _takes(machine, {size: labels})]
        online = [machine for machine in fit if machine.online]
        idle = [machine for machine in online if not machine.busy]
        if idle:
            yield ok_finding(about, f"{_names(idle)} with {words}: idle")
        elif online:
            yield note_finding(about, f"every runner with {words} is busy: {_names(online)}", "a job waits for it")
        elif fit:
            yield error_finding(about, f"no runner with {words} is online: {_names(fit)}", "start one of them")
        else:
            message = f"no runner has the labels {words}, and a job would wait for one until it is given up"
            seen = "register one with these labels (an organisation's are seen with the permission)"
            yield error_finding(about, message, f"{seen}, or fix VERL_E2E_RUNNERS")
    too_large = max((count for count in counts if not size_for(count)), default=0)
    if too_large:
        message = f"no labels are named for a runner with {too_large} GPUs"
        yield error_finding("runners", message, "name them in VERL_E2E_RUNNERS")


def _names(machines: Iterable[Machine]) -> str:
    return ", ".join(sorted(machine.name for machine in machines))


def failed_deliveries(attempts: Iterable[DeliveryAttempt]) -> tuple[DeliveryAttempt, ...]:
    """The newest attempt of each delivery that never succeeded, newest first."""
    newest: dict[str, DeliveryAttempt] = {}
    taken: set[str] = set()
    for attempt in sorted(attempts, key=lambda attempt: (attempt.at, attempt.id), reverse=True):
        newest.setdefault(attempt.guid, attempt)
        if not attempt.failed:
            taken.add(attempt.guid)
    return tuple(delivery for guid, delivery in newest.items() if guid not in taken)


def of_deliveries(failed: Collection[DeliveryAttempt], days: int, *, again: bool) -> SetupFinding:
    """Webhooks that never reached us; `again` says that they were just asked for once more."""
    about = "deliveries"
    if not failed:
        return ok_finding(about, f"every webhook of the last {days} days was taken")
    newest = next(iter(failed))
    what = f"{newest.event}{f'.{newest.action}' if newest.action else ''} at {newest.at:%Y-%m-%d %H:%M} UTC"
    message = f"{len(failed)} webhook(s) of the last {days} days were not taken, last {what} (status {newest.code})"
    if again:
        return note_finding(about, f"{message}; they were asked for again", "run doctor again in a minute")
    return error_finding(about, message, "see that the service can be reached, then run doctor with --redeliver")


def of_hook(configured: str, expected: str) -> SetupFinding:
    """Whether the App's webhooks go to the address that our settings name."""
    if configured.rstrip("/") == expected:
        return ok_finding("webhook", f"webhooks go to {expected}")
    message = f"the App's webhooks go to {configured or 'nowhere'}, and we are at {expected}"
    return error_finding("webhook", message, "set the webhook URL in the App's settings, or fix VERL_E2E_PUBLIC_URL")


RunnerLabels = Mapping[int, tuple[str, ...]]
_FORKS = "runners for forks"
_SETTING = "VERL_E2E_FORK_RUNNERS"
_EPHEMERAL = "register it with --ephemeral or --jitconfig, so that it serves one job and is gone"


def of_fork_pool(machines: Collection[Machine], runners: RunnerLabels, forks: RunnerLabels) -> Iterator[SetupFinding]:
    """The pool of forks: there, of runners that serve one job, and apart from the other runners."""
    if not forks:
        message = "no runners are named for the jobs of forks, so these share the runners of everyone's jobs"
        yield error_finding(
            _FORKS, message, f"give forks ephemeral runners with labels of their own, and name them in {_SETTING}"
        )
        return
    pool = [machine for machine in machines if _takes(machine, forks)]
    both = [machine for machine in machines if _takes(machine, forks) and _takes(machine, runners)]
    kept = [machine for machine in pool if machine.ephemeral is False]
    unknown = [machine for machine in pool if machine.ephemeral is None]
    if both:
        message = f"{_names(both)} would take jobs of forks and other jobs"
        yield error_finding(
            _FORKS, message, f"give it the labels of one pool alone; {_SETTING} and VERL_E2E_RUNNERS name them"
        )
    if kept:
        message = f"{_names(kept)} takes jobs of forks and stays: what one leaves behind reaches the next"
        yield error_finding(_FORKS, message, _EPHEMERAL)
    if unknown:
        yield note_finding(_FORKS, f"GitHub does not tell whether {_names(unknown)} serves one job only", _EPHEMERAL)
    if not (both or kept or unknown):
        # Just-in-time runners are registered when a job waits, so an empty pool is nothing to fix.
        there = f"{_names(pool)}: one job each" if pool else "none is registered now; a job waits until one is"
        yield ok_finding(_FORKS, f"forks have a pool of their own: {there}")


def of_kept_runners(machines: Collection[Machine], runners: RunnerLabels) -> Iterator[SetupFinding]:
    """Runners of other jobs that stay: their owners know them, and we report them anyway."""
    kept = [machine for machine in machines if _takes(machine, runners) and machine.ephemeral is False]
    if kept:
        yield note_finding(
            "runners that stay", f"{_names(kept)} serves one job after another on the same disk", _EPHEMERAL
        )


def _takes(machine: Machine, runners: RunnerLabels) -> bool:
    own = {label.lower() for label in machine.labels}
    return any({label.lower() for label in labels} <= own for labels in runners.values())

"""What a check-up of an installation finds: each thing looked at, as a sentence with its mend."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.levels import VARIANTS
from verl_e2e.core.pulls.forge import BranchRules, DeliveryAttempt, Installation, Machine

_READ_WRITE = ("read", "write", "admin")


class State(StrEnum):
    """How a thing was found. A note needs nobody, or nobody but time; `ill` needs a mend."""

    WELL = "well"
    NOTE = "note"
    ILL = "ill"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `mend` says what to do, empty where nothing is to be done."""

    about: str
    state: State
    sentence: str
    mend: str = ""


def well(about: str, sentence: str) -> Finding:
    """Nothing to do."""
    return Finding(about, State.WELL, sentence)


def ill(about: str, sentence: str, mend: str) -> Finding:
    """Something to mend."""
    return Finding(about, State.ILL, sentence, mend)


def note(about: str, sentence: str, mend: str = "") -> Finding:
    """Something to know."""
    return Finding(about, State.NOTE, sentence, mend)


def of_installation(
    found: Installation | None, repository: str, needed: Mapping[str, str], events: Collection[str]
) -> Iterator[Finding]:
    """The App in the repository: installed, with what it needs to be allowed and to be told."""
    about = "app"
    if found is None:
        yield ill(about, f"our App is not installed in {repository}", "install it there, from the App's page")
        return
    if found.suspended:
        yield ill(about, "our App's installation is suspended", "let an owner of the account unsuspend it")
    lacking = [
        f"{name}: {access}"
        for name, access in sorted(needed.items())
        if found.permissions.get(name) not in _READ_WRITE[_READ_WRITE.index(access) :]
    ]
    accept = "set them in the App's settings, then accept the new permissions where the App is installed"
    if lacking:
        yield ill("permissions", f"our App lacks {', '.join(lacking)}", accept)
    else:
        yield well("permissions", f"our App has the {len(needed)} permissions that it needs")
    untold = sorted(set(events) - found.events)
    if untold:
        more = "; merge_group needs the permission merge_queues: read" if "merge_group" in untold else ""
        yield ill("events", f"our App is not told of {', '.join(untold)}", f"subscribe to them in its settings{more}")
    else:
        yield well("events", f"our App is told of the {len(events)} events that it acts on")


def of_branch(rules: BranchRules, branch: str, gate: str, app_id: int, patience_s: int) -> Iterator[Finding]:
    """The gate: required on the branch, by our App and nobody else; and a merge queue that waits for it."""
    about, ours = "required check", [one for one in rules.required if one.name == gate]
    bind = f"require the check {gate!r} on {branch} with our App ({app_id}) as its source"
    wrong = [one for one in ours if one.app_id not in (None, app_id)]
    if not ours:
        yield ill(about, f"nothing requires {gate!r} on {branch}: a pull request may be merged without it", bind)
    elif wrong:
        yield ill(about, f"{wrong[0].source} wants {gate!r} on {branch} from App {wrong[0].app_id}, not ours", bind)
    elif all(one.app_id is None for one in ours):
        yield ill(about, f"{ours[0].source} takes {gate!r} on {branch} from anybody who may write a status", bind)
    else:
        yield well(about, f"{gate!r} is required on {branch}, from our App alone")
    if rules.queue_minutes is not None:
        yield _of_queue(rules.queue_minutes, patience_s)


def _of_queue(minutes: int, patience_s: int) -> Finding:
    if minutes * 60 > patience_s:
        return well("merge queue", f"the merge queue waits {minutes} min, longer than the gate takes to answer")
    told = f"the merge queue waits {minutes} min, and the gate may take {patience_s // 60} min to answer"
    return ill("merge queue", told, "let the queue wait longer, or set gate.merge_queue_deadline_s lower in the policy")


def of_dispatch_branch(branch: str, default: str) -> Finding:
    """Where jobs run: on a branch of their own, or on the one whose caches and environments others rely on."""
    about = "dispatch branch"
    if branch != default:
        return well(about, f"jobs run on {branch}, so their caches are not those of {default}")
    told = f"jobs run on {default}, so approved code may write the caches that other workflows of {default} restore"
    fix = "make a branch that holds only the workflow, as docs/install.md shows, and name it in VERL_E2E_WORKFLOW_REF"
    return ill(about, told, fix)


def of_workflow(state: str, found: bytes | None, ours: bytes, path: str, branch: str) -> Finding:
    """The workflow that runs jobs: there, switched on, and that of this version."""
    about, copy = "workflow", f"copy this version's {path} to {branch}"
    if found is None or not state:
        return ill(about, f"{branch} has no {path} that GitHub knows, so no job can start", copy)
    if state != "active":
        return ill(about, f"{path} is {state.replace('_', ' ')}", "enable it on the repository's Actions page")
    if _lines(found) != _lines(ours):
        return ill(about, f"{path} on {branch} differs from this version's", copy)
    return well(about, f"{path} on {branch} is active and this version's")


def _lines(text: bytes) -> list[bytes]:
    """What two checkouts of one file have in common, whatever their line ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def of_runners(machines: Collection[Machine], runners: Mapping[int, tuple[str, ...]]) -> Iterator[Finding]:
    """For each size that a job may ask for: a runner with its labels that would take it."""
    for size in sorted({_size_for(variant.gpu_count, runners) for variant in VARIANTS}):
        if size:
            yield _of_size(size, runners[size], machines)
    too_large = sorted({one.gpu_count for one in VARIANTS if not _size_for(one.gpu_count, runners)})
    if too_large:
        told = f"no labels are named for a runner with {too_large[-1]} GPUs"
        yield ill("runners", told, "name them in VERL_E2E_RUNNERS")


def _size_for(gpu_count: int, runners: Mapping[int, tuple[str, ...]]) -> int:
    return min((size for size in runners if size >= gpu_count), default=0)


def _of_size(size: int, labels: tuple[str, ...], machines: Collection[Machine]) -> Finding:
    about, words = f"runners for {size} GPU{'s' if size > 1 else ''}", ", ".join(labels)
    wanted = {label.lower() for label in labels}
    fit = [one for one in machines if wanted <= {label.lower() for label in one.labels}]
    online = [one for one in fit if one.online]
    idle = [one for one in online if not one.busy]
    if idle:
        return well(about, f"{_names(idle)} with {words}: idle")
    if online:
        return note(about, f"every runner with {words} is busy: {_names(online)}", "a job waits for it")
    if fit:
        return ill(about, f"no runner with {words} is online: {_names(fit)}", "start one of them")
    mend = "register one with these labels (an organisation's are seen with the permission), or mend VERL_E2E_RUNNERS"
    return ill(about, f"no runner has the labels {words}, and a job would wait for one until it is given up", mend)


def _names(machines: Iterable[Machine]) -> str:
    return ", ".join(sorted(one.name for one in machines))


def failed_deliveries(attempts: Iterable[DeliveryAttempt]) -> tuple[DeliveryAttempt, ...]:
    """The newest attempt at each delivery of which none succeeded, newest first."""
    newest: dict[str, DeliveryAttempt] = {}
    taken: set[str] = set()
    for one in sorted(attempts, key=lambda one: (one.at, one.id), reverse=True):
        newest.setdefault(one.guid, one)
        if not one.failed:
            taken.add(one.guid)
    return tuple(one for guid, one in newest.items() if guid not in taken)


def of_deliveries(failed: Collection[DeliveryAttempt], days: int, *, again: bool) -> Finding:
    """Webhooks that never reached us; `again` says that they were just asked for once more."""
    about = "deliveries"
    if not failed:
        return well(about, f"every webhook of the last {days} days was taken")
    newest = next(iter(failed))
    what = f"{newest.event}{f'.{newest.action}' if newest.action else ''} at {newest.at:%Y-%m-%d %H:%M} UTC"
    told = f"{len(failed)} webhook(s) of the last {days} days were not taken, last {what} (status {newest.code})"
    if again:
        return note(about, f"{told}; they were asked for again", "run doctor again in a minute")
    return ill(about, told, "see that the service can be reached, then run doctor with --redeliver")


def of_hook(configured: str, expected: str) -> Finding:
    """Where the App's webhooks go, beside where we say that we are."""
    if configured.rstrip("/") == expected:
        return well("webhook", f"webhooks go to {expected}")
    told = f"the App's webhooks go to {configured or 'nowhere'}, and we are at {expected}"
    return ill("webhook", told, "set the webhook URL in the App's settings, or mend VERL_E2E_PUBLIC_URL")

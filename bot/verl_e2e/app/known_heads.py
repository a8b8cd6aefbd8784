"""Which pull requests have a head.

One commit may be the head of several pull requests, and GitHub shows one gate for it: it opens when it may for all.
"""

from collections.abc import Callable
from dataclasses import replace

from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.gate import Gate
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.pull import Pull, PullRef, PullState
from verl_e2e.core.pulls.target_state import Beside, TargetState
from verl_e2e.ports import UnknownPullError

# A head is shared by a few pull requests at most; someone who opens a hundred with one head delays the rest only.
_MOST_SHARING = 20


def remember_head(pull: Pull, rooms: AppRooms) -> None:
    """This pull request has this head now."""
    rooms.ledger.put_head(pull.ref, pull.head_sha)


def sharing(repository: str, head_sha: str, rooms: AppRooms) -> tuple[PullRef, ...]:
    """Every pull request that was ever seen with this head, the newest first, at most twenty."""
    return rooms.ledger.pulls_with(repository, head_sha)[:_MOST_SHARING]


def others_with(ref: PullRef, head_sha: str, rooms: AppRooms) -> tuple[Pull, ...]:
    """The other pull requests that are open and have this head now."""
    found = (_pull(other, rooms) for other in sharing(ref.repository, head_sha, rooms) if other != ref)
    return tuple(pull for pull in found if pull is not None and _is_open_at(pull, head_sha))


def _is_open_at(pull: Pull, head_sha: str) -> bool:
    return pull.state is PullState.OPEN and pull.head_sha == head_sha


def with_others(target_state: TargetState, steps: Actions, gate_of: Callable[[Pull], Gate], rooms: AppRooms) -> Actions:
    """The steps as they are with regard to other open pull requests that have this head.

    There is no success before each of them has it by itself, by `gate_of`, which reads it again. A closed one leaves
    the checks to the others.
    """
    if not isinstance(target_state.target, Pull):
        return steps
    others = others_with(target_state.target.ref, target_state.head_sha, rooms)
    if target_state.over and others:
        return replace(steps, shows_checks=False)
    if not steps.gate.is_open:
        return steps
    gates = [(pull.ref.number, gate) for pull in others if not (gate := gate_of(pull)).is_open]
    if not gates:
        return steps
    # What needs someone is told before what needs time alone.
    number, gate = min(gates, key=lambda found: (found[1].status is JobStatus.RUNNING, found[0]))
    return decide_actions(replace(target_state, beside=Beside(number, gate.title, gate.status is JobStatus.RUNNING)))


def _pull(ref: PullRef, rooms: AppRooms) -> Pull | None:
    try:
        return rooms.pulls.pull(ref)
    except UnknownPullError:
        return None

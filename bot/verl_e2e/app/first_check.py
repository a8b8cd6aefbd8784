"""The first sign on a pull request: its gate, in progress, before anything is cloned and planned.

What comes of the look takes its place; a look that fails says so there, so that no gate says `Planning` for ever.
"""

from contextlib import suppress
from datetime import timedelta

from verl_e2e.app.base_policy import noted_digest, policy_of, without_policy
from verl_e2e.app.open_checks import open_checks
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish import CHECK, check_digest, check_subject, post_checks
from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.check_runs import CheckId, CheckRun, CheckStatus, Conclusion
from verl_e2e.core.pulls.pull import Pull, PullState, Target, repository_of
from verl_e2e.core.text.escape import sentence
from verl_e2e.ports import BackendError, ForgeError

# A fault that may pass by itself is not told on the pull request before it has lasted so long.
PATIENCE = timedelta(minutes=5)
PLANNING, FAILED = "Planning", "The change could not be planned"
_PLANNING_SUMMARY = "What the change does to the code that verl runs is being read; the jobs that it needs come next."


def show_planning(target: Target, rooms: AppRooms) -> None:
    """Show the gate of a head on which there is none yet. ForgeError where checks cannot be written."""
    if isinstance(target, Pull) and noted_digest(target.ref, target.head_sha, rooms) is not None:
        return
    over = target.state is PullState.CLOSED if isinstance(target, Pull) else target.destroyed
    name = _gate_name(target, rooms)
    if not over and rooms.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, name)) is None:
        post_checks(target, (_planning(target, name),), rooms)


def tell_failure(target: Target, error: Exception, rooms: AppRooms) -> None:
    """Put the reason on a gate that still says `Planning`; whatever ended the look is raised by the caller."""
    with suppress(ForgeError, BackendError):
        for check in open_checks(target, rooms):
            planning = _planning(target, check.name)
            posted = rooms.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, check.name))
            if posted is None or posted.digest != check_digest(planning):
                continue
            if not _may_pass(error) or rooms.clock.now() - posted.at >= PATIENCE:
                post_checks(target, (_failed(planning, error),), rooms)


def tell_set_aside(target: Target, why: str, rooms: AppRooms) -> None:
    """Close the gate of a head that is not looked at for a while, and say why."""
    planning = _planning(target, _gate_name(target, rooms))
    hint = "Other pull requests go on. It is looked at again soon, and later each time; the service's log says more."
    post_checks(target, (_closed(planning, why, hint),), rooms)


def _may_pass(error: Exception) -> bool:
    passing = isinstance(error, ForgeError) and error.passing
    return passing or (isinstance(error, BackendError) and not error.final)


def _gate_name(target: Target, rooms: AppRooms) -> str:
    try:
        return policy_of(target, rooms).gate.name
    except NoPolicyError as error:
        return without_policy(target, error, rooms).gate.name


def _planning(target: Target, name: str) -> CheckRun:
    number = target.ref.number if isinstance(target, Pull) else 0
    return CheckRun(
        name=name,
        head_sha=target.head_sha,
        status=CheckStatus.IN_PROGRESS,
        title=PLANNING,
        summary=_PLANNING_SUMMARY,
        external_id=str(CheckId(number, target.head_sha)),
    )


_AGAIN = "It is tried again by itself, and at once by `/verl-e2e status`."


def _failed(planning: CheckRun, error: Exception) -> CheckRun:
    # What is ours and unexpected goes to the log, not onto a pull request.
    message = isinstance(error, BackendError | ForgeError | UserError)
    why = sentence(str(error), 1000) if message else "An internal error of verl-e2e; its log says more"
    return _closed(planning, why, _AGAIN)


def _closed(planning: CheckRun, why: str, hint: str) -> CheckRun:
    return CheckRun(
        name=planning.name,
        head_sha=planning.head_sha,
        status=CheckStatus.COMPLETED,
        conclusion=Conclusion.ACTION_REQUIRED,
        title=FAILED,
        summary=f"**{why}.**\n\n{hint}\n",
        external_id=planning.external_id,
    )

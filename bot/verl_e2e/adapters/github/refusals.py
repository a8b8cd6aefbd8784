"""What GitHub refuses while a job is started, looked at or brought home, in words for the pull request.

Whoever reads them there has no use for an address of GitHub's interface: told is what is missing and where it is fixed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from verl_e2e.ports import BackendError, ForgeError, UncertainError

_AGAIN = "then comment `/verl-e2e rerun blocked`"
_APP_PAGE = (
    "set it on the App's page under `Permissions & events`, accept it where the App is installed under `Review request`"
)


class Doing(StrEnum):
    """What was asked of GitHub."""

    START = "start the job"
    LOOK = "tell how the job goes"
    BRING = "hand over what the job left"


@contextmanager
def refusals(doing: Doing, workflow: str, branch: str) -> Iterator[None]:
    """GitHub's refusals as ours: one that may pass is tried again, any other is for people to fix."""
    try:
        yield
    except ForgeError as error:
        message = str(error) if error.passing else refusal_text(error, doing, workflow, branch)
        uncertain = isinstance(error, UncertainError)
        raise BackendError(message, final=not error.passing, uncertain=uncertain, wait_s=error.wait_s) from error


def refusal_text(error: ForgeError, doing: Doing, workflow: str, branch: str) -> str:
    """What was refused for good, and what to do about it."""
    path = f".github/workflows/{workflow}"
    if error.permission:
        return f"our App may not {doing}: it lacks the permission `{error.permission}`; {_APP_PAGE}, {_AGAIN}"
    # GitHub's words for a branch that is missing; the order itself is well formed.
    if doing is Doing.START and (error.absent or "No ref found" in error.answer):
        where = f"`{path}` is not on the branch {branch}, so no job can start"
        return f"{where}; add this version's file there, as step 3 of the install page tells, {_AGAIN}"
    if doing is Doing.START:
        what = f"GitHub did not take the order for `{path}`: {error.answer}"
        return f"{what}; `verl-e2e doctor` compares the file with this version's; put that on {branch}, {_AGAIN}"
    if doing is Doing.BRING:
        what = f"what the job uploaded cannot be used: {error.answer}"
        return f"{what}; `/verl-e2e rerun blocked` runs the job on the GPUs again"
    return f"GitHub does not {doing}: {error.answer}; `/verl-e2e rerun blocked` runs the job on the GPUs again"

"""Messages for the pull request when GitHub refuses to start a job, to show its state or to give its results.

An address of GitHub's API does not help the reader: a message says what is missing and where to fix it.
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
    """What we asked of GitHub."""

    START = "start the job"
    LOOK = "give the state of the job"
    BRING = "give the results of the job"


@contextmanager
def refusals(doing: Doing, workflow: str, branch: str) -> Iterator[None]:
    """Turn ForgeError into BackendError: a temporary one is retried, any other must be fixed by a person."""
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
        return f"our App may not {doing}: it does not have the permission `{error.permission}`; {_APP_PAGE}, {_AGAIN}"
    # GitHub's message for a missing branch.
    if doing is Doing.START and (error.absent or "No ref found" in error.answer):
        where = f"`{path}` is not on the branch {branch}, so no job can start"
        return f"{where}; add this version's file there, and on the default branch, {_AGAIN}"
    if doing is Doing.START:
        what = f"GitHub did not accept the dispatch of `{path}`: {error.answer}"
        return (
            f"{what}; run `verl-e2e doctor` to compare the file with this version's, put that one on {branch}, {_AGAIN}"
        )
    if doing is Doing.BRING:
        what = f"the upload of the job cannot be used: {error.answer}"
        return f"{what}; `/verl-e2e rerun blocked` runs the job on the GPUs again"
    return f"GitHub does not {doing}: {error.answer}; `/verl-e2e rerun blocked` runs the job on the GPUs again"

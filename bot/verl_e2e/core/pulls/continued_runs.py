"""Runs of an earlier head that go on for this one: a push that changes nothing that they can reach ends nothing."""

from collections.abc import Iterable, Iterator

from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.reuse import is_same_change
from verl_e2e.core.pulls.wanted_jobs import WantedJob, runs_of


def job_of_continued(run: Run, head_sha: str, wanted: Iterable[WantedJob], here: tuple[Run, ...]) -> WantedJob | None:
    """The job of this head that a live run of an earlier one does, None where it does none.

    What this head has a run of its own for needs no other one. A run that no machine has, which waits in our own queue
    for example, does nothing that could go on.
    """
    if run.state is RunState.QUEUED:
        return None
    if run.head_sha == head_sha or run.state.final or run.state is RunState.CANCELLING or not run.reuse_key:
        return None
    same = (job for job in wanted if job.required and run.required and job.reuse_key == run.reuse_key)
    return next((job for job in same if is_same_change(run, job) and not runs_of(job, head_sha, here)), None)


def continued(
    runs: Iterable[Run], head_sha: str, wanted: tuple[WantedJob, ...], here: tuple[Run, ...]
) -> Iterator[Run]:
    """The runs that go on, each as a run of this head."""
    for run in runs:
        job = job_of_continued(run, head_sha, wanted, here)
        if job is not None:
            yield run.model_copy(update={"head_sha": head_sha, "job_id": job.id, "job_digest": job.digest})

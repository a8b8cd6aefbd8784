"""A run as the queue sees it: small, because one decision reads those of all repositories."""

from datetime import datetime, timedelta

from pydantic import AwareDatetime

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Digest
from verl_e2e.core.pulls.job_order import minutes_of
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.queue_terms import QueueTerms

_SECONDS = 60.0
# What got a slot is submitted within seconds; after this the service cannot reach its pull request.
_SUBMITTED_WITHIN = timedelta(hours=1)


class QueueEntry(Document):
    """One run, without its job and its verdict."""

    # The key of the run.
    key: Digest
    # `owner/name`.
    repository: str
    # The pull request, None for a merge group.
    number: int | None
    # The head.
    head_sha: str
    # The id of its job.
    job_id: str
    # GPUs that it takes while it is not over.
    gpu_count: int = 1
    # Whether the head lies in a fork, which has runners of its own.
    from_fork: bool = False
    # Whether it waits for a slot: the back end does not know of it.
    waits: bool = False
    # Whether nothing more will happen to it.
    final: bool = False
    # Whether it ended with a verdict, so that its time tells how long such jobs take.
    judged: bool = False
    # When it was created.
    created: AwareDatetime
    # When it got its slot, None where it has or needs none.
    admitted: AwareDatetime | None = None
    # When it last changed; of one that is over: when it ended.
    updated: AwareDatetime
    # Until when it holds its slot at most, None while it waits: what no one looks at any more must free it.
    holds_until: AwareDatetime | None = None
    # GPU minutes that it used, once it is over.
    used_minutes: float = 0.0
    # What it is ordered by.
    terms: QueueTerms = QueueTerms()

    @property
    def since(self) -> datetime:
        """Since when it waits, or its pull request does for this job."""
        return self.terms.since or self.created

    @property
    def pull(self) -> tuple[str, int | None, str]:
        """What its GPU time counts for: its pull request, or its merge group by the head."""
        return self.repository, self.number, "" if self.number is not None else self.head_sha

    @property
    def person(self) -> tuple[str, ...]:
        """The person whose GPU time it is; a merge group and an old run count for themselves alone."""
        return (self.terms.person.lower(),) if self.terms.person else tuple(map(str, self.pull))

    def holds_slot(self, now: datetime) -> bool:
        """Whether it takes a part of its pool."""
        return not self.waits and not self.final and (self.holds_until is None or now < self.holds_until)

    def gpu_minutes(self, now: datetime) -> float:
        """GPU minutes that it used, or holds until now, at least what it is expected to take; 0 while it waits."""
        if self.final or self.waits:
            return self.used_minutes
        since = self.admitted or self.created
        held = (now - since).total_seconds() / _SECONDS * self.gpu_count
        return max(held, float(self.terms.planned_minutes))


def entry_of(run: Run) -> QueueEntry:
    """A run in short."""
    return QueueEntry(
        key=run.key,
        repository=run.repository,
        number=run.number,
        head_sha=run.head_sha,
        job_id=run.job_id,
        gpu_count=run.job.gpu_count if run.job is not None else 0 if run.rehearsal is not None else 1,
        from_fork=run.from_fork,
        waits=run.waits_for_slot,
        final=run.state.final,
        judged=run.state is RunState.FINISHED and run.result is not None and not run.carried_from,
        created=run.created,
        admitted=run.admitted,
        updated=run.updated,
        holds_until=None if run.waits_for_slot else _holds_until(run),
        used_minutes=run.gpu_minutes,
        terms=run.terms,
    )


def _holds_until(run: Run) -> datetime:
    """Twice the time that the back end gives a run, after which no one looks at it, as in a repository that is gone."""
    if run.state is RunState.QUEUED:
        return run.ordered + _SUBMITTED_WITHIN
    minutes = minutes_of(run.order) if run.order is not None else 0
    return run.ordered + 2 * timedelta(minutes=minutes, seconds=run.queue_deadline_s)

"""What runs do not show: each limitation with its jobs, without those that another job has shown by passing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.outcome import Result


class Aspect(StrEnum):
    """Something that one job may not show and another job may."""

    BRIDGE_TESTS = "focused Bridge tests"
    PRETRAINED = "pretrained weights"
    REWARD_MODEL = "a reward model"
    CUDA_GRAPHS = "CUDA graph capture"
    TENSOR = "tensor parallelism"
    PIPELINE = "pipeline parallelism"
    CONTEXT = "context parallelism"
    EXPERT = "expert parallelism"
    SAVE_RESUME = "save and resume"
    LEARNING = "a learning signal"


@dataclass(frozen=True, slots=True)
class Limitation:
    """One sentence on what a verdict does not show."""

    text: str
    # The aspects of it that another job may show; empty where no job can.
    aspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfJob:
    """What one judged job does not show, and what it shows if it passed."""

    job_id: str
    limitations: tuple[Limitation, ...]
    # Empty for a job that did not pass.
    shows: frozenset[str] = frozenset()


def of_verdict(verdict: Verdict) -> OfJob:
    """What the job of a verdict does not show, and what it shows if it passed."""
    shows = frozenset(verdict.shows) if verdict.result is Result.PASS else frozenset()
    return OfJob(verdict.job_id, paired(verdict.limitations, verdict.left_open), shows)


def paired(texts: Sequence[str], aspects: Sequence[Sequence[str]]) -> tuple[Limitation, ...]:
    """The limitations of a verdict from its two lists, of which the second may be shorter."""
    known = [*aspects[: len(texts)], *[()] * (len(texts) - len(aspects))]
    return tuple(Limitation(text, tuple(found)) for text, found in zip(texts, known, strict=True))


def merged(jobs: Sequence[OfJob], *, named: bool = True) -> tuple[str, ...]:
    """Each limitation once, with its jobs if `named`; left out if jobs that passed show all of it.

    If they show a part of it, the sentence says which part.
    """
    holders: dict[Limitation, list[str]] = {}
    for job in jobs:
        for limitation in job.limitations:
            holders.setdefault(limitation, []).append(job.job_id)
    return tuple(
        dict.fromkeys(_row(item, ids, jobs, named) for item, ids in holders.items() if not _is_shown(item, jobs))
    )


def _is_shown(limitation: Limitation, jobs: Iterable[OfJob]) -> bool:
    shown = {aspect for job in jobs for aspect in job.shows}
    return bool(limitation.aspects) and shown.issuperset(limitation.aspects)


def _row(limitation: Limitation, ids: list[str], jobs: Sequence[OfJob], named: bool) -> str:
    parts = [f"{job.job_id} shows {', '.join(found)}" for job in jobs if (found := _part(limitation, job))]
    text = f"{limitation.text.rstrip('.')}; {'; '.join(parts)}." if parts else limitation.text
    every = len(jobs) > 1 and len(set(ids)) == len({job.job_id for job in jobs})
    who = "all jobs" if every else ", ".join(dict.fromkeys(ids))
    return f"{who}: {text}" if named else text


def _part(limitation: Limitation, job: OfJob) -> tuple[str, ...]:
    return tuple(str(aspect) for aspect in limitation.aspects if aspect in job.shows)

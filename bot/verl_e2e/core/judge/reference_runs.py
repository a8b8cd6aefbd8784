"""A judged run as a related run of another one, and whether a kept one may be used again."""

from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.events import Started, read_data
from verl_e2e.core.model.evidence import Criterion
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Digest, Job
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Environment, Record
from verl_e2e.core.model.related import RelatedRun, RelatedStep, Role

CONCLUSIVE = frozenset({Result.PASS, Result.FAIL})


def summary(
    role: Role, job: Job, verdict: Verdict, facts: LogFacts | None, *, folder: str, cached: bool = False
) -> RelatedRun:
    """What `related.json` says of a run: its verdict, the marks of its failure, and the metrics of its steps."""
    steps = [step for step in facts.steps if step.step > 0] if facts else []
    return RelatedRun(
        role=role,
        job_id=job.id,
        job_digest=job.digest(),
        bridge_commit=job.bridge.commit,
        folder=folder,
        result=verdict.result,
        stage=verdict.stage,
        cause=verdict.cause,
        excerpt=_excerpt(verdict),
        cached=cached,
        fingerprint=verdict.fingerprint,
        steps=tuple(RelatedStep(step=step.step, values=dict(step.values)) for step in steps),
    )


def may_be_kept(record: Record, verdict: Verdict) -> bool:
    """Whether a run may stand for a later one of the same job: conclusive, and of nothing but commits."""
    trees = record.environment.repositories if record.environment else ()
    return verdict.result in CONCLUSIVE and bool(trees) and not any(tree.dirty for tree in trees)


def may_stand_again(record: Record, verdict: Verdict, digest: Digest, host: Environment | None) -> bool:
    """Whether a kept run is that of this very job, still judged as conclusive, on what `host` has today."""
    started = [read_data(event, Started) for event in record.events if event.kind == "started"]
    same_job = bool(started) and started[-1] is not None and started[-1].digest == digest
    return same_job and may_be_kept(record, verdict) and _same_host(record.environment, host)


def _same_host(environment: Environment | None, other: Environment | None) -> bool:
    """Packages, interpreter, image, driver and kinds of GPU: what a result may depend on besides the job."""
    if environment is None or other is None:
        return False
    return _marks(environment) == _marks(other)


def _marks(host: Environment) -> tuple[object, ...]:
    container = host.container
    image = (container.image, container.digests, container.asked) if container else None
    return host.packages, host.python, image, host.driver, sorted(gpu.name for gpu in host.gpus)


def _excerpt(verdict: Verdict) -> str:
    """The line that decided; a Pass has none."""
    if verdict.result is Result.PASS:
        return ""
    shown = [item.excerpt for item in verdict.key_lines if item.criterion is not Criterion.RESOLVED_CONFIG]
    return shown[0] if shown else ""

"""From judged runs to entries of a bands file: only healthy runs count, and only one training twice makes a pair."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from verl_e2e.core.compare.bands import KEPT
from verl_e2e.core.compare.steps import compare_steps
from verl_e2e.core.compare.workload import training_digest
from verl_e2e.core.model.bands import Healthy, Pair, PairStep
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts, StepMetrics
from verl_e2e.core.model.jobs import Digest, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Event, Record
from verl_e2e.core.triage.silent import AGREEMENT

_FIRST_STEP = 1


class NotHealthyError(UserError):
    """A run that no band may take, in one sentence. The user's mistake."""


@dataclass(frozen=True, slots=True)
class HealthyRun:
    """A run that was judged Pass; `name` is what the user called it, `run` tells it from others of the same job."""

    name: str
    job: Job
    steps: tuple[StepMetrics, ...]
    run: Digest


def healthy_run(name: str, record: Record, facts: LogFacts | None, result: Result, cause: str) -> HealthyRun:
    """The run, when it was judged Pass; NotHealthyError with the cause for any other."""
    if record.job is None or facts is None or result is not Result.PASS:
        why = f"{result}: {cause}" if cause else str(result)
        raise NotHealthyError(f"{name}: judged {why}; a band takes only runs that passed")
    return HealthyRun(name, record.job, facts.steps, _run_digest(record.events))


def healthy_of(run: HealthyRun) -> Healthy:
    """What a band keeps of a healthy run: the correlation at step 1."""
    first = next((item for item in run.steps if item.step == _FIRST_STEP), None)
    found = first.values.get(AGREEMENT, math.nan) if first else math.nan
    if not math.isfinite(found):
        raise NotHealthyError(f"{run.name}: no {AGREEMENT} at step {_FIRST_STEP}; a band needs that number")
    return Healthy(run=run.run, job=run.job.id, bridge_commit=run.job.bridge.commit, correlation=found)


def pair_of(healthy_run: HealthyRun, other: HealthyRun) -> Pair:
    """What a bands file keeps of two runs of the same training; NotHealthyError when they are not."""
    both = f"{healthy_run.name} and {other.name}"
    if training_digest(healthy_run.job) != training_digest(other.job):
        raise NotHealthyError(f"{both}: not the same training; a pair is one job run twice at one Bridge commit")
    if healthy_run.run == other.run:
        raise NotHealthyError(f"{both}: one and the same run; run the job a second time")
    first, second = _undisturbed(healthy_run), _undisturbed(other)
    found = compare_steps(tuple(first.values()), tuple(second.values()))
    if found.data_differs or not found.steps:
        why = found.data_differs or "no training step in common"
        raise NotHealthyError(f"{both}: {why}; a pair trains on the same data")
    steps = (
        PairStep(step=step, first=_kept(first[step].values), second=_kept(second[step].values)) for step in found.steps
    )
    return Pair(runs=(healthy_run.run, other.run), job=healthy_run.job.id, steps=tuple(steps))


def _undisturbed(run: HealthyRun) -> dict[int, StepMetrics]:
    """The training steps by number, without those after a resume: what a resume changes is not noise."""
    last = run.job.steps - 1 if run.job.level is Level.SAVE_RESUME else run.job.steps
    return {item.step: item for item in run.steps if 0 < item.step <= last}


def _kept(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in KEPT if name in values and math.isfinite(values[name])}


def _run_digest(events: tuple[Event, ...]) -> Digest:
    """What tells one run from another of the same job: when each thing happened."""
    rows = [[event.t_s, event.kind] for event in events]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

"""The verdict on one job, and its document `verdict.json`: written and read by the same type.

What runs do not show: each limitation with its jobs, without those that another job has shown by passing.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from verl_e2e.core.compare.steps import Report
from verl_e2e.core.model.evidence import CHANGE_EXECUTED, Evidence
from verl_e2e.core.model.execution import ChangeExecution
from verl_e2e.core.model.facts import Frame, StepMetrics
from verl_e2e.core.model.outcome import Deliverable, Recurrence, Result, Stage
from verl_e2e.core.signal.report import SignalFigure

VERDICT_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one job with everything that cards and checks show of it."""

    # The job's id, as in `0-lora-ddp`.
    job_id: str
    # The result, with the related runs taken into account.
    result: Result
    # Where it went wrong, None for a Pass.
    stage: Stage | None
    # What went wrong, empty for a Pass.
    cause: str
    sentence: str
    # The level and the variant that were asked for.
    coverage: str
    checkpoint: str
    # The lines under "Deliverables:".
    deliverables: tuple[Deliverable, ...]
    # A line for each repository, and one for the host.
    repositories: tuple[str, ...]
    command: str
    # The evidence that decided.
    key_lines: tuple[Evidence, ...]
    # What this verdict does not show.
    limitations: tuple[str, ...]
    followups: tuple[str, ...]
    # Every criterion, judged; in `evidence.json`.
    evidence: Annotated[tuple[Evidence, ...], Field(exclude=True)] = ()
    related: tuple[str, ...] = ()
    # The result before the related runs were weighed.
    own_result: Result | None = None
    # What identifies the failure, empty for none; see `verl_e2e.core.judge.related_runs`.
    fingerprint: tuple[str, ...] = ()
    # The comparisons with related runs, step by step; in `parity.json`.
    reports: Annotated[tuple[Report, ...], Field(exclude=True)] = ()
    # The curves of a learning signal; in `plots/`.
    figure: Annotated[SignalFigure | None, Field(exclude=True)] = None
    # The frames of the error that decided, `path:function`, outermost first.
    calls: tuple[str, ...] = ()
    # The innermost frame in Megatron-Bridge, Megatron-LM or verl of the error that decided; None where there is none.
    frame: Frame | None = None
    # The metrics of every step, in the order of the log; in `metrics.jsonl`.
    steps: Annotated[tuple[StepMetrics, ...], Field(exclude=True)] = ()
    # For each limitation what another job may show of it, see `verl_e2e.core.judge.verdict_document`.
    left_open: tuple[tuple[str, ...], ...] = ()
    # What this job shows of what others may leave open, where it passed.
    shows: tuple[str, ...] = ()
    # The criterion whose evidence decided, before the related runs were weighed; None where none did.
    decided_by: str | None = None
    # Whether the change may have caused what blocked the run, before the related runs were weighed.
    undecided: bool = False
    # What the run executed of the change; None for a job that is for no change.
    execution: ChangeExecution | None = None
    # What ended the run, as identifiers of `verl_e2e.core.model.outcome`; empty for a Pass.
    causes: tuple[str, ...] = ()
    # What related runs show of the failure, None where they show nothing.
    recurrence: Recurrence | None = None
    # How it is known whose the failure is, by the related runs, as a clause; empty where they say nothing.
    blame: str = ""

    @property
    def never_entered(self) -> bool:
        """Whether the run is good in everything but that it never entered the changed code."""
        return self.result is Result.BLOCKED and self.decided_by == CHANGE_EXECUTED


_VERDICT = TypeAdapter(Verdict)


def verdict_json(verdict: Verdict) -> str:
    """The text of `verdict.json`: the same bytes for the same values. What has a file of its own is not in it."""
    return document_text({"schema": VERDICT_SCHEMA, **verdict_fields(verdict)})


def verdict_fields(verdict: Verdict) -> dict[str, object]:
    """The fields of `verdict.json`."""
    return dict(_VERDICT.dump_python(verdict))


def read_verdict(text: str) -> Verdict | None:
    """The verdict of a `verdict.json` ; None for anything else."""
    try:
        return _VERDICT.validate_json(text)
    except ValidationError:
        return None


def document_text(document: object) -> str:
    """A document as text: deterministic, and without half a surrogate pair, which has no UTF-8."""
    text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode() + "\n"


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

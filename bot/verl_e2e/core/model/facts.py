"""What a console log says, as frozen facts; nothing here judges.

`verl_e2e.core.log.scan` fills these from a stream of log bytes, `verl_e2e.core.triage.triage` and
`verl_e2e.core.judge.verdict` read them. Every fact carries the 1-based line that it was read from, counting `\\n` only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from verl_e2e.core.model.outcome import Stage


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A place in the log: 1-based line and its text, control characters removed, at most 500 characters."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class StageMark:
    """The first line that proves that a run entered a stage."""

    stage: Stage
    at: Excerpt


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The configuration that the run itself printed (verl's TaskRunner, pretty-printed dict).

    `values` is the nested mapping; None when the dump is cut or cannot be read, and then `problem` says why.
    """

    line: int
    values: Mapping[str, Any] | None
    problem: str = ""


class StepValues(Protocol):
    """The metrics of one training step, from a log or from the record of a related run."""

    @property
    def step(self) -> int:
        """The number of the training step, 1 for the first; 0 is the validation before training."""
        ...

    @property
    def values(self) -> Mapping[str, float]:
        """The metrics by the consumer's names; NaN and infinity included."""
        ...


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One metric line, `step:N - name:value - ...`; values may be NaN or infinite."""

    step: int
    line: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """The last `Training Progress` bar: percent, and steps done of steps requested."""

    percent: int
    done: int
    total: int
    at: Excerpt


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """Bridge's PEFT table of one model: all parameters and those of the adapter."""

    line: int
    pid: int | None
    total: int
    adapter: int


@dataclass(frozen=True, slots=True)
class LoggedProcess:
    """A process that wrote to the log under a Ray prefix, `(WorkerDict pid=7470)`.

    `built_model` is true when a line of Bridge-managed construction (PEFT table, DDP wrap, parameter
    count, weight loading) came from it: such a process is a training worker.
    """

    pid: int
    actor: str
    line: int
    built_model: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback, as the log prints it."""

    path: str
    """The file, at most 500 characters."""
    line: int
    """The line of that file, from 1."""
    function: str
    source: str = ""
    """The source line, where the log prints it."""


class TracebackRecord(StrEnum):
    """Who printed a traceback: no one but Python itself (`RAISED`), or a program that had caught the exception."""

    RAISED = "raised"
    PREFIXED = "prefixed"
    """Every line of it stands behind a log's mark, at level error or above: the last word of a program, or caught."""
    ERROR = "error"
    """A log record of level error or above is right above it."""
    SIDE = "side"
    """A side thread or a background task ended with it; the process went on."""
    WARNING = "warning"
    """A log record below error is right above it."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """A root exception or a fatal message, after nested and repeated tracebacks were folded into one."""

    # Where it was logged.
    at: Excerpt
    # The exception's name, or empty.
    kind: str
    # The beginning of the message, on one line.
    message: str
    # The kind of process that logged it, empty for the driver.
    actor: str
    # The process, None where it is not known.
    pid: int | None
    # The stage that the run was in.
    stage: Stage
    # Whether the requested steps had completed before it.
    after_completion: bool
    # The frames of the traceback, outermost first, as `path:function`, and `ray::Actor.method` for remote calls.
    calls: tuple[str, ...] = ()
    # The other exceptions of the chain, as `Kind: message`.
    chain: tuple[str, ...] = ()
    # Whether it ended the driver.
    driver: bool = False
    # Whether it only reports the death of another process.
    secondary: bool = False
    # Whether it is a bare warning that a run may survive.
    soft: bool = False
    count: int = 1
    # Whether Ray folded it: the line came earlier from another worker.
    repeated: bool = False
    # The line of its last time; 0 where it came once.
    last: int = 0
    # Whether the process that printed it went on with something else.
    over: bool = False
    record: TracebackRecord = TracebackRecord.RAISED
    """How the traceback was printed."""
    frame: Frame | None = None
    """The innermost frame in Megatron-Bridge, Megatron-LM or verl; None when the log shows none."""
    full_message: str = ""
    """The whole message with its line feeds, at most 4,000 characters; `message` is the beginning in one line."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A known harmless message: its name, first place and number of times."""

    name: str
    at: Excerpt
    count: int


@dataclass(frozen=True, slots=True)
class CheckpointEvent:
    """A checkpoint saved, found, loaded, or not found: `action` is saved, loaded, resumed or scratch.

    `saving` is the announcement that a save begins; only `saved` says that it was written.
    """

    action: str
    step: int | None
    at: Excerpt


@dataclass(frozen=True, slots=True)
class AskedSetting:
    """Something that a run was asked for: a variable of the shell or an override of the command line."""

    name: str
    """The variable, or the dotted key without Hydra's `+`."""
    value: str
    """As it was written, without the shell's quotes."""
    at: Excerpt
    """Where; the text is the assignment alone."""
    override: bool = False


@dataclass(frozen=True, slots=True)
class PackagePath:
    """A folder that a package was imported from, as a path in a warning or traceback shows."""

    package: str
    """`megatron.bridge` or `megatron.core`."""
    root: str
    """The folder that holds the package, as it would stand on PYTHONPATH."""
    at: Excerpt
    actor: str = ""
    """The kind of process that printed it, empty for the driver."""
    traced: bool = False
    """Whether it is a frame of a traceback, and not the place of a warning."""


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number that a line of the log states."""

    value: int
    at: Excerpt


@dataclass(frozen=True, slots=True)
class ModelRank:
    """A rank that built its part of a model: tensor rank and pipeline rank.

    Only ranks of data- and context-parallel rank 0 say so, once for each model.
    """

    line: int
    tensor: int
    pipeline: int


@dataclass(frozen=True, slots=True)
class WrappedModel:
    """A model as the first rank holds it: `wrapper` is the class around it, which a size follows in the log."""

    at: Excerpt
    wrapper: str


@dataclass(frozen=True, slots=True)
class ModelChunks:
    """A rank's model consists of `count` chunks: more than one under a virtual pipeline. Every rank says so."""

    line: int
    pid: int | None
    count: int


@dataclass(frozen=True, slots=True)
class BridgeUse:
    """A conversion between Hugging Face and Megatron weights that came to its end: `bridge` is Bridge's class."""

    at: Excerpt
    bridge: str


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that a run prints only with a certain feature at work: the sign's name, first place and count."""

    name: str
    at: Excerpt
    count: int


@dataclass(frozen=True, slots=True)
class Misread:
    """Lines with a known beginning that follows something that is not understood."""

    at: Excerpt
    """The first of them."""
    count: int
    headers: int
    """How many of them hold the first line of a traceback."""
    frames: int
    """How many of them hold a frame of a traceback."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Everything in a log that a judgement may use; bounded at any log size."""

    # The number of lines, with a last line that no line feed ends once the log is complete.
    line_count: int
    # The first line of each stage.
    stages: tuple[StageMark, ...] = ()
    # The configurations that the run printed.
    configs: tuple[ResolvedConfig, ...] = ()
    # The metric lines; a repeated line keeps the number of its first occurrence.
    steps: tuple[StepMetrics, ...] = ()
    # The last progress bar of the latest run.
    progress: ProgressBar | None = None
    # The last bar of an SFT trainer, counted over all epochs.
    epochs: ProgressBar | None = None
    # The last line of the latest run by which its training is complete.
    completed_at: Excerpt | None = None
    # What each adapter says about its parameters.
    adapters: tuple[AdapterReport, ...] = ()
    # The processes that printed something.
    workers: tuple[LoggedProcess, ...] = ()
    errors: tuple[LoggedError, ...] = ()
    # What may be an error and is not a traceback: bare last lines of exceptions, and what the last lines of a run that
    # did not complete say of its end.
    hints: tuple[LoggedError, ...] = ()
    # Known lines that look like errors and are harmless.
    noise: tuple[Noise, ...] = ()
    # Lines on which Bridge says that it dropped a weight.
    lost_weights: tuple[Excerpt, ...] = ()
    # Lines on which the rollout engine says that it did not take a weight.
    refused_weights: tuple[Excerpt, ...] = ()
    # The settings that the run was started with, in the order in which they were printed.
    asked: Sequence[AskedSetting] = ()
    # From where packages under test were imported.
    packages: tuple[PackagePath, ...] = ()
    # The ranks of the adapters that Bridge enabled, each once.
    lora_ranks: tuple[StatedNumber, ...] = ()
    # The number of training steps that the trainer planned.
    planned_steps: StatedNumber | None = None
    # Saves and loads of checkpoints.
    checkpoints: tuple[CheckpointEvent, ...] = ()
    # The last line that is not empty.
    last: Excerpt | None = None
    # The stage that the latest run was in at its end.
    stood: Stage | None = None
    # The first line that says that an adapter of rank > 0 was requested.
    lora_at: Excerpt | None = None
    # The line with the final validation metrics.
    final_metrics: Excerpt | None = None
    # The last metric line of the latest run, even when `steps` does not keep it.
    last_step: StepMetrics | None = None
    # The last progress bars of the runs before the latest one.
    earlier: tuple[ProgressBar, ...] = ()
    # The ranks that built a part of a model.
    ranks: tuple[ModelRank, ...] = ()
    # The wrapped models of the first rank.
    wrapped: tuple[WrappedModel, ...] = ()
    # How many chunks the model of each rank has.
    chunks: tuple[ModelChunks, ...] = ()
    # The conversions of weights that completed.
    bridges: tuple[BridgeUse, ...] = ()
    # Lines that show a feature at work.
    signs: tuple[Sign, ...] = ()
    # The first line of each stage of the latest run, in the order of entry.
    timeline: tuple[StageMark, ...] = ()
    # How many runs the log holds.
    runs: int = 0
    first: Excerpt | None = None
    # Whether the compressed log ends before its end mark: these are the facts of what could be unpacked.
    truncated: bool = False
    # What this log says in a format that we do not understand, None when nothing points to such a format.
    misread: Misread | None = None
    # Whether no line feed ends the last line.
    cut_line: bool = False
    # Whether the recorder says that it ended the run, for its time was over or a person asked for it.
    stopped: bool = False
    # The last of the runs, each with its own facts; empty when the log holds only one run.
    parts: tuple["RunFacts", ...] = ()

    def reached(self) -> Stage | None:
        """The furthest stage in enum order that the log proves, None for an empty log."""
        return max((mark.stage for mark in self.stages), key=lambda stage: stage.order, default=None)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One of several runs in a log, with the facts of its own lines only; line numbers are those of the log.

    `number` counts from 1; `begins` and `ends` are its first and its last line.
    """

    number: int
    begins: int
    ends: int
    facts: LogFacts

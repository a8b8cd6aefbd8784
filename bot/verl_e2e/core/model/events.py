"""What the recorder's events hold, by kind: `events.jsonl` is read by these types and by no key of its own.

A run folder may come from a stranger, so a value of another type is not an error here: the event is then empty.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from verl_e2e.core.model.record import EndReason, Event

# The name of the phase that is one start of the wrapper, and of the one that is the focused Bridge tests.
RUN_PHASE, TESTS_PHASE = "run", "bridge tests"
# The states of a phase.
BEGIN, END = "begin", "end"


def _known(word: object) -> object:
    """The reason as a member, a word that is none is left out."""
    if not isinstance(word, str):
        return word
    try:
        return EndReason(word)
    except ValueError:
        return None


class EventData(BaseModel):
    """The data of one kind of event; keys that nothing reads are left out."""

    model_config = ConfigDict(frozen=True, strict=True)


class Started(EventData):
    """`started`: the run began."""

    # The digest of its job, empty where the event has none.
    digest: str = ""
    # The time of day in seconds since 1970, None where the event has none.
    unix_s: float | None = None


class Ended(EventData):
    """`ended`, and the end of a `phase` that started the wrapper."""

    # None for a word that this version does not know.
    end_reason: Annotated[EndReason | None, BeforeValidator(_known), Field(alias="reason")] = None
    # None where the process did not end by itself.
    exit_code: int | None = None
    note: str | None = ""
    # The nonce of the order, empty where it held none.
    nonce: str | None = ""

    @property
    def exited_zero(self) -> bool:
        """Whether the process ended by itself and without an error."""
        return self.end_reason is EndReason.EXITED and self.exit_code == 0


class PhaseEvent(Ended):
    """`phase`: a phase began or ended."""

    name: str = ""
    state: str = ""
    # The planned phase of the job, as in `save` and `resume`.
    step: str = ""
    # The first line that it wrote to the log.
    line: int | None = None
    # How the focused Bridge tests ended.
    outcome: str = ""

    def is_run(self, state: str) -> bool:
        """Whether a start of the wrapper began or ended."""
        return (self.name, self.state) == (RUN_PHASE, state)


class StageEvent(EventData):
    """`stage`: the log shows that the run entered it."""

    stage: str = ""


class StepEvent(EventData):
    """`step`: the metrics of a training step were printed."""

    step: int = 0


class ProbeEvent(EventData):
    """`probe`: how much the import probe wrote."""

    unreadable: int = 0


class FingerprintsEvent(EventData):
    """`fingerprints`: what became of the lines that the instrumentation wrote."""

    # Lines of the processes that could not be read.
    unreadable: int = 0
    # Lines that were not kept because there were too many.
    left_out: int = 0


class GpuReading(EventData):
    """One GPU of a `gpu` event."""

    index: int = 0
    # What processes of others held of its memory; None where that is not known.
    others_mib: int | None = None


class GpuEvent(EventData):
    """`gpu`: the last one holds the peak of each GPU."""

    peak: list[GpuReading] = []


class LeftRunning(EventData):
    """`left_running`: the processes of the run that could not be ended."""

    processes: list[object] = []


Data = TypeVar("Data", bound=EventData)


def read_data(event: Event, kind: type[Data]) -> Data | None:
    """The data of an event as that kind, None when it is of another shape."""
    try:
        return kind.model_validate(event.data)
    except ValidationError:
        return None

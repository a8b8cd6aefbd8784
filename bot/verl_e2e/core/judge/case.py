"""What a criterion may look at: the job, its run folder, the log's facts and their triage.

The phases of a job: the starts of the wrapper that it plans, and the part of the log that each of them wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_e2e.core.consumer.consumer import ConfigKey, PlannedPhase, Quantity
from verl_e2e.core.consumer.consumers import consumer_of, measured
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.facts import Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import BEGIN, EndedEvent, EndReason, Event, PhaseEvent, Record, read_data
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.triage.triage import Triage

NOT_PRINTED: Any = object()


@dataclass(frozen=True, slots=True)
class Case:
    """All that a criterion may look at."""

    job: Job
    record: Record
    facts: LogFacts
    triage: Triage
    # Warnings of lost weights that the recorded weights show to be about no weight at all; `facts` does not hold them.
    needless_warnings: tuple[Excerpt, ...] = ()

    @property
    def log(self) -> str:
        """The name of the log in the folder."""
        return self.record.log

    @property
    def wrapper(self) -> Mapping[str, str]:
        """The wrapper variables in effect: the job's own win over the site's."""
        return {**self.job.site.wrapper, **self.job.wrapper}

    def events(self, kind: str) -> tuple[Event, ...]:
        """The events of one kind since the run last started."""
        events = self.record.events
        starts = [index for index, event in enumerate(events) if event.kind == "started"]
        return tuple(event for event in events[starts[-1] if starts else 0 :] if event.kind == kind)

    def ends(self) -> tuple[EndedEvent, ...]:
        """Every end of the run; one that cannot be read has no reason."""
        return tuple(read_data(event, EndedEvent) or EndedEvent() for event in self.events("ended"))

    def phases(self, state: str) -> tuple[PhaseEvent, ...]:
        """The starts of the wrapper that began or ended."""
        found = (read_data(event, PhaseEvent) for event in self.events("phase"))
        return tuple(phase for phase in found if phase is not None and phase.is_run(state))

    def ended_by(self, reason: EndReason) -> EndedEvent | None:
        """The end for that reason, None when there is none."""
        return next((ended for ended in self.ends() if ended.end_reason is reason), None)

    def related(self, role: Role) -> tuple[RelatedRun, ...]:
        """The related runs in that role, in the order in which they ran."""
        return tuple(run for run in self.record.related if run.role is role)

    @property
    def started(self) -> bool:
        """Whether the wrapper ran at all."""
        return self.facts.line_count > 0 and not self.ended_by(EndReason.NOT_STARTED)

    def train_steps(self) -> tuple[StepMetrics, ...]:
        """The metric lines of training steps; step 0 is the validation before training."""
        return tuple(step for step in self.facts.steps if step.step > 0)

    def config(self, key: ConfigKey) -> object:
        """What the configuration that the run printed says of something, None where it says nothing."""
        dotted = consumer_of(self.job).keys.get(key)
        return None if dotted is None else self.config_value(dotted)

    def config_value(self, dotted: str) -> object:
        """A value of the configuration that the run printed, None when there is none."""
        for config in self.facts.configs:
            found = lookup(config.values, dotted, NOT_PRINTED)
            if found is not NOT_PRINTED:
                return found
        return None


@dataclass(frozen=True, slots=True)
class StartedPhase:
    """A planned phase that started, and its lines of the log, both ends included (none when the last is smaller)."""

    planned: PlannedPhase
    first_line: int
    last_line: int

    @property
    def name(self) -> str:
        """The name of the planned phase."""
        return self.planned.name

    def wrote(self, line: int) -> bool:
        """Whether this phase wrote a line of the log."""
        return self.first_line <= line <= self.last_line


def trained_models(case: Case) -> tuple[str, ...]:
    """The models that train and are saved: the actor, and the critic under GAE or when it says that it trained."""
    critic = any(measured(step.values, Quantity.CRITIC_GRADIENT_NORM) is not None for step in case.train_steps())
    return ("actor", "critic") if critic or case.config(ConfigKey.ADVANTAGES) == "gae" else ("actor",)


def wants_adapter(case: Case) -> bool:
    """Whether job, run or log asked for an adapter of rank above zero."""
    asked = consumer_of(case.job).text(Axis.ADAPTER_RANK, case.wrapper, "0") != "0"
    return asked or case.facts.lora_at is not None or case.config(ConfigKey.ADAPTER_RANK) not in (None, 0)


def started_phases(case: Case) -> tuple[StartedPhase, ...]:
    """The planned phases that started, with their lines.

    Where the runner did not record which line a phase began with, a later phase begins with the configuration that
    it printed.
    """
    planned = consumer_of(case.job).phases(case.job)
    starts = case.phases(BEGIN)
    lines = [start.line for start in starts if start.line is not None]
    names = [phase.name for phase in planned]
    # Of other phases, or not of all of them, the record says nothing.
    known = [start.step for start in starts] == names[: len(starts)] and len(lines) == len(starts)
    begins = lines if known and lines == sorted(lines) else []
    begins = begins or [1, *(config.line for config in case.facts.configs[1:])][: len(planned)]
    ends = [*(line - 1 for line in begins[1:]), case.facts.line_count]
    return tuple(StartedPhase(*item) for item in zip(planned, begins, ends, strict=False))

"""What a criterion may look at: the job, its run folder, the log's facts and their triage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.events import Ended, PhaseEvent, read_data
from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.facts import Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import EndReason, Event, Record
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.triage.triage import Triage

ABSENT: Any = object()


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

    def ends(self) -> tuple[Ended, ...]:
        """Every end of the run; one that cannot be read has no reason."""
        return tuple(read_data(event, Ended) or Ended() for event in self.events("ended"))

    def phases(self, state: str) -> tuple[PhaseEvent, ...]:
        """The starts of the wrapper that began or ended."""
        found = (read_data(event, PhaseEvent) for event in self.events("phase"))
        return tuple(phase for phase in found if phase is not None and phase.is_run(state))

    def ended_by(self, reason: EndReason) -> Ended | None:
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

    def config_value(self, dotted: str) -> object:
        """A value of the configuration that the run printed, None when there is none."""
        for config in self.facts.configs:
            found = lookup(config.values, dotted, ABSENT)
            if found is not ABSENT:
                return found
        return None


Judge = Callable[[Case], Evidence]

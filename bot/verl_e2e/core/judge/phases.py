"""The phases of a job: the starts of the wrapper that it plans, and the part of the log that each of them wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.events import BEGIN
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """One start of the wrapper: it trains the steps from `first_step` to `last_step`.

    `wrapper` are the variables in which it differs from the job.
    """

    name: str
    first_step: int
    last_step: int
    wrapper: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
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


def wants_save(job: Job) -> bool:
    """Whether the job writes checkpoints."""
    return {**job.site.wrapper, **job.wrapper}.get("SAVE_FREQ", "-1") != "-1"


def planned_phases(job: Job) -> tuple[PlannedPhase, ...]:
    """The job's starts of the wrapper, in order: level 1 has two, unless it never saves, as its reference run."""
    if job.level is Level.SAVE_RESUME and job.steps > 1 and wants_save(job):
        saved, last = job.steps - 1, job.steps
        return (
            PlannedPhase("save", 1, saved, {"TOTAL_TRAIN_STEPS": str(saved)}),
            PlannedPhase("resume", last, last, {"RESUME_MODE": "auto", "TOTAL_TRAIN_STEPS": str(last)}),
        )
    return (PlannedPhase("train", 1, job.steps),)


def started_phases(case: Case) -> tuple[Phase, ...]:
    """The planned phases that started, with their lines.

    Where the runner did not record which line a phase began with, a later phase begins with the configuration that
    it printed.
    """
    planned = planned_phases(case.job)
    begins = _recorded(case, planned) or [1, *(config.line for config in case.facts.configs[1:])][: len(planned)]
    ends = [*(line - 1 for line in begins[1:]), case.facts.line_count]
    return tuple(Phase(*item) for item in zip(planned, begins, ends, strict=False))


def _recorded(case: Case, planned: tuple[PlannedPhase, ...]) -> list[int]:
    """The first line of each phase as the runner recorded it; empty where it did not, or not of these phases."""
    starts = case.phases(BEGIN)
    lines = [start.line for start in starts if start.line is not None]
    names = [start.step for start in starts]
    known = names == [planned_phase.name for planned_phase in planned[: len(names)]]
    return lines if known and len(lines) == len(starts) and lines == sorted(lines) else []

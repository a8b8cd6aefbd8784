"""What operators watch: how much waits, what a run came to and cost, how long its phases took, GitHub's budget.

Every name that becomes a label of a metric is one of few words of ours: what a repository or a run wrote never is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.levels import Level, stated_cost
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import BEGIN, RUN_PHASE, TESTS_PHASE, Event, PhaseEvent, read_data
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import class_of

# Phases as the runner records them; any other name counts as `other`.
RUN_PHASES = ("repositories", "preflight", "prepare", "imports", TESTS_PHASE, RUN_PHASE, "collect")
OTHER = "other"
# GitHub's words for what it limits; any other counts as `other`.
API_RESOURCES = frozenset({"core", "graphql", "search", "code_search", "integration_manifest"})
# Longer than any job may take: a week.
_LONGEST_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in one queue or state."""

    count: int = 0
    """How many."""
    oldest_s: float = 0.0
    """How long the oldest has waited, in seconds; 0 when nothing waits."""


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """What the database says."""

    deliveries: Waiting = Waiting()
    """Deliveries that are due to be processed."""
    targets: Waiting = Waiting()
    """Pull requests and merge groups that are due to be reconciled."""
    messages: Waiting = Waiting()
    """Reactions and replies that are due to be written."""
    deliveries_refused: int = 0
    """Deliveries that could not be processed and will not be tried again."""
    runs: Mapping[RunState, Waiting] = field(default_factory=dict)
    """Open runs by state, aged by when they were ordered."""

    @property
    def runs_open(self) -> int:
        """How many runs are not over."""
        return sum(waiting.count for waiting in self.runs.values())


@dataclass(frozen=True, slots=True)
class ApiBudget:
    """What GitHub still grants one installation for one resource, as its last answer said."""

    resource: str
    """One of `API_RESOURCES`, or `other`."""
    limit: int
    """Requests in one window."""
    remaining: int
    """Requests left in the window."""
    used: int
    """Requests sent in the window."""
    resets_s: float
    """When the window ends, in seconds since 1970."""


_WITHOUT_VERDICT = frozenset({RunState.CANCELLED, RunState.LOST, RunState.REFUSED})


def run_end(run: Run) -> str:
    """How an ended run ended, in one word: its verdict, or the state in which it ended without one."""
    if run.result is not None:
        return run.result.lower()
    return run.state.value if run.state in _WITHOUT_VERDICT else "blocked"


def cause_class(run: Run) -> str:
    """What kept an ended run from a pass, in one word: the name of a class of causes, or that there was none."""
    if run.result is Result.PASS:
        return "none"
    if run.result is Result.FAIL:
        return "change"
    if run.never_entered:
        return "not_entered"
    if run.state is RunState.CANCELLED:
        return "cancelled"
    return class_of(run.causes, undecided=run.undecided).name.lower()


def run_kind(run: Run) -> str:
    """Why a run was ordered: by the plan, because someone asked for it, or because the infrastructure broke another."""
    if run.retry_of:
        return "retry"
    return "request" if run.asked_by else "plan"


def run_level(run: Run) -> str:
    """The number of the level of a run."""
    first = run.job_id[:1]
    return first if first in {str(int(level)) for level in Level} else OTHER


def planned_gpu_minutes(run: Run) -> float:
    """The GPU minutes that the table of costs expects of a run; 0 for a verdict that was taken from another run."""
    level = run_level(run)
    if run.job is None or run.carried_from or level == OTHER:
        return 0.0
    return float(stated_cost(run.job_id).run_gpu_minutes(run.job.gpu_count))


def waited_s(run: Run) -> float | None:
    """How long a run waited for a machine; None where the back end does not say when it started."""
    if run.took is None or run.took.started is None:
        return None
    return max(0.0, (run.took.started - run.created).total_seconds())


def phase_seconds(events: Iterable[Event]) -> tuple[tuple[str, float], ...]:
    """How long each phase of a run took by its own events; a phase ends where the next one begins.

    The events are the run's own: a time that is not a number or runs backwards counts as none.
    """
    found: dict[str, float] = {}
    name, began_s, last_s = "", 0.0, 0.0

    def add(seconds: float) -> None:
        if name:
            found[name] = round(found.get(name, 0.0) + seconds, 3)

    for event in events:
        # False for what is not a number, too.
        if not last_s <= event.t_s <= _LONGEST_S:
            continue
        data = read_data(event, PhaseEvent) if event.kind == "phase" else None
        if data is not None and data.state == BEGIN:
            add(event.t_s - began_s)
            name, began_s = data.name if data.name in RUN_PHASES else OTHER, event.t_s
        last_s = event.t_s
    add(last_s - began_s)
    return tuple(found.items())

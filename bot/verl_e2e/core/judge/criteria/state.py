"""The criteria on state fingerprints: what weights and optimizer state were, compared with what they should be."""

from collections.abc import Callable, Iterator, Mapping

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.adapters import adapter_size, exported_adapters, exports_adapters
from verl_e2e.core.judge.criteria.resume import resumed_state
from verl_e2e.core.judge.criteria.snapshots import Finding
from verl_e2e.core.judge.criteria.transfer import imported_weights, rollout_weights
from verl_e2e.core.judge.criteria.weights import frozen_weights, replicas, trained_weights
from verl_e2e.core.model.events import FingerprintsEvent, read_data
from verl_e2e.core.model.evidence import Criterion, Evidence
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.stages import Stage

# In the order in which a fault of one would explain those of the others.
STATE: Mapping[Criterion, Callable[[Case], Finding]] = {
    Criterion.ADAPTER_SIZE: adapter_size,
    Criterion.RESUMED_STATE: resumed_state,
    Criterion.REPLICAS: replicas,
    Criterion.FROZEN_WEIGHTS: frozen_weights,
    Criterion.TRAINED_WEIGHTS: trained_weights,
    Criterion.IMPORTED_WEIGHTS: imported_weights,
    Criterion.EXPORTED_ADAPTERS: exported_adapters,
    Criterion.ROLLOUT_WEIGHTS: rollout_weights,
}


def of_case(case: Case) -> tuple[Criterion, ...]:
    """The criteria of the case's level."""
    asked = {
        Criterion.RESUMED_STATE: case.job.level is Level.SAVE_RESUME,
        Criterion.EXPORTED_ADAPTERS: exports_adapters(case),
    }
    return tuple(entry for entry in STATE if asked.get(entry, True))


def judge_state(case: Case) -> tuple[Evidence, ...]:
    """The evidence of each criterion."""
    return tuple(STATE[criterion](case).evidence for criterion in of_case(case))


def stage_of_state(case: Case, criterion: Criterion) -> Stage:
    """The stage that a fault or a gap of the criterion belongs to."""
    return STATE[criterion](case).stage


def state_limitations(case: Case) -> Iterator[str]:
    """What the criteria could not compare."""
    found = case.record.fingerprints
    if found is None or not found.snapshots:
        return
    counts = [counted for event in case.events("fingerprints") if (counted := read_data(event, FingerprintsEvent))]
    unreadable = found.unreadable + sum(counted.unreadable for counted in counts)
    left_out = sum(counted.left_out for counted in counts)
    if unreadable:
        yield f"{unreadable} fingerprint line(s) could not be read"
    if left_out:
        yield f"{left_out} fingerprint line(s) were not kept because there were too many"
    for criterion in of_case(case):
        yield from STATE[criterion](case).notes

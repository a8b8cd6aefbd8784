"""Level 4: whether images or sound reached the actor's model in training, and its tower for them ran.

The configuration of a run does not tell, and no line of its log. The hooks of the fingerprints count both: arguments
of the model's forward that are neither text nor positions, and calls of the parts whose names are those of towers.
Both must have happened while gradients were recorded, so neither the rollout nor a pass for log-probabilities counts.
"""

from collections.abc import Iterable
from typing import TypeVar

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.snapshots import hook_problems
from verl_e2e.core.judge.feature_traces import CONTENTS, Content
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, GivenInput, Tower

_Counted = TypeVar("_Counted", GivenInput, Tower)

NOT_RECORDED = "no fingerprints are in the folder, so nothing shows whether {content} reached the model in training"


def content_active(case: Case, feature: str) -> Evidence:
    """One of CONTENTS, judged by the fingerprints, which are the only evidence of it."""
    content = CONTENTS[feature]
    found = case.record.fingerprints
    if found is None:
        return _evidence(State.MISSING, f"{feature}: {NOT_RECORDED.format(content=content.name)}")
    rows = [line for line in found.inputs if line.model == "actor"]
    given = _most(item for line in rows for item in line.inputs if item.name in content.inputs)
    ran = _most(tower for line in rows for tower in line.towers if _is_tower(tower, content))
    if given is None or not given.training_calls:
        return _evidence(
            State.MISSING, f"{feature}: the actor was given no {content.name} in training{hook_problems(case)}"
        )
    if ran is None or not ran.training_calls:
        which = f"its {ran.name} ({ran.type}) never ran in training" if ran else "it has no tower for them"
        return _evidence(State.MISSING, f"{feature}: the actor was given {given.name}, but {which}")
    shape = " x ".join(map(str, given.shape))
    summary = f"{feature}: {given.name} reached the actor in training, and its {ran.name} ({ran.type}) ran"
    excerpt = f"{given.name} [{shape}] in {given.training_calls} forward passes, {ran.name} in {ran.training_calls}"
    return _evidence(State.MET, summary, excerpt)


def _most(items: Iterable[_Counted]) -> _Counted | None:
    """The one that was counted most often in training; lines count from the start of a model, on each rank."""
    return max(items, key=lambda item: item.training_calls, default=None)


def _is_tower(tower: Tower, content: Content) -> bool:
    return any(word in tower.name.lower() for word in content.towers)


def _evidence(state: State, summary: str, excerpt: str = "") -> Evidence:
    return Evidence(Criterion.FEATURE_ACTIVE, state, summary, FINGERPRINTS_FILE, 0, excerpt)

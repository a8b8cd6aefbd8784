"""The settings of a job that wants ask for: what fits, what a run gives already, and which level it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.space import JobPoint, ModelWant, Want
from verl_e2e.core.plan.measured_jobs import Draft

T, P, E = Axis.TENSOR, Axis.PIPELINE, Axis.EXPERT
MOE = frozenset({"moe"})


def want(axes: dict[Axis, Value] | None = None, **given: Any) -> Want:
    model = ModelWant(**given)
    return Want("a condition", axes or {}, model)


def drafted(*wants: Want) -> Draft | str:
    draft: Draft | str = Draft(JobPoint.default())
    for item in wants:
        if isinstance(draft, Draft):
            draft = draft.joined(item)
    return draft


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    (
        (want({T: 2}), want({P: 4}), True),
        (want({T: 2}), want({T: 4}), True),
        (want({Axis.FSDP: True}), want({Axis.FSDP: False}), False),
        (want(family="qwen2"), want(family="qwen3"), False),
        (want(fields={"a": 1}), want(fields={"a": 2}), False),
    ),
)
def test_wants_fit_one_job_or_not(first: Want, second: Want, *, fits: bool) -> None:
    one, other = drafted(first, second), drafted(second, first)
    if fits:
        assert isinstance(one, Draft)
        assert isinstance(other, Draft)
        assert one == other
    else:
        assert isinstance(one, str)
        assert isinstance(other, str)


AXES = st.dictionaries(st.sampled_from((T, P, E)), st.sampled_from((1, 2, 4)), max_size=3)
SOME = st.builds(want, AXES)


@given(SOME, SOME)
def test_a_job_made_for_both_gives_each(first: Want, second: Want) -> None:
    both = drafted(first, second)
    if isinstance(both, Draft):
        assert both.holds(first)
        assert both.holds(second)
        again = both.joined(first)
        assert isinstance(again, Draft)
        assert again == both


@pytest.mark.parametrize(
    ("settings", "wanted", "expected"),
    (
        ({}, want({T: 1}), True),
        ({}, want({T: 2}), False),
        ({T: 4}, want({T: 2}), True),
        ({}, want({Axis.FSDP: False, Axis.ADAPTER: "lora"}), True),
        ({}, want({Axis.FSDP: True}), False),
    ),
)
def test_settings_give_what_is_wanted(settings: dict[Axis, Value], wanted: Want, *, expected: bool) -> None:
    assert Draft(JobPoint.default().with_axes(settings)).holds(wanted) is expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    (
        (want(), Level.SMOKE),
        (want({T: 2}), Level.PARALLELISM),
        (want({Axis.DATA: 2}), Level.PARALLELISM),
        (want({Axis.RESUME: True, E: 2}), Level.SAVE_RESUME),
        (want({Axis.RESUME: False}), Level.SMOKE),
        (want({Axis.FSDP: True, T: 2}), Level.MEGATRON_FSDP),
        (want({Axis.STEPS: 2}), Level.SMOKE),
        (want({Axis.STEPS: 20}), Level.LEARNING_SIGNAL),
        (want({Axis.ADAPTER: "dora"}), Level.SMOKE),
        (want({Axis.ADAPTER: "none"}), None),
        (want({Axis.CONTENT: "images"}), Level.FEATURE),
        (want(family="glm"), Level.FEATURE),
        (want(features=MOE), Level.FEATURE),
        (want({E: 2}, features=MOE), Level.PARALLELISM),
        (want(fields={"tie_word_embeddings": False}), Level.SMOKE),
    ),
)
def test_the_level_of_a_job_that_is_there_for_one_want(wanted: Want, expected: Level | None) -> None:
    draft = drafted(wanted)
    assert isinstance(draft, Draft)
    assert draft.level is expected

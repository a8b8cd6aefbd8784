"""What wants ask of one job together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.wants import Axis, ModelWant, Value, Want
from verl_e2e.core.plan.needs import Needs, holds, joined, level_of, needs_of, within

MOE = frozenset({"moe"})
T, P, E = Axis.TENSOR, Axis.PIPELINE, Axis.EXPERT


def needs(axes: dict[Axis, Value] | None = None, limits: dict[Axis, int] | None = None, **model: Any) -> Needs:
    return Needs(axes or {}, limits or {}, ModelWant(**model))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    (
        (needs({T: 2}), needs({T: 4}), needs({T: 4})),
        (needs({T: 2}), needs({P: 4}), needs({T: 2, P: 4})),
        (needs({T: 2}), needs({T: 1}, {T: 1}), None),
        (needs({T: 2}), needs({}, {T: 2}), needs({T: 2}, {T: 2})),
        (needs({}, {T: 4}), needs({}, {T: 2}), needs({}, {T: 2})),
        (needs({}, {T: 4}), needs({T: 8}), None),
        (needs({Axis.FSDP: True}), needs({Axis.FSDP: False}), None),
        (needs({Axis.FSDP: True}), needs({T: 2}), needs({Axis.FSDP: True, T: 2})),
        (needs({Axis.ADAPTER: "lora"}), needs({Axis.ADAPTER: "dora"}), None),
        # A switch is not the number that Python takes it for.
        (needs({Axis.OFFLOAD: True}), needs({Axis.OFFLOAD: 1}), None),
        (needs(family="a"), needs(features=MOE), needs(family="a", features=MOE)),
        (needs(family="qwen2"), needs(family="qwen3"), None),
        (needs(fields={"a": 1}), needs(fields={"b": None}), needs(fields={"a": 1, "b": None})),
        (needs(fields={"a": 1}), needs(fields={"a": 2}), None),
        (needs(fields={"a": 1}), needs(fields={"a": True}), None),
    ),
)  # fmt: skip
def test_needs_join_or_exclude_each_other(first: Needs, second: Needs, expected: Needs | None) -> None:
    for one, other in ((first, second), (second, first)):
        found = joined(one, other)
        assert (found and found.key) == (expected and expected.key)


AXES = st.dictionaries(st.sampled_from((T, P, E)), st.sampled_from((1, 2, 4)), max_size=3)
SOME = st.builds(Needs, AXES, st.dictionaries(st.sampled_from((T, P)), st.sampled_from((1, 2)), max_size=1))


@given(SOME, SOME)
def test_what_gives_both_gives_each(first: Needs, second: Needs) -> None:
    both = joined(first, second)
    if both is not None:
        assert within(first, both)
        assert within(second, both)
        assert holds(both.axes, first)
        assert holds(both.axes, second)


@pytest.mark.parametrize(
    ("settings", "wanted", "expected"),
    (
        ({}, needs(), True),
        ({}, needs({T: 1}), True),
        ({}, needs({T: 2}), False),
        ({T: 4}, needs({T: 2}), True),
        ({T: 4}, needs({}, {T: 2}), False),
        ({}, needs({}, {T: 1}), True),
        ({Axis.FSDP: False}, needs({Axis.FSDP: False}), True),
        ({Axis.FSDP: False}, needs({Axis.FSDP: True}), False),
        ({}, needs({Axis.FSDP: False}), False),
    ),
)
def test_settings_hold_what_is_asked_for(settings: dict[Axis, Value], wanted: Needs, *, expected: bool) -> None:
    assert holds(settings, wanted) is expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    (
        (needs(), Level.SMOKE),
        (needs({T: 2}), Level.PARALLELISM),
        (needs({Axis.DATA: 2}), Level.PARALLELISM),
        (needs({T: 1}, {T: 1}), Level.SMOKE),
        (needs({Axis.RESUME: True, E: 2}), Level.SAVE_RESUME),
        (needs({Axis.RESUME: False}), Level.SMOKE),
        (needs({Axis.FSDP: True, T: 2}), Level.MEGATRON_FSDP),
        (needs({Axis.STEPS: 2}), Level.SMOKE),
        (needs({Axis.STEPS: 20}), Level.LEARNING_SIGNAL),
        (needs({Axis.ADAPTER: "dora"}), Level.SMOKE),
        (needs({Axis.CONTENT: "images"}), Level.FEATURE),
        (needs({Axis.CONTENT: "text"}), Level.SMOKE),
        (needs(family="glm"), Level.FEATURE),
        (needs(features=MOE), Level.FEATURE),
        (needs({E: 2}, features=MOE), Level.PARALLELISM),
        (needs(fields={"tie_word_embeddings": False}), Level.SMOKE),
    ),
)
def test_the_level_of_a_job_that_is_there_for_needs_alone(wanted: Needs, expected: Level) -> None:
    assert level_of(wanted) is expected


def test_a_want_says_what_it_needs() -> None:
    want = Want("a.py", "f", (3,), "tp > 1", {T: 2}, {P: 1}, ModelWant("qwen2"))
    assert needs_of(want) == Needs({T: 2}, {P: 1}, ModelWant("qwen2"))

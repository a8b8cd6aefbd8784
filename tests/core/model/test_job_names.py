"""Names of derived jobs: readable, stable, and valid wherever the id of a job is checked."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, FieldValue, Value
from verl_e2e.core.model.space import MOST_CHARACTERS, POINTS, JobPoint, ModelWant, name_of
from verl_e2e.core.pulls.forge import CheckId, read_check_id

_ID = re.compile(next(item.pattern for item in Job.model_fields["id"].metadata if hasattr(item, "pattern")))


def point_with(axes: dict[Axis, Value]) -> JobPoint:
    return JobPoint.default().with_axes(axes)


@pytest.mark.parametrize(
    ("level", "axes", "expected"),
    (
        (Level.PARALLELISM, {Axis.TENSOR: 2, Axis.PIPELINE: 4}, "tp2-pp4"),
        (Level.PARALLELISM, {Axis.TENSOR: 2, Axis.EXPERT: 2, Axis.EXPERT_TENSOR: 2}, "tp2-ep2-etp2"),
        (Level.PARALLELISM, {Axis.TENSOR: 2, Axis.PIPELINE: 1}, "tp2"),
        (Level.SAVE_RESUME, {Axis.RESUME: True, Axis.EXPERT: 2}, "ep2-resume"),
        (Level.SAVE_RESUME, {Axis.RESUME: True, Axis.STEPS: 3}, "resume-steps3"),
        (Level.MEGATRON_FSDP, {Axis.FSDP: True, Axis.TENSOR: 2}, "tp2-fsdp"),
        (Level.FEATURE, {Axis.TENSOR: 2}, "feature-tp2"),
        (Level.LEARNING_SIGNAL, {Axis.STEPS: 20, Axis.OFFLOAD: True}, "signal-offload"),
        (Level.SMOKE, {Axis.ADAPTER: "canonical_lora"}, None),
        (Level.SMOKE, {Axis.ADAPTER: "dora", Axis.ADAPTER_RANK: 8}, "adapter-dora-r8"),
        (Level.SMOKE, {Axis.FUSION: False}, "no-fusion"),
        (Level.SMOKE, {}, "plain"),
    ),
)
def test_a_name_says_what_differs_from_level_0(level: Level, axes: dict[Axis, Value], expected: str | None) -> None:
    name = name_of(level, point_with(axes))
    assert _ID.fullmatch(f"{int(level)}-{name}")
    assert expected is None or name == expected


def _values(axis: Axis) -> st.SearchStrategy[Any]:
    if axis.is_size:
        return st.sampled_from((1, 2, 4, 8))
    if isinstance(axis.default, bool):
        return st.booleans()
    if axis.row.choices:
        return st.sampled_from(axis.row.choices)
    if axis is Axis.ADAPTER_TARGETS:
        return st.sampled_from(("linear_fc1", "*.linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate"))
    return st.integers(1, 64)


@given(st.fixed_dictionaries({}, optional={axis: _values(axis) for axis in Axis}), st.sampled_from(tuple(Level)))
def test_every_name_is_valid_wherever_ids_are_checked(axes: dict[Axis, Value], level: Level) -> None:
    point = point_with(axes)
    name = name_of(level, point)
    job_id = f"{int(level)}-{name}"
    assert len(name) <= MOST_CHARACTERS
    assert _ID.fullmatch(job_id)
    assert not job_id.endswith("-")
    assert name == name_of(level, point_with(dict(reversed(axes.items()))))
    check = CheckId(7, "a" * 40, job_id)
    assert read_check_id(str(check)) == check


def test_jobs_of_the_table_keep_names_that_no_other_settings_get() -> None:
    names: dict[str, object] = {}
    for variant in VARIANTS:
        point = POINTS[variant.job_id]
        name = f"{int(variant.level)}-{name_of(variant.level, point)}"
        assert names.setdefault(name, point.differing) == point.differing


def of_model(fields: dict[str, FieldValue]) -> JobPoint:
    return JobPoint.default().with_model(ModelWant(fields=fields))


def test_what_no_axis_has_is_named_by_its_digest() -> None:
    names = {name_of(Level.SMOKE, of_model({"x": value})) for value in (1, 2, "$(rm)")}
    assert len(names) == 3
    assert all(_ID.fullmatch(f"0-{name}") for name in names)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tie_word_embeddings": False}, "untied"),
        ({"tie_word_embeddings": True}, "tied"),
        ({"tie_word_embeddings": None}, r"model-[0-9a-f]{6}"),
        ({"tie_word_embeddings": False, "x": 1}, r"untied-model-[0-9a-f]{6}"),
    ],
)
def test_a_well_known_field_of_a_model_is_a_word(fields: dict[str, FieldValue], name: str) -> None:
    assert re.fullmatch(name, name_of(Level.SMOKE, of_model(fields)))

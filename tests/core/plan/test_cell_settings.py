"""Which settings cells stand for, by the attributes of their rows."""

from typing import Any

import pytest

from tests.core.plan.cells import CELLS, LORA, NAMES, POLICY, ROWS, TABLE, places
from verl_e2e.config.maps import packaged_cell_map
from verl_e2e.core.compare.cell_map import CellRow
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.space import JobPoint
from verl_e2e.core.plan.cell_settings import CellTable

NONE = {Axis.ADAPTER: "none"}
ON_QKV = {**LORA, "target_modules": ["linear_qkv"]}


@pytest.mark.parametrize(
    ("name", "axes"),
    (
        ("qwen2-plain", NONE),
        ("qwen2-lora", {}),
        ("qwen2-tp2", {**NONE, Axis.TENSOR: 2}),
        ("qwen3-canonical", {Axis.ADAPTER: "canonical_lora"}),
        ("qwen3-recompute", {**NONE, Axis.RECOMPUTE: "full"}),
        ("qwen3-pp4", {**NONE, Axis.PIPELINE: 4}),
        ("qwen3-resume", {**NONE, Axis.RESUME: True}),
        # The experts' ranks are data-parallel ranks anyway.
        ("moe-lora-ep2", {Axis.EXPERT: 2}),
        ("moe-lora-tp2ep2", {Axis.TENSOR: 2, Axis.EXPERT: 2}),
        ("moe-per-expert", {Axis.ADAPTER_SHARING: "per expert"}),
        # What every cell of a family has is for its tiny model.
        ("gemma3-lora", {}),
    ),
)
def test_a_cell_stands_for_the_settings_that_differ_from_level_0(name: str, axes: dict[Axis, Value]) -> None:
    assert TABLE.settings[NAMES.index(name)].axes == axes


@pytest.mark.parametrize(
    ("name", "given", "axes", "possible"),
    (
        ("wider", {"sizes": {"hidden": 384}}, NONE, False),
        ("whole", {"dp": 2, "distributed_optimizer": False}, {**NONE, Axis.DATA: 2}, False),
        ("other-layout", {"resumed": True, "loaded_in": {"tp": 1}}, {**NONE, Axis.RESUME: True}, False),
        ("published", {"written": True}, {**NONE, Axis.RESUME: True}, True),
        ("overlapped", {"dp": 2, "overlapped": True}, {**NONE, Axis.DATA: 2, Axis.OVERLAP: True}, True),
        ("bias", {"settings": {"add_bias_linear": True}}, NONE, False),
        (
            "targets",
            {"adapter": {**LORA, "target_modules": ["linear_qkv"]}},
            {Axis.ADAPTER_TARGETS: "linear_qkv"},
            True,
        ),
    ),
)
def test_what_no_job_of_verl_can_have_stands_for_none(
    name: str, given: dict[str, Any], axes: dict[Axis, Value], *, possible: bool
) -> None:
    table = CellTable((*ROWS, CellRow(name=name, family="qwen3", settings=given)), POLICY)
    found = table.settings[-1]
    assert (found.axes, found.possible) == (axes, possible)


def wanted(*names: str, moved: bool = False) -> list[tuple[dict[Axis, Value], str, dict[str, object]]]:
    wants = TABLE.wants(places(*names), moved=moved)
    return [(dict(want.axes), want.model.family, dict(want.model.fields)) for want in wants]


def test_a_cell_with_a_feature_of_its_recipe_wants_a_model_that_has_it() -> None:
    plain = CellRow(name="deepseek_v3-plain", family="deepseek_v3")
    switched = CellRow(name="deepseek_v3-mtp", family="deepseek_v3", settings={"feature": "mtp"})
    table = CellTable((*ROWS, plain, switched), POLICY)
    at = len(ROWS) + 1
    assert table.settings[at].possible
    (want,) = table.wants(frozenset({at}), moved=False)
    assert (want.model.family, want.model.features, dict(want.model.fields)) == ("deepseek_v3", frozenset({"mtp"}), {})
    # The plain cell is another one, which its counterpart is not.
    assert table.settings[at].key != table.settings[at - 1].key


def test_training_without_adapters_is_wanted_only_where_its_counterpart_stays_out() -> None:
    assert wanted("qwen2-plain", "qwen2-lora") == [({}, "qwen2", {})]
    assert wanted("qwen2-plain") == [(NONE, "qwen2", {})]
    # No cell with adapters is like these, so nothing says that adapters keep a run out.
    assert wanted("qwen2-tp2") == [({Axis.TENSOR: 2}, "qwen2", {})]
    assert wanted("qwen3-tied") == [({}, "qwen2", {"tie_word_embeddings": True})]


def test_a_counterpart_that_raised_does_not_say_that_it_stays_out() -> None:
    rows = [
        row.model_copy(update={"outcome": CellOutcome.BLOCKED}) if row.name == "qwen2-lora" else row for row in ROWS
    ]
    (want,) = CellTable(rows, POLICY).wants(places("qwen2-plain"), moved=False)
    assert dict(want.axes) == {}


def test_drawn_adapters_are_wanted_only_where_something_moved_and_their_counterpart_did_not() -> None:
    amplified = {Axis.ADAPTER_B_START: "xavier"}
    assert wanted("qwen3-lora", moved=True)[0][0] == amplified
    assert wanted("qwen3-lora")[0][0] == {}
    assert {} in [axes for axes, _, _ in wanted("qwen3-lora", "qwen3-lora-initial", moved=True)]


def test_one_family_stands_for_another_as_far_as_their_counterparts_tell() -> None:
    dense = places("qwen3-plain", "qwen3-lora")
    assert not TABLE.stands_in("qwen2", "qwen3", dense)
    assert TABLE.stands_in("qwen2", "qwen3", dense | places("qwen2-plain", "qwen2-lora"))
    # There is no cell of qwen2 like it.
    assert TABLE.stands_in("qwen2", "qwen3", places("qwen3-pp4"))
    assert not TABLE.stands_in("qwen2", "qwen3", places("qwen3-tp2"))
    assert not TABLE.stands_in("qwen2", "qwen3_moe", places("moe-lora-ep2"))


def test_every_cell_of_the_packaged_map_has_settings_that_a_job_can_have_or_is_known_to_have_none() -> None:
    cells = packaged_cell_map().cells
    table = CellTable(cells, POLICY)
    possible = [found for found in table.settings if found.possible]
    assert len(possible) > len(cells) * 0.8
    for found in possible:
        point = JobPoint.default().with_axes(found.axes)
        assert not point.conflict
        assert found.family in {family.name for family in POLICY.families}
    assert len(CELLS) == len(ROWS)

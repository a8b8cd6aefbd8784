"""A plan with the conditions of the changed code: its levels, its jobs and what each of them must execute."""

from dataclasses import replace

import pytest

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.changed_code import ChangedFunction
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.wants import Axis, ModelWant, Value, Want
from verl_e2e.core.plan.plan import Plan, plan, with_data_parallel
from verl_e2e.core.plan.plan_document import PlanDocument, plan_json
from verl_e2e.core.plan.policy import Budget
from verl_e2e.core.reach.effects import Effect, Effects, Inside
from verl_e2e.core.reach.reached_functions import TouchedFunction

POLICY = packaged_policy()
# What asks for level 0 alone, and what asks for more.
PLAIN, LORA = "src/megatron/bridge/training/utils/train_utils.py", "src/megatron/bridge/peft/lora.py"
GUIDE = "README.md"
NAMES = ("LoRA.merge", "other")


def touched(path: str, symbol: str) -> TouchedFunction:
    function = ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=9, lines=(2,))
    return TouchedFunction(function, path, symbol, earlier=False)


def want(axes: dict[Axis, Value], symbol: str = "LoRA.merge", path: str = PLAIN) -> Want:
    return Want(path, symbol, (2,), "a condition", axes)


def planned(*wants: Want, minutes: int = 200, asked: tuple[Level, ...] = (), path: str = PLAIN) -> Plan:
    """The plan of a change of two functions that verl reaches."""
    effects = (Effect(path, name, "changed", 1, (), ("verl",), sure=True) for name in NAMES)
    functions = tuple(touched(path, name) for name in NAMES)
    known = Effects({path: Inside(tuple(effects))}, functions=functions, wants=wants)
    paths = tuple(ChangedPath(name, PathStatus.MODIFIED) for name in (path, GUIDE))
    policy = POLICY.model_copy(update={"budget": Budget(gpu_minutes=minutes)})
    return plan(Change("a" * 40, "b" * 40, "a" * 40, paths), policy, asked, known)


def test_a_condition_adds_its_job_its_level_and_the_reason() -> None:
    before, after = planned(), planned(want({Axis.CONTEXT: 2}))
    assert Level.PARALLELISM not in before.levels
    assert set(after.levels) == {*before.levels, Level.PARALLELISM}
    assert Level.PARALLELISM not in {item.level for item in after.not_required}
    (reason,) = (reason for reason in after.reasons if reason.level is Level.PARALLELISM)
    assert (reason.path, reason.symbol) == (PLAIN, "LoRA.merge")
    (job,) = (job for job in after.jobs if job.id == "2-cp")
    assert [function.symbol for function in job.changed.required] == ["LoRA.merge"]
    assert [job.id for job in after.jobs if job.id != "2-cp"] == [job.id for job in before.jobs]


def test_a_planned_job_with_more_settings_must_execute_what_it_had_to_before() -> None:
    condition = want({Axis.ADAPTER_B_START: "xavier", Axis.RESUME: True}, path=LORA)
    before, after = planned(path=LORA), planned(condition, path=LORA)
    assert "1-b-xavier-resume" in {job.id for job in after.jobs}
    changed = {job.replaces: job for job in after.jobs if job.replaces}
    assert len(before.jobs) == len(after.jobs)
    for job in before.jobs:
        if job.variant.job_id in changed:
            assert changed[job.variant.job_id].changed == job.changed
            assert changed[job.variant.job_id].variant.level is job.variant.level


def test_what_the_budget_leaves_out_is_named() -> None:
    found = planned(want({Axis.TENSOR: 4}), minutes=1)
    (left,) = found.not_covered
    assert left.purpose.symbol == "LoRA.merge"
    assert "budget" in left.reason
    assert [job.id for job in found.jobs] == [job.id for job in planned().jobs]


@pytest.mark.parametrize(
    ("wants", "sentence"),
    (
        ((want({Axis.TENSOR: 4}),), "1 condition in the code asks for a job of this level, and none is planned for it"),
        (
            (want({Axis.TENSOR: 4}), want({Axis.CONTEXT: 2}, "other")),
            "2 conditions in the code ask for a job of this level, and none is planned for them",
        ),
        # No level has a job with settings that exclude each other.
        ((want({Axis.FSDP: True, Axis.PIPELINE: 2}),), "no rule for this level matches"),
    ),
)
def test_a_level_that_a_condition_asks_for_in_vain_says_so(wants: tuple[Want, ...], sentence: str) -> None:
    found = planned(*wants, minutes=1)
    assert len(found.not_covered) == len(wants)
    reasons = {item.level: item.reason for item in found.not_required}
    assert sentence in reasons[Level.PARALLELISM]
    assert "condition" not in reasons[Level.LEARNING_SIGNAL]


@pytest.mark.parametrize("path", (GUIDE, "src/megatron/bridge/not_changed.py"))
def test_a_condition_in_what_does_not_count_asks_for_nothing(path: str) -> None:
    assert planned(want({Axis.TENSOR: 4}, path=path)) == planned()


def test_what_runs_without_any_setting_asks_for_nothing() -> None:
    assert planned(want({Axis.TENSOR: 1, Axis.FSDP: False})) == planned()


def test_conditions_of_models_with_and_without_a_feature_have_a_job_each() -> None:
    with_it, without = ModelWant(features=frozenset({"mla"})), ModelWant(absent=frozenset({"mla"}))
    recompute: dict[Axis, Value] = {Axis.RECOMPUTE: "full"}
    wants = (replace(want(recompute), model=with_it), replace(want(recompute, "other"), model=without))
    served = {purpose.symbol: job for job in planned(*wants).jobs for purpose in job.purposes}
    assert served["LoRA.merge"].model.has("mla")
    assert not served["other"].model.shows("mla")
    # By itself a feature that must not be there asks for nothing.
    assert planned(replace(want({}), model=without)) == planned()


def test_code_of_one_type_of_adapters_shares_no_job_with_another() -> None:
    jobs = planned(want({Axis.ADAPTER: "lora", Axis.RECOMPUTE: "full"}), want({Axis.ADAPTER: "dora"}, "other")).jobs
    served = sorted([item.symbol for item in job.purposes] for job in jobs if job.purposes)
    assert served == [["LoRA.merge"], ["other"]]


def test_a_level_that_is_requested_by_hand_keeps_its_job() -> None:
    found = planned(want({Axis.TENSOR: 2}), asked=(Level.PARALLELISM,))
    (job,) = (job for job in found.jobs if job.variant.level is Level.PARALLELISM)
    assert job.id == "2-dense"
    assert [purpose.symbol for purpose in job.purposes] == ["LoRA.merge"]


def test_the_job_of_parity_is_there_for_no_condition() -> None:
    found = with_data_parallel(planned(want({Axis.CONTEXT: 4})))
    (job,) = (job for job in found.jobs if job.id == "2-dp")
    assert (job.purposes, job.settings, job.replaces) == ((), {}, "")


def test_the_document_holds_purposes_settings_and_what_is_left_out() -> None:
    found = planned(want({Axis.CONTEXT: 4}), want({Axis.TENSOR: 16}, "other"))
    read = PlanDocument.model_validate_json(plan_json(found))
    (job,) = (job for job in read.jobs if job.id == "2-cp4")
    assert job.settings == {Axis.CONTEXT: 4}
    assert [purpose.symbol for purpose in job.purposes] == ["LoRA.merge"]
    assert [(item.purpose.symbol, bool(item.reason)) for item in read.not_covered] == [("other", True)]
    assert replace(found, not_covered=()) != found


def test_a_condition_in_the_files_of_a_family_needs_its_model() -> None:
    path = "src/megatron/bridge/models/qwen/qwen3_bridge.py"
    found = planned(want({Axis.CONTEXT: 2}, path=path), path=path)
    (job,) = (job for job in found.jobs if job.purposes)
    qwen3 = next(family for family in POLICY.families if family.name == "qwen3")
    assert qwen3.paths.match(path)
    assert job.checkpoint == qwen3.checkpoint


def test_what_families_alone_reach_is_run_on_a_model_of_one() -> None:
    through = replace(want({Axis.CONTEXT: 2}), families=frozenset({"nemotron_h", "qwen3_vl"}))
    (job,) = (job for job in planned(through).jobs if job.purposes)
    assert job.id == "2-cp2-qwen3-vl"
    # Without any other setting it is a job of level 4 of its own.
    (job,) = (job for job in planned(replace(want({}), families=frozenset({"qwen3_vl"}))).jobs if job.purposes)
    assert job.id == "4-feature-qwen3-vl"


def test_of_several_families_one_counts_that_has_what_is_wanted() -> None:
    families = frozenset({"qwen3_vl", "falcon_h1", "mimo"})
    mtp = replace(want({}), families=families, model=ModelWant(features=frozenset({"mtp"})))
    (job,) = (job for job in planned(mtp).jobs if job.purposes)
    assert job.family == "mimo"
    untied = replace(want({}), families=families, model=ModelWant(fields={"tie_word_embeddings": False}))
    (job,) = (job for job in planned(untied).jobs if job.purposes)
    assert job.checkpoint is not None
    assert job.checkpoint.synthetic is not None


def test_what_no_model_of_the_family_has_is_said_with_the_reason() -> None:
    no_host = next(family for family in POLICY.families if family.uncoverable)
    wants = (
        replace(want({Axis.TENSOR: 2}), model=ModelWant("qwen3_vl", features=frozenset({"mtp"}))),
        replace(want({Axis.TENSOR: 2}, "other"), model=ModelWant(no_host.name)),
    )
    reasons = {left.purpose.symbol: left.reason for left in planned(*wants).not_covered}
    assert reasons["LoRA.merge"] == "no model of the family qwen3_vl has mtp"
    assert reasons["other"] == f"no host can run a model of the family {no_host.name}: {no_host.uncoverable}"


def test_a_condition_that_no_setting_is_known_for_is_undecided() -> None:
    unknown = replace(want({}), condition="x.ndim == 1", open=("x.ndim == 1",))
    found = planned(unknown, replace(want({Axis.TENSOR: 2}, "other"), open=("y",)), replace(unknown, path=GUIDE))
    assert [purpose.open for purpose in found.undecided] == [("x.ndim == 1",)]
    assert [job.id for job in found.jobs] == [job.id for job in planned(want({Axis.TENSOR: 2}, "other")).jobs]
    assert PlanDocument.model_validate_json(plan_json(found)).undecided == found.undecided

"""The jobs of another consumer beside verl's: where its way differs, what the budget leaves, what it refuses."""

from dataclasses import replace

import pytest

from tests.core.plan.test_plan import POLICY, change
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.consumers import variants_of
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.model.levels import CostBasis, Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.beside_verl import beside, differing
from verl_e2e.core.plan.outline import in_order
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.policy import Budget, ConsumerRules, Policy, Rule
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.diff import IMPORT_TIME
from verl_e2e.core.reach.effects import Effect, Effects, Inside
from verl_e2e.core.reach.walk import Entry

LORA, TRAIN = "src/megatron/bridge/peft/lora.py", "src/megatron/bridge/models/gpt_provider.py"
SHARED, OWN = Entry("megatron.bridge", "AutoBridge", "skyrl/a.py", 1), Entry("", "merge", "skyrl/a.py", 2)


def effect(path: str, symbol: str, start: Entry) -> Inside:
    return Inside((Effect(path, symbol, "changed", (), (str(start), symbol), sure=True),))


FOUND = Effects({LORA: effect(LORA, "LoRA.merge", OWN), TRAIN: effect(TRAIN, "provide", SHARED)})


def policy(level: str = "show", when: str = "differs", minutes: int = 1000) -> Policy:
    rules = ConsumerRules.model_validate({"level": level, "when": when})
    return POLICY.model_copy(update={"consumers": {"skyrl": rules}, "budget": Budget(gpu_minutes=minutes)})


def planned(effects: Effects | None, rules: Policy, *paths: str) -> Plan:
    changed = change(*(paths or (LORA, TRAIN)))
    nothing = plan(change("docs/index.md"), rules)
    return beside(nothing, SKYRL, rules, [(changed, effects)])


def test_what_verl_starts_from_too_does_not_differ() -> None:
    # The line and the file of verl are others; the import is the same.
    verls = [replace(SHARED, file="verl/b.py", line=9)]
    found = differing(FOUND, [SHARED, OWN], verls)
    assert {path: [item.symbol for item in inside.effects] for path, inside in found.paths.items()} == {
        LORA: ["LoRA.merge"],
        TRAIN: [],
    }
    assert not any(inside.effects for inside in differing(FOUND, [SHARED, OWN], [SHARED, OWN]).paths.values())


def test_what_could_not_be_read_may_be_its_own_way() -> None:
    unread = replace(FOUND, paths={}, unread={LORA: "it does not parse"}, unknown={LORA: "it does not parse"})
    found = planned(differing(unread, [SHARED], [SHARED]), policy(), LORA)
    assert {job.id for job in found.jobs} >= {"0-lora-ddp-skyrl"}
    # Its whole way is not known.
    lost = replace(FOUND, incomplete=("the chain of imports is too long",))
    assert planned(differing(lost, [SHARED], [SHARED]), policy(), TRAIN).jobs
    moved = Inside((), at_import=FOUND.paths[LORA].effects)
    own = differing(replace(FOUND, paths={LORA: moved}), [SHARED, OWN], [SHARED])
    assert planned(own, policy(), LORA).jobs


def test_levels_that_someone_asks_for_are_planned_whatever_differs() -> None:
    nothing = differing(FOUND, [SHARED], [SHARED])
    found = beside(plan(change(LORA), policy()), SKYRL, policy(), [(change(LORA), nothing)], [Level.SAVE_RESUME])
    assert "1-resume-skyrl" in {job.id for job in found.jobs}


def test_jobs_are_planned_only_where_the_way_differs() -> None:
    own = differing(FOUND, [SHARED, OWN], [SHARED])
    found = planned(own, policy())
    assert {job.consumer for job in found.jobs} == {"skyrl"}
    assert all(job.id.endswith("-skyrl") for job in found.jobs)
    assert {job.reason for job in found.jobs if job.variant.level is Level.SMOKE} == {
        "SkyRL runs LoRA.merge",
        "SkyRL has it beside the level's own job",
    }
    assert found.levels == ()
    assert planned(differing(FOUND, [SHARED, OWN], [SHARED, OWN]), policy()).jobs == ()


def test_every_other_job_waits_for_its_own_level_0() -> None:
    found = planned(None, policy(when="reached"), LORA)
    assert {required for job in found.jobs for required in job.requires} == {"0-lora-ddp-skyrl"}


def test_names_decide_where_reach_is_not_followed() -> None:
    assert planned(None, policy()).jobs == planned(None, policy(when="reached")).jobs != ()
    assert planned(None, policy(), "docs/index.md").jobs == ()


def test_what_it_refuses_is_a_note_and_no_job() -> None:
    fsdp = "src/megatron/bridge/training/utils/fsdp.py"
    rule = Rule.model_validate({"name": "shards", "paths": [fsdp], "levels": [3], "reason": "it shards"})
    found = planned(None, policy().model_copy(update={"rules": (rule,)}), fsdp)
    assert [note for note in found.notes if note.startswith("SkyRL has no 3-fsdp-skyrl: SkyRL refuses it")]
    assert {job.variant.level for job in found.jobs} == {Level.SMOKE}


@pytest.mark.parametrize("level", ["show", "require"])
def test_the_budget_counts_all_jobs_together(level: str) -> None:
    found = planned(None, policy(level, when="reached", minutes=0), LORA, TRAIN)
    kept = {job.id for job in found.jobs}
    (note,) = [note for note in found.notes if "beyond the 0 GPU minutes" in note]
    assert "0-lora-ddp-skyrl" in kept
    assert "2-tensor-skyrl" in note
    # Level 0 and the default job of a level stay where the gate needs them.
    assert ("1-resume-skyrl" in kept) is ("0-adapters-skyrl" in kept) is (level == "require")
    assert "budget" not in str(planned(None, policy(when="reached"), LORA).notes)


def test_each_job_comes_after_what_it_needs() -> None:
    asked = policy(when="reached")
    found = in_order(beside(plan(change(LORA), asked), SKYRL, asked, [(change(LORA), None)]).jobs)
    ids = [job.id for job in found]
    assert "0-adapters-skyrl" in ids
    assert all(ids.index(needed) < ids.index(job.id) for job in found for needed in job.requires)


def test_a_setting_of_level_4_is_there_only_for_a_change_that_asks_for_it() -> None:
    asked = policy(when="reached")
    verls = plan(change(LORA), asked, [*Level])
    of_level = [job.id for job in beside(verls, SKYRL, asked, [(change(LORA), None)]).jobs if job.id.startswith("4-f")]
    assert not [name for name in of_level if name.endswith("-skyrl")]
    recompute = replace(verls.jobs[0], settings={Axis.RECOMPUTE: "full"}, variant=variants_of(Level.FEATURE)[0])
    wanted = beside(replace(verls, jobs=(*verls.jobs, recompute)), SKYRL, asked, [(change(LORA), None)])
    found = {job.id for job in wanted.jobs if job.consumer == "skyrl" and job.variant.level is Level.FEATURE}
    assert found == {"4-feature-recompute-skyrl"}


@pytest.mark.parametrize("most", [1, 2])
def test_no_work_is_planned_twice_and_none_that_cannot_be(most: int) -> None:
    asked = policy("require", "reached").model_copy(update={"most_gpus": most})
    found = beside(plan(change(TRAIN, LORA), asked), SKYRL, asked, [(change(TRAIN, LORA), None)])
    own = [job for job in found.jobs if job.consumer == "skyrl"]
    made = [(job.variant.level, sorted(job.variant.wrapper.items()), job.variant.overrides) for job in own]
    assert all(made.count(item) == 1 for item in made)
    assert not [job.id for job in own if job.obstacles and not job.is_default]


def test_each_family_has_a_job_of_its_own() -> None:
    qwen, llama = "src/megatron/bridge/models/qwen/qwen3_bridge.py", "src/megatron/bridge/models/llama/llama_bridge.py"
    found = planned(None, policy(when="reached"), qwen, llama)
    models = [job.checkpoint.model_id for job in found.jobs if job.family and job.checkpoint]
    assert len(models) == len(set(models)) > 1


def test_no_minutes_of_it_were_measured() -> None:
    found = planned(None, policy(when="reached"), LORA)
    assert {job.cost_basis for job in found.jobs if job.consumer == "skyrl"} == {CostBasis.ESTIMATE}


def test_a_definition_that_differs_at_import_alone_is_not_said_to_run() -> None:
    moved = Inside((), at_import=tuple(replace(item, kind=IMPORT_TIME) for item in FOUND.paths[LORA].effects))
    found = planned(replace(FOUND, paths={LORA: moved}), policy(when="reached"), LORA)
    assert "SkyRL runs what changed" in {job.reason for job in found.jobs}
    assert not [job.reason for job in found.jobs if "LoRA.merge" in job.reason]


def test_level_0_on_the_changed_familys_own_model_must_enter_the_change() -> None:
    path = "src/megatron/bridge/models/qwen/qwen3_moe_bridge.py"
    packaged = packaged_policy().model_copy(update={"consumers": policy("require", "reached").consumers})
    function = ChangedFunction(path=path, symbol="Bridge.provide", first_line=1, last_line=9, lines=(2,), reached=True)
    effects = Effects(
        {path: effect(path, "Bridge.provide", OWN)}, functions=(TouchedFunction(function, path, "Bridge.provide"),)
    )
    nothing = plan(change("docs/index.md"), packaged)
    (smoke,) = [
        job for job in beside(nothing, SKYRL, packaged, [(change(path), effects)]).jobs if job.id == "0-lora-ddp-skyrl"
    ]
    assert smoke.checkpoint is not None
    assert "qwen3_moe" in smoke.checkpoint.model_id
    assert smoke.changed.functions == (function,)


def test_another_pin_is_said() -> None:
    rules = policy().model_copy(update={"consumers": {"skyrl": ConsumerRules(level="show", pin="a" * 40)}})
    assert [note for note in planned(None, rules).notes if f"SkyRL {'a' * 40} is followed by the list of" in note]
    assert "is followed by" not in str(planned(None, policy()).notes)

"""The jobs of another consumer beside verl's: where its way differs, what the budget leaves, what it refuses."""

from dataclasses import replace

import pytest

from tests.core.plan.test_plan import POLICY, change
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.beside_verl import beside, differing
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.policy import Budget, ConsumerRules, Policy, Rule
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
    return beside(nothing, SKYRL, rules, changed, effects)


def test_what_verl_starts_from_too_does_not_differ() -> None:
    # The line and the file of verl are others; the import is the same.
    verls = [replace(SHARED, file="verl/b.py", line=9)]
    found = differing(FOUND, [SHARED, OWN], verls)
    assert {path: [item.symbol for item in inside.effects] for path, inside in found.paths.items()} == {
        LORA: ["LoRA.merge"],
        TRAIN: [],
    }
    assert not any(inside.effects for inside in differing(FOUND, [SHARED, OWN], [SHARED, OWN]).paths.values())


def test_jobs_are_planned_only_where_the_way_differs() -> None:
    own = differing(FOUND, [SHARED, OWN], [SHARED])
    found = planned(own, policy())
    assert {job.consumer for job in found.jobs} == {"skyrl"}
    assert all(job.id.endswith("-skyrl") for job in found.jobs)
    assert {job.reason for job in found.jobs if job.variant.level is Level.SMOKE} == {
        "SkyRL runs LoRA.merge",
        "SkyRL runs it",
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


@pytest.mark.parametrize(("minutes", "left"), [(1000, False), (0, True)])
def test_the_budget_counts_all_jobs_together(minutes: int, *, left: bool) -> None:
    found = planned(None, policy(when="reached", minutes=minutes), LORA)
    ids = {job.id for job in found.jobs}
    assert "0-lora-ddp-skyrl" in ids
    assert ("0-adapters-skyrl" not in ids) is left
    assert any("0-adapters-skyrl, too, beyond the 0 GPU minutes" in note for note in found.notes) is left

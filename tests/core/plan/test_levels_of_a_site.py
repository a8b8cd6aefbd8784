"""Levels on hosts that have less than the table asks for: smaller jobs, fixes that help, and levels switched off."""

import json
import re

import pytest

from tests.core.plan.cells import entered
from tests.core.plan.test_plan import change
from verl_e2e.config import ConfigError, load_policy, load_profile, packaged_policy
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.model.jobs import Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.build import Sources, build_job
from verl_e2e.core.plan.measured_jobs import Measured
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.plan.policy import Policy, StandIn, SwitchedOff
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.effects import Effects
from verl_e2e.core.report.plan_text import render_plan_text

POLICY = packaged_policy()
PROVIDER = "src/megatron/bridge/models/model_provider.py"
SOURCES = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
SITE = load_profile("hopper-offline", {"kit": "/kit"})


def of_level(number: int, policy: Policy) -> list[JobOutline]:
    """The jobs of a level of a change that asks for it by hand."""
    found = plan(change(PROVIDER), policy, [Level(number)])
    return [job for job in found.jobs if job.variant.level == number]


def allowed(most_gpus: int, policy: Policy = POLICY) -> Policy:
    return policy.model_copy(update={"most_gpus": most_gpus})


def test_two_gpus_are_enough_for_level_two_and_the_card_says_what_is_not_shown() -> None:
    (job,) = of_level(2, allowed(2))
    assert (job.id, job.gpu_count, job.obstacles, job.settings) == ("2-tp2", 2, (), {Axis.TENSOR: 2})
    made = build_job(job, policy=allowed(2), site=SITE, sources=SOURCES)
    assert (made.wrapper["COMMON_TP"], made.wrapper["COMMON_PP"], made.wrapper["NUM_GPUS"]) == ("2", "1", "2")
    note = "in place of 2-dense, for it takes 4 GPUs and a job has 2 at most (`most_gpus`): it does not show pipeline 2"
    assert note in made.site.limitations
    found = plan(change(PROVIDER), allowed(2), [Level(2)])
    assert note in render_plan_text(found)
    assert json.loads(plan_json(found))["jobs"][-1]["notes"] == [note]


@pytest.mark.parametrize(("most", "job"), [(2, "2-tp2"), (3, "2-tp2"), (4, "2-dense"), (8, "2-dense")])
def test_a_smaller_job_stands_in_only_where_it_must(most: int, job: str) -> None:
    assert [found.id for found in of_level(2, allowed(most))] == [job]


def test_the_printed_fix_helps_in_the_case_at_hand() -> None:
    """One GPU: no stand-in fits, and neither a smaller checkpoint nor `gpus:` would change that."""
    (job,) = of_level(2, allowed(1))
    (obstacle,) = job.obstacles
    assert "checkpoint" not in obstacle.fix
    raised = re.search(r"raise `most_gpus:` of the policy to (\d+)", obstacle.fix)
    assert raised is not None
    assert of_level(2, allowed(int(raised[1])))[0].obstacles == ()
    smaller = allowed(2).model_copy(
        update={"stand_ins": (StandIn(level=Level.PARALLELISM, settings={Axis.PIPELINE: 2}),)}
    )
    assert "`stand_ins:`" in obstacle.fix
    assert [found.id for found in of_level(2, smaller)] == ["2-pp2"]


@pytest.mark.parametrize(
    ("weights", "most", "words"),
    [(100.0, 2, "declare with `gpus:`"), (2000.0, 8, "with `gpus_per_node:` in the site profile")],
)
def test_a_model_that_is_too_large_gets_fixes_that_fit_it(weights: float, most: int, words: str) -> None:
    model = POLICY.model.model_copy(update={"weights_gib": weights, "shape": None})
    policy = allowed(most).model_copy(update={"model": model})
    (job,) = of_level(0, policy)
    (obstacle,) = job.obstacles
    assert words in obstacle.fix
    raised = re.search(r"raise `most_gpus:` of the policy to (\d+)", obstacle.fix)
    assert raised is not None
    assert of_level(0, allowed(int(raised[1]), policy))[0].obstacles == ()
    if "declare" in obstacle.fix:
        fewer = policy.model_copy(update={"model": model.model_copy(update={"gpus": most})})
        assert of_level(0, fewer)[0].obstacles == ()


def off(number: int) -> Policy:
    item = SwitchedOff(level=Level(number), reason="no host of ours has apex")
    return POLICY.model_copy(update={"switched_off": (item,)})


@pytest.mark.parametrize(
    ("path", "number"),
    [("src/megatron/bridge/training/fsdp_compat.py", 3), (PROVIDER, 2), ("src/megatron/bridge/peft/lora.py", 4)],
)
def test_a_level_is_switched_off_by_one_key_and_nothing_hides(path: str, number: int) -> None:
    before, found = plan(change(path), POLICY), plan(change(path), off(number))
    assert Level(number) in before.levels
    assert [int(level) for level in found.levels] == [int(level) for level in before.levels if level != number]
    assert not [job for job in found.jobs if job.variant.level == number]
    sentence = "switched off by the policy, though the change asks for it: no host of ours has apex"
    assert {item.level: item.reason for item in found.not_required}[Level(number)] == sentence
    assert found.switched_off == (f"Level {number} is {sentence}.",)
    assert found.switched_off[0] in render_plan_text(found)
    assert sentence in [item["reason"] for item in json.loads(plan_json(found))["not_required"]]


def test_a_level_that_no_one_asks_for_is_not_called_switched_off_and_a_request_by_hand_gets_it() -> None:
    assert plan(change("docs/index.md"), off(3)) == plan(change("docs/index.md"), POLICY)
    asked: Plan = plan(change(PROVIDER), off(5), [Level.LEARNING_SIGNAL])
    assert (Level.LEARNING_SIGNAL in asked.levels, asked.switched_off) == (True, ())


def test_places_that_only_the_level_would_enter_are_named() -> None:
    path = "src/megatron/bridge/training/utils/train_utils.py"
    function = ChangedFunction(path=path, symbol="f", first_line=1, last_line=9)
    effects = Effects(functions=(TouchedFunction(function, path, "f"),))
    measured = Measured(entered({"f": ("qwen3-pp4",)}, path=path))
    found = plan(change(path, PROVIDER), off(2), (), effects, measured=measured)
    assert [(item.level, "switched off by the policy" in item.reason) for item in found.not_covered] == [(2, True)]


SMALLEST = f"""schema: 1
verl: {{commit: {"a" * 40}}}
image: {{name: a, tag: b}}
checkpoint: {{model_id: a/b}}
rules: []
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "levels: {3: off}",
            "levels: unknown key; to switch a level off, write `switched_off: [{level: N, reason: ",
        ),
        ("disabled_levels: [3]", "to switch a level off, write `switched_off:"),
        ("off: 3", "to switch a level off, write `switched_off:"),
        ("switched_off: [{level: 0, reason: x}]", "level 0 cannot be switched off"),
        ("switched_off: [{level: 7, reason: x}]", "7 is not a level"),
        ("switched_off: [{level: 3}]", "reason: missing"),
        ("stand_ins: [{level: 2, settings: {tensr: 2}}]", "tensr"),
        ("stand_ins: [{level: 2, settings: {offload: true}}]", "no job of level 2 can have these settings"),
        ("stand_ins: [{level: 2, settings: {tensor: two}}]", "tensor is a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_policy(f"{SMALLEST}{text}\n", "policy.yml")
    assert words in str(refused.value)

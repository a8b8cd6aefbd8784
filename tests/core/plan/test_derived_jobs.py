"""Which jobs the conditions in changed code ask for: few, within the budget, and what is left out is named."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.config import load_profile
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.jobs import PICTURES, Repository
from verl_e2e.core.model.levels import SHARE_OF_DIGITS, variant_named
from verl_e2e.core.model.wants import Axis, ModelWant, Value, Want
from verl_e2e.core.plan.build import Sources, build_job
from verl_e2e.core.plan.derived_jobs import Derived, with_derived_jobs
from verl_e2e.core.plan.obstacles import with_obstacles
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle
from verl_e2e.core.plan.policy import Budget, Feature, Model, Policy

POLICY = packaged_policy().model_copy(update={"budget": Budget(gpu_minutes=500)})
T, P, C, E = Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT, Axis.EXPERT
V = Axis.VIRTUAL_PIPELINE
MOE = frozenset({"moe"})


def want(axes: dict[Axis, Value] | None = None, symbol: str = "f", **given: Any) -> Want:
    model = ModelWant(**{name: given.pop(name) for name in ("family", "fields", "features") if name in given})
    fields: dict[str, Any] = {"lines": (1,), "condition": "tp > 1", "model": model} | given
    return Want("src/a.py", symbol, axes=axes or {}, **fields)


def planned(*names: str, policy: Policy = POLICY) -> tuple[JobOutline, ...]:
    """Jobs of the table, as a plan of the packaged policy has them."""
    found = []
    for name in names:
        variant = variant_named(name)
        assert variant is not None
        checkpoint = next(item.checkpoint for item in policy.families if item.name == "qwen3_moe")
        outline = JobOutline(variant, (), checkpoint if variant.feature else policy.checkpoint)
        found.append(with_obstacles(outline, policy))
    return tuple(found)


def derive(names: tuple[str, ...], *wants: Want, policy: Policy = POLICY) -> Derived:
    return with_derived_jobs(planned(*names), wants, policy, policy.checkpoint)


def ids(derived: Derived) -> list[str]:
    return [job.id for job in derived.jobs]


SMOKE, RESUME = "0-lora-ddp", "1-resume"


@pytest.mark.parametrize(
    ("names", "wants", "expected"),
    (
        # What level 0 gives already needs no other job.
        ((SMOKE,), (want({T: 1}, limits={T: 1}),), [SMOKE]),
        ((SMOKE,), (want({Axis.FSDP: False, Axis.ADAPTER: "lora"}),), [SMOKE]),
        # A job of its own, with the name of the table where there is one.
        ((SMOKE,), (want({T: 2}),), [SMOKE, "2-tp2"]),
        ((SMOKE,), (want({C: 2}),), [SMOKE, "2-cp"]),
        ((SMOKE,), (want({P: 4}),), [SMOKE, "2-pp4"]),
        ((SMOKE,), (want({Axis.RESUME: True}),), [SMOKE, RESUME]),
        ((SMOKE,), (want({Axis.FSDP: True, T: 2}),), [SMOKE, "3-tp2-fsdp"]),
        ((SMOKE,), (want({Axis.ADAPTER_B_START: "xavier"}),), [SMOKE, "0-amplified-lora"]),
        ((SMOKE,), (want({Axis.ADAPTER: "dora"}),), [SMOKE, "0-adapter-dora"]),
        # Experts bring a model that has some.
        ((SMOKE,), (want({E: 2}),), [SMOKE, "2-ep2"]),
        ((SMOKE,), (want(features=MOE),), [SMOKE, "4-feature-qwen3-moe"]),
        # Several places ask for the same.
        ((SMOKE,), (want({T: 2}, "f"), want({T: 2}, "g")), [SMOKE, "2-tp2"]),
        # The larger size gives the smaller one as well.
        ((SMOKE,), (want({T: 2}), want({T: 4})), [SMOKE, "2-tp4"]),
        ((SMOKE,), (want({T: 2}), want({T: 2, Axis.ADAPTER: "dora"})), [SMOKE, "2-tp2-adapter-dora"]),
        # Two wants that come to the same settings, one of which says more of them.
        ((SMOKE,), (want({V: 2}), want({V: 2, P: 2})), [SMOKE, "2-vpp"]),
        ((SMOKE,), (want({P: 3}), want({P: 4}), want({P: 4, C: 1})), [SMOKE, "2-pp4"]),
        ((SMOKE,), (want({E: 2}), want({E: 2}, features=MOE)), [SMOKE, "2-ep2"]),
        ((SMOKE,), (want({Axis.RESUME: True}), want({Axis.RESUME: True, Axis.STEPS: 2})), [SMOKE, RESUME]),
        # Settings that exclude each other take two jobs.
        ((SMOKE,), (want({Axis.ADAPTER: "dora"}), want({Axis.ADAPTER: "canonical_lora"})), None),
        ((SMOKE,), (want({Axis.FSDP: True}), want({P: 2})), [SMOKE, "2-pp2", "3-fsdp"]),
        # A planned job that costs no more with the setting gets it.
        ((SMOKE, RESUME), (want({Axis.ADAPTER_B_START: "xavier"}),), [SMOKE, "1-b-xavier-resume"]),
        ((SMOKE, "2-dense"), (want({T: 2}),), [SMOKE, "2-dense"]),
        ((SMOKE, "2-dense"), (want({Axis.RECOMPUTE: "full"}),), [SMOKE, "2-tp2-pp2-recompute-full"]),
        # One that takes the place of what the planned job shows gets a job of its own.
        ((SMOKE, RESUME), (want({Axis.ADAPTER_MERGE: True}),), [SMOKE, RESUME, "0-merged"]),
        ((SMOKE, RESUME), (want({Axis.ADAPTER: "dora"}),), [SMOKE, RESUME, "0-adapter-dora"]),
        ((SMOKE, RESUME), (want(overrides={"actor_rollout_ref.model.lora.x": 1}),), None),
        # Two more GPUs for a job of its own cost less than four more for the planned one.
        ((SMOKE, "2-dense"), (want({C: 2}),), [SMOKE, "2-dense", "2-cp"]),
        # Without an adapter no smoke is a job of level 0; saving is judged on anything.
        ((SMOKE,), (want({Axis.ADAPTER: "none"}),), [SMOKE, "1-adapter-none-resume"]),
        # Experts bring a model of their own: the dense resume stays.
        ((SMOKE, RESUME), (want({Axis.RESUME: True, E: 2}),), [SMOKE, RESUME, "1-ep2-resume"]),
        ((SMOKE,), (want({T: 2}, features=MOE),), [SMOKE, "2-tp2-moe"]),
        ((SMOKE,), (want({T: 2}, family="qwen3"),), [SMOKE, "2-tp2-qwen3"]),
        ((SMOKE,), (want({Axis.RECOMPUTE: "full"}, family="qwen3"),), [SMOKE, "4-feature-recompute-full-qwen3"]),
        # A feature of level 4 that is a setting of the run.
        ((SMOKE,), (want(features=frozenset({"packed_seq"})),), [SMOKE, "4-feature-packed-seq"]),
        # A setting that no axis has.
        ((SMOKE,), (want(overrides={"actor_rollout_ref.model.lora.a2a_experimental": True}),), None),
    ),
)  # fmt: skip
def test_conditions_become_few_jobs(
    names: tuple[str, ...], wants: tuple[Want, ...], expected: list[str] | None
) -> None:
    derived = derive(names, *wants)
    assert derived.not_covered == ()
    if expected is not None:
        assert ids(derived) == expected
    assert sum(len(job.purposes) for job in derived.jobs) == len(wants)
    assert len(set(ids(derived))) == len(derived.jobs)


def unmerged(*names: str, **given: Any) -> Derived:
    return derive(names, want({Axis.ADAPTER_MERGE: False}, **given))


def test_a_job_on_a_model_with_experts_merges_its_adapters_whatever_brought_the_experts() -> None:
    sources = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
    site = load_profile("hopper-offline", {"kit": "/opt/kit"})
    wants = (want({E: 2}), want({T: 2}, features=MOE), want({P: 2}, family="qwen3_moe"), want(family="gpt_oss"))
    derived = [*derive((SMOKE, "2-expert")).jobs, *(derive((SMOKE,), given).jobs[-1] for given in wants)]
    jobs = [build_job(job, policy=POLICY, site=site, sources=sources) for job in derived]
    assert {job.id: job.wrapper.get("LORA_MERGE", "False") for job in jobs} == {
        SMOKE: "False",
        "2-expert": "True",
        "2-ep2": "True",
        "2-tp2-moe": "True",
        "2-pp2-qwen3-moe": "True",
        "4-feature-gpt-oss": "True",
    }
    (smoke,) = planned(SMOKE)
    family = next(item for item in POLICY.families if item.name == "gpt_oss")
    expert = with_obstacles(replace(smoke, checkpoint=family.checkpoint), POLICY)
    whole = build_job(expert, policy=POLICY, site=site, sources=sources)
    assert (whole.wrapper["LORA_MERGE"], whole.expected["actor_rollout_ref.model.lora.merge"]) == ("True", True)


def test_what_wants_adapters_that_leave_by_themselves_is_not_put_on_experts() -> None:
    for derived in (
        unmerged(SMOKE, features=MOE),
        unmerged(SMOKE, family="qwen3_moe"),
        unmerged(SMOKE, family="olmoe"),
    ):
        (left,) = derived.not_covered
        assert "vLLM 0.24.0" in left.reason
        assert ids(derived) == [SMOKE]
    assert unmerged(SMOKE, "2-expert").not_covered == ()


@pytest.mark.parametrize(("name", "estimator"), [("2-tp2-gemma3", "grpo"), ("1-ep2-resume", "reinforce_plus_plus")])
def test_a_job_on_a_model_of_its_own_trains_without_a_critic_on_rewards_that_differ(name: str, estimator: str) -> None:
    """A run that resumes draws one response for each prompt, in copies: relative to its group none is better."""
    wants = (want({T: 2}, family="gemma3"), want({Axis.RESUME: True, E: 2}))
    (job,) = (job for job in derive((SMOKE, RESUME), *wants).jobs if job.id == name)
    assert job.variant.wrapper["ADV_ESTIMATOR"] == estimator
    assert set(SHARE_OF_DIGITS) <= set(job.variant.overrides)
    smoke = derive((SMOKE,)).jobs[0].variant
    assert ("ADV_ESTIMATOR" in smoke.wrapper, smoke.overrides) == (False, ())


def test_the_order_of_wants_changes_nothing() -> None:
    wants = (want({T: 2}), want({C: 2}, "g"), want({Axis.ADAPTER: "dora"}), want({Axis.RESUME: True, E: 2}))
    assert derive((SMOKE,), *wants) == derive((SMOKE,), *reversed(wants))


AXES = {
    T: (1, 2, 4, 16),
    P: (1, 2, 3, 4),
    V: (1, 2),
    C: (1, 2),
    E: (1, 2),
    Axis.FSDP: (True, False),
    Axis.ADAPTER: ("lora", "dora", "none"),
    Axis.ADAPTER_B_START: ("xavier", "zero"),
    Axis.RESUME: (True, False),
    Axis.RECOMPUTE: ("full", "none"),
}
WANTS = st.builds(
    want,
    st.lists(st.sampled_from(tuple(AXES)), max_size=2, unique=True).flatmap(
        lambda axes: st.fixed_dictionaries({axis: st.sampled_from(AXES[axis]) for axis in axes})
    ),
    st.sampled_from("fgh"),
    features=st.sampled_from((frozenset(), MOE)),
    limits=st.sampled_from(({}, {T: 1})),
)
TABLES = st.sampled_from(
    ((SMOKE,), (SMOKE, RESUME), (SMOKE, "2-dense"), (SMOKE, "3-fsdp", "5-signal"), (SMOKE, "4-feature"))
)


@given(TABLES, st.lists(WANTS, max_size=4), st.sampled_from((0, 30, 500)))
def test_each_want_has_a_job_or_a_reason_and_no_level_is_lost(
    names: tuple[str, ...], wants: list[Want], minutes: int
) -> None:
    policy = POLICY.model_copy(update={"budget": Budget(gpu_minutes=minutes)})
    before = planned(*names)
    derived = derive(names, *wants, policy=policy)
    assert all(item.reason for item in derived.not_covered)
    asked = [item for item in wants if item.axes or item.limits or item.model != ModelWant()]
    assert sum(len(job.purposes) for job in derived.jobs) + len(derived.not_covered) == len(asked)
    assert len({job.id for job in derived.jobs}) == len(derived.jobs)
    # Every level keeps its job, level 0 the very same one, and no job comes that could not run.
    assert derived.jobs[0] == replace(before[0], purposes=derived.jobs[0].purposes)
    assert [job.variant.level for job in derived.jobs][: len(before)] == [job.variant.level for job in before]
    assert not any(job.obstacles for job in derived.jobs[len(before) :])
    cost, least = (sum(job.gpu_minutes for job in jobs) for jobs in (derived.jobs, before))
    assert cost <= max(minutes, least)
    for job in derived.jobs:
        for purpose in job.purposes:
            own = job.variant.wrapper.get("COMMON_TP", "1")
            assert int(own) >= int(purpose.settings.get(T, 1) or 1)


@given(TABLES, st.lists(WANTS, min_size=1, max_size=4))
def test_what_has_a_job_alone_has_one_among_others(names: tuple[str, ...], wants: list[Want]) -> None:
    policy = POLICY.model_copy(update={"budget": Budget(gpu_minutes=5000)})
    alone = sum(len(derive(names, item, policy=policy).not_covered) for item in wants)
    assert len(derive(names, *wants, policy=policy).not_covered) <= alone


def test_where_a_job_for_all_is_beyond_the_budget_one_for_less_is_planned() -> None:
    less, more = want({Axis.ADAPTER: "dora"}), want({Axis.ADAPTER: "dora", Axis.RESUME: True}, "g")
    minutes = planned(SMOKE)[0].gpu_minutes * 2
    derived = derive((SMOKE,), less, more, policy=POLICY.model_copy(update={"budget": Budget(gpu_minutes=minutes)}))
    assert ids(derived) == [SMOKE, "0-adapter-dora"]
    assert [left.purpose.symbol for left in derived.not_covered] == ["g"]


@pytest.mark.parametrize("names", [(SMOKE,), (SMOKE, "2-dense")])
def test_sizes_that_do_not_divide_the_usual_model_get_a_synthetic_one(names: tuple[str, ...]) -> None:
    derived = derive(names, want({T: 4}))
    assert ids(derived) == [*names, "2-tp4"]
    assert [job.checkpoint.model_id for job in derived.jobs if job.checkpoint][-1] == "synthetic/qwen2"
    bare = POLICY.model_copy(
        update={"families": tuple(family.model_copy(update={"synthetic": None}) for family in POLICY.families)}
    )
    (left,) = derive(names, want({T: 4}), policy=bare).not_covered
    assert left.reason == "14 heads cannot be divided among 4 tensor ranks of Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize(
    ("given_want", "reason"),
    (
        (want({T: 16}), "16 GPUs, and a job has 8"),
        (
            want({T: 2}, family="kimi_k25_vl", fields={"qk_rope_head_dim": 8}),
            "= 8: Bridge takes the classes of its vision",
        ),
        (want(fields={"a": 1}, features=frozenset({"ssm", "mla"})), "a = 1: no synthetic model has mla and ssm"),
        (
            want(family="llama", fields={"a": 1}, features=frozenset({"moe"})),
            "model of llama has not moe",
        ),
        (want({T: 2}, family="no such family"), "the policy has no family no such family"),
        (want({T: 2}, limits={T: 1}), "must not be more than 1"),
        (want({Axis.ADAPTER: "none"}, limits={Axis.STEPS: 1}), "must not be more than 1"),
        (want(limits={T: 1}, family="deepseek_v2"), "the model does not fit into a job with these settings"),
        (want(features=frozenset({"no such feature"})), "no such feature"),
        (want(overrides={"trainer.default_local_dir": "/"}), "is not a setting of the model"),
    ),
)
def test_what_no_job_can_give_is_named_with_the_reason(given_want: Want, reason: str) -> None:
    large = Model(model_id="large/one", weights_gib=29.3, features=("mla", "moe"))
    families = tuple(
        family.model_copy(update={"named": large}) if family.name == "deepseek_v2" else family
        for family in POLICY.families
    )
    derived = derive((SMOKE, RESUME), given_want, policy=POLICY.model_copy(update={"families": families}))
    assert ids(derived) == [SMOKE, RESUME]
    (left,) = derived.not_covered
    assert left.purpose.condition == given_want.condition
    assert reason in left.reason


def test_a_job_that_cannot_run_or_has_another_script_gets_nothing() -> None:
    (smoke, blocked) = planned(SMOKE, "2-dense")
    blocked = replace(blocked, obstacles=(Obstacle(Missing.CHECKPOINT, "none", "name one"),))
    (scripted,) = planned("4-feature")
    script = Feature.model_validate({"feature": "x", "reason": "r", "script": "own.sh"})
    scripted = replace(scripted, features=(script,), obstacles=())
    derived = with_derived_jobs((smoke, blocked, scripted), (want({T: 2}),), POLICY, POLICY.checkpoint)
    assert derived.jobs[:3] == (smoke, blocked, scripted)
    assert [job.id for job in derived.jobs[3:]] == ["2-tp2"]


IMAGES: dict[Axis, Value] = {Axis.CONTENT: "images"}


def test_a_condition_on_images_gets_a_job_whose_data_holds_some() -> None:
    sources = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
    site = load_profile("hopper-offline", {"kit": "/opt/kit"}).model_copy(update={"cannot_run": {}})
    derived = derive((SMOKE,), want(IMAGES, family="qwen3_vl"))
    assert derived.not_covered == ()
    for job in derived.jobs:
        made = build_job(job, policy=POLICY, site=site, sources=sources)
        assert (made.data == PICTURES) is (job.id != SMOKE)


@pytest.mark.parametrize(
    ("axes", "family"),
    ((IMAGES, "gemma3_vl"), ({Axis.CONTENT: "audio"}, "qwen2_audio"), ({T: 2, **IMAGES}, "gemma3_vl")),
)
def test_content_that_verl_does_not_read_is_named_and_gets_no_job(axes: dict[Axis, Value], family: str) -> None:
    derived = derive((SMOKE,), want(axes, family=family))
    assert ids(derived) == [SMOKE]
    ((reason,),) = [{item.reason} for item in derived.not_covered]
    assert reason in {feature.unread for feature in POLICY.features if feature.data == axes[Axis.CONTENT]}

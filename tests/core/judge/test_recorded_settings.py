"""Recorded runs, judged as derived jobs: each setting that such a job was made for holds, or the run is Blocked."""

from functools import cache

import pytest

from tests.core.builders import make_job
from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import Purpose
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.settings import Axis, Value

DENSE, RESUMED, FSDP = "level2-dense", "level1-resume", "level3-adapter-export"
TP2_PP2: dict[Axis, Value] = {Axis.TENSOR: 2, Axis.PIPELINE: 2}
RESUME: dict[Axis, Value] = {Axis.RESUME: True, Axis.STEPS: 2}


@cache
def recording(name: str) -> tuple[Record, LogFacts]:
    folder = FIXTURES / "runs" / name
    return read_record(folder), scan(open_log(folder / "log.txt.zst"))


def judged(name: str, settings: dict[Axis, Value], *purposes: Purpose) -> Verdict:
    """The verdict on a recorded run whose job was made with these settings; its variables stay as they were."""
    record, facts = recording(name)
    assert record.job is not None
    derived = {"id": f"{int(record.job.level)}-derived", "variant": "derived"}
    job = record.job.model_copy(update={**derived, "settings": settings, "purposes": purposes})
    return judge(record.model_copy(update={"job": job}), facts)


def states(verdict: Verdict) -> dict[str, State]:
    return {item.criterion: item.state for item in verdict.evidence}


@pytest.mark.parametrize(("name", "settings"), [(DENSE, TP2_PP2), (RESUMED, RESUME), (FSDP, {Axis.FSDP: True})])
def test_a_run_with_the_settings_of_its_job_shows_them(name: str, settings: dict[Axis, Value]) -> None:
    assert states(judged(name, settings))[Criterion.RESOLVED_CONFIG] is State.MET


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (DENSE, {**TP2_PP2, Axis.TENSOR: 4}, "tensor_model_parallel_size is 2, asked 4"),
        (DENSE, {**TP2_PP2, Axis.RECOMPUTE: "full"}, "recompute_granularity is None, asked 'full'"),
        (RESUMED, {**RESUME, Axis.TENSOR: 2}, "tensor_model_parallel_size is 1, asked 2"),
        (RESUMED, {**RESUME, Axis.EXPERT: 2}, "expert_model_parallel_size is 1, asked 2"),
        (RESUMED, {**RESUME, Axis.FSDP: True}, "use_megatron_fsdp is False, asked True"),
        (RESUMED, {**RESUME, Axis.ADAPTER: "dora"}, "actor_rollout_ref.model.lora.type is 'lora', asked 'dora'"),
        (RESUMED, {**RESUME, Axis.ADAPTER_MERGE: True}, "actor_rollout_ref.model.lora.merge is False, asked True"),
        (
            RESUMED,
            {**RESUME, Axis.ADAPTER_TARGETS: "linear_qkv,router"},
            "actor_rollout_ref.model.lora.target_modules is ['linear_qkv', 'linear_proj', 'linear_fc1', 'linear_fc2'], "
            "asked linear_qkv,router",
        ),
    ],
)
def test_a_run_without_a_setting_of_its_job_is_blocked(name: str, settings: dict[Axis, Value], text: str) -> None:
    verdict = judged(name, settings)
    assert (verdict.result, text in verdict.cause) == (Result.BLOCKED, True), verdict.cause


def test_a_job_of_level_4_that_trained_with_a_critic_is_still_judged_by_what_it_asked_for() -> None:
    record, facts = recording("level4-llama")
    assert record.job is not None
    assert "ADV_ESTIMATOR" not in record.job.wrapper
    assert states(judge(record, facts))[Criterion.RESOLVED_CONFIG] is State.MET


def test_a_setting_that_no_job_can_have_asks_for_nothing() -> None:
    assert states(judged(DENSE, {**TP2_PP2, Axis.RECOMPUTE: "half"}))[Criterion.RESOLVED_CONFIG] is State.MET


def test_sizes_and_megatron_fsdp_are_judged_in_every_level() -> None:
    found = states(judged(RESUMED, {**RESUME, Axis.PIPELINE: 2, Axis.FSDP: True}))
    assert {found[Criterion.PARALLEL_SIZES], found[Criterion.FSDP_ACTIVE]} <= {State.BROKEN, State.MISSING}
    alone = states(judged(RESUMED, {**RESUME, Axis.TENSOR: 1}))
    assert alone.keys().isdisjoint({Criterion.PARALLEL_SIZES, Criterion.FSDP_ACTIVE})
    assert states(judged(DENSE, TP2_PP2))[Criterion.PARALLEL_SIZES] is State.MET
    assert states(judged(FSDP, {Axis.FSDP: True}))[Criterion.FSDP_ACTIVE] is State.MET


@pytest.mark.parametrize(("variant", "settings"), [("dense", {}), ("derived", TP2_PP2)])
def test_a_size_that_a_large_model_raised_is_what_was_asked(variant: str, settings: dict[Axis, Value]) -> None:
    job = recording(DENSE)[0].job
    assert job is not None
    for raised, sizes in (("4", {4}), ("1", {2})):
        wrapper = {**job.wrapper, "COMMON_TP": raised}
        made = job.model_copy(update={"variant": variant, "settings": settings, "wrapper": wrapper, "expected": {}})
        key = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
        assert {value for name, value in requested_config(made) if name == key} == sizes


def test_older_jobs_of_experts_were_not_asked_to_merge_their_adapters() -> None:
    sizes = {"COMMON_TP": "2", "COMMON_EP": "2"}
    merged = make_job(Level.PARALLELISM, "expert", wrapper={**sizes, "LORA_MERGE": "True"})
    older = make_job(Level.PARALLELISM, "expert", wrapper=sizes)
    assert dict(requested_config(merged))["actor_rollout_ref.model.lora.merge"] is True
    assert "actor_rollout_ref.model.lora.merge" not in dict(requested_config(older))

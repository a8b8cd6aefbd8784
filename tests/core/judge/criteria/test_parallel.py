"""Level 2: the requested sizes, not all of them 1, and ranks in the log that had them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record
from tests.core.level_runs import PARALLEL_PIDS, Run, job_of, parallel_log, run_of
from verl_e2e.core.compare.jobs import is_parity, unsharded
from verl_e2e.core.consumer.consumers import variant_of, variants_of
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.features import parallel_sizes, pipeline_schedule
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import related_run_of
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import LoggedProcess, ModelRank, ResolvedConfig
from verl_e2e.core.model.fingerprints import Fingerprints, HookState, ModelInputs, ScheduleUse
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Outcome, Result
from verl_e2e.core.model.related import Role
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import JobPoint

TP2_PP2: dict[str, Any] = {"tensor": 2, "pipeline": 2, "world": 4, "rollout": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "dense": TP2_PP2,
    "vpp": {"pipeline": 2, "chunks": 2, "world": 2},
    "cp": {"world": 2},
    "expert": {"tensor": 2, "world": 2, "rollout": 2},
    "dp2-parity": {"data": 2, "world": 2},
    "tp2-parity": {"tensor": 2, "world": 2, "rollout": 2},
    "pp2-tied-parity": {"pipeline": 2, "world": 2},
}


def run(variant: str, **shape: Any) -> Run:
    """A run of the variant whose log shows these ranks."""
    job = job_of(Level.PARALLELISM, variant, steps=1, wrapper={"TOTAL_TRAIN_STEPS": "1"})
    made = run_of(job, parallel_log(**shape), pids=PARALLEL_PIDS[: job.gpu_count])
    if not is_parity(job):
        return made
    reference = replace(judged(), result=Result.PASS)
    related = related_run_of(
        Role.UNSHARDED, unsharded(job), reference, made.record, made.facts, folder="related/unsharded"
    )
    return Run(made.record.model_copy(update={"related": (related,)}), made.facts)


def test_every_variant_of_the_level_is_tried() -> None:
    assert set(SHAPES) == {variant.name for variant in variants_of(Level.PARALLELISM)}


@pytest.mark.parametrize("variant", SHAPES)
def test_a_run_with_the_ranks_of_its_sizes_passes(variant: str) -> None:
    made = run(variant, **SHAPES[variant])
    item = parallel_sizes(made.case())
    assert item.state is State.MET, item.summary
    verdict = made.verdict()
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    (row,) = (deliverable for deliverable in verdict.deliverables if deliverable.name == "Requested variants")
    sizes, _, compared = row.detail.partition("; 1 step(s) agree with the unsharded reference run")
    assert (row.outcome, sizes) == (Outcome.PASS, f"Parallelism stress ({variant}): {item.summary}")
    assert bool(compared) is variant.endswith("-parity")


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("dense", "tp=2 pp=2 (Level 2, dense)"),
        ("vpp", "pp=2 vpp=2 (Level 2, vpp)"),
        ("expert", "tp=2 ep=2 (Level 2, expert)"),
        ("dp2-parity", "data parallel (Level 2, dp2-parity)"),
    ],
)
def test_the_sentence_of_a_pass_names_the_sizes(variant: str, text: str) -> None:
    assert run(variant, **SHAPES[variant]).verdict().sentence.endswith(text)


def test_expert_sizes_are_owned_up_to_be_those_of_the_configuration() -> None:
    text = "No line of a log names expert ranks, so the expert sizes are those of the run's own configuration."
    assert text in run("expert", **SHAPES["expert"]).verdict().limitations
    assert text not in run("dense", **SHAPES["dense"]).verdict().limitations


@pytest.mark.parametrize("variant", [name for name in SHAPES if name != "dp2-parity"])
def test_the_card_claims_the_sizes_that_were_shown(variant: str) -> None:
    verdict = run(variant, **SHAPES[variant]).verdict()
    assert not [row for row in verdict.limitations if row.startswith("All parallel sizes are 1")]


def test_the_summary_names_sizes_workers_and_ranks() -> None:
    item = parallel_sizes(run("dense", **TP2_PP2).case())
    assert item.summary == (
        "actor and ref and critic have tp=2, pp=2, vpp=1, cp=1, ep=1, etp=1, the rollout tp=2 "
        "(workers of rank 0, 1); "
        "4 process(es) built the models, (tensor, pipeline) ranks (0, 0), (0, 1), (1, 0), (1, 1), data-parallel size 1"
    )


@pytest.mark.parametrize(
    ("variant", "shape", "text"),
    [
        ("dense", {**TP2_PP2, "world": 3}, "3 of 4 processes say that they built a model"),
        (
            "dense",
            {"tensor": 2, "world": 4},
            "(tensor, pipeline) ranks in the log are (0, 0), (1, 0), the sizes make",
        ),
        ("dense", {"world": 4}, "the (tensor, pipeline) ranks in the log are (0, 0), the sizes make"),
        ("dense", {**TP2_PP2, "tensor": 4, "pipeline": 1}, "(2, 0), (3, 0), the sizes make"),
        ("dense", {**TP2_PP2, "data": 2}, "the token counts are of 2 data-parallel ranks, the sizes leave 1"),
        ("dense", {**TP2_PP2, "chunks": 2}, "models of 2 chunk(s) were built, the virtual pipeline asks for 1"),
        ("dense", {**TP2_PP2, "rollout": 4}, "the rollout's tensor ranks in the log are 0, 3, its size is 2"),
        ("vpp", {"pipeline": 2, "chunks": 2, "world": 2, "rollout": 2}, "ranks in the log are 0, 1, its size is 1"),
        ("vpp", {"pipeline": 2, "chunks": 1, "world": 2}, "models of 1 chunk(s) were built"),
        ("cp", {"world": 2, "data": 2}, "the token counts are of 2 data-parallel ranks, the sizes leave 1"),
        ("dp2-parity", {"world": 2, "data": 1}, "counts are of 1 data-parallel ranks, the sizes leave 2"),
    ],
)
def test_a_log_that_shows_other_ranks_is_not_enough(variant: str, shape: dict[str, Any], text: str) -> None:
    made = run(variant, **shape)
    item = parallel_sizes(made.case())
    assert (item.state, text in item.summary) == (State.MISSING, True), item.summary
    assert made.verdict().result is Result.BLOCKED


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_token_counts_that_are_no_numbers_say_nothing(value: float) -> None:
    made = run("dense", **TP2_PP2)
    steps = tuple(
        replace(step, values={**step.values, "perf/total_num_tokens": value, "global_seqlen/mean": 2.0})
        for step in made.facts.steps
    )
    case = Run(made.record, replace(made.facts, steps=steps)).case()
    assert parallel_sizes(case).state is State.MET


def test_chunks_that_no_worker_tells_are_missed_only_under_a_virtual_pipeline() -> None:
    for variant, state in (("vpp", State.MISSING), ("dense", State.MET)):
        log = parallel_log(**SHAPES[variant]).replace("module: ", "modules ")
        job = job_of(Level.PARALLELISM, variant)
        made = run_of(job, log, pids=PARALLEL_PIDS[: job.gpu_count])
        facts = replace(made.facts, workers=tuple(LoggedProcess(pid, "WorkerDict", 1, True) for pid in PARALLEL_PIDS))  # noqa: FBT003
        facts = replace(facts, workers=facts.workers[: job.gpu_count])
        assert parallel_sizes(Run(made.record, facts).case()).state is state


@pytest.mark.no_cover
@pytest.mark.parametrize("asked", SHAPES)
@pytest.mark.parametrize("ran", SHAPES)
def test_the_run_of_another_variant_is_not_this_one(asked: str, ran: str) -> None:
    if asked == ran:
        return
    other = run(ran, **SHAPES[ran])
    made = Run(other.record.model_copy(update={"job": run(asked, **SHAPES[asked]).record.job}), other.facts)
    assert parallel_sizes(made.case()).state is not State.MET
    assert made.verdict().result is Result.BLOCKED


@pytest.mark.parametrize(
    "role", ["actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron", "critic.megatron"]
)
@pytest.mark.parametrize("size", ["tensor", "pipeline", "context", "virtual_pipeline"])
def test_one_model_with_another_size_is_broken(role: str, size: str) -> None:
    made = run("dense", **TP2_PP2)
    key = f"{role}.{size}_model_parallel_size" if size != "context" else f"{role}.context_parallel_size"
    (config,) = made.facts.configs
    values = {**_flat(made), key: 4}
    item = parallel_sizes(Run(made.record, replace(made.facts, configs=(config_with(values, config.line),))).case())
    assert (item.state, key in item.summary) == (State.BROKEN, True)


def _flat(made: Run) -> dict[str, Any]:
    assert made.record.job is not None
    return dict(requested_config(made.record.job))


def test_the_smoke_shows_no_size() -> None:
    made = run_of(job_of(Level.SMOKE, "lora-ddp"), parallel_log())
    assert made.verdict().result is Result.PASS
    assert parallel_sizes(made.case()).summary == "every parallel size is 1: nothing is shown"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trainer.nnodes": None}, "the configuration does not show the actor's sizes"),
        ({"actor_rollout_ref.actor.megatron.context_parallel_size": "one"}, "context_parallel_size is 'one', asked 1"),
    ],
)
def test_a_configuration_without_the_sizes_shows_nothing(changes: dict[str, Any], text: str) -> None:
    made = run("dense", **TP2_PP2)
    config = config_with({**_flat(made), **changes}, made.facts.configs[0].line)
    item = parallel_sizes(Run(made.record, replace(made.facts, configs=(config,))).case())
    assert (item.state is not State.MET, text in item.summary) == (True, True), item.summary


def test_a_run_that_printed_no_configuration_shows_no_size() -> None:
    made = run("dense", **TP2_PP2)
    item = parallel_sizes(Run(made.record, replace(made.facts, configs=())).case())
    assert (item.state, item.summary) == (State.MISSING, "no resolved configuration shows the parallel sizes")


def test_token_counts_that_are_no_whole_share_say_nothing() -> None:
    log = parallel_log(**TP2_PP2).replace("perf/total_num_tokens:9716", "perf/total_num_tokens:14000")
    made = run_of(job_of(Level.PARALLELISM, "dense"), log, pids=PARALLEL_PIDS)
    assert parallel_sizes(made.case()).state is State.MET


def saved_and_resumed(*, world: int) -> Run:
    """A save and a resume at a tensor size of 2; so many processes build models in the second phase."""
    variant = variant_of(
        JobPoint.of_level(Level.SAVE_RESUME).with_axes({Axis.TENSOR: 2}), Level.SAVE_RESUME, "tp2-resume"
    )
    fields = {"gpu_count": 2, "steps": 2, "overrides": variant.overrides, "expected": {}, "settings": {Axis.TENSOR: 2}}
    counts = {"NUM_GPUS": "2", "TOTAL_TRAIN_STEPS": "2"}
    job = make_job(Level.SAVE_RESUME, "tp2-resume", wrapper={**variant.wrapper, **counts}, **fields)
    save = parallel_log(tensor=2, world=2, rollout=2)
    return run_of(job, save, parallel_log(tensor=world, world=world, rollout=2).replace("pid=74", "pid=84"))


def test_each_phase_of_a_save_and_resume_has_the_ranks_of_its_sizes() -> None:
    item = parallel_sizes(saved_and_resumed(world=2).case())
    assert item.state is State.MET, item.summary
    item = parallel_sizes(saved_and_resumed(world=1).case())
    assert item.state is State.MISSING
    assert item.summary == "in the resume phase 1 of 2 processes say that they built a model"


NONE, PLAIN, INTERLEAVED = (
    f"forward_backward_{name}"
    for name in ("no_pipelining", "pipelining_without_interleaving", "pipelining_with_interleaving")
)


def ran(name: str, least: int, most: int = 0, *, training: bool = True) -> ScheduleUse:
    return ScheduleUse(name=name, training=training, calls=2, least=least, most=most or least)


def scheduled(variant: str, phase: str = "train", *, problem: str = "", **uses: tuple[ScheduleUse, ...]) -> Run:
    """A run of the variant in which each model had these schedules."""
    made = run(variant, **SHAPES[variant])
    hook = HookState(
        pid=7, target=f"megatron.core.pipeline_parallel.schedules:{PLAIN}", installed=not problem, problem=problem
    )
    lines = tuple(
        ModelInputs(phase=phase, model=model, pid=7, t_s=1.0, schedules=found) for model, found in uses.items()
    )
    found = Fingerprints(hooks=(hook,), inputs=lines)
    return Run(made.record.model_copy(update={"fingerprints": found}), made.facts)


def test_a_pipeline_that_was_full_in_every_training_pass_is_shown() -> None:
    ahead = ran(NONE, 1, training=False)
    item = pipeline_schedule(scheduled("dense", actor=(ran(PLAIN, 2, 4), ahead), critic=(ran(PLAIN, 3),)).case())
    assert (item.state, item.file) == (State.MET, "fingerprints.jsonl")
    assert item.summary == (f"{PLAIN} over 2 stages (train: actor 2 to 4 micro-batches, train: critic 3 micro-batches)")
    both = (ran(INTERLEAVED, 2),)
    assert pipeline_schedule(scheduled("vpp", actor=both, critic=both).case()).state is State.MET


FULL = (ran(PLAIN, 4),)


@pytest.mark.parametrize(
    ("variant", "uses", "text"),
    [
        (
            "dense",
            {"actor": FULL, "critic": (ran(PLAIN, 1, 3),)},
            "a training pass of the critic in the train phase had 1",
        ),
        (
            "dense",
            {"actor": (ran(NONE, 4),), "critic": FULL},
            f"of the actor in the train phase was {NONE}, not {PLAIN}",
        ),
        ("dense", {"actor": (*FULL, ran(NONE, 4)), "critic": FULL}, f"was {NONE}, not {PLAIN}"),
        ("dense", {"actor": (ran(INTERLEAVED, 4),), "critic": FULL}, f"was {INTERLEAVED}, not {PLAIN}"),
        ("vpp", {"actor": FULL, "critic": FULL}, f"was {PLAIN}, not {INTERLEAVED}"),
        ("dense", {"actor": FULL}, "no schedule of the critic in the train phase was seen to train"),
        ("dense", {"actor": (ran(PLAIN, 4, training=False),), "critic": FULL}, "no schedule of the actor"),
        ("dense", {"phase": "resume", "actor": FULL, "critic": FULL}, "no schedule of the actor in the train phase"),
        ("dense", {"problem": "it is not there"}, "seen to train (megatron.core.pipeline_parallel.schedules:"),
    ],
)
def test_a_pipeline_that_was_not_full_keeps_a_run_from_passing(variant: str, uses: dict[str, Any], text: str) -> None:
    made = scheduled(variant, **uses)
    item = pipeline_schedule(made.case())
    assert (item.state, text in item.summary) == (State.MISSING, True), item.summary
    assert made.verdict().result is Result.BLOCKED


def test_more_stages_ask_for_more_micro_batches() -> None:
    made = scheduled("dense", actor=FULL, critic=FULL)
    job = made.case().job
    for stages, state in (("4", State.MET), ("8", State.MISSING), ("two", State.MET)):
        deeper = job.model_copy(update={"wrapper": {**job.wrapper, "COMMON_PP": stages}})
        case = Run(made.record.model_copy(update={"job": deeper}), made.facts).case()
        assert pipeline_schedule(case).state is state


@pytest.mark.parametrize("recorded", [None, Fingerprints(hooks=(HookState(pid=7, target="x:Y.z", installed=True),))])
def test_a_folder_from_before_schedules_were_recorded_has_a_limitation(recorded: Fingerprints | None) -> None:
    made = run("dense", **TP2_PP2)
    made = Run(made.record.model_copy(update={"fingerprints": recorded}), made.facts)
    assert pipeline_schedule(made.case()).state is State.WAIVED
    text = "With which schedule and how many micro-batches a pipeline trained was not recorded."
    assert text in made.verdict().limitations


def test_only_pipelines_ask_for_a_schedule() -> None:
    asked = {
        variant
        for variant, shape in SHAPES.items()
        if Criterion.PIPELINE_SCHEDULE in {item.criterion for item in run(variant, **shape).verdict().evidence}
    }
    assert asked == {"dense", "vpp", "pp2-tied-parity"}


def test_a_job_of_another_level_that_has_sizes_is_judged_by_them() -> None:
    assert Criterion.PARALLEL_SIZES in {item.criterion for item in saved_and_resumed(world=2).verdict().evidence}


SKYRL_SIZES = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 1,
}


@pytest.mark.parametrize(("pids", "state"), [((1, 2, 3, 4), State.MET), ((1, 2, 3), State.MISSING)])
def test_skyrl_has_no_key_of_virtual_stages_and_a_reference_of_its_own_processes(
    pids: tuple[int, ...], state: State
) -> None:
    values = {
        "trainer": {
            "policy": {"megatron_config": SKYRL_SIZES},
            "ref": {"megatron_config": SKYRL_SIZES},
            "placement": {"policy_num_nodes": 1, "policy_num_gpus_per_node": 2},
        },
        "generator": {"inference_engine": {"tensor_parallel_size": 2}},
    }
    facts = make_facts(
        configs=(ResolvedConfig(1, values),),
        ranks=tuple(ModelRank(2, rank, 0) for rank in range(2)),
        workers=tuple(LoggedProcess(pid, "MegatronPolicyWorkerBase", 2, built_model=True) for pid in pids),
    )
    job = make_job(gpu_count=2, consumer="skyrl", wrapper={}, expected={})
    item = parallel_sizes(make_case(make_record(job=job), facts))
    assert item.state is state, item.summary
    assert ("4 process(es)" if state is State.MET else "3 of 4 processes") in item.summary

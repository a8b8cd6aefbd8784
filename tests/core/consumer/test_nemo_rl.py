"""NeMo-RL's commands, files and limits, of which none was run; its own loader and models are asked where it is named.

`NEMO_RL=DIR NEMO_RL_PYTHON=FILE`: a checkout of NeMo-RL, and a Python with hydra-core and pydantic.
"""

import json
import lzma
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import make_case, make_facts, make_job, make_record
from tests.core.consumer.consumer_jobs import jobs_of, variables_of
from tests.fakes.places import ROOT
from verl_e2e.core.compare.jobs import is_parity, unsharded
from verl_e2e.core.consumer.consumer import PlannedPhase, Quantity
from verl_e2e.core.consumer.consumers import measured, variant_of
from verl_e2e.core.consumer.nemo_rl import NEMO_RL
from verl_e2e.core.consumer.nemo_rl_log import read_master_config
from verl_e2e.core.judge.criteria.metrics import gradients, rollout_agreement
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import LogFacts, StepMetrics
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis, same_value
from verl_e2e.core.model.space import POINTS

MADE = ROOT / "tests/fixtures/nemo_rl"
METRICS: dict[str, dict[str, float]] = json.loads((MADE / "metrics.json").read_text())
# Where model, data and results of a run lie.
PLACES = (
    "policy.model_name=/m",
    "data.train.dataset_name=ResponseDataset",
    "+data.train.data_path=/t.jsonl",
    "data.train.split_validation_size=0",
    "checkpointing.checkpoint_dir=/o/checkpoints",
    "logger.log_dir=/o/logs",
)
HOST = NEMO_RL.host(make_job().site, reward_model=False, gpus_of_node=1)
CONFIG = "examples/configs/grpo_math_1B_megatron.yaml"


def words(variant: Variant) -> list[str]:
    """The configuration of a job and its overrides, each key once."""
    values = {key: f"{key}={value}" for key, value in NEMO_RL.expected(variables_of(NEMO_RL, variant), ()).items()}
    overrides = (*HOST, *PLACES, *variant.overrides)
    return [CONFIG, *{**values, **{item.lstrip("+").partition("=")[0]: item for item in overrides}}.values()]


def named(name: str) -> Variant:
    level = Level(int(name[0]))
    return variant_of(POINTS[name], level, name[2:], consumer=NEMO_RL)


def steps_of(metrics: dict[str, dict[str, float]]) -> tuple[StepMetrics, ...]:
    """The training steps of a file of metrics, as its lines in a log are read."""
    steps: dict[int, dict[str, float]] = {}
    for name, series in metrics.items():
        for number, value in series.items():
            steps.setdefault(int(number), {})[name] = value
    return tuple(StepMetrics(number, 0, steps[number]) for number in sorted(steps) if number)


def read(content: str) -> LogFacts:
    scanner = LogScanner()
    scanner.feed(content.encode())
    return scanner.finish()


@pytest.mark.parametrize(
    ("ratio", "state"),
    [(1.0118, State.MET), (1.06, State.BROKEN), (0.9, State.MISSING), (math.nan, State.MISSING)],
)
def test_trainer_and_rollout_are_held_to_the_ratio_of_their_probabilities(ratio: float, state: State) -> None:
    job = make_job(consumer="nemo-rl", wrapper=dict(NEMO_RL.base), overrides=(), steps=1)
    steps = steps_of({"train/token_mult_prob_error": {"1": ratio}})
    assert rollout_agreement(make_case(make_record(job=job), make_facts(configs=(), steps=steps))).state is state


def recorded() -> str:
    return lzma.decompress((MADE / "configuration.log.xz").read_bytes()).decode()


def test_its_jobs_are_of_all_levels_but_the_one_that_it_does_not_have() -> None:
    assert {variant.level for variant in jobs_of(NEMO_RL)} == {*Level} - {Level.MEGATRON_FSDP}


def test_its_configuration_follows_from_the_sizes() -> None:
    variant = named("2-dense")
    assert {
        "policy.megatron_cfg.tensor_model_parallel_size": 2,
        "policy.megatron_cfg.pipeline_model_parallel_size": 2,
        "policy.megatron_cfg.sequence_parallel": True,
        "policy.generation.vllm_cfg.tensor_parallel_size": 2,
        "cluster.gpus_per_node": variant.gpu_count,
    }.items() <= NEMO_RL.expected(variables_of(NEMO_RL, variant), ()).items()
    assert NEMO_RL.expected(NEMO_RL.base, ())["policy.megatron_cfg.sequence_parallel"] is False
    assert NEMO_RL.expected(NEMO_RL.base, ("grpo.seed=1", "+grpo.seed=2"))["grpo.seed"] == 2


def test_a_save_is_resumed_from_the_same_folder() -> None:
    variant = named("1-resume")
    job = make_job(Level.SAVE_RESUME, "resume", consumer="nemo-rl", wrapper=variables_of(NEMO_RL, variant), steps=2)
    assert NEMO_RL.phases(job) == (
        PlannedPhase("save", 1, 1, {"MAX_NUM_STEPS": "1"}),
        PlannedPhase("resume", 2, 2, {"MAX_NUM_STEPS": "2"}),
    )
    shown = NEMO_RL.expected(job.wrapper, variant.overrides, phases=2)
    assert "grpo.max_num_steps" not in shown
    assert shown["checkpointing.enabled"] is True


@pytest.mark.parametrize(
    ("axis", "value", "said"),
    [
        (Axis.VIRTUAL_PIPELINE, 2, "must be None or 1"),
        (Axis.FSDP, True, "use_custom_fsdp"),
        (Axis.ADAPTER, "dora", "peft = LoRA(...)"),
        (Axis.ADAPTER_MERGE, False, "export_hf_weights"),
        (Axis.ADAPTER_SHARING, "outer", "MegatronPeftConfig"),
        (Axis.REWARD_MODEL, True, "Reward models are not yet supported with the Megatron backend"),
    ],
)
def test_what_it_does_not_do_is_said_in_its_own_words(axis: Axis, value: Any, said: str) -> None:
    refusal = NEMO_RL.refused(axis, value)
    assert refusal is not None
    assert said in refusal.reason


def test_more_ranks_are_tensor_ranks() -> None:
    wider = NEMO_RL.spread({"TENSOR_MODEL_PARALLEL_SIZE": "2"}, parts=4, factor=2, experts=True)
    assert wider == {
        "ENGINE_TENSOR_PARALLEL_SIZE": "4",
        "TENSOR_MODEL_PARALLEL_SIZE": "4",
        "EXPERT_MODEL_PARALLEL_SIZE": "2",
    }
    assert NEMO_RL.shards(Variant(Level.PARALLELISM, "x", 4, wider)) == 4


def test_a_job_that_is_compared_has_an_unsharded_one_with_the_same_samples() -> None:
    variant = named("2-tp2-parity")
    settings = {"wrapper": variables_of(NEMO_RL, variant), "overrides": variant.overrides, "gpu_count": 2}
    job = make_job(Level.PARALLELISM, "tp2-parity", consumer="nemo-rl", script=NEMO_RL.script, **settings)
    assert is_parity(job)
    alone = unsharded(job)
    assert {name: alone.wrapper[name] for name in NEMO_RL.base} == {
        **NEMO_RL.base,
        "MAX_NUM_STEPS": job.wrapper["MAX_NUM_STEPS"],
    } | {name: text for name, text in variant.wrapper.items() if not name.endswith("_PARALLEL_SIZE")}
    assert "data.shuffle=false" in alone.overrides


def test_a_quantity_is_read_by_its_name() -> None:
    first, second = steps_of(METRICS)
    assert [first.step, second.step] == [1, 2]
    assert measured(first.values, Quantity.GRADIENT_NORM) == 0.4182173013687134
    assert measured(second.values, Quantity.SCORE) == 0.375
    assert measured(second.values, Quantity.STEP_TIME) == 16.75
    assert measured(first.values, Quantity.PROBABILITY_RATIO) == 1.0121


def log_of(done: int, total: int) -> LogFacts:
    """A made log of a run that came to its end: what the console shows, then the first steps of the file as lines."""
    shown = ["Applied CLI overrides", *recorded().splitlines(), "▶ Setting up compute cluster..."]
    shown += ["  ✓ Training dataloader loaded with 64 samples", "▶ Training policy..."]
    shown += ["Max number of steps has been reached, stopping training early"]
    shown += [f"[verl-e2e] metrics of step {step.step}: {json.dumps(step.values)}" for step in steps_of(METRICS)[:done]]
    shown += [f"[verl-e2e] steps in the file of metrics: {100 * done // total}% {done}/{total}"]
    return read("\n".join(shown) + "\n")


def test_the_lines_of_a_log_say_the_metrics_and_how_far_the_run_came() -> None:
    facts = log_of(2, 2)
    assert [(step.step, dict(step.values)) for step in facts.steps] == [
        (step.step, dict(step.values)) for step in steps_of(METRICS)
    ]
    assert facts.progress is not None
    assert (facts.progress.percent, facts.progress.done, facts.progress.total) == (100, 2, 2)
    assert facts.completed_at is not None
    assert facts.runs == 1


@pytest.mark.parametrize(("done", "total", "percent"), [(1, 2, 50), (0, 2, 0)])
def test_fewer_steps_do_not_reach_the_last(done: int, total: int, percent: int) -> None:
    facts = log_of(done, total)
    assert facts.progress is not None
    assert (facts.progress.percent, facts.progress.done, facts.progress.total) == (percent, done, total)
    assert len(facts.steps) == done


@pytest.mark.parametrize(
    ("norm", "state"),
    [(None, State.MET), (0.0, State.BROKEN), (math.nan, State.BROKEN), ("absent", State.MISSING)],
)
def test_a_file_of_metrics_is_judged(norm: float | str | None, state: State) -> None:
    document = {name: dict(series) for name, series in METRICS.items()}
    if isinstance(norm, str):
        del document["train/grad_norm"]
    elif norm is not None:
        document["train/grad_norm"]["2"] = norm
    job = make_job(consumer="nemo-rl", wrapper=dict(NEMO_RL.base), overrides=(), steps=2)
    facts = make_facts(configs=(), steps=steps_of(document))
    assert gradients(make_case(make_record(job=job), facts)).state is state


def test_the_configuration_that_it_prints_holds_what_a_job_expects() -> None:
    facts = read(recorded())
    (config,) = facts.configs
    assert config.values is not None, config.problem
    expected = NEMO_RL.expected(variables_of(NEMO_RL, named("0-lora-ddp")), HOST)
    wrong = {key for key, value in expected.items() if not same_value(lookup(config.values, key, "missing"), value)}
    assert not wrong


@pytest.mark.parametrize("text", ["MasterConfig(policy={'a': 1", "MasterConfig(policy={})", "[1]", "MasterConfig(1)"])
def test_a_configuration_that_was_cut_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="configuration"):
        read_master_config(text)


def asked(arguments: list[list[str]]) -> list[dict[str, Any]]:
    """What its loader and models say."""
    checkout, python = Path(os.environ["NEMO_RL"]), os.environ["NEMO_RL_PYTHON"]
    finished = subprocess.run(
        [python, str(Path(__file__).with_name("ask_nemo_rl.py")), str(checkout)],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


@pytest.mark.nemo_rl
def test_its_own_loader_takes_every_job_as_it_is_meant() -> None:
    variants = jobs_of(NEMO_RL)
    assert len(variants) > 30
    for variant, answer in zip(variants, asked([*map(words, variants)]), strict=True):
        assert "error" not in answer, (variant, answer)
        facts = read(f"{answer['shown']}\n")
        expected = NEMO_RL.expected(variables_of(NEMO_RL, variant), (*HOST, *variant.overrides))
        for found in (answer["config"], facts.configs[0].values):
            wrong = {key for key, value in expected.items() if not same_value(lookup(found, key, "missing"), value)}
            assert not wrong, variant


@pytest.mark.nemo_rl
def test_its_own_loader_refuses_a_key_that_it_does_not_have() -> None:
    plain = words(named("0-lora-ddp"))
    (answer,) = asked([[*plain, "policy.megatron_cfg.virtual_pipeline_model_parallel_size=2"]])
    assert "Could not override" in answer["error"]

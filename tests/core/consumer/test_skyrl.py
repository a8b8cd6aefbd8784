"""SkyRL's settings, log and limits; the arguments of every job are given to its own parser where a checkout is named.

`SKYRL=DIR SKYRL_PYTHON=FILE`: a checkout of SkyRL, and a Python that can import its configuration.
"""

import json
import lzma
import math
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.consumer.consumer_jobs import jobs_of, variables_of
from tests.fakes.places import ROOT
from verl_e2e.core.compare.steps import compare_steps
from verl_e2e.core.consumer.consumer import PlannedPhase, joined_settings
from verl_e2e.core.consumer.consumers import variant_of
from verl_e2e.core.consumer.skyrl import ENTRY_KEY, SKYRL, command
from verl_e2e.core.consumer.skyrl_log import read_metrics, read_yaml
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis, same_value
from verl_e2e.core.model.space import POINTS

PLACES = (
    "trainer.policy.model.path=/m",
    "data.train_data=['/t.parquet']",
    "data.val_data=['/v.parquet']",
    "trainer.log_path=/o/log",
    "trainer.ckpt_path=/o/saved",
    "trainer.export_path=/o/exported",
    f"{ENTRY_KEY}=verl_e2e_skyrl",
)
LOGS = ROOT / "tests/fixtures/skyrl"
HOST = SKYRL.host(make_job().site, reward_model=False, gpus_of_node=1)


def arguments(variant: Variant) -> tuple[str, ...]:
    return command(variables_of(SKYRL, variant), (*PLACES, *HOST, *variant.overrides))


def test_a_command_has_each_key_once_and_the_engines_that_fill_the_gpus() -> None:
    variant = variant_of(POINTS["2-dense"], Level.PARALLELISM, "dense", consumer=SKYRL)
    made = arguments(variant)
    keys = [item.partition("=")[0] for item in made]
    assert len(keys) == len({*keys})
    assert variant.gpu_count == 4
    for expected in (
        "trainer.policy.megatron_config.tensor_model_parallel_size=2",
        "trainer.ref.megatron_config.pipeline_model_parallel_size=2",
        "trainer.placement.policy_num_gpus_per_node=4",
        "generator.inference_engine.tensor_parallel_size=2",
        "generator.inference_engine.num_engines=2",
        "trainer.strategy=megatron",
    ):
        assert expected in made
    later = command(SKYRL.base, ("trainer.seed=1", "trainer.seed=2"))
    assert [item for item in later if item.startswith("trainer.seed=")] == ["trainer.seed=2"]


def test_adapters_that_leave_by_themselves_cannot_have_an_eager_engine() -> None:
    alone = SKYRL.setting(Axis.ADAPTER_MERGE, value=False)
    shown = SKYRL.expected({**SKYRL.base, **alone.wrapper}, ())
    assert shown["generator.inference_engine.enforce_eager"] is False
    assert shown["trainer.policy.megatron_config.lora_config.merge_lora"] is False


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        (Axis.VIRTUAL_PIPELINE, 2, "virtual_pipeline_model_parallel_size"),
        (Axis.VIRTUAL_PIPELINE, 4, "virtual pipeline parallel is not yet supported"),
        (Axis.FSDP, True, "use_megatron_fsdp"),
        (Axis.ADAPTER, "dora", "configure_lora"),
        (Axis.ADAPTER_B_START, "xavier", "lora_B_init_method"),
        (Axis.REWARD_MODEL, True, "Invalid fields {'reward'}"),
    ],
)
def test_what_skyrl_does_not_do_is_said_in_its_own_words(axis: Axis, value: Any, words: str) -> None:
    refusal = SKYRL.refused(axis, value)
    assert refusal is not None
    assert words in refusal.reason


def test_what_it_does_is_not_refused() -> None:
    taken: list[tuple[Axis, Any]] = [(Axis.VIRTUAL_PIPELINE, 1), (Axis.FSDP, False), (Axis.TENSOR, 8)]
    assert [SKYRL.refused(axis, value) for axis, value in taken] == [None, None, None]
    assert [*SKYRL.refused_levels] == [Level.MEGATRON_FSDP]


def test_level_1_saves_and_starts_again_from_the_latest_checkpoint() -> None:
    variant = variant_of(POINTS["1-resume"], Level.SAVE_RESUME, "resume", consumer=SKYRL)
    job = make_job(Level.SAVE_RESUME, "resume", consumer="skyrl", wrapper=variables_of(SKYRL, variant), steps=2)
    assert SKYRL.phases(job) == (
        PlannedPhase("save", 1, 1, {"MAX_TRAINING_STEPS": "1"}),
        PlannedPhase("resume", 2, 2, {"RESUME_MODE": "latest", "MAX_TRAINING_STEPS": "2"}),
    )
    shown = SKYRL.expected(job.wrapper, (), phases=2)
    assert not {"trainer.max_training_steps", "trainer.resume_mode"} & {*shown}
    assert shown["trainer.ckpt_interval"] == 1


def recorded() -> bytes:
    return lzma.decompress((LOGS / "configuration.log.xz").read_bytes())


def test_the_configuration_that_skyrl_prints_in_colours_is_read() -> None:
    # Ray puts a prefix before each line; another worker's lines are in between.
    lines = [b"(skyrl_entrypoint pid=7) " + line for line in recorded().splitlines()]
    lines[9:9] = [b"(MegatronPolicyWorkerBase pid=8) trainer:", b"(MegatronPolicyWorkerBase pid=8)   seed: 1"]
    for text in (recorded(), b"\n".join(lines) + b"\n"):
        scanner = LogScanner()
        scanner.feed(text)
        facts = scanner.finish()
        (config,) = facts.configs
        assert config.values is not None, config.problem
        assert lookup(config.values, "trainer.policy.megatron_config.lora_config.merge_lora") is True
        assert lookup(config.values, "trainer.policy.optimizer_config.lr") == 1e-6
        assert lookup(config.values, "trainer.policy.optimizer_config.adam_betas") == [0.9, 0.999]
        assert lookup(config.values, "trainer.seed") == 42
        kwargs = lookup(config.values, "trainer.policy.megatron_config.transformer_config_kwargs")
        assert kwargs["recompute_modules"] == ["core_attn"]


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ("1.0e-06", 1e-6),
        (".inf", math.inf),
        ("'it''s'", "it's"),
        ('"a: b"', "a: b"),
        ("{}", {}),
        ("[]", []),
        ("null", None),
        ("-1", -1),
        ("latest", "latest"),
        ("/a/b.parquet", "/a/b.parquet"),
        ("1e-6", "1e-6"),
        ("one text that was too long\n    for its line", "one text that was too long for its line"),
    ],
)
def test_a_value_is_read_as_yaml_means_it(shown: str, value: object) -> None:
    text = f"x - data:\n  a: {shown}\nenvironment:\n  b: 1\ngenerator:\n  c: 2\ntrainer:\n  train_batch_size: 3\n"
    assert lookup(read_yaml(text), "data.a") == value


def test_a_quoted_key_is_a_key() -> None:
    text = (
        "x - data:\n  'a b': 1\n  '8': {}\nenvironment:\n  b: 1\ngenerator:\n  c: 2\ntrainer:\n  train_batch_size: 3\n"
    )
    assert read_yaml(text)["data"] == {"a b": 1, "8": {}}


@pytest.mark.parametrize("end", [2, 40, 200])
def test_a_configuration_that_was_cut_is_not_read(end: int) -> None:
    lines = recorded().decode().splitlines()[:end]
    scanner = LogScanner()
    scanner.feed(("\n".join(lines) + "\n").encode())
    (config,) = scanner.finish().configs
    assert config.values is None
    assert "cut" in config.problem


def test_the_metrics_of_a_step_are_read_in_full() -> None:
    line = '[verl-e2e] metrics of step 3: {"policy/grad_norm": 6.653469021234, "policy/final_loss": NaN, "a": "b"}'
    found = read_metrics(line)
    assert found is not None
    assert found[0] == 3
    assert found[1]["policy/grad_norm"] == 6.653469021234
    assert math.isnan(found[1]["policy/final_loss"])
    assert "a" not in found[1]
    huge = read_metrics(f'[verl-e2e] metrics of step 3: {{"a": 1{"0" * 400}, "b": -1{"0" * 400}, "c": 2, "d": true}}')
    assert huge == (3, {"a": math.inf, "b": -math.inf, "c": 2.0})
    assert read_metrics("[verl-e2e] metrics of step 3: {cut") is None
    assert read_metrics('[verl-e2e] metrics of step 3: {"cut') is None


def parsed(asked: list[tuple[str, ...]]) -> list[Mapping[str, Any]]:
    """What SkyRL's own parser and checks say, by the program that preflight asks."""
    checkout, python = Path(os.environ["SKYRL"]), os.environ["SKYRL_PYTHON"]
    instrumentation = ROOT / "runners/verl_e2e_runner/instrumentation"
    path = [str(instrumentation), str(checkout), str(checkout / "skyrl-gym"), os.environ.get("SKYRL_PATH", "")]
    finished = subprocess.run(
        [python, "-m", "verl_e2e_skyrl"],
        input=json.dumps([{"arguments": list(item)} for item in asked]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    answers: list[Mapping[str, Any]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


@pytest.mark.skyrl
def test_skyrls_own_parser_takes_every_job_as_it_is_meant() -> None:
    variants = jobs_of(SKYRL)
    assert len(variants) > 30
    for variant, answer in zip(variants, parsed([*map(arguments, variants)]), strict=True):
        assert "error" not in answer, (variant, answer)
        expected = SKYRL.expected(variables_of(SKYRL, variant), (*HOST, *variant.overrides))
        wrong = {
            key: lookup(answer["config"], key, "missing")
            for key, value in expected.items()
            if not same_value(lookup(answer["config"], key, "missing"), value)
        }
        assert not wrong, variant


@pytest.mark.skyrl
def test_skyrls_own_parser_refuses_what_is_called_refused() -> None:
    plain = arguments(variant_of(POINTS["0-lora-ddp"], Level.SMOKE, "plain", consumer=SKYRL))
    policy = "trainer.policy.megatron_config"
    refused = {
        f"{policy}.virtual_pipeline_model_parallel_size=2": "Invalid fields {'virtual_pipeline_model_parallel_size'}",
        f"{policy}.ddp_config.use_megatron_fsdp=true": "Invalid fields {'use_megatron_fsdp'} for MegatronDDPConfig",
        "trainer.policy.model.lora.lora_B_init_method=xavier": "Invalid fields {'lora_B_init_method'}",
        "trainer.policy.model.lora.share_expert_adapters=false": "Invalid fields {'share_expert_adapters'}",
        "reward.enable=true": "Invalid fields {'reward'} for SkyRLTrainConfig",
        "trainer.critic.model.path=/m": "only GRPO training is currently supported for megatron",
        "++trainer.seed=1": "prefix for adding new config fields is not supported",
    }
    answers = parsed([(*plain, item) for item in refused])
    for words, answer in zip(refused.values(), answers, strict=True):
        assert words in answer.get("error", ""), answer
    # Its parser takes this one, and then no adapter is made: our own table is what refuses it.
    (taken,) = parsed([(*plain, f"{policy}.lora_config.lora_type=dora")])
    assert "config" in taken
    assert SKYRL.refused(Axis.ADAPTER, "dora") is not None


def test_settings_of_several_axes_join() -> None:
    whole = joined_settings([SKYRL.setting(Axis.TENSOR, 2), SKYRL.setting(Axis.PIPELINE, 2)])
    assert SKYRL.shards(Variant(Level.PARALLELISM, "x", 4, whole.wrapper)) == 4
    wider = SKYRL.spread(whole.wrapper, parts=4, factor=2, experts=True)
    assert (wider["TENSOR_MODEL_PARALLEL_SIZE"], wider["ENGINE_TENSOR_PARALLEL_SIZE"]) == ("4", "4")
    assert wider["EXPERT_MODEL_PARALLEL_SIZE"] == "2"


def test_each_key_that_the_judge_asks_for_is_one_that_skyrl_prints() -> None:
    scanner = LogScanner()
    scanner.feed(recorded())
    (config,) = scanner.finish().configs
    absent = [key for key in SKYRL.keys.values() if lookup(config.values, key, "absent") == "absent"]
    # Of a field of Megatron's it prints what a job sets.
    assert absent == ["trainer.policy.megatron_config.transformer_config_kwargs.sequence_parallel"]
    assert all(isinstance(lookup(config.values, key), dict) for key in SKYRL.models.values())


STEP = {
    "policy/grad_norm": 6.65,
    "policy/policy_loss": 0.02,
    "policy/policy_entropy": 5.67,
    "policy/policy_kl": 0.001,
    "reward/avg_raw_reward": 6.0,
}


@pytest.mark.parametrize(
    ("changed", "beyond"),
    [
        # What other samples of the same training do, and what SkyRL's own figures of layouts do.
        ({"policy/grad_norm": 6.85, "policy/policy_loss": 0.04, "reward/avg_raw_reward": 6.4}, []),
        ({"policy/grad_norm": 6.66}, []),
        # Gradients that two and four data-parallel ranks never average.
        ({"policy/grad_norm": 6.65 * math.sqrt(2)}, ["policy/grad_norm"]),
        ({"policy/grad_norm": 12.39976}, ["policy/grad_norm"]),
        ({"policy/policy_entropy": 5.2}, ["policy/policy_entropy"]),
    ],
)
def test_a_layout_is_compared_with_the_unsharded_run(changed: Mapping[str, float], beyond: list[str]) -> None:
    def steps(values: Mapping[str, float]) -> list[StepMetrics]:
        return [StepMetrics(number, number, {**STEP, **values, "trainer/global_step": number}) for number in (1, 2, 3)]

    found = compare_steps(steps(changed), steps({}), equal_start=True)
    assert found.comparable
    assert [item.compared.metric for item in found.beyond] == beyond

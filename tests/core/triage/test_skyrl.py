"""SkyRL's logs: twelve ends of a run, each with stage and blame, and no hollow run that passes.

The files of tests/fixtures/skyrl were recorded from SkyRL's own functions on a CPU, at 21a1e6ef7: its parser, its
checks, its reader of data, its configuration, its look for a checkpoint. What is built here is made in its form.
"""

import json
import lzma

import pytest

from tests.core.logs import lines
from tests.fakes.places import FIXTURES
from verl_e2e.core.consumer.skyrl_log import METRICS_MARK
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage

PASS, FAIL, BLOCKED = TriageVerdict.PASS, TriageVerdict.FAIL, TriageVerdict.BLOCKED
FOLDER = FIXTURES / "skyrl"
DRIVER = "(skyrl_entrypoint pid=700) "
TRAINER = "(MegatronPolicyWorkerBase pid=800) "
ENGINE = "(VLLMServerActor pid=900) "
GREEN, OFF = "\x1b[32m", "\x1b[0m"


def said(module: str, function: str, text: str, level: str = "INFO    ", process: str = DRIVER) -> str:
    """A line of loguru as SkyRL colours it in a worker."""
    at = f"\x1b[36m{module}{OFF}:\x1b[36m{function}{OFF}:\x1b[36m12{OFF}"
    return f"{process}{GREEN}2026-11-28 08:00:00.123{OFF} | \x1b[1m{level}{OFF} | {at} - \x1b[1m{text}{OFF}"


def trained(text: str, function: str = "train") -> str:
    return said("skyrl.train.trainer", function, text)


def step(number: int, **changed: float) -> str:
    values = {
        "policy/grad_norm": 6.653469021234,
        "policy/policy_loss": 0.02,
        "policy/policy_entropy": 5.67,
        "policy/policy_kl": 0.001,
        "policy/rollout_train_logprobs_abs_diff_mean": 0.004,
        "reward/avg_raw_reward": 5.0 + number,
        "loss/avg_raw_advantages_abs": 0.8,
        "generate/avg_num_tokens": 63.5,
        "policy/policy_lr": 1e-4,
        "trainer/global_step": float(number),
        "timing/step": 41.2,
    }
    named = {name.replace("__", "/"): value for name, value in changed.items()}
    return f"{DRIVER}{METRICS_MARK}{number}: {json.dumps({**values, **named})}"


def bar(done: int, total: int) -> str:
    return f"{DRIVER}Training Batches Processed: {100 * done // total}%|####| {done}/{total} [00:41<00:00, 41.2s/it]"


def recorded(name: str) -> list[str]:
    file = FOLDER / name
    text = lzma.decompress(file.read_bytes()) if name.endswith(".xz") else file.read_bytes()
    return text.decode().splitlines()


CONFIGURATION = [DRIVER + row for row in recorded("configuration.log.xz")]
BEGINNING = (
    said(
        "skyrl.train.utils.utils",
        "prepare_runtime_environment",
        "Exporting `PYTHONPATH` to ray runtime env: /a",
        process="",
    ),
    "2026-11-28 08:00:01,000 INFO worker.py:2013 -- Started a local Ray instance.",
    said("skyrl.train.dataset.dataset", "_read_files_and_tokenize", "Total dataset size: 128"),
    *CONFIGURATION,
    said("skyrl.train.entrypoints.main_base", "get_inference_client", "Initializing inference client"),
)
BUILT = (
    f"{TRAINER} > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1000000",
    trained("init policy/ref/critic models done", "build_models"),
    trained("Initialized weight sync state for policy model and inference engines.", "init_weight_sync_state"),
)
DONE = trained("Training done!")
GOOD = (*BEGINNING, *BUILT, step(1), bar(1, 1), DONE)


def raised(process: str, where: str, error: str) -> tuple[str, ...]:
    file, function = where.split(":")
    return tuple(
        process + row
        for row in ("Traceback (most recent call last):", f'  File "/opt/{file}", line 7, in {function}', error)
    )


def driver_raises(where: str, error: str) -> tuple[str, ...]:
    """What Ray prints in the driver of an error of its task."""
    name = error.partition(":")[0]
    file, function = where.split(":")
    return (
        "Traceback (most recent call last):",
        '  File "/opt/skyrl/skyrl/train/entrypoints/main_base.py", line 366, in main',
        "    ray.get(skyrl_entrypoint.remote(cfg))",
        f"ray.exceptions.RayTaskError({name}): ray::skyrl_entrypoint() (pid=700, ip=192.0.2.1)",
        f'  File "/opt/{file}", line 7, in {function}',
        error,
    )


STRATEGY = "skyrl/skyrl/backends/skyrl_train/distributed/megatron/megatron_strategy.py:<module>"
REMOVED = (
    "ImportError: cannot import name 'base' from 'megatron.core.dist_checkpointing.strategies'"
    " (/opt/megatron_lm/megatron/core/dist_checkpointing/strategies/__init__.py)"
)
MAPPING = "bridge/src/megatron/bridge/models/conversion/param_mapping.py:hf_to_megatron"
FINALIZE = "megatron_lm/megatron/core/distributed/finalize_model_grads.py:finalize_model_grads"
SERVER = "skyrl/skyrl/backends/skyrl_train/inference_servers/vllm_server_actor.py"
NO_MEMORY = (
    "ValueError: Free memory on device (2.0/79.1 GiB) on startup is less than desired GPU memory utilization (0.3,"
    " 23.7 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
ZERO = {"loss__avg_raw_advantages_abs": 0.0, "policy__grad_norm": 0.0, "reward__avg_raw_reward": 0.0}

# Recorded or made, the verdict, the stage and the rule.
CASES: dict[str, tuple[tuple[str, ...], TriageVerdict, Stage, str]] = {
    "parser": (tuple(recorded("parser.log")), BLOCKED, Stage.ENVIRONMENT, "skyrl-configuration"),
    "critic": (tuple(recorded("critic.log")), BLOCKED, Stage.ENVIRONMENT, "skyrl-configuration"),
    "data": (tuple(recorded("data.log")), BLOCKED, Stage.DATA, "data"),
    "pass": (GOOD, PASS, Stage.SHUTDOWN, "completed"),
    "strategies-base": ((*BEGINNING, *driver_raises(STRATEGY, REMOVED)), BLOCKED, Stage.IMPORT, "import-error"),
    "bridge-import": (
        (*BEGINNING, *driver_raises(MAPPING, "KeyError: 'model.layers.0.self_attn.q_proj.weight'")),
        FAIL,
        Stage.HF_IMPORT,
        "hf-import",
    ),
    "finalize": (
        (*BEGINNING, *BUILT, *driver_raises(FINALIZE, "AttributeError: 'NoneType' object has no attribute 'finish'")),
        FAIL,
        Stage.TRAIN_STEP,
        "",
    ),
    "no-gpu-memory": (
        (
            *BEGINNING,
            *raised(ENGINE, "venv/vllm/v1/worker/utils.py:request_memory", NO_MEMORY),
            *driver_raises(f"{SERVER}:start", NO_MEMORY),
        ),
        BLOCKED,
        Stage.ROLLOUT_ENGINE,
        "engine-memory",
    ),
    "cut-in-the-step": (
        (*BEGINNING, *BUILT, trained("Started: 'generate'", "generate")),
        BLOCKED,
        Stage.TRAIN_STEP,
        "incomplete",
    ),
    "advantages-all-zero": (
        (*BEGINNING, *BUILT, step(1, **ZERO), step(2, **ZERO), step(3, **ZERO), bar(3, 3), DONE),
        BLOCKED,
        Stage.LEARNING_SIGNAL,
        "advantage-zero",
    ),
    "no-metrics": ((*BEGINNING, *BUILT, bar(1, 1), DONE), BLOCKED, Stage.SHUTDOWN, "incomplete"),
    "not-a-number": (
        (*BEGINNING, *BUILT, step(1, policy__grad_norm=float("nan")), bar(1, 1), DONE),
        FAIL,
        Stage.LEARNING_SIGNAL,
        "metrics-not-finite",
    ),
}


def of(rows: tuple[str, ...]) -> Triage:
    return triage(scan(lines(*rows)))


def test_there_are_twelve() -> None:
    assert len(CASES) == 12


@pytest.mark.parametrize("name", CASES)
def test_stage_and_blame(name: str) -> None:
    rows, verdict, stage, rule = CASES[name]
    answer = of(rows)
    assert (answer.verdict, answer.stage) == (verdict, stage), answer
    assert answer.rule == rule or not rule, answer


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
def test_only_the_good_run_passes_and_only_with_all_of_it(name: str) -> None:
    rows = CASES[name][0]
    for end in range(0, len(rows), max(1, len(rows) // 40)):
        assert of(rows[:end]).verdict is not PASS
    assert (of(rows).verdict is PASS) == (name == "pass")


def test_a_step_is_read_from_under_rays_prefix_and_colours() -> None:
    facts = scan(lines(*GOOD))
    assert [(item.step, item.values["policy/grad_norm"]) for item in facts.steps] == [(1, 6.653469021234)]
    assert facts.completed_at is not None
    assert [worker.actor for worker in facts.workers if worker.built_model] == ["MegatronPolicyWorkerBase"]


def test_a_run_that_found_no_checkpoint_says_so() -> None:
    facts = scan(lines(*recorded("no-checkpoint-and-step.log")))
    assert [event.action for event in facts.checkpoints] == ["scratch"]
    # Its own metrics have four decimals: they show the stage and are not read.
    assert not facts.steps
    assert facts.stood is Stage.TRAIN_STEP


def test_output_that_went_into_files_is_noticed() -> None:
    row = said("skyrl.train.utils.utils", "initialize_ray", "Infrastructure logs will be written to: /o/infra-1.log")
    facts = scan(lines(row, *GOOD))
    assert "infrastructure-elsewhere" in {sign.name for sign in facts.signs}


@pytest.mark.parametrize(
    "found", ["No checkpoint found, starting training from scratch", "Resuming from global_step: 1"]
)
def test_a_resume_that_begins_at_the_start_is_never_a_pass(found: str) -> None:
    asked = tuple(row.replace("resume_mode: none", "resume_mode: latest") for row in BEGINNING)
    assert asked != BEGINNING
    number = 1 if "scratch" in found else 2
    answer = of((*asked, *BUILT, trained(found, "load_checkpoints"), step(number), bar(2, 2), DONE))
    assert (answer.verdict is PASS) == ("Resuming" in found), answer

"""A whole run of a stand-in for SkyRL: its command, its processes' imports, its log and its card, without a GPU."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.runners.test_skyrl_launch import FILES, job_of
from tests.runners.whole_runs import log_of, run_whole
from tests.runners.world import STAND_IN_RAY, World, commit
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.judge_folder import judge_folders
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.core.model.outcome import Result

pytestmark = [pytest.mark.host]

# What SkyRL's entry point does, in one process; `printed` are the lines of its training.
MAIN = """
import json, os, sys
import megatron.core, megatron.bridge, skyrl
from skyrl.train.config import SkyRLTrainConfig

def block(value, indent=0):
    for key, item in sorted(value.items()):
        if isinstance(item, dict):
            print(" " * indent + f"{{key}}:")
            block(item, indent + 2)
        else:
            print(" " * indent + f"{{key}}: {{json.dumps(item)}}")

config = SkyRLTrainConfig.from_cli_overrides([item for item in sys.argv[1:] if "override_entrypoint" not in item])
head = "2026-11-28 08:00:00.123 | INFO     | skyrl.train.entrypoints.main_base:_setup_trainer:258 - "
print("2026-11-28 08:00:00,000 INFO worker.py:2013 -- Started a local Ray instance.")
print(head, end="")
block({{"data": {{"train_data": None}}, "environment": config.environment, "generator": config.generator,
       "trainer": {{**config.trainer}}}})
print()
said = "2026-11-28 08:00:00.123 | INFO     | skyrl.train.trainer:train:601 - "
resumes = config.trainer["resume_mode"] == "latest"
saved = config.trainer["ckpt_path"] + "/global_step_1"
for line in {resumed!r} if resumes else {printed!r}:
    print(line.replace("SAID ", said).replace("SAVED", saved), flush=True)
if config.trainer["ckpt_interval"] == 1 and not resumes:
    os.makedirs(saved + "/policy")
    for name in ("__0_0.distcp", "adapter_tp0_pp0_cp0_dp0_ep0_etp0.pt", "metadata.json"):
        open(saved + "/policy/" + name, "w").write("x")
    open(config.trainer["ckpt_path"] + "/latest_ckpt_global_step.txt", "w").write("1")
"""
STEP = {
    "policy/grad_norm": 6.65,
    "policy/policy_loss": 0.02,
    "policy/policy_entropy": 5.67,
    "policy/policy_kl": 0.001,
    "policy/policy_lr": 0.000001,
    "policy/rollout_train_logprobs_abs_diff_mean": 0.004,
    "reward/avg_raw_reward": 6.0,
    "loss/avg_raw_advantages_abs": 0.8,
    "generate/avg_num_tokens": 63.5,
    "trainer/global_step": 1,
    "timing/step": 41.2,
    "timing/generate": 11.2,
}
BAR = "Training Batches Processed: 100%|###| 1/1 [00:01<00:00,  1.0s/it]"
DONE = "SAID Training done!"
NOTHING_LEARNED = {"policy__grad_norm": 0.0, "loss__avg_raw_advantages_abs": 0.0}
BUILT = " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1000000"


def step(number: int = 1, **changed: float) -> str:
    """The line of a step, some of its metrics with another value."""
    named = {name.replace("__", "/"): value for name, value in changed.items()}
    return f"[verl-e2e] metrics of step {number}: " + json.dumps({**STEP, "trainer/global_step": number, **named})


def run_of(
    world: World,
    folder: Path,
    environ: Mapping[str, str],
    printed: tuple[str, ...],
    *,
    name: str = "0-lora-ddp",
    resumed: tuple[str, ...] = (),
) -> tuple[Job, Verdict]:
    """A run whose SkyRL prints these lines, others when it resumes, and its verdict."""
    files = {**FILES, "skyrl/train/entrypoints/__init__.py": "", "skyrl-gym/skyrl_gym/__init__.py": ""}
    files |= {
        "skyrl/train/entrypoints/main_base.py": MAIN.format(printed=printed, resumed=resumed),
        "ray.py": STAND_IN_RAY,
    }
    skyrl = folder / "skyrl"
    sha = commit(skyrl, files)
    base = world.job()
    job = job_of(skyrl, name).model_copy(
        update={
            "verl": Repository(path=str(skyrl), commit=sha),
            "bridge": base.bridge,
            "checkpoint": base.checkpoint,
            "data": base.data,
            "site": base.site.model_copy(update={"python": sys.executable}),
            "bridge_tests": (),
        }
    )
    run_whole(job, folder / "out", environ)
    (verdict,) = judge_folders(run_folders(), folder / "out")
    return job, verdict


def state_of(verdict: Verdict, criterion: Criterion) -> State:
    return next(item.state for item in verdict.evidence if item.criterion == criterion)


def test_a_run_is_started_recorded_and_judged_by_what_it_shows(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    job, verdict = run_of(world, tmp_path, environ, (BUILT, step(), BAR, DONE))
    assert "Training done!" in log_of(tmp_path / "out")
    # Its processes had no fingerprints: what they would show is missing, and nothing else is wrong.
    assert (verdict.result, job.consumer) == (Result.BLOCKED, "skyrl")
    shown = (Criterion.RESOLVED_CONFIG, Criterion.STEPS_COMPLETED, Criterion.GRADIENTS, Criterion.ROLLOUT_AGREEMENT)
    for criterion in shown:
        assert state_of(verdict, criterion) is State.MET, criterion
    assert not [item for item in verdict.evidence if item.state is State.BROKEN]
    names = [row.name for row in verdict.deliverables]
    assert names[1:3] == ["Local Bridge import in SkyRL", "SkyRL Megatron backend run"]


@pytest.mark.parametrize(
    ("printed", "result", "words"),
    [
        ((BUILT, BAR, DONE), Result.BLOCKED, "metrics"),
        (
            (BUILT, step(policy__grad_norm=0.0, loss__avg_raw_advantages_abs=0.0), BAR, DONE),
            Result.FAIL,
            "grad_norm is 0",
        ),
        ((BUILT, step(policy__rollout_train_logprobs_abs_diff_mean=0.9), BAR, DONE), Result.FAIL, "differ by 0.90000"),
        (("SAID Infrastructure logs will be written to: /o/infra.log", step(), BAR, DONE), Result.BLOCKED, "worker"),
        ((BUILT, step(policy__rollout_train_logprobs_abs_diff_mean=5.0), BAR, DONE), Result.FAIL, "differ by 5"),
        ((BUILT, step(), "SAID No checkpoint found, starting training from scratch"), Result.BLOCKED, ""),
    ],
)
def test_a_hollow_run_is_never_a_pass(
    world: World, tmp_path: Path, environ: dict[str, str], printed: tuple[str, ...], result: Result, words: str
) -> None:
    _, verdict = run_of(world, tmp_path, environ, printed)
    assert verdict.result is result
    assert words in verdict.sentence


SAVED = "SAID Successfully saved checkpoint for global_step_1 to: SAVED"
LOADED = (
    "SAID Loading checkpoint from: SAVED",
    "SAID Resuming from global_step: 1",
    "Loaded optimizer state dict.",
    "Loaded 24 LoRA adapters from SAVED/policy/adapter_tp0_pp0_cp0_dp0_ep0_etp0.pt.",
)
SCRATCH = ("SAID No checkpoint found, starting training from scratch",)


@pytest.mark.parametrize(("loaded", "state"), [(LOADED, State.MET), (SCRATCH, State.BROKEN), ((), State.MISSING)])
def test_level_1_saves_and_resumes_by_log_and_files(
    world: World, tmp_path: Path, environ: dict[str, str], loaded: tuple[str, ...], state: State
) -> None:
    first = (BUILT, SAVED, step(timing__save_checkpoints=1.5), BAR, DONE)
    second = (BUILT, *loaded, step(2), BAR.replace("1/1", "2/2"), DONE)
    _, verdict = run_of(world, tmp_path, environ, first, name="1-resume", resumed=second)
    (found,) = (item for item in verdict.evidence if item.criterion == Criterion.RESUMED)
    assert found.state is state, found.summary
    assert verdict.result is not Result.PASS


def test_a_save_that_was_asked_for_and_never_made_is_no_pass(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    first, second = (BUILT, step(), BAR, DONE), (BUILT, *LOADED, step(2), BAR.replace("1/1", "2/2"), DONE)
    _, verdict = run_of(world, tmp_path, environ, first, name="1-resume", resumed=second)
    (found,) = (item for item in verdict.evidence if item.criterion == Criterion.RESUMED)
    assert found.state is State.MISSING
    assert verdict.result is not Result.PASS

"""Triage of whole logs: the recorded ones, altered ones, and files that are not logs at all."""

import json

import pytest

from tests.core.logs import NAMES, lines, recorded
from tests.fakes.places import ROOT
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage, triage_json, triage_of_run

PASS, FAIL, BLOCKED = TriageVerdict.PASS, TriageVerdict.FAIL, TriageVerdict.BLOCKED
STEP = "step:{0} - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"
DONE = (STEP.format(1), BAR.format(100, 1, 1))
H = "Traceback (most recent call last):"

# What each recorded run is: verdict, stage, rule, line of the root, a word of its text.
RECORDED = {
    "level0-pass": (PASS, "shutdown", "completed", 1336, "100%"),
    "level0-vllm-extension-missing": (BLOCKED, "environment", "missing-extension", 150, "flash attention extensions"),
    "level0-no-apex-gradient-fusion": (BLOCKED, "environment", "missing-extension", 1264, "fused_weight_gradient"),
    "level0-dataset-missing": (BLOCKED, "data", "data", 1211, "Unable to find"),
    "level0-gpu-memory-refused": (BLOCKED, "rollout_engine", "engine-memory", 1295, "Free memory on device"),
    "level0-bridge-not-on-path": (BLOCKED, "import", "import-error", 1229, "megatron.bridge"),
    "level5-flat-cut-at-14-of-20": (BLOCKED, "train_step", "incomplete", 1488, "step:14"),
}


def of(*texts: str) -> Triage:
    return triage(scan(lines(*texts)))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_runs(name: str) -> None:
    answer = triage(scan([recorded(name)]))
    verdict, stage, rule, line, word = RECORDED[name]
    assert (answer.verdict, answer.stage, answer.rule, answer.line) == (verdict, stage, rule, line)
    assert word in answer.excerpt


@pytest.mark.no_cover
@pytest.mark.parametrize("name", NAMES)
def test_a_repeated_log_is_judged_like_the_log(name: str) -> None:
    once, twice = triage(scan([recorded(name)])), triage(scan([recorded(name)] * 2))
    assert (twice.verdict, twice.stage, twice.rule, twice.cause) == (once.verdict, once.stage, once.rule, once.cause)


def test_the_noise_of_the_passing_run_is_named() -> None:
    answer = triage(scan([recorded("level0-pass")]))
    assert {note.name: note.count for note in answer.residual_noise} == {
        "signal-stack": 2,
        "dataloader-worker-killed": 1,
    }


def rows_of(name: str) -> list[bytes]:
    # Not splitlines: a carriage return ends no line of a log.
    return [row + b"\n" for row in recorded(name).split(b"\n")]


def cut(name: str, keep: int) -> Triage:
    return triage(scan([b"".join(rows_of(name)[:keep])]))


@pytest.mark.parametrize(
    ("keep", "stage"), [(100, "environment"), (1130, "ray"), (1192, "peft"), (1201, "optimizer"), (1300, "train_step")]
)
def test_the_passing_run_cut_early_is_incomplete(keep: int, stage: str) -> None:
    answer = cut("level0-pass", keep)
    assert (answer.verdict, answer.stage, answer.rule) == (BLOCKED, stage, "incomplete")


@pytest.mark.slow
def test_every_cut_of_the_passing_run_before_its_end_is_no_pass() -> None:
    log = recorded("level0-pass")
    ends = range(0, log.index(b"Final validation metrics"), 9973)
    assert all(triage(scan([log[:end]])).verdict is BLOCKED for end in ends)


def test_the_passing_run_with_the_same_noise_before_completion_is_no_pass() -> None:
    rows = rows_of("level0-pass")
    moved = [*rows[:1300], *rows[1342:], *rows[1300:1342]]
    answer = triage(scan([b"".join(moved)]))
    assert answer.verdict is not PASS


def test_the_passing_run_with_dropped_weights_fails() -> None:
    lost = b"(WorkerDict pid=7470) WARNING: Can't find the following HF parameters in hf_keys: ['model.x']\n"
    rows = rows_of("level0-pass")
    answer = triage(scan([b"".join([*rows[:1199], lost, *rows[1199:]])]))
    assert (answer.verdict, answer.stage, answer.line) == (FAIL, "hf_import", 1200)


@pytest.mark.parametrize(
    ("printed", "instead", "stage", "rule"),
    [
        (b"Adapter parameters:   106,496", b"Adapter parameters:   0", "peft", "adapter-empty"),
        (b"grad_norm:0.19123604893684387", b"grad_norm:nan", "learning_signal", "metrics-not-finite"),
    ],
)
def test_the_passing_run_with_a_fault_that_raises_nothing_fails(
    printed: bytes, instead: bytes, stage: str, rule: str
) -> None:
    answer = triage(scan([recorded("level0-pass").replace(printed, instead)]))
    assert (answer.verdict, answer.stage, answer.rule) == (FAIL, stage, rule)


@pytest.mark.parametrize(("norms", "rule"), [((0, 0), "gradient-zero"), ((0, 0.2), "completed")])
def test_a_run_without_any_gradient_fails(norms: tuple[float, ...], rule: str) -> None:
    steps = [STEP.format(number).replace(":0.25", f":{norm}") for number, norm in enumerate(norms, 1)]
    assert of(*steps, BAR.format(100, 2, 2)).rule == rule
    assert of(*steps, BAR.format(60, 2, 3)).rule == "incomplete"


@pytest.mark.parametrize(
    ("correlation", "rule"),
    [
        ("0.44393", "rollout-disagrees"),
        ("0.994", "rollout-disagrees"),
        ("0.99924", "completed"),
        ("nan", "agreement-unknown"),
    ],
)
def test_a_rollout_with_other_weights_fails(correlation: str, rule: str) -> None:
    step = f"{STEP.format(1)} - training/rollout_actor_probs_pearson_corr:{correlation}"
    answer = of(step, BAR.format(100, 1, 1))
    assert answer.rule == rule
    assert (answer.verdict is PASS) == (rule == "completed")
    assert rule == "completed" or correlation in answer.cause


def test_in_a_run_folder_the_band_of_the_probe_judges_agreement() -> None:
    step = f"{STEP.format(1)} - training/rollout_actor_probs_pearson_corr:0.98"
    assert triage_of_run(scan(lines(step, BAR.format(100, 1, 1)))).rule == "completed"


def test_an_unknown_error_after_completion_is_no_pass() -> None:
    answer = of(*DONE, H, '  File "tracking.py", line 3, in finish', "ValueError: upload failed")
    assert (answer.verdict, answer.stage, answer.rule) == (BLOCKED, "shutdown", "unexplained")


def test_a_completed_run() -> None:
    assert of(*DONE).verdict is PASS
    assert of(*DONE, "(raylet) A worker died or was killed while executing a task by an unexpected").verdict is PASS


@pytest.mark.parametrize(
    "texts",
    [
        (BAR.format(100, 1, 1),),
        (STEP.format(1),),
        ("step:1 - actor/loss:0.5", BAR.format(100, 1, 1)),
        (STEP.format(1), BAR.format(100, 2, 2)),
        (*DONE, "ray init kwargs: {}"),
        (*DONE, BAR.format(0, 0, 2)),
        ("'Final validation metrics: None'",),
        ("Final validation metrics: {'a': 1}",),
        (f"as in `{BAR.format(100, 1, 1)}` and `{STEP.format(1)}`",),
    ],
)
def test_completion_without_its_metrics_is_no_pass(texts: tuple[str, ...]) -> None:
    assert of(*texts).verdict is BLOCKED


@pytest.mark.slow
def test_files_that_are_no_logs_are_never_a_pass() -> None:
    folders = ("bot", "runners", "tests", "docs", "bench")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in {".py", ".md", ".txt", ".xz"}
    ]
    assert len(files) > 50
    for path in files:
        assert triage(scan([path.read_bytes()])).verdict is not PASS, path


@pytest.mark.parametrize("log", [b"", b"\n", b"\x00" * 5000, b"hello", bytes(range(256)) * 64])
def test_nothing_in_particular_is_blocked(log: bytes) -> None:
    answer = triage(scan([log]))
    assert (answer.verdict, answer.rule, answer.stage) == (BLOCKED, "incomplete", "environment")


def test_the_drivers_exception_outranks_an_earlier_survived_one() -> None:
    answer = of(
        "(W pid=3) " + H,
        '(W pid=3)   File "optional.py", line 1, in probe',
        "(W pid=3) OSError: no such feature",
        "(W pid=3) going on",
        "Error executing job with overrides: []",
        H,
        '  File "main_ppo.py", line 3, in main',
        '  File "verl/utils/dataset/rl_dataset.py", line 3, in _read_files_and_tokenize',
        "KeyError: 'prompt'",
    )
    assert (answer.stage, answer.line) == ("data", 9)


def test_a_driver_that_only_reports_a_death_points_at_the_first_error() -> None:
    answer = of(
        "(W pid=3) " + H,
        '(W pid=3)   File "megatron/bridge/peft/lora.py", line 1, in transform',
        "(W pid=3) ValueError: no such layer",
        "(W pid=3) going down",
        "Error executing job with overrides: []",
        H,
        '  File "main_ppo.py", line 3, in main',
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    )
    assert (answer.verdict, answer.stage, answer.line) == (FAIL, "peft", 3)


WAITED = "(W pid=3) [rank0]:[E1120 14:10:32.3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
ABORTED = "(W pid=3) *** SIGABRT received at time=1763667356 on cpu 14 ***"
THROWN = "terminate called after throwing an instance of 'c10::DistBackendError'"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
DRIVER = ("Error executing job with overrides: []", H, '  File "main_ppo.py", line 3, in main', DIED)


@pytest.mark.parametrize(
    ("texts", "verdict", "rule", "line"),
    [
        # The watchdog ends its own process: the wait in vain comes first, abort and death follow from it.
        ((WAITED, ABORTED, *DRIVER), FAIL, "collective-timeout", 2),
        ((WAITED, WAITED.replace("=3", "=4"), ABORTED, ABORTED), FAIL, "collective-timeout", 2),
        ((WAITED, f"(W pid=3) {THROWN}", *DRIVER), FAIL, "collective-timeout", 2),
        # No one aborted over it, or the abort came first: a peer may have died.
        ((WAITED, *DRIVER), BLOCKED, "worker-died", 6),
        ((ABORTED, WAITED, *DRIVER), BLOCKED, "killed-by-signal", 2),
        ((ABORTED, *DRIVER), BLOCKED, "killed-by-signal", 2),
    ],
)
def test_an_abort_over_a_collective_that_timed_out(
    texts: tuple[str, ...], verdict: TriageVerdict, rule: str, line: int
) -> None:
    answer = of(BAR.format(5, 1, 20), *texts)
    assert (answer.verdict, answer.stage, answer.rule, answer.line) == (verdict, "train_step", rule, line)


@pytest.mark.parametrize(
    ("frame", "error", "stage"),
    [
        ("verl/experimental/reward_loop/reward_manager/naive.py", "KeyError: 'reward_model'", "reward_model"),
        ("vllm/v1/worker/gpu_model_runner.py", "AttributeError: 'NoneType' object has no attribute 'x'", "train_step"),
    ],
)
def test_when_every_sample_of_a_step_failed_the_first_error_counts(frame: str, error: str, stage: str) -> None:
    answer = of(
        BAR.format(0, 0, 1),
        "(A pid=3) ERROR:Error in _run_prompt for uid=1",
        "(A pid=3) " + H,
        f'(A pid=3)   File "{frame}", line 43, in run_single',
        "(A pid=3) " + error,
        "(A pid=3) going on",
        "Error executing job with overrides: []",
        H,
        '  File "verl/trainer/ppo/v1/trainer_base.py", line 453, in fit',
        '  File "verl/trainer/ppo/v1/replay_buffer.py", line 493, in sample',
        "RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.",
    )
    assert (answer.stage, answer.line) == (stage, 5)


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (
            "RuntimeError: DataLoader worker (pid 48) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory.",
            "host-limits",
        ),
        ("RuntimeError: DataLoader worker (pid 48) is killed by signal: Killed.", "worker-died"),
        ("ray.exceptions.OutOfDiskError: Local disk is full", "disk-full"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/7: "
            "file write failed",
            "disk-full",
        ),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "missing-extension"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "missing-extension"),
        ("RuntimeError: pidfd_getfd: Operation not permitted", "gpu-sharing"),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or "
            "there was a network error, NCCL version 2.28.9",
            "network",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/site/flashinfer/data/csrc/a.jinja'",
            "extension-build",
        ),
    ],
)
def test_the_host_and_the_image_are_at_fault_in_a_step_too(error: str, rule: str) -> None:
    frame = '  File "verl/trainer/ppo/v1/trainer_base.py", line 453, in fit'
    answer = of(STEP.format(1), BAR.format(50, 1, 2), "Error executing job with overrides: []", H, frame, error)
    assert (answer.verdict, answer.rule, answer.line) == (BLOCKED, rule, 6)


def test_the_engine_before_and_after_the_first_sync() -> None:
    error = (H, '  File "vllm/v1/engine/core.py", line 3, in step', "RuntimeError: mismatch")
    before = of("optimizer config after override: {}", *error)
    after = of("vLLM load weights, loaded_params: 56", *error)
    assert (before.verdict, before.stage) == (BLOCKED, "rollout_engine")
    assert (after.verdict, after.stage) == (FAIL, "train_step")
    assert "construction had reached optimizer" in before.cause


def test_a_time_limit_is_not_a_crash() -> None:
    answer = of(BAR.format(10, 1, 10), "(W pid=3) *** SIGTERM received at time=1763648696 on cpu 3 ***", "PC: @ 0x7f")
    assert (answer.verdict, answer.stage, answer.rule) == (BLOCKED, "train_step", "interrupted")


def test_a_warning_counts_only_when_nothing_worse_is_there() -> None:
    warning = "'timed out' thrown while requesting HEAD the hub"
    assert of(warning).rule == "hub-unreachable"
    assert of(warning, *DONE).verdict is PASS


def test_the_json_line_has_exactly_the_promised_keys() -> None:
    shown = triage_json("a.log", triage(scan([recorded("level0-pass")])))
    assert list(shown) == [
        "file",
        "verdict",
        "stage",
        "cause",
        "line",
        "excerpt",
        "residual_noise",
        "frame",
        "message",
        "run",
        "other_runs",
    ]
    assert json.loads(json.dumps(shown))["verdict"] == "pass"
    assert shown["residual_noise"] == [
        {"name": "signal-stack", "line": 1337, "count": 2},
        {"name": "dataloader-worker-killed", "line": 1350, "count": 1},
    ]

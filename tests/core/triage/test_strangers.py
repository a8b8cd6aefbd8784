"""What a set of unseen logs showed: failed exits, samples, reasons of deaths, other makers' words."""

import pytest

from tests.core.logs import lines
from tests.core.triage.wild_cases import BEGIN, TASK, WORKER, H
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage, triage_of_run

DONE = (
    f"{TASK}step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - training/global_step:1",
    f"{TASK}Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
)
FAILED = (
    "srun: error: gpu07: tasks 0-3: Exited with exit code 1",
    "srun: error: gpu07: task 0: Segmentation fault (core dumped)",
    "##[error]Process completed with exit code 137.",
    "ERROR: Job failed: command terminated with exit code 1",
    "make: *** [Makefile:12: run] Error 1",
    "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):",
    "2026-03-02 10:00:01,220\tERR cli.py:68 -- Job 'raysubmit_abc' failed",
    "trainer-1 exited with code 10",
    "The command '/bin/sh -c bash run.sh' returned a non-zero code: 1",
)
FINE = (
    "Process completed with exit code 0",
    "trainer-1 exited with code 0",
    "wandb: Run history: job/failed 0",
    f"{WORKER}a helper exited with exit code 1",
    "Process EngineCore_0 exited with code -15",
)


def answer(*rows: str) -> Triage:
    return triage(scan(lines(*rows)))


@pytest.mark.parametrize("end", FAILED)
def test_a_failed_exit_below_the_last_step_is_no_pass(end: str) -> None:
    found = answer(*DONE, end)
    assert (found.verdict, found.rule, found.line) == (TriageVerdict.BLOCKED, "failed-exit", 3)
    # A run folder has the status on record.
    assert triage_of_run(scan(lines(*DONE, end))).verdict is TriageVerdict.PASS


@pytest.mark.parametrize("end", FINE)
def test_other_last_words_leave_the_pass(end: str) -> None:
    assert answer(*DONE, end).verdict is TriageVerdict.PASS


@pytest.mark.parametrize(
    "words", ["The operation was canceled. Killed", "RuntimeError: CUDA out of memory.", "No space left on device"]
)
def test_what_a_model_writes_is_not_the_runs_own(words: str) -> None:
    sample = [f"{TASK}[prompt] Explain:", f"{TASK}{words}", f"{TASK}[response] It says {words}", f"{TASK}[score] 0.0"]
    assert answer(*DONE, *sample).verdict is TriageVerdict.PASS
    assert answer(*BEGIN, *sample[:3], f"{WORKER}CUDA out of memory").rule == "gpu-memory"
    assert answer(*BEGIN, *sample, f"{TASK}CUDA out of memory").rule == "gpu-memory"


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("its node has died. Node IP: 10.2.0.9. Reason: health check failed", "its node has died"),
        ("its node was preempted. Node Id: 5c11f", "preempted"),
        ("it was killed by `ray.kill(actor)`.", "ray.kill"),
    ],
)
def test_the_cause_says_why_an_actor_died(reason: str, says: str) -> None:
    died = ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "\tclass_name: A")
    found = answer(
        *BEGIN, H, '  File "verl/trainer/main_ppo.py", line 4, in main', *died, f"The actor is dead because {reason}"
    )
    assert found.verdict is TriageVerdict.BLOCKED
    assert says in found.cause


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Process 331 has {} GiB memory in use. this process has {} GiB memory"
)


@pytest.mark.parametrize(
    ("raised", "verdict"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).", TriageVerdict.BLOCKED),
        ("RuntimeError: Found no NVIDIA driver on your system.", TriageVerdict.BLOCKED),
        ("RuntimeError: InnerRun: OPS function error: MatMul, error code is 507018", TriageVerdict.BLOCKED),
        ("RuntimeError: ERR02200 DIST call hccl api failed.", TriageVerdict.BLOCKED),
        (FULL.format("77.00", "0.60"), TriageVerdict.BLOCKED),
        (FULL.format("9.00", "60.60"), TriageVerdict.FAIL),
        ("RuntimeError: the driver of the loop has no layer 507018", TriageVerdict.FAIL),
    ],
)
def test_a_frame_of_bridge_is_not_blamed_for_the_machine(raised: str, verdict: TriageVerdict) -> None:
    frame = f'{WORKER}  File "/b/src/megatron/bridge/models/model_provider.py", line 245, in provide_distributed_model'
    assert answer(*BEGIN[:2], f"{WORKER}{H}", frame, f"{WORKER}{raised}").verdict is verdict


def test_an_engine_that_died_and_an_sft_trainer_blame_nobody() -> None:
    died = "(EngineCore_DP0 pid=5) ERROR Worker proc VllmWorker-0 died unexpectedly, shutting down executor."
    assert answer(*BEGIN, died).verdict is TriageVerdict.BLOCKED
    frame = '[rank0]:   File "/x/verl/trainer/fsdp_sft_trainer.py", line 700, in fit'
    sft = answer(
        "Epoch 1/1:   0%|  | 0/2 [00:00<?, ?it/s]", *BEGIN[2:], f"[rank0]: {H}", frame, "[rank0]: RuntimeError: x"
    )
    assert sft.verdict is TriageVerdict.BLOCKED

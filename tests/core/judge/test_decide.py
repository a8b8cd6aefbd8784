"""Memory that runs out on a GPU that others use is not shown to be the change's fault."""

import pytest

from tests.core.builders import cut_facts, ended, error, judged
from verl_e2e.core.model.outcome import NEIGHBOUR_CAUSE, Result, Stage, of_log
from verl_e2e.core.model.record import EndReason, Event

FULL = error("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", stage=Stage.TRAIN_STEP)
OTHER = error("RuntimeError", "The size of tensor a must match", stage=Stage.TRAIN_STEP)


def peak(**reading: object) -> Event:
    return Event(t_s=80.0, kind="gpu", data={"peak": [{"index": 1, "memory_used_mib": 70000, **reading}]})


@pytest.mark.parametrize(
    ("fault", "gpu", "result"),
    [
        (FULL, peak(others_mib=40000), Result.BLOCKED),
        (FULL, peak(others_mib=500), Result.FAIL),
        (FULL, peak(others_mib=0), Result.FAIL),
        (FULL, peak(), Result.FAIL),
        (FULL, peak(others_mib="40000"), Result.FAIL),
        (OTHER, peak(others_mib=40000), Result.FAIL),
    ],
)
def test_memory_that_a_neighbour_takes_is_no_fault_of_the_change(fault: object, gpu: Event, result: Result) -> None:
    began, *rest = ended(EndReason.EXITED, 1)
    events = (began, gpu, *rest)
    verdict = judged(cut_facts(Stage.TRAIN_STEP, errors=(fault,)), events=events)
    assert (verdict.result, verdict.stage) == (result, Stage.TRAIN_STEP)
    assert ("a neighbour held up to 40000 MiB of GPU 1" in verdict.sentence) == (result is Result.BLOCKED)
    assert (verdict.causes == (NEIGHBOUR_CAUSE, of_log("gpu-memory"))) == (result is Result.BLOCKED)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "message", ["Memory usage increased after sleeping.", "Free memory on device is less than desired"]
)
def test_an_engine_that_lost_its_memory_to_a_neighbour_names_the_neighbour(message: str, *, shared: bool) -> None:
    fault = error("AssertionError", message, stage=Stage.ROLLOUT_ENGINE)
    began, *rest = ended(EndReason.EXITED, 1)
    gpu = peak(others_mib=14832 if shared else 0)
    verdict = judged(cut_facts(Stage.ROLLOUT_ENGINE, errors=(fault,)), events=(began, gpu, *rest))
    assert (verdict.result, verdict.stage) == (Result.BLOCKED, Stage.ROLLOUT_ENGINE)
    assert ("a neighbour held up to 14832 MiB of GPU 1" in verdict.sentence) is shared
    assert verdict.causes[-1] == of_log("engine-memory")

"""Who else used the GPUs of a run: what runs out where others take of it is not shown to be the change's fault."""

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.events import GpuEvent, read_data

# A process that only holds a CUDA context takes some hundred MiB.
_TELLING_MIB = 1024
# The rules of triage by which the fault may lie with others on the GPU.
_SHARED_CAUSES = frozenset({"gpu-memory"})


def blamed_neighbour(case: Case) -> str:
    """Who may have caused the fault that triage found, a clause; empty where no one else can have."""
    if case.triage.rule not in _SHARED_CAUSES:
        return ""
    found = [read_data(event, GpuEvent) for event in case.events("gpu")]
    peaks = [reading for event in found if event is not None for reading in event.peak]
    worst = max(peaks, key=lambda reading: reading.others_mib or 0, default=None)
    if worst is None or (worst.others_mib or 0) < _TELLING_MIB:
        return ""
    return f"a neighbour held up to {worst.others_mib} MiB of GPU {worst.index} during the run"

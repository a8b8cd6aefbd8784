"""The GPUs of the host, as the driver reports them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from verl_e2e.core.model.record import Gpu

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the host."""

    gpu: Gpu
    # CUDA_VISIBLE_DEVICES may name a GPU by its index or by this.
    uuid: str
    # The numbers of the processes that compute on it, in the host's count.
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Devices:
    """What the driver reports."""

    devices: tuple[Device, ...] = ()
    # The driver's version.
    driver: str = ""
    # Why nothing is reported; else empty.
    problem: str = ""


def read_devices() -> Devices:
    """Ask NVML for the host's GPUs; needs no CUDA context and costs milliseconds."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Devices(problem=str(error))
    try:
        devices = tuple(_device(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return Devices(devices, _as_text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        return Devices(problem=str(error))
    finally:
        pynvml.nvmlShutdown()


def visible(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """The devices that CUDA shows under CUDA_VISIBLE_DEVICES (None: all); it stops at the first unknown entry."""
    if setting is None:
        return tuple(devices)
    shown: list[Device] = []
    for entry in (part.strip() for part in setting.split(",")):
        match = [device for device in devices if _is_named(device, entry)]
        if len(match) != 1 or match[0] in shown:
            break
        shown.append(match[0])
    return tuple(shown)


def _is_named(device: Device, entry: str) -> bool:
    if entry.isdigit():
        return device.gpu.index == int(entry)
    return len(entry) > len("GPU-") and device.uuid.startswith(entry)


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    gpu = Gpu(
        index=index,
        name=_as_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total_mib=memory.total // _MIB,
        memory_used_mib=memory.used // _MIB,
    )
    return Device(gpu, _as_text(pynvml.nvmlDeviceGetUUID(handle)), _processes(handle))


def _processes(handle: Any) -> tuple[int, ...]:
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return ()
    return tuple(process.pid for process in found)


def _as_text(value: str | bytes) -> str:
    return os.fsdecode(value)

"""Preflight of the host: GPUs, the variables that hide them, free disk, and the image."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Container, Finding, Gpu
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.preflight.container import INSPECT_VARIABLE

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the host."""

    gpu: Gpu
    # CUDA_VISIBLE_DEVICES may name a GPU by its index or by this.
    uuid: str


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


def check_gpus(job: Job, devices: Devices, variables: Mapping[str, str]) -> tuple[Finding, ...]:
    """Check that there are enough GPUs, and that no variable hides them from verl."""
    return (_enough(job, devices, variables.get("CUDA_VISIBLE_DEVICES")), _variables(variables))


def check_disk(folders: Mapping[str, Path], min_free_gib: float) -> tuple[Finding, ...]:
    """Free space on the disk of each folder (`folders`: purpose to path), one finding for each disk."""
    by_disk: dict[int, list[str]] = {}
    places: dict[int, Path] = {}
    for purpose, folder in folders.items():
        place = existing(folder)
        disk = place.stat().st_dev
        by_disk.setdefault(disk, []).append(f"{purpose} {folder}")
        places.setdefault(disk, place)
    return tuple(_free_space(places[disk], uses, min_free_gib) for disk, uses in by_disk.items())


def check_image(job: Job, container: Container) -> Finding:
    """Blocks when the container has another image than the pinned one; a note when its image is unknown.

    The image that the job or a variable names was requested; it is not evidence of what runs.
    """
    _, _, pin = job.site.image.partition("@")
    known = container.image or ", ".join(container.digests)
    if pin and container.digests and pin not in container.digests:
        summary = f"the container has the image {_named(container)}, and the job needs {job.site.image}"
        return blocked(Check.IMAGE, f"{summary} (by {container.image_from})", f"start the job in {job.site.image}")
    if not known:
        asked = f"; {job.site.image} was requested" if job.site.image else ""
        fix = f"run `docker inspect` for the container on the host, and set {INSPECT_VARIABLE} to a file of its output"
        return note(
            Check.IMAGE, f"the container's image is not recorded, because nothing in it names the image{asked}", fix
        )
    if pin and not container.digests:
        summary = f"the container has the image {known} (by {container.image_from}), and its digest is unknown"
        return note(Check.IMAGE, f"{summary}; {job.site.image} was requested")
    if container.image and "vllm" not in container.image.lower() and not pin:
        fix = "use verl's vLLM image for the Megatron wrapper"
        return note(Check.IMAGE, f"image {container.image} does not look like a vLLM image", fix)
    return good(Check.IMAGE, f"image {_named(container)} (by {container.image_from})")


def _named(container: Container) -> str:
    """The image by the name that its engine gives, with its first digest."""
    digest = container.digests[0] if container.digests else ""
    return container.image if digest in container.image else f"{container.image}@{digest}".lstrip("@")


def existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def free_gib(path: Path) -> float:
    """Free space, in GiB, on the disk where the path lies or will lie."""
    return shutil.disk_usage(existing(path)).free / _GIB


def _enough(job: Job, devices: Devices, setting: str | None) -> Finding:
    if not devices.devices:
        why = devices.problem or "the driver reports none"
        fix = "run on a host with an NVIDIA driver and GPUs, and start the container with them (--gpus all)"
        return blocked(Check.GPUS, f"no GPU: {why}; the job needs {job.gpu_count}", fix)
    shown = visible(devices.devices, setting)
    names = ", ".join(f"{device.gpu.name} {device.gpu.memory_total_mib} MiB" for device in shown)
    hidden = f" (CUDA_VISIBLE_DEVICES={setting!r}, {len(devices.devices)} on the host)" if setting is not None else ""
    if len(shown) < job.gpu_count:
        fix = (
            "run on a host with more GPUs"
            if setting is None
            else "list more GPUs in CUDA_VISIBLE_DEVICES, or use a host with more GPUs"
        )
        return blocked(Check.GPUS, f"{len(shown)} GPUs visible{hidden}, the job needs {job.gpu_count}", fix)
    return good(Check.GPUS, f"{len(shown)} GPUs visible{hidden}, {job.gpu_count} needed: {names}")


def _variables(variables: Mapping[str, str]) -> Finding:
    rocr = variables.get("ROCR_VISIBLE_DEVICES")
    others = [name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in variables]
    if rocr and others:
        summary = (
            f"ROCR_VISIBLE_DEVICES={rocr} is set next to {others[0]}={variables[others[0]]}: verl's workers refuse that"
        )
        return blocked(Check.GPU_VARIABLES, summary, "unset ROCR_VISIBLE_DEVICES")
    return good(Check.GPU_VARIABLES, f"CUDA_VISIBLE_DEVICES={variables.get('CUDA_VISIBLE_DEVICES', '(unset)')}")


def _free_space(place: Path, uses: Iterable[str], min_free_gib: float) -> Finding:
    free, purposes = free_gib(place), "; ".join(uses)
    if free >= min_free_gib:
        return good(Check.DISK, f"{free:.1f} GiB free, {min_free_gib:g} needed, for {purposes}")
    return blocked(
        Check.DISK,
        f"{free:.1f} GiB free, {min_free_gib:g} needed (site.min_free_gib), for {purposes}",
        "free space, or point HF_HOME, `scratch` of the site profile and the output folder to a larger disk",
    )


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
    return Device(gpu, _as_text(pynvml.nvmlDeviceGetUUID(handle)))


def _as_text(value: str | bytes) -> str:
    return os.fsdecode(value)

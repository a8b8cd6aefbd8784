"""Gives each run GPUs of its own, or a part of each, by locks on files and without a service.

A GPU has twelve parts, each a file. A run locks as many parts of each of its GPUs as its share asks for, and the system
releases them when the runner has ended, however it ended.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from verl_e2e.core.model.needs import Needs
from verl_e2e_runner.sharing.devices import Device
from verl_e2e_runner.sharing.locks import holders, lock_within, take_lock

# A half, a third, a quarter and a sixth of a GPU are whole numbers of them.
PARTS = 12
_TURN_S = 10.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]")


class NoGpusError(Exception):
    """The host has not enough free GPUs now; the message says who has them."""


def take_gpus(held: ExitStack, folder: Path, devices: Sequence[Device], needs: Needs, note: str) -> tuple[int, ...]:
    """The indices of GPUs that belong to this process as long as `held`; NoGpusError when too few are free.

    A GPU that others use already comes first where a part of it is enough, so that whole ones stay whole.
    """
    wanted = math.ceil(needs.gpu_share * PARTS - 1e-9)
    with lock_within(folder / "gpus.lock", _TURN_S) as turn:
        if not turn:
            raise NoGpusError(f"{folder}: its lock cannot be had")
        found = {device.gpu.index: _free_parts(folder, device) for device in devices}
        fitting = [device for device in devices if len(found[device.gpu.index]) >= wanted]
        fitting.sort(key=lambda device: (len(found[device.gpu.index]), device.gpu.memory_used_mib, device.gpu.index))
        if len(fitting) < needs.gpu_count:
            raise NoGpusError(_too_few(folder, devices, needs, len(fitting)))
        chosen = sorted(fitting[: needs.gpu_count], key=lambda device: device.gpu.index)
        parts = [part for device in chosen for part in found[device.gpu.index][:wanted]]
        if not all(take_lock(held, part, note) for part in parts):
            raise NoGpusError(f"{folder}: someone takes locks out of turn")
    return tuple(device.gpu.index for device in chosen)


def _free_parts(folder: Path, device: Device) -> list[Path]:
    free = []
    for part in _parts(folder, device):
        with ExitStack() as probe:
            if take_lock(probe, part, ""):
                free.append(part)
    return free


def _parts(folder: Path, device: Device) -> Iterator[Path]:
    name = _NOT_IN_NAMES.sub("-", device.uuid)
    yield from (folder / f"gpu-{name}.{part}" for part in range(PARTS))


def _too_few(folder: Path, devices: Sequence[Device], needs: Needs, free: int) -> str:
    share = "" if needs.gpu_share == 1 else f" (a share of {needs.gpu_share:g} of each)"
    by = holders(part for device in devices for part in _parts(folder, device))
    return (
        f"the job needs {needs.gpu_count} GPUs{share}, and {free} of {len(devices)} are free; "
        f"the others belong to {', '.join(by) or 'other runs'}"
    )

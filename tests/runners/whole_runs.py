"""Whole runs on this machine: a trainer and a head of Bridge of the test's own, and one GPU that is none."""

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.runners.world import BRIDGE, VERL, World, commit
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.core.model.record import Check, Finding, Gpu
from verl_e2e_runner.place import Host, HostPlace
from verl_e2e_runner.run import run_job
from verl_e2e_runner.samplers import Device, Devices

ONE_GPU = Devices((Device(Gpu(index=0, name="stand-in", memory_total_mib=1000, memory_used_mib=0), "GPU-0"),))
NO_TOOLS = Host(None, "bubblewrap (bwrap) is not installed")
DEVICE = {"verl/utils/device.py": "def get_device_name():\n    return 'cuda'\n", "verl/utils/__init__.py": ""}


def job_with(
    world: World, folder: Path, trainer: str, head: Mapping[str, str] | None = None, *, ray: str = "", **changes: Any
) -> Job:
    """The standard job with a trainer, and where it is given a head of Bridge, whose repositories lie in the folder.

    `ray` is what stands in for Ray; empty: the real one.
    """
    verl, bridge = folder / "verl", folder / "bridge"
    files = {**VERL, **DEVICE, "verl/trainer/main_ppo.py": trainer, **({"ray.py": ray} if ray else {})}
    values: dict[str, Any] = {"verl": Repository(path=str(verl), commit=commit(verl, files))}
    if head is not None:
        sha = commit(bridge, {**BRIDGE, **head, ".gitmodules": ""})
        values |= {
            "bridge": Repository(path=str(bridge), commit=sha),
            "megatron_lm": Repository(path=str(world.root / "mlm"), commit=world.megatron_commit),
            "bridge_tests": ("tests/unit/test_good.py",),
        }
    return world.job(**{**values, **changes})


def alone(*_: object) -> AbstractContextManager[HostPlace]:
    """No test waits for another one that runs on this machine just now."""
    return nullcontext(HostPlace(Finding(check=Check.OTHER_RUNS, ok=True, summary="not looked for")))


def run_whole(job: Job, out: Path, environ: Mapping[str, str], **changes: Any) -> str:
    """Run a job to its end; what a person sees of it."""
    stream = io.StringIO()
    given = {"work": None, "stream": stream, "devices": lambda: ONE_GPU, "place": alone, **changes}
    assert not run_job(job, out, environ=environ, **given)
    return stream.getvalue()


def log_of(out: Path) -> str:
    """The console log of a run folder."""
    return b"".join(open_log(out / "log.txt.zst")).decode()

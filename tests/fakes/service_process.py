"""`verl-e2e serve` as a process of its own: its settings, its address, its metrics."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.world import APP_ID, SECRET, World
from tests.fakes.patience import HANG_S

SERVE = (sys.executable, "-m", "verl_e2e", "serve")


def inherited() -> dict[str, str]:
    """What a process of the service gets of our environment."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}


def environment(world: World, folder: Path) -> dict[str, str]:
    """The settings of a service of one world, with its data in a folder."""
    return inherited() | {
        "GITHUB_API_URL": world.url,
        "GITHUB_APP_ID": str(APP_ID),
        "GITHUB_APP_PRIVATE_KEY": world.private_key,
        "GITHUB_WEBHOOK_SECRET": SECRET,
        "VERL_E2E_WORKFLOW_REF": "main",
        "VERL_E2E_TOOL": "owner/verl-e2e@" + "a" * 40,
        "VERL_E2E_DATA": str(folder),
        "VERL_E2E_PORT": "0",
        "VERL_E2E_SITE_PROFILE": "hopper-offline",
        "VERL_E2E_SITE_VALUES": "kit=/opt/kit",
        "VERL_E2E_TICK_S": "1",
    }


@contextmanager
def serving(
    environ: Mapping[str, str], log: Path, command: Sequence[str] = ()
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The service while the block lasts, with its address; its log goes to a file. It is killed at the end.

    A test that looks at the process itself, or kills it and looks at once, gives SERVE as its command.
    """
    with log.open("a") as lines:
        words = command or (*verl_e2e(), "serve")
        process = subprocess.Popen(words, env=dict(environ), stdout=subprocess.PIPE, stderr=lines, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening on http://"), log.read_text()
        yield process, said.split()[2].removesuffix("/webhook")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def figures(address: str) -> dict[str, float]:
    """The metrics, without their prefix."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=HANG_S) as answer:
        lines = answer.read().decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("verl_e2e_"): float(value) for name, _, value in rows}


def until(true: Callable[[], object], seconds: float = HANG_S, why: Callable[[], object] = lambda: "") -> float:
    """Wait for something to come true; how many seconds that took. `why` says what is not true yet."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"it did not come true in time: {why()}"
        time.sleep(0.05)
    return time.monotonic() - started

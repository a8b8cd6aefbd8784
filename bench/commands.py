"""How fast the commands themselves are: whole processes of `verl-e2e`, best of N, against the figures asked of them.

`judge` reads the recorded Level 0 folder with its log repeated to the size asked for, and must give the verdict of
the folder as it is; `--help` and `card` are what a person waits for. Called by `bench/bench.py`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "bot" / "verl_e2e" / "demo" / "recording"
HELP_S, CARD_S = 0.25, 0.5


def run(*arguments: object) -> tuple[float, float, str]:
    """Seconds, peak memory in MiB and output of one `verl-e2e` process; its exit code may be a verdict's."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "verl_e2e", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": f"{ROOT}/bot:{ROOT}/runners"}
    ) as program:
        assert program.stdout is not None
        shown = program.stdout.read().decode()
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode not in (0, 1, 4):
        raise subprocess.CalledProcessError(program.returncode, command)
    return time.perf_counter() - started, usage.ru_maxrss / 1024, shown


def fastest(runs: int, *arguments: object) -> tuple[float, float, str]:
    """The fastest of several runs, the peak memory of the largest."""
    seen = [run(*arguments) for _ in range(runs)]
    return min(row[0] for row in seen), max(row[1] for row in seen), seen[0][2]


def recorded_folder(folder: Path, log: Iterator[bytes]) -> Path:
    """The recorded Level 0 folder with another log, plain."""
    copy = shutil.copytree(RECORDING, folder)
    (copy / "log.txt.zst").unlink()
    with (copy / "log.txt").open("wb") as out:
        out.writelines(log)
    return copy


def verdict_of(shown: str) -> tuple[str, ...]:
    """The part of a judgement that no repetition may change: result, sentence and the state of each criterion."""
    card = json.loads(shown)
    states = [f"{item['criterion']}={item['state']}" for job in card["jobs"] for item in job["evidence"]]
    return (card["result"], card["sentence"], *states)


def measure_judge(
    folder: Path, repeat: Callable[[bytes], Iterator[bytes]], log: bytes, runs: int
) -> tuple[float, float, bool]:
    """Seconds and MiB of `judge` on the large folder, and whether it says what the small one does."""
    small = recorded_folder(folder / "small", iter([log]))
    large = recorded_folder(folder / "large", repeat(log))
    expected = verdict_of(run("judge", small, "--json")[2])
    seconds, peak, shown = fastest(runs, "judge", large, "--json")
    return seconds, peak, verdict_of(shown) == expected


def measure_start(runs: int = 5) -> dict[str, tuple[float, float]]:
    """Seconds and the figure asked for, by command."""
    return {
        "--help": (fastest(runs, "--help")[0], HELP_S),
        "card": (fastest(runs, "card", RECORDING)[0], CARD_S),
    }

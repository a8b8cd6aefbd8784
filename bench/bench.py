"""How fast the log engine is, against grep on the same file: `make bench` or `python bench/bench.py --help`.

Builds a large plain log by repeating a real one with noise lines between its lines, times
`LC_ALL=C grep -cE -f bench/grep.txt` and triage (a fresh process each, best of N), and compares the judgement of
the large log with that of the log it was made from. The same log is then read from Zstandard, against `zstd -dc`.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import commands  # noqa: E402
import webhooks  # noqa: E402

from verl_e2e.adapters.files.logs import open_log  # noqa: E402  (the checkout that this file lies in)

PATTERNS = ROOT / "bench" / "grep.txt"
LOGS = ROOT / "tests" / "fixtures" / "logs"
LIMIT_RATIO, LIMIT_MIB = 5.0, 150
NOISE = (
    b"(WorkerDict pid=7470) INFO:2026-11-20 14:22:27,507:memory after offload: %d MiB\n",
    b"14:00:01 \x1b[36m(vLLMHttpServer pid=7715)\x1b[0m INFO 11-20 14:22:49 [loggers.py:118] throughput: %d tokens/s\n",
    b"(SimpleStorageUnit pid=5869) Time range: last %d minutes; \n",
    b"plain output of a helper, number %d\n",
    b"\n",
)

# Run in a process of its own, so that the peak memory is that of triage alone.
WORKER = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[2])
started = time.perf_counter()
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.logs import fastest_prefilter
from verl_e2e.core.log.scan import literal_bytes, scan
from verl_e2e.core.log.scan import FindPrefilter
from verl_e2e.core.triage.triage import triage
make = FindPrefilter if sys.argv[3] == "portable" else fastest_prefilter
facts = scan(open_log(sys.argv[1]), make(literal_bytes()))
answer = triage(facts)
print(json.dumps({
    "seconds": time.perf_counter() - started,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "lines": facts.line_count,
    "judgement": [answer.verdict, answer.stage, answer.rule, answer.cause, answer.excerpt],
}))
"""


def repeated(log: bytes, size: int, seed: int = 7) -> Iterator[bytes]:
    """Copies of a log with noise after about every fifth line, until `size` bytes are reached."""
    # Not splitlines: a carriage return ends no line of a log.
    lines = [line + b"\n" for line in log.removesuffix(b"\n").split(b"\n")]
    chance, made = random.Random(seed), 0
    while made < size:
        copy = b"".join(line + _noise(chance) if chance.random() < 0.2 else line for line in lines)
        made += len(copy)
        yield copy


def _noise(chance: random.Random) -> bytes:
    template = chance.choice(NOISE)
    return template % chance.randrange(10**6) if b"%d" in template else template


def timed(argv: list[str]) -> float:
    """Wall seconds of a program, its output read and thrown away."""
    started = time.perf_counter()
    # Through a pipe: grep stops at the first match when it writes to /dev/null.
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}) as program:
        assert program.stdout is not None
        while program.stdout.read(1 << 20):
            pass
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, argv)
    return time.perf_counter() - started


def triaged(file: Path, matcher: str = "native") -> dict[str, object]:
    """What a fresh process says of a log, and what it took."""
    argv = [sys.executable, "-c", WORKER, str(file), str(ROOT), matcher]
    shown = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert isinstance(shown, dict)
    return shown


def best(file: Path, runs: int, matcher: str = "native") -> dict[str, object]:
    """The fastest of several runs."""
    return min((triaged(file, matcher) for _ in range(runs)), key=lambda run: float(str(run["seconds"])))


def measure(log: Path, folder: Path, options: argparse.Namespace) -> bool:
    """Print the table of one log; whether judgement, ratio and memory are as they must be."""
    original = folder / "original.log"
    original.write_bytes(b"".join(open_log(log)))
    big = folder / "big.log"
    with big.open("wb") as out:
        out.writelines(repeated(original.read_bytes(), options.size_mib << 20))
    grep = min(timed(["grep", "-cE", "-f", str(PATTERNS), str(big)]) for _ in range(options.runs))
    expected = triaged(original)["judgement"]
    assert isinstance(expected, list)
    print(f"\n{log.name}, {big.stat().st_size / 2**20:.0f} MiB of it: {' | '.join(str(part) for part in expected[:3])}")
    _row("grep -cE", grep, grep, 0.0, "")
    good = True
    for matcher in ("native", "portable") if options.portable else ("native",):
        run = best(big, options.runs, matcher)
        good &= _report(f"triage, {matcher}", run, grep, expected)
    if options.zstd and shutil.which("zstd"):
        packed = folder / "big.log.zst"
        subprocess.run(["zstd", "-q", "-f", str(big), "-o", str(packed)], check=True)
        unpack = min(timed(["zstd", "-dc", str(packed)]) for _ in range(options.runs))
        _row("zstd -dc", unpack, grep, 0.0, "")
        good &= _report("triage of .zst", best(packed, options.runs), grep + unpack / LIMIT_RATIO, expected)
    return good


def _report(name: str, run: dict[str, object], allowed: float, expected: object) -> bool:
    seconds, peak = float(str(run["seconds"])), float(str(run["peak_mib"]))
    same = run["judgement"] == expected
    _row(name, seconds, allowed, peak, "same judgement" if same else f"DIFFERS: {run['judgement']}")
    portable = "portable" in name
    return same and peak < LIMIT_MIB and (portable or seconds <= LIMIT_RATIO * allowed)


def _row(name: str, seconds: float, grep: float, peak: float, note: str) -> None:
    memory = f"{peak:6.0f} MiB" if peak else " " * 10
    print(f"  {name:18s} {seconds:8.2f} s  {seconds / grep:5.2f} x  {memory}  {note}")


def measure_commands(folder: Path, options: argparse.Namespace) -> bool:
    """Print the table of the commands; whether every figure is met."""
    log = b"".join(open_log(commands.RECORDING / "log.txt.zst"))
    size = options.size_mib << 20
    seconds, peak, same = commands.measure_judge(folder, lambda raw: repeated(raw, size), log, options.runs)
    grep_argv = ["grep", "-cE", "-f", str(PATTERNS), str(folder / "large" / "log.txt")]
    grep = min(timed(grep_argv) for _ in range(options.runs))
    print(f"\nverl-e2e itself, {options.size_mib} MiB log in the recorded folder")
    _row("grep -cE", grep, grep, 0.0, "")
    _row("judge", seconds, grep, peak, "same verdict" if same else "DIFFERS")
    good = same and peak < LIMIT_MIB and seconds <= LIMIT_RATIO * grep
    for name, (took, limit) in commands.measure_start().items():
        print(f"  {name:18s} {took:8.2f} s  (limit {limit} s)")
        good &= took <= limit
    return good


def main() -> int:
    """0 when every figure is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--log", type=Path, action="append", help="a log to repeat (default: the passing Level 0)")
    parser.add_argument("--all", action="store_true", help="every log of tests/fixtures/logs")
    parser.add_argument("--portable", action="store_true", help="also without the native matcher")
    parser.add_argument("--no-zstd", dest="zstd", action="store_false")
    options = parser.parse_args()
    logs = sorted(LOGS.glob("*.log.xz")) if options.all else options.log or [LOGS / "level0-pass.log.xz"]
    with tempfile.TemporaryDirectory(prefix="verl-e2e-bench-") as folder:
        good = [measure(log, Path(folder), options) for log in logs]
        good.append(measure_commands(Path(folder), options))
    print("\nverl-e2e serve, a burst of webhooks on SQLite")
    good.append(any(webhooks.measure(run) for run in range(options.runs)))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

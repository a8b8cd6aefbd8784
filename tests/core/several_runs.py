"""Generated logs with several runs: recorded runs one after the other, each with the answer that its class has.

The expected answer is written by the class of the row, before anything reads the log: the last whole run decides (one
that came to its end, or that an error ended). A log whose last run is cut never passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from tests.core.logs import NAMES, recorded
from tests.core.triage.tables import Case
from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.logs import open_log

RUNS = FIXTURES / "runs"


@dataclass(frozen=True)
class Run:
    """A recorded run with its own answer; `cut` when it neither came to its end nor met an error."""

    name: str
    rows: tuple[str, ...]
    verdict: str
    stage: str
    line: int
    cut: bool = False


@cache
def rows_of(name: str) -> tuple[str, ...]:
    """The lines of a recorded run."""
    log = recorded(name) if name in NAMES else b"".join(open_log(RUNS / name / "log.txt.zst"))
    # Not splitlines: a carriage return ends no line of a log.
    return tuple(log.decode("utf-8", "replace").removesuffix("\n").split("\n"))


def _run(name: str, verdict: str, stage: str, line: int) -> Run:
    return Run(name, rows_of(name), verdict, stage, line)


def _cut(name: str, keep: int, stage: str) -> Run:
    return Run(f"{name}@{keep}", rows_of(name)[:keep], "blocked", stage, keep, cut=True)


PASSED = (
    _run("level0-pass", "pass", "shutdown", 1336),
    _run("level5-signal", "pass", "shutdown", 1483),
    _run("level1-uninterrupted", "pass", "shutdown", 1404),
    _run("level0-isolated", "pass", "shutdown", 1360),
)
FAILED = (
    _run("level0-lora-exception", "fail", "peft", 1299),
    _run("level0-lora-matches-nothing", "fail", "peft", 1187),
    _run("level0-swapped-export", "fail", "export_weight_sync", 1328),
    _run("level0-dataset-missing", "blocked", "data", 1211),
    _run("level0-bridge-not-on-path", "blocked", "import", 1229),
    _run("level0-no-apex-gradient-fusion", "blocked", "environment", 1264),
    _run("level0-gpu-memory-refused", "blocked", "rollout_engine", 1295),
    _run("level0-vllm-extension-missing", "blocked", "environment", 150),
)
CUT = (
    _cut("level0-pass", 1154, "ray"),
    _cut("level0-pass", 1192, "peft"),
    _cut("level0-pass", 1280, "rollout_engine"),
    _cut("level0-pass", 1330, "train_step"),
    _cut("level5-flat-cut-at-14-of-20", 1488, "train_step"),
)

# How much of a later run's head a log may have lost: the text that its first kept line holds.
HEADS = {
    "echo": "+ export PYTHONPATH",
    "command": "+ python3 -m verl.trainer",
    "checks": "All configuration checks passed",
    "ray": "Started a local Ray instance",
    "config": "{'actor_rollout_ref':",
    "bar": "Training Progress:   0%",
}


def headless(run: Run, head: str) -> Run | None:
    """The run from the line on that holds the text of `head`; None when it has no such line before its answer."""
    at = next((index for index, row in enumerate(run.rows) if HEADS[head] in row), None)
    if at is None or at >= run.line - 1:
        return None
    return Run(f"{run.name}-from-{head}", run.rows[at:], run.verdict, run.stage, run.line - at, run.cut)


def case(group: str, *runs: Run, answer: int) -> Case:
    """The log of the runs one after the other; run number `answer` decides."""
    chosen = runs[answer - 1]
    before = sum(len(run.rows) for run in runs[: answer - 1])
    # A cut run leaves nothing to point at but its last line.
    log = "".join(f"{row}\n" for row in chain.from_iterable(run.rows for run in runs)).encode()
    name = " + ".join(run.name for run in runs)
    return Case(group, name, log, (chosen.verdict,), (chosen.stage,), line=before + chosen.line, run=answer)


def _pairs() -> Iterator[Case]:
    for number, failed in enumerate(FAILED):
        passed, other, cut = PASSED[number % 4], FAILED[(number + 3) % 8], CUT[number % 5]
        yield case("pass then fail", passed, failed, answer=2)
        yield case("fail then pass", failed, passed, answer=2)
        yield case("fail then fail", failed, other, answer=2)
        yield case("same error in both", failed, failed, answer=2)
        yield case("cut then fail", cut, failed, answer=2)
        yield case("fail then cut", failed, cut, answer=1)
    for number, cut in enumerate(CUT):
        yield case("cut then pass", cut, PASSED[number % 4], answer=2)
        yield case("pass then cut", PASSED[number % 4], cut, answer=2)
        yield case("cut then cut", cut, CUT[(number + 1) % 5], answer=2)
    yield from (case("pass then pass", item, two, answer=2) for item in PASSED for two in PASSED[:2])


def _longer() -> Iterator[Case]:
    for number, failed in enumerate(FAILED):
        passed, other, cut = PASSED[number % 4], FAILED[(number + 1) % 8], CUT[number % 5]
        yield case("retry until it passes", failed, failed, passed, answer=3)
        yield case("retry until it passes", cut, other, cut, passed, answer=4)
        yield case("passes, then breaks for good", passed, failed, other, answer=3)
    resumed = _run("level1-resume", "pass", "shutdown", 2779)
    save = Run("level1-save", resumed.rows[:1400], "blocked", "checkpoint_save", 1400, cut=True)
    resume = Run("level1-load", resumed.rows[1506:], "pass", "shutdown", 2779 - 1506)
    for failed in FAILED[:4]:
        yield case("fail, then save and resume", failed, resumed, answer=2)
        yield case("save, fail, resume", save, failed, resume, answer=3)
        yield case("resume that fails", save, failed, answer=2)


def _lost_heads() -> Iterator[Case]:
    for head in HEADS:
        for number, run in enumerate((*FAILED, *PASSED)):
            later = headless(run, head)
            if later is not None:
                first = PASSED[number % 4] if number % 2 else FAILED[number % 8]
                yield case(f"later run begins at its {head}", first, later, answer=2)


def several_runs() -> tuple[Case, ...]:
    """Every row, in a fixed order."""
    cases = (*_pairs(), *_longer(), *_lost_heads())
    # level1-resume holds two runs itself.
    return tuple(replace(row, run=row.run + 1) if "save and resume" in row.group else row for row in cases)

"""Logs behind what launchers put around their lines: a table of launchers x logs x places, each judged as if bare."""

import lzma
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import permutations

import pytest

from tests.core.logs import fed
from tests.core.triage.launcher_logs import EVERY, LATE, TUNED, UNSEEN, Builder, Rows, interleaved, joined
from tests.core.triage.test_labelled import CASES
from tests.fakes.places import FIXTURES
from verl_e2e.core.log.scan import LogScanner, scan
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.triage.triage import FORMAT, Triage, TriageVerdict, triage

LOGS = FIXTURES / "logs"
LABELLED = CASES["labelled"]
GROUPS = {"tuned": TUNED, "unseen": UNSEEN, "late": LATE}
ENCODED = {name for name in EVERY if name.startswith(("utf-", "cr"))}
CASES_EACH = 8
FIGURE = 0.95


@cache
def whole(name: str) -> Rows:
    text = lzma.decompress((LOGS / f"{name}.log.xz").read_bytes()).decode("utf-8", "replace")
    return tuple(text.removesuffix("\n").split("\n"))


WHOLE = tuple(sorted(path.name.removesuffix(".log.xz") for path in LOGS.glob("*.log.xz")))


def judged(data: bytes) -> Triage:
    return triage(scan([data]))


def answer(message: Triage) -> tuple[str, str, int, str]:
    return message.verdict, message.stage, message.line, message.rule


@cache
def bare(name: str) -> Triage:
    """The judgement of a whole log that no launcher wrote into."""
    return judged(joined(whole(name)))


def excerpts(name: str) -> Iterator[tuple[str, bool]]:
    """Some of the labelled logs behind one launcher, in turn: what was wrong, and whether it is a false pass."""
    first = list(EVERY).index(name) * CASES_EACH
    for index in range(first, first + CASES_EACH):
        case = LABELLED[index % len(LABELLED)]
        message = judged(EVERY[name](case.excerpt.decode().split("\n")))
        right = message.verdict in case.verdicts and message.stage in case.stages
        yield (
            ("" if right else f"{name}: {case.id}: {message.verdict} in {message.stage}"),
            (message.verdict is TriageVerdict.PASS and "pass" not in case.verdicts),
        )


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_labelled_logs_are_judged_behind_any_launcher(group: str) -> None:
    rows = [row for name in GROUPS[group] for row in excerpts(name)]
    wrong = [message for message, _ in rows if message]
    assert len(rows) >= 100
    assert not [message for message, false_pass in rows if false_pass]
    figures = Counter(message.split(":")[0] for message in wrong)
    assert len(wrong) <= (1 - FIGURE) * len(rows), f"{len(rows) - len(wrong)} of {len(rows)}: {figures}\n{wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_whole_log_is_judged_at_the_same_line(name: str) -> None:
    log = WHOLE[list(EVERY).index(name) % len(WHOLE)]
    rows = whole(log)
    assert answer(judged(EVERY[name](rows))) == answer(bare(log))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY.keys() - ENCODED))
def test_a_launcher_may_join_in_anywhere(name: str) -> None:
    log = WHOLE[list(EVERY).index(name) * 3 % len(WHOLE)]
    rows = whole(log)
    alone = bare(log)
    for start in (40, len(rows) // 2, max(alone.line - 60, 3)):
        assert answer(judged(joined(rows[:start]) + EVERY[name](rows[start:]))) == answer(alone), start


LABELS = {
    "brackets": lambda index: f"[gpu-{index}]: ",
    "srun": lambda index: f"{index}: ",
    "compose": lambda index: f"{('worker-11', 'head')[index]:9} | ",
    "mpirun": lambda index: f"[1,{index}]<stderr>:",
    "pdsh": lambda index: f"{('alpha', 'beta')[index]}: ",
    "stern": lambda index: f"verl-{('head', 'worker')[index]}-x ray ",
}
SIDES = ("train-rng-tracker", "optim-sgd-distopt", "ckpt-load-truncated", "vllm-no-kv-memory", "fsdp-v2-tp")


def raised(facts: LogFacts) -> set[tuple[str, str]]:
    return {(error.kind, error.message) for error in facts.errors if error.kind}


@pytest.mark.no_cover
@pytest.mark.parametrize("label", LABELS)
def test_tracebacks_of_two_programs_are_not_mixed(label: str) -> None:
    excerpt = {case.id: case.excerpt.decode().split("\n") for case in LABELLED}
    for first, second in permutations(SIDES, 2):
        alone = [raised(scan([joined(excerpt[name])])) for name in (first, second)]
        both = scan([interleaved(excerpt[first], excerpt[second], LABELS[label])])
        assert raised(both) == alone[0] | alone[1], (first, second)


@pytest.mark.slow
@pytest.mark.parametrize("log", [log for log in WHOLE if log != "level0-pass"])
def test_a_program_that_passes_beside_one_that_does_not_is_no_pass(log: str) -> None:
    sides = whole(log), whole("level0-pass")
    for first, second in (sides, sides[::-1]):
        assert judged(interleaved(first, second, LABELS["srun"])).verdict is not TriageVerdict.PASS


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY.keys() - ENCODED))
def test_the_end_of_a_log_may_come_without_the_clock_of_its_recorder(name: str) -> None:
    rows = [*whole("level0-pass")[1100:1250], "ModuleNotFoundError: No module named 'foo'"]
    assert answer(judged(EVERY[name](rows))) == answer(judged(joined(rows)))


@pytest.mark.parametrize("name", ["docker json", "cri", "srun -l", "pdsh in docker json", "mpirun tags"])
def test_the_driver_is_known_behind_a_launcher(name: str) -> None:
    rows = ["(WorkerDict pid=7) PEFT Adapter Information", "+ python3 -m verl.trainer.main_ppo"]
    rows += ["Error executing job with overrides: ['a=1']", "Traceback (most recent call last):"]
    rows += ['  File "/verl/trainer/main_ppo.py", line 3, in run', "ValueError: no such layer"]
    (error,) = scan([EVERY[name](rows)]).errors
    assert (error.driver, error.pid, error.at.line) == (True, None, 6)


@pytest.mark.parametrize("name", ["cri", "docker json", "srun in ts in kubectl", "utf-16 big, no mark", "cat -n"])
def test_how_the_bytes_arrive_does_not_matter(name: str) -> None:
    data = EVERY[name](LABELLED[1].excerpt.decode().split("\n") + LABELLED[25].excerpt.decode().split("\n"))
    at_once = scan([data])
    for size in (61, 4096):
        assert fed(data, size) == at_once


def test_a_log_that_is_being_written_is_read_behind_its_launcher() -> None:
    scanner = LogScanner()
    rows = [*LABELLED[25].excerpt.decode().split("\n"), "next"]
    for row in EVERY["cri"](rows).splitlines(keepends=True):
        scanner.feed(row)
    assert raised(scanner.facts()) == raised(scan([joined(rows)]))


def quoted(message: Triage, rows: Rows) -> bool:
    return message.excerpt == rows[message.line - 1].strip("\r")


def test_the_excerpt_is_the_line_of_the_file_or_the_line_in_its_record() -> None:
    rows = whole("level0-dataset-missing")
    message = judged(EVERY["docker json"](rows))
    assert message.excerpt == "14:35:21 FileNotFoundError: Unable to find '/opt/kit/data/missing.parquet'"
    message = judged(EVERY["pdsh"](rows))
    assert message.excerpt == "node07: 14:35:21 FileNotFoundError: Unable to find '/opt/kit/data/missing.parquet'"


# Exports and pages that no launcher writes: what they do to the rows of a log.
def _csv(rows: Rows) -> bytes:
    return joined(f'"{number}","gpu-7","{row.replace(chr(34), chr(34) * 2)}"' for number, row in enumerate(rows))


def _pretty(rows: Rows) -> bytes:
    return joined(f'  {{\n    "id": {number},\n    "text": {row!r}\n  }},' for number, row in enumerate(rows))


def _wrapped(rows: Rows) -> bytes:
    return joined(f"note {'x' * (number % 7)} says >>{row}<<\nand {number} more" for number, row in enumerate(rows))


NOT_UNDERSTOOD: dict[str, Builder] = {"csv": _csv, "pretty json": _pretty, "wrapped": _wrapped}


@pytest.mark.parametrize("form", NOT_UNDERSTOOD)
@pytest.mark.parametrize(
    "log", ["level0-dataset-missing", "level0-no-apex-gradient-fusion", "level0-bridge-not-on-path"]
)
def test_a_format_that_is_not_understood_is_named(form: str, log: str) -> None:
    message = judged(NOT_UNDERSTOOD[form](whole(log)))
    assert (message.verdict, message.rule) == (TriageVerdict.BLOCKED, FORMAT)
    assert message.line > 0
    assert "not understood" in message.cause
    assert "without an error" not in message.cause


def test_a_traceback_that_is_not_understood_is_no_pass() -> None:
    rows = ["step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"]
    rows += ["odd 'text Traceback (most recent call last):", 'odd "text   File "a.py", line 3, in run']
    rows += ["Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"]
    assert judged(joined([rows[0], rows[3]])).verdict is TriageVerdict.PASS
    message = judged(joined(rows))
    assert (message.verdict, message.rule, message.line) == (TriageVerdict.BLOCKED, FORMAT, 2)


@pytest.mark.no_cover
def test_nothing_is_inferred_from_a_log_without_a_launcher() -> None:
    for log in WHOLE:
        assert scan([joined(whole(log))]).misread is None
    rows = ["+ echo 'Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]'"] * 8
    assert scan([joined(rows)]).completed_at is None

"""Errors that a run survived, errors that ended it, and work inside a save or a resume: a generated table."""

import pytest

from tests.core.logs import fed, lines
from tests.core.several_runs import rows_of
from tests.core.triage.caught_errors import ASIDE, RECORDS, caught_errors, log_of, several_inserted
from tests.core.triage.tables import check, judged
from verl_e2e.core.log.lines import parse_line
from verl_e2e.core.log.scan import scan
from verl_e2e.core.log.traceback import record_above, record_of
from verl_e2e.core.model.facts import TracebackRecord
from verl_e2e.core.triage.candidates import CAUGHT
from verl_e2e.core.triage.triage import TriageVerdict, triage

STEP = "step:{} - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"


@pytest.mark.slow
def test_the_generated_table() -> None:
    check(judged(caught_errors()))


def test_a_survived_error_is_named_as_noise() -> None:
    block = ASIDE[0].printed(RECORDS["exception"])
    answer = triage(scan([log_of(several_inserted(rows_of("level0-pass"), [(1151, block)]))]))
    assert (CAUGHT, 1158) in [(noise.name, noise.at.line) for noise in answer.residual_noise]


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("WARNING:2026-11-20 14:22:03,674:x", TracebackRecord.WARNING),
        ("ERROR:root:x", TracebackRecord.ERROR),
        ("2026-11-20 14:22:03,674 - name - CRITICAL - x", TracebackRecord.ERROR),
        ("2026-11-20 14:22:03,674\tINFO worker.py:2012 -- x", TracebackRecord.WARNING),
        ("[2026-11-20][verl][WARNING] - x", TracebackRecord.WARNING),
        ("E1120 14:22:03.674000 7470 torch/x.py:1] x", TracebackRecord.ERROR),
        ("wandb: ERROR x", TracebackRecord.ERROR),
        ("[error    ] x", TracebackRecord.ERROR),
        ("a.py:3: UserWarning: x", TracebackRecord.WARNING),
        ("Exception in thread Thread-1 (f):", TracebackRecord.SIDE),
        ("Future exception was never retrieved", TracebackRecord.SIDE),
        ("Error in the middle of a sentence", TracebackRecord.RAISED),
        ("    raise ValueError('WARNING: x')", TracebackRecord.RAISED),
        ("", TracebackRecord.RAISED),
    ],
)
def test_how_a_line_says_that_it_is_a_record(text: str, record: TracebackRecord) -> None:
    assert record_of(text) is record


def test_the_record_is_that_of_the_same_process() -> None:
    line = parse_line(3, b"(W pid=3) Traceback (most recent call last):")
    other, own = parse_line(2, b"(W pid=4) ERROR:root:x"), parse_line(1, b"(W pid=3) WARNING:root:x")
    assert record_above(line, [other, own]) is TracebackRecord.WARNING
    assert record_above(line, [other]) is TracebackRecord.RAISED
    marked = parse_line(3, b"(E pid=3) ERROR 11-20 14:54:29 [core.py:1] Traceback (most recent call last):")
    assert record_above(marked, []) is TracebackRecord.PREFIXED


@pytest.mark.parametrize("size", [1, 61, 5000])
def test_the_record_is_found_however_the_bytes_arrive(size: int) -> None:
    log = lines("x" * 4200, *ASIDE[0].printed(RECORDS["warning"]), *ASIDE[4].printed(RECORDS["thread"]))[0]
    facts = fed(log, size)
    assert facts == scan([log])
    assert [error.record for error in facts.errors] == [TracebackRecord.WARNING, TracebackRecord.SIDE]


def test_an_error_that_is_raised_and_logged_is_raised() -> None:
    facts = scan(lines(*ASIDE[0].printed(RECORDS["warning"]), *ASIDE[0].printed()))
    assert [(error.record, error.count) for error in facts.errors] == [(TracebackRecord.RAISED, 2)]


def test_a_warning_without_a_traceback_is_noise_of_a_run_that_ended_well() -> None:
    warned = "WARNING:2026-11-20 14:22:03,674:CUDA out of memory, trying a smaller graph"
    done = (STEP.format(1), BAR.format(100, 1, 1))
    assert triage(scan(lines(warned, *done))).verdict is TriageVerdict.PASS
    assert triage(scan(lines(warned.replace("WARNING", "ERROR"), *done))).verdict is not TriageVerdict.PASS


def test_an_exception_that_nothing_caught_is_no_noise() -> None:
    raised = ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "OSError: x")
    worker = [f"(W pid=3) {row}" for row in raised]
    assert triage(scan(lines(*worker, STEP.format(1), BAR.format(100, 1, 1)))).verdict is TriageVerdict.BLOCKED

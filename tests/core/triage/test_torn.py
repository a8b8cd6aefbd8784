"""The root cause among interleaved, repeated, folded, wrapped, chained and cut tracebacks: the first, not the last."""

from random import Random

import pytest

from tests.core.logs import fed
from tests.core.triage.torn_logs import ROOTS, SHAPES, Raised, exception, log_of
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import TriageVerdict, triage

SEEDS = range(12)


def first_line(rows: list[str], root: Raised) -> int:
    """Where the root was printed first, 1-based."""
    return next(number for number, row in enumerate(rows, 1) if row.endswith(exception(root)))


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_relevant_error_is_found(shape: str, seed: int) -> None:
    root = ROOTS[seed % len(ROOTS)]
    rows = SHAPES[shape](Random(seed), root)
    answer = triage(scan([log_of(rows)]))
    assert (answer.verdict, answer.stage, answer.line) == (TriageVerdict.FAIL, "peft", first_line(rows, root))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_torn_log_repeated_is_judged_alike(shape: str) -> None:
    rows = SHAPES[shape](Random(3), ROOTS[0])
    once, twice = triage(scan([log_of(rows)])), triage(scan([log_of(rows * 2)]))
    assert (twice.verdict, twice.stage, twice.cause, twice.line) == (once.verdict, once.stage, once.cause, once.line)


@pytest.mark.parametrize("shape", SHAPES)
def test_wherever_a_torn_log_is_cut_it_is_read_and_no_pass(shape: str) -> None:
    rows = SHAPES[shape](Random(5), ROOTS[0])
    at = first_line(rows, ROOTS[0])
    for keep in range(0, len(rows), 5):
        answer = triage(scan([log_of(rows[:keep])]))
        assert answer.verdict is not TriageVerdict.PASS
        assert answer.line <= keep
        if keep > at + 1:
            assert answer.line == at


@pytest.mark.parametrize("shape", SHAPES)
def test_a_log_that_begins_in_the_middle_is_read_and_no_pass(shape: str) -> None:
    rows = SHAPES[shape](Random(7), ROOTS[1])
    for skip in range(0, len(rows), 7):
        assert triage(scan([log_of(rows[skip:])])).verdict is not TriageVerdict.PASS


@pytest.mark.parametrize("shape", SHAPES)
def test_how_the_bytes_arrive_does_not_matter(shape: str) -> None:
    log = log_of(SHAPES[shape](Random(11), ROOTS[2]))
    assert fed(log, 97) == scan([log])


def test_an_error_that_later_steps_survived_is_not_what_ended_the_run() -> None:
    step = "step:{} - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"
    survived = ["(W pid=3) Traceback (most recent call last):", '(W pid=3)   File "agent.py", line 1, in register']
    survived += ["(W pid=3) TypeError: expected int", *(step.format(number) for number in (1, 2, 3))]
    died = ["Traceback (most recent call last):", '  File "verl/trainer/ppo/ray_trainer.py", line 9, in fit']
    died += ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."]
    assert triage(scan([log_of(survived)])).rule == "incomplete"
    answer = triage(scan([log_of([*survived, *died])]))
    assert (answer.rule, answer.line) == ("worker-died", 9)


def test_a_survived_error_of_a_completed_run_is_still_unexplained() -> None:
    step = "step:{} - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"
    rows = ["(W pid=3) Traceback (most recent call last):", '(W pid=3)   File "agent.py", line 1, in register']
    rows += ["(W pid=3) TypeError: expected int", *(step.format(number) for number in (1, 2, 3))]
    answer = triage(scan([log_of([*rows, "Training Progress: 100%|###| 3/3 [00:01<00:00, 1.0s/it]"])]))
    assert (answer.verdict, answer.line) == (TriageVerdict.BLOCKED, 3)


def test_the_traceback_of_a_data_worker_belongs_to_the_exception_that_carries_it() -> None:
    rows = ["Traceback (most recent call last):", '  File "trainer.py", line 7, in fit']
    rows += ["ValueError: Caught ValueError in DataLoader worker process 0."]
    rows += ["Original Traceback (most recent call last):", '  File "verl/utils/dataset/rl_dataset.py", line 7, in get']
    rows += ["ValueError: no such column"]
    (error,) = scan([log_of(rows)]).errors
    assert (error.message, error.at.line) == ("no such column", 6)

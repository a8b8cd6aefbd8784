"""Which causes are worth another attempt: every cause has a class, and the least promising of several decides."""

import pytest

from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.model.outcome import (
    EVIDENCE_CAUSE,
    SEAL_CAUSE,
    UNPROVEN_CAUSE,
    EngineEnd,
    of_criterion,
    of_end,
    of_engine,
    of_preflight,
)
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.pulls.retry import CLASSES, RetryClass, class_of
from verl_e2e.core.triage.rules import Fault
from verl_e2e.core.triage.table import RULES

# What a change of the tested code can cause, however much it reads like the machine's fault.
MAY_BE_THE_CHANGE = (
    of_engine(EngineEnd.HOST_MEMORY),
    of_engine(EngineEnd.TIME_LIMIT),
    of_engine(EngineEnd.RUNNER_ENDED),
    of_engine(EngineEnd.LEFT_NOTHING),
    of_end(EndReason.STALLED),
    of_end(EndReason.TIME_LIMIT),
    of_end(EndReason.HOST_MEMORY),
    of_end(EndReason.EXITED),
    "log:host-memory",
    "log:killed-by-signal",
    "log:worker-died",
    "log:engine-memory",
)


def test_every_cause_that_there_is_has_a_class_and_the_table_names_no_other() -> None:
    known = {of_engine(end) for end in EngineEnd} | {of_end(reason) for reason in EndReason}
    known |= {of_preflight(check) for check in Check} | {f"log:{rule.id}" for rule in RULES}
    assert set(CLASSES) == known


def test_no_fault_of_code_is_ever_run_again() -> None:
    of_code = {f"log:{rule.id}" for rule in RULES if rule.fault is not Fault.OUTSIDE}
    assert {cause for cause, found in CLASSES.items() if found is RetryClass.CHANGE} == of_code


@pytest.mark.parametrize("cause", MAY_BE_THE_CHANGE)
def test_what_the_change_may_have_caused_is_unknown(cause: str) -> None:
    assert class_of((cause,), undecided=False) is RetryClass.UNKNOWN


@pytest.mark.parametrize(
    "cause", [SEAL_CAUSE, EVIDENCE_CAUSE, UNPROVEN_CAUSE, *map(of_criterion, Criterion), "log:of-tomorrow"]
)
def test_what_the_table_does_not_name_is_unknown(cause: str) -> None:
    assert class_of((cause,), undecided=False) is RetryClass.UNKNOWN


@pytest.mark.parametrize(
    ("causes", "undecided", "found"),
    [
        ((), False, RetryClass.UNKNOWN),
        (("engine:node_failed",), False, RetryClass.PASSING),
        (("engine:node_failed",), True, RetryClass.UNKNOWN),
        (("log:import-error",), False, RetryClass.LASTING),
        (("log:import-error",), True, RetryClass.UNKNOWN),
        (("preflight:gpus", "preflight:other_runs"), False, RetryClass.PASSING),
        (("preflight:host_memory",), False, RetryClass.PASSING),
        (("preflight:gpus", "preflight:disk"), False, RetryClass.LASTING),
        (("preflight:disk", "preflight:hydra"), False, RetryClass.OURS),
        (("preflight:hydra", "preflight:bridge_tests"), False, RetryClass.UNKNOWN),
        # A failure that the folder does not prove stays one of the code.
        ((UNPROVEN_CAUSE, "log:train-step"), False, RetryClass.CHANGE),
        (("log:train-step",), True, RetryClass.CHANGE),
    ],
)
def test_of_several_causes_the_least_promising_decides(
    causes: tuple[str, ...], undecided: bool, found: RetryClass
) -> None:
    assert class_of(causes, undecided=undecided) is found
    assert class_of(causes[::-1], undecided=undecided) is found

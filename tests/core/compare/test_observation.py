"""What is said of changed functions into which faults were put."""

import pytest

from tests.core.compare.test_rehearsal import GOOD, PATH, entering, function, record
from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    Observation,
    Observed,
    ObserveLimits,
    Sight,
    Trial,
    judge_rehearsal,
    observable,
)
from verl_e2e.core.model.execution import ChangedFunction, Side

NAME = f"{PATH}:f"
SCALED = Trial(function=NAME, fault="its result scaled", cell="a")
BY_ORACLE = SCALED.model_copy(update={"oracles": ("logits",), "differing": ("step1/loss@0",)})
BY_DIFFERENCE = SCALED.model_copy(update={"differing": ("step1/loss@0",)})
BY_WARNING = SCALED.model_copy(update={"differing": ("warnings@0",)})
OTHER = SCALED.model_copy(update={"fault": "two arguments of one kind swapped"})
BY_ERROR = SCALED.model_copy(update={"error": "RuntimeError"})


def observed(*trials: Trial, entered: bool = True, **unjudged: str) -> tuple[Observation, ...]:
    head = entering(12, functions=(NAME,) if entered else ())
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    tried = Observed(trials=trials, unjudged={f"{PATH}:{name}": reason for name, reason in unjudged.items()})
    return judge_rehearsal(base, {**base, "a": head}, [function("f", (12,))], observed=tried).observations


@pytest.mark.parametrize(
    ("trials", "sight", "reason"),
    [
        ((SCALED,), Sight.UNNOTICED, ""),
        ((SCALED, BY_ORACLE), Sight.OBSERVED, "logits"),
        ((BY_ERROR, BY_DIFFERENCE), Sight.OBSERVED, "step1/loss@0"),
        ((BY_DIFFERENCE, BY_ORACLE), Sight.OBSERVED, "logits"),
        ((BY_WARNING, BY_ERROR), Sight.OBSERVED, "warnings@0"),
        ((BY_ERROR,), Sight.OBSERVED, "RuntimeError"),
        # That one fault ends in an error does not say that another one would be noticed.
        ((BY_ERROR, OTHER), Sight.UNNOTICED, ""),
        ((BY_WARNING, OTHER), Sight.UNNOTICED, ""),
        ((BY_DIFFERENCE, OTHER), Sight.OBSERVED, "step1/loss@0"),
        # The same fault, noticed in another cell.
        ((SCALED, BY_ERROR), Sight.OBSERVED, "RuntimeError"),
        ((), Sight.UNJUDGED, "nothing is said of it"),
        # Faults of another function say nothing about this one.
        ((BY_ORACLE.model_copy(update={"function": f"{PATH}:g"}),), Sight.UNJUDGED, "nothing is said of it"),
    ],
)
def test_a_function_is_observed_by_what_says_most(trials: tuple[Trial, ...], sight: Sight, reason: str) -> None:
    (found,) = observed(*trials)
    assert (found.function, found.sight, found.reason) == (NAME, sight, reason)


def test_a_function_of_which_not_all_was_tried_is_not_called_unnoticed() -> None:
    (found,) = observed(SCALED, f="there was no time left for it")
    assert (found.sight, found.reason) == (Sight.UNJUDGED, "there was no time left for it")
    (found,) = observed(BY_ORACLE, f="there was no time left for it")
    assert found.sight is Sight.OBSERVED


def test_a_function_that_no_cell_entered_is_not_among_them() -> None:
    assert observed(BY_ORACLE, entered=False) == ()


def test_faults_are_put_into_functions_of_the_head_alone() -> None:
    at_import = ChangedFunction(path=PATH, symbol="", first_line=1, last_line=1, lines=(3,))
    gone = function("gone", (12,), side=Side.MERGE_BASE)
    assert observable([at_import, gone, function("f", (12,))]) == (function("f", (12,)),)


def test_the_limits_are_said() -> None:
    assert ObserveLimits().described == "at most 6 in each of 20 functions, within 90 s"

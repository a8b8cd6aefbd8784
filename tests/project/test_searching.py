"""The search for orders of events that break a state machine ends with what it finds, and says how to find it again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.fakes.searching import search


class Breaks(RuleBasedStateMachine):
    """Breaks at some numbers; keeps what it was given since."""

    given: list[int] = []  # noqa: RUF012  of all its instances
    tried_after = 0

    def __init__(self) -> None:
        super().__init__()
        Breaks.tried_after += any(number > 9 for number in Breaks.given)

    @rule(number=st.integers(0, 1_000_000))
    def give(self, number: int) -> None:
        Breaks.given.append(number)
        assert number <= 9


def test_what_is_found_is_not_shrunk_and_can_be_repeated(pytestconfig: pytest.Config) -> None:
    Breaks.given, Breaks.tried_after = [], 0
    with pytest.raises(AssertionError) as raised:
        search(Breaks, settings(stateful_step_count=5, deadline=None), pytestconfig)
    # It is run once more for the steps; shrinking would take dozens of runs.
    assert Breaks.tried_after <= 3
    notes = "\n".join(raised.value.__notes__)
    assert "state.give(number=" in notes
    assert "--search-seconds=0" in notes

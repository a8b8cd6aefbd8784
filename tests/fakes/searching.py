"""Searching a state machine for an order of events that breaks it: new orders in each run, repeatable by their seed."""

import time
from itertools import count

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

BATCH = 5


def search(machine: type[RuleBasedStateMachine], base: settings, config: pytest.Config) -> None:
    """Try batches of orders, one seed each, for --search-seconds; a failure says how to repeat its batch alone."""
    end = time.monotonic() + config.getoption("--search-seconds")
    for number in count(config.getoption("--search-seed")):
        seeded = seed(number)(type(machine.__name__, (machine,), {"__module__": machine.__module__}))
        try:
            run_state_machine_as_test(
                seeded, settings=settings(base, max_examples=BATCH, derandomize=False, database=None)
            )
        except BaseException as error:
            error.add_note(f"To repeat it: run this test alone with --search-seed={number} --search-seconds=0")
            raise
        if time.monotonic() >= end:
            return

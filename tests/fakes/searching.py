"""Searching a state machine for an order of events that breaks it: new orders from each seed, repeatable by it."""

import time
from itertools import count

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

# The first order of a batch is the simplest, and the batch under way is finished, so few keep the time.
BATCH = 2


def search(machine: type[RuleBasedStateMachine], base: settings, config: pytest.Config) -> None:
    """Try batches of orders, one seed each, for --search-seconds; a failure says how to repeat its batch alone.

    The batch under way is finished. A failing order is shown as it was found, for to shrink it takes Hypothesis minutes
    that no search has: --search-shrink does it.
    """
    phases = (Phase.generate, Phase.shrink) if config.getoption("--search-shrink") else (Phase.generate,)
    batch = settings(base, max_examples=BATCH, derandomize=False, database=None, phases=phases)
    end = time.monotonic() + config.getoption("--search-seconds")
    for number in count(config.getoption("--search-seed")):
        seeded = seed(number)(type(machine.__name__, (machine,), {"__module__": machine.__module__}))
        try:
            run_state_machine_as_test(seeded, settings=batch)
        except BaseException as error:
            alone = f"--search-seed={number} --search-seconds=0"
            error.add_note(f"To repeat it: run this test alone with {alone}, and --search-shrink for a shorter order")
            raise
        if time.monotonic() >= end:
            return

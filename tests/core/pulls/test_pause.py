"""Which repositories are paused."""

from datetime import timedelta
from itertools import permutations

from tests.core.pulls.entries import NOW, asked, override
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.pause import Pause, pauses_of

PAUSED = asked("pause", "the disk is full", minute=1, actor="mona")
RESUMED, AGAIN = asked("resume", minute=2), asked("pause", "the network is down", minute=3)


def test_the_last_switch_of_a_repository_counts() -> None:
    assert pauses_of(()) == {}
    assert pauses_of((asked("resume"),)) == {}
    found = pauses_of((PAUSED,))["octo/bridge"]
    assert found == Pause("mona", NOW + timedelta(minutes=1), "the disk is full")
    assert found.in_short == "paused by mona since 2026-01-01 00:01 UTC"
    assert pauses_of((PAUSED, RESUMED)) == {}
    assert pauses_of((PAUSED, RESUMED, AGAIN))["octo/bridge"].reason == "the network is down"
    elsewhere = RESUMED.model_copy(update={"repository": "octo/other"})
    assert [*pauses_of((PAUSED, elsewhere))] == ["octo/bridge"]


def test_switches_count_in_the_order_in_which_they_were_written() -> None:
    written = [
        entry.model_copy(update={"written": entry.at, "at": NOW + timedelta(hours=1)})
        for entry in (PAUSED, RESUMED, AGAIN)
    ]
    for order in permutations(written):
        assert pauses_of(order)["octo/bridge"] == Pause("ann", AGAIN.at, "the network is down")
    # Other entries switch nothing.
    assert pauses_of((override(Level.SMOKE), asked("run"))) == {}  # type: ignore[arg-type]

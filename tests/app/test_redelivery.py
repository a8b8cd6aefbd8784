"""Webhooks that failed: each is asked for again until it arrives, however long GitHub cannot reach us."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from tests.fakes.clocks import HandClock
from verl_e2e.app.on_event import KEPT, LONGEST_WAIT_S, MOST_TIMES, Redelivery
from verl_e2e.core.pulls.forge import DeliveryAttempt
from verl_e2e.ports import ForgeError

TICK_S = 60.0


@dataclass
class Hook:
    """GitHub's deliveries to our one address, which takes them or not."""

    clock: HandClock = field(default_factory=HandClock)
    code: int = 502
    refusals: dict[int, ForgeError] = field(default_factory=dict)
    attempts: list[DeliveryAttempt] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def send(self, guid: str, *, again: bool = False) -> None:
        """One attempt."""
        number = len(self.attempts) + 1
        made = DeliveryAttempt(number, guid, "issue_comment", "created", self.code, self.clock.now(), again)
        self.attempts.append(made)

    def deliveries(self, since: datetime) -> tuple[DeliveryAttempt, ...]:
        return tuple(attempt for attempt in reversed(self.attempts) if attempt.at >= since)

    def redeliver(self, delivery_id: int) -> None:
        if delivery_id in self.refusals:
            raise self.refusals[delivery_id]
        found = next(attempt for attempt in self.attempts if attempt.id == delivery_id)
        self.asked.append(found.guid)
        self.send(found.guid, again=True)

    def pass_s(self, seconds: float, redelivery: Redelivery) -> None:
        """Let time go by, with a look in each tick."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.pass_s(TICK_S)
            redelivery.ask_again()

    def taken(self) -> set[str]:
        return {attempt.guid for attempt in self.attempts if not attempt.failed}


@pytest.mark.parametrize("hours", (0.1, 1, 24, 71))
def test_what_failed_arrives_soon_after_github_reaches_us_again(hours: float) -> None:
    hook = Hook()
    redelivery = Redelivery(hook, hook.clock)
    hook.send("one")
    hook.send("two")
    hook.pass_s(hours * 3600, redelivery)
    assert hook.taken() == set()
    hook.code = 202
    hook.pass_s(LONGEST_WAIT_S, redelivery)
    assert hook.taken() == {"one", "two"}
    asked = len(hook.asked)
    hook.pass_s(3600, redelivery)
    assert len(hook.asked) == asked


def test_what_fails_for_ever_is_asked_for_less_and_less_and_no_longer_than_github_keeps_it() -> None:
    hook = Hook()
    redelivery = Redelivery(hook, hook.clock)
    hook.send("one")
    hook.pass_s(3600, redelivery)
    assert len(hook.asked) < 12
    hook.pass_s(KEPT.total_seconds(), redelivery)
    asked = len(hook.asked)
    assert asked < KEPT / timedelta(seconds=LONGEST_WAIT_S) + 12
    hook.pass_s(24 * 3600, redelivery)
    assert len(hook.asked) == asked


@pytest.mark.parametrize("code", (400, 401, 413, 415))
def test_what_our_own_door_refuses_is_asked_for_a_few_times(code: int) -> None:
    hook = Hook(code=code)
    redelivery = Redelivery(hook, hook.clock)
    hook.send("too large")
    hook.pass_s(24 * 3600, redelivery)
    assert len(hook.asked) == MOST_TIMES


def test_a_look_that_finds_no_new_attempt_forgets_nothing() -> None:
    """The request failed each time, so that the only attempt is long before the last look."""
    hook = Hook(refusals={1: ForgeError("GitHub did not answer", passing=True)})
    redelivery = Redelivery(hook, hook.clock)
    hook.send("one")
    for _ in range(20):
        hook.clock.pass_s(TICK_S)
        with pytest.raises(ForgeError):
            redelivery.ask_again()
    hook.refusals, hook.code = {}, 202
    hook.pass_s(TICK_S, redelivery)
    assert hook.taken() == {"one"}


def test_one_that_github_does_not_have_any_more_holds_up_no_other() -> None:
    hook = Hook(refusals={1: ForgeError("404 Not Found", absent=True)})
    redelivery = Redelivery(hook, hook.clock)
    hook.send("gone")
    hook.send("there")
    hook.code = 202
    hook.pass_s(TICK_S, redelivery)
    assert hook.taken() == {"there"}


def test_a_new_process_asks_for_all_that_github_still_has() -> None:
    hook = Hook()
    hook.send("one")
    hook.pass_s(24 * 3600, Redelivery(hook, hook.clock))
    hook.code = 202
    assert Redelivery(hook, hook.clock).ask_again() == 1
    assert hook.taken() == {"one"}

"""Why nothing starts: a few words that are the same everywhere, and what to do as code that can be copied."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fakes.shown_pull import BASE, FAILED, HEAD, NOW, REF, shown_target_state
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.access import Start
from verl_e2e.core.pulls.commands import NeedsApproval
from verl_e2e.core.pulls.forge import MergeGroup, Pull, PullState
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.target_state import BROKEN_CONTRACT, CLOSED, DRAFT, Hold, TargetState, hold, hold_of_plan


def target_state(**changes: object) -> TargetState:
    known = shown_target_state(*FAILED)
    pull = {name: changes.pop(name) for name in ("draft", "state") if name in changes}
    assert isinstance(known.target, Pull)
    return replace(known, target=replace(known.target, **pull), **changes)  # type: ignore[arg-type]


def asked(verb: str, minute: int = 0) -> RecordedCommand:
    return RecordedCommand(
        source=f"comment:{minute}:1",
        repository=REF.repository,
        number=REF.number,
        actor="ann",
        verb=verb,
        head_sha=HEAD,
        at=NOW + timedelta(minutes=minute),
    )


HOLDS: tuple[tuple[dict[str, object], str, str], ...] = (
    ({}, "", ""),
    ({"state": PullState.CLOSED}, CLOSED, ""),
    ({"problem": "no commit"}, "no commit", ""),
    ({"broken": ("gone",)}, BROKEN_CONTRACT.format("verl"), ""),
    ({"draft": True}, DRAFT, "mark the pull request ready for review"),
    ({"trust": NeedsApproval("a fork")}, "awaiting approval: a fork", f"`/verl-e2e approve {HEAD}`"),
    ({"entries": (asked("cancel"),)}, "cancelled by ann", "`/verl-e2e run`"),
    ({"entries": (asked("cancel"), asked("run", 1))}, "", ""),
    ({"state": PullState.CLOSED, "draft": True, "broken": ("gone",)}, CLOSED, ""),
)


@pytest.mark.parametrize(("changes", "message", "action"), HOLDS)
def test_why_nothing_starts(changes: dict[str, object], message: str, action: str) -> None:
    found = hold(target_state(**changes))
    assert (found.sentence if found else "") == message
    assert action in (found.action if found else "")
    assert (found is not None and found.cancelled) == message.startswith("cancelled")
    assert hold_of_plan(target_state(**changes)) == found


@pytest.mark.parametrize(("entries", "held"), (((), True), ((asked("run"),), False)))
def test_where_the_policy_wants_it_somebody_has_to_ask(entries: tuple[RecordedCommand, ...], held: bool) -> None:
    policy = packaged_policy()
    asks = policy.model_copy(update={"gate": policy.gate.model_copy(update={"start": Start.ASKED})})
    assert hold(target_state(policy=asks, entries=entries)) is None
    found = hold_of_plan(target_state(policy=asks, entries=entries))
    assert (found is not None) is held
    assert found is None or "`/verl-e2e run`" in found.action
    group = MergeGroup(REF.repository, "main", BASE, HEAD)
    assert hold_of_plan(replace(shown_target_state(*FAILED), target=group, policy=asks)) is None


def test_a_hold_without_more_of_a_reason_is_its_few_words() -> None:
    assert Hold("cancelled by ann").sentence == "cancelled by ann"

"""Who may ask for what, whose code may run, and which overrides count."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.access import ROLES, Access, Capability, Grant, OverrideRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.commands import (
    SECOND_PERSON,
    Actor,
    Denied,
    Granted,
    NeedsApproval,
    Trusted,
    counted,
    expires_at,
    has_role,
    may,
    may_run,
    needs_leave,
)
from verl_e2e.core.pulls.forge import Pull, PullRef, PullState
from verl_e2e.core.pulls.ledger import Approval, Override

HEAD, OTHER = "a" * 40, "b" * 40
REF = PullRef("octo/bridge", 7)
PULL = Pull(REF, "main", OTHER, HEAD, "octo/bridge", "alice", "MEMBER", draft=False, state=PullState.OPEN)
WRITE, READ = Actor("alice", "write"), Actor("alice", "read")

NEEDS = {
    Capability.ASK: "none",
    Capability.PLAN: "triage",
    Capability.RUN: "write",
    Capability.CANCEL: "write",
    Capability.APPROVE: "write",
    Capability.OVERRIDE: "maintain",
    Capability.QUEUE: "maintain",
}


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("access", [Access(), packaged_policy().capabilities], ids=["default", "packaged"])
def test_a_role_may_what_its_rank_allows(capability: Capability, role: str, access: Access) -> None:
    found = may(Actor("someone", role), capability, access)
    assert isinstance(found, Granted) == (ROLES.index(role) >= ROLES.index(NEEDS[capability])), found


def test_a_custom_role_stands_for_itself() -> None:
    access = Access(run=Grant(custom_roles=("gpu-runner",)))
    assert isinstance(may(Actor("x", "gpu-runner"), Capability.RUN, access), Granted)
    assert isinstance(may(Actor("x", "admin"), Capability.RUN, access), Denied)


def test_a_team_a_login_and_an_author_are_ways_in() -> None:
    access = Access(run=Grant(teams=("octo/gpu",), logins=("Helper[bot]",), author=True))
    ways = (Actor("x", teams=frozenset({"octo/gpu"})), Actor("helper[bot]"), Actor("x", is_author=True))
    assert all(isinstance(may(way, Capability.RUN, access), Granted) for way in ways)
    denied = may(Actor("x", "admin", frozenset({"octo/other"})), Capability.RUN, access)
    assert isinstance(denied, Denied)
    assert "octo/gpu" in denied.reason


@pytest.mark.parametrize(
    ("actor", "known"),
    (
        *((Actor("x", role), ROLES.index(role) > 1) for role in ROLES),
        (Actor("x", "gpu-runner"), True),
        (Actor("helper[bot]"), True),
        (Actor("x", teams=frozenset({"octo/gpu"})), True),
        (Actor("x", teams=frozenset({"octo/other"})), False),
        (Actor("x", is_author=True), False),
    ),
    ids=repr,
)
def test_who_has_a_role_that_not_everyone_has(actor: Actor, known: bool) -> None:
    access = Access(run=Grant(roles=("write",), teams=("octo/gpu",), logins=("helper[bot]",)))
    assert has_role(actor, access) is known


def approval(head: str = HEAD, number: int = 7, repository: str = "octo/bridge") -> Approval:
    return Approval(
        base="main",
        repository=repository,
        number=number,
        head_sha=head,
        actor="mona",
        source="comment:1:1",
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )


FORK = replace(PULL, head_repository="evil/bridge")
FIRST = replace(PULL, author_association="FIRST_TIME_CONTRIBUTOR")
CASES = (
    ("a member's own branch", PULL, (), WRITE, True),
    ("a branch of someone who may not run", PULL, (), READ, False),
    ("a member's fork", FORK, (), WRITE, False),
    ("a fork that is gone", replace(PULL, head_repository=""), (), WRITE, False),
    ("a first contribution", FIRST, (), WRITE, False),
    ("a fork, approved", FORK, (approval(),), READ, True),
    ("a first contribution, approved", FIRST, (approval(),), READ, True),
    ("a fork, an earlier head approved", FORK, (approval(OTHER),), READ, False),
    ("a fork, approved and pushed", replace(FORK, head_sha="c" * 40), (approval(),), READ, False),
    ("a fork, another pull request approved", FORK, (approval(number=8),), READ, False),
    ("a fork, another repository's approved", FORK, (approval(repository="octo/other"),), READ, False),
)


@pytest.mark.parametrize(
    ("name", "pull", "approvals", "author", "trusted"), CASES, ids=[example[0] for example in CASES]
)
def test_whose_head_may_run(
    name: str, pull: Pull, approvals: tuple[Approval, ...], author: Actor, trusted: bool
) -> None:
    found = may_run(pull, approvals, author, Access())
    assert isinstance(found, Trusted if trusted else NeedsApproval), (name, found)


@pytest.mark.parametrize("short", [HEAD[:39], HEAD[:12], HEAD.upper() + "0", ""])
def test_an_approval_names_a_whole_commit(short: str) -> None:
    with pytest.raises(ValueError, match="head_sha"):
        approval(short)


@pytest.mark.parametrize(
    ("pull", "given", "needed"),
    (
        (PULL, (), False),
        (PULL, (approval(),), True),
        (PULL, (approval(OTHER),), False),
        (PULL, (approval(number=8),), False),
        (replace(PULL, head_repository="eve/bridge"), (), True),
        (replace(PULL, head_repository=""), (), True),
    ),
)
def test_which_heads_run_with_an_approval_alone(pull: Pull, given: tuple[Approval, ...], needed: bool) -> None:
    assert needs_leave(pull, given) is needed


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def given(level: int, actor: str, hours_ago: float = 0.0) -> Override:
    at = NOW - timedelta(hours=hours_ago)
    source = f"comment:{level}{actor}{hours_ago}"
    return Override(
        base="main",
        repository="o/r", number=1, head_sha="1" * 40, level=Level(level), reason="no host", actor=actor, source=source,
        at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "overrides", "levels", "why"),
    [
        (OverrideRules(), [given(0, "mona")], [0], ""),
        (OverrideRules(levels=(Level(1),)), [given(0, "mona")], [], "lets no one override level 0"),
        (OverrideRules(levels=()), [given(5, "mona")], [], "lets no one override level 5"),
        (OverrideRules(expires_h=2), [given(0, "mona", 1.99)], [0], ""),
        (OverrideRules(expires_h=2), [given(0, "mona", 2)], [], "more than 2 hours ago"),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona")], [], SECOND_PERSON),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(0, "MONA", 1)], [], SECOND_PERSON),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(0, "max")], [0, 0], ""),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(1, "max")], [1], SECOND_PERSON),
        (
            OverrideRules(two_persons=(Level(0),), expires_h=2),
            [given(0, "mona", 3), given(0, "max")],
            [],
            "more than 2 hours ago",
        ),
        (OverrideRules(most=1), [given(0, "mona", 2), given(1, "mona", 1)], [0], "lets 1 levels of one head"),
        (OverrideRules(most=0), [given(0, "mona")], [], "lets 0 levels of one head"),
        (OverrideRules(most=1), [given(0, "mona"), given(0, "max")], [0, 0], ""),
    ],
)
def test_what_counts(rules: OverrideRules, overrides: list[Override], levels: list[int], why: str) -> None:
    found = counted(overrides, rules, NOW)
    assert [int(override.level) for override in found.overrides] == levels
    assert len(found.overrides) + len(found.uncounted) == len(
        {(override.level, override.actor.lower()) for override in overrides}
    )
    assert why in (found.uncounted[0].why if found.uncounted else "")


def test_an_override_ends_after_the_policys_hours() -> None:
    rules, override = OverrideRules(expires_h=3), given(0, "mona")
    ends = expires_at(override, rules)
    assert counted([override], rules, ends - timedelta(seconds=1)).overrides == (override,)
    assert counted([override], rules, ends).overrides == ()

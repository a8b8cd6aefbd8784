"""Who may ask for what, and whose head may run: tables over roles, teams and pull requests."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.access import ROLES, Access, Capability, Grant
from verl_e2e.core.pulls.ledger import Approval
from verl_e2e.core.pulls.pull import Pull, PullRef, PullState
from verl_e2e.core.pulls.trust import (
    Actor,
    Denied,
    Granted,
    NeedsApproval,
    Trusted,
    has_role,
    may,
    may_run,
    needs_leave,
)

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

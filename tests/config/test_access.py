"""The policy's keys `capabilities` and `gate`: what they mean, and one sentence for each mistake."""

import pytest

from verl_e2e.config.policy import load_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.model.access import DEFAULT_GATE, Access, Capability, Grant, Start

POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: t}
checkpoint: {model_id: a/b}
rules: []
"""


def test_a_policy_that_says_nothing_has_the_defaults() -> None:
    policy = load_policy(POLICY, "f.yml")
    assert (policy.gate, policy.capabilities) == (DEFAULT_GATE, Access())


def test_a_grant_that_is_given_replaces_its_default_and_no_other() -> None:
    text = "capabilities: {run: {roles: [Maintain], teams: [o/t], logins: [x]}}\ngate: {start: asked, name: e2e}\n"
    policy = load_policy(POLICY + text, "f.yml")
    assert policy.capabilities.of(Capability.RUN) == Grant(roles=("maintain",), teams=("o/t",), logins=("x",))
    assert policy.capabilities.of(Capability.CANCEL) == Access().of(Capability.CANCEL)
    assert (policy.gate.start, policy.gate.name) == (Start.ASKED, "e2e")


MISTAKES = (
    ("capabilities: {run: {anyone: true}}", "run is granted to everyone; name roles from triage up"),
    ("capabilities: {run: {roles: [read]}}", "run is granted to everyone"),
    ("capabilities: {approve: {author: true}}", "approve is granted to authors; leave `author` out"),
    ("capabilities: {override: {author: true}}", "override is granted to authors"),
    ("capabilities: {aprove: {roles: [write]}}", "capabilities.aprove: unknown key; did you mean 'approve'?"),
    ("capabilities: {run: {role: [write]}}", "capabilities.run.role: unknown key; did you mean 'roles'?"),
    ("capabilities: {run: {teams: [gpu]}}", "'gpu' is not a team; write organisation/team"),
    ("gate: {name: '@here'}", "gate.name"),
    ("gate: {start: never}", "'automatic' or 'asked'"),
    ("gate: {card_interval_s: 3}", "write at least 15"),
    ("gate: {queue_deadline_s: '90'}", "gate.queue_deadline_s"),
)


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_with_its_fix(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(f"{POLICY}{text}\n", "f.yml")
    (problem,) = caught.value.problems
    assert (words in str(problem), str(problem).startswith("f.yml:")) == (True, True), str(problem)

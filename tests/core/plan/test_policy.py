"""What a policy's patterns say of one path."""

import pytest

from verl_e2e.config import load_policy
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.policy import Policy

POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documentation, paths: [docs/, "*.md"], reason: nothing imports it}
  - {name: loop, paths: ["src/train/*", "!src/train/checkpoint.py"], reason: verl has its own}
rules:
  - {name: package, paths: [src/], levels: [0], reason: imported}
  - {name: adapters, paths: [src/peft/], levels: [1, 5], reason: adapters}
families:
  - {family: wide, paths: ["src/models/wide*"]}
"""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICY, "policy.yml")


@pytest.mark.parametrize(
    ("path", "exemption", "rules"),
    (
        ("docs/index.rst", "documentation", []),
        ("README.md", "documentation", []),
        ("src/peft/NOTES.md", "documentation", []),
        ("src/peft/lora.py", None, ["package", "adapters"]),
        ("src/train/loop.py", "loop", []),
        ("src/train/checkpoint.py", None, ["package"]),
        ("other/src.py", None, []),
        ("srcs/peft.py", None, []),
        ("docs", None, []),
        ("src/peft/we\nird.py", None, ["package", "adapters"]),
        ("docs/\udcff.md", "documentation", []),
        ("", None, []),
    ),
)
def test_an_exemption_beats_rules_and_all_rules_that_match_count(
    policy: Policy, path: str, exemption: str | None, rules: list[str]
) -> None:
    found = classify(path, policy)
    assert (found.exemption.name if found.exemption else None) == exemption
    assert [rule.name for rule in found.rules] == rules


def test_a_family_is_found_by_its_paths_and_not_for_an_exempt_one(policy: Policy) -> None:
    assert [family.name for family in classify("src/models/wide_bridge.py", policy).families] == ["wide"]
    assert classify("src/models/wide.md", policy).families == ()
    assert classify("src/models/other.py", policy).families == ()

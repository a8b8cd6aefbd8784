"""An attestation vouches for one artifact of one run of our workflow, and for nothing else."""

from dataclasses import fields, replace

import pytest

from verl_e2e.core.pulls.forge import HOSTED, ISSUER, PREDICATE, Attested, Handover, why_not

WEB = "https://github.com/o/r"
WORKFLOW = f"{WEB}/.github/workflows/verl-e2e.yml@refs/heads/verl-e2e"
CALLED = f"https://github.com/t/verl-e2e/.github/workflows/verl-e2e.yml@{'c' * 40}"
RUN = f"{WEB}/actions/runs/7/attempts/1"
ASKED = Handover("a" * 64, WEB, WORKFLOW, (WORKFLOW, CALLED), "b" * 40, RUN)
SAID = Attested(PREDICATE, frozenset({"a" * 64}), ISSUER, WEB, WORKFLOW, WORKFLOW, "b" * 40, RUN, HOSTED)


@pytest.mark.parametrize("signer", [WORKFLOW, CALLED])
def test_the_second_job_of_the_run_that_we_started_vouches_for_its_upload(signer: str) -> None:
    assert why_not(replace(SAID, signer=signer), ASKED) == ""


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"digests": frozenset({"d" * 64})}, "it is about another artifact"),
        ({"digests": frozenset()}, "it is about another artifact"),
        ({"predicate": "https://in-toto.io/attestation/release/v0.1"}, "its type is"),
        ({"issuer": "https://token.actions.githubusercontent.com/acme"}, "its issuer is"),
        ({"repository": "https://github.com/o/fork"}, "its repository is https://github.com/o/fork"),
        ({"workflow": WORKFLOW.replace("verl-e2e.yml", "ci.yml")}, "its workflow is"),
        ({"workflow": WORKFLOW.replace("heads/verl-e2e", "heads/mallory")}, "its workflow is"),
        ({"signer": CALLED.replace("c" * 40, "d" * 40)}, "its signer is"),
        ({"commit": "d" * 40}, "its commit is"),
        ({"run": RUN.replace("runs/7", "runs/8")}, "its run is"),
        ({"run": RUN.replace("attempts/1", "attempts/2")}, "its run is"),
        # The machine that ran the code under test.
        ({"runner": "self-hosted"}, "its runner is self-hosted, not github-hosted"),
        ({"runner": ""}, "its runner is not stated, not github-hosted"),
    ],
)
def test_any_other_attestation_does_not(changed: dict[str, object], text: str) -> None:
    assert why_not(replace(SAID, **changed), ASKED).startswith(text)  # type: ignore[arg-type]


def test_nothing_that_an_attestation_says_is_left_unread() -> None:
    for each in fields(Attested):
        other: object = frozenset({"?"}) if each.name == "digests" else "?"
        assert why_not(replace(SAID, **{each.name: other}), ASKED), each.name  # type: ignore[arg-type]

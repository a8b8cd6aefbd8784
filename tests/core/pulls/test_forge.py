"""What GitHub says about itself: jobs that ended early, attestations, digests of folders."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.pulls.forge import (
    HOSTED,
    ISSUER,
    PREDICATE,
    Attested,
    FolderFile,
    Handover,
    WorkflowJob,
    WorkflowRun,
    WorkflowStep,
    folder_digest,
    why_not,
)


@pytest.mark.parametrize(
    ("status", "conclusion", "begun"),
    [
        ("queued", "", False),
        ("pending", "", False),
        ("in_progress", "", True),
        ("completed", "skipped", False),
        ("completed", "success", True),
        ("completed", "failure", True),
    ],
)
def test_a_step_was_begun_unless_it_was_passed_over_or_never_reached(status: str, conclusion: str, begun: bool) -> None:
    assert WorkflowStep("run", status, conclusion).begun is begun


@pytest.mark.parametrize(
    ("steps", "conclusion", "early"),
    [
        (
            (WorkflowStep("set up", "completed", "failure"), WorkflowStep("run", "completed", "skipped")),
            "failure",
            True,
        ),
        ((WorkflowStep("take", "completed", "failure"), WorkflowStep("run", "completed", "skipped")), "failure", False),
        ((WorkflowStep("take", "completed", "success"), WorkflowStep("run", "completed", "failure")), "failure", False),
        ((WorkflowStep("run", "completed", "skipped"),), "success", False),
        ((WorkflowStep("set up", "completed", "failure"),), "failure", False),
        ((), "failure", False),
    ],
)
def test_a_job_never_reached_a_step_that_github_lists_as_not_begun(
    steps: tuple[WorkflowStep, ...], conclusion: str, early: bool
) -> None:
    job = WorkflowJob(1, "0-lora-ddp", "completed", conclusion, steps=steps)
    assert job.never_reached("run", "take") is early


def test_only_what_is_completed_has_ended() -> None:
    assert WorkflowRun(1, "completed").ended
    assert not WorkflowRun(1, "in_progress").ended
    assert not WorkflowJob(1, "x", "in_progress", steps=(WorkflowStep("run", "queued"),)).never_reached("run", "")


@pytest.mark.parametrize(
    ("steps", "conclusion", "lost"),
    [
        ((WorkflowStep("run", "in_progress"), WorkflowStep("upload", "queued")), "failure", True),
        ((WorkflowStep("run", "completed", "success"), WorkflowStep("upload", "in_progress")), "failure", True),
        (
            (WorkflowStep("run", "completed", "failure"), WorkflowStep("upload", "completed", "skipped")),
            "failure",
            False,
        ),
        # GitHub's list of steps may lag behind the end of a job.
        ((WorkflowStep("run", "in_progress"),), "success", False),
        ((), "failure", False),
    ],
)
def test_a_job_lost_its_machine_in_the_middle_of_a_step(
    steps: tuple[WorkflowStep, ...], conclusion: str, lost: bool
) -> None:
    assert WorkflowJob(1, "0-lora-ddp", "completed", conclusion, "a-host", steps=steps).lost_its_machine is lost
    assert not WorkflowJob(1, "0-lora-ddp", "in_progress", "", "a-host", steps=steps).lost_its_machine


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


FILES = st.lists(
    st.builds(FolderFile, st.text(max_size=5), st.integers(0, 9), st.sampled_from(["a" * 64, "b" * 64])), max_size=4
)


@given(FILES, st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(files: list[FolderFile], chosen: "st.randoms") -> None:  # type: ignore[valid-type]
    other = list(files)
    chosen.shuffle(other)  # type: ignore[attr-defined]
    assert folder_digest(other) == folder_digest(files)


@given(FILES, FILES)
def test_other_files_have_another_digest(files: list[FolderFile], others: list[FolderFile]) -> None:
    same = sorted(map(repr, files)) == sorted(map(repr, others))
    assert (folder_digest(files) == folder_digest(others)) is same


def test_a_name_cannot_pass_for_another_file() -> None:
    row = FolderFile("a", 1, "a" * 64)
    assert folder_digest([row, replace(row, path="b")]) != folder_digest([replace(row, path=f"a 1 {'a' * 64}\n1 b")])
    assert len(folder_digest([])) == 64
    # A name that is not text in any encoding.
    assert folder_digest([replace(row, path="\udc80")]) != folder_digest([row])

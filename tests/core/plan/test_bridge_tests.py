"""The chosen Bridge tests on their way into the plan's text and document, into a job, and onto its card."""

import json

import pytest

from verl_e2e.config import load_profile, packaged_policy
from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.judge import wording
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.jobs import ChosenTest, Job, Repository, WhyChosen
from verl_e2e.core.plan.bridge_tests import Choice, is_test_file
from verl_e2e.core.plan.build import Sources, build_job, runnable
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.plan import plan, with_tests
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.report.plan_text import render_plan_text

POLICY = packaged_policy()
SOURCES = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
NEAR = ChosenTest(test="tests/unit_tests/peft/test_lora.py", why=WhyChosen.CHANGED, reason="the change changes it")
GPUS = ChosenTest(test="tests/unit_tests/peft/test_two.py", why=WhyChosen.IMPORTS, reason="it is near", gpu_count=2)
CHOICE = Choice((NEAR, GPUS), ("3 more test files are near the change.",), 240)


@pytest.mark.parametrize(
    ("path", "collected"),
    [
        ("tests/test_a.py", True),
        ("test_a.py", True),
        ("tests/a_test.py", True),
        ("tests/conftest.py", False),
        ("tests/test_a.txt", False),
        ("tests/test_data/rows.py", False),
        ("tests/my_test_a.py", False),
    ],
)
def test_which_files_pytest_collects(path: str, collected: bool) -> None:
    assert is_test_file(path) is collected


@pytest.mark.parametrize(("gpu_count", "kept", "text"), [(0, 1, "has none."), (1, 1, "has 1."), (2, 2, "")])
def test_what_too_few_gpus_leave_out_is_said(gpu_count: int, kept: int, text: str) -> None:
    tests, beyond = runnable((NEAR, GPUS), gpu_count)
    assert len(tests) == kept
    assert [sentence.endswith(text) for sentence in beyond] == ([True] if text else [])


def built(variant: str, bridge_python: str = "") -> Job:
    chosen = variant_named(variant)
    assert chosen is not None
    site = load_profile("hopper-offline", {"kit": "/opt/kit"}).model_copy(update={"bridge_python": bridge_python})
    outline = JobOutline(chosen, (), POLICY.checkpoint, tests=CHOICE)
    return build_job(outline, policy=POLICY, site=site, sources=SOURCES)


@pytest.mark.parametrize(
    ("variant", "python", "chosen"),
    [("0-lora-ddp", "", (NEAR,)), ("2-dense", "", (NEAR, GPUS)), ("2-dense", "/cpu/python", (NEAR,))],
)
def test_a_job_runs_the_listed_tests_first_and_those_that_its_gpus_are_enough_for(
    variant: str, python: str, chosen: tuple[ChosenTest, ...]
) -> None:
    job = built(variant, python)
    assert job.chosen_tests == chosen
    assert job.bridge_tests == (*POLICY.bridge_tests, *(chosen_test.test for chosen_test in chosen))
    assert job.bridge_tests_limit_s == POLICY.test_choice.seconds
    assert CHOICE.left_out[0] in job.site.limitations
    assert any(GPUS.test in sentence for sentence in job.site.limitations) is (GPUS not in chosen)
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_the_plan_shows_the_chosen_tests_and_why() -> None:
    change = Change(
        "a" * 40, "b" * 40, "a" * 40, (ChangedPath("src/megatron/bridge/peft/lora.py", PathStatus.MODIFIED),)
    )
    made = with_tests(plan(change, POLICY), CHOICE)
    text = render_plan_text(made)
    assert "Bridge tests chosen for this change, besides those of the policy, for 240 s at most:" in text
    assert f"  {NEAR.test}: the change changes it\n" in text
    assert f"  {GPUS.test}: it is near, needs 2 GPUs\n  3 more test files are near the change.\n" in text
    document = json.loads(plan_json(made))["bridge_tests"]
    assert document["tests"][0] == {
        "test": NEAR.test,
        "why": "changed",
        "reason": "the change changes it",
        "gpu_count": 0,
    }
    assert "Bridge tests chosen" not in render_plan_text(plan(change, POLICY))


def test_the_card_names_a_few_of_many_chosen_tests() -> None:
    many = tuple(NEAR.model_copy(update={"test": f"tests/test_{number}.py"}) for number in range(9))
    job = built("0-lora-ddp").model_copy(
        update={"chosen_tests": many, "bridge_tests": ("tests/test_listed.py", *(item.test for item in many))}
    )
    text = wording.run_tests_by_hand(job)
    assert "(pytest -q tests/test_listed.py tests/test_0.py tests/test_1.py tests/test_2.py and 6 more chosen" in text

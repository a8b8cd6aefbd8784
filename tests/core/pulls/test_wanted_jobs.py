"""Which run speaks for a wanted job, where another version, or another base, wrote its job."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.executions import TRANSFORM, change
from tests.core.pulls.entries import HEAD, OTHER, SMOKE, WANTED, run
from verl_e2e.core.model.access import Slowdown
from verl_e2e.core.model.execution import Purpose
from verl_e2e.core.model.jobs import (
    PICTURES,
    Checkpoint,
    ChosenTest,
    DeselectedTest,
    ErrorSign,
    Isolation,
    Job,
    JobDefect,
    JobFeature,
    NotRestored,
    Patch,
    Repository,
    RepositoryOrigin,
    SiteProfile,
    WhyChosen,
)
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.wanted_jobs import (
    ASKED_OF_RESULT,
    changed_since,
    differing_keys,
    does,
    must_be_judged_again,
    origin_text,
    replaced_run,
    runs_of,
    same_work,
    to_judge_again,
)

JOB = WANTED[0]
ASKED = SMOKE.model_copy(update={"changed": change(TRANSFORM)})
LONGER = SMOKE.model_copy(update={"steps": SMOKE.steps + 1})
ELSEWHERE = Repository(path="p", commit="e" * 40)
MADE = Checkpoint(model_id="another/model")
DESELECTED = (DeselectedTest(test="t", reason="r"),)
# Another value of each key that is not a plain one.
OTHERS: dict[str, Any] = {
    "verl": ELSEWHERE,
    "megatron_lm": ELSEWHERE,
    "checkpoint": MADE,
    "reward_model": MADE,
    "data": PICTURES,
    "isolation": Isolation.REQUIRED,
    "performance": Slowdown.FAIL,
    "level": Level.SAVE_RESUME,
    "schema_": 2,
    "changed": change(TRANSFORM),
    "purposes": (Purpose(path="p", condition="c"),),
    "chosen_tests": (ChosenTest(test="t", why=WhyChosen.CHANGED, reason="r"),),
    "settings": {Axis.TENSOR: 2},
    "features": (JobFeature(name="f"),),
    "patches": (
        Patch(name="n", repository="verl", file="f", substitutions=(), before="1" * 64, after="2" * 64, reason="r"),
    ),
    "defects": (JobDefect(name="n", reason="r", shows=ErrorSign(stage=Stage.TRAIN_STEP, error="E: m @ f")),),
    "not_restored": (NotRestored(name="n", model="actor", parameters=("p",), reason="r"),),
    "needs": SMOKE.required_of_host,
    "origins": {"verl": RepositoryOrigin(url="https://github.com/o/verl")},
}
OF_SITE: dict[str, Any] = {
    "checkpoints": {"a": MADE},
    "data": PICTURES,
    "reward_model": MADE,
    "deselected_tests": DESELECTED,
    "gpus_per_node": 2,
    "isolation": SMOKE.site.isolation.model_copy(update={"processes": 100}),
    "needs": SMOKE.site.needs.model_copy(update={"gpu_share": 0.5}),
    "ray_cpus": 64,
    "stall_s": {"default": 1},
}
# Keys that follow from others, or that only planning and people read.
FOLLOWS = {"needs", "origins"}
OF_PLANNING = {"description", "limitations", "checkpoints", "reward_model", "data", "cannot_run", "rehearsal_python"}


def other_than(value: Any) -> Any:
    """Another plain value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, "x")
        case dict():
            return {**value, "X": "x"}
        case _:
            return "x"


def by_older(job: Job | None, state: RunState = RunState.FINISHED, result: Result | None = Result.PASS) -> Run:
    """A run whose job an older version wrote, so that its digest says nothing."""
    return run(SMOKE, state, result, job=job, job_digest="0" * 64)


@pytest.mark.parametrize("key", sorted(Job.model_fields))
def test_each_key_of_a_job_is_work_unless_only_its_result_is_judged_by_it(key: str) -> None:
    if key in {"bridge", "site"}:
        # All runs of a head have one commit of Bridge; the keys of a site are tested below.
        return
    changed = SMOKE.model_copy(update={key: OTHERS.get(key, other_than(getattr(SMOKE, key)))})
    assert same_work(SMOKE, changed) is (key in ASKED_OF_RESULT | FOLLOWS)


@pytest.mark.parametrize("key", sorted(SiteProfile.model_fields))
def test_each_key_of_a_site_is_work_unless_only_planning_or_people_read_it(key: str) -> None:
    site = SMOKE.site.model_copy(update={key: OF_SITE.get(key, other_than(getattr(SMOKE.site, key)))})
    found = differing_keys(SMOKE, SMOKE.model_copy(update={"site": site}))
    assert found == (frozenset() if key in OF_PLANNING else {f"site.{key}"})


@pytest.mark.parametrize(
    ("found", "speaks", "again"),
    (
        (by_older(SMOKE), True, False),
        (by_older(SMOKE, RunState.RUNNING, None), True, False),
        (by_older(ASKED, RunState.RUNNING, None), True, False),
        (by_older(ASKED, result=Result.FAIL), True, False),
        (by_older(ASKED, result=Result.BLOCKED), True, False),
        (by_older(ASKED), False, True),
        (by_older(ASKED, result=Result.BLOCKED).model_copy(update={"never_entered": True}), False, True),
        (by_older(LONGER), False, False),
        (by_older(None), False, False),
    ),
)
def test_a_run_speaks_by_what_it_did_and_a_good_one_for_what_was_asked(found: Run, speaks: bool, again: bool) -> None:
    assert bool(runs_of(JOB, HEAD, (found,))) is speaks
    assert (does(found, JOB) and must_be_judged_again(found, JOB)) is again
    assert (to_judge_again(JOB, HEAD, (found,)) == found) is again
    assert (replaced_run(JOB, HEAD, (found,)) == found) is not speaks
    assert replaced_run(JOB, OTHER, (found,)) is None
    assert replaced_run(replace(JOB, job=None), HEAD, (found,)) is None


def test_why_a_run_does_not_count_is_named_by_the_keys() -> None:
    assert changed_since(by_older(LONGER), JOB) == "the job changed since then: steps"
    both = ASKED.model_copy(update={"steps": 9})
    assert changed_since(by_older(both), JOB) == "the job changed since then: steps"
    left = "the job changed since then: changed, of which its run folder does not tell"
    assert changed_since(by_older(ASKED), JOB) == left
    assert changed_since(by_older(None), JOB) == "its job is not known any more"


def test_the_folder_behind_a_verdict_that_was_taken_over_is_judged_again() -> None:
    behind = by_older(ASKED).model_copy(update={"head_sha": OTHER, "key": "1" * 64})
    taken = by_older(ASKED).model_copy(update={"carried_from": OTHER})
    assert to_judge_again(JOB, HEAD, (behind, taken)) == behind
    assert to_judge_again(JOB, HEAD, (taken,)) is None
    own = taken.model_copy(update={"carried_from": HEAD, "origin_at": taken.updated})
    assert "judged again for this job" in origin_text(own)

"""A run with a reward model passes only where the scores are shown to be that model's."""

import math
from typing import Any

import pytest

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record, step_line
from verl_e2e.core.judge.criteria.features import reward_model_asked
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Aspect
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.outcome import Result

ASKED = {"timing_s/reward": 3.2, "critic/score/min": -2.5, "critic/score/max": 1.25}
OWN = "reward.custom_reward_function.path"
SWITCH = "reward.reward_model.enable"


def scored(changes: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> LogFacts:
    step = step_line(**{**ASKED, **(changes or {})})
    return make_facts(configs=(config_with({SWITCH: True, **(config or {})}),), steps=(step,))


def job() -> Job:
    return make_job(reward_model=Checkpoint(model_id="local/scores", model_path="/kit/scores", random_weights=True))


def test_scores_that_differ_and_took_time_of_their_own_are_the_reward_models() -> None:
    item = reward_model_asked(make_case(make_record(job=job()), scored()))
    assert item.state is State.MET
    assert item.excerpt == "step:1 timing_s/reward:3.2 critic/score:-2.5 to 1.25"
    verdict = judged(scored(), job=job())
    assert verdict.result is Result.PASS
    assert Aspect.REWARD_MODEL in verdict.shows
    assert any("reward model has random weights" in text for text in verdict.limitations)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (make_facts(), "step 1 has no timing_s/reward: the reward model was not asked"),
        (scored({"timing_s/reward": None}), "was not asked"),
        (scored({"timing_s/reward": 0.0}), "was not asked"),
        (scored({"timing_s/reward": math.nan}), "was not asked"),
        (scored({"critic/score/min": 1.25}), "are 1.25 to 1.25: no sign that responses were read"),
        (scored({"critic/score/max": None}), "are -2.5 to nan: no sign"),
        (scored({"critic/score/min": -math.inf}), "are -inf to 1.25: no sign"),
        (scored(config={OWN: "/kit/own.py"}), "the scores are those of /kit/own.py"),
        (make_facts(steps=()), "no step shows"),
    ],
)
def test_a_run_that_does_not_show_it_is_blocked(facts: LogFacts, words: str) -> None:
    item = reward_model_asked(make_case(make_record(job=job()), facts))
    assert (item.state, words in item.summary) == (State.MISSING, True)
    assert judged(facts, job=job()).result is not Result.PASS


def test_a_job_without_a_reward_model_is_not_asked_for_it() -> None:
    verdict = judged()
    assert Criterion.REWARD_MODEL_ASKED not in {item.criterion for item in verdict.evidence}
    assert Aspect.REWARD_MODEL not in verdict.shows

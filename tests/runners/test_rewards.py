"""The toy rewards: their values, and verl's way of loading and calling them."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_e2e_runner.rewards
from verl_e2e.core.signal.report import LENGTH_FREE
from verl_e2e_runner import rewards
from verl_e2e_runner.rewards import digit_share


@pytest.mark.parametrize(
    ("answer", "score"),
    [("", 0.0), ("no number", 0.0), ("42", 100.0), ("a1b2", 50.0), (" 7\n\n", 25.0), ("٣²½", 0.0)],
)
def test_the_score_is_the_percentage_of_ascii_digits(answer: str, score: float) -> None:
    assert digit_share("openai/gsm8k", answer, "18") == pytest.approx(score)


def test_verl_loads_the_file_by_its_path_and_calls_by_keyword() -> None:
    spec = importlib.util.spec_from_file_location("custom_module", Path(rewards.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    score = module.digit_share(
        data_source="openai/gsm8k", solution_str="x1", ground_truth="18", extra_info={"num_turns": 1}, scale=1
    )
    assert type(score) is float
    assert score == pytest.approx(50.0)


@pytest.mark.parametrize("name", sorted(LENGTH_FREE))
@given(answer=st.text(min_size=1, max_size=40), times=st.integers(2, 30))
def test_such_a_reward_does_not_depend_on_the_length(name: str, answer: str, times: int) -> None:
    reward = getattr(verl_e2e_runner.rewards, name)
    assert reward("openai/gsm8k", answer * times, "18") == pytest.approx(reward("openai/gsm8k", answer, "18"))

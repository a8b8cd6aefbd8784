"""The toy rewards: their values, and verl's way of loading and calling them."""

import importlib.util
from pathlib import Path

import pytest

from runners import rewards
from runners.rewards import digit_share


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

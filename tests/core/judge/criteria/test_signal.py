"""Level 5 on a whole case: evidence, verdict, limitations and the line of the card."""

import math
from typing import Any

import pytest

from tests.core.builders import bar, config_with, ended, error, make_case, make_facts, make_job, make_record
from tests.core.signal.series import noisy, run_of, with_value
from verl_e2e.core.consumer.consumers import variants_of
from verl_e2e.core.judge.criteria.metrics import learning_signal
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.related import RelatedRun, RelatedStep, Role
from verl_e2e.core.report.run_card import Card, render_markdown, render_text

(VARIANT,) = variants_of(Level.LEARNING_SIGNAL)
CONFIG = config_with(
    {
        "trainer.total_training_steps": 20,
        "trainer.val_before_train": True,
        "trainer.test_freq": 10,
        "actor_rollout_ref.actor.optim.lr": 0.0001,
    }
)
RISING, LEVEL = run_of(noisy(0, 0.3)), run_of(noisy(3))
REAL = Checkpoint(model_id="Qwen/Qwen2.5-0.5B")


def job(**given: Any) -> Job:
    return make_job(
        Level.LEARNING_SIGNAL,
        VARIANT.name,
        steps=20,
        wrapper=dict(VARIANT.wrapper),
        overrides=VARIANT.overrides,
        **given,
    )


def base(steps: tuple[StepMetrics, ...], result: Result = Result.PASS) -> RelatedRun:
    return RelatedRun(
        role=Role.MERGE_BASE,
        job_id="5-signal",
        job_digest="d" * 64,
        bridge_commit="e" * 40,
        folder="../5-signal-merge-base",
        result=result,
        steps=tuple(RelatedStep(step=item.step, values=dict(item.values)) for item in steps),
    )


def facts(steps: tuple[StepMetrics, ...], **given: Any) -> Any:
    return make_facts(configs=(CONFIG,), steps=steps, progress=bar(20, 20, line=1700), line_count=1710, **given)


def judged(steps: tuple[StepMetrics, ...], *bases: RelatedRun, **given: Any) -> Verdict:
    return judge(make_record(job=job(**given), related=bases), facts(steps))


def test_a_rising_run_passes_and_claims_no_more() -> None:
    verdict = judged(RISING, base(run_of(noisy(1, 0.3))))
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    assert verdict.sentence.startswith("learning-signal passed: verl finished 20 training steps")
    text = render_text(Card((verdict,)))
    assert "Learning-signal passed over 20 steps of one run: no convergence is claimed." in verdict.limitations
    assert "converged" not in text
    assert not any("compared with nothing" in row for row in verdict.limitations)


def test_the_card_shows_every_curve_in_one_line() -> None:
    verdict = judged(RISING)
    (line,) = [item.excerpt for item in verdict.key_lines if item.criterion == Criterion.LEARNING_SIGNAL]
    assert line.startswith("reward 0.0")
    assert [part.split(" ")[0] for part in line.split(", ")] == ["reward", "loss", "grad", "KL", "entropy", "length"]
    assert f"log.txt.zst:1600: {line}" in render_text(Card((verdict,)))
    assert line in render_markdown(Card((verdict,)))


def test_a_run_without_a_baseline_says_so() -> None:
    verdict = judged(RISING)
    assert verdict.result is Result.PASS
    assert "There is no run on the merge base to compare with, so its curves are not compared." in verdict.limitations


def test_a_flat_run_is_inconclusive_without_a_baseline() -> None:
    verdict = judged(LEVEL)
    assert (verdict.result, verdict.stage) == (Result.BLOCKED, Stage.LEARNING_SIGNAL)
    assert verdict.cause.startswith("flat: critic/score/mean stayed at 0.04")
    assert any("merge base" in row for row in verdict.followups)
    assert any(item.criterion == Criterion.LEARNING_SIGNAL and "▁" in item.excerpt for item in verdict.key_lines)


def test_a_flat_run_is_inconclusive_beside_a_flat_baseline() -> None:
    verdict = judged(LEVEL, base(run_of(noisy(2)), Result.BLOCKED))
    assert (verdict.result, verdict.stage) == (Result.BLOCKED, Stage.LEARNING_SIGNAL)
    assert verdict.cause.endswith("the baseline did not learn either")


def test_a_flat_run_fails_where_the_baseline_moved() -> None:
    verdict = judged(LEVEL, base(RISING))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.LEARNING_SIGNAL)
    assert "on the baseline it rose by 0.2" in verdict.sentence


@pytest.mark.parametrize("metric", ["actor/pg_loss", "actor/grad_norm", "critic/grad_norm", "critic/score/mean"])
def test_a_planted_nan_is_unstable_and_fails(metric: str) -> None:
    verdict = judged(with_value(RISING, 7, **{metric: math.nan}), base(RISING))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.LEARNING_SIGNAL)
    assert f"unstable: {metric} is nan at step 7" in verdict.sentence
    (item,) = [item for item in verdict.evidence if item.criterion == Criterion.LEARNING_SIGNAL]
    assert (item.state, item.line) == (State.BROKEN, 1470)


def test_a_step_that_ends_in_an_exception_over_nan_is_unstable_too() -> None:
    raised = error(
        "RuntimeError",
        "Rank 0, iteration 0: Unexpected result nan (message='found NaN in local grad norm for bucket #0')",
        stage=Stage.TRAIN_STEP,
        line=1605,
        driver=True,
    )
    cut = make_facts(
        configs=(CONFIG,), steps=RISING[:6], errors=(raised,), progress=bar(6, 20, 30), completed_at=None, stood=None
    )
    verdict = judge(make_record(job=job(), events=ended(exit_code=1)), cut)
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.LEARNING_SIGNAL)
    assert "unstable: the step produced NaN or infinity" in verdict.sentence
    assert [item.line for item in verdict.key_lines] == [143, 1605]


def test_an_earlier_fault_of_health_comes_first() -> None:
    steps = with_value(with_value(RISING, 7, actor__pg_loss=math.nan), 3, actor__grad_norm=0.0)
    assert judged(steps).stage is Stage.TRAIN_STEP


REWARD = (
    "reward.custom_reward_function.path=$VERL_E2E/verl_e2e_runner/rewards.py",
    "reward.custom_reward_function.name=",
)
OURS = (REWARD[0], f"{REWARD[1]}digit_share")


@pytest.mark.parametrize(
    ("checkpoint", "config", "overrides", "result"),
    [
        (None, {}, OURS, Result.PASS),
        (Checkpoint(model_id="x", dummy_config="dummy.json"), {}, OURS, Result.PASS),
        (REAL, {}, OURS, Result.BLOCKED),
        (REAL, {"actor_rollout_ref.rollout.ignore_eos": True}, OURS, Result.PASS),
        (None, {}, (), Result.BLOCKED),
        (REAL, {"actor_rollout_ref.rollout.ignore_eos": True}, (), Result.BLOCKED),
        (None, {}, (REWARD[0], f"{REWARD[1]}another"), Result.BLOCKED),
        (None, {}, ("reward.custom_reward_function.path=/x/runners/rewards.py", OURS[1]), Result.BLOCKED),
        (None, {}, (OURS[1],), Result.BLOCKED),
        (None, {}, (*OURS, "reward.custom_reward_function.path=/own/length.py"), Result.BLOCKED),
    ],
)
def test_responses_at_the_cap_are_weak_unless_none_could_end_and_the_reward_knows_no_length(
    checkpoint: Checkpoint | None, config: dict[str, object], overrides: tuple[str, ...], result: Result
) -> None:
    steps = run_of(noisy(0, 0.3), response_length__clip_ratio=0.98)
    given = {"checkpoint": checkpoint} if checkpoint else {}
    printed = config_with(
        {
            "trainer.total_training_steps": 20,
            "trainer.val_before_train": True,
            "trainer.test_freq": 10,
            "actor_rollout_ref.actor.optim.lr": 0.0001,
            **dict(row.split("=") for row in overrides),
            **config,
        }
    )
    found = facts(steps)
    asked = job(**given)
    asked = asked.model_copy(update={"overrides": (*asked.overrides, *overrides)})
    verdict = judge(make_record(job=asked), make_facts(**{**_fields(found), "configs": (printed,)}))
    assert verdict.result is result
    if result is Result.BLOCKED:
        assert verdict.cause == "weak evidence: 98% of the responses end at the length cap, at most 50% may"
        assert "learning-signal passed" not in render_text(Card((verdict,))).lower()
    else:
        why = "the job lets no response end" if checkpoint is REAL else "random weights end no response"
        text = f"{why}, and the reward digit_share does not depend on the length"
        assert f"98% of the responses end at the length cap: {text}." in verdict.limitations


def _fields(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def test_a_run_of_fewer_steps_than_asked_for_is_no_evidence() -> None:
    item = learning_signal(make_case(make_record(job=job()), facts(RISING[:14])))
    assert (item.state, item.summary) == (State.MISSING, "not enough steps: the run stops at step 14 of 20")


def test_a_run_that_never_trained_has_no_curves_and_no_notes() -> None:
    verdict = judged(())
    assert verdict.result is Result.BLOCKED
    assert not any("compared with nothing" in row for row in verdict.limitations)


def test_a_baseline_that_says_nothing_is_named() -> None:
    verdict = judged(RISING, base(RISING[:4]))
    assert any("5-signal-merge-base says nothing: not enough steps" in row for row in verdict.limitations)

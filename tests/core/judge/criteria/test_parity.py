"""A run compared with another one of the same training: across parallel sizes, and around a save."""

from typing import Any

import pytest

from tests.core.builders import bar, config_with, make_case, make_facts, make_job, make_record
from tests.core.level_runs import job_of
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.metrics import reports, resumed_step, unsharded_parity
from verl_e2e.core.judge.verdict import judge_case
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.related import Bands, RelatedRun, RelatedStep, Role
from verl_e2e.core.report.run_card import Card, render_markdown

DENSE = {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2", "NUM_GPUS": "4"}
HEALTHY = {
    "actor/grad_norm": 0.22,
    "critic/grad_norm": 4.0,
    "actor/entropy": 7.34,
    "actor/kl_loss": 0.01,
    "rollout_corr/rollout_log_ppl": 7.36,
    "prompt_length/mean": 87.8,
    "actor/lr": 0.001,
    "training/rollout_actor_probs_pearson_corr": 0.9998,
}


def line(step: int, **changes: float | None) -> StepMetrics:
    """A step of the run; `changes` by the metric's name with its slash as two underscores, None removes one."""
    values: dict[str, float | None] = {**HEALTHY, "training/global_step": float(step)}
    values |= {name.replace("__", "/"): value for name, value in changes.items()}
    return StepMetrics(step, 1000 + step, {name: value for name, value in values.items() if value is not None})


def related_run(role: Role, *steps: StepMetrics, **given: Any) -> RelatedRun:
    fields: dict[str, Any] = {
        "role": role,
        "job_id": "0-dense-unsharded",
        "job_digest": "d" * 64,
        "bridge_commit": "a" * 40,
        "folder": "related/other",
        "result": Result.PASS,
        "steps": tuple(RelatedStep(step=item.step, values=dict(item.values)) for item in steps),
    }
    return RelatedRun(**(fields | given))


def dense(*steps: StepMetrics, related: tuple[RelatedRun, ...] = (), **given: Any) -> Case:
    """A run of level 2 with these steps."""
    job = make_job(Level.PARALLELISM, "dense", steps=len(steps), gpu_count=4, wrapper=DENSE)
    record = make_record(job=job, related=related, **given)
    printed = (config_with(dict(requested_config(job))),)
    return make_case(record, make_facts(steps=steps, progress=bar(len(steps), len(steps)), configs=printed))


REFERENCE = related_run(Role.UNSHARDED, line(1), line(2), line(3))


def test_without_a_reference_parity_is_not_shown() -> None:
    item = unsharded_parity(dense(line(1)))
    assert (item.state, item.summary.startswith("there is no unsharded reference run")) == (State.WAIVED, True)


def test_the_reason_why_there_is_no_reference_is_given() -> None:
    item = unsharded_parity(dense(line(1), related_not_run={Role.UNSHARDED: "--parity was not given"}))
    assert item.summary.endswith("(--parity was not given)")


def test_equal_trainings_meet_parity() -> None:
    item = unsharded_parity(dense(line(1), line(2), line(3), related=(REFERENCE,)))
    assert (item.state, item.line) == (State.MET, 1003)
    start = "actor/grad_norm 0.22 against 0.22 at step 1"
    assert item.summary == (
        f"3 step(s) agree with the unsharded reference run, {start}, samples the same (stated defaults)"
    )


def parity_job(*steps: StepMetrics, related: tuple[RelatedRun, ...] = ()) -> Case:
    """A run that is there to be compared, on two data-parallel ranks."""
    job = job_of(Level.PARALLELISM, "dp2-parity", steps=len(steps))
    printed = (config_with(dict(requested_config(job))),)
    facts = make_facts(steps=steps, progress=bar(len(steps), len(steps)), configs=printed)
    return make_case(make_record(job=job, related=related), facts)


def test_a_first_step_that_decides_is_shown_with_both_values_and_what_is_allowed() -> None:
    steps = [line(1, actor__grad_norm=0.26), line(2), line(3)]
    verdict = judge_case(parity_job(*steps, related=(REFERENCE,)))
    text = render_markdown(Card((verdict,)))
    assert "differs from the unsharded reference run: actor/grad" in text
    assert "0.26 against 0.22 at step 1 \\(\\+15.38%, allowed 1% of the larger\\)" in text
    assert verdict.result is Result.FAIL


def test_parity_with_other_samples_is_a_limitation_of_the_card_and_with_the_same_is_none() -> None:
    other = line(3, rollout_corr__rollout_log_ppl=7.37)
    case = dense(line(1), line(2), other, related=(REFERENCE,))
    assert unsharded_parity(case).state is State.MET
    said = "Parity: the samples of the run and of its reference run differ at 1 of 3 steps: only the wide tolerances"
    assert [text for text in judge_case(case).limitations if text.startswith(said)]
    same = judge_case(dense(line(1), line(2), line(3), related=(REFERENCE,)))
    assert not [text for text in same.limitations if text.startswith("Parity: the samples")]


def test_a_parity_job_without_a_reference_is_missing_its_evidence() -> None:
    assert unsharded_parity(parity_job(line(1))).state is State.MISSING


def test_the_card_of_a_parity_job_that_agrees_says_so_in_one_line() -> None:
    verdict = judge_case(parity_job(line(1), line(2), line(3), related=(REFERENCE,)))
    (row,) = (item for item in verdict.deliverables if item.name == "Requested variants")
    assert row.detail.endswith("actor/grad_norm 0.22 against 0.22 at step 1, samples the same (stated defaults)")
    assert "\n" not in row.detail


def test_gradients_that_were_not_reduced_across_ranks_break_parity() -> None:
    steps = [line(n, actor__grad_norm=0.41, rollout_corr__rollout_log_ppl=7.37) for n in (1, 2, 3)]
    case = dense(*steps, related=(REFERENCE,))
    item = unsharded_parity(case)
    assert (item.state, item.file, item.line) == (State.BROKEN, "log.txt.zst", 1003)
    assert "actor/grad_norm x1.86 in the median of 3 steps" in item.summary
    verdict = judge_case(case)
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.TRAIN_STEP)
    assert any("finalizing gradients" in row for row in verdict.followups)


@pytest.mark.parametrize(
    ("related", "text"),
    [
        (related_run(Role.UNSHARDED, line(1), result=Result.BLOCKED, cause="no GPU"), "ended as Blocked: no GPU"),
        (related_run(Role.UNSHARDED), "recorded no metrics"),
        (related_run(Role.UNSHARDED, line(1), bridge_commit="b" * 40), "is of Bridge bbbbbbbbbbbb, and the run of a"),
        (related_run(Role.UNSHARDED, line(7)), "no training step in common"),
        (related_run(Role.UNSHARDED, line(1, prompt_length__mean=90.0)), "prompt_length/mean is 87.8"),
        (related_run(Role.UNSHARDED, line(1, actor__lr=1e-6)), "actor/lr is 0.001"),
        (related_run(Role.UNSHARDED, StepMetrics(1, 1, {"actor/lr": 0.001})), "no metric in common"),
    ],
)
def test_what_cannot_be_compared_is_missing(related: RelatedRun, text: str) -> None:
    item = unsharded_parity(dense(line(1), related=(related,)))
    assert (item.state, text in item.summary) == (State.MISSING, True), item.summary


def test_of_several_references_the_last_counts() -> None:
    first = related_run(Role.UNSHARDED, result=Result.BLOCKED)
    assert unsharded_parity(dense(line(1), related=(first, REFERENCE))).state is State.MET


def resumed(last: StepMetrics, *reference: StepMetrics, before: StepMetrics | None = None, **given: Any) -> Case:
    """A run of level 1: a step before the save and one after the resume, compared with its reference run."""
    job = make_job(Level.SAVE_RESUME, "resume", steps=2, wrapper={"SAVE_FREQ": "1"})
    related = (
        (related_run(Role.UNINTERRUPTED, *reference, job_id="1-resume-uninterrupted", **given),) if reference else ()
    )
    printed = (config_with(dict(requested_config(job))),)
    facts = make_facts(steps=(before or line(1), last), progress=bar(2, 2), configs=printed)
    return make_case(make_record(job=job, related=related), facts)


UNINTERRUPTED = (line(1), line(2, actor__kl_loss=0.02))


def test_without_a_reference_run_the_resumed_step_is_not_judged() -> None:
    assert resumed_step(resumed(line(2))).state is State.WAIVED


def test_the_resumed_step_equals_the_reference_run() -> None:
    item = resumed_step(resumed(line(2, actor__kl_loss=0.02), *UNINTERRUPTED))
    assert (item.state, item.line) == (State.MET, 1002)
    assert "as the step before the save does" in item.summary


def test_an_adapter_that_was_not_loaded_fails_the_load() -> None:
    case = resumed(line(2, actor__kl_loss=0.0), *UNINTERRUPTED)
    item = resumed_step(case)
    assert item.state is State.BROKEN
    assert "actor/kl_loss 0 against 0.02" in item.summary
    assert item.summary.endswith("an adapter that was not loaded shows")
    verdict = judge_case(case)
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_LOAD)


def test_an_optimizer_that_was_not_loaded_shows_where_the_runs_are_exact() -> None:
    reference = (line(1), line(2, actor__kl_loss=0.02, actor__ppo_kl=0.002))
    item = resumed_step(resumed(line(2, actor__kl_loss=0.024, actor__ppo_kl=0.006), *reference))
    assert (item.state, "actor/ppo_kl" in item.summary, "adapter" in item.summary) == (State.BROKEN, True, False)


def test_the_same_samples_before_the_save_hold_the_next_step_to_the_narrow_tolerances() -> None:
    after = line(2, actor__kl_loss=0.02, actor__grad_norm=0.25, rollout_corr__rollout_log_ppl=7.37)
    item = resumed_step(resumed(after, *UNINTERRUPTED, before=line(1, actor__grad_norm=0.2225)))
    assert (item.state, "actor/grad_norm 0.25 against 0.22" in item.summary) == (State.BROKEN, True)
    other = line(1, actor__grad_norm=0.2225, rollout_corr__rollout_log_ppl=7.361)
    assert resumed_step(resumed(after, *UNINTERRUPTED, before=other)).state is State.MET


def test_noise_before_the_save_widens_what_is_held_against_the_step_after() -> None:
    noisy = line(1, actor__grad_norm=0.225, rollout_corr__rollout_log_ppl=7.365)
    after = line(2, actor__kl_loss=0.018, actor__grad_norm=0.21, rollout_corr__rollout_log_ppl=7.37)
    item = resumed_step(resumed(after, *UNINTERRUPTED, before=noisy))
    assert (item.state, "samples differ" in item.summary) == (State.MET, True)


def test_identical_runs_that_differ_before_the_save_prove_nothing() -> None:
    apart = line(1, actor__grad_norm=0.5, rollout_corr__rollout_log_ppl=7.4)
    item = resumed_step(resumed(line(2, actor__kl_loss=0.0), *UNINTERRUPTED, before=apart))
    assert (item.state, "differ before the save already" in item.summary) == (State.MISSING, True)


def test_a_resumed_step_on_other_prompts_cannot_be_compared() -> None:
    item = resumed_step(resumed(line(2, prompt_length__mean=90.0), *UNINTERRUPTED))
    assert (item.state, "prompt_length/mean" in item.summary) == (State.MISSING, True)


def test_a_scheduler_that_was_not_restored_is_broken() -> None:
    item = resumed_step(resumed(line(2, actor__kl_loss=0.02, actor__lr=0.0005), *UNINTERRUPTED))
    assert (item.state, "actor/lr is 0.0005 in the run" in item.summary) == (State.BROKEN, True)


def test_a_reference_run_that_did_not_pass_is_no_measure() -> None:
    item = resumed_step(resumed(line(2), *UNINTERRUPTED, result=Result.FAIL, cause="out of memory"))
    assert (item.state, "ended as Fail: out of memory" in item.summary) == (State.MISSING, True)


def test_no_measured_band_means_the_stated_tolerances() -> None:
    assert unsharded_parity(dense(line(1), related=(REFERENCE,), bands=Bands())).state is State.MET


def test_the_card_folds_every_comparison() -> None:
    verdict = judge_case(dense(line(1), line(2), related=(REFERENCE,)))
    shown = render_markdown(Card((verdict,)))
    assert "<summary>2-dense compared with 0-dense-unsharded, the unsharded reference run: within tolerance" in shown
    assert "| actor/grad_norm | 2 | 1 | 0.22 / 0.22 at 1 | within |" in shown
    assert len(reports(resumed(line(2), *UNINTERRUPTED))) == 2
    assert reports(dense(line(1))) == ()

"""A limitation keeps its jobs, and is not said of the whole where another job that passed shows it."""

from dataclasses import replace

import pytest

from tests.core.builders import judged
from tests.core.judged import judged as recorded
from tests.fakes.shown_pull import FAILED, PASSED, shown_card, shown_checks, shown_target_state
from verl_e2e.core.judge.verdict_document import Aspect, Limitation, Verdict
from verl_e2e.core.judge.wording import merged_limitations
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.report.checks import job_check_text
from verl_e2e.core.report.pull_card import render_pull_card
from verl_e2e.core.report.run_card import Card, NotRun, limitations_of, render_text

RESUME = Limitation("Save and resume are not exercised.", (Aspect.SAVE_RESUME,))
SIZES = Limitation("All parallel sizes are 1.", (Aspect.TENSOR, Aspect.PIPELINE, Aspect.CONTEXT))
SHORT = Limitation("Prompts are short.")


def of(job_id: str, *limitations: Limitation, shows: tuple[Aspect, ...] = ()) -> tuple[str, Verdict]:
    """A job that passed; of a limitation without aspects at the end the document holds none."""
    aspects = tuple(limitation.aspects for limitation in limitations if limitation is not SHORT)
    texts = tuple(limitation.text for limitation in limitations)
    return job_id, replace(judged(), limitations=texts, left_open=aspects, shows=tuple(map(str, shows)))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ((of("0-a", RESUME), of("1-b", shows=(Aspect.SAVE_RESUME,))), ()),
        ((of("0-a", RESUME), of("1-b")), ("0-a: Save and resume are not exercised.",)),
        ((of("0-a", RESUME), of("2-b", RESUME)), ("all jobs: Save and resume are not exercised.",)),
        ((of("0-a", RESUME), of("2-b", RESUME), of("3-c")), ("0-a, 2-b: Save and resume are not exercised.",)),
        (
            (of("0-a", SIZES), of("2-b", shows=(Aspect.TENSOR, Aspect.PIPELINE))),
            ("0-a: All parallel sizes are 1; 2-b shows tensor parallelism, pipeline parallelism.",),
        ),
        ((of("0-a", SIZES), of("2-b", shows=(Aspect.TENSOR, Aspect.PIPELINE, Aspect.CONTEXT))), ()),
        ((of("0-a", SHORT), of("1-b", shows=tuple(Aspect))), ("0-a: Prompts are short.",)),
    ],
)
def test_what_several_jobs_leave_open(jobs: tuple[tuple[str, Verdict], ...], message: tuple[str, ...]) -> None:
    assert merged_limitations(jobs) == message


def test_what_a_job_shows_counts_only_where_it_passed() -> None:
    name, verdict = of("1-b", shows=(Aspect.SAVE_RESUME,))
    blocked = (name, replace(verdict, result=Result.BLOCKED))
    assert merged_limitations((of("0-a", RESUME), blocked)) == ("0-a: Save and resume are not exercised.",)


def test_one_job_alone_needs_no_name() -> None:
    assert merged_limitations((of("0-a", RESUME, SHORT),), named=False) == (RESUME.text, SHORT.text)


def test_a_passed_resume_takes_away_what_level_0_leaves_open() -> None:
    for text in (shown_card(*PASSED), render_text(Card(tuple(map(recorded, PASSED))))):
        assert "Save and resume are not exercised" not in text
        assert "0-lora-ddp: One training step" in text
    assert "0-lora-ddp: Save and resume are not exercised" in shown_card(PASSED[0])
    # The job's own check still says what that job leaves open.
    assert "Save and resume are not exercised" in shown_checks(*PASSED)[1].text


def test_a_resume_that_did_not_pass_shows_nothing() -> None:
    verdict = judged(tests=None, imports=())
    assert verdict.shows == ()
    assert "Save and resume are not exercised." in verdict.limitations


def test_a_card_with_a_job_that_did_not_run_names_the_one_that_did() -> None:
    verdict: Verdict = judged()
    message = limitations_of(Card((verdict,), (NotRun("1-resume", "Level 1", "level 0 did not pass"),)))
    assert all(row.startswith("0-lora-ddp: ") for row in message)
    assert limitations_of(Card((verdict,))) == verdict.limitations


def test_the_comment_says_what_was_asked_for_and_how_to_repeat_it() -> None:
    text = shown_card(*PASSED)
    for job_id in ("0-lora-ddp", "1-resume"):
        fold = text.split(f"<summary>Deliverables of {job_id}</summary>")[1].split("</details>")[0]
        assert "**Requested coverage:** Level " in fold
        assert "**Checkpoint/config:** MODEL" in fold
    for check in shown_checks(*PASSED)[1:]:
        command = check.text.split("<summary>Command</summary>")[1].split("</details>")[0]
        assert "env ALL_OFFLOAD=False" in command
        assert "run_ppo_trainer_megatron.sh" in command
    target_state = shown_target_state(*FAILED)
    steps = decide_actions(target_state)
    assert len(render_pull_card(target_state, steps)) < 60_000
    words = job_check_text(steps.standings[0])
    assert "**Checkpoint/config:**" in words.summary


def test_a_job_without_a_verdict_says_what_it_is_for_and_with_which_model() -> None:
    text = shown_card(PASSED[0])
    fold = text.split("<summary>Requested, without a verdict yet (1)</summary>")[1].split("</details>")[0]
    assert "1-resume: Level 1: Save/resume" in fold
    assert "MODEL\\_ID local/tiny-qwen2, random weights" in fold
    assert "/opt/kit" not in fold
    assert "without a verdict yet" not in shown_card(*PASSED)


def test_a_run_from_a_wrong_path_names_the_path_and_where_it_should_have_been() -> None:
    verdict = recorded("level0-other-bridge-on-path")
    (line,) = (row for row in verdict.deliverables if row.name == "Local Bridge import in verl")
    assert "/opt/other/src/megatron/bridge/__init__.py" in line.detail
    assert "expected below $WORK/bridge/src" in line.detail

"""What stands at the top of a pull request's card: by fields, never by the words of a sentence."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fakes.shown_pull import FAILED, shown_plan, shown_target_state
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import SUSPECTS_WORD
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.forge import Pull
from verl_e2e.core.pulls.ledger import Approval, JobStatus, Run, RunState
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.pull_card import NOT_PINNED, OWN_WORD, card_notices, earlier_heads, render_pull_card
from verl_e2e.core.text.escape import sentence


def shown(target_state: TargetState) -> str:
    return render_pull_card(target_state, decide_actions(target_state))


@pytest.mark.parametrize("words", ["GitHub counts 9 changed files and 7 are known.", "Whatever it is called tomorrow."])
def test_a_plan_that_may_not_be_what_the_change_needs_says_so_at_the_top(words: str) -> None:
    target_state = shown_target_state(*FAILED)
    assert words not in shown(target_state)
    plan = replace(shown_plan(), incomplete=(words,), notes=(words,))
    text = shown(replace(target_state, plan=plan))
    assert f"> {words}" in text
    assert text.index(words) < text.index("| job |")


def test_a_remark_that_says_how_reach_was_found_stays_folded() -> None:
    plan = replace(shown_plan(), notes=("Reach starts from here.", "every level is run"))
    assert "> every level is run" not in shown(replace(shown_target_state(*FAILED), plan=plan))


@pytest.mark.parametrize("words", ["no commit", "x" * 260])
def test_why_there_is_no_plan_is_told_once_and_whole(words: str) -> None:
    text = shown(replace(shown_target_state(*FAILED), plan=None, wanted=(), runs=(), problem=words))
    assert text.lower().count(words) == 1


@pytest.mark.parametrize(
    ("image", "hours", "key", "runs", "said"),
    (
        ("verlai/verl:t", 168, "1" * 64, False, True),
        (f"verlai/verl@sha256:{'0' * 64}", 168, "1" * 64, False, False),
        ("verlai/verl:t", 0, "1" * 64, False, False),
        # It takes over nothing whatever the image is called.
        ("verlai/verl:t", 168, "", False, False),
        # It ran already.
        ("verlai/verl:t", 168, "1" * 64, True, False),
    ),
)
def test_that_no_verdict_of_another_pull_request_counts_is_said_while_jobs_have_to_run(
    image: str, hours: int, key: str, runs: bool, said: bool
) -> None:
    found = shown_target_state(*FAILED)
    jobs = [wanted.job for wanted in found.wanted if wanted.job is not None]
    placed = [job.model_copy(update={"site": job.site.model_copy(update={"image": image})}) for job in jobs]
    wanted = tuple(replace(found.wanted[0], id=job.id, job=job, reuse_key=key, requires=()) for job in placed)
    gate = found.policy.gate.model_copy(update={"reuse_h": hours})
    policy = found.policy.model_copy(update={"gate": gate})
    ran = (replace(found.wanted[0], reuse_key=key),)
    state = replace(found, wanted=ran if runs else wanted, runs=found.runs if runs else (), policy=policy)
    assert (NOT_PINNED in card_notices(state, decide_actions(state))) is said


def limited(state: TargetState) -> bool:
    return f"- {sentence(OWN_WORD, 500)}" in shown(state)


def test_the_card_of_a_head_that_a_person_let_run_says_whose_word_its_evidence_is() -> None:
    state = shown_target_state(*FAILED)
    assert isinstance(state.target, Pull)
    given = Approval(
        base="main",
        repository=state.repository,
        number=state.target.ref.number,
        head_sha=state.head_sha,
        actor="mona",
        source="comment:1:1",
        at=state.now,
    )
    fork = replace(state, target=replace(state.target, head_repository="eve/bridge"))
    assert not limited(state)
    assert limited(fork)
    assert limited(replace(state, entries=(given,)))
    assert not limited(replace(state, entries=(given.model_copy(update={"head_sha": "f" * 40}),)))
    # Nothing ran, so there is no evidence.
    assert not limited(replace(fork, runs=()))
    text = shown(fork)
    folded = text[text.index("Limitations (") :].replace("\\", "")
    assert [part for name in SUSPECTS_WORD for part in name.split("#") if part not in folded] == []


FIRST, SECOND = "1" * 40, "2" * 40


def earlier(state: RunState, result: Result | None = None, *, minute: int = 0, **given: object) -> Run:
    """A run of the shown pull request on an earlier head."""
    run = shown_target_state(*FAILED).runs[0]
    at = run.created + timedelta(minutes=minute)
    said = {"head_sha": FIRST, "sentence": "", "reason": "", "verdict": "", "created": at, "updated": at}
    return run.model_copy(update={**said, "state": state, "result": result, **given})


PASS = earlier(RunState.FINISHED, Result.PASS, sentence="it passed")
FAIL = earlier(RunState.FINISHED, Result.FAIL, sentence="it failed")


@pytest.mark.parametrize(
    ("runs", "expected"),
    (
        ((), []),
        ((PASS,), [(FIRST, JobStatus.PASSED, "0-lora-ddp: it passed")]),
        # Of one job the last run counts, of several jobs the worst.
        (
            (FAIL, earlier(RunState.FINISHED, Result.PASS, minute=1)),
            [(FIRST, JobStatus.PASSED, "0-lora-ddp: finished")],
        ),
        ((PASS, FAIL.model_copy(update={"job_id": "1-resume"})), [(FIRST, JobStatus.FAILED, "1-resume: it failed")]),
        ((earlier(RunState.LOST, reason="no runner"),), [(FIRST, JobStatus.BLOCKED, "0-lora-ddp: no runner")]),
        ((earlier(RunState.CANCELLED),), [(FIRST, JobStatus.CANCELLED, "0-lora-ddp: cancelled")]),
        ((earlier(RunState.RUNNING),), [(FIRST, JobStatus.RUNNING, "0-lora-ddp: running")]),
        ((earlier(RunState.QUEUED),), [(FIRST, JobStatus.WAITING, "0-lora-ddp: queued")]),
        (
            (earlier(RunState.QUEUED, minute=3, head_sha=SECOND), PASS),
            [(SECOND, JobStatus.WAITING, "0-lora-ddp: queued"), (FIRST, JobStatus.PASSED, "0-lora-ddp: it passed")],
        ),
    ),
)
def test_an_earlier_head_shows_the_worst_of_its_last_runs(
    runs: tuple[Run, ...], expected: list[tuple[str, JobStatus, str]]
) -> None:
    now = shown_target_state(*FAILED)
    assert list(earlier_heads(replace(now, runs=(*now.runs, *runs)))) == expected


def test_of_many_earlier_heads_the_latest_are_shown() -> None:
    now = shown_target_state(*FAILED)
    runs = tuple(earlier(RunState.LOST, minute=number, head_sha=f"{number:040}") for number in range(12))
    history = earlier_heads(replace(now, runs=runs))
    assert [int(head) for head, _, _ in history] == list(range(11, 1, -1))

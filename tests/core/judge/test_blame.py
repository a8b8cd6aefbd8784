"""Whose failure it is: every way in which a merge base and a retry can end, and the sentence for each."""

from typing import Any

import pytest

from tests.core.builders import (
    BRIDGE_CALLS,
    bridge_error,
    cut_facts,
    ended,
    error,
    judged,
    make_environment,
    make_facts,
    make_job,
    make_record,
)
from verl_e2e.core.judge import related_runs, wording
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.facts import Frame, LogFacts, LoggedError
from verl_e2e.core.model.outcome import Outcome, Recurrence, Result, Stage
from verl_e2e.core.model.record import EndReason, Finding
from verl_e2e.core.model.related import RelatedRun, RelatedStep, Role
from verl_e2e.core.report.run_card import Card, render_text

BASE, HEAD = "d" * 40, "a" * 40
EXIT_1 = ended(exit_code=1)
BRIDGE_FRAME = Frame("/src/megatron/bridge/peft/lora.py", 12, "transform")
STEP = (RelatedStep(step=1, values={"actor/grad_norm": 0.1}),)


def head(related: tuple[RelatedRun, ...] = (), found: LoggedError | None = None, **given: object) -> Verdict:
    """The verdict on a head that fails in Bridge's LoRA code."""
    facts = cut_facts(Stage.PEFT, errors=(found or bridge_error(),))
    return judged(facts, **{"events": EXIT_1, "related": related, **given})


MARKS = head().fingerprint


def run(role: Role, result: Result, stage: Stage | None = None, **given: object) -> RelatedRun:
    """A related run that ended so; a Fail at the stage of the head has the head's marks unless others are given."""
    fields = {
        "role": role,
        "job_id": "0-lora-ddp",
        "job_digest": "e" * 64,
        "bridge_commit": HEAD if role is Role.RETRY else BASE,
        "folder": f"related/{role}",
        "result": result,
        "stage": stage,
        "cause": "" if result is Result.PASS else f"ended at {stage}",
        "fingerprint": MARKS if result is Result.FAIL else (),
    }
    return RelatedRun.model_validate(fields | given)


def base(result: Result, stage: Stage | None = None, **given: object) -> RelatedRun:
    return run(Role.MERGE_BASE, result, stage, **given)


def retry(result: Result, stage: Stage | None = None, **given: object) -> RelatedRun:
    return run(Role.RETRY, result, stage, **given)


PASSES = base(Result.PASS)
OTHER_MARKS = ("no_exception: another",)
WAYS: tuple[tuple[str, tuple[RelatedRun, ...], Result, str], ...] = (
    ("nothing was run", (), Result.FAIL, "; the merge base was not run"),
    (
        "the base fails the same way",
        (base(Result.FAIL, Stage.PEFT),),
        Result.BLOCKED,
        "blocked at peft, not caused by this change: LoRA could not",
    ),
    (
        "the base fails at the same stage for another reason",
        (base(Result.FAIL, Stage.PEFT, fingerprint=OTHER_MARKS),),
        Result.BLOCKED,
        "; the merge base dddddddddddd failed in another way (Fail at peft",
    ),
    (
        "the base fails before it gets there",
        (base(Result.FAIL, Stage.HF_IMPORT, fingerprint=OTHER_MARKS),),
        Result.BLOCKED,
        "; the merge base dddddddddddd failed in another way (Fail at hf_import",
    ),
    (
        "the base gets beyond and fails there",
        (base(Result.FAIL, Stage.TRAIN_STEP, fingerprint=OTHER_MARKS), retry(Result.FAIL, Stage.PEFT)),
        Result.FAIL,
        "; the merge base dddddddddddd got beyond peft (Fail at train_step: ended at train_step), "
        "this head failed twice",
    ),
    (
        "the base trained and was then stopped",
        (base(Result.BLOCKED, Stage.CHECKPOINT_SAVE, steps=STEP), retry(Result.FAIL, Stage.PEFT)),
        Result.FAIL,
        "got beyond peft (Blocked at checkpoint_save",
    ),
    (
        "the base was stopped by its host",
        (base(Result.BLOCKED, Stage.ENVIRONMENT),),
        Result.FAIL,
        "; the merge base dddddddddddd showed nothing (Blocked at environment: ended at environment)",
    ),
    (
        "a finding of a later stage stopped the base before it ran",
        (base(Result.BLOCKED, Stage.CHECKPOINT_LOAD),),
        Result.FAIL,
        "; the merge base dddddddddddd showed nothing (Blocked at checkpoint_load: ended at ",
    ),
    (
        "the base passes and no one retried",
        (PASSES,),
        Result.FAIL,
        "; the merge base dddddddddddd passed, this head failed once, not retried",
    ),
    (
        "the base passes and the head fails again",
        (PASSES, retry(Result.FAIL, Stage.PEFT)),
        Result.FAIL,
        "failed at peft, caused by this change: LoRA could not",
    ),
    (
        "the base passes and the head fails again in another way",
        (PASSES, retry(Result.FAIL, Stage.OPTIMIZER, fingerprint=OTHER_MARKS)),
        Result.FAIL,
        "failed twice, on the retry in another way (Fail at optimizer: ended at optimizer)",
    ),
    (
        "the base passes and the retry says nothing",
        (PASSES, retry(Result.BLOCKED, Stage.RAY)),
        Result.FAIL,
        "dddddddddddd passed, this head failed once, and a retry showed nothing (Blocked at ray: ended at ray)",
    ),
    (
        "the base passes and so does the retry",
        (PASSES, retry(Result.PASS)),
        Result.BLOCKED,
        "; the merge base dddddddddddd passed, this head failed once and passed on a retry",
    ),
    (
        "of several baselines one fails the same way",
        (PASSES, base(Result.FAIL, Stage.PEFT), PASSES),
        Result.BLOCKED,
        "; the merge base dddddddddddd failed the same way",
    ),
    (
        "without saving it passes",
        (PASSES, retry(Result.FAIL, Stage.PEFT), run(Role.WITHOUT_SAVE, Result.PASS)),
        Result.FAIL,
        "; without saving it passes, so construction is fine and the fault is in checkpointing",
    ),
    (
        "without saving it fails too",
        (run(Role.WITHOUT_SAVE, Result.FAIL, Stage.PEFT),),
        Result.FAIL,
        "; without saving it ends as Fail at peft: ended at peft",
    ),
)


@pytest.mark.parametrize(("related", "result", "words"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_a_failure_beside_its_related_runs(related: tuple[RelatedRun, ...], result: Result, words: str) -> None:
    verdict = head(related)
    assert (verdict.result, verdict.stage, verdict.own_result) == (result, Stage.PEFT, Result.FAIL)
    assert words in verdict.sentence
    assert verdict.sentence.endswith(wording.NOT_EVIDENCE) == (result is Result.BLOCKED)
    backend = next(row for row in verdict.deliverables if row.name == "verl Megatron backend run")
    assert backend.outcome is (Outcome.FAIL if result is Result.FAIL else Outcome.BLOCKED)
    text = render_text(Card((verdict,)))
    for related_run in related:
        assert f"- Related run: {related_run.role.spoken} (0-lora-ddp, Bridge {related_run.bridge_commit[:12]})" in text


@pytest.mark.parametrize(("related", "result", "text"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_the_next_thing_to_do(related: tuple[RelatedRun, ...], result: Result, text: str) -> None:
    verdict = head(related)
    asked = wording.RUN_MERGE_BASE in verdict.followups
    assert asked == ("not run" in text or "dd showed nothing (" in text or "without saving it ends" in text)
    fixes = {related_runs.FIX_BASE, related_runs.FIX_OTHERWISE, related_runs.FIX_FLAKY} & set(verdict.followups)
    assert len(fixes) == (result is Result.BLOCKED)


def test_the_reason_why_no_merge_base_was_run_stands_in_the_sentence() -> None:
    verdict = head(related_not_run={Role.MERGE_BASE: "--no-baseline was given"})
    assert verdict.sentence.endswith("; the merge base was not run (--no-baseline was given)")
    interrupted = head((PASSES,), related_not_run={Role.RETRY: "interrupted"})
    assert interrupted.sentence.endswith("this head failed once, not retried (interrupted)")


def test_what_is_no_fail_is_not_weighed() -> None:
    failing = (base(Result.FAIL, Stage.PEFT), retry(Result.FAIL, Stage.PEFT))
    assert judged(make_facts(), related=failing).result is Result.PASS
    stopped = judged(cut_facts(Stage.DATA), events=EXIT_1, related=failing)
    assert stopped.result is Result.BLOCKED
    assert stopped.cause == judged(cut_facts(Stage.DATA), events=EXIT_1).cause


def test_what_related_runs_show_of_a_failure_is_told_to_programs_too() -> None:
    assert head().recurrence is None
    assert head().blame.startswith("the merge base was not run")
    assert head((base(Result.FAIL, Stage.PEFT),)).recurrence is Recurrence.PRE_EXISTING
    assert head((PASSES, retry(Result.PASS))).recurrence is Recurrence.NOT_REPRODUCED
    assert head((PASSES, retry(Result.FAIL, Stage.PEFT))).recurrence is Recurrence.REGRESSION
    assert head((base(Result.FAIL, Stage.PEFT),)).blame.startswith("the merge base dddddddddddd failed the same way")
    assert head((PASSES, retry(Result.PASS))).causes == head().causes != ()


def test_a_kept_baseline_is_called_one() -> None:
    text = render_text(Card((head((base(Result.PASS, cached=True),)),)))
    assert "(0-lora-ddp, Bridge dddddddddddd, kept from an earlier run): Pass, in related/merge_base" in text


def test_a_base_whose_tests_passed_does_not_excuse_failed_tests() -> None:
    failed = tuple(test.model_copy(update={"outcome": "failed"}) for test in make_record().tests or ())
    verdict = judged(make_facts(), tests=failed, related=(base(Result.FAIL, Stage.PEFT),), job=make_job())
    assert verdict.result is Result.FAIL
    assert "got beyond bridge_provider" in verdict.sentence
    same = base(Result.FAIL, Stage.BRIDGE_PROVIDER, fingerprint=verdict.fingerprint)
    assert judged(make_facts(), tests=failed, related=(same,)).result is Result.BLOCKED


def undecided(related: tuple[RelatedRun, ...] = (), **given: object) -> Verdict:
    """The verdict on a head that needs a package which the host does not have."""
    found = error(
        "ImportError", "fused kernels are not installed", stage=Stage.DATA, calls=BRIDGE_CALLS, frame=BRIDGE_FRAME
    )
    return judged(cut_facts(Stage.DATA, errors=(found,)), **{"events": EXIT_1, "related": related, **given})


BLOCKED_MARKS = undecided().fingerprint
BLOCKED_TOO = base(Result.BLOCKED, Stage.ENVIRONMENT, fingerprint=BLOCKED_MARKS)
BLOCKED_AGAIN = retry(Result.BLOCKED, Stage.ENVIRONMENT, fingerprint=BLOCKED_MARKS)
BLOCKED_WAYS: tuple[tuple[str, tuple[RelatedRun, ...], Result, str], ...] = (
    (
        "nothing was run",
        (),
        Result.BLOCKED,
        "blocked at environment, not known whether this change caused it: the image does not have",
    ),
    (
        "the base is blocked the same way",
        (BLOCKED_TOO,),
        Result.BLOCKED,
        "; the merge base dddddddddddd was blocked the same way",
    ),
    (
        "the base is blocked in another way",
        (base(Result.BLOCKED, Stage.ENVIRONMENT, fingerprint=OTHER_MARKS),),
        Result.BLOCKED,
        "; the merge base dddddddddddd showed nothing (Blocked at environment",
    ),
    (
        "the base fails before it trains",
        (base(Result.FAIL, Stage.ENVIRONMENT, fingerprint=OTHER_MARKS),),
        Result.BLOCKED,
        "; the merge base dddddddddddd failed in another way",
    ),
    (
        "the base passes and no one retried",
        (PASSES,),
        Result.FAIL,
        "; the merge base dddddddddddd passed, this head was blocked once, not retried",
    ),
    (
        "the base passes and the head is blocked again",
        (PASSES, BLOCKED_AGAIN),
        Result.FAIL,
        "; the merge base dddddddddddd passed, this head was blocked twice",
    ),
    (
        "the base gets beyond and the head is blocked again",
        (base(Result.FAIL, Stage.TRAIN_STEP, fingerprint=OTHER_MARKS), BLOCKED_AGAIN),
        Result.FAIL,
        "; the merge base dddddddddddd got beyond environment (Fail at train_step",
    ),
    (
        "the base passes and the head fails on a retry",
        (PASSES, retry(Result.FAIL, Stage.PEFT, fingerprint=OTHER_MARKS)),
        Result.FAIL,
        "this head was blocked twice, on the retry in another way (Fail at peft",
    ),
    (
        "the base passes and so does the retry",
        (PASSES, retry(Result.PASS)),
        Result.BLOCKED,
        " passed, this head was blocked once and passed on a retry",
    ),
    (
        "the base passes and the retry is stopped by its host",
        (PASSES, retry(Result.BLOCKED, Stage.RAY)),
        Result.BLOCKED,
        "and a retry showed nothing (Blocked at ray: ended at ray)",
    ),
)


@pytest.mark.parametrize(
    ("related", "result", "words"), [way[1:] for way in BLOCKED_WAYS], ids=[way[0] for way in BLOCKED_WAYS]
)
def test_what_the_change_may_have_blocked_beside_its_related_runs(
    related: tuple[RelatedRun, ...], result: Result, words: str
) -> None:
    verdict = undecided(related)
    assert (verdict.result, verdict.stage, verdict.own_result) == (result, Stage.ENVIRONMENT, Result.BLOCKED)
    assert verdict.undecided
    assert words in verdict.sentence
    assert verdict.sentence.endswith(wording.NOT_EVIDENCE) == (result is Result.BLOCKED)
    still_asks = not any(run.result is not Result.BLOCKED or run is BLOCKED_TOO for run in related)
    assert (wording.RUN_MERGE_BASE in verdict.followups) == still_asks


@pytest.mark.parametrize(
    ("kind", "message", "given"),
    [
        ("OSError", "[Errno 28] No space left on device", {}),
        ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", {}),
        ("ConnectionRefusedError", "[Errno 111] Connection refused", {}),
        ("Killed", "Killed", {}),
        ("ImportError", "fused kernels are not installed", {"calls": ("vllm/engine.py:start",), "frame": None}),
    ],
)
def test_what_the_change_cannot_cause_asks_for_no_merge_base(kind: str, message: str, given: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"calls": BRIDGE_CALLS, "frame": BRIDGE_FRAME, **given}
    found = error(kind, message, stage=Stage.DATA, **fields)
    verdict = judged(cut_facts(Stage.DATA, errors=(found,)), events=EXIT_1, related=(PASSES,))
    assert (verdict.result, verdict.undecided, verdict.fingerprint) == (Result.BLOCKED, False, ())
    assert verdict.blame == ""


GONE = {"attribution": "trees", "fingerprint": "megatron/bridge/peft/lora.py imports megatron.core.gone"}
NO_PACKAGE = {"attribution": "undecided", "fingerprint": "megatron/bridge/data/x.py imports a_package"}


def stopped(*given: dict[str, str], related: tuple[RelatedRun, ...] = ()) -> Verdict:
    """The verdict on a run that such findings of preflight stopped."""
    findings = tuple(
        Finding.model_validate(
            {"check": "import_driver", "ok": False, "stage": "import", "summary": f"import {number} fails", **fields}
        )
        for number, fields in enumerate(given)
    )
    environment = make_environment(findings=findings, imports=())
    events = ended(EndReason.NOT_STARTED, exit_code=None)
    return judged(LogFacts(0), environment=environment, events=events, imports=(), related=related)


@pytest.mark.parametrize(
    ("given", "result", "undecided"),
    [
        ((GONE,), Result.FAIL, False),
        ((GONE, GONE), Result.FAIL, False),
        ((NO_PACKAGE,), Result.BLOCKED, True),
        ((GONE, NO_PACKAGE), Result.BLOCKED, True),
        ((GONE, {}), Result.BLOCKED, False),
        ((NO_PACKAGE, {"check": "disk"}), Result.BLOCKED, False),
        (({},), Result.BLOCKED, False),
    ],
)
def test_a_run_that_preflight_stopped(given: tuple[dict[str, str], ...], result: Result, undecided: bool) -> None:
    verdict = stopped(*given)
    assert (verdict.result, verdict.stage, verdict.undecided) == (result, Stage.IMPORT, undecided)
    assert bool(verdict.fingerprint) == (undecided or result is Result.FAIL)
    assert (wording.RUN_MERGE_BASE in verdict.followups) == bool(verdict.fingerprint)


@pytest.mark.parametrize(("given", "own"), [(GONE, Result.FAIL), (NO_PACKAGE, Result.BLOCKED)])
def test_a_run_that_preflight_stopped_beside_its_merge_base(given: dict[str, str], own: Result) -> None:
    marks = stopped(given).fingerprint
    too = stopped(given, related=(base(own, Stage.IMPORT, fingerprint=marks),))
    assert (too.result, too.own_result) == (Result.BLOCKED, own)
    assert too.cause == stopped(given).cause
    assert too.recurrence is Recurrence.PRE_EXISTING
    assert ("was blocked the same way" in too.blame) == (own is Result.BLOCKED)
    regression = stopped(given, related=(PASSES, retry(own, Stage.IMPORT, fingerprint=marks)))
    assert regression.result is Result.FAIL
    assert "caused by this change" in regression.sentence

"""What caused a failure: compare a run with the same job on the merge base and with a retry on the head.

A Fail stays a Fail unless the merge base fails too. If the merge base fails the same way, the fault is older than the
change. If it fails in another way at the same stage or before it, the cause is not known. If a retry passes, the
result is not a Pass, because the first failure is not explained, and not a Fail, because nothing blames the change.
A run that was blocked by what the change may have caused stays Blocked, unless the merge base gets past that point and
the retry does not: then it is a Fail.
"""

from dataclasses import replace
from enum import IntEnum, auto

from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.same_failure import fingerprint_of, same_failure
from verl_e2e.core.model.outcome import Decision, Recurrence, Result
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.stages import Stage

FIX_BASE = "Fix the base branch first, then run this change again; the failure hides what the change does."
FIX_OTHERWISE = "Compare the two failures: fix what fails on the merge base, then run this change again."
FIX_FLAKY = "Run the job several times on the merge base and on the head: one failure in two runs shows no difference."
NOT_ASKED_FOR = "no follow-up was asked for"


class CandidateRank(IntEnum):
    """What a run on the merge base says about a failure on the head; of several runs the highest counts."""

    NOT_RUN = auto()
    NOT_CONCLUSIVE = auto()
    BEYOND = auto()
    PASSES = auto()
    FAILS_OTHERWISE = auto()
    FAILS_TOO = auto()


def rank_of(marks: tuple[str, ...], stage: Stage | None, base: RelatedRun) -> CandidateRank:
    """What one run on the merge base says about a failure with this fingerprint at that stage.

    A merge base that failed later, or that trained a step before it was stopped later, got beyond the failure.
    """
    if base.result is Result.PASS:
        return CandidateRank.PASSES
    if same_failure(marks, stage, base):
        return CandidateRank.FAILS_TOO
    later = stage is not None and base.stage is not None and base.stage.order > stage.order
    if later and (base.result is Result.FAIL or base.steps):
        return CandidateRank.BEYOND
    return CandidateRank.FAILS_OTHERWISE if base.result is Result.FAIL else CandidateRank.NOT_CONCLUSIVE


def most_telling(
    marks: tuple[str, ...], stage: Stage | None, bases: tuple[RelatedRun, ...]
) -> tuple[CandidateRank, RelatedRun | None]:
    """The run on the merge base that decides, and what it says."""
    text = [(rank_of(marks, stage, base), base) for base in bases]
    return max(text, key=lambda item: item[0], default=(CandidateRank.NOT_RUN, None))


def weigh(case: Case, alone: Decision) -> Decision:
    """The decision on a run in the light of its related runs; a Fail can change, and a Blocked that is undecided."""
    if not may_change(alone):
        return alone
    found, base = most_telling(fingerprint_of(case, alone), alone.stage, case.related(Role.MERGE_BASE))
    if alone.undecided and (base is None or found is CandidateRank.NOT_CONCLUSIVE):
        return alone
    if base is None:
        text = _not_run(case, Role.MERGE_BASE, wording.MERGE_BASE_NOT_RUN)
        return replace(alone, blame=_and_without_save(case, text))
    commit = base.bridge_commit[:12]
    match found:
        case CandidateRank.FAILS_TOO if alone.undecided:
            cause = f"the merge base {commit} is blocked the same way: {alone.cause}"
            return replace(alone, cause=cause, undecided=False, recurrence=Recurrence.PRE_EXISTING)
        case CandidateRank.FAILS_TOO:
            cause = f"pre-existing, the merge base {commit} fails the same way: {alone.cause}"
            older = Recurrence.PRE_EXISTING
            return replace(alone, result=Result.BLOCKED, cause=cause, fix=FIX_BASE, recurrence=older)
        case CandidateRank.FAILS_OTHERWISE:
            base_failed = f"the merge base {commit} fails too, but in another way: {ended(base)}"
            cause = f"{_strip_full_stop(alone.cause)}; inconclusive: {base_failed}"
            return replace(alone, result=Result.BLOCKED, cause=cause, fix=FIX_OTHERWISE, undecided=False)
        case CandidateRank.NOT_CONCLUSIVE | CandidateRank.NOT_RUN:
            return replace(alone, blame=_and_without_save(case, f"merge base not conclusive: {ended(base)}"))
        case CandidateRank.PASSES | CandidateRank.BEYOND:
            return _weigh_retry(case, alone, base)


def may_change(decision: Decision) -> bool:
    """Whether a run on the merge base may change the decision."""
    return decision.result is Result.FAIL or decision.undecided


def asks_for_base(case: Case, decision: Decision) -> bool:
    """Whether a decision still needs a conclusive run on the merge base."""
    if not may_change(decision):
        return False
    found, _ = most_telling(fingerprint_of(case, decision), decision.stage, case.related(Role.MERGE_BASE))
    return found in (CandidateRank.NOT_RUN, CandidateRank.NOT_CONCLUSIVE)


def related_rows(case: Case) -> tuple[str, ...]:
    """A sentence for each related run, for the card."""
    return tuple(_row(run) for run in case.record.related)


def ended(run: RelatedRun) -> str:
    """How a related run ended, for a sentence."""
    where = f" at {run.stage}" if run.stage else ""
    return f"{run.result}{where}{f': {_strip_full_stop(run.cause)}' if run.cause else ''}"


def _weigh_retry(case: Case, alone: Decision, base: RelatedRun) -> Decision:
    """The decision where the merge base is not at fault: the change caused a failure that a retry repeats."""
    retries = case.related(Role.RETRY)
    passed = any(run.result is Result.PASS for run in retries)
    base_said = "passes" if base.result is Result.PASS else f"gets beyond {alone.stage} ({ended(base)})"
    base_said = f"the merge base {base.bridge_commit[:12]} {base_said}"
    once = f"the head {_went(alone)} once ({_strip_full_stop(alone.cause)})"
    if passed:
        cause = f"not reproduced: {once} and passed on a retry; {base_said}"
        once_only = Recurrence.NOT_REPRODUCED
        return replace(alone, result=Result.BLOCKED, cause=cause, fix=FIX_FLAKY, undecided=False, recurrence=once_only)
    if alone.undecided and retries and _repeats(case, alone, retries) is None:
        cause = f"inconclusive: {once}, and the retry was not conclusive ({ended(retries[-1])}); {base_said}"
        return replace(alone, cause=cause, fix=FIX_FLAKY, undecided=False)
    text = f"regression: {base_said}, {_retried(case, alone, retries)}"
    return replace(alone, result=Result.FAIL, blame=_and_without_save(case, text), undecided=False)


def _retried(case: Case, alone: Decision, retries: tuple[RelatedRun, ...]) -> str:
    again = _repeats(case, alone, retries)
    if again is not None:
        same = same_failure(fingerprint_of(case, alone), alone.stage, again)
        return f"and the head {_went(alone)} again on a retry" + ("" if same else f", in another way ({ended(again)})")
    if retries:
        return f"and the retry was not conclusive ({ended(retries[-1])})"
    return f"and the head {_went(alone)} once, {_not_run(case, Role.RETRY, 'not retried')}"


def _repeats(case: Case, alone: Decision, retries: tuple[RelatedRun, ...]) -> RelatedRun | None:
    """The retry that shows the failure again: a Fail, or the same failure."""
    marks = fingerprint_of(case, alone)
    return next((run for run in retries if run.result is Result.FAIL or same_failure(marks, alone.stage, run)), None)


def _went(alone: Decision) -> str:
    return "failed" if alone.result is Result.FAIL else "was blocked"


def _and_without_save(case: Case, text: str) -> str:
    """The text, with what the same job without saving says about construction."""
    for run in case.related(Role.WITHOUT_SAVE):
        if run.result is Result.PASS:
            return f"{text}; without saving it passes, so construction is fine and the fault is in checkpointing"
        return f"{text}; without saving it ends as {ended(run)}"
    return text


def _not_run(case: Case, role: Role, text: str) -> str:
    return f"{text}: {case.record.related_not_run.get(role) or NOT_ASKED_FOR}"


def _row(run: RelatedRun) -> str:
    cached = ", kept from an earlier run" if run.cached else ""
    return f"{run.role.spoken} ({run.job_id}, Bridge {run.bridge_commit[:12]}{cached}): {ended(run)}, in {run.folder}"


def _strip_full_stop(text: str) -> str:
    return text.rstrip(" .")

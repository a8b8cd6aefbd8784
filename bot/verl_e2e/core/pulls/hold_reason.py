"""Why nothing starts for a head, or one of its runs gets no slot, in a few words, and what someone can do about it."""

from dataclasses import dataclass

from verl_e2e.core.model.access import Start
from verl_e2e.core.pulls.commands import cancelled_by, was_begun
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.queue import Held, Pause
from verl_e2e.core.pulls.rehearsal_standing import rehearsal_standing
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import NeedsApproval
from verl_e2e.core.text.escape import Prose, prose

BROKEN_CONTRACT = "the change breaks what verl uses of Bridge, so no GPU is spent"
REHEARSAL_FAILED = "the rehearsal failed, so no GPU is spent"
DRAFT = "drafts are planned, not run"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why the jobs of a head do not start, and what someone can do about it."""

    # A few words, the same wherever the state of the head is shown: heading, table, gate.
    in_short: str
    # More about the reason, empty where the few words say everything.
    reason: str = ""
    # What someone can do, with its commands as code; empty where there is nothing to do here.
    action: Prose | str = ""
    # Whether a person ended the work on this head, and nothing is wrong with it.
    cancelled: bool = False

    @property
    def sentence(self) -> str:
        """The few words and the reason, without what to do."""
        return f"{self.in_short}: {self.reason}" if self.reason else self.in_short


def hold(target_state: TargetState) -> Hold | None:
    """Why nothing may start for this head, None when jobs may."""
    if target_state.over or target_state.problem:
        return Hold(target_state.over or target_state.problem)
    if target_state.broken:
        return Hold(BROKEN_CONTRACT)
    rehearsal = rehearsal_standing(target_state)
    if rehearsal is not None and rehearsal.failure:
        return Hold(REHEARSAL_FAILED, rehearsal.failure, prose("comment `/verl-e2e rehearse` to run it once more"))
    if target_state.draft:
        return Hold(DRAFT, action="mark the pull request ready for review")
    if isinstance(target_state.trust, NeedsApproval):
        asks = prose(
            "look at the head, then comment `/verl-e2e approve {sha}` to let it run", sha=target_state.head_sha
        )
        return Hold("awaiting approval", target_state.trust.reason, asks)
    cancelled = cancelled_by(target_state.entries, target_state.head_sha)
    if cancelled is not None:
        again = prose("comment `/verl-e2e run` to start again")
        return Hold(f"cancelled by {cancelled.actor}", action=again, cancelled=True)
    return None


def hold_of_plan(target_state: TargetState) -> Hold | None:
    """Why the required jobs may not start: as for all jobs, or because the policy waits for a person to ask."""
    asked = isinstance(target_state.target, MergeGroup) or was_begun(target_state.entries, target_state.head_sha)
    waits = target_state.policy.gate.start is Start.ASKED and not asked
    start = prose("comment `/verl-e2e run` to start them")
    return hold(target_state) or (
        Hold("not requested yet", "the policy starts nothing by itself", start) if waits else None
    )


def hold_in_queue(held: Held) -> Hold:
    """Why a run gets no slot, and what someone can do about it."""
    if isinstance(held, Pause):
        resume = prose("a maintainer can comment `/verl-e2e resume` to let runs start again")
        return Hold(held.in_short, held.reason, resume)
    large = f"the slots `{held.name}` hold {held.limit} GPUs, and the job needs more"
    return Hold("no pool is large enough", large, "the operator has to raise `VERL_E2E_SLOTS`")

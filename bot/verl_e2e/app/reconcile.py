"""Bring a pull request or a merge group to what it should be: read everything again, decide, do what is missing.

The caller makes sure that no reference is reconciled twice at the same time. Every step is looked up first, so
a look that was cut off is simply taken again.
"""

from dataclasses import dataclass, replace

from verl_e2e.app.base_policy import BasePolicies
from verl_e2e.app.collect_runs import Troubles
from verl_e2e.app.dispatch import Dispatch
from verl_e2e.app.first_check import FirstCheck
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.read_target import TargetReader
from verl_e2e.app.run_queue import RunQueue
from verl_e2e.app.show import Display
from verl_e2e.core.pulls.decide import Actions, decide_actions, with_new_terms
from verl_e2e.core.pulls.gate import Gate
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.overrides import expires_at
from verl_e2e.core.pulls.pull import Pull, Target
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.retry import NextAttempt
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import ForgeError

SOON_S = 1.0
# While a run is being ended, which may have to be asked again and forced.
ENDING_S = 30.0


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one target after the other to what it should be."""

    reader: TargetReader
    dispatch: Dispatch
    queue: RunQueue
    display: Display
    first_check: FirstCheck
    heads: KnownHeads
    policies: BasePolicies
    poll_s: float = 30.0
    """How long a run under way is left alone when no event tells of it: short where none ever does."""

    def reconcile(self, reference: Reference) -> float | None:
        """Do all that is due for a reference; gives in how many seconds to look again, None when nothing is expected.

        Raises ForgeError or BackendError when something did not answer; what was done stands, look again later.
        """
        target = self.reader.target_of(reference)
        if target is None:
            return None
        try:
            return self._reconcile(target)
        except Exception as error:
            self.first_check.tell_failure(target, error)
            raise
        finally:
            # Whatever ended here is free for others.
            self.queue.give_slots()

    def announce(self, reference: Reference) -> None:
        """Show on a target that it was seen, before there is time to look at it. ForgeError; again changes nothing."""
        target = self.reader.target_of(reference)
        if target is not None:
            self.first_check.show(target)

    def _reconcile(self, target: Target) -> float | None:
        troubles = Troubles()
        add_to_log_context(head=target.head_sha)
        if isinstance(target, Pull):
            self.heads.remember(target)
        entries, runs = self.reader.remembered(target, troubles)
        if self.reader.is_at_rest(target, runs):
            return None
        self.first_check.show(target)
        target_state = self.reader.target_state(target, entries, runs, troubles)
        target_state = replace(target_state, opened=self.reader.to_close(target), queue=self.queue.view(target_state))

        def gate_of(pull: Pull) -> Gate:
            return self._gate_of(pull, troubles)

        due = decide_actions(target_state)
        target_state = replace(target_state, runs=self._end(due, target_state, troubles))
        if due.dispatch or any(run.state is RunState.QUEUED for run in target_state.here):
            # Where checks cannot be written no GPU is spent: no one would see what came of it.
            announced = (*target_state.runs, *due.dispatch)
            steps = self.heads.with_others(target_state, decide_actions(replace(target_state, runs=announced)), gate_of)
            self.display.announce(target_state, steps)
            target_state = replace(target_state, runs=self._start(due, target_state, troubles))
            target_state = replace(target_state, queue=self.queue.view(target_state))
        # What is shown is what came of the steps, a refusal too; what that makes possible is for the next look.
        steps = self.heads.with_others(target_state, decide_actions(target_state), gate_of)
        waits = [self.display.show(target_state, steps)]
        waits += [self.dispatch.end_doubles(run) for run in target_state.runs if run.handle]
        found = {run.key for run in target_state.runs if run.state is RunState.SUBMITTED}
        self.policies.note(target, target_state.policy)
        if troubles.found:
            raise troubles.found[0]
        if any(before.state is RunState.QUEUED and before.key in found for before in runs):
            return SOON_S
        return _again(target_state, steps, min((wait for wait in waits if wait > 0), default=0.0), self.poll_s)

    def _gate_of(self, pull: Pull, troubles: Troubles) -> Gate:
        """The gate of another pull request by itself, as it is now; nothing is done for it."""
        try:
            entries, runs = self.reader.remembered(pull, troubles)
            return decide_actions(self.reader.target_state(pull, entries, runs, troubles)).gate
        except ForgeError as error:
            if error.passing:
                raise
            # What is wrong with another one for good must not end the look at this one.
            return Gate(JobStatus.BLOCKED, f"It cannot be planned: {error.answer}", ())

    def _end(self, due: Actions, target_state: TargetState, troubles: Troubles) -> tuple[Run, ...]:
        """End runs; gives all runs as they are then."""
        runs = {run.key: run for run in target_state.runs}
        for run in due.cancel:
            runs[run.key] = self.dispatch.cancel(run, troubles)
        return tuple(runs.values())

    def _start(self, due: Actions, target_state: TargetState, troubles: Troubles) -> tuple[Run, ...]:
        """Start the runs that have their turn, also those that were put down before; gives all runs as they are then.

        The head is read again before anything new is put down, and before anything is submitted.
        """
        runs = {run.key: run for run in target_state.runs}
        if due.dispatch and not self.dispatch.is_still_head(target_state.target):
            return target_state.runs
        new = {run.key: run for run in (*with_new_terms(target_state), *due.dispatch)}
        queued = {run.key: run for run in target_state.here if run.state is RunState.QUEUED}
        runs |= {run.key: run for run in self.queue.let_start((queued | new).values(), new)}
        ready = [run for run in runs.values() if run.key in queued | new and not run.waits_for_slot]
        if ready and (due.dispatch or self.dispatch.is_still_head(target_state.target)):
            runs |= {run.key: self.dispatch.submit(run, troubles) for run in ready}
        return tuple(runs.values())


def _again(target_state: TargetState, steps: Actions, wait: float, poll_s: float) -> float | None:
    """When to look again: at once for what an end makes possible, in a while for what runs."""
    if steps.cancel:
        return SOON_S
    # Who gets a slot is looked at by itself, but not who shares its head.
    own = (run for run in target_state.runs if not run.waits_for_slot)
    live = bool(steps.dispatch) or any(not run.state.final for run in (*own, *target_state.shared))
    ending = any(run.state is RunState.CANCELLING for run in target_state.runs)
    waits = [poll_s] * live + [ENDING_S] * ending + [wait] * (wait > 0)
    begins = (standing.attempt.at for standing in steps.standings if isinstance(standing.attempt, NextAttempt))
    # One that is due and did not begin waits for something else, which is looked at anyway.
    waits += [max((begin - target_state.now).total_seconds(), SOON_S) for begin in begins if begin > target_state.now]
    if steps.rehearsal is not None and steps.rehearsal.starts_at is not None:
        waits.append(max((steps.rehearsal.starts_at - target_state.now).total_seconds(), SOON_S))
    waits += [target_state.queue.again_s] * (target_state.queue.again_s > 0)
    ends = [expires_at(override, target_state.policy.overrides) for override in target_state.overrides]
    # No event tells that a day is over, and a gate may be open by an entry that counts until then.
    ends += [standing.quarantine.ends_at for standing in steps.standings if standing.quarantine is not None]
    waits += [max((end - target_state.now).total_seconds(), SOON_S) for end in ends]
    return min(waits, default=None)

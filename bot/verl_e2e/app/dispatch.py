"""Start, follow and end runs on the back end, and judge what they leave: a run's own word counts for nothing.

What is asked of the back end is written down before, so that a restart knows as much.
"""

import logging
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.judge_finished import NO_FOLDER, Judged, blocked, cannot_be_judged, with_doubt
from verl_e2e.app.known_targets import Kept
from verl_e2e.app.publish import Creations
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.outcome import EngineEnd, of_engine
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import Pull, PullState, Target
from verl_e2e.log_context import log_context
from verl_e2e.ports import Backend, BackendError, Clock, Ledger, Pulls, RunWatcher

# How often judging one run may fail by a fault of ours before it is called Blocked.
MOST_JUDGINGS = 5
EARLIER_HEAD = "it is of an earlier head, so it is not judged"
UNSETTLED = "it may have been started before, and GitHub's list of runs may not show that yet"

log = logging.getLogger(__name__)


# What went wrong on the back end and may go better later; the look is then taken again.
Troubles = list[BackendError]


@dataclass(frozen=True, slots=True)
class BackendRuns:
    """Starts runs on the back end, follows them to their end, and judges what they left."""

    creations: Creations
    analysis: Analysis
    artifacts: Path
    backend: Backend
    clock: Clock
    ledger: Ledger
    pulls: Pulls
    watcher: RunWatcher
    judgings: Kept[int] = field(default_factory=lambda: Kept(256))
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)

    def is_still_head(self, target: Target) -> bool:
        """Whether GitHub still has this head, open and ready, read again right before GPUs are spent on it."""
        if not isinstance(target, Pull):
            return True
        now = self.pulls.pull(target.ref)
        return now.head_sha == target.head_sha and now.state is PullState.OPEN and not now.draft

    def submit(self, run: Run, troubles: Troubles) -> Run:
        """Put the run down and give it to the back end; again is safe, for the back end knows it by its key.

        One that the back end will never take is Refused; one that it does not take now stays Queued.
        """
        # Put down before it is sent, so that the order has the same one whenever it is given again.
        kept = self.ledger.put_run(run if run.nonce else run.model_copy(update={"nonce": self.nonce()}))
        if kept.state is not RunState.QUEUED:
            return kept
        try:
            with _about(kept):
                handle = self._submitted(kept)
        except BackendError as error:
            if error.final:
                causes = (of_engine(EngineEnd.REFUSED),)
                return self._put(kept, state=RunState.REFUSED, reason=str(error), causes=causes)
            troubles.append(error)
            return kept
        return self._put(kept, state=RunState.SUBMITTED, handle=handle)

    def _submitted(self, run: Run) -> str:
        """The run's handle; BackendError, too while no one can know whether it was started before."""
        creation = run.repository, f"{run.key}:dispatch"
        if self.creations.was_begun(*creation):
            with self.watcher.backend_call("find"):
                handle = self.backend.find(run)
            if handle:
                self.creations.settle(*creation)
                return handle
            if (wait_s := self.creations.unsettled_s(*creation)) > 0:
                raise BackendError(UNSETTLED, uncertain=True, wait_s=wait_s)
        self.creations.begin(*creation)
        try:
            with self.watcher.backend_call("submit"):
                handle = self.backend.submit(run)
        except BackendError as error:
            if error.uncertain:
                self.creations.note_doubt(*creation)
                raise BackendError(str(error), uncertain=True, wait_s=self.creations.lag_s) from error
            self.creations.settle(*creation)
            raise
        self.creations.note_made(*creation)
        return handle

    def end_doubles(self, run: Run) -> float:
        """End what was started twice with this run's key; gives in how many seconds to look again, 0 for never."""

        def end_doubles() -> None:
            with self.watcher.backend_call("end_doubles"):
                self.backend.end_doubles(run)

        with _about(run):
            return self.creations.end_doubles_of(run.repository, f"{run.key}:dispatch", end_doubles)

    def cancel(self, run: Run, troubles: Troubles) -> Run:
        """Store that the run must end, and ask the back end; `run` is the document to store."""
        kept = self.ledger.put_run(run)
        if kept.state.final:
            return kept
        try:
            with _about(kept), self.watcher.backend_call("cancel"):
                self.backend.cancel(kept)
        except BackendError as error:
            troubles.append(error)
        return kept

    def of_target(self, target: Target, troubles: Troubles) -> tuple[Run, ...]:
        """The runs of a pull request, on whatever head, or of a merge group, as they stand now."""
        if isinstance(target, Pull):
            runs = self.ledger.runs(target.ref.repository, number=target.ref.number)
        else:
            found = self.ledger.runs(target.repository, head_sha=target.head_sha)
            runs = tuple(run for run in found if run.number is None)
        return tuple(self._advanced(run, target, troubles) for run in runs)

    def elsewhere(self, target: Target, troubles: Troubles) -> tuple[Run, ...]:
        """The runs that other pull requests with this very head have, as they stand now."""
        if not isinstance(target, Pull):
            return ()
        found = self.ledger.runs(target.ref.repository, head_sha=target.head_sha)
        others = (run for run in found if run.number not in (None, target.ref.number))
        return tuple(self._advanced(run, target, troubles) for run in others)

    def _advanced(self, run: Run, target: Target, troubles: Troubles) -> Run:
        try:
            with _about(run):
                return self._advance(run, target)
        except BackendError as error:
            troubles.append(error)
            return run

    def _advance(self, run: Run, target: Target) -> Run:
        """A run of a target as it stands now, judged if it has ended; kept in the ledger when that is news.

        Raises BackendError when the back end gives no answer now and may later.
        """
        if run.state.final or (run.state is RunState.QUEUED and not run.handle):
            return run
        try:
            with self.watcher.backend_call("poll"):
                progress = self.backend.poll(run)
        except BackendError as error:
            if not error.final:
                raise
            refused = (of_engine(EngineEnd.REFUSED),)
            return self._put(run, state=RunState.LOST, reason=run.reason or str(error), causes=refused)
        url = progress.url or run.url
        if progress.state is RunState.FINISHED:
            ended = run.model_copy(update={"url": url, "took": progress.took})
            judged = self._judged(ended, target, progress.end or EngineEnd.LEFT_NOTHING)
            minutes = self._gpu_minutes(run, judged.reported_s)
            return self._put(ended, state=RunState.FINISHED, gpu_minutes=minutes, **judged.of_run)
        state = _onward(run.state, progress.state)
        reason = run.reason or (progress.note if state.final or state is RunState.CANCELLING else "")
        if (state, url, reason) == (run.state, run.url, run.reason):
            return run
        causes = (of_engine(progress.end),) if state is RunState.LOST and progress.end is not None else ()
        minutes = self._seen_minutes(run, progress.took) if state.final else run.gpu_minutes
        return self._put(run, state=state, url=url, reason=reason, causes=causes, gpu_minutes=minutes)

    def _put(self, run: Run, **changes: object) -> Run:
        return self.ledger.put_run(run.model_copy(update={"updated": self.clock.now(), **changes}))

    def _seen_minutes(self, run: Run, took: BackendTimes | None) -> float:
        """GPU minutes of a run that ended without its own word: by the back end, else since it was seen to run."""
        if took is not None and took.started is not None and took.ended is not None:
            return self._gpu_minutes(run, (took.ended - took.started).total_seconds())
        if run.state is not RunState.RUNNING:
            return run.gpu_minutes
        return self._gpu_minutes(run, (self.clock.now() - run.updated).total_seconds())

    def _gpu_minutes(self, run: Run, reported_s: float) -> float:
        """GPUs times minutes by the run's own events, never more than passed since it was ordered."""
        if run.rehearsal is not None:
            return 0.0
        passed_s = (self.clock.now() - run.created).total_seconds()
        return round(max(min(reported_s, passed_s), 0.0) / 60 * (run.job.gpu_count if run.job else 1), 1)

    def _judged(self, run: Run, target: Target, without_folder: EngineEnd) -> Judged:
        """The judgement that we come to ourselves; where the run left no folder the engine says why."""
        if run.rehearsal is not None and run.head_sha != target.head_sha:
            # Its commits may be gone, and no one asks for it any more.
            return blocked(EARLIER_HEAD, EngineEnd.NOT_JUDGED)
        folder = self.artifacts / run.key
        try:
            with self.watcher.backend_call("artifacts"):
                found = self.backend.artifacts(run, folder)
            if not found:
                return blocked(NO_FOLDER, without_folder)
            with self.watcher.backend_call("unattested"):
                doubt = self.backend.unattested(run)
        except BackendError as error:
            if not error.final:
                raise
            return blocked(str(error), EngineEnd.NOT_FETCHED)
        return with_doubt(self._judgement(run, target, folder), doubt)

    def _judgement(self, run: Run, target: Target, folder: Path) -> Judged:
        """What the run folder comes to; a fault of ours is tried again a few times, and not for ever."""
        try:
            if run.rehearsal is not None:
                judged = self.analysis.judge_rehearsal(target, run, folder)
            else:
                judged = self.analysis.judge(run, folder)
            self.watcher.run_phases(judged.phase_s)
            return judged
        except LimitError as error:
            return cannot_be_judged(error)
        except Exception as error:
            failed = (self.judgings.find((run.key,)) or 0) + 1
            self.judgings.put((run.key,), failed)
            if failed < MOST_JUDGINGS:
                raise
            log.exception("run %s given up: judging it failed %d times", run.key[:12], failed)
            return cannot_be_judged(f"judging it failed {failed} times ({type(error).__name__})")


def _about(run: Run) -> AbstractContextManager[None]:
    """What log lines inside are about."""
    return log_context(run=run.key, head=run.head_sha, job=run.job_id)


def _onward(kept: RunState, seen: RunState) -> RunState:
    """The later of two states: a run that is being ended runs on for a while, and nothing is queued again."""
    if seen.final or kept is RunState.QUEUED:
        return seen
    if kept is RunState.CANCELLING or (kept is RunState.RUNNING and seen is not RunState.CANCELLING):
        return kept
    return kept if seen is RunState.QUEUED else seen

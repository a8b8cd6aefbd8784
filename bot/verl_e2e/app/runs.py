"""The runs of targets: when they start, what becomes of them on the back end, and what they left.

Our own queue gives slots in one decision over the database, and targets that got one are looked at at once. What is
asked of the back end is written down before, so that a restart knows as much. What a run left is judged by us: a run's
own word counts for nothing.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from verl_e2e.app.analysis import NO_FOLDER, Analysis, Judged, blocked_by_end, cannot_be_judged, with_doubt
from verl_e2e.app.known_targets import KnownTargets, RecentValues
from verl_e2e.app.publish import Creations
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.model.outcome import EngineEnd, of_engine
from verl_e2e.core.pulls.commands import Pause, pauses_of
from verl_e2e.core.pulls.decide import Actions, with_new_terms
from verl_e2e.core.pulls.forge import BranchCommit, Pull, PullState, Reference, Target
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.queue import LOOK_S, Pool, QueueSnapshot, QueueView, ShownPlace, admit, place_of
from verl_e2e.core.pulls.run_lines import Glance
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.text.redact import redactor
from verl_e2e.log_context import log_context
from verl_e2e.ports import Backend, BackendError, Clock, Ledger, Pulls, QueueLedger, RunWatcher

# A look at a target that is held is for nothing but what it shows: a run that gets a slot wakes its target.
_HELD_S = 3_600.0
# What got a slot is submitted at once; after this the process that was to do so is taken for dead.
_STRAGGLES = timedelta(seconds=60)


# Of a log under way: what a page shows, and how much of it is read to get there.
_LAST_LINES, _TAIL_BYTES, _READ_BYTES = 40, 16 << 10, 64 << 20


def glance(backend: Backend, run: Run) -> Glance:
    """How far a run under way is, and the end of its log; nothing is asked of it, and nothing kept."""
    tail, left = b"", _READ_BYTES
    try:
        where = backend.where(run)
        for block in backend.log(run):
            tail, left = (tail + block)[-_TAIL_BYTES:], left - len(block)
            if left < 0:
                return Glance(
                    where, (f"... its end is not shown while it runs: it is longer than {_READ_BYTES >> 20} MB",)
                )
    except (BackendError, UserError):
        return Glance()
    # What the runner prints before there is a log is redacted by no one else; of a line that is cut it could not be.
    lines = redactor().redact_text(tail.decode(errors="replace")).splitlines()[_READ_BYTES - left > _TAIL_BYTES :]
    return Glance(where, tuple(lines[-_LAST_LINES:]))


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """What the queue needs where one database knows every run: none in Action mode."""

    ledger: QueueLedger
    # The machines with their slots; none: nothing is limited.
    pools: tuple[Pool, ...]
    # Has targets looked at at once.
    wake: Callable[[Collection[Reference]], None]


@dataclass(frozen=True, slots=True)
class RunQueue:
    """Lets runs start, at once where nothing limits them."""

    clock: Clock
    ledger: Ledger
    known: KnownTargets
    # None in Action mode: nothing is limited there but by the workflow's own concurrency.
    shared: SharedQueue | None = None

    def let_start(self, runs: Iterable[Run], new: Collection[str]) -> tuple[Run, ...]:
        """The runs of one target, those that may start now without `awaits_slot`; the others wait on.

        Those with a key in `new` are put down first, so that the decision knows of them.
        """
        given = tuple(runs)
        waiting = [run for run in given if run.waits_for_slot]
        if not waiting:
            return given
        if self.shared is None or not (self.shared.pools or self.pause_of(waiting[0].repository)):
            now = self.clock.now()
            return tuple(run.let_start(now) if run.waits_for_slot else run for run in given)
        kept = [self.ledger.put_run(run) if run.key in new else run for run in given]
        started = {run.key: run for run in self.give_slots(besides=[run.key for run in given])}
        return tuple(started.get(run.key, run) for run in kept)

    def give_slots(self, besides: Collection[str] = ()) -> tuple[Run, ...]:
        """Give the free slots to the next runs, and have their targets looked at, but for runs in `besides`."""
        shared = self.shared
        if shared is None or not shared.ledger.has_waiting():
            return ()
        now = self.clock.now()

        def decide(snapshot: QueueSnapshot) -> Collection[str]:
            return admit(snapshot, shared.pools, now).starts

        started = shared.ledger.give_slots(decide, now)
        self._wake(run for run in started if run.key not in besides)
        return started

    def wake_stragglers(self) -> None:
        """Have the targets looked at whose run got a slot and was not submitted: a process was killed in between."""
        if self.shared is not None:
            before = self.clock.now() - _STRAGGLES
            late = (run for run in self.shared.ledger.open_runs() if run.state is RunState.QUEUED)
            self._wake(run for run in late if run.admitted is not None and run.admitted <= before)

    def switched(self, repository: str) -> None:
        """A repository was paused or resumed: look at all that has runs, and start what may start."""
        if self.shared is not None:
            self.give_slots()
            self._wake(run for run in self.shared.ledger.open_runs() if run.repository == repository)

    def view(self, target_state: TargetState) -> QueueView:
        """What a target sees of the queue. Its place is the one that is shown until another one is worth an edit."""
        shared = self.shared
        if shared is None:
            return QueueView()
        pause = self.pause_of(target_state.repository)
        waiting = {run.key for run in target_state.here if run.waits_for_slot}
        if not waiting or pause is not None:
            # A merge group has a deadline; for others the end of the pause comes by itself.
            again_s = LOOK_S if target_state.number is None else _HELD_S
            limited = pause is not None or bool(shared.pools)
            return QueueView(limited=limited, pause=pause, again_s=again_s if waiting else 0.0)
        now, subject = self.clock.now(), f"{target_state.head_sha}:{target_state.number or 0}:place"
        shown = self.ledger.note(ShownPlace, target_state.repository, subject)
        age_s = (now - shown.at).total_seconds() if shown is not None else 0.0
        if shown is not None and 0 <= age_s < shown.place.again_s:
            return QueueView(limited=True, place=shown.place, again_s=shown.place.again_s - age_s)
        decision = admit(shared.ledger.snapshot(), shared.pools, now)
        held = {key: hold for key, hold in decision.held.items() if key in waiting}
        place = place_of(waiting, decision)
        if place is None:
            return QueueView(limited=True, held=held, again_s=_HELD_S if held else LOOK_S)
        if shown is not None and not place.is_news_after(shown.place):
            place = shown.place
        self.ledger.put_note(ShownPlace(repository=target_state.repository, subject=subject, at=now, place=place))
        return QueueView(limited=True, held=held, place=place, again_s=place.again_s)

    def pause_of(self, repository: str) -> Pause | None:
        """The pause of a repository, None for none."""
        if self.shared is None:
            return None
        return pauses_of(self.shared.ledger.switches(repository)).get(repository)

    def _wake(self, runs: Iterable[Run]) -> None:
        if self.shared is not None:
            found = {self.known.reference_of(run) for run in runs}
            self.shared.wake([reference for reference in found if reference is not None])


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
    judgings: RecentValues[int] = field(default_factory=lambda: RecentValues(256))
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)

    def is_still_head(self, target: Target) -> bool:
        """Whether GitHub still has this head, open and ready, read again right before GPUs are spent on it."""
        if not isinstance(target, Pull):
            return True
        now = self.pulls.pull(target.ref)
        return now.head_sha == target.head_sha and now.state is PullState.OPEN and not now.draft

    def start(self, due: Actions, target_state: TargetState, queue: RunQueue, troubles: Troubles) -> tuple[Run, ...]:
        """Start the runs that have their turn, also those that were put down before; gives all runs as they are then.

        The head is read again before anything new is put down, and before anything is submitted.
        """
        if due.dispatch and not self.is_still_head(target_state.target):
            return target_state.runs
        runs = {run.key: run for run in target_state.runs}
        new = {run.key: run for run in (*with_new_terms(target_state), *due.dispatch)}
        to_start = {run.key: run for run in target_state.here if run.state is RunState.QUEUED} | new
        runs |= {run.key: run for run in queue.let_start(to_start.values(), new)}
        ready = [run for run in runs.values() if run.key in to_start and not run.waits_for_slot]
        if ready and (due.dispatch or self.is_still_head(target_state.target)):
            runs |= {run.key: self.submit(run, troubles) for run in ready}
        return tuple(runs.values())

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
        """The runs of a pull request, on whatever head, or of a merge group, as they stand now.

        Those of a schedule belong to the commit of its branch alone; that one sees those of a merge group as well.
        """
        if isinstance(target, Pull):
            runs = self.ledger.runs(target.ref.repository, number=target.ref.number)
        else:
            found = self.ledger.runs(target.repository, head_sha=target.head_sha)
            watched = isinstance(target, BranchCommit)
            runs = tuple(run for run in found if run.number is None and (watched or not run.branch))
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
        # The later of two states: a run that is being ended runs on for a while, and nothing is queued again.
        seen = progress.state
        is_behind = run.state is RunState.RUNNING and seen is not RunState.CANCELLING
        stays = run.state is RunState.CANCELLING or is_behind or seen is RunState.QUEUED
        state = run.state if stays and not seen.final and run.state is not RunState.QUEUED else seen
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
            return blocked_by_end(EARLIER_HEAD, EngineEnd.NOT_JUDGED)
        folder = self.artifacts / run.key
        try:
            with self.watcher.backend_call("artifacts"):
                found = self.backend.artifacts(run, folder)
            if not found:
                return blocked_by_end(NO_FOLDER, without_folder)
            with self.watcher.backend_call("unattested"):
                doubt = self.backend.unattested(run)
        except BackendError as error:
            if not error.final:
                raise
            return blocked_by_end(str(error), EngineEnd.NOT_FETCHED)
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

"""Our own queue: slots are given in one decision over the database, and targets that got one are looked at at once."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.known_targets import KnownTargets
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import Reference
from verl_e2e.core.pulls.queue import LOOK_S, Pause, Pool, QueueView, ShownPlace, Snapshot, admit, pauses_of, place_of
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.ports import Clock, Ledger, QueueLedger

# A look at a target that is held is for nothing but what it shows: a run that gets a slot wakes its target.
_HELD_S = 3_600.0
# What got a slot is submitted at once; after this the process that was to do so is taken for dead.
_STRAGGLES = timedelta(seconds=60)


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

        def decide(snapshot: Snapshot) -> Collection[str]:
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

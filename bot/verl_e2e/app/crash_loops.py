"""Looks that never returned: what ends the service again and again is set aside for a while, and its gate says so."""

from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.first_check import FirstCheck
from verl_e2e.app.read_target import TargetReader
from verl_e2e.app.reconcile import Reconciler
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.ports import Clock, Ledger

MOST_BEGUN = 3
# A restart of the service also cuts off a reconcile: so the first rests are short, and others have their turn.
FIRST_REST, LONGEST_REST = timedelta(seconds=5), timedelta(minutes=15)
_SHORT_RESTS_UNTIL, _LONGER = 30, 4
_LOOK = "look"


@dataclass(frozen=True, slots=True)
class CrashLoops:
    """Counts looks that never returned."""

    first_check: FirstCheck
    reconciler: Reconciler
    targets: TargetReader
    clock: Clock
    ledger: Ledger

    def reconcile_counted(self, reference: Reference) -> float | None:
        """`reconcile`, counted before it begins: one that never returned three times in a row waits, and others go on.

        A look that fails has returned. One that was cut off by a restart has not, nor one that ended the service.
        """
        found = self.ledger.posted(reference.repository, _LOOK, _subject(reference))
        begun = found.remote_id if found is not None else 0
        if found is not None and begun >= MOST_BEGUN and self.clock.now() - found.at < rest_after(begun):
            return self._set_aside(reference, begun)
        self._note(reference, begun + 1)
        try:
            again_s = self.reconciler.reconcile(reference)
        except Exception:
            self._note(reference, 0)
            raise
        self._note(reference, 0)
        return again_s

    def _set_aside(self, reference: Reference, begun: int) -> float:
        target = self.targets.target_of(reference)
        if target is not None:
            self.first_check.tell_set_aside(target, f"verl-e2e was ended {begun} times while it looked at this head")
        return rest_after(begun).total_seconds()

    def _note(self, reference: Reference, begun: int) -> None:
        self.ledger.put_posted(
            Posted(
                repository=reference.repository,
                kind=_LOOK,
                subject=_subject(reference),
                remote_id=begun,
                at=self.clock.now(),
            )
        )


def rest_after(begun: int) -> timedelta:
    """How long a target is left alone after so many looks that never returned: longer with each."""
    return min(FIRST_REST * int(_LONGER ** min(max(begun - _SHORT_RESTS_UNTIL, 0), 9)), LONGEST_REST)


def _subject(reference: Reference) -> str:
    return str(reference.number) if isinstance(reference, PullRef) else reference.head_sha

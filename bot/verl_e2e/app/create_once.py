"""Create something on GitHub once, though its lists lag: what may have been made is waited for before it is made again.

What is about to be created is written down first. When no one knows whether it was (the process was killed, the answer
was lost), or its id (the process was killed before the caller kept it), it is created again only after a list must show
it. What was doubled all the same, for a list lagged longer,
is looked for afterwards: see `end_doubles_of`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.ports import Clock, Ledger, UncertainError

_CREATING = "creating"
# In the ledger `remote_id` counts how often it was created again without knowing what became of the time before, and
# `digest` is one of the first two, or the third with how often doubles were looked for since.
_ASKED, _MADE, _LOOKED = "asked", "made", "looked:"
# What was created twice is looked for after one and after four times the lag.
_LOOKS = (1, 4)


@dataclass(frozen=True, slots=True)
class Creation:
    """Something of ours on GitHub that there is to be once."""

    repository: str
    """`owner/name`."""
    subject: str
    """The name of the thing here, of the same form as in what was posted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    id: int = 0
    """GitHub's id of the thing, 0 while no one can know whether it is there."""
    found: bool = False
    """Whether it was there before, so that it may have to be brought up to date."""
    wait_s: float = 0.0
    """In how many seconds to ask again, when there is no id."""


@dataclass(frozen=True, slots=True)
class Creations:
    """What we create on GitHub, each once."""

    clock: Clock
    lag_s: float
    ledger: Ledger

    def create_once(self, creation: Creation, find: Callable[[], int], create: Callable[[], int]) -> Outcome:
        """Find the thing, or create it, or wait; raises what `find` and `create` raise, but for UncertainError."""
        if known := find():
            self.settle(creation)
            return Outcome(known, found=True)
        if (wait_s := self.unsettled_s(creation)) > 0:
            return Outcome(wait_s=wait_s)
        self.begin(creation)
        try:
            made = create()
        except UncertainError:
            if not self.lag_s:
                raise
            self.note_doubt(creation)
            return Outcome(wait_s=self.lag_s)
        except Exception:
            self.settle(creation)
            raise
        self.note_made(creation)
        return Outcome(made)

    def begin(self, creation: Creation) -> None:
        """Write down that a thing is about to be created."""
        kept = self._kept(creation)
        times = (kept.remote_id + _is_unsettled(kept)) if kept is not None else 0
        self._keep(creation, times, _ASKED, self.clock.now())

    def note_doubt(self, creation: Creation) -> None:
        """The attempt ended without an answer: it may have had its effect until now."""
        if kept := self._kept(creation):
            self._keep(creation, kept.remote_id, _ASKED, self.clock.now())

    def note_made(self, creation: Creation) -> None:
        """It was created. The caller keeps its id afterwards, and may be killed before: so lists are waited for."""
        if kept := self._kept(creation):
            self._keep(creation, kept.remote_id, _MADE, self.clock.now())

    def settle(self, creation: Creation) -> None:
        """A list shows it, or the last attempt made nothing; those before it may still have left something."""
        kept = self._kept(creation)
        if kept is not None and _is_unsettled(kept):
            self._keep(creation, kept.remote_id, _LOOKED + "0", kept.at)

    def unsettled_s(self, creation: Creation) -> float:
        """For how many seconds a list that does not show the thing cannot be believed."""
        kept = self._kept(creation)
        if kept is None or not _is_unsettled(kept):
            return 0.0
        now = self.clock.now()
        if kept.at > now:
            # The clock was set back: count from now.
            self._keep(creation, kept.remote_id, kept.digest, now)
            return self.lag_s
        return max(0.0, (kept.at + timedelta(seconds=self.lag_s) - now).total_seconds())

    def was_begun(self, creation: Creation) -> bool:
        """Whether the thing may have been created, and its id not be known."""
        kept = self._kept(creation)
        return kept is not None and _is_unsettled(kept)

    def end_doubles_of(self, creation: Creation, end: Callable[[], None]) -> float:
        """Have doubles of the thing ended, by `end`, when it is time; gives in how many seconds to come again, else 0.

        That it was done is written down afterwards, so that a kill in between lets it be done again.
        """
        kept = self._kept(creation)
        if kept is None or not kept.remote_id or kept.digest == _ASKED:
            return 0.0
        age_s = (self.clock.now() - kept.at).total_seconds()
        looks = [number * self.lag_s for number in _LOOKS]
        looked = 0 if kept.digest == _MADE else int(kept.digest.removeprefix(_LOOKED))
        if age_s < looks[looked]:
            return min(looks[looked] - age_s, looks[looked])
        end()
        last = looked + 1 == len(looks)
        self._keep(creation, 0 if last else kept.remote_id, f"{_LOOKED}{0 if last else looked + 1}", kept.at)
        return 0.0 if last else max(looks[-1] - age_s, 1.0)

    def _kept(self, creation: Creation) -> Posted | None:
        return self.ledger.posted(creation.repository, _CREATING, creation.subject) if self.lag_s else None

    def _keep(self, creation: Creation, times: int, digest: str, at: datetime) -> None:
        if not self.lag_s:
            return
        self.ledger.put_posted(
            Posted(
                repository=creation.repository,
                kind=_CREATING,
                subject=creation.subject,
                remote_id=times,
                digest=digest,
                at=at,
            )
        )


def _is_unsettled(kept: Posted) -> bool:
    """Whether the thing may be there though no list shows it."""
    return kept.digest in (_ASKED, _MADE)

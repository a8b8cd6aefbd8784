"""Create something on GitHub once, though its lists lag: what may have been made is waited for before it is made again.

What is about to be created is written down first. When no one knows whether it was (the process was killed, the answer
was lost), it is created again only after a list must show it. What was doubled all the same, for a list lagged longer,
is looked for afterwards: see `end_doubles_of`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.ports import Clock, Ledger, UncertainError

_CREATING = "creating"
# In the ledger `remote_id` counts how often it was created again without knowing what became of the time before, and
# `digest` is the first of these, or the second with how often doubles were looked for since.
_ASKED, _LOOKED = "asked", "looked:"
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
            return Outcome(wait_s=self.lag_s)
        except Exception:
            self.settle(creation)
            raise
        self.settle(creation)
        return Outcome(made)

    def begin(self, creation: Creation) -> None:
        """Write down that a thing is about to be created."""
        kept = self._kept(creation)
        times = (kept.remote_id + (kept.digest == _ASKED)) if kept is not None else 0
        self._keep(creation, times, _ASKED, self.clock.now())

    def settle(self, creation: Creation) -> None:
        """It is known what became of the last attempt; those before it may still have left something."""
        kept = self._kept(creation)
        if kept is not None and kept.digest == _ASKED:
            self._keep(creation, kept.remote_id, _LOOKED + "0", kept.at)

    def unsettled_s(self, creation: Creation) -> float:
        """For how many seconds a list that does not show the thing cannot be believed."""
        kept = self._kept(creation)
        if kept is None or kept.digest != _ASKED:
            return 0.0
        now = self.clock.now()
        if kept.at > now:
            # The clock was set back: count from now.
            self._keep(creation, kept.remote_id, _ASKED, now)
            return self.lag_s
        return max(0.0, (kept.at + timedelta(seconds=self.lag_s) - now).total_seconds())

    def was_begun(self, creation: Creation) -> bool:
        """Whether the thing may have been created without anyone knowing."""
        kept = self._kept(creation)
        return kept is not None and kept.digest == _ASKED

    def end_doubles_of(self, creation: Creation, end: Callable[[], None]) -> float:
        """Have doubles of the thing ended, by `end`, when it is time; gives in how many seconds to come again, else 0.

        That it was done is written down afterwards, so that a kill in between lets it be done again.
        """
        kept = self._kept(creation)
        if kept is None or not kept.remote_id or kept.digest == _ASKED:
            return 0.0
        age_s = (self.clock.now() - kept.at).total_seconds()
        looks = [number * self.lag_s for number in _LOOKS]
        looked = int(kept.digest.removeprefix(_LOOKED))
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

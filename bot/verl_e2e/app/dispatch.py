"""Start and end runs on the back end: written down before anything is asked, so that a restart knows as much."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from verl_e2e.app.collect_runs import Troubles
from verl_e2e.app.publish import Creation, Creations
from verl_e2e.core.model.causes import EngineEnd, of_engine
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import Pull, PullState, Target
from verl_e2e.log_context import log_context
from verl_e2e.ports import Backend, BackendError, Clock, Ledger, Pulls, RunWatcher

UNSETTLED = "it may have been started before, and GitHub's list of runs may not show that yet"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Starts and ends runs on the back end."""

    creations: Creations
    backend: Backend
    clock: Clock
    ledger: Ledger
    pulls: Pulls
    watcher: RunWatcher
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
            with log_context(run=kept.key, head=kept.head_sha, job=kept.job_id):
                handle = self._submitted(kept)
        except BackendError as error:
            if error.final:
                causes = (of_engine(EngineEnd.REFUSED),)
                changes = {"state": RunState.REFUSED, "reason": str(error), "causes": causes}
                return self.ledger.put_run(self._changed(kept, **changes))
            troubles.found.append(error)
            return kept
        return self.ledger.put_run(self._changed(kept, state=RunState.SUBMITTED, handle=handle))

    def _submitted(self, run: Run) -> str:
        """The run's handle; BackendError, too while no one can know whether it was started before."""
        creation = Creation(run.repository, f"{run.key}:dispatch")
        if self.creations.was_begun(creation):
            with self.watcher.backend_call("find"):
                handle = self.backend.find(run)
            if handle:
                self.creations.settle(creation)
                return handle
            if (wait_s := self.creations.unsettled_s(creation)) > 0:
                raise BackendError(UNSETTLED, uncertain=True, wait_s=wait_s)
        self.creations.begin(creation)
        try:
            with self.watcher.backend_call("submit"):
                handle = self.backend.submit(run)
        except BackendError as error:
            if error.uncertain:
                self.creations.note_doubt(creation)
                raise BackendError(str(error), uncertain=True, wait_s=self.creations.lag_s) from error
            self.creations.settle(creation)
            raise
        self.creations.note_made(creation)
        return handle

    def end_doubles(self, run: Run) -> float:
        """End what was started twice with this run's key; gives in how many seconds to look again, 0 for never."""
        creation = Creation(run.repository, f"{run.key}:dispatch")

        def end_doubles() -> None:
            with self.watcher.backend_call("end_doubles"):
                self.backend.end_doubles(run)

        with log_context(run=run.key, head=run.head_sha, job=run.job_id):
            return self.creations.end_doubles_of(creation, end_doubles)

    def cancel(self, run: Run, troubles: Troubles) -> Run:
        """Store that the run must end, and ask the back end; `run` is the document to store."""
        kept = self.ledger.put_run(run)
        if kept.state.final:
            return kept
        try:
            with (
                log_context(run=kept.key, head=kept.head_sha, job=kept.job_id),
                self.watcher.backend_call("cancel"),
            ):
                self.backend.cancel(kept)
        except BackendError as error:
            troubles.found.append(error)
        return kept

    def _changed(self, run: Run, **changes: object) -> Run:
        return run.model_copy(update={"updated": self.clock.now(), **changes})

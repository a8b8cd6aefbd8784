"""Write check runs on GitHub, once: looked for before it is made, and left alone while nothing changed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from verl_e2e.app.create_once import Creation, Creations, Outcome
from verl_e2e.app.open_checks import OpenChecks
from verl_e2e.core.pulls.check_runs import CheckRun, CheckStatus, Conclusion
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import Target, repository_of
from verl_e2e.ports import Checks, Clock, Ledger

CHECK = "check"
REPLACED = "Created twice; the other check run of this name counts"


@dataclass(frozen=True, slots=True)
class CheckPublisher:
    """Brings check runs up to date, each written once."""

    creations: Creations
    open_checks: OpenChecks
    app_id: int | None
    checks: Checks
    clock: Clock
    ledger: Ledger

    def post_checks(self, target: Target, checks: tuple[CheckRun, ...]) -> float:
        """Bring check runs up to date; of an earlier head only those that we wrote before.

        What is about to be shown without a conclusion is written down first, so that it gets one whatever happens.
        Gives in how many seconds one may be written that may be there already, 0 for none.
        """
        repository = repository_of(target)
        listed: dict[str, tuple[CheckRun, ...]] = {}

        def there(sha: str) -> tuple[CheckRun, ...]:
            if sha not in listed:
                listed[sha] = self.checks.check_runs(repository, sha)
            return listed[sha]

        self.open_checks.note_opening(target, checks)
        outcomes = [(check, *self._post_check(target, check, there)) for check in checks]
        self.open_checks.note_concluded(target, [check for check, known, _ in outcomes if known])
        return min((wait_s for _, _, wait_s in outcomes if wait_s > 0), default=0.0)

    def _post_check(
        self, target: Target, check: CheckRun, there: Callable[[str], tuple[CheckRun, ...]]
    ) -> tuple[bool, float]:
        """Whether it is known to be up to date, and in how many seconds to look at it again, 0 for never."""
        repository, subject = repository_of(target), check_subject(check.head_sha, check.name)
        posted = self.ledger.posted(repository, CHECK, subject)
        digest, creation = check_digest(check), Creation(repository, f"{subject}:check")
        if posted is not None and posted.digest == digest:
            return True, self._hide_doubles(creation, check, posted.remote_id)

        def find() -> int:
            return max(
                (check_run.id for check_run in there(check.head_sha) if self._is_same(check_run, check)), default=0
            )

        if posted is not None:
            outcome = Outcome(posted.remote_id, found=True)
        elif check.head_sha != target.head_sha:
            outcome = Outcome(find(), found=True)
        else:
            outcome = self.creations.create_once(creation, find, lambda: self.checks.write_check(repository, check))
        if not outcome.id:
            return not outcome.wait_s, outcome.wait_s
        if outcome.found:
            self.checks.write_check(repository, replace(check, id=outcome.id))
        self.ledger.put_posted(posted_now(repository, CHECK, subject, outcome.id, digest, self.clock.now()))
        return True, self._hide_doubles(creation, check, outcome.id)

    def _hide_doubles(self, creation: Creation, check: CheckRun, kept_id: int) -> float:
        """Close and rename what was created in addition to the check run that we keep; gives when to try again."""

        def hide() -> None:
            for check_run in self.checks.same_name(creation.repository, check.head_sha, check.name):
                if self._is_same(check_run, check) and check_run.id != kept_id:
                    double = replace(
                        check, id=check_run.id, name=f"{check.name} (replaced)", external_id="", annotations=()
                    )
                    closed = replace(double, status=CheckStatus.COMPLETED, conclusion=Conclusion.CANCELLED, actions=())
                    self.checks.write_check(creation.repository, replace(closed, title=REPLACED, summary=REPLACED))

        return self.creations.end_doubles_of(creation, hide)

    def _is_same(self, found: CheckRun, wanted: CheckRun) -> bool:
        ours = self.app_id is None or found.app_id == self.app_id
        return ours and (found.name, found.external_id) == (wanted.name, wanted.external_id)

    def forget_check(self, repository: str, head_sha: str, name: str) -> None:
        """GitHub reset a check run of ours: what it says now is not known any more, so it is written again."""
        posted = self.ledger.posted(repository, CHECK, check_subject(head_sha, name))
        if posted is not None:
            self.ledger.put_posted(posted.model_copy(update={"digest": ""}))


def check_digest(check: CheckRun) -> str:
    """What a check run as it was written is remembered by."""
    return digest_of(asdict(check))


def check_subject(head_sha: str, name: str) -> str:
    """What a check run is remembered by."""
    return f"{head_sha}:{name}"


def posted_now(repository: str, kind: str, subject: str, remote_id: int, digest: str, at: datetime) -> Posted:
    """What stands on GitHub for a subject from now on."""
    return Posted(repository=repository, kind=kind, subject=subject, remote_id=remote_id, digest=digest, at=at)


def digest_of(value: object) -> str:
    """What a content is remembered by."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

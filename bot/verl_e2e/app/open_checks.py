"""Remember which check runs of ours may be without a conclusion on GitHub, so that each of them gets one.

What is about to be shown as queued or in progress is written down first, by its head, and each pull request or merge
group keeps the list of the heads on which it wrote. So nothing is forgotten by a push, a crash or a changed plan.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.core.pulls.check_runs import CheckRun, CheckStatus, OpenCheck, read_check_id
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import Pull, PullState, Target, repository_of
from verl_e2e.ports import Clock, Ledger

# By head: name and our id of each check that may be open. By target: the heads where there are such.
_OPENED, _HEADS = "opened", "opened-heads"


@dataclass(frozen=True, slots=True)
class OpenChecks:
    """Remembers the checks that may be open."""

    heads: KnownHeads
    clock: Clock
    ledger: Ledger
    # Held while a remembered list is read and changed, for several looks may share it.
    lock: AbstractContextManager[object] = field(default_factory=Lock)

    def of_target(self, target: Target) -> tuple[OpenCheck, ...]:
        """The checks that may be open and that this target has to close, on whatever head.

        Those on a head that other open pull requests have are left to them, but for its own on its own head.
        """
        found = []
        for head_sha in self._heads(target):
            checks = self._of_head(repository_of(target), head_sha)
            others = self.heads.others_with(target.ref, head_sha) if isinstance(target, Pull) and checks else ()
            if not others:
                found += checks
            elif head_sha == target.head_sha and isinstance(target, Pull) and target.state is PullState.OPEN:
                theirs = {pull.ref.number for pull in others}
                found += [check for check in checks if _owner(check) not in theirs]
        return tuple(sorted(found, key=lambda check: (check.head_sha, check.name)))

    def any_of(self, target: Target) -> bool:
        """Whether something of this target may be open."""
        return any(self._of_head(repository_of(target), head_sha) for head_sha in self._heads(target))

    def note_opening(self, target: Target, checks: Iterable[CheckRun]) -> None:
        """Those of the checks that have no conclusion are about to be written."""
        opening = [check for check in checks if check.status != CheckStatus.COMPLETED]
        for head_sha in dict.fromkeys(check.head_sha for check in opening):
            with self.lock:
                heads = self._heads(target)
                if head_sha not in self._kept(_HEADS, _subject(target), repository_of(target)):
                    self._keep(_HEADS, _subject(target), repository_of(target), [*heads, head_sha])
                here = [_opened(check) for check in opening if check.head_sha == head_sha]
                self._change(repository_of(target), head_sha, here, [])

    def note_concluded(self, target: Target, checks: Iterable[CheckRun]) -> None:
        """Those of the checks that have a conclusion were written."""
        done = [check for check in checks if check.status == CheckStatus.COMPLETED]
        for head_sha in dict.fromkeys(check.head_sha for check in done):
            with self.lock:
                here = [_opened(check) for check in done if check.head_sha == head_sha]
                self._change(repository_of(target), head_sha, [], here)
        with self.lock:
            kept = self._kept(_HEADS, _subject(target), repository_of(target))
            left = [head_sha for head_sha in kept if self._of_head(repository_of(target), head_sha)]
            if left != kept:
                self._keep(_HEADS, _subject(target), repository_of(target), left)

    def _change(self, repository: str, head_sha: str, more: Sequence[OpenCheck], fewer: Sequence[OpenCheck]) -> None:
        known = {check.name: check for check in self._of_head(repository, head_sha)}
        changed = known | {check.name: check for check in more}
        for check in fewer:
            changed.pop(check.name, None)
        if changed != known:
            rows = sorted((check.name, check.external_id) for check in changed.values())
            self._keep(_OPENED, f"{head_sha}:opened", repository, rows)

    def _of_head(self, repository: str, head_sha: str) -> list[OpenCheck]:
        kept = self._kept(_OPENED, f"{head_sha}:opened", repository)
        return [OpenCheck(row[0], head_sha, row[1]) for row in kept]

    def _heads(self, target: Target) -> list[str]:
        """The heads where something of the target may be open, the one that it has now among them."""
        kept = self._kept(_HEADS, _subject(target), repository_of(target))
        return list(dict.fromkeys((*kept, target.head_sha)))

    def _kept(self, kind: str, subject: str, repository: str) -> list[Any]:
        posted = self.ledger.posted(repository, kind, subject)
        return list(json.loads(posted.digest)) if posted is not None else []

    def _keep(self, kind: str, subject: str, repository: str, rows: Sequence[object]) -> None:
        text, now = json.dumps(rows), self.clock.now()
        self.ledger.put_posted(
            Posted(repository=repository, kind=kind, subject=subject, remote_id=0, digest=text, at=now)
        )


def _subject(target: Target) -> str:
    return f"{target.ref.number}:opened" if isinstance(target, Pull) else f"{target.head_sha}:opened"


def _owner(check: OpenCheck) -> int:
    """The pull request that wrote a check last, 0 for a merge group."""
    own = read_check_id(check.external_id)
    return own.number if own is not None else 0


def _opened(check: CheckRun) -> OpenCheck:
    return OpenCheck(check.name, check.head_sha, check.external_id)

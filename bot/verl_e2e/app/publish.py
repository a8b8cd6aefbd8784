"""Write what was decided on GitHub, each thing once: check runs, the card, answers; and see that it stays."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.core.pulls.deliveries import Message
from verl_e2e.core.pulls.forge import CheckRun, CheckStatus, Conclusion, OpenCheck, read_check_id
from verl_e2e.core.pulls.ledger import Posted, RecordedCommand
from verl_e2e.core.pulls.pull import Pull, PullRef, PullState, Target, repository_of
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.pull_card import MARKER
from verl_e2e.ports import Checks, Clock, Comment, Conversation, ForgeError, Ledger, Outbox, UncertainError

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


CARD, REPLY = "card", "reply"
MAX_REPLY = 20_000


@dataclass(frozen=True, slots=True)
class CommentPublisher:
    """Writes the card, and each reply and reaction once."""

    creations: Creations
    app_id: int | None
    clock: Clock
    conversation: Conversation
    ledger: Ledger

    def post_card(self, ref: PullRef, body: str, interval_s: int) -> float:
        """Bring the one card up to date; gives in how many seconds it may be edited, 0 when it says it now.

        One that was deleted by hand is made again; a comment of someone else with our marker is never touched.
        """
        posted = self.ledger.posted(ref.repository, CARD, str(ref.number))
        digest = digest_of(body)
        creation = Creation(ref.repository, f"{ref.number}:card")
        if posted is not None and posted.digest == digest:
            return self._delete_doubles(creation, ref, posted.remote_id)
        if posted is not None:
            wait = posted.at + timedelta(seconds=interval_s) - self.clock.now()
            if wait > timedelta(0):
                return wait.total_seconds()
        known = posted.remote_id if posted is not None else 0
        if not known or not self.conversation.edit(ref, known, body):
            gone = known

            def find() -> int:
                return next((card for card in self._cards(ref) if card != gone), 0)

            outcome = self.creations.create_once(creation, find, lambda: self.conversation.comment(ref, body))
            if not outcome.id:
                return outcome.wait_s
            known = outcome.id
            if outcome.found:
                self.conversation.edit(ref, known, body)
        self.ledger.put_posted(posted_now(ref.repository, CARD, str(ref.number), known, digest, self.clock.now()))
        return self._delete_doubles(creation, ref, known)

    def _delete_doubles(self, creation: Creation, ref: PullRef, kept_id: int) -> float:
        """Delete the cards that were created in addition to the one that we go on with; gives when to look again."""

        def delete() -> None:
            for card in self._cards(ref):
                if card != kept_id:
                    self.conversation.delete(ref, card)

        return self.creations.end_doubles_of(creation, delete)

    def _cards(self, ref: PullRef) -> tuple[int, ...]:
        """The ids of the cards of ours that GitHub lists, oldest first."""
        there = self.conversation.comments(ref)
        return tuple(comment.id for comment in there if comment.body.startswith(MARKER) and self._is_ours(comment))

    def _is_ours(self, comment: Comment) -> bool:
        return comment.author_is_app and (self.app_id is None or comment.app_id in {None, self.app_id})

    def reply(self, ref: PullRef, subject: str, body: str) -> None:
        """Answer with one comment, once for each subject; ForgeError."""
        if self.ledger.posted(ref.repository, REPLY, f"{ref.number}:{subject}") is not None:
            return
        marker = f"<!-- verl-e2e:reply:{subject} -->"

        def find() -> int:
            there = self.conversation.comments(ref)
            return next((item.id for item in there if item.body.startswith(marker) and self._is_ours(item)), 0)

        def create() -> int:
            return self.conversation.comment(ref, f"{marker}\n{body[:MAX_REPLY]}")

        outcome = self.creations.create_once(Creation(ref.repository, f"{ref.number}:{subject}:reply"), find, create)
        if not outcome.id:
            raise ForgeError("a reply may be there that GitHub does not list yet", passing=True, wait_s=outcome.wait_s)
        self.ledger.put_posted(
            posted_now(ref.repository, REPLY, f"{ref.number}:{subject}", outcome.id, digest_of(body), self.clock.now())
        )

    def write(self, message: Message) -> None:
        """Write a message on GitHub; ForgeError. Again changes nothing."""
        ref = PullRef(message.repository, message.number)
        if message.reaction:
            self.conversation.react(ref, message.comment_id, message.reaction)
        else:
            self.reply(ref, _posted_as(message).partition(":")[2], message.body)


@dataclass(frozen=True, slots=True)
class Messages:
    """Writes a reply in addition to card and checks: kept first, and written when nothing more important waits."""

    comments: CommentPublisher
    clock: Clock
    ledger: Ledger
    outbox: Outbox | None = None

    def say(self, message: Message) -> None:
        """Have a message written, once for each subject; without an outbox at once."""
        if self.outbox is None:
            self.comments.write(message)
        else:
            self.outbox.put(message, self.clock.now())

    def was_said(self, message: Message) -> bool:
        """Whether a message with this subject waits or was written."""
        if self.outbox is not None and self.outbox.holds(message.repository, message.subject):
            return True
        return self.ledger.posted(message.repository, REPLY, _posted_as(message)) is not None


def _posted_as(message: Message) -> str:
    return message.subject.removeprefix("reply:")


# How long what stands on GitHub is believed without being read. Two requests for a pull request.
BELIEVED = timedelta(minutes=30)
# The ledger's `at` is when GitHub was read, `digest` the source of the last `status` by then, or `_TOUCHED`.
_READ, _TOUCHED = "read", "touched"


@dataclass(frozen=True, slots=True)
class PostRestorer:
    """Finds out what of ours someone edited, hid or deleted."""

    check_posts: CheckPublisher
    checks: Checks
    clock: Clock
    conversation: Conversation
    ledger: Ledger

    def touched(self, ref: PullRef) -> None:
        """Someone touched a comment of ours: the next look reads what is there."""
        self._remember(ref, _TOUCHED)

    def restore(self, target_state: TargetState, checks: tuple[CheckRun, ...], card: str) -> None:
        """Forget what GitHub does not show as it should, when it is time to read it."""
        target = target_state.target
        if not isinstance(target, Pull):
            return
        asked = [
            entry.source
            for entry in target_state.entries
            if isinstance(entry, RecordedCommand) and entry.verb == "status"
        ]
        latest = asked[-1] if asked else ""
        known = self.ledger.posted(target.ref.repository, _READ, f"{target.ref.number}:read")
        if known is not None and known.digest == latest and self.clock.now() - known.at < BELIEVED:
            return
        if known is not None or latest:
            self._read_card(target.ref, card)
            self._read_checks(target, checks)
        self._remember(target.ref, latest)

    def _read_card(self, ref: PullRef, wanted: str) -> None:
        posted = self.ledger.posted(ref.repository, CARD, str(ref.number))
        if posted is None:
            return
        found = self.conversation.read(ref, posted.remote_id)
        if found is not None and found.minimized:
            # No way leads back but to write it again in another place.
            self.conversation.delete(ref, found.id)
        if found is None or found.minimized or not _is_same_text(found.body, wanted):
            self.ledger.put_posted(posted.model_copy(update={"digest": ""}))

    def _read_checks(self, target: Target, wanted: tuple[CheckRun, ...]) -> None:
        repository = repository_of(target)
        there = {check.id: check for check in self.checks.check_runs(repository, target.head_sha)}
        for check in wanted:
            posted = self.ledger.posted(repository, CHECK, check_subject(check.head_sha, check.name))
            if posted is None or check.head_sha != target.head_sha:
                continue
            found = there.get(posted.remote_id)
            if found is None or not _says_the_same(found, check):
                self.check_posts.forget_check(repository, check.head_sha, check.name)

    def _remember(self, ref: PullRef, digest: str) -> None:
        subject, now = f"{ref.number}:read", self.clock.now()
        self.ledger.put_posted(
            Posted(repository=ref.repository, kind=_READ, subject=subject, remote_id=0, digest=digest, at=now)
        )


def _says_the_same(found: CheckRun, wanted: CheckRun) -> bool:
    states = (found.status, found.conclusion) == (wanted.status, wanted.conclusion)
    texts = ((found.title, wanted.title), (found.summary, wanted.summary), (found.text, wanted.text))
    return states and all(_is_same_text(old, new) for old, new in texts)


def _is_same_text(found: str, wanted: str) -> bool:
    """Whether GitHub keeps the text, which it may give other line ends."""
    return _plain(found) == _plain(wanted)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()

"""Write what was decided on GitHub, each thing once: check runs, the card, answers; and see that it stays."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from threading import Lock

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.known_targets import Grants, KnownTargets
from verl_e2e.core.model.access import Capability
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import Granted
from verl_e2e.core.pulls.deliveries import Posting, reply_to
from verl_e2e.core.pulls.forge import (
    CheckRun,
    CheckStatus,
    Conclusion,
    OpenCheck,
    Pull,
    PullRef,
    PullState,
    Target,
    read_check_id,
    repository_of,
)
from verl_e2e.core.pulls.ledger import Creation, CreationStep, OpenChecks, OpenHeads, Posted, ReadPosts, RecordedCommand
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.command_text import render_help
from verl_e2e.core.report.pull_card import MARKER
from verl_e2e.core.text.escape import fence_for, fenced_row
from verl_e2e.ports import Checks, Clock, Comment, Conversation, ForgeError, Ledger, Outbox, UncertainError

# What was created twice is looked for after one and after four times the lag.
_LOOKS = (1, 4)


@dataclass(frozen=True, slots=True)
class Created:
    """What became of something that there is to be once."""

    id: int = 0
    """GitHub's id of the thing, 0 while no one can know whether it is there."""
    found: bool = False
    """Whether it was there before, so that it may have to be brought up to date."""
    wait_s: float = 0.0
    """In how many seconds to ask again, when there is no id."""


@dataclass(frozen=True, slots=True)
class Creations:
    """What we create on GitHub, each once; a thing is named by its repository and the subject of its note.

    With a lag of 0 nothing is written down: a process waits by itself until lists show what it made.
    """

    clock: Clock
    lag_s: float
    ledger: Ledger

    def create_once(self, repository: str, subject: str, find: Callable[[], int], create: Callable[[], int]) -> Created:
        """Find the thing, or create it, or wait; raises what `find` and `create` raise, but for UncertainError."""
        if known := find():
            self.settle(repository, subject)
            return Created(known, found=True)
        if (wait_s := self.unsettled_s(repository, subject)) > 0:
            return Created(wait_s=wait_s)
        self.begin(repository, subject)
        try:
            made = create()
        except UncertainError:
            if not self.lag_s:
                raise
            self.note_doubt(repository, subject)
            return Created(wait_s=self.lag_s)
        except Exception:
            self.settle(repository, subject)
            raise
        self.note_made(repository, subject)
        return Created(made)

    def begin(self, repository: str, subject: str) -> None:
        """Write down that a thing is about to be created."""
        kept = self._kept(repository, subject)
        doubts = 0 if kept is None else kept.doubts + (kept.step is not CreationStep.SETTLED)
        if self.lag_s:
            now = self.clock.now()
            self.ledger.put_note(
                Creation(repository=repository, subject=subject, at=now, step=CreationStep.ASKED, doubts=doubts)
            )

    def note_doubt(self, repository: str, subject: str) -> None:
        """The attempt ended without an answer: it may have had its effect until now."""
        self._change(self._kept(repository, subject), step=CreationStep.ASKED, at=self.clock.now())

    def note_made(self, repository: str, subject: str) -> None:
        """It was created. The caller keeps its id afterwards, and may be killed before: so lists are waited for."""
        self._change(self._kept(repository, subject), step=CreationStep.MADE, at=self.clock.now())

    def settle(self, repository: str, subject: str) -> None:
        """A list shows it, or the last attempt made nothing; those before it may still have left something."""
        if self.was_begun(repository, subject):
            self._change(self._kept(repository, subject), step=CreationStep.SETTLED, looks=0)

    def was_begun(self, repository: str, subject: str) -> bool:
        """Whether the thing may have been created, and its id not be known."""
        kept = self._kept(repository, subject)
        return kept is not None and kept.step is not CreationStep.SETTLED

    def unsettled_s(self, repository: str, subject: str) -> float:
        """For how many seconds a list that does not show the thing cannot be believed."""
        kept = self._kept(repository, subject)
        if kept is None or kept.step is CreationStep.SETTLED:
            return 0.0
        now = self.clock.now()
        if kept.at > now:
            # The clock was set back: count from now.
            self._change(kept, at=now)
            return self.lag_s
        return max(0.0, (kept.at + timedelta(seconds=self.lag_s) - now).total_seconds())

    def end_doubles_of(self, repository: str, subject: str, end: Callable[[], None]) -> float:
        """Have doubles of the thing ended, by `end`, when it is time; gives in how many seconds to come again, else 0.

        That it was done is written down afterwards, so that a kill in between lets it be done again.
        """
        kept = self._kept(repository, subject)
        if kept is None or not kept.doubts or kept.step is CreationStep.ASKED:
            return 0.0
        age_s = (self.clock.now() - kept.at).total_seconds()
        due_s = _LOOKS[kept.looks] * self.lag_s
        if age_s < due_s:
            return min(due_s - age_s, due_s)
        end()
        if kept.looks + 1 == len(_LOOKS):
            self._change(kept, step=CreationStep.SETTLED, doubts=0, looks=0)
            return 0.0
        self._change(kept, step=CreationStep.SETTLED, looks=kept.looks + 1)
        return max(_LOOKS[-1] * self.lag_s - age_s, 1.0)

    def _kept(self, repository: str, subject: str) -> Creation | None:
        return self.ledger.note(Creation, repository, subject) if self.lag_s else None

    def _change(self, kept: Creation | None, **changes: object) -> None:
        if kept is not None:
            self.ledger.put_note(kept.model_copy(update=changes))


REPLACED = "Created twice; the other check run of this name counts"


@dataclass(frozen=True, slots=True)
class CheckPublisher:
    """Brings check runs up to date, each written once, and remembers which may be without a conclusion on GitHub."""

    creations: Creations
    known: KnownTargets
    app_id: int | None
    checks: Checks
    clock: Clock
    ledger: Ledger
    # Held while a remembered list is read and changed, for several looks may share it.
    lock: AbstractContextManager[object] = field(default_factory=Lock)

    def post_checks(self, target: Target, checks: tuple[CheckRun, ...]) -> float:
        """Bring check runs up to date; of an earlier head only those that we wrote before.

        What is about to be shown without a conclusion is written down first, so that it gets one whatever happens.
        Gives in how many seconds one may be written that may be there already, 0 for none.
        """
        listed: dict[str, tuple[CheckRun, ...]] = {}

        def there(sha: str) -> tuple[CheckRun, ...]:
            if sha not in listed:
                listed[sha] = self.checks.check_runs(repository_of(target), sha)
            return listed[sha]

        still_open = [check for check in checks if check.status != CheckStatus.COMPLETED]
        self._note_checks(target, still_open, concluded=False)
        outcomes = [(check, *self._post_check(target, check, there)) for check in checks]
        written = [check for check, known, _ in outcomes if known]
        done = [check for check in written if check.status == CheckStatus.COMPLETED]
        self._note_checks(target, done, concluded=True)
        return min((wait_s for _, _, wait_s in outcomes if wait_s > 0), default=0.0)

    def _post_check(
        self, target: Target, check: CheckRun, there: Callable[[str], tuple[CheckRun, ...]]
    ) -> tuple[bool, float]:
        """Whether it is known to be up to date, and in how many seconds to look at it again, 0 for never."""
        repository, creation = repository_of(target), f"{check.head_sha}:{check.name}:check"
        posted = self.posted(repository, check.head_sha, check.name)
        digest = content_digest(asdict(check))
        if posted is not None and posted.digest == digest:
            return True, self._hide_doubles(repository, check, posted.remote_id)

        def find() -> int:
            return max((run.id for run in there(check.head_sha) if self._is_same(run, check)), default=0)

        if posted is not None:
            outcome = Created(posted.remote_id, found=True)
        elif check.head_sha != target.head_sha:
            outcome = Created(find(), found=True)
        else:
            outcome = self.creations.create_once(
                repository, creation, find, lambda: self.checks.write_check(repository, check)
            )
        if not outcome.id:
            return not outcome.wait_s, outcome.wait_s
        if outcome.found:
            self.checks.write_check(repository, replace(check, id=outcome.id))
        subject, now = f"{check.head_sha}:{check.name}", self.clock.now()
        self.ledger.put_note(
            Posted(repository=repository, subject=subject, remote_id=outcome.id, digest=digest, at=now)
        )
        return True, self._hide_doubles(repository, check, outcome.id)

    def _hide_doubles(self, repository: str, check: CheckRun, kept_id: int) -> float:
        """Close and rename what was created in addition to the check run that we keep; gives when to try again."""

        def hide() -> None:
            for found in self.checks.same_name(repository, check.head_sha, check.name):
                if self._is_same(found, check) and found.id != kept_id:
                    double = replace(
                        check, id=found.id, name=f"{check.name} (replaced)", external_id="", title=REPLACED
                    )
                    closed = replace(double, status=CheckStatus.COMPLETED, conclusion=Conclusion.CANCELLED, actions=())
                    self.checks.write_check(repository, replace(closed, summary=REPLACED, annotations=()))

        return self.creations.end_doubles_of(repository, f"{check.head_sha}:{check.name}:check", hide)

    def _is_same(self, found: CheckRun, wanted: CheckRun) -> bool:
        ours = self.app_id is None or found.app_id == self.app_id
        return ours and (found.name, found.external_id) == (wanted.name, wanted.external_id)

    def posted(self, repository: str, head_sha: str, name: str) -> Posted | None:
        """What stands on GitHub for a check run."""
        return self.ledger.note(Posted, repository, f"{head_sha}:{name}")

    def forget_check(self, repository: str, head_sha: str, name: str) -> None:
        """GitHub reset a check run of ours: what it says now is not known any more, so it is written again."""
        posted = self.posted(repository, head_sha, name)
        if posted is not None:
            self.ledger.put_note(posted.model_copy(update={"digest": ""}))

    def open_checks(self, target: Target) -> tuple[OpenCheck, ...]:
        """The checks that may be open and that this target has to close, on whatever head.

        Those on a head that other open pull requests have are left to them, but for its own on its own head.
        """
        found: list[OpenCheck] = []
        for head_sha in self._heads(target):
            checks = self._open_on(repository_of(target), head_sha)
            others = self.known.others_with(target.ref, head_sha) if isinstance(target, Pull) and checks else ()
            if not others:
                found += checks
            elif head_sha == target.head_sha and isinstance(target, Pull) and target.state is PullState.OPEN:
                theirs = {pull.ref.number for pull in others}
                # The pull request that wrote a check last, none for a merge group.
                owners = [(check, read_check_id(check.external_id)) for check in checks]
                found += [check for check, own in owners if own is None or own.number not in theirs]
        return tuple(sorted(found, key=lambda check: (check.head_sha, check.name)))

    def any_open(self, target: Target) -> bool:
        """Whether something of this target may be open."""
        return any(self._open_on(repository_of(target), head_sha) for head_sha in self._heads(target))

    def _note_checks(self, target: Target, checks: Iterable[CheckRun], *, concluded: bool) -> None:
        """These are about to be written without a conclusion, or were written with one."""
        repository, now = repository_of(target), self.clock.now()
        by_head: dict[str, list[OpenCheck]] = {}
        for check in checks:
            by_head.setdefault(check.head_sha, []).append(OpenCheck(check.name, check.head_sha, check.external_id))
        with self.lock:
            for head_sha, written in by_head.items():
                before = {check.name: check for check in self._open_on(repository, head_sha)}
                after = before | {check.name: check for check in written}
                if concluded:
                    names = {check.name for check in written}
                    after = {name: check for name, check in before.items() if name not in names}
                if after != before:
                    rows = tuple(sorted((check.name, check.external_id) for check in after.values()))
                    note = OpenChecks(repository=repository, subject=f"{head_sha}:opened", at=now, checks=rows)
                    self.ledger.put_note(note)
            kept = self._kept_heads(target)
            heads = [*dict.fromkeys((*kept, *(by_head if not concluded else ())))]
            heads = [head_sha for head_sha in heads if self._open_on(repository, head_sha)]
            if heads != kept:
                subject = _subject_of_heads(target)
                self.ledger.put_note(OpenHeads(repository=repository, subject=subject, at=now, heads=tuple(heads)))

    def _open_on(self, repository: str, head_sha: str) -> list[OpenCheck]:
        kept = self.ledger.note(OpenChecks, repository, f"{head_sha}:opened")
        return [OpenCheck(name, head_sha, external_id) for name, external_id in kept.checks] if kept else []

    def _heads(self, target: Target) -> list[str]:
        """The heads where something of the target may be open, the one that it has now among them."""
        return list(dict.fromkeys((*self._kept_heads(target), target.head_sha)))

    def _kept_heads(self, target: Target) -> list[str]:
        kept = self.ledger.note(OpenHeads, repository_of(target), _subject_of_heads(target))
        return list(kept.heads) if kept is not None else []


def _subject_of_heads(target: Target) -> str:
    return f"{target.ref.number}:opened" if isinstance(target, Pull) else f"{target.head_sha}:opened"


def content_digest(value: object) -> str:
    """What a content is remembered by."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


MAX_REPLY = 20_000


@dataclass(frozen=True, slots=True)
class CommentPublisher:
    """Writes the card, and each reply and reaction once."""

    creations: Creations
    app_id: int | None
    clock: Clock
    conversation: Conversation
    ledger: Ledger
    # Keeps messages until nothing more important waits; without one they are written at once.
    outbox: Outbox | None = None

    def post_card(self, ref: PullRef, body: str, interval_s: int) -> float:
        """Bring the one card up to date; gives in how many seconds it may be edited, 0 when it says it now.

        One that was deleted by hand is made again; a comment of someone else with our marker is never touched.
        """
        posted, digest = self.posted_card(ref), content_digest(body)
        if posted is not None and posted.digest == digest:
            return self._delete_doubles(ref, posted.remote_id)
        if posted is not None:
            wait = posted.at + timedelta(seconds=interval_s) - self.clock.now()
            if wait > timedelta(0):
                return wait.total_seconds()
        known = posted.remote_id if posted is not None else 0
        if not known or not self.conversation.edit(ref, known, body):
            gone = known

            def find() -> int:
                return next((card for card in self._cards(ref) if card != gone), 0)

            outcome = self.creations.create_once(
                ref.repository, _subject_of_card(ref), find, lambda: self.conversation.comment(ref, body)
            )
            if not outcome.id:
                return outcome.wait_s
            known = outcome.id
            if outcome.found:
                self.conversation.edit(ref, known, body)
        self._note(ref, _subject_of_card(ref), known, digest)
        return self._delete_doubles(ref, known)

    def posted_card(self, ref: PullRef) -> Posted | None:
        """What stands on GitHub for the card."""
        return self.ledger.note(Posted, ref.repository, _subject_of_card(ref))

    def _delete_doubles(self, ref: PullRef, kept_id: int) -> float:
        """Delete the cards that were created in addition to the one that we go on with; gives when to look again."""

        def delete() -> None:
            for card in self._cards(ref):
                if card != kept_id:
                    self.conversation.delete(ref, card)

        return self.creations.end_doubles_of(ref.repository, _subject_of_card(ref), delete)

    def _cards(self, ref: PullRef) -> tuple[int, ...]:
        """The ids of the cards of ours that GitHub lists, oldest first."""
        there = self.conversation.comments(ref)
        return tuple(comment.id for comment in there if comment.body.startswith(MARKER) and self._is_ours(comment))

    def _is_ours(self, comment: Comment) -> bool:
        return comment.author_is_app and (self.app_id is None or comment.app_id in {None, self.app_id})

    def _note(self, ref: PullRef, subject: str, remote_id: int, digest: str) -> None:
        now = self.clock.now()
        self.ledger.put_note(
            Posted(repository=ref.repository, subject=subject, remote_id=remote_id, digest=digest, at=now)
        )

    def say(self, message: Posting) -> None:
        """Have a message written, once for each subject."""
        if self.outbox is None:
            self.write(message)
        else:
            self.outbox.put(message, self.clock.now())

    def was_said(self, message: Posting) -> bool:
        """Whether a message with this subject waits or was written."""
        if self.outbox is not None and self.outbox.holds(message.repository, message.subject):
            return True
        return self.ledger.note(Posted, message.repository, _subject_of_reply(message)) is not None

    def write(self, message: Posting) -> None:
        """Write a message on GitHub; ForgeError. Again changes nothing."""
        ref = PullRef(message.repository, message.number)
        if message.reaction:
            self.conversation.react(ref, message.comment_id, message.reaction)
            return
        subject = _subject_of_reply(message)
        if self.ledger.note(Posted, ref.repository, subject) is not None:
            return
        marker = f"<!-- verl-e2e:reply:{subject.partition(':')[2]} -->"

        def find() -> int:
            there = self.conversation.comments(ref)
            return next((item.id for item in there if item.body.startswith(marker) and self._is_ours(item)), 0)

        def create() -> int:
            return self.conversation.comment(ref, f"{marker}\n{message.body[:MAX_REPLY]}")

        outcome = self.creations.create_once(ref.repository, f"{subject}:reply", find, create)
        if not outcome.id:
            raise ForgeError("a reply may be there that GitHub does not list yet", passing=True, wait_s=outcome.wait_s)
        self._note(ref, subject, outcome.id, content_digest(message.body))


def _subject_of_card(ref: PullRef) -> str:
    return f"{ref.number}:card"


def _subject_of_reply(message: Posting) -> str:
    return message.subject.removeprefix("reply:")


# How long what stands on GitHub is believed without being read. Two requests for a pull request.
BELIEVED = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class PostRestorer:
    """Finds out what of ours someone edited, hid or deleted."""

    check_posts: CheckPublisher
    comments: CommentPublisher
    clock: Clock
    ledger: Ledger

    def touched(self, ref: PullRef) -> None:
        """Someone touched a comment of ours: the next look reads what is there."""
        self._remember(ref, touched=True)

    def restore(self, target_state: TargetState, checks: tuple[CheckRun, ...], card: str) -> None:
        """Forget what GitHub does not show as it should, when it is time to read it."""
        target = target_state.target
        if not isinstance(target, Pull):
            return
        commands = (entry for entry in target_state.entries if isinstance(entry, RecordedCommand))
        asked = [command.source for command in commands if command.verb == "status"]
        latest = asked[-1] if asked else ""
        known = self.ledger.note(ReadPosts, target.ref.repository, _subject_of_reading(target.ref))
        is_read = known is not None and not known.touched and known.status == latest
        if is_read and known is not None and self.clock.now() - known.at < BELIEVED:
            return
        if known is not None or latest:
            self._compare(target, checks, card)
        self._remember(target.ref, status=latest)

    def _compare(self, target: Pull, wanted: tuple[CheckRun, ...], card: str) -> None:
        """Read what is there, and forget what does not say what it should."""
        ref, conversation, publisher = target.ref, self.comments.conversation, self.check_posts
        posted = self.comments.posted_card(ref)
        if posted is not None:
            found = conversation.read(ref, posted.remote_id)
            if found is not None and found.minimized:
                # No way leads back but to write it again in another place.
                conversation.delete(ref, found.id)
            if found is None or found.minimized or not _is_same_text(found.body, card):
                self.ledger.put_note(posted.model_copy(update={"digest": ""}))
        there = {check.id: check for check in publisher.checks.check_runs(ref.repository, target.head_sha)}
        for check in wanted:
            of_check = publisher.posted(ref.repository, check.head_sha, check.name)
            if of_check is None or check.head_sha != target.head_sha:
                continue
            shown = there.get(of_check.remote_id)
            texts = ("title", "summary", "text")
            if (
                shown is None
                or (shown.status, shown.conclusion) != (check.status, check.conclusion)
                or not all(_is_same_text(getattr(shown, name), getattr(check, name)) for name in texts)
            ):
                publisher.forget_check(ref.repository, check.head_sha, check.name)

    def _remember(self, ref: PullRef, *, status: str = "", touched: bool = False) -> None:
        subject, now = _subject_of_reading(ref), self.clock.now()
        self.ledger.put_note(
            ReadPosts(repository=ref.repository, subject=subject, at=now, status=status, touched=touched)
        )


def _subject_of_reading(ref: PullRef) -> str:
    return f"{ref.number}:read"


def _is_same_text(found: str, wanted: str) -> bool:
    """Whether GitHub keeps the text, which it may give other line ends."""
    return found.replace("\r\n", "\n").strip() == wanted.replace("\r\n", "\n").strip()


# Questions on one pull request that are answered: to someone without a role, to all of them together, and to
# someone who may plan. Nobody's questions use up what is there for those with a role.
MAX_EACH, MAX_TOGETHER, MAX_WITH_ROLE = 10, 40, 200
NO_MORE = (
    "So many questions of yours were answered on this pull request that this one and later ones are not; "
    "ask someone with a role in the repository, or use `verl-e2e explain` on your machine.\n"
)
MAX_EXPLAINED_ROWS = 80
TOO_MANY = "There are more, left out here; name a symbol as PATH:SYMBOL."


def answer_questions(target_state: TargetState, comments: CommentPublisher, grants: Grants, analysis: Analysis) -> None:
    """Answer what was asked on this pull request, each question once, within bounds for each person."""
    target = target_state.target
    if not isinstance(target, Pull):
        return
    asked = [
        entry
        for entry in target_state.entries
        if isinstance(entry, RecordedCommand) and entry.verb in {"help", "explain"}
    ]
    for place, question in enumerate(asked):
        where = question.repository, question.number, question.source
        message = reply_to(*where, "", person=question.by_person, to=question.actor)
        if comments.was_said(message):
            continue
        left = _answers_left(question, asked[:place], target, target_state.policy, grants)
        if left > 0:
            body = render_help()
            if question.verb == "explain":
                path, _, symbol = question.arguments[0].partition(":")
                rows: tuple[str, ...]
                try:
                    found = analysis.explain(target, target_state.policy, path, symbol)
                    rows = tuple(row for item in found for row in render_explanation(item).splitlines())
                    rows = (*rows[:MAX_EXPLAINED_ROWS], *((TOO_MANY,) if len(rows) > MAX_EXPLAINED_ROWS else ()))
                except UserError as error:
                    rows = (str(error),)
                rows = tuple(fenced_row(row) for row in rows)
                fence = fence_for(rows)
                body = "\n".join((f"{fence}text", *rows, fence)) + "\n"
            comments.say(replace(message, body=body))
        elif left == 0:
            comments.say(replace(message, body=NO_MORE))


def _answers_left(
    question: RecordedCommand, before: list[RecordedCommand], pull: Pull, policy: Policy, grants: Grants
) -> int:
    """How many questions of a person may still be answered; 0 is said to them, and below that nothing is."""
    asked = Counter(earlier.actor.lower() for earlier in before)
    own = asked[question.actor.lower()]
    # What was asked beyond the bound was not answered and takes nothing from others.
    left = min(MAX_EACH - own, MAX_TOGETHER - sum(min(count, MAX_EACH) for count in asked.values()))
    if left > 0:
        return left
    if isinstance(grants.allowed(question.actor, Capability.PLAN, pull, policy.capabilities), Granted):
        return MAX_WITH_ROLE - own
    is_said_once = own > MAX_EACH or (left < MAX_EACH - own and own > 0)
    return -1 if is_said_once else 0

"""Write our comments, each once: the card, answers and reactions; what is not urgent waits in the outbox."""

from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.create_once import Creation, Creations
from verl_e2e.app.publish_checks import digest_of, posted_now
from verl_e2e.core.pulls.messages import Message
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.core.report.pull_card import MARKER
from verl_e2e.ports import Clock, Comment, Conversation, ForgeError, Ledger, Outbox

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

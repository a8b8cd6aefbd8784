"""A comment: its commands are kept, and one of ours that someone changed is put right."""

from collections.abc import Callable
from dataclasses import dataclass

from verl_e2e.app.keep_command import CommandKeeper
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.look_up_person import Permissions
from verl_e2e.app.publish_comments import Messages
from verl_e2e.app.restore_posts import PostRestorer
from verl_e2e.core.pulls.commands import CommandLine, parse
from verl_e2e.core.pulls.messages import reaction_to, reply_to
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.webhook_events import (
    CommentEvent,
)

HEARD, NOT_UNDERSTOOD = "eyes", "confused"


@dataclass(frozen=True, slots=True)
class CommentEvents:
    """Acts on what happens to comments."""

    commands: CommandKeeper
    heads: KnownHeads
    messages: Messages
    restorer: PostRestorer
    app_id: int | None
    permissions: Permissions
    read_commands: Callable[[str], tuple[CommandLine, ...]]

    def comment(self, event: CommentEvent) -> tuple[Reference, ...]:
        """The commands of a comment, by the person who wrote it: an edited or relayed one is nobody's word."""
        comment, ref = event.comment, PullRef(event.repository.full_name, event.issue.number)
        via = comment.performed_via_github_app
        ours = via is not None and self.app_id is not None and via.id == self.app_id
        if event.action != "created":
            return self._touched(event, ours=ours)
        edited = comment.updated_at != comment.created_at
        if ours or edited or event.sender.login != comment.user.login:
            return ()
        parsed = parse(self.read_commands(comment.body))
        if not parsed:
            return ()
        pull = self.heads.pull(ref)
        if pull is None:
            return ()
        person = self.permissions.is_member(event.repository.full_name, comment.user.login, comment.author_association)
        place, who = (ref.repository, ref.number), comment.user.login
        self.messages.say(reaction_to(*place, comment.id, HEARD, person=person, to=who))
        wrong = [self.commands.keep_line(item, event, pull, person=person) for item in parsed]
        words = [text for text in wrong if text]
        if words:
            self.messages.say(reaction_to(*place, comment.id, NOT_UNDERSTOOD, person=person, to=who))
            self.messages.say(reply_to(*place, f"comment:{comment.id}", "\n".join(words), person=person, to=who))
        return self.heads.with_sharing(ref, (pull.head_sha,))

    def _touched(self, event: CommentEvent, *, ours: bool) -> tuple[Reference, ...]:
        """Someone else edited or deleted a comment: of ours it is to be put right, and our own edits are ignored."""
        if not ours or event.sender.login == event.comment.user.login:
            return ()
        ref = PullRef(event.repository.full_name, event.issue.number)
        self.restorer.touched(ref)
        return (ref,)

"""Say something beside card and checks: kept first, and written when nothing more important waits."""

from verl_e2e.app.publish import REPLY, reply
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.messages import Message
from verl_e2e.core.pulls.pull import PullRef


def say(message: Message, rooms: AppRooms) -> None:
    """Have a message written, once for each subject; without an outbox at once."""
    if rooms.outbox is None:
        write(message, rooms)
    else:
        rooms.outbox.put(message, rooms.clock.now())


def was_said(message: Message, rooms: AppRooms) -> bool:
    """Whether a message with this subject waits or was written."""
    if rooms.outbox is not None and rooms.outbox.holds(message.repository, message.subject):
        return True
    return rooms.ledger.posted(message.repository, REPLY, _posted_as(message)) is not None


def write(message: Message, rooms: AppRooms) -> None:
    """Write a message on GitHub; ForgeError. Again changes nothing."""
    ref = PullRef(message.repository, message.number)
    if message.reaction:
        rooms.conversation.react(ref, message.comment_id, message.reaction)
    else:
        reply(ref, _posted_as(message).partition(":")[2], message.body, rooms)


def _posted_as(message: Message) -> str:
    return message.subject.removeprefix("reply:")

"""Reactions and replies: what makes two of them one, and whom they wait for."""

import pytest

from tests.core.pulls.entries import NOW
from tests.fakes.events import (
    check_event,
    comment_event,
    group_event,
    pull_event,
    push_event,
    suite_event,
    workflow_event,
)
from verl_e2e.core.pulls.deliveries import (
    OTHERS,
    PEOPLE,
    PUSHES,
    CommentEvent,
    Event,
    PushEvent,
    delivery_lane,
    reaction_to,
    reply_to,
)
from verl_e2e.ports import Comment

REACTION = reaction_to("Octo/bridge", 7, 5, "eyes", person=True)
REPLY = reply_to("Octo/bridge", 7, "comment:5:1", "Hello", person=False)


def test_a_message_is_named_by_what_it_answers_and_waits_for_its_own_kind() -> None:
    assert (REACTION.subject, REACTION.lane) == ("reaction:5:eyes", "octo:people")
    assert (REPLY.subject, REPLY.lane) == ("reply:7:comment:5:1", "octo:others")


def commented(association: str) -> CommentEvent:
    event = comment_event(Comment(5, "alice", author_is_app=False, body="/verl-e2e run", created=NOW, edited=False))
    return event.model_copy(update={"comment": event.comment.model_copy(update={"author_association": association})})


def pushed(ref: str) -> PushEvent:
    return push_event(7).model_copy(update={"ref": ref})


@pytest.mark.parametrize(
    ("event", "kind"),
    (
        (None, ""),
        (pull_event("opened", "h0"), ""),
        (pull_event("labeled", "h0", label="level0"), PEOPLE),
        (group_event("checks_requested", "h0"), ""),
        (workflow_event(5), ""),
        (push_event(7), ""),
        (pushed("refs/heads/main"), PUSHES),
        (suite_event("h0"), PEOPLE),
        (check_event("x", "h0"), PEOPLE),
        (commented("MEMBER"), PEOPLE),
        (commented("NONE"), OTHERS),
    ),
)
def test_whom_a_delivery_waits_for(event: Event | None, kind: str) -> None:
    owner = event.repository.full_name.partition("/")[0].lower() if event is not None else ""
    assert delivery_lane(event) == (f"{owner}:{kind}" if kind else "")

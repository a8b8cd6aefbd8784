"""Events as they are read, and messages as they wait."""

import json
import lzma
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.fakes.places import FIXTURES
from verl_e2e.core.pulls.deliveries import (
    MAX_BODY,
    MODELS,
    OTHERS,
    PEOPLE,
    PUSHES,
    BadDeliveryError,
    CheckRunEvent,
    CommentEvent,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    WebhookEvent,
    delivery_lane,
    parse_event,
    reaction_to,
    reply_to,
)
from verl_e2e.ports import Comment

EXAMPLES = FIXTURES / "webhooks" / "examples.json.xz"
SHOWN: list[dict[str, Any]] = json.loads(lzma.decompress(EXAMPLES.read_bytes()))
PAYLOADS = [(entry["name"], payload) for entry in SHOWN for payload in entry["examples"]]

# The kinds of event in the examples that we act on, with their actions; "" where there is none.
ACTED_ON = {
    ("pull_request", "opened"): 4,
    ("pull_request", "synchronize"): 1,
    ("pull_request", "reopened"): 2,
    ("pull_request", "ready_for_review"): 3,
    ("pull_request", "converted_to_draft"): 3,
    ("pull_request", "closed"): 2,
    ("pull_request", "labeled"): 2,
    ("check_run", "rerequested"): 2,
    ("check_run", "requested_action"): 1,
    ("check_suite", "rerequested"): 2,
    ("merge_group", "checks_requested"): 2,
    ("workflow_run", "completed"): 3,
    ("workflow_job", "waiting"): 1,
    ("workflow_job", "in_progress"): 3,
    ("workflow_job", "completed"): 2,
    ("push", ""): 2,
}


def shown(name: str, action: str = "") -> dict[str, Any]:
    payload = next(p for n, p in PAYLOADS if n == name and p.get("action", "") == action)
    copied: dict[str, Any] = json.loads(json.dumps(payload))
    return copied


def sent(payload: object) -> bytes:
    return json.dumps(payload).encode()


def on_a_pull_request() -> dict[str, Any]:
    payload = shown("issue_comment", "created")
    payload["issue"]["pull_request"] = {"url": "https://api.github.com/repos/o/r/pulls/1"}
    return payload


def test_the_examples_are_all_there() -> None:
    assert (len(SHOWN), len(PAYLOADS)) == (58, 329)


def test_of_all_examples_exactly_those_that_we_act_on_are_read() -> None:
    read: dict[tuple[str, str], int] = {}
    for name, payload in PAYLOADS:
        if parse_event(name, sent(payload)) is not None:
            key = (name, payload.get("action", ""))
            read[key] = read.get(key, 0) + 1
    assert read == ACTED_ON


def test_a_pull_request_tells_which_it_is() -> None:
    payload = shown("pull_request", "labeled")
    event = parse_event("pull_request", sent(payload))
    assert isinstance(event, PullRequestEvent)
    assert event.repository.full_name == payload["repository"]["full_name"]
    assert event.pull_request.number == payload["number"]
    assert event.pull_request.head.sha == payload["pull_request"]["head"]["sha"]
    assert event.label is not None
    assert event.label.name == payload["label"]["name"]


def test_a_comment_counts_on_a_pull_request_alone() -> None:
    event = parse_event("issue_comment", sent(on_a_pull_request()))
    assert isinstance(event, CommentEvent)
    assert event.comment.user.login
    assert parse_event("issue_comment", sent(shown("issue_comment", "created"))) is None


def test_an_edited_comment_is_told_from_a_new_one() -> None:
    payload = on_a_pull_request()
    payload["action"] = "edited"
    event = parse_event("issue_comment", sent(payload))
    assert isinstance(event, CommentEvent)
    assert event.action == "edited"


def test_a_button_tells_what_it_asks() -> None:
    event = parse_event("check_run", sent(shown("check_run", "requested_action")))
    assert isinstance(event, CheckRunEvent)
    assert event.requested_action is not None
    assert event.requested_action.identifier


def test_a_queue_that_gives_up_is_read_too() -> None:
    payload = shown("merge_group", "checks_requested") | {"action": "destroyed"}
    event = parse_event("merge_group", sent(payload))
    assert isinstance(event, MergeGroupEvent)
    assert event.action == "destroyed"


@pytest.mark.parametrize(
    ("ref", "number"),
    [
        ("refs/heads/pull-request/17", 17),
        ("refs/heads/pull-request/0", None),
        ("refs/heads/pull-request/17x", None),
        ("refs/heads/pull-request/17\n", None),
        ("refs/heads/x/pull-request/17", None),
        ("refs/tags/pull-request/17", None),
        ("refs/heads/main", None),
    ],
)
def test_a_push_names_a_pull_request_on_a_mirror_branch_alone(ref: str, number: int | None) -> None:
    payload = shown("push") | {"ref": ref, "after": "a" * 40, "deleted": False}
    event = parse_event("push", sent(payload)) if "\n" not in ref else None
    assert (event.number if isinstance(event, PushEvent) else None) == number


def test_a_removed_mirror_branch_names_none() -> None:
    payload = shown("push") | {"ref": "refs/heads/pull-request/17", "after": "0" * 40, "deleted": True}
    event = parse_event("push", sent(payload))
    assert isinstance(event, PushEvent)
    assert event.number is None


@pytest.mark.parametrize("branch", ["main", "release/1.x", "a#b", "über"])
def test_a_push_tells_which_branch_it_was(branch: str) -> None:
    event = parse_event("push", sent(shown("push") | {"ref": f"refs/heads/{branch}", "after": "a" * 40}))
    assert isinstance(event, PushEvent)
    assert event.branch == branch


@pytest.mark.parametrize("ref", ["refs/heads/a b", "refs/heads/a\n", "refs/heads/", f"refs/heads/{'a' * 501}"])
def test_a_branch_that_git_would_not_take_is_refused(ref: str) -> None:
    with pytest.raises(BadDeliveryError):
        parse_event("push", sent(shown("push") | {"ref": ref, "after": "a" * 40}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"opened"',
        b"\xff\xfe{}",
        b'{"action": NaN}',
        b'{"action": "opened"',
        b'{"number": ' + b"9" * 5_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b" " * (MAX_BODY + 1),
    ],
    ids=["empty", "null", "list", "text", "no UTF-8", "NaN", "cut", "huge number", "deep", "long"],
)
def test_what_is_no_payload_is_refused(body: bytes) -> None:
    with pytest.raises(BadDeliveryError):
        parse_event("pull_request", body)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("action",), None),
        (("action",), ["opened"]),
        (("pull_request", "number"), 10**30),
        (("pull_request", "number"), -1),
        (("pull_request", "number"), True),
        (("pull_request", "number"), "17"),
        (("pull_request", "head", "sha"), "HEAD"),
        (("pull_request", "head", "sha"), "a" * 40 + "\n"),
        (("sender", "login"), "eve\0"),
        (("repository", "full_name"), "../../etc"),
        (("repository", "full_name"), "o/r/../x"),
        (("sender", "login"), "a b"),
        (("sender", "login"), None),
        (("sender",), None),
        (("pull_request",), []),
    ],
)
def test_a_value_that_github_would_not_send_is_refused(where: tuple[str, ...], value: object) -> None:
    payload = shown("pull_request", "opened")
    part = payload
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with pytest.raises(BadDeliveryError) as refused:
        parse_event("pull_request", sent(payload))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_comment_without_an_end_is_refused() -> None:
    payload = on_a_pull_request()
    payload["comment"]["body"] = "x" * 300_000
    with pytest.raises(BadDeliveryError, match=r"comment\.body"):
        parse_event("issue_comment", sent(payload))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [found for key, inner in entries for found in leaves(inner, (*path, key))]


READ = [(name, payload) for name, payload in PAYLOADS if (name, payload.get("action", "")) in ACTED_ON]
ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({}))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(READ), ODD, st.data())
def test_any_one_value_may_be_anything(
    shown_payload: tuple[str, dict[str, Any]], odd: object, data: st.DataObject
) -> None:
    name, payload = shown_payload
    copied = json.loads(json.dumps(payload))
    path = data.draw(st.sampled_from(leaves(copied)))
    part = copied
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = odd
    try:
        event = parse_event(name, sent(copied))
    except BadDeliveryError:
        return
    assert event is None or isinstance(event, MODELS[name])


@given(st.text(), st.binary())
def test_any_bytes_are_survived(name: str, body: bytes) -> None:
    for event_name in (name, "pull_request"):
        try:
            parse_event(event_name, body)
        except BadDeliveryError:
            continue


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
def test_whom_a_delivery_waits_for(event: WebhookEvent | None, kind: str) -> None:
    owner = event.repository.full_name.partition("/")[0].lower() if event is not None else ""
    assert delivery_lane(event) == (f"{owner}:{kind}" if kind else "")

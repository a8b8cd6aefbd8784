"""Comments over real HTTP: all pages, ours known by the App's id, and none twice whatever breaks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.github_adapters import ONE, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, silence, slow_down, used_up
from tests.fakes.github_standin.state import GITHUB_ACTIONS
from tests.fakes.github_standin.world import APP_ID
from verl_e2e.adapters.github.pulls import GithubConversation
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import with_token
from verl_e2e.ports import ForgeError

BODY = "<!-- verl-e2e -->\nfirst  \r\nsecond"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path, timeout_s=1) as made:
        yield made


def test_a_comment_is_written_edited_and_gone(at: GithubAdapters) -> None:
    talk = GithubConversation(at.github)
    comment_id = talk.comment(ONE, BODY)
    assert talk.edit(ONE, comment_id, "another")
    (found,) = talk.comments(ONE)
    assert (found.id, found.body, found.app_id, found.author_is_app) == (comment_id, "another", APP_ID, True)
    at.world.delete_comment(at.world.comments()[0], "ada")
    assert not talk.edit(ONE, comment_id, "another")


def test_a_comment_on_the_third_page_is_found_and_its_author_known_by_id(at: GithubAdapters) -> None:
    for number in range(230):
        at.world.comment("ada", f"word {number}")
    comment_id = GithubConversation(at.github).comment(ONE, BODY)
    found = GithubConversation(at.github).comments(ONE)
    assert len(found) == 231
    assert [comment.id for comment in found if comment.app_id == APP_ID] == [comment_id]
    assert [comment.id for comment in found] == sorted(comment.id for comment in found)


def test_the_apps_marker_under_another_name_is_not_ours(at: GithubAdapters) -> None:
    at.world.comment("eve", BODY)
    at.world.comment("verl-e2e", BODY)
    assert not any(comment.author_is_app or comment.app_id for comment in GithubConversation(at.github).comments(ONE))


def test_a_reaction_twice_is_one(at: GithubAdapters) -> None:
    comment = at.world.comment("ada", "/verl-e2e plan")
    talk = GithubConversation(at.github)
    talk.react(ONE, comment.id, "eyes")
    talk.react(ONE, comment.id, "eyes")
    assert len(comment.reactions) == 1
    talk.react(ONE, 999_999, "eyes")


# What goes wrong with the POST, and whether it had its effect all the same.
BROKEN = [
    server_error(500),
    server_error(502),
    server_error(503),
    server_error(500, When.AFTER),
    server_error(502, When.AFTER),
    server_error(503, When.AFTER),
    cut(),
    cut(When.AFTER),
    silence(1.5),
    slow_down(403),
    slow_down(429),
    Fault(200, message="", when=When.AFTER),
]


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: f"{fault.status}-{fault.when.value}-{fault.delay_s}")
@pytest.mark.parametrize("times", [1, 2])
def test_a_comment_is_written_once_whatever_breaks(at: GithubAdapters, fault: Fault, times: int) -> None:
    at.world.comment("eve", BODY)
    at.world.faults.add(fault, "POST", "/comments", times=times if fault.when is When.BEFORE else 1)
    if fault.status == 200:
        with pytest.raises(ForgeError):
            GithubConversation(at.github).comment(ONE, BODY)
    else:
        GithubConversation(at.github).comment(ONE, BODY)
    assert [comment.app is not None for comment in at.world.comments()] == [False, True]


def test_an_equal_answer_of_before_is_not_taken_for_the_new_one(at: GithubAdapters) -> None:
    talk = GithubConversation(at.github)
    talk.comment(ONE, BODY)
    talk.comments(ONE)
    at.world.faults.add(server_error(502), "POST", "/comments")
    talk.comment(ONE, BODY)
    assert len(at.world.comments()) == 2


def test_an_equal_comment_of_somebody_else_is_not_taken_for_ours(at: GithubAdapters) -> None:
    at.world.faults.add(cut(), "POST", "/comments")
    at.world.comment("eve", BODY)
    GithubConversation(at.github).comment(ONE, BODY)
    assert len(at.world.cards()) == 1


def test_the_wait_is_what_github_asks_for(at: GithubAdapters) -> None:
    at.world.faults.add(slow_down(403, retry_after_s=17), "POST", "/comments")
    at.world.faults.add(slow_down(429, retry_after_s=3), "POST", "/comments")
    GithubConversation(at.github).comment(ONE, BODY)
    assert at.waits.taken == [17, 3]
    assert len(at.world.cards()) == 1


def test_a_limit_that_lasts_is_told_with_its_wait(at: GithubAdapters) -> None:
    talk = GithubConversation(at.github)
    talk.comments(ONE)
    at.world.faults.add(used_up(int(at.world.state.now().timestamp()) + 1_800), times=100)
    with pytest.raises(ForgeError) as message:
        talk.comments(ONE)
    assert message.value.passing
    assert 1_790 <= message.value.wait_s <= 1_800
    assert at.waits.taken == []


def test_a_refusal_is_not_asked_again(at: GithubAdapters) -> None:
    at.world.faults.add(Fault(403, message="Resource not accessible by integration"), "POST", "/comments", times=9)
    with pytest.raises(ForgeError, match="not accessible") as text:
        GithubConversation(at.github).comment(ONE, BODY)
    assert not text.value.passing
    assert at.calls("POST", "/issues/{number}/comments") == 1


def test_a_server_that_stays_broken_ends_the_patience(at: GithubAdapters) -> None:
    at.world.faults.add(server_error(502), times=1_000)
    with pytest.raises(ForgeError) as message:
        GithubConversation(at.github).comments(ONE)
    assert message.value.passing
    assert sum(at.waits.taken) <= 120
    assert sum(at.github.calls.by_answer().values()) <= 10


def test_an_edit_is_repeated_until_it_stands(at: GithubAdapters) -> None:
    talk = GithubConversation(at.github)
    comment_id = talk.comment(ONE, BODY)
    at.world.faults.add(server_error(502, When.AFTER), "PATCH")
    at.world.faults.add(cut(), "PATCH")
    assert talk.edit(ONE, comment_id, "new")
    assert [comment.body for comment in at.world.cards()] == ["new"]


@pytest.mark.parametrize("body", ["", "  \n", "x" * 65_537])
def test_a_body_that_github_refuses_is_not_sent(body: str) -> None:
    github = with_token("t", api_url="http://127.0.0.1:9")
    with pytest.raises(ForgeError, match="characters"):
        GithubConversation(github).comment(ONE, body)
    assert sum(github.calls.by_answer().values()) == 0


def test_a_workflows_own_token_writes_as_github_actions(at: GithubAdapters) -> None:
    at.world.actions_token("ghs_actions", {"issues": "write", "pull_requests": "write"})
    patience = RetryPolicy(sleep=at.waits)
    github = with_token("ghs_actions", app_id=GITHUB_ACTIONS, api_url=at.world.url, retry_policy=patience)
    at.world.faults.add(server_error(502, When.AFTER), "POST", "/comments")
    comment_id = GithubConversation(github).comment(ONE, BODY)
    assert [(item.id, item.app_id) for item in GithubConversation(github).comments(ONE)] == [
        (comment_id, GITHUB_ACTIONS)
    ]
    github.close()

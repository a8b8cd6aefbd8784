"""Answers that GitHub confirms instead of sending them again: they cost no request of the hour, and are never stale."""

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.requester import AnswerKind


def statuses(at: GithubAdapters, ending: str) -> list[int]:
    return [item.status for item in at.world.standin.traffic if item.route.endswith(ending)]


def test_an_unchanged_pull_request_is_confirmed_and_a_changed_one_is_read(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    first = pulls.pull(ONE)
    assert pulls.pull(ONE) == first
    at.world.push(1, {"src/bridge.py": "value = 3\n"})
    pushed = pulls.pull(ONE)
    assert pushed.head_sha == at.world.head(1) != first.head_sha
    assert pulls.pull(ONE) == pushed
    assert statuses(at, "/pulls/{number}") == [200, 304, 200, 304]
    assert at.github.calls.by_answer()["GET", AnswerKind.NOT_MODIFIED] == 2


def test_a_confirmed_page_still_leads_to_the_next(at: GithubAdapters) -> None:
    for number in range(2, 104):
        at.world.open_pull("ada", {"docs/a.md": f"{number}"})
    pulls = GithubPulls(at.github)
    found = pulls.open_pulls(REPOSITORY)
    assert len(found) == 103
    assert pulls.open_pulls(REPOSITORY) == found
    assert statuses(at, "/pulls") == [200, 200, 304, 304]


def test_a_new_token_reads_once_more(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    first = pulls.pull(ONE)
    at.world.state.tokens.clear()
    assert pulls.pull(ONE) == first
    assert pulls.pull(ONE) == first
    assert statuses(at, "/pulls/{number}")[-2:] == [200, 304]


def test_what_is_gone_is_gone_although_it_was_known(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    tip = pulls.tip(REPOSITORY, "main")
    assert pulls.tip(REPOSITORY, "main") == tip is not None
    at.world.delete_branch("main")
    assert pulls.tip(REPOSITORY, "main") is None

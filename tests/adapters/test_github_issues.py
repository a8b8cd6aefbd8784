"""Issues over real HTTP: ours are found by their first line, opened once whatever breaks, and closed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import When, cut, server_error
from tests.fakes.github_standin.state import GITHUB_ACTIONS
from tests.fakes.github_standin.state import Issue as Kept
from verl_e2e.adapters.github.pulls import GithubConversation, GithubIssues, GithubPulls, PublicRepository
from verl_e2e.adapters.github.session import with_token
from verl_e2e.core.pulls.forge import PullRef
from verl_e2e.ports import ForgeError

MARKER = "<!-- verl-e2e:watch:0123456789abcdef -->"
BODY = f"{MARKER}\n\n### It fails\n"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path, timeout_s=20) as made:
        yield made


def test_an_issue_is_opened_found_commented_and_closed(at: GithubAdapters) -> None:
    issues = GithubIssues(at.github)
    assert issues.find(REPOSITORY, MARKER) is None
    number = issues.open(REPOSITORY, "It fails", BODY, ("red", "e2e"))
    found = issues.find(REPOSITORY, MARKER)
    assert found is not None
    assert (found.number, found.body) == (number, BODY)
    assert GithubConversation(at.github).comment(PullRef(REPOSITORY, number), "still")
    assert [label.name for label in at.world.repository.issues[number].labels] == ["red", "e2e"]
    issues.close(REPOSITORY, number)
    issues.close(REPOSITORY, number)
    assert issues.find(REPOSITORY, MARKER) is None
    assert issues.open(REPOSITORY, "It fails again", BODY, ()) == number + 1


def test_the_marker_in_the_issue_of_someone_else_is_not_ours(at: GithubAdapters) -> None:
    at.world.actions_token("t", {"issues": "write"})
    now, user, other = at.world.state.now(), at.world.state.user("eve"), at.world.state.apps[GITHUB_ACTIONS]
    ours = at.world.app
    # A person, a person through our App, and another App.
    for number, (who, through) in enumerate(((user, None), (user, ours), (other.bot, other)), 50):
        values = (at.world.state.new_id(), REPOSITORY, number, "mine", BODY, who, through, now, now)
        at.world.repository.issues[number] = Kept(*values, labels=[])
    assert GithubIssues(at.github).find(REPOSITORY, MARKER) is None


@pytest.mark.parametrize("fault", [cut, lambda: server_error(502, when=When.AFTER)])
def test_an_issue_whose_answer_was_lost_is_not_opened_twice(at: GithubAdapters, fault: object) -> None:
    at.world.faults.add(fault(), "POST", "/issues$")  # type: ignore[operator]
    number = GithubIssues(at.github).open(REPOSITORY, "It fails", BODY, ())
    assert list(at.world.repository.issues) == [number]


def test_an_app_without_the_permission_for_issues_is_told_so(at: GithubAdapters) -> None:
    # That for pull requests is enough for a comment, and not to open an issue.
    at.world.actions_token("t", {"pull_requests": "write", "issues": "read"})
    github = with_token("t", api_url=at.world.url)
    with pytest.raises(ForgeError, match="not accessible"):
        GithubIssues(github).open(REPOSITORY, "It fails", BODY, ())
    github.close()


def test_the_line_of_a_branch_follows_first_parents_over_all_pages(at: GithubAdapters) -> None:
    commits = [at.world.commit({"a.txt": f"{number}".encode()}) for number in range(130)]
    line = PublicRepository(at.github, REPOSITORY).first_parents("main", 125)
    assert [commit.sha for commit in line] == commits[::-1][:125]
    assert [commit.parent for commit in line[:-1]] == [commit.sha for commit in line[1:]]
    assert line[0].sha == GithubPulls(at.github).tip(REPOSITORY, "main")
    assert line[0].author
    assert line[0].subject

"""Pull requests over real HTTP: facts, both names of renames, submodules, contents, long lists, forks that are gone."""

from dataclasses import replace

import pytest

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters, anonymous
from tests.fakes.github_standin.repository import Moved
from verl_e2e.adapters.github.pulls import FileAnswer, GithubPulls, as_changed_path
from verl_e2e.adapters.github.session import anonymously
from verl_e2e.core.model.change import PathStatus, SubmoduleBump
from verl_e2e.core.pulls.forge import OpenPull, PullRef, PullState
from verl_e2e.ports import ForgeError, UnknownPullError


def test_a_pull_request_as_it_is_now(at: GithubAdapters) -> None:
    pull = GithubPulls(at.github).pull(ONE)
    assert (pull.author, pull.base_branch, pull.state, pull.draft) == ("ada", "main", PullState.OPEN, False)
    assert pull.default_branch == "main"
    assert (pull.head_sha, pull.changed_files) == (at.world.head(1), 1)
    assert not pull.from_fork
    assert at.calls("GET", "/pulls/{number}") == 1


def test_a_fork_is_told_from_the_repository_even_when_it_is_gone(at: GithubAdapters) -> None:
    number = at.world.open_pull("eve", {"x": b"1"}, fork=True)
    pulls = GithubPulls(at.github)
    assert pulls.pull(PullRef(REPOSITORY, number)).head_repository == "eve/bridge"
    at.world.delete_fork(number)
    gone = pulls.pull(PullRef(REPOSITORY, number))
    assert gone.head_repository == ""
    assert gone.from_fork
    assert gone.author_association == "FIRST_TIME_CONTRIBUTOR"


def test_a_pull_request_that_is_not_there_is_the_users_mistake(at: GithubAdapters) -> None:
    with pytest.raises(UnknownPullError, match="octo/bridge#99"):
        GithubPulls(at.github).pull(PullRef(REPOSITORY, 99))


@pytest.mark.parametrize("name", ["octo", "octo/..", "../octo/x", "octo/a b", "octo/a?b", "octo/a/b", ""])
def test_a_name_that_leads_elsewhere_is_never_asked_for(name: str) -> None:
    github = anonymously(api_url="http://127.0.0.1:9")
    with pytest.raises(ForgeError, match="is not a repository"):
        GithubPulls(github).file_at(name, "main", "README.md")
    assert not github.calls.by_answer()


def test_every_open_pull_request_over_all_pages(at: GithubAdapters) -> None:
    for number in range(2, 104):
        at.world.repository.pulls[number] = replace(at.world.pull(1), id=10_000 + number, number=number)
    at.world.close(7)
    assert [open_pull.ref.number for open_pull in GithubPulls(at.github).open_pulls(REPOSITORY)] == [
        number for number in range(1, 104) if number != 7
    ]
    assert at.calls("GET", "/pulls") == 2


def test_open_pull_requests_are_listed_with_their_base_and_head(at: GithubAdapters) -> None:
    at.world.commit({"a": b"1"}, branch="release/1.x")
    number = at.world.open_pull("ada", {"x": b"1"}, base="release/1.x")
    listed = GithubPulls(at.github).open_pulls(REPOSITORY, base="release/1.x")
    assert listed == (OpenPull(PullRef(REPOSITORY, number), "release/1.x", at.world.head(number)),)


@pytest.mark.parametrize("branch", ["main", "release/1.x", "a#b%2Fc", "über", "x+y&z"])
def test_the_tip_of_a_branch_is_read_whatever_it_is_called(at: GithubAdapters, branch: str) -> None:
    tip = at.world.commit({"a": b"1"}, branch=branch)
    pulls = GithubPulls(at.github)
    assert pulls.tip(REPOSITORY, branch) == tip
    moved = at.world.commit({"a": b"2"}, branch=branch)
    assert pulls.tip(REPOSITORY, branch) == moved
    assert pulls.tip(REPOSITORY, f"{branch}-gone") is None


def test_a_change_has_both_names_of_a_rename_and_where_it_left_the_base(at: GithubAdapters) -> None:
    start = at.world.commit({"old.py": b"x = 1\n" * 40, "gone.py": b"1\n"})
    number = at.world.open_pull("ada", {"old.py": Moved("new.py"), "gone.py": None})
    at.world.commit({"elsewhere.py": b"2\n"})
    pulls = GithubPulls(at.github)
    change = pulls.change(pulls.pull(PullRef(REPOSITORY, number)))
    assert change.merge_base == start
    assert change.names() == ("gone.py", "new.py", "old.py")
    assert {path.path: path.status for path in change.paths} == {
        "gone.py": PathStatus.REMOVED,
        "new.py": PathStatus.RENAMED,
    }


def test_files_of_a_newer_head_are_not_taken_for_those_of_an_older_one(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    pull = pulls.pull(ONE)
    at.world.push(1, {"src/b.py": b"b = 1\n"})
    with pytest.raises(ForgeError, match="pushed to") as message:
        pulls.change(pull)
    assert message.value.passing
    assert pulls.change(pulls.pull(ONE)).names() == ("src/a.py", "src/b.py")


def test_a_change_costs_two_calls(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    pull = pulls.pull(ONE)
    before = sum(at.github.calls.by_answer().values())
    pulls.change(pull)
    assert sum(at.github.calls.by_answer().values()) - before == 2


def test_a_file_that_only_reads_like_a_submodule_is_none() -> None:
    patch = f"@@ -1 +1 @@\n-Subproject commit {'a' * 40}\n+Subproject commit {'b' * 40}"
    file = FileAnswer(filename="x", status="modified", sha="c" * 40, patch=patch)
    assert as_changed_path(file).submodule is None
    assert as_changed_path(file.model_copy(update={"sha": "b" * 40})).submodule == SubmoduleBump("a" * 40, "b" * 40)


def test_a_list_of_files_that_is_cut_is_shorter_than_github_counts(at: GithubAdapters) -> None:
    number = at.world.open_pull("ada", {f"src/f{count:04}.py": b"1\n" for count in range(3_001)})
    pulls = GithubPulls(at.github)
    pull = pulls.pull(PullRef(REPOSITORY, number))
    assert pull.changed_files == 3_001
    assert len(pulls.change(pull).paths) == 3_000
    assert at.calls("GET", "/files") == 30


def test_a_file_by_any_name_at_a_revision(at: GithubAdapters) -> None:
    paths = ("a b.txt", "ü/ß.txt", "per%cent", "q?x=1", "hash#1", "deep/er/file")
    first = at.world.commit({path: f"one {path}".encode() + b"\xff\n" for path in paths})
    at.world.commit(dict.fromkeys(paths, b"two\n"))
    pulls = GithubPulls(at.github)
    for path in paths:
        assert pulls.file_at(REPOSITORY, first, path) == f"one {path}".encode() + b"\xff\n"
        assert pulls.file_at(REPOSITORY, "main", path) == b"two\n"


def test_what_is_no_file_is_not_there(at: GithubAdapters) -> None:
    at.world.commit({"src/a.py": b"1\n"})
    pulls = GithubPulls(at.github)
    assert [pulls.file_at(REPOSITORY, "main", path) for path in ("src", "nothing", "src/a.py/x")] == [None] * 3
    assert pulls.file_at(REPOSITORY, "0" * 40, "src/a.py") is None


def test_a_file_too_long_for_its_endpoint_is_read_by_its_id(at: GithubAdapters) -> None:
    content = b"0123456789abcdef" * 70_000
    at.world.commit({"long.bin": content})
    assert GithubPulls(at.github).file_at(REPOSITORY, "main", "long.bin") == content
    assert at.calls("GET", "/git/blobs/{sha}") == 1


def test_a_public_pull_request_is_read_without_a_token(at: GithubAdapters) -> None:
    with anonymous(at.world) as github:
        pulls = GithubPulls(github)
        pull = pulls.pull(ONE)
        assert pulls.change(pull).names() == ("src/a.py",)
        assert pulls.file_at(REPOSITORY, pull.head_sha, "src/a.py") == b"a = 1\n"
    assert all(item.caller == "" for item in at.world.standin.traffic)

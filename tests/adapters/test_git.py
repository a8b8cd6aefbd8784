"""Reading real repositories, made with git below tmp_path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e.core.model.change import PathStatus, SubmoduleBump, readable
from verl_e2e.git.program import Git, GitLimits
from verl_e2e.git.repository import GitFailedError, GitRepository, NotARepositoryError, UnknownRevisionError
from verl_e2e.ports import ChangeSource

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


class Checkout:
    """A repository that a test writes to, by the git program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str | bytes) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, env=ENVIRONMENT, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit(self, message: str = "c") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def write(self, name: str | bytes, text: str = "x\n") -> None:
        path = os.path.join(os.fsencode(self.path), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_text(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "work")


def test_a_change_is_what_the_head_did_since_it_left_the_base(checkout: Checkout) -> None:
    checkout.write("kept.py")
    fork = checkout.commit()
    checkout.git("checkout", "-q", "-b", "topic")
    checkout.write("new.py")
    head = checkout.commit()
    checkout.git("checkout", "-q", "main")
    checkout.write("elsewhere.py")
    base = checkout.commit()

    source: ChangeSource = GitRepository(checkout.path)
    change = source.change("main", "topic")

    assert (change.base, change.head, change.merge_base) == (base, head, fork)
    assert [(path.path, path.status) for path in change.paths] == [("new.py", PathStatus.ADDED)]


def test_unrelated_histories_are_compared_as_they_stand(checkout: Checkout) -> None:
    checkout.write("one.py", "1\n")
    base = checkout.commit()
    checkout.git("checkout", "-q", "--orphan", "other")
    checkout.git("rm", "-rqf", ".")
    checkout.write("two.py", "2\n")
    head = checkout.commit()
    change = GitRepository(checkout.path).change(base, head)
    assert change.merge_base is None
    assert change.names() == ("one.py", "two.py")


def merged(checkout: Checkout, base: str, head: str) -> set[str] | None:
    """The paths that merging the head changes on the base, by git's own merge; None where it conflicts."""
    command = ["git", "merge-tree", "--write-tree", base, head]
    made = subprocess.run(command, check=False, cwd=checkout.path, env=ENVIRONMENT, capture_output=True, text=True)
    if made.returncode == 1:
        return None
    tree = made.stdout.split()[0]
    return set(checkout.git("diff-tree", "-r", "--name-only", "--no-renames", base, tree).splitlines())


def drawn_histories(checkout: Checkout, random: Random, count: int) -> list[tuple[str, str]]:
    """Base and head of histories that cross: two lines from one start, merged on both sides, and more commits.

    A commit, a merge as well, has each file from one of its parents, or new.
    """
    lines: list[str] = []
    known: list[dict[str, int]] = []

    def commit(*parents: int) -> int:
        files = {name: known[random.choice(parents)][name] if parents else 0 for name in "abc"}
        if parents and random.random() < 0.6:
            files[random.choice("abc")] = random.randrange(3)
        known.append(files)
        mark = len(known)
        lines.extend(
            [f"commit refs/kept/{mark}", f"mark :{mark}", f"committer A <a@example.org> {mark} +0000", "data 0"]
        )
        lines.extend(f"{'merge' if at else 'from'} :{parent + 1}" for at, parent in enumerate(parents))
        lines.extend(["deleteall", *(f"M 100644 inline {name}\ndata 2\n{value}\n" for name, value in files.items())])
        return mark - 1

    pairs = []
    for _ in range(count):
        start = commit()
        sides = [commit(commit(start)), commit(start)]
        ends = [commit(*random.sample(sides, random.choice((1, 2, 2)))) for _ in range(2)]
        pairs.append(tuple(f"refs/kept/{commit(end) + 1 if random.random() < 0.5 else end + 1}" for end in ends))
    stream = "\n".join(lines).encode() + b"\n"
    subprocess.run(["git", "fast-import", "--quiet"], cwd=checkout.path, env=ENVIRONMENT, input=stream, check=True)
    return [(checkout.git("rev-parse", base), checkout.git("rev-parse", head)) for base, head in pairs]


def test_a_change_names_whatever_merging_it_changes(checkout: Checkout) -> None:
    """Held against git's own merge; a merge that keeps one side, or neither, is among them."""
    several = changed = 0
    pairs = drawn_histories(checkout, Random(20), 60)
    repository = GitRepository(checkout.path)
    for base, head in pairs:
        expected = merged(checkout, base, head)
        if expected is None:
            continue
        change = repository.change(base, head)
        assert expected <= set(change.names()), (base, head)
        several += change.merge_base is None
        changed += bool(expected)
    assert several >= 10
    assert changed >= 20


def test_every_kind_of_change_is_told_with_both_names_of_a_rename(checkout: Checkout) -> None:
    text = "".join(f"line {number}\n" for number in range(50))
    for name in ("renamed.py", "gone.py", "edited.py", "linked.py"):
        checkout.write(name, f"{name}\n{text}")
    base = checkout.commit()
    checkout.git("mv", "renamed.py", "moved.py")
    checkout.git("rm", "-q", "gone.py")
    checkout.write("edited.py", f"edited.py!\n{text}")
    (checkout.path / "linked.py").unlink()
    (checkout.path / "linked.py").symlink_to("edited.py")
    checkout.write("added.py")
    head = checkout.commit()

    change = GitRepository(checkout.path).change(base, head)

    assert {path.path: path.status for path in change.paths} == {
        "added.py": PathStatus.ADDED,
        "edited.py": PathStatus.MODIFIED,
        "gone.py": PathStatus.REMOVED,
        "linked.py": PathStatus.CHANGED,
        "moved.py": PathStatus.RENAMED,
    }
    assert {"renamed.py", "moved.py"} <= set(change.names())


@pytest.mark.parametrize(
    "name",
    (
        b"with space.py",
        b"tab\tand\nnewline.py",
        b'quote"and\\backslash.py',
        "\u00fcml\u00e4ut/\u65e5\u672c.py".encode(),
        b"latin\xe9.py",
        b"-dash.py",
        b":(glob)*.py",
        b"--help",
    ),
)
def test_odd_names_come_back_exactly_and_can_be_read(checkout: Checkout, name: bytes) -> None:
    base = checkout.commit()
    checkout.write(name, "content\n")
    head = checkout.commit()
    repository = GitRepository(checkout.path)
    (path,) = repository.change(base, head).paths
    assert os.fsencode(path.path) == name
    assert repository.read_blob(head, path.path) == b"content\n"
    assert tuple(repository.tree(head)) == (path.path,)
    readable(path.path).encode()


def test_a_submodule_bump_has_both_commits(checkout: Checkout) -> None:
    old, new = "1" * 40, "2" * 40
    checkout.git("update-index", "--add", "--cacheinfo", f"160000,{old},3rdparty/core")
    checkout.git("commit", "-q", "-m", "add")
    base = checkout.git("rev-parse", "HEAD")
    checkout.git("update-index", "--cacheinfo", f"160000,{new},3rdparty/core")
    checkout.git("commit", "-q", "-m", "bump")

    repository = GitRepository(checkout.path)
    (path,) = repository.change(base, "HEAD").paths

    assert path.submodule == SubmoduleBump(old, new)
    assert repository.submodule_commit("HEAD", "3rdparty/core") == new
    assert repository.submodule_commit("HEAD", "3rdparty") is None
    assert tuple(repository.tree("HEAD")) == ()


def test_blobs_are_read_from_commits_never_from_the_work_tree(checkout: Checkout) -> None:
    checkout.write("src/a.py", "old\n")
    first = checkout.commit()
    checkout.write("src/a.py", "new\n")
    checkout.commit()
    checkout.write("src/a.py", "dirty\n")
    repository = GitRepository(checkout.path)
    assert repository.read_blob(first, "src/a.py") == b"old\n"
    assert repository.read_blob("HEAD", "src/a.py") == b"new\n"
    assert [repository.read_blob("HEAD", name) for name in ("src", "src/", "", "no.py", "*.py", "a\0b")] == [None] * 6
    assert tuple(repository.tree("HEAD", "src")) == ("src/a.py",)


def test_checkout_bare_directory_and_linked_worktree_read_alike(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write("a.py")
    head = checkout.commit()
    checkout.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    checkout.git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "linked")
    for path in (checkout.path, tmp_path / "bare.git", tmp_path / "linked"):
        assert GitRepository(path).resolve("HEAD") == head
    assert GitRepository(tmp_path / "bare.git").dirty_files() == ()
    assert GitRepository(tmp_path / "linked").dirty_files() == ()


def test_dirty_files_are_edited_staged_renamed_removed_and_untracked(checkout: Checkout) -> None:
    for name in ("edited.py", "removed.py", "before.py"):
        checkout.write(name, f"{name}\n")
    checkout.write(".gitignore", "ignored\n")
    checkout.commit()
    assert GitRepository(checkout.path).dirty_files() == ()
    checkout.write("edited.py", "!\n")
    (checkout.path / "removed.py").unlink()
    checkout.git("mv", "before.py", "after.py")
    checkout.write("folder/new one.py")
    checkout.write("ignored")
    assert GitRepository(checkout.path).dirty_files() == (
        "after.py",
        "before.py",
        "edited.py",
        "folder/",
        "removed.py",
    )


def test_reading_leaves_the_repository_as_it_was(checkout: Checkout) -> None:
    checkout.write("a.py")
    checkout.commit()
    os.utime(checkout.path / "a.py", (1, 1))  # a stale index entry, which plain `git status` would rewrite

    def state() -> dict[str, tuple[int, int]]:
        files = (path for path in (checkout.path / ".git").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = state()
    repository = GitRepository(checkout.path)
    repository.change("HEAD", "HEAD")
    assert repository.dirty_files() == ()
    assert state() == before


def test_nothing_that_the_repository_configures_is_run(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write("a.txt", "1\n")
    base = checkout.commit()
    checkout.write("a.txt", "2\n")
    checkout.write(".gitattributes", "*.txt diff=evil\n")
    head = checkout.commit()
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.evil.textconv", "core.pager", "core.sshCommand"):
        checkout.git("config", key, str(trap))
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").write_text(trap.read_text())
    (hooks / "post-index-change").chmod(0o755)
    checkout.git("config", "core.hooksPath", str(hooks))
    repository = GitRepository(checkout.path)
    assert repository.change(base, head).names() == (".gitattributes", "a.txt")
    assert repository.dirty_files() == ()
    assert repository.read_blob(head, "a.txt") == b"2\n"
    assert not (tmp_path / "sprung").exists()


def test_replaced_objects_and_the_callers_variables_change_nothing(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.write("a.py", "true\n")
    first = checkout.commit()
    checkout.write("a.py", "false\n")
    second = checkout.commit()
    checkout.git("replace", first, second)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "nonsense")
    assert GitRepository(checkout.path).read_blob(first, "a.py") == b"true\n"


def test_an_unknown_commit_is_told_with_the_fix(checkout: Checkout) -> None:
    checkout.commit()
    for revision in ("deadbeef" * 5, "no-such-branch", "--version", "HEAD~9", "", "a\0b"):
        with pytest.raises(UnknownRevisionError, match=r"is not in .*fetch it there, or check the spelling"):
            GitRepository(checkout.path).resolve(revision)


def test_a_shallow_clone_is_named_as_the_cause(checkout: Checkout, tmp_path: Path) -> None:
    first = checkout.commit("one")
    checkout.commit("two")
    shallow = tmp_path / "shallow"
    checkout.git("clone", "-q", "--depth=1", f"file://{checkout.path}", str(shallow))
    with pytest.raises(UnknownRevisionError, match="a shallow clone; run `git fetch --unshallow` there"):
        GitRepository(shallow).change(first, "HEAD")


def test_a_partial_clone_without_contents_is_planned_without_the_network(checkout: Checkout, tmp_path: Path) -> None:
    checkout.git("config", "uploadpack.allowFilter", "true")
    checkout.write("old.py", "".join(f"{number}\n" for number in range(60)))
    base = checkout.commit()
    checkout.git("mv", "old.py", "new.py")
    checkout.write("new.py", "".join(f"{number}\n" for number in range(61)))
    head = checkout.commit()
    partial = tmp_path / "partial.git"
    checkout.git("clone", "-q", "--bare", "--filter=blob:none", f"file://{checkout.path}", str(partial))
    assert GitRepository(partial).change(base, head).names() == ("new.py", "old.py")


def test_what_is_no_repository_is_told_and_never_searched_for_above(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write("inner/a.py")
    checkout.commit()
    (tmp_path / "file").touch()
    broken = tmp_path / "broken"
    (broken / ".git").mkdir(parents=True)
    for path in (checkout.path / "inner", tmp_path / "missing", tmp_path / "file", broken):
        with pytest.raises(NotARepositoryError, match="name the top folder of a checkout, or a bare git directory"):
            GitRepository(path)


def test_a_failure_of_git_shows_command_code_and_stderr(checkout: Checkout) -> None:
    checkout.commit()
    with pytest.raises(GitFailedError) as caught:
        GitRepository(checkout.path).changed_paths("HEAD", "nonsense")
    assert caught.value.finished.code == 128
    assert "diff-tree" in str(caught.value)
    assert "nonsense" in caught.value.finished.stderr


def test_git_is_given_a_time_limit(checkout: Checkout) -> None:
    checkout.commit()
    with pytest.raises(GitFailedError, match="took more than 1e-06 s"):
        GitRepository(checkout.path, limits=GitLimits(time_s=0.000001))


def test_a_tree_gives_contents_by_id_and_leaves_links_out(checkout: Checkout) -> None:
    checkout.write("a/b.py", "one\n")
    checkout.write("c.py", "two\n")
    (checkout.path / "a" / "link.py").symlink_to("b.py")
    head = checkout.commit()
    repository = GitRepository(checkout.path)
    tree = repository.tree(head, "a/")
    assert list(tree) == ["a/b.py"]
    absent = "0" * 39 + "1"
    assert repository.read_objects([tree["a/b.py"], absent]) == {tree["a/b.py"]: b"one\n", absent: None}
    assert repository.read_objects([]) == {}
    assert set(repository.tree(head)) == {"a/b.py", "c.py"}


def test_contents_with_newlines_and_headers_inside_are_told_apart(checkout: Checkout) -> None:
    texts = ("", "\n", "0" * 40 + " blob 3\nabc\n", "x\r\n\n\n")
    for number, text in enumerate(texts):
        (checkout.path / f"{number}.py").write_bytes(text.encode())
    tree = GitRepository(checkout.path).tree(checkout.commit())
    found = GitRepository(checkout.path).read_objects(list(tree.values()))
    assert [found[tree[f"{number}.py"]] for number in range(len(texts))] == [text.encode() for text in texts]


def test_the_first_parent_line_ends_at_the_root(checkout: Checkout) -> None:
    commits = [checkout.commit(str(number)) for number in range(3)]
    line = GitRepository(checkout.path).first_parents("HEAD", 10)
    assert [(commit.sha, commit.parent) for commit in line] == [(commits[2], commits[1]), (commits[1], commits[0])]


def test_who_wrote_a_commit_and_what_it_says_are_told_as_they_are(checkout: Checkout) -> None:
    checkout.commit("first")
    checkout.commit("\x1b[31m@mona: a | b\n\nmore")
    (commit,) = GitRepository(checkout.path).first_parents("HEAD", 1)
    assert (commit.author, commit.subject) == ("A", "\x1b[31m@mona: a | b")


@pytest.mark.parametrize("own_session", [False, True])
def test_git_ends_with_its_caller_or_has_a_session_of_its_own(
    checkout: Checkout, tmp_path: Path, own_session: bool
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nps -o pgid= -p $$\n")
    program.chmod(0o755)
    environ = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    finished = Git(checkout.path / ".git", environ=environ, own_session=own_session).run("status")
    assert (int(finished.output) == os.getpgid(0)) is not own_session


def test_a_process_that_may_take_less_is_never_allowed_more(checkout: Checkout, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nsleep 0.2\nulimit -v\n")
    program.chmod(0o755)
    code = (
        "import resource, sys; from pathlib import Path; from verl_e2e.git.program import Git, GitLimits\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "git = Git(Path('.git'), environ={'PATH': sys.argv[1]}, limits=GitLimits(memory_bytes=int(sys.argv[2])))\n"
        "print(git.run('status').output.decode())"
    )
    for memory_bytes, allowed in ((4 << 30, 1 << 20), (512 << 20, 512 << 10)):
        command = [sys.executable, "-c", code, f"{program.parent}:{os.environ['PATH']}", str(memory_bytes)]
        done = subprocess.run(command, capture_output=True, check=True, cwd=checkout.path)
        assert int(done.stdout) == allowed


INTERRUPTED = """
import os, sys, threading
from pathlib import Path
from verl_e2e.git.program import Git, GitLimits
begin = threading.Timer.start
def interrupted(timer):
    begin(timer)
    raise KeyboardInterrupt
threading.Timer.start = interrupted
Git(Path(sys.argv[1]), environ=os.environ, limits=GitLimits(time_s=float(sys.argv[2]))).run("rev-parse", "--git-dir")
"""


def test_an_interruption_while_git_is_watched_holds_up_no_exit(tmp_path: Path) -> None:
    command = (sys.executable, "-c", INTERRUPTED, str(tmp_path), str(10 * HANG_S))
    done = subprocess.run(command, timeout=HANG_S, capture_output=True, check=False)
    assert b"KeyboardInterrupt" in done.stderr


def two_sides(checkout: Checkout) -> tuple[str, str]:
    """Two heads of one commit, each with a file of its own, and the other end of a file that both change."""
    checkout.write("both.py", "one\n\n\n\n\ntwo\n")
    fork = checkout.commit()
    checkout.write("both.py", "first\n\n\n\n\ntwo\n")
    checkout.write("base.py")
    base = checkout.commit()
    checkout.git("checkout", "-q", fork)
    checkout.write("both.py", "one\n\n\n\n\nsecond\n")
    checkout.write("head.py")
    return base, checkout.commit()


@pytest.mark.parametrize("name", ["plain", "with a colon:", "with\na line's end", 'with a "quote"', "with a \\"])
@pytest.mark.parametrize("place", ["repository", "temporary folder"])
def test_two_commits_are_merged_wherever_they_and_the_merge_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    (tmp_path / name).mkdir()
    checkout = Checkout((tmp_path / name if place == "repository" else tmp_path) / "work")
    if place == "temporary folder":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    repository, (base, head) = GitRepository(checkout.path), two_sides(checkout)
    merge = repository.merged(base, head)
    assert merge.commit is not None, merge.problem
    assert repository.read_blob(merge.commit, "both.py") == b"first\n\n\n\n\nsecond\n"
    assert {"base.py", "head.py"} <= repository.tree(merge.commit).keys()


def test_commits_of_longer_ids_are_merged_too(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "work")
    shutil.rmtree(checkout.path / ".git")
    checkout.git("init", "-q", "-b", "main", "--object-format=sha256")
    base, head = two_sides(checkout)
    assert GitRepository(checkout.path).merged(base, head).commit is not None


def test_what_git_cannot_merge_at_all_is_no_conflict(checkout: Checkout) -> None:
    base, head = two_sides(checkout)
    assert GitRepository(checkout.path).merged(base, "1" * 40).problem
    checkout.git("checkout", "-q", base)
    checkout.write("head.py", "another\n")
    conflict = GitRepository(checkout.path).merged(checkout.commit(), head)
    assert (conflict.commit, conflict.problem) == (None, "")

"""Partial clones of a forge's repositories, over real HTTP from a real git server."""

import base64
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.smart_http import GitServer, serving
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.core.model.change import PathStatus
from verl_e2e.core.pulls.forge import MergeGroup, Pull, PullRef, PullState
from verl_e2e.git.clone import Bounds
from verl_e2e.git.program import GitLimits
from verl_e2e.git.repository import GitRepository
from verl_e2e.ports import ForgeError, SourceTrees

NAME = "Owner/Bridge"
TOKEN = "ghs_12345_a-token.of-ours"
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}
LONG = "".join(f"line {number}\n" for number in range(60))


class Forge:
    """A bare repository behind a server, and a checkout that pushes to it."""

    def __init__(self, server: GitServer, name: str = NAME) -> None:
        self.server = server
        self.bare = server.root / f"{name}.git"
        self.work = server.root / f"work of {name.rpartition('/')[2]}"
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare), cwd=server.root)
        self.git("init", "-q", "-b", "main", str(self.work), cwd=server.root)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=cwd or self.work, env=ENVIRONMENT, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def push(self, ref: str, files: dict[str, str | None]) -> str:
        """Write (None: remove) files, commit, and push to a ref; gives the commit."""
        for name, text in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if text is None else path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "c")
        self.git("push", "-q", "--force", str(self.bare), f"HEAD:{ref}")
        return self.git("rev-parse", "HEAD")

    def pull(self, base: str, head: str, number: int = 7) -> Pull:
        ref = PullRef(NAME, number)
        return Pull(ref, "main", base, head, "fork/Bridge", "a", "MEMBER", draft=False, state=PullState.OPEN)


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[Forge]:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root") as server:
        yield Forge(server)


@pytest.fixture
def change(forge: Forge) -> Pull:
    """Three files on main; the pull request edits one, moves one with a small edit and adds one."""
    start = {"src/a.py": "a = 1\n", "src/old.py": LONG, "src/kept.py": "kept = 1\n"}
    base = forge.push("refs/heads/main", dict(start))
    moved = {"src/a.py": "a = 2\n", "src/old.py": None, "src/new.py": LONG + "last\n", "src/more.py": "more = 1\n"}
    return forge.pull(base, forge.push("refs/pull/7/head", moved))


def mirrors(forge: Forge, folder: Path, *bounds: Bounds, token: str | None = None) -> Mirrors:
    limits = bounds[0] if bounds else None
    environ = {"PATH": os.environ["PATH"]}
    return Mirrors(folder, forge.server.url, token=lambda _: token, bounds=limits, environ=environ)


def clone_of(folder: Path) -> Path:
    return next((folder / "mirrors").rglob("bridge.git"))


def everything(trees: SourceTrees, pull: Pull) -> tuple[object, ...]:
    files = dict(trees.tree(pull.head_sha))
    return (
        trees.change(pull.base_sha, pull.head_sha),
        files,
        dict(trees.tree(pull.base_sha, "src")),
        dict(trees.read_objects(files.values())),
        trees.read_blob(pull.base_sha, "src/a.py"),
        trees.read_blob(pull.head_sha, "src/old.py"),
    )


def test_what_is_read_is_what_the_whole_repository_holds(forge: Forge, change: Pull, tmp_path: Path) -> None:
    found = mirrors(forge, tmp_path).changes(change)
    assert everything(found, change) == everything(GitRepository(forge.bare), change)
    moved = [path for path in found.change(change.base_sha, change.head_sha).paths if path.old_path]
    assert [(path.status, path.old_path, path.path) for path in moved] == [
        (PathStatus.RENAMED, "src/old.py", "src/new.py")
    ]


def connections(forge: Forge) -> int:
    """How often a git came to the server."""
    return sum(method == "GET" for method, _ in forge.server.asked)


def test_contents_come_in_batches_and_a_second_look_needs_no_network(
    forge: Forge, change: Pull, tmp_path: Path
) -> None:
    trees = mirrors(forge, tmp_path).changes(change)
    assert connections(forge) == 1
    trees.change(change.base_sha, change.head_sha)
    assert connections(forge) == 2
    contents = trees.read_objects(trees.tree(change.head_sha).values())
    assert None not in contents.values()
    assert connections(forge) == 3

    forge.server.statuses = [500] * 100
    second = mirrors(forge, tmp_path)
    assert everything(second.changes(change), change)
    assert connections(forge) == 3


def test_a_push_brings_only_what_is_new(forge: Forge, change: Pull, tmp_path: Path) -> None:
    both = mirrors(forge, tmp_path)
    everything(both.changes(change), change)
    before = forge.server.sent
    pushed = replace(change, head_sha=forge.push("refs/pull/7/head", {"src/a.py": "a = 3\n"}))
    trees = both.changes(pushed)
    assert trees.read_blob(pushed.head_sha, "src/a.py") == b"a = 3\n"
    assert forge.server.sent - before < 4096


def test_a_merge_group_is_compared_as_it_stands(forge: Forge, change: Pull, tmp_path: Path) -> None:
    forge.git("checkout", "-q", change.base_sha)
    forge.push("refs/heads/main", {"src/elsewhere.py": "x = 1\n"})
    sibling = forge.git("rev-parse", "HEAD")
    group = MergeGroup(NAME, "main", sibling, change.head_sha, (7,))
    found = mirrors(forge, tmp_path).changes(group).change(group.base_sha, group.head_sha)
    assert found.merge_base == sibling
    assert "src/elsewhere.py" in found.names()
    as_pull = mirrors(forge, tmp_path).changes(forge.pull(sibling, change.head_sha))
    assert "src/elsewhere.py" not in as_pull.change(sibling, change.head_sha).names()


def test_what_a_merge_makes_is_read_and_asked_of_no_one(forge: Forge, change: Pull, tmp_path: Path) -> None:
    forge.git("checkout", "-q", change.base_sha)
    text = "one\n\n\n\n\ntwo\n"
    fork = forge.push("refs/heads/fork", {"src/both.py": text})
    base = forge.push("refs/heads/main", {"src/both.py": text.replace("one", "first")})
    forge.git("checkout", "-q", fork)
    head = forge.push("refs/pull/7/head", {"src/both.py": text.replace("two", "second")})
    both = mirrors(forge, tmp_path)
    trees = both.changes(forge.pull(base, head))
    merge = trees.merged(base, head)
    assert merge.commit is not None, merge.problem
    before = connections(forge)
    assert trees.read_blob(merge.commit, "src/both.py") == b"first\n\n\n\n\nsecond\n"
    assert trees.change(base, merge.commit).names() == ("src/both.py",)
    assert connections(forge) == before


def pinned(forge: Forge) -> tuple[str, tuple[str, str]]:
    """The address of a Megatron-LM, and two of its commits with others before and between them."""
    core = Forge(forge.server, "NVIDIA/Megatron-LM")
    core.push("refs/heads/main", {"megatron/core/early.py": "early = 1\n"})
    old = core.push("refs/heads/main", {"megatron/core/model.py": LONG, "megatron/core/kept.py": LONG})
    core.push("refs/heads/main", {"megatron/core/between.py": LONG})
    new = core.push("refs/heads/main", {"megatron/core/model.py": LONG + "last\n"})
    return f"{forge.server.url}/NVIDIA/Megatron-LM", (old, new)


def test_two_commits_of_megatron_lm_come_without_history_and_with_what_differs(forge: Forge, tmp_path: Path) -> None:
    address, (old, new) = pinned(forge)
    found = mirrors(forge, tmp_path)
    trees = found.commits(NAME, address, (old, new))
    differing = trees.tree(old)["megatron/core/model.py"], trees.tree(new)["megatron/core/model.py"]
    contents = trees.read_objects(differing)
    assert [contents[blob] for blob in differing] == [LONG.encode(), (LONG + "last\n").encode()]
    clone = next((tmp_path / "mirrors").rglob("megatron-lm.trees"))
    objects = forge.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)", cwd=clone).split()
    assert (objects.count("commit"), objects.count("blob")) == (2, 2)
    # A second look, and a bump back, ask for nothing.
    before = connections(forge)
    assert mirrors(forge, tmp_path).commits(NAME, address, (new, old)).read_objects(differing) == contents
    assert connections(forge) == before


def test_a_commit_that_megatron_lm_does_not_have_is_told_for_good(forge: Forge, tmp_path: Path) -> None:
    address, (old, _) = pinned(forge)
    with pytest.raises(ForgeError, match=r"no longer has what was asked for of NVIDIA/Megatron-LM") as message:
        mirrors(forge, tmp_path).commits(NAME, address, (old, "0123456789" * 4))
    assert not message.value.passing
    away = Mirrors(tmp_path / "b", forge.server.url, environ=os.environ)
    with pytest.raises(ForgeError, match=r"could not be fetched from 127\.0\.0\.1") as message:
        away.commits(NAME, "http://127.0.0.1:9/NVIDIA/Megatron-LM", (old,))
    assert message.value.passing


def test_the_token_goes_to_megatron_lm_on_the_same_site_alone(forge: Forge, tmp_path: Path) -> None:
    address, commits = pinned(forge)
    tokens: list[str] = []

    def token(repository: str) -> str:
        tokens.append(repository)
        return TOKEN

    def headers_at(web_url: str, folder: str) -> set[str]:
        del forge.server.headers[:]
        Mirrors(tmp_path / folder, web_url, token=token, environ=os.environ).commits(NAME, address, commits)
        return {header.get("Authorization", "") for header in forge.server.headers}

    assert headers_at("https://github.example", "away") == {""}
    assert tokens == []
    assert headers_at(forge.server.url, "own") != {""}
    assert set(tokens) == {NAME}


def test_another_process_may_have_commits_of_the_named_megatron_lm_and_of_no_other(
    forge: Forge, change: Pull, tmp_path: Path
) -> None:
    address, (old, new) = pinned(forge)
    parent = mirrors(forge, tmp_path)
    child = Mirrors(tmp_path, forge.server.url, ask=parent.answers([change], address))
    assert "megatron/core/model.py" in child.commits(NAME, address, (old, new)).tree(new)
    assert child.changes(change).tree(change.head_sha)
    with pytest.raises(ValueError, match="may not have"):
        child.commits(NAME, f"{forge.server.url}/{NAME}", (old,))
    answer, none = parent.answers([change], address), parent.answers([change], "")
    with pytest.raises(ValueError, match="may not have"):
        none(("", ("commits", ((old, old, old),))))
    for question in (("commits", ((old, old, old),)), (address, ("commits", (("main", "0" * 40, "refs/heads/x"),)))):
        with pytest.raises(ValueError, match="may not have"):
            answer(question)


def test_a_server_that_gives_tips_only_is_asked_for_the_refs(forge: Forge, change: Pull, tmp_path: Path) -> None:
    forge.git("checkout", "-q", change.base_sha)
    forge.push("refs/heads/main", {"src/later.py": "x = 1\n"})
    forge.server.tips_only = True
    trees = mirrors(forge, tmp_path).changes(change)
    assert trees.tree(change.base_sha).keys() == {"src/a.py", "src/old.py", "src/kept.py"}


def test_a_head_that_was_pushed_over_and_is_gone_is_reported(forge: Forge, change: Pull, tmp_path: Path) -> None:
    gone = replace(change, head_sha="0123456789" * 4)
    with pytest.raises(ForgeError, match=r"refs/pull/7/head does not lead to commit 012345678901") as message:
        mirrors(forge, tmp_path).changes(gone)
    assert not message.value.passing


def test_a_content_that_the_forge_lost_is_absent_and_the_others_are_read(
    forge: Forge, change: Pull, tmp_path: Path
) -> None:
    ids = GitRepository(forge.bare).tree(change.head_sha)
    lost = ids["src/kept.py"]
    (forge.bare / "objects" / lost[:2] / lost[2:]).unlink()
    trees = mirrors(forge, tmp_path).changes(change)
    found = trees.read_objects(ids.values())
    assert found[lost] is None
    assert found[ids["src/a.py"]] == b"a = 2\n"


@pytest.fixture
def watched_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `git` before the real one that writes down each command line."""
    seen = tmp_path / "seen"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {seen}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return seen


def test_a_token_reaches_the_server_and_neither_command_line_nor_disk(
    forge: Forge, change: Pull, tmp_path: Path, watched_path: Path
) -> None:
    text = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
    forge.server.authorization = f"Basic {text}"
    trees = mirrors(forge, tmp_path / "cache", token=TOKEN).changes(change)
    assert trees.read_blob(change.head_sha, "src/a.py") == b"a = 2\n"
    places = [watched_path, *(path for path in (tmp_path / "cache").rglob("*") if path.is_file())]
    for place in places:
        assert TOKEN.encode() not in place.read_bytes()
        assert text.encode() not in place.read_bytes()
    config = (clone_of(tmp_path / "cache") / "config").read_text()
    assert "promisor" not in config
    assert forge.server.url not in config


@pytest.mark.parametrize(
    ("status", "passing", "message"),
    [(401, False, "does not let us read Owner/Bridge"), (403, False, "does not let us read"), (404, False, "or it is"),
     (429, True, "try again later"), (502, True, "try again later")],
)  # fmt: skip
def test_a_refusal_is_one_sentence(
    forge: Forge, change: Pull, tmp_path: Path, status: int, passing: bool, message: str
) -> None:
    forge.server.statuses = [status] * 10
    with pytest.raises(ForgeError, match=message) as refused:
        mirrors(forge, tmp_path, token=TOKEN).changes(change)
    assert refused.value.passing is passing
    assert TOKEN not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_that_is_not_there_is_told_and_nothing_is_lost(forge: Forge, change: Pull, tmp_path: Path) -> None:
    everything(mirrors(forge, tmp_path).changes(change), change)
    away = Mirrors(tmp_path, "http://127.0.0.1:9", environ=os.environ)
    with pytest.raises(ForgeError, match=r"could not be fetched from 127\.0\.0\.1") as message:
        away.changes(change)
    assert message.value.passing
    assert everything(mirrors(forge, tmp_path).changes(change), change)


def _cut_packs(clone: Path) -> None:
    for pack in (clone / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[:40])


def _flip_contents(clone: Path) -> None:
    for pack in (clone / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o644)
        raw = pack.read_bytes()
        pack.write_bytes(raw[:12] + bytes(byte ^ 0x55 for byte in raw[12:]))


def _no_packs(clone: Path) -> None:
    shutil.rmtree(clone / "objects" / "pack")


def _no_head(clone: Path) -> None:
    (clone / "HEAD").unlink()


def _no_objects(clone: Path) -> None:
    shutil.rmtree(clone / "objects")


def _garbage(clone: Path) -> None:
    (clone / "HEAD").write_text("nonsense\n")
    (clone / "config").write_text("[[[\n")


def _a_file(clone: Path) -> None:
    shutil.rmtree(clone)
    clone.write_text("not a folder\n")


@pytest.mark.parametrize("harm", [_cut_packs, _flip_contents, _no_packs, _no_head, _no_objects, _garbage, _a_file])
@pytest.mark.parametrize("when", ["between", "during"])
def test_a_damaged_clone_is_made_again(
    forge: Forge, change: Pull, tmp_path: Path, harm: Callable[[Path], None], when: str
) -> None:
    trees = mirrors(forge, tmp_path).changes(change)
    wanted = everything(trees, change)
    harm(clone_of(tmp_path))
    again = trees if when == "during" else mirrors(forge, tmp_path).changes(change)
    assert everything(again, change) == wanted


PLANNING = """
import os, sys
from pathlib import Path
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.core.pulls.forge import Pull, PullRef, PullState
folder, url, base, head = sys.argv[1:]
pull = Pull(PullRef("Owner/Bridge", 7), "main", base, head, "", "a", "MEMBER", draft=False, state=PullState.OPEN)
trees = Mirrors(Path(folder), url, environ=os.environ).changes(pull)
found = trees.read_objects(trees.tree(head).values())
print(len(trees.change(base, head).paths), None in found.values())
"""


def test_two_processes_at_once_share_a_clone(forge: Forge, change: Pull, tmp_path: Path) -> None:
    forge.server.pause_s = 0.1
    command = [sys.executable, "-c", PLANNING, str(tmp_path), forge.server.url, change.base_sha, change.head_sha]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) for _ in range(3)]
    for process in started:
        out, err = process.communicate(timeout=HANG_S)
        assert (out, err) == (b"3 False\n", b"")
    assert forge.server.fetches <= 6


def test_threads_share_a_clone(forge: Forge, change: Pull, tmp_path: Path) -> None:
    shared = mirrors(forge, tmp_path)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(everything(shared.changes(change), change))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [everything(GitRepository(forge.bare), change)] * 4


@pytest.mark.parametrize(
    "left", ("packed-refs.lock", "config.lock", "HEAD.lock", "refs/kept/{name}.lock", "shallow.lock")
)
def test_a_lock_of_git_that_a_killed_fetch_left_is_removed(
    forge: Forge, change: Pull, tmp_path: Path, left: str
) -> None:
    everything(mirrors(forge, tmp_path).changes(change), change)
    pushed = replace(change, head_sha=forge.push("refs/pull/7/head", {"src/a.py": "a = 4\n"}))
    clone = clone_of(tmp_path).stat().st_ino
    names = [path.name for path in (clone_of(tmp_path) / "refs" / "kept").rglob("*") if path.is_file()]
    for name in names or [""]:
        lock = clone_of(tmp_path) / left.format(name=name)
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    assert mirrors(forge, tmp_path).changes(pushed).read_blob(pushed.head_sha, "src/a.py") == b"a = 4\n"
    assert clone_of(tmp_path).stat().st_ino == clone, "the whole clone was made again"
    assert not list(clone_of(tmp_path).glob("*.lock"))


def test_a_lock_that_is_never_given_back_is_reported(forge: Forge, change: Pull, tmp_path: Path) -> None:
    everything(mirrors(forge, tmp_path).changes(change), change)
    pushed = replace(change, head_sha=forge.push("refs/pull/7/head", {"src/a.py": "a = 4\n"}))
    lock = clone_of(tmp_path).with_name("bridge.git.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ForgeError, match="Another process has been fetching") as message:
            mirrors(forge, tmp_path, Bounds(lock_s=0.1)).changes(pushed)
    assert message.value.passing
    assert mirrors(forge, tmp_path).changes(pushed).read_blob(pushed.head_sha, "src/a.py") == b"a = 4\n"


@pytest.mark.parametrize(
    ("bounds", "pause_s", "message"),
    [
        (Bounds(git=GitLimits(time_s=5.0)), 1.0, "took more than 5 s"),
        (Bounds(fetch_bytes=1 << 20), 0.02, "brought more than 1 MiB"),
    ],
)
def test_a_fetch_that_takes_too_much_is_stopped(
    forge: Forge, change: Pull, tmp_path: Path, bounds: Bounds, pause_s: float, message: str
) -> None:
    noise = base64.b64encode(os.urandom(4 << 20)).decode()
    large = replace(change, head_sha=forge.push("refs/pull/7/head", {"noise.txt": noise}))
    limited = mirrors(forge, tmp_path, bounds).changes(large)
    forge.server.pause_s = pause_s
    with pytest.raises(ForgeError, match=message):
        limited.read_blob(large.head_sha, "noise.txt")
    forge.server.pause_s = 0.0
    assert limited.read_blob(large.head_sha, "src/a.py") == b"a = 2\n"
    assert not list(clone_of(tmp_path).rglob("tmp_*"))


def test_a_clone_that_grew_too_large_is_made_again(forge: Forge, change: Pull, tmp_path: Path) -> None:
    everything(mirrors(forge, tmp_path).changes(change), change)
    before = clone_of(tmp_path).stat().st_ino
    pushed = replace(change, head_sha=forge.push("refs/pull/7/head", {"src/a.py": "a = 5\n"}))
    trees = mirrors(forge, tmp_path, Bounds(disk_bytes=100)).changes(pushed)
    assert clone_of(tmp_path).stat().st_ino != before
    assert everything(trees, pushed) == everything(GitRepository(forge.bare), pushed)


def test_packs_are_put_together_and_nothing_is_lost(forge: Forge, change: Pull, tmp_path: Path) -> None:
    bounded = mirrors(forge, tmp_path, Bounds(packs=3))
    heads = [forge.push("refs/pull/7/head", {"src/a.py": f"a = {at}\n"}) for at in range(10, 16)]
    for at, head in enumerate(heads, 10):
        trees = bounded.changes(replace(change, head_sha=head))
        assert trees.read_blob(head, "src/a.py") == f"a = {at}\n".encode()
    assert len(list(clone_of(tmp_path).rglob("*.pack"))) <= 4
    before = connections(forge)
    first = bounded.changes(replace(change, head_sha=heads[0]))
    assert first.read_blob(heads[0], "src/a.py") == b"a = 10\n"
    assert connections(forge) == before
    assert None not in first.read_objects(first.tree(heads[0]).values()).values()


@pytest.mark.parametrize("bounds", [Bounds(git=GitLimits(content_bytes=1000)), Bounds(git=GitLimits(read_bytes=1000))])
def test_a_content_that_unpacks_to_too_much_is_not_read(
    forge: Forge, change: Pull, tmp_path: Path, bounds: Bounds
) -> None:
    moved = {"src/a.py": "a = 2\n", "src/more.py": None, "src/zeros.py": "0" * 5000, "src/b.py": "more = 1\n"}
    large = replace(change, base_sha=change.head_sha, head_sha=forge.push("refs/pull/7/head", moved))
    trees = mirrors(forge, tmp_path, bounds).changes(large)
    assert trees.read_blob(large.head_sha, "src/zeros.py") is None
    assert trees.read_blob(large.head_sha, "src/b.py") == b"more = 1\n"
    found = trees.change(large.base_sha, large.head_sha)
    assert found.names() == ("src/b.py", "src/more.py", "src/zeros.py")
    assert not any(path.old_path for path in found.paths)


@pytest.mark.parametrize("name", ["../up", "a/..", "a/b/c", "a", "-x/y", "a/b c"])
def test_a_name_that_is_no_repository_is_refused(forge: Forge, change: Pull, tmp_path: Path, name: str) -> None:
    with pytest.raises(ForgeError, match="is not a repository: write owner/name"):
        mirrors(forge, tmp_path).changes(replace(change, ref=PullRef(name, 1)))
    assert not list(tmp_path.rglob("*.lock"))

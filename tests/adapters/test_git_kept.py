"""What is remembered of a repository: read once, bounded, and the same as what git says."""

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.adapters.test_git import Checkout
from tests.app.test_planning import BASE, CALLER, POLICY
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.app.plan_change import Planner
from verl_e2e.core.reach.entries import uses_of
from verl_e2e.git.repository import GitRepository


class CountedGit:
    """A folder for PATH whose git writes a line for each start before it becomes the real one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = str(folder)
        self._log = folder / "log"
        program = folder / "git"
        program.write_text(f'#!/bin/sh\necho "$@" >> {self._log}\nexec {shutil.which("git")} "$@"\n')
        program.chmod(0o755)

    @property
    def started(self) -> int:
        """How many were started."""
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "work")


@pytest.fixture
def counted(tmp_path: Path) -> CountedGit:
    return CountedGit(tmp_path / "bin")


def test_a_commit_is_listed_once_whatever_is_asked_of_it(checkout: Checkout, counted: CountedGit) -> None:
    checkout.write("src/a.py", "1\n")
    checkout.write("src.py", "2\n")
    os.symlink("a.py", checkout.path / "src" / "link")
    commit = checkout.commit()
    repository = GitRepository(checkout.path, environ={"PATH": counted.path})
    whole = repository.tree(commit)
    before = counted.started
    assert repository.tree(commit, "src/") == repository.tree(commit, "src") == {"src/a.py": whole["src/a.py"]}
    assert repository.tree(commit, "src.py") == {"src.py": whole["src.py"]}
    assert repository.tree(commit, "sr") == {}
    assert list(repository.links(commit)) == ["src/link"]
    assert counted.started == before
    assert repository.read_blob(commit, "src/a.py") == b"1\n"
    assert repository.read_blob(commit, "src/link") == b"a.py"
    assert repository.read_blob(commit, "src") is repository.read_blob(commit, "src/a.py/") is None


def test_a_content_is_read_once(checkout: Checkout, counted: CountedGit) -> None:
    checkout.write("a", "1\n")
    checkout.write("b", "2\n")
    commit = checkout.commit()
    repository = GitRepository(checkout.path, environ={"PATH": counted.path})
    ids = list(repository.tree(commit).values())
    first = repository.read_objects(ids)
    before = counted.started
    assert repository.read_objects(ids) == first == dict(zip(ids, (b"1\n", b"2\n"), strict=True))
    assert counted.started == before
    missing = "0" * len(ids[0])
    assert repository.read_objects([*ids, missing]) == {**first, missing: None}


@pytest.mark.parametrize(("kind", "most"), (("first", 14), ("next", 8)))
def test_a_plan_starts_few_git_processes_however_many_files_differ(
    checkout: Checkout, counted: CountedGit, kind: str, most: int
) -> None:
    for path, text in BASE.items():
        checkout.write(path, str(text))
    for number in range(20):
        checkout.write(f"src/lib/more{number}.py", "def f():\n    return 1\n")
    commits = [checkout.commit()]
    for value in (2, 3):
        for number in range(20):
            checkout.write(f"src/lib/more{number}.py", f"def f():\n    return {value}\n")
        checkout.write("src/lib/peft.py", f"def save():\n    return {value}\n")
        commits.append(checkout.commit())
    repository = GitRepository(checkout.path, environ={"PATH": counted.path})
    uses = uses_of({path: text.encode() for path, text in CALLER.items()}, "lib", "verl")
    planner = Planner(repository, uses, SummaryCache())
    for base, head in pairwise(commits[: 2 if kind == "first" else 3]):
        before = counted.started
        planned = planner.plan(base, head, POLICY)
    assert len(planned.change.paths) == 21
    assert counted.started - before <= most

"""The user's repositories, read without a byte left in them, and private trees that borrow their objects."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from verl_e2e.core.model.jobs import Repository
from verl_e2e.git.program import Finished, Git, Limits
from verl_e2e.git.repository import GitError, GitRepository

_LIMITS = Limits(time_s=300.0)


class RepositoryError(Exception):
    """A repository cannot give what the job asks for: `summary` says what was found, `fix` what to do."""

    def __init__(self, summary: str, fix: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.fix = fix


class DamagedRepositoryError(RepositoryError):
    """Objects of a repository are missing or cannot be read."""


def open_repository(path: Path, *, base: Mapping[str, str]) -> GitRepository:
    """The checkout or bare git directory at a path, for reading; GitError."""
    return GitRepository(path, environ=base, limits=_LIMITS, own_session=True)


def file_at(repository: Repository, path: str, *, base: Mapping[str, str]) -> str | None:
    """The text of a file at the repository's commit, None when it cannot be had; only reads."""
    try:
        content = open_repository(Path(repository.path), base=base).read_blob(repository.commit, path)
    except GitError:
        return None
    return None if content is None else content.decode(errors="replace")


def borrow(target: Path, objects: Path, *, base: Mapping[str, str]) -> GitRepository:
    """A new empty repository in `target` that reads the objects of another one where they are."""
    target.mkdir(parents=True, exist_ok=True)
    git = Git(target / ".git", target, base, _LIMITS, own_session=True)
    _done(git, git.borrow(objects), "init")
    return open_repository(target, base=base)


def check_out(repository: GitRepository, commit: str, patterns: Iterable[str]) -> None:
    """Write the files of `commit` that match the sparse patterns; HEAD is detached there, hooks do not run."""
    info = repository.git.git_dir / "info"
    info.mkdir(exist_ok=True)
    (info / "sparse-checkout").write_bytes(os.fsencode("".join(f"{pattern}\n" for pattern in patterns)))
    _write(repository.git, "config", "core.sparseCheckout", "true")
    _write(repository.git, "update-ref", "--no-deref", "HEAD", commit)
    _write(repository.git, "read-tree", "-m", "-u", commit)


def _write(git: Git, *arguments: str) -> None:
    _done(git, git.run(*arguments), *arguments)


def _done(git: Git, finished: Finished, *arguments: str) -> None:
    if not finished.ok:
        raise DamagedRepositoryError(
            f"git {arguments[0]} in {git.work_tree} {finished.ending}: {finished.error}",
            f"run `git -C {git.work_tree} {' '.join(arguments)}` by hand and fix the repository",
        )

"""Questions to a git repository that leave not a byte in it, and private trees that borrow its objects.

Nothing here runs a hook, a filter or a fetch of the repository that is asked: every command carries its own
configuration, and blobs that a partial clone lacks stay missing instead of being fetched into it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.model.jobs import Repository
from verl_e2e_runner.process.program import Finished, run

_SETTINGS = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "protocol.allow": "never",
    "init.defaultBranch": "main",
    "advice.detachedHead": "false",
    "gc.auto": "0",
}


class RepositoryError(Exception):
    """A repository cannot give what the job asks for: `summary` says what was found, `mend` what to do."""

    def __init__(self, summary: str, mend: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a commit: its path, and the blob's id."""

    path: str
    blob: str


@dataclass(frozen=True, slots=True)
class Git:
    """Git, run in `directory` with nothing of the user's configuration or environment but PATH."""

    directory: Path
    search_path: str

    def ask(self, *arguments: str, stdin: str = "") -> Finished:
        """Run one git command and hand back how it ended."""
        return run(
            ("git", *arguments), env=_environment(self.search_path), cwd=self.directory, timeout_s=300, stdin=stdin
        )

    def answer(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command that must succeed; RepositoryError names the command and git's own words."""
        finished = self.ask(*arguments, stdin=stdin)
        if finished.code != 0:
            raise RepositoryError(
                f"git {arguments[0]} in {self.directory} ended with {finished.ending}: {finished.last_error}",
                f"run `git -C {self.directory} {' '.join(arguments)}` by hand and mend the repository",
            )
        return finished.stdout

    def has_commit(self, commit: str) -> bool:
        """Whether the commit's object is here."""
        return self.ask("cat-file", "-e", f"{commit}^{{commit}}").code == 0

    def entries(self, commit: str, *paths: str) -> tuple[Entry, ...]:
        """The files of a commit below `paths` (all files without any), recursively; submodules are left out."""
        listing = self.answer("ls-tree", "-r", "-z", commit, "--", *paths)
        rows = (row.partition("\t") for row in listing.split("\0") if row)
        return tuple(Entry(path, meta.split()[2]) for meta, _, path in rows if meta.split()[1] == "blob")

    def root_files(self, commit: str) -> tuple[str, ...]:
        """The names of the files at the top of a commit's tree."""
        rows = (row.partition("\t") for row in self.answer("ls-tree", "-z", commit).split("\0") if row)
        return tuple(name for meta, _, name in rows if meta.split()[1] == "blob")

    def submodule_commit(self, commit: str, path: str) -> str | None:
        """The commit that a submodule is pinned to, None when `path` is no submodule of the commit."""
        listing = self.answer("ls-tree", "-z", commit, "--", path)
        kind, _, rest = listing.partition(" ")
        return rest.split()[1] if kind == "160000" else None

    def missing(self, blobs: Iterable[str]) -> frozenset[str]:
        """Those of the blobs that the repository (a partial clone) does not hold."""
        listing = self.answer("cat-file", "--batch-check", stdin="".join(f"{blob}\n" for blob in blobs))
        return frozenset(line.split()[0] for line in listing.splitlines() if line.endswith(" missing"))

    def dirty(self) -> tuple[str, ...]:
        """The checkout's changed and untracked files, relative to its top; reads only, the index stays as it is."""
        listing = self.answer("status", "--porcelain=v1", "-z", "--untracked-files=normal", "--no-renames")
        return tuple(sorted(row[3:] for row in listing.split("\0") if row))


def git_in(directory: Path, *, base: Mapping[str, str]) -> Git:
    """Git for a directory; of the environment `base` only PATH is used."""
    return Git(directory, base.get("PATH", "/usr/bin:/bin"))


def file_at(repository: Repository, path: str, *, base: Mapping[str, str]) -> str | None:
    """The text of a file at the repository's commit, None when it cannot be had; only reads."""
    folder = Path(repository.path)
    if not folder.is_dir():
        return None
    shown = git_in(folder, base=base).ask("cat-file", "blob", f"{repository.commit}:{path}")
    return shown.stdout if shown.code == 0 else None


def object_folder(path: Path, *, base: Mapping[str, str]) -> Path:
    """Where a checkout, a linked worktree, a submodule or a bare git directory keeps its objects."""
    if not path.is_dir():
        raise RepositoryError(f"{path} is not a folder", "give a checkout or a bare git directory as the path")
    finished = git_in(path, base=base).ask("rev-parse", "--path-format=absolute", "--git-path", "objects")
    if finished.code != 0:
        raise RepositoryError(
            f"{path} is not a git repository: {finished.last_error}", "give a checkout or a bare git directory"
        )
    return Path(finished.stdout.rstrip("\n"))


def borrow(target: Path, objects: Path, *, base: Mapping[str, str]) -> Git:
    """A new empty repository in `target` that reads the objects of another one where they lie."""
    target.mkdir(parents=True, exist_ok=True)
    git = git_in(target, base=base)
    git.answer("init", "--quiet", "--template=")
    info = target / ".git/objects/info"
    info.mkdir(exist_ok=True)
    (info / "alternates").write_text(f"{objects}\n")
    return git


def check_out(git: Git, commit: str, patterns: Iterable[str]) -> None:
    """Write the files of `commit` that match the sparse patterns; HEAD is detached there, hooks do not run."""
    info = git.directory / ".git/info"
    info.mkdir(exist_ok=True)
    (info / "sparse-checkout").write_text("".join(f"{pattern}\n" for pattern in patterns))
    git.answer("config", "core.sparseCheckout", "true")
    git.answer("update-ref", "--no-deref", "HEAD", commit)
    git.answer("read-tree", "-m", "-u", commit)


def _environment(search_path: str) -> dict[str, str]:
    environment = {
        "PATH": search_path,
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    }
    for position, (key, value) in enumerate(_SETTINGS.items()):
        environment[f"GIT_CONFIG_KEY_{position}"] = key
        environment[f"GIT_CONFIG_VALUE_{position}"] = value
    return environment

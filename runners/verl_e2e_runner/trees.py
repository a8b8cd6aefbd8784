"""The trees that a run imports from: private worktrees at the job's commits, or checkouts used as they stand.

A private tree is a repository of its own that borrows the objects of the user's (`objects/info/alternates`): the user's
repository is only read, and not even its `.git` learns of the run.

Repositories of a job that names addresses are fetched at the exact commits into bare clones that runs share. Each host
has clones of its own, also where hosts share the disk, so that a lock of this host's kernel is enough. A credential
goes to the host of the repository under test and to no other one.

Declared patches are exact substitutions in a private worktree, proved by digests before and after.
"""

import hashlib
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.model.change import readable
from verl_e2e.core.model.errors import ForgeError, LimitError
from verl_e2e.core.model.jobs import Job, Patch, Repository, RepositoryOrigin, RunOrder
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding, RepositoryState
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, Ordered, takes_token
from verl_e2e.git.clone import Bounds, Brings, Clone, WantedCommit
from verl_e2e.git.program import Finished, Git, GitLimits
from verl_e2e.git.repository import GitError, GitRepository, UnknownRevisionError
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.reporting import blocked, good, note

_LIMITS = GitLimits(time_s=300.0)


class UnfitRepositoryError(Exception):
    """A repository cannot give what the job asks for: `summary` says what was found, `fix` what to do."""

    def __init__(self, summary: str, fix: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.fix = fix


class DamagedRepositoryError(UnfitRepositoryError):
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
    for arguments in (
        ("config", "core.sparseCheckout", "true"),
        ("update-ref", "--no-deref", "HEAD", commit),
        ("read-tree", "-m", "-u", commit),
    ):
        _done(repository.git, repository.git.run(*arguments), *arguments)


def _done(git: Git, finished: Finished, *arguments: str) -> None:
    if not finished.ok:
        raise DamagedRepositoryError(
            f"git {arguments[0]} in {git.work_tree} {finished.ending}: {finished.error}",
            f"run `git -C {git.work_tree} {' '.join(arguments)}` by hand and fix the repository",
        )


TreeName = Literal["bridge", "megatron_lm", "verl"]
SUBMODULE = "3rdparty/Megatron-LM"
_BOUNDS = Bounds(
    git=GitLimits(time_s=1800.0, memory_bytes=4 << 30), lock_s=1800.0, fetch_bytes=4 << 30, disk_bytes=64 << 30
)
_FIX = f"see that this host reaches it, and that {TOKEN_VARIABLE} names a token where it is private; then rerun"


def with_clones(job: Ordered, folder: Path) -> Ordered:
    """The job with this host's clones below a folder in the place of the names of repositories that have an address.

    A repository that the job names by its place is the user's own: nothing is fetched into it.
    """
    own = folder.resolve() / "repositories" / (platform.node() or "host")
    named: dict[TreeName, Repository] = {"bridge": job.bridge}
    if isinstance(job, Job):
        named["verl"] = job.verl
    origins: Mapping[Any, RepositoryOrigin] = job.origins
    clones: dict[Any, object] = {}
    for name, repository in named.items():
        if name in origins and not Path(repository.path).is_absolute():
            # Hosts take the names of repositories in any case for the same one.
            parts = urlsplit(origins[name].url)
            path = parts.path.strip("/").removesuffix(".git").lower()
            folder_of_clone = own / f"{parts.netloc.replace(':', '_')}/{path}.git"
            clones[name] = repository.model_copy(update={"path": str(folder_of_clone)})
    if isinstance(job, Job) and job.megatron_lm is not None and job.has_core_of_bridge and "bridge" in clones:
        place = f"{cast('Repository', clones['bridge']).path}/{SUBMODULE}"
        clones["megatron_lm"] = job.megatron_lm.model_copy(update={"path": place})
    # Bridge's clone holds the one of Megatron-LM.
    fetched = clones.keys() | ({"megatron_lm"} if "bridge" in clones else set())
    kept = {name: origin for name, origin in origins.items() if name in fetched}
    return cast("Ordered", job.model_copy(update={**clones, "origins": kept}))


def fetch(job: RunOrder, name: TreeName, commit: str, *, base: Mapping[str, str], renewed: bool = False) -> None:
    """See that a clone has a commit, from the job's address for it; UnfitRepositoryError.

    `renewed` makes a clone again that was found damaged. Nothing is done for a repository of the user's.
    """
    origins: Mapping[Any, RepositoryOrigin] = job.origins
    origin = origins.get(name)
    if origin is None:
        return
    # Where git itself keeps a submodule, so that it is found as in any other Bridge repository.
    places = {"bridge": job.bridge.path, "megatron_lm": f"{job.bridge.path}/modules/{SUBMODULE}"}
    places |= {"verl": job.verl.path} if isinstance(job, Job) else {}
    wanted = WantedCommit(commit, commit, origin.ref or commit)

    def token() -> str | None:
        """What the owner of this host keeps for fetching; OSError, ValueError."""
        file = base.get(TOKEN_VARIABLE, "")
        if not file or not takes_token(origin.url, job.origins.get("bridge")):
            return None
        return Path(file).read_text(encoding="ascii").strip()

    clone = Clone(
        Path(places[name]),
        _BOUNDS,
        url=origin.url,
        token=token,
        environ=base,
        credential=TOKEN_VARIABLE,
        brings=Brings.FILES,
    )
    try:
        if renewed:
            clone.renew(clone.generation())
        clone.bring_commits([wanted])
    except (ForgeError, GitError, OSError, ValueError) as error:
        raise UnfitRepositoryError(f"commit {commit} could not be fetched from {origin.url}: {error}", _FIX) from error


def fetch_baseline(job: Job, commit: str, *, base: Mapping[str, str]) -> str:
    """Fetch what a comparison with another commit of Bridge reads; why that failed, empty where it did not."""
    try:
        fetch(job, "verl", job.verl.commit, base=base)
        fetch(job, "bridge", job.bridge.commit, base=base)
        fetch(job, "bridge", commit, base=base)
    except UnfitRepositoryError as error:
        return str(error)
    return ""


_MARKER = ".git/verl-e2e"
# What a person does who has Megatron-LM elsewhere.
_NAME_MEGATRON_LM = "give `--megatron-lm` to `verl-e2e check` (in a job file: its `megatron_lm`)"


@dataclass(frozen=True, slots=True)
class Trees:
    """Where the run's sources are; all paths are resolved."""

    bridge: Path
    megatron_lm: Path
    verl: Path
    # The working directory of the starts.
    cwd: Path
    # The names of the trees that belong to the run: it may patch them and write byte code into them.
    private: frozenset[str] = frozenset()
    # What is known of each tree that is there.
    states: tuple[RepositoryState, ...] = ()
    # Where one of them blocks, folders may be missing or empty.
    findings: tuple[Finding, ...] = ()
    # How code of these trees is started; None where the host cannot isolate it.
    cage: Cage | None = None
    # The consumer's package, whose checkout is `verl`.
    package: str = "verl"

    @property
    def import_roots(self) -> dict[str, str]:
        """For each module under proof the folder below which its file must lie."""
        return {
            "megatron.bridge": str(self.bridge / "src"),
            "megatron.core": str(self.megatron_lm),
            self.package: str(self.verl),
        }

    def has(self, name: str) -> bool:
        """Whether the tree of `bridge`, `megatron_lm` or `verl` is there and as the job names it."""
        return any(state.name == name for state in self.states)

    def root(self, name: str) -> Path:
        """The tree of `bridge`, `megatron_lm` or `verl`."""
        return {"bridge": self.bridge, "megatron_lm": self.megatron_lm, "verl": self.verl}[name]


def planned_trees(job: Job, work: Path, *, caged: bool = False) -> Trees:
    """The paths that `prepare_trees` will fill; touches nothing.

    `caged`: the run may write nothing but the folder `suspect` below `work`, so its working directory lies there.
    """
    work = work.resolve()
    bridge = Path(job.bridge.path).resolve() if job.bridge.in_place else work / "bridge"
    verl = Path(job.verl.path).resolve() if job.verl.in_place else work / "verl"
    core = bridge / SUBMODULE
    if job.megatron_lm is not None and job.megatron_lm.in_place:
        core = Path(job.megatron_lm.path).resolve()
    elif job.megatron_lm is not None and job.bridge.in_place:
        core = work / "megatron_lm"
    private = {"bridge": not job.bridge.in_place, "verl": not job.verl.in_place}
    private["megatron_lm"] = core.is_relative_to(work)
    names = frozenset(name for name, ours in private.items() if ours)
    cwd = work / "suspect" / "verl" if caged else work / "verl-cwd" if job.verl.in_place else verl
    return Trees(bridge, core, verl, cwd, names, package=consumer_of(job).package)


def prepare_trees(job: Job, work: Path, *, base: Mapping[str, str], caged: bool = False) -> Trees:
    """Make the private trees below `work`, read those in place, and say of each what it is.

    `base` is the runner's environment (only PATH is used). Nothing is raised for a commit or object that is
    nowhere: the finding says so.
    """
    trees = planned_trees(job, work, caged=caged)
    states: list[RepositoryState] = []
    findings: list[Finding] = []
    for name in ("verl", "bridge", "megatron_lm"):
        try:
            state, notes = _provide(name, job, trees, base=base)
        except (UnfitRepositoryError, GitError, LimitError) as error:
            hint = error.fix if isinstance(error, UnfitRepositoryError) else "give a repository that git can read"
            findings.append(blocked(Check.REPOSITORIES, f"{name}: {error}", hint, stage=Stage.IMPORT))
            continue
        states.append(state)
        kind = "private worktree" if name in trees.private else "used in place"
        dirty = f", {len(state.dirty)} dirty files" if state.dirty else ""
        there = f"{state.name} {state.commit} at {state.root} ({kind}{dirty})"
        findings += [good(Check.REPOSITORIES, there), *notes]
    if trees.cwd != trees.verl and any(state.name == "verl" for state in states):
        # The run may not write into verl's tree: links to it in a folder of its own, and relative outputs land there.
        trees.cwd.mkdir(parents=True, exist_ok=True)
        for entry in trees.verl.iterdir():
            link = trees.cwd / entry.name
            if entry.name not in (".git", "outputs", "checkpoints") and not link.is_symlink():
                link.symlink_to(entry)
    return replace(trees, states=tuple(states), findings=tuple(findings))


def _provide(
    name: TreeName, job: Job, trees: Trees, *, base: Mapping[str, str]
) -> tuple[RepositoryState, tuple[Finding, ...]]:
    root = trees.root(name)
    if name == "megatron_lm":
        commit, sources = _megatron(job, trees, base=base)
        if commit is None:
            return RepositoryState(name=name, root=str(root), commit=job.bridge.commit), ()
    else:
        repository = job.verl if name == "verl" else job.bridge
        fetch(job, name, repository.commit, base=base)
        commit, sources = repository.commit, (Path(repository.path),)
    if name not in trees.private:
        dirty = _dirty_files(_in_place(root, commit, base=base))
        return RepositoryState(name=name, root=str(root), commit=commit, dirty=dirty), ()
    try:
        _fill(name, root, commit, sources, job, base=base)
    except (DamagedRepositoryError, GitError):
        if name not in job.origins:
            raise
        fetch(job, name, commit, base=base, renewed=True)
        _fill(name, root, commit, sources, job, base=base)
    notes: tuple[Finding, ...] = ()
    with suppress(GitError):
        # The user's checkout may have uncommitted changes, which the private tree does not have.
        source = sources[0]
        if dirty := _dirty_files(open_repository(source, base=base)) if (source / ".git").exists() else ():
            shown = ", ".join(dirty[:3]) + (" ..." if len(dirty) > 3 else "")
            summary = f"{name}: {source} has {len(dirty)} uncommitted files that are not part of this run: {shown}"
            notes = (note(Check.REPOSITORIES, summary, "commit them, or use the checkout with in_place"),)
    return RepositoryState(name=name, root=str(root), commit=commit), notes


def _in_place(root: Path, commit: str, *, base: Mapping[str, str]) -> GitRepository:
    """A checkout that is used as it stands, at the commit that the job names."""
    if not root.is_dir() or not any(root.iterdir()):
        raise UnfitRepositoryError(f"{root} is missing or empty", "check the repository out, submodules too")
    if not (root / ".git").exists():
        raise UnfitRepositoryError(
            f"{root} is used in place but is not the top of a git checkout", "give a checkout, or drop in_place"
        )
    repository = open_repository(root, base=base)
    head = repository.resolve("HEAD")
    if head != commit:
        raise UnfitRepositoryError(
            f"{root} is used in place and is at {head}, but the job names {commit}",
            f"check {commit} out there, or drop in_place so that the runner makes its own worktree",
        )
    return repository


def _fill(
    name: TreeName, root: Path, commit: str, sources: tuple[Path, ...], job: Job, *, base: Mapping[str, str]
) -> None:
    """Check the needed paths of `commit` out into `root` from the first source that has the commit."""
    if root.resolve() != root:
        # Only a commit under test can have put it there, and what is written here is written outside of the cage.
        raise UnfitRepositoryError(
            f"a link leads from {root} to elsewhere", "make it a folder, or a submodule, in the commit"
        )
    if (root / _MARKER).exists():
        shutil.rmtree(root)
    elif root.exists() and any(root.iterdir()):
        raise UnfitRepositoryError(
            f"{root} exists and was not made by the runner", "choose an empty output folder, or move it away"
        )
    for source in sources:
        repository = borrow(root, open_repository(source, base=base).objects_folder(), base=base)
        (root / _MARKER).touch()
        with suppress(UnknownRevisionError):
            check_out(repository, commit, _patterns(repository, commit, name, job, source))
            return
    tried = f"does not exist in {', '.join(map(str, sources))}" if sources else "is in no repository that is known here"
    fix = f"fetch it: git -C {sources[0] if sources else '<repository>'} fetch origin {commit}"
    if name == "megatron_lm":
        fix = f"run git submodule update --init {SUBMODULE} in the Bridge checkout, or {_NAME_MEGATRON_LM}"
    raise UnfitRepositoryError(f"commit {commit} {tried}", fix)


def _patterns(repository: GitRepository, commit: str, name: TreeName, job: Job, source: Path) -> list[str]:
    """Sparse patterns for what is needed and held; a missing blob that is required is a problem."""
    required: tuple[str, ...] = ("megatron",)
    optional: tuple[str, ...] = ()
    patched = tuple(patch.file for patch in job.patches if patch.repository == name)
    if name == "bridge":
        tests = tuple(test.partition("::")[0] for test in job.bridge_tests)
        required, optional = ("src", *patched), ("tests", "scripts", "examples", "tools", "tutorials", "skills", *tests)
    elif name == "verl":
        consumer = consumer_of(job)
        required = (consumer.package, *filter(None, consumer.import_folders), job.script, *patched)
        optional = ("scripts", "examples/data_preprocess", "examples/train/gsm8k", str(Path(job.script).parent))
    files = {entry.path: entry.id for entry in repository.entries(commit) if entry.kind == "blob"}
    held = repository.sizes(files.values())
    patterns: list[str] = []
    for path in dict.fromkeys((*required, *optional, *(name for name in files if "/" not in name))):
        below = [name for name in files if name == path or name.startswith(f"{path}/")]
        present = [name for name in below if files[name] in held]
        if path in required and not below:
            raise UnfitRepositoryError(f"{path} does not exist at {commit}", "give a commit that has it")
        if path in required and len(present) < len(below):
            raise DamagedRepositoryError(
                f"{len(below) - len(present)} files below {path} at {commit} are not in {source}, a partial clone",
                f"fetch them: git -C {source} fetch --refetch --filter=blob:limit=100m origin {commit}",
            )
        patterns += [f"/{path}"] if len(present) == len(below) else [f"/{name}" for name in present]
    return patterns


def _megatron(job: Job, trees: Trees, *, base: Mapping[str, str]) -> tuple[str | None, tuple[Path, ...]]:
    """Megatron-LM's commit and where to look for it; None when Bridge's commit carries it as plain files."""
    named = job.megatron_lm
    if named is not None and not job.has_core_of_bridge:
        return named.commit, (Path(named.path),)
    if not trees.bridge.is_dir():
        raise UnfitRepositoryError(
            "not prepared, because the bridge tree is missing", "fix the bridge repository first"
        )
    repository = open_repository(trees.bridge, base=base)
    commit = named.commit if named is not None else repository.submodule_commit(job.bridge.commit, SUBMODULE)
    if commit is None and not repository.tree(job.bridge.commit, SUBMODULE):
        raise UnfitRepositoryError(f"Bridge {job.bridge.commit} has no {SUBMODULE}", _NAME_MEGATRON_LM)
    if commit is not None:
        fetch(job, "megatron_lm", commit, base=base)
    # Where a Bridge repository may keep Megatron-LM's objects.
    git_folder = open_repository(Path(job.bridge.path), base=base).objects_folder().parent
    in_tree, in_git = Path(job.bridge.path) / SUBMODULE, git_folder / "modules" / SUBMODULE
    # A commit can hold a folder `objects`, so that it looks like a git directory with a configuration; never a `.git`.
    kept = ((in_tree, (in_tree / ".git").exists()), (in_git, (in_git / "objects").is_dir()))
    return commit, tuple(path for path, is_there in kept if is_there)


def _dirty_files(repository: GitRepository) -> tuple[str, ...]:
    return tuple(map(readable, repository.dirty_files()))


def apply_patches(job: Job, trees: Trees) -> Trees:
    """Apply every patch of the job to its private tree; the trees come back with the findings and names added."""
    findings: list[Finding] = [] if job.patches else [good(Check.PATCHES, "the job declares none")]
    applied: dict[str, list[str]] = {}
    for patch in job.patches:
        root = trees.root(patch.repository)
        place = f"patch {patch.name}: {patch.repository} {patch.file}"
        if not trees.has(patch.repository):
            untried = f"{place}: not tried, because the repository is not as the job needs it"
            findings.append(note(Check.PATCHES, untried))
            continue
        try:
            done = _apply(patch, root, private=patch.repository in trees.private)
        except UnfitRepositoryError as error:
            findings.append(blocked(Check.PATCHES, f"{place}: {error.summary}", error.fix))
            continue
        findings.append(good(Check.PATCHES, f"{place}: {done}"))
        applied.setdefault(patch.repository, []).append(patch.name)
    states = tuple(
        state.model_copy(update={"patches": (*state.patches, *applied.get(state.name, ()))}) for state in trees.states
    )
    return replace(trees, states=states, findings=(*trees.findings, *findings))


def _apply(patch: Patch, root: Path, *, private: bool) -> str:
    """Apply a patch to the tree at `root`; what was done, or an UnfitRepositoryError, and the file is as it was."""
    if not private:
        fix = f"drop in_place of {patch.repository}, or remove the patch from the job"
        raise UnfitRepositoryError(f"{root} is used in place and is never changed", fix)
    file = root / patch.file
    if not file.resolve().is_relative_to(root) or not file.is_file():
        raise UnfitRepositoryError(f"no such file in {root}", "declare the patch for a file of the commit")
    text = file.read_bytes()
    if _digest(text) == patch.after:
        return f"already as patched ({patch.after[:12]})"
    if _digest(text) != patch.before:
        raise UnfitRepositoryError(
            f"digest {_digest(text)} is neither the one before ({patch.before}) nor the one after ({patch.after})",
            "declare the patch again for this commit, or remove it if the commit no longer needs it",
        )
    for position, change in enumerate(patch.substitutions, 1):
        found = text.count(change.old.encode())
        if found != change.count:
            summary = f"substitution {position} occurs {found} times, {change.count} declared"
            raise UnfitRepositoryError(summary, "declare the substitution again for this commit")
        text = text.replace(change.old.encode(), change.new.encode())
    if _digest(text) != patch.after:
        summary = f"the substitutions give digest {_digest(text)}, declared is {patch.after}"
        raise UnfitRepositoryError(summary, "correct `after` or the substitutions")
    file.write_bytes(text)
    return f"applied, {patch.before[:12]} -> {patch.after[:12]}; {patch.reason}"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()

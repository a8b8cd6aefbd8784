"""A rehearsal of a change with real repositories: which commits, what they change, and the verdict on their records."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_e2e.adapters.files.run_folder import OBSERVED_FILE, RUN_NOTE, read_document, read_records
from verl_e2e.app.analysis import functions_between
from verl_e2e.config.maps import packaged_uses
from verl_e2e.core.compare.cell_map import CellMap, CellRow, cell_map, with_outcomes
from verl_e2e.core.compare.rehearsal import (
    DifferingFiles,
    FaultTargets,
    Observed,
    ObserveLimits,
    Rehearsal,
    RehearsedCommit,
    RehearsedPair,
    RunNote,
    Wanted,
    judge_rehearsal,
    observable,
)
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, ChangedFunction
from verl_e2e.core.model.jobs import RehearsalJob
from verl_e2e.core.reach.bump import MEGATRON_CODE
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import find_megatron_lm, policy_of

BRIDGE_SOURCES = "src/"
_BRIDGE_CODE, _MEGATRON_SOURCES = "src/megatron/", "megatron/"


@dataclass(frozen=True, slots=True)
class RehearsalOrder:
    """What the user asked `rehearse` for, as typed."""

    repo: Path
    base: str
    head: str
    megatron_lm: Path | None
    policy: Path | None
    # The cells to run, and whether they are all of the table.
    cells: tuple[str, ...]
    whole: bool
    # How many faults are put into changed functions.
    observe: ObserveLimits


# Runs the cells over a commit, with the folder of its base's records, None for a base; gives the folder with its own.
RunTree = Callable[[RehearsedCommit, Wanted, Path | None], Path]
# Brings a commit of Bridge or of Megatron-LM to this host.
Fetch = Callable[[Literal["bridge", "megatron_lm"], str], None]


def rehearse_change(
    order: RehearsalOrder, run_tree: RunTree, rows: Iterable[CellRow], say: Callable[[str], None]
) -> tuple[Rehearsal, CellMap]:
    """Run the cells over the merge base and the head; what the change does, and what the cells entered of the head.

    `rows` are those of the whole table.
    """
    bridge = GitRepository(order.repo)
    change = bridge.change(order.base, order.head)
    base, head = change.merge_base or change.base, change.head
    megatron = _megatron_lm(order.repo, order.megatron_lm)
    policy = policy_of(bridge, order.base, order.policy)
    runs, changed = tree_runs(bridge, megatron, (base, head), policy.recipes, order.cells, order.observe)
    folders = list[Path]()
    for name, (commit, wanted) in zip(("base", "head"), runs, strict=True):
        say(f"rehearsing the {name}, Bridge {commit.commit[:12]} with Megatron-LM {commit.megatron_lm_commit[:12]}")
        folders.append(run_tree(commit, wanted, folders[0] if folders else None))
    faults, records = runs[1][1].faults, read_records(folders[1], order.cells)
    found = judge_rehearsal(
        read_records(folders[0], order.cells),
        records,
        changed,
        asked=order.cells,
        whole=order.whole,
        observed=None if faults is None else read_document(folders[1] / OBSERVED_FILE, Observed) or Observed(),
        observe=order.observe,
        run=read_document(folders[1] / RUN_NOTE, RunNote),
    )
    files = megatron.tree(runs[1][0].megatron_lm_commit, MEGATRON_CODE)
    of_bump = {f"{MEGATRON_LM_FOLDER}/{name}": blob for name, blob in files.items()}
    paths = {function.path for function in changed}
    blobs = {**bridge.tree(head, BRIDGE_SOURCES), **{path: blob for path, blob in of_bump.items() if path in paths}}
    return found, cell_map(head, blobs, records, with_outcomes(rows, found))


def tree_runs(
    bridge: GitRepository,
    megatron: GitRepository,
    commits: tuple[str, str],
    recipes: Mapping[str, object],
    cells: tuple[str, ...],
    observe: ObserveLimits,
) -> tuple[RehearsedPair, tuple[ChangedFunction, ...]]:
    """What is to run over a base and a head of Bridge, and the functions that differ between them."""
    base, head = commits
    pins = _pin(bridge, base), _pin(bridge, head)
    changed = [*functions_between(bridge, *commits, _BRIDGE_CODE)]
    differing = dict(_differing_files(bridge, *commits, BRIDGE_SOURCES))
    if pins[0] != pins[1]:
        changed += functions_between(megatron, *pins, MEGATRON_CODE, f"{MEGATRON_LM_FOLDER}/")
        of_bump = _differing_files(megatron, *pins, _MEGATRON_SOURCES)
        differing |= {f"{MEGATRON_LM_FOLDER}/{path}": contents for path, contents in of_bump.items()}
    functions: dict[str, tuple[int, ...]] = {}
    for function in observable(changed):
        name = f"{function.path}:{function.symbol}"
        functions[name] = (*functions.get(name, ()), *function.lines)
    faults = FaultTargets(functions, observe) if functions and observe.functions else None
    old, new = (
        RehearsedCommit(str(bridge.path), commit, str(megatron.path), pin)
        for commit, pin in zip(commits, pins, strict=True)
    )
    imports = consumer_imports()
    head_wanted = Wanted(cells, recipes, imports, faults, differing)
    return ((old, Wanted(cells, recipes, imports)), (new, head_wanted)), tuple(changed)


def _differing_files(trees: GitRepository, base: str, head: str, below: str) -> DifferingFiles:
    """The files below a folder that differ between two commits, and whatever of all else decides how they look."""
    sides = trees.tree(base), trees.tree(head)
    blobs = {
        path: (sides[0].get(path), sides[1].get(path))
        for path in dict.fromkeys([*sides[0], *sides[1]])
        if sides[0].get(path) != sides[1].get(path) and (path.startswith(below) or path.endswith(".gitattributes"))
    }
    contents = trees.read_objects({blob for pair in blobs.values() for blob in pair if blob is not None})
    # What is imported through a link is recorded by the link's name.
    links = {path for commit in (base, head) for path in trees.links(commit) if path.startswith(below)}
    of_files = {path: (contents.get(old or ""), contents.get(new or "")) for path, (old, new) in blobs.items()}
    return {**of_files, **dict.fromkeys(links, (None, None))}


def ordered_runs(job: RehearsalJob, cells: tuple[str, ...], fetch: Fetch) -> RehearsedPair:
    """What is to run for an ordered rehearsal, on a host where `fetch` brings a commit.

    Raises UserError and UnfitRepositoryError.
    """
    for commit in (job.bridge.commit, job.base):
        fetch("bridge", commit)
    bridge = GitRepository(job.bridge.path)
    for commit in (job.bridge.commit, job.base):
        fetch("megatron_lm", _pin(bridge, commit))
    megatron = _megatron_lm(Path(job.bridge.path), None)
    return tree_runs(bridge, megatron, (job.base, job.bridge.commit), job.recipes, cells, ObserveLimits())[0]


def consumer_imports() -> tuple[Mapping[str, object], ...]:
    """What verl imports of Bridge, each name once; `guarded` where verl does without it everywhere."""
    found: dict[tuple[str, str | None], bool] = {}
    for entry in packaged_uses().entries:
        if entry.module:
            key = entry.module, entry.attribute
            found[key] = found.get(key, True) and entry.guarded
    return tuple(
        {"module": module, "attribute": attribute, "guarded": guarded}
        for (module, attribute), guarded in sorted(found.items(), key=str)
    )


def _megatron_lm(repo: Path, named_place: Path | None) -> GitRepository:
    """The repository that has Megatron-LM's commits."""
    if found := find_megatron_lm(repo, named_place):
        return found
    raise UserError(f"{repo} has no checkout of {MEGATRON_LM_FOLDER}; give a Megatron-LM repository by --megatron-lm")


def _pin(bridge: GitRepository, commit: str) -> str:
    """The commit of Megatron-LM that a Bridge commit pins."""
    pin = bridge.submodule_commit(commit, MEGATRON_LM_FOLDER)
    if pin is None:
        raise UserError(f"Bridge {commit} has no submodule {MEGATRON_LM_FOLDER}; give a commit that has it")
    return pin

"""A rehearsal of a change with real repositories: which commits, what they change, and the verdict on their records."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from verl_e2e.config.callers import packaged_uses
from verl_e2e.core.compare.observation import Faults, Observed, ObserveLimits, observable
from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    MOST_BYTES,
    MOST_BYTES_OF_ALL,
    CellRecord,
    Rehearsal,
    RunNote,
    judge_rehearsal,
)
from verl_e2e.core.model.changed_code import ChangedFunction
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.reach.changes import compare
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import policy_of

SUBMODULE = "3rdparty/Megatron-LM"
_BRIDGE_CODE, _MEGATRON_CODE = "src/megatron/", "megatron/"


# Files of a folder of records besides those of cells: what was tried at the head, and how the driver ran.
OBSERVED, RUN_NOTE = "observed.json", "run.json"


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


@dataclass(frozen=True, slots=True)
class TreeRun:
    """What is to run over one tree."""

    # Bridge's commit, and Megatron-LM's with a repository that has it.
    commit: str
    megatron_lm_commit: str
    megatron_lm: Path
    # Of the families, by name, how their models are made.
    recipes: Mapping[str, object]
    # What a consumer imports.
    imports: tuple[Mapping[str, object], ...]
    cells: tuple[str, ...]
    # None where no faults are tried.
    faults: Faults | None = None


# Runs the cells over a tree; gives the folder with the records.
RunTree = Callable[[TreeRun], Path]


def rehearse(order: RehearsalOrder, run_tree: RunTree, say: Callable[[str], None]) -> Rehearsal:
    """Run the cells over the merge base and the head, and judge what the change does."""
    bridge = GitRepository(order.repo)
    change = bridge.change(order.base, order.head)
    base, head = change.merge_base or change.base, change.head
    megatron = _megatron_lm(order)
    policy = policy_of(bridge, order.base, order.policy)
    recipes = {
        family.name: family.synthetic.recipe.model_dump(mode="json") for family in policy.families if family.synthetic
    }
    pins = _pin(bridge, base), _pin(bridge, head)
    changed = [*_changed(bridge, (base, head), _BRIDGE_CODE, "")]
    if pins[0] != pins[1]:
        changed += _changed(megatron, pins, _MEGATRON_CODE, f"{SUBMODULE}/")
    faults = _faults(changed, order.observe)
    folders = []
    for name, commit, pin, tried in (("base", base, pins[0], None), ("head", head, pins[1], faults)):
        say(f"rehearsing the {name}, Bridge {commit[:12]} with Megatron-LM {pin[:12]}")
        run = TreeRun(commit, pin, megatron.path, recipes, consumer_imports(), order.cells, tried)
        folders.append(run_tree(run))
    return judge_rehearsal(
        read_records(folders[0], order.cells),
        read_records(folders[1], order.cells),
        changed,
        asked=order.cells,
        whole=order.whole,
        observed=None if faults is None else _read(folders[1] / OBSERVED, Observed) or Observed(),
        observe=order.observe,
        run=_read(folders[1] / RUN_NOTE, RunNote),
    )


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


def _faults(changed: Iterable[ChangedFunction], limits: ObserveLimits) -> Faults | None:
    functions: dict[str, tuple[int, ...]] = {}
    for function in observable(changed):
        name = f"{function.path}:{function.symbol}"
        functions[name] = (*functions.get(name, ()), *function.lines)
    return Faults(functions, limits) if functions and limits.functions else None


def _megatron_lm(order: RehearsalOrder) -> GitRepository:
    """The repository that has Megatron-LM's commits."""
    candidates = [
        order.repo / SUBMODULE,
        order.repo / ".git" / "modules" / SUBMODULE,
        order.repo / "modules" / SUBMODULE,
    ]
    named = [order.megatron_lm] if order.megatron_lm else []
    for path in (*named, *candidates):
        if (path / ".git").exists() or (path / "objects").is_dir():
            return GitRepository(path)
    raise UserError(f"{order.repo} has no checkout of {SUBMODULE}; give a Megatron-LM repository by --megatron-lm")


def _pin(bridge: GitRepository, commit: str) -> str:
    """The commit of Megatron-LM that a Bridge commit pins."""
    pin = bridge.submodule_commit(commit, SUBMODULE)
    if pin is None:
        raise UserError(f"Bridge {commit} has no submodule {SUBMODULE}; give a commit that has it")
    return pin


def read_records(folder: Path, cells: Iterable[str]) -> dict[str, CellRecord]:
    """The records of these cells and of the imports; one that cannot be read, or is another's, is not there."""
    found: dict[str, CellRecord] = {}
    left = MOST_BYTES_OF_ALL
    for name in (IMPORTS, *cells):
        file = folder / f"{name}.json"
        record = _read(file, CellRecord) if left > 0 else None
        if record is not None and record.cell == name:
            found[name] = record
            left -= file.stat().st_size
    return found


_Read = TypeVar("_Read", bound=Document)


def _read(file: Path, kind: type[_Read]) -> _Read | None:
    """A document in a file of the folder of records; None where there is none of this kind, or one that is too long."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        return None if len(data) > MOST_BYTES else kind.model_validate_json(data)
    except (OSError, ValidationError):
        return None


def _changed(repository: GitRepository, commits: tuple[str, str], below: str, prefix: str) -> Iterator[ChangedFunction]:
    """The functions that differ between two commits in Python files below a folder."""
    old, new = commits
    for path in repository.changed_paths(old, new, renames=False):
        if path.path.startswith(below) and path.path.endswith(".py"):
            contents = repository.read_blob(old, path.path), repository.read_blob(new, path.path)
            for function in compare(*contents).functions.changed:
                yield function.model_copy(update={"path": prefix + path.path})

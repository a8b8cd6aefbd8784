"""A rehearsal of a change with real repositories: which commits, what they change, and the verdict on their records."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from verl_e2e.core.compare.cell_map import CellMap, CellRow, cell_map, with_outcomes
from verl_e2e.core.compare.rehearsal import CellRecord, Rehearsal, judge_rehearsal
from verl_e2e.core.model.changed_code import ChangedFunction
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.reach.changes import compare
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import policy_of

SUBMODULE = "3rdparty/Megatron-LM"
BRIDGE_SOURCES = "src/"
_BRIDGE_CODE, _MEGATRON_CODE = "src/megatron/", "megatron/"


@dataclass(frozen=True, slots=True)
class RehearsalOrder:
    """What the user asked `rehearse` for, as typed."""

    repo: Path
    base: str
    head: str
    megatron_lm: Path | None
    policy: Path | None


# Runs the cells over Bridge's commit and Megatron-LM's; gives the folder with the records.
RunTree = Callable[[str, str, Path, Mapping[str, object]], Path]


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
    records = []
    for name, commit, pin in (("base", base, pins[0]), ("head", head, pins[1])):
        say(f"rehearsing the {name}, Bridge {commit[:12]} with Megatron-LM {pin[:12]}")
        records.append(read_records(run_tree(commit, pin, megatron.path, recipes)))
    changed = [*_changed(bridge, (base, head), _BRIDGE_CODE, "")]
    if pins[0] != pins[1]:
        changed += _changed(megatron, pins, _MEGATRON_CODE, f"{SUBMODULE}/")
    return judge_rehearsal(records[0], records[1], changed)


def cell_map_of(order: RehearsalOrder, folder: Path, rows: Iterable[CellRow], found: Rehearsal) -> CellMap:
    """What the cells entered of the head, by the folder with its records, with what became of each."""
    bridge = GitRepository(order.repo)
    head = bridge.resolve(order.head)
    records = read_records(folder)
    known = (row for row in with_outcomes(rows, found) if row.name in records)
    return cell_map(head, bridge.tree(head, BRIDGE_SOURCES), records, known)


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


def read_records(folder: Path) -> dict[str, CellRecord]:
    """The records of a folder by cell; one that cannot be read is one that is not there."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            document = json.loads(file.read_bytes())
            if isinstance(document, dict) and "cell" in document:
                record = CellRecord.model_validate(document)
                found[record.cell] = record
        except (ValueError, ValidationError):
            continue
    return found


def _changed(repository: GitRepository, commits: tuple[str, str], below: str, prefix: str) -> Iterator[ChangedFunction]:
    """The functions that differ between two commits in Python files below a folder."""
    old, new = commits
    for path in repository.changed_paths(old, new, renames=False):
        if path.path.startswith(below) and path.path.endswith(".py"):
            contents = repository.read_blob(old, path.path), repository.read_blob(new, path.path)
            for function in compare(*contents).functions.changed:
                yield function.model_copy(update={"path": prefix + path.path})

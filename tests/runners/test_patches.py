"""Declared patches: exact, proved by digest, and only ever in a private tree."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.runners.world import VERL, World
from verl_e2e.core.model.jobs import Patch, Repository, Substitution
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.trees import Trees, apply_patches, prepare_trees

FILE = "verl/utils/megatron_utils.py"
OLD, NEW = VERL[FILE], "KIND = 'new'\n"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def patch(**changes: Any) -> Patch:
    values: dict[str, Any] = {
        "name": "newer-class",
        "repository": "verl",
        "file": FILE,
        "substitutions": (Substitution(old="old", new="new"),),
        "before": digest(OLD),
        "after": digest(NEW),
        "reason": "the class has another name",
    }
    return Patch(**{**values, **changes})


def applied(world: World, tmp_path: Path, base: dict[str, str], *patches: Patch, **job: Any) -> tuple[Trees, Finding]:
    made = world.job(patches=patches, **job)
    trees = apply_patches(made, prepare_trees(made, tmp_path, base=base))
    return trees, next(finding for finding in trees.findings if finding.check is Check.PATCHES)


def test_a_patch_changes_the_private_tree_and_is_named(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    trees, finding = applied(world, tmp_path, base, patch())
    assert finding.ok
    assert (trees.verl / FILE).read_text() == NEW
    assert next(state for state in trees.states if state.name == "verl").patches == ("newer-class",)
    assert (world.verl / FILE).read_text() == OLD


def test_a_file_that_is_already_as_after_needs_nothing(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    trees, finding = applied(world, tmp_path, base, patch(before=digest("something else"), after=digest(OLD)))
    assert finding.ok
    assert (trees.verl / FILE).read_text() == OLD


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"before": "0" * 64}, ("neither", digest(OLD), "0" * 64, digest(NEW))),
        ({"after": "0" * 64}, ("the substitutions give", digest(NEW))),
        ({"substitutions": (Substitution(old="old", new="new", count=2),)}, ("occurs 1 times, 2 declared",)),
        ({"substitutions": (Substitution(old="absent", new="new"),)}, ("occurs 0 times",)),
        ({"file": "../outside.py"}, ("no such file",)),
    ],
)
def test_anything_else_blocks_and_leaves_the_file(
    changes: dict[str, Any], words: tuple[str, ...], world: World, tmp_path: Path, base: dict[str, str]
) -> None:
    made = world.job()
    trees = prepare_trees(made, tmp_path / "work", base=base)
    (tmp_path / "work/outside.py").write_text("old")
    bad = world.job(patches=(patch(**changes),))
    finding = apply_patches(bad, trees).findings[-1]
    assert finding.blocking
    assert not finding.ok
    assert "newer-class" in finding.summary
    assert all(word in finding.summary for word in words)
    assert (trees.verl / FILE).read_text() == OLD


def test_a_checkout_in_place_is_never_patched(world: World, tmp_path: Path, base: dict[str, str]) -> None:
    verl = Repository(path=str(world.verl), commit=world.verl_commit, in_place=True)
    trees, finding = applied(world, tmp_path, base, patch(), verl=verl)
    assert not finding.ok
    assert "in place" in finding.summary
    assert (trees.verl / FILE).read_text() == OLD

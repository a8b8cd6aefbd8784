"""A head that left the base earlier is planned with what the base has brought since: merging puts both together."""

import json
import lzma
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.fakes.places import FIXTURES
from tests.fakes.trees import FakeSummaries
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.maps import packaged_uses
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import ConsumerRules
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.walk import Entry
from verl_e2e.git.repository import GitRepository

Files = Mapping[str, str | None]
BRIDGE = "src/megatron/bridge/"
REACHED = f"{BRIDGE}peft/lora.py"
ASIDE, SCRIPT, MOVED = f"{BRIDGE}aside.py", "docs/aside.py", f"{BRIDGE}moved.py"
TEXT = """def first():
    return 1


# Kept apart, so that two edits of the file can be merged.


def second():
    one = 1
    two = one
    three = two
    return 2


# The end.
"""
EDITED = TEXT.replace("return 2", "return 3")
FORK = {
    **json.loads(lzma.decompress((FIXTURES / "reach" / "entered.json.xz").read_bytes()))["files"],
    ASIDE: TEXT,
    SCRIPT: TEXT,
}


def after(line: str) -> dict[str, str | None]:
    """What verl imports, with a line before it."""
    return {REACHED: f"{line}\n{FORK[REACHED]}"}


CALLS_FIRST = after("from megatron.bridge.aside import first; first()")
CALLS_SECOND = after("from megatron.bridge.aside import second; second()")
TRIES = "try: import megatron.bridge.later\nexcept ImportError: pass"


@dataclass(frozen=True)
class Case:
    """What the base has changed since, and what the head has: neither asks for anything where the other is not."""

    base: Files
    head: Files


BOTH = {
    "the base begins to import the file": Case(CALLS_FIRST, {ASIDE: f"import os\n{TEXT}"}),
    "the base begins to call the function": Case(CALLS_SECOND, {ASIDE: EDITED}),
    "it does so in a file that both change": Case(
        {**CALLS_FIRST, ASIDE: TEXT.replace("return 1", "return second()")}, {ASIDE: EDITED}
    ),
    "the base renames the function and calls it": Case(
        {**after("from megatron.bridge.aside import third; third()"), ASIDE: TEXT.replace("second", "third")},
        {ASIDE: EDITED},
    ),
    "the base tries to import what the head adds": Case(after(TRIES), {f"{BRIDGE}later.py": "raise RuntimeError\n"}),
    "the base begins to import what the head deletes": Case(CALLS_FIRST, {ASIDE: None}),
    "the base begins to import what the head moves": Case(CALLS_FIRST, {ASIDE: None, MOVED: TEXT}),
    "the base moves the file among the sources": Case(
        {**after("from megatron.bridge.moved import second; second()"), SCRIPT: None, MOVED: TEXT}, {SCRIPT: EDITED}
    ),
    "the base moves it there and changes it": Case(
        {
            **after("from megatron.bridge.moved import second; second()"),
            SCRIPT: None,
            MOVED: TEXT.replace("return 1", "return 4"),
        },
        {SCRIPT: EDITED},
    ),
}


@cache
def summaries() -> FakeSummaries:
    return FakeSummaries()


def repository(folder: Path, base: Files, head: Files) -> GitRepository:
    """A repository whose branches `base` and `head` left one commit."""
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
    stream = b""
    for mark, (branch, parent, edits) in enumerate(
        [("fork", 0, FORK), ("base", 1, {**FORK, **base}), ("head", 1, {**FORK, **head})], start=1
    ):
        stream += f"commit refs/heads/{branch}\nmark :{mark}\ncommitter a <a@b> {mark} +0000\ndata 0\n".encode()
        stream += f"from :{parent}\ndeleteall\n".encode() if parent else b""
        for path, text in edits.items():
            if text is not None:
                stream += f"M 100644 inline {path}\ndata {len(text.encode())}\n".encode() + text.encode() + b"\n"
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input=stream, check=True)
    return GitRepository(folder)


def planned(folder: Path, base: Files, head: Files) -> Plan:
    policy = packaged_policy().model_copy(update={"bridge_test_choice": None})
    opened = repository(folder, base, head)
    ends = opened.resolve("base"), opened.resolve("head")
    return Planner(opened, packaged_uses(), summaries()).plan(*ends, policy).plan


@pytest.mark.parametrize("case", BOTH)
def test_what_the_base_has_begun_to_run_since_is_planned(case: str, tmp_path: Path) -> None:
    found = planned(tmp_path, BOTH[case].base, BOTH[case].head)
    assert found.levels
    assert found.reasons[0].reason.startswith("merged with ")


@pytest.mark.parametrize("case", BOTH)
def test_without_it_the_same_head_needs_nothing(case: str, tmp_path: Path) -> None:
    assert planned(tmp_path, {}, BOTH[case].head).levels == ()


def test_no_rehearsal_of_the_head_spares_what_both_import(tmp_path: Path) -> None:
    first = f"{BRIDGE}data/__init__.py"
    alone = planned(tmp_path / "alone", {}, {first: f"{FORK[first]}\nLIMIT = [1]\n"})
    assert alone.differs_at_import_alone
    both = planned(tmp_path / "both", after("import megatron.bridge.aside"), {ASIDE: f"{TEXT}\nLIMIT = [1]\n"})
    assert [int(level) for level in both.levels] == [0]
    assert not both.differs_at_import_alone
    # What the head alone asks for at import hides nothing that the merge asks for too.
    head = {first: f"{FORK[first]}\nLIMIT = [1]\n", ASIDE: EDITED}
    assert not planned(tmp_path / "called", CALLS_SECOND, head).differs_at_import_alone


def test_a_base_that_moved_on_elsewhere_asks_for_nothing(tmp_path: Path) -> None:
    assert planned(tmp_path, CALLS_FIRST, {ASIDE: EDITED}).levels == ()


def test_the_change_itself_is_what_the_head_did(tmp_path: Path) -> None:
    found = planned(tmp_path, CALLS_SECOND, {ASIDE: EDITED, REACHED: f"{FORK[REACHED]}\nprint()\n"})
    assert {reason.path for reason in found.reasons} == {REACHED}


def test_a_conflict_is_planned_as_the_head_alone(tmp_path: Path) -> None:
    conflict = {ASIDE: TEXT.replace("return 2", "return 5"), **CALLS_SECOND}
    found = planned(tmp_path, conflict, {ASIDE: EDITED})
    assert (found.levels, found.incomplete) == ((), ())


def test_a_merge_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    repository(tmp_path, BOTH["it does so in a file that both change"].base, {ASIDE: EDITED})
    opened = GitRepository(tmp_path)
    blob = opened.tree(opened.resolve("base"))[ASIDE]
    subprocess.run(["git", "-C", str(tmp_path), "unpack-objects", "-q"], stdin=subprocess.DEVNULL, check=False)
    packs = list((tmp_path / "objects" / "pack").glob("*.pack"))
    for pack in packs:
        content = pack.read_bytes()
        for file in (tmp_path / "objects" / "pack").glob(f"{pack.stem}.*"):
            file.unlink()
        subprocess.run(["git", "-C", str(tmp_path), "unpack-objects", "-q"], input=content, check=True)
    (tmp_path / "objects" / blob[:2] / blob[2:]).unlink()
    policy = packaged_policy().model_copy(update={"bridge_test_choice": None})
    ends = opened.resolve("base"), opened.resolve("head")
    found = Planner(GitRepository(tmp_path), packaged_uses(), summaries()).plan(*ends, policy).plan
    assert "could not be merged: git merge-tree" in found.incomplete[0]


def test_a_merge_leaves_the_repository_as_it_was(tmp_path: Path) -> None:
    opened = repository(tmp_path, CALLS_SECOND, {ASIDE: EDITED})
    before = sorted(path for path in tmp_path.rglob("*"))
    merge = opened.merged(opened.resolve("base"), opened.resolve("head"))
    assert merge.commit is not None
    assert opened.read_blob(merge.commit, ASIDE) == EDITED.encode()
    assert opened.read_blob(merge.commit, REACHED) == str(CALLS_SECOND[REACHED]).encode()
    assert GitRepository(tmp_path).merged(opened.resolve("base"), opened.resolve("head")) == merge
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("when", ["differs", "reached"])
def test_another_trainer_runs_what_the_base_has_begun_to_run_in_its_way_since(when: str, tmp_path: Path) -> None:
    only = f"{BRIDGE}only.py"
    calls = {only: "from megatron.bridge.aside import second\n\n\ndef go():\n    return second()\n"}
    own = Uses((Entry("megatron.bridge.only", "go", "skyrl/a.py", 1),), (), "a commit")
    rules = ConsumerRules.model_validate({"level": "show", "when": when})

    def jobs(folder: Path, base: Files, head: Files) -> dict[str, str]:
        policy = packaged_policy().model_copy(update={"bridge_test_choice": None, "consumers": {SKYRL.name: rules}})
        opened = repository(folder, base, head)
        planner = Planner(opened, packaged_uses(), summaries(), others={SKYRL.title: own})
        found = planner.plan(opened.resolve("base"), opened.resolve("head"), policy).plan
        assert found.levels == ()
        return {job.id: job.reason for job in found.jobs}

    assert jobs(tmp_path / "both", calls, {ASIDE: EDITED})["0-lora-ddp-skyrl"] == "SkyRL runs second"
    assert jobs(tmp_path / "alone", {only: "def go():\n    return 1\n"}, {ASIDE: EDITED}) == {}
    # What the base runs by itself is no reason.
    assert jobs(tmp_path / "elsewhere", calls, {MOVED: EDITED}) == {}

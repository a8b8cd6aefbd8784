"""A head that left the base earlier is planned with what the base has brought since: merging puts both together."""

import json
import lzma
from functools import cache

import pytest

from tests.fakes.places import FIXTURES
from tests.fakes.trees import FakeSummaries, FakeTrees
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.callers import packaged_uses
from verl_e2e.config.policy import packaged_policy

BRIDGE = "src/megatron/bridge/"
REACHED = f"{BRIDGE}peft/lora.py"
ASIDE, SCRIPT, IN_SOURCES = f"{BRIDGE}aside.py", "docs/aside.py", f"{BRIDGE}moved.py"
CALLED = "def first():\n    return 1\n\n\ndef second():\n    return 2\n"
EDITED = CALLED.replace("return 2", "return 3")
FORK = {
    **json.loads(lzma.decompress((FIXTURES / "reach" / "entered.json.xz").read_bytes()))["files"],
    ASIDE: CALLED,
    SCRIPT: CALLED,
}
IMPORTS = f"from megatron.bridge.aside import first\n\nfirst()\n{FORK[REACHED]}"
CALLS_SECOND = f"from megatron.bridge.aside import second\n\nsecond()\n{FORK[REACHED]}"
GUARDED = f"try:\n    import megatron.bridge.later\nexcept ImportError:\n    pass\n{FORK[REACHED]}"
MOVED = {**{path: text for path, text in FORK.items() if path != SCRIPT}, IN_SOURCES: CALLED}
MOVED[REACHED] = CALLS_SECOND.replace("aside", "moved")


@cache
def summaries() -> FakeSummaries:
    return FakeSummaries()


def needs(tip: dict[str, str], head: dict[str, str]) -> tuple[list[int], str]:
    """The levels of a change by a head whose base has moved on, and the reasons for them."""
    policy = packaged_policy().model_copy(update={"bridge_test_choice": None})
    commits = {"fork": FORK, "tip": tip, "head": {**FORK, **head}}
    trees = FakeTrees(commits, renames={SCRIPT: IN_SOURCES}, forks={"head": "fork"})
    found = Planner(trees, packaged_uses(), summaries()).plan("tip", "head", policy).plan
    return [int(level) for level in found.levels], str(found)


# What the base has changed since, and what the head has: neither asks for anything where the other is not.
BOTH = {
    "the base begins to import the file": ({**FORK, REACHED: IMPORTS}, {ASIDE: f"import os\n{CALLED}"}),
    "the base begins to call the function": ({**FORK, REACHED: CALLS_SECOND}, {ASIDE: EDITED}),
    "it does so in a file that both change": (
        {**FORK, REACHED: IMPORTS, ASIDE: CALLED.replace("return 1", "return second()")},
        {ASIDE: EDITED},
    ),
    "the base tries to import what the head adds": (
        {**FORK, REACHED: GUARDED},
        {f"{BRIDGE}later.py": "raise RuntimeError\n"},
    ),
    "the base moves the file among the sources": (MOVED, {SCRIPT: EDITED}),
}


@pytest.mark.parametrize("case", BOTH)
def test_what_the_base_has_begun_to_run_since_is_reached(case: str) -> None:
    tip, head = BOTH[case]
    assert needs(tip, head)[0]


@pytest.mark.parametrize("case", BOTH)
def test_without_it_the_same_head_needs_nothing(case: str) -> None:
    assert needs(FORK, BOTH[case][1])[0] == []


def test_a_base_that_moved_on_elsewhere_asks_for_nothing() -> None:
    assert needs({**FORK, REACHED: f"# A comment.\n{IMPORTS}"}, {ASIDE: EDITED})[0] == []


def test_the_reason_names_the_tip() -> None:
    tip, head = BOTH["the base begins to call the function"]
    assert "the base branch leads to second at tip, which the head does not have" in needs(tip, head)[1]

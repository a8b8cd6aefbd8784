"""What verl uses is read once for each commit, and kept only when all of it could be read."""

from pathlib import Path

from tests.fakes.trees import FakeTrees, Files
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.app.plan_change import uses_at
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.policy import ReachPolicy
from verl_e2e.core.reach.entries import Uses

VERL: Files = {"verl/a.py": "from megatron.bridge import AutoBridge\n", "verl/b.py": "import megatron.bridge.peft\n"}
OTHER: Files = {"verl/a.py": "from megatron.bridge import Other\n"}


def reach(callers: str = "verl/") -> ReachPolicy:
    policy = packaged_policy()
    assert policy.reach is not None
    return policy.reach.model_copy(update={"callers": callers})


def names(uses: Uses) -> list[str]:
    return [f"{entry.module}:{entry.attribute}" for entry in uses.entries]


def test_a_commit_is_read_once(tmp_path: Path) -> None:
    first = uses_at(FakeTrees({"one": VERL}), "one", reach(), "verl", SummaryCache(tmp_path))
    assert names(first) == ["megatron.bridge:AutoBridge", "megatron.bridge.peft:None"]
    # Nothing could be read the second time, were it tried.
    unreadable = FakeTrees({"one": {}})
    assert uses_at(unreadable, "one", reach(), "verl", SummaryCache(tmp_path)) == first
    assert not uses_at(unreadable, "one", reach(), "verl").entries


def test_another_commit_folder_or_name_is_another_answer(tmp_path: Path) -> None:
    store, trees = SummaryCache(tmp_path), FakeTrees({"one": VERL, "two": OTHER})
    first = uses_at(trees, "one", reach(), "verl", store)
    assert names(uses_at(trees, "two", reach(), "verl", store)) == ["megatron.bridge:Other"]
    assert uses_at(trees, "one", reach("other/"), "verl", store).entries == ()
    assert uses_at(trees, "one", reach(), "verl main", store).source == "verl main"
    assert uses_at(trees, "one", reach(), "verl", store) == first


def test_what_a_partial_clone_lacks_is_not_kept_as_unused(tmp_path: Path) -> None:
    store = SummaryCache(tmp_path)
    partial = FakeTrees({"one": VERL}, absent=frozenset({"verl/b.py"}))
    assert names(uses_at(partial, "one", reach(), "verl", store)) == ["megatron.bridge:AutoBridge"]
    whole = uses_at(FakeTrees({"one": VERL}), "one", reach(), "verl", store)
    assert names(whole) == ["megatron.bridge:AutoBridge", "megatron.bridge.peft:None"]

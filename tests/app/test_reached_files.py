"""What the digest of a head covers, on real git objects: ways to change what runs without a change of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.fakes.github_standin.repository import BareRepository, Edit, Submodule
from tests.fakes.trees import FakeSummaries
from verl_e2e.app.plan_change import Planner
from verl_e2e.config import load_policy
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.walk import Entry
from verl_e2e.git.repository import GitRepository

TEST = "tests/unit/test_lora.py"
POLICY_TEXT = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
bridge_tests: [tests/unit/test_lora.py]
exempt:
  - {name: documentation, paths: [/docs/, "*.md"], reason: nothing imports it}
  - {name: tests, paths: [/tests/], reason: the Bridge checks run tests}
rules: [{name: source, paths: [src/], levels: [0], reason: verl runs it}]
reach: {package: lib, roots: [src/], callers: app/, rules: [{name: reached, levels: [0], reason: verl runs it}]}
"""
POLICY = load_policy(POLICY_TEXT, "policy.yml")
USES = Uses((Entry("lib", "LoRA", "app/engine.py", 1),), (), "a small verl")
FILES: Mapping[str, Edit] = {
    "src/lib/__init__.py": "from lib.lora import LoRA\n",
    "src/lib/lora.py": "import json\n\n\nclass LoRA:\n    SHAPES = '../../docs/shapes.json'\n",
    "src/lib/spare.py": "x = 1\n",
    "src/lib/tested.py": "y = 1\n",
    "src/lib/shapes.json": "{}",
    "docs/shapes.json": "{}",
    "docs/guide.md": "# Guide\n",
    "docs/other.json": "{}",
    TEST: "import lib.tested\nfrom tests.unit import tool\n\n\ndef test():\n    pass\n",
    "tests/unit/tool.py": "",
    "tests/unit/golden.txt": "1",
    "tests/unit/test_other.py": "",
    ".gitmodules": '[submodule "core"]\n\tpath = 3rdparty/core\n\turl = https://example.invalid/core\n',
    "3rdparty/core": Submodule("a" * 40),
}


@dataclass
class Heads:
    """A repository of which each head is the first commit with some edits."""

    repository: BareRepository
    first: str

    def commit(self, edits: Mapping[str, Edit], parent: str = "") -> str:
        return self.repository.commit("refs/heads/work", edits, "Edit", (parent or self.first,))

    def link(self, path: str, target: str) -> str:
        """A head in which a path is a symbolic link."""
        stream = (
            f"commit refs/heads/work\ncommitter O <o@example.invalid> 1767225700 +0000\ndata 4\nlink\n"
            f"from {self.first}\nM 120000 inline {path}\ndata {len(target)}\n{target}\n"
        )
        self.repository.git("fast-import", "--quiet", "--force", data=stream.encode())
        return self.repository.text("rev-parse", "refs/heads/work")

    def reached(
        self, head: str, tests: tuple[str, ...] = POLICY.bridge_tests, policy: str = POLICY_TEXT
    ) -> ReachedFiles:
        planner = Planner(GitRepository(self.repository.path), USES, FakeSummaries())
        return planner.reached(head, load_policy(policy, "policy.yml"), tests)


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    repository = BareRepository(tmp_path / "bridge.git")
    return Heads(repository, repository.commit("refs/heads/main", FILES, "Start"))


@pytest.mark.parametrize(
    ("edits", "run_differs", "tests_differ"),
    (
        ({"docs/guide.md": "# Other\n"}, False, False),
        ({"docs/other.json": "[]"}, False, False),
        ({"docs/new.md": "# New\n"}, False, False),
        ({"src/lib/spare.py": "x = 2\n"}, False, False),
        ({"tests/unit/test_other.py": "import os\n"}, False, False),
        ({"src/lib/lora.py": "class LoRA:\n    pass\n"}, True, True),
        # Data: among the sources, and one that a reached source names although the policy sets its folder aside.
        ({"src/lib/shapes.json": "[]"}, True, True),
        ({"docs/shapes.json": "[]"}, True, True),
        ({"docs/shapes.json": None}, True, True),
        # What Python imports in the place of something else, or by itself.
        ({"src/json.py": ""}, True, True),
        ({"src/sitecustomize.py": "import os\n"}, True, True),
        ({"src/lib/lora/__init__.py": "class LoRA:\n    pass\n"}, True, True),
        ({"src/lib/spare.cpython-312-x86_64-linux-gnu.so": b"\x7fELF"}, True, True),
        # What decides what a checkout holds.
        ({"3rdparty/core": Submodule("b" * 40)}, True, True),
        ({".gitmodules": '[submodule "core"]\n\tpath = 3rdparty/core\n\turl = https://other.invalid\n'}, True, True),
        ({".gitattributes": "*.py text eol=crlf\n"}, True, True),
        ({"pyproject.toml": "[build-system]\n"}, True, True),
        # What the Bridge tests read alone.
        ({TEST: "def test():\n    assert False\n"}, False, True),
        ({"src/lib/tested.py": "y = 2\n"}, False, True),
        ({"tests/unit/tool.py": "z = 1\n"}, False, True),
        ({"tests/unit/golden.txt": "2"}, False, True),
        ({"tests/conftest.py": ""}, False, True),
    ),
)
def test_a_digest_differs_where_what_runs_may_differ(
    heads: Heads, edits: Mapping[str, Edit], run_differs: bool, tests_differ: bool
) -> None:
    before, after = heads.reached(heads.first), heads.reached(heads.commit(edits))
    assert before.digest
    assert before.with_tests
    assert (after.digest != before.digest, after.with_tests != before.with_tests) == (run_differs, tests_differ)


def test_what_was_reverted_and_applied_again_is_the_same(heads: Heads) -> None:
    change = {"src/lib/lora.py": "class LoRA:\n    rank = 8\n"}
    applied = heads.commit(change)
    reverted = heads.commit({"src/lib/lora.py": FILES["src/lib/lora.py"]}, applied)
    again = heads.commit(change, reverted)
    digests = [heads.reached(head).with_tests for head in (heads.first, applied, reverted, again)]
    assert (digests[0], digests[1]) == (digests[2], digests[3])
    assert digests[0] != digests[1]


@pytest.mark.parametrize("path", ("src/lib/spare.py", "src", "src/lib/data"))
def test_a_link_among_the_sources_is_not_known(heads: Heads, path: str) -> None:
    found = heads.reached(heads.link(path, "../../docs/guide.md"))
    assert (found.digest, found.with_tests) == ("", "")


def test_a_link_among_the_tests_leaves_jobs_without_tests(heads: Heads) -> None:
    found, before = heads.reached(heads.link("tests/data", "../docs")), heads.reached(heads.first)
    assert (found.digest, found.with_tests) == (before.digest, "")


def test_a_link_elsewhere_counts_by_where_it_leads(heads: Heads) -> None:
    found = {heads.reached(heads.link("tool", target)).digest for target in ("docs/a", "docs/b")}
    assert len(found | {heads.reached(heads.first).digest}) == 3


@pytest.mark.parametrize("path", ("src/lib/lora.py", TEST, "src/lib/tested.py"))
def test_a_source_that_cannot_be_read_is_not_known(heads: Heads, path: str) -> None:
    found = heads.reached(heads.commit({path: "def\n"}))
    assert (found.digest == "", found.with_tests) == (path == "src/lib/lora.py", "")


def test_without_tests_there_is_one_digest(heads: Heads) -> None:
    found = heads.reached(heads.first, tests=())
    assert (found.digest, found.with_tests) == (heads.reached(heads.first).digest, "")
    assert found.sources == {"src/lib/__init__.py", "src/lib/lora.py"}


def test_a_policy_that_sets_less_aside_is_another_digest(heads: Heads) -> None:
    strict = POLICY_TEXT.replace('[/docs/, "*.md"]', '["*.md"]')
    assert heads.reached(heads.first, policy=strict).digest != heads.reached(heads.first).digest


def test_a_tree_that_was_asked_for_before_is_not_read_again(heads: Heads) -> None:
    summaries, again = FakeSummaries(), heads.commit({}, heads.first)

    def reached(head: str, tests: tuple[str, ...] = (TEST,)) -> ReachedFiles:
        planner = Planner(GitRepository(heads.repository.path), USES, summaries)
        return planner.reached(head, POLICY, tests)

    found = reached(heads.first)
    (key,) = summaries.values[ReachedFiles]
    summaries.values[ReachedFiles][key] = replace(found, digest="kept")
    assert reached(again).digest == "kept"
    assert reached(again, ()).digest == found.digest
    assert reached(heads.commit({"docs/other.json": "[]"})).digest == found.digest


def test_a_plan_has_the_digest_of_its_head_where_a_level_is_required(heads: Heads) -> None:
    planner = Planner(GitRepository(heads.repository.path), USES, FakeSummaries())
    changed = heads.commit({"src/lib/lora.py": "class LoRA:\n    rank = 8\n"})
    written = heads.commit({"docs/guide.md": "# Other\n"})
    assert planner.plan(heads.first, changed, POLICY).reached == heads.reached(changed)
    assert planner.plan(heads.first, written, POLICY).reached == ReachedFiles()

"""Random changes of a small repository: what a plan claims to have looked at is held against what git and ast say.

The repository is plain on purpose, so that the test can tell by itself what verl runs: verl calls functions by name,
and no function calls another.
"""

import ast
import random
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.test_planning import GIT
from verl_e2e.config.maps import NAME, cell_map_content, packaged_cell_map
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.report.plan_text import render_plan_text
from verl_e2e.wiring.planning import PlanRequest, plan_change

MODULES = ("a", "b", "c", "d")
FUNCTIONS = ("f", "g", "h")
# What verl imports, and of it what it calls; nothing imports `d`.
CALLED = {("a", "f"), ("a", "g"), ("b", "f"), ("c", "h")}
CORE = "3rdparty/Megatron-LM"
# The rules of the policy below by the one level that each asks for.
BY_SYMBOL, BY_NAME = {0: "reached code", 2: "module b"}, {0: "core", 1: "scripts"}
POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: org/image, tag: "1"}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documents, paths: ["*.md"], reason: nothing imports them}
  - {name: tests, paths: [tests/], reason: no run executes them}
rules:
  - {name: core, paths: [3rdparty/Megatron-LM], levels: [0], reason: every run is built on it}
  - {name: scripts, paths: [scripts/], levels: [1], reason: they start it}
reach:
  package: lib
  roots: [src/]
  rules:
    - {name: reached code, levels: [0], reason: verl runs it}
    - {name: module b, paths: [src/lib/b.py], levels: [2], reason: it splits}
"""


def function(name: str, value: int) -> str:
    return f"def {name}(x):\n    y = x + 1\n    return y * {value}\n\n\n"


@dataclass
class Tree:
    """The files of one commit, and where its submodule stands."""

    files: dict[str, str] = field(default_factory=dict)
    core: str = "1" * 40


def first_tree() -> Tree:
    files = {f"src/lib/{module}.py": "".join(function(name, 1) for name in FUNCTIONS) for module in MODULES}
    files |= {"src/lib/__init__.py": "", "README.md": "# r\n", "docs/a.md": "a\n", "docs/b.md": "b\n"}
    files |= {"tests/test_a.py": "def test_a():\n    pass\n", "scripts/run.sh": "true\n", "notes.txt": "n\n"}
    return Tree(files)


def changed(tree: Tree, draw: random.Random) -> Tree:
    """Another tree: some edits of each kind, or none of it."""
    new = Tree(dict(tree.files), tree.core)
    for module in draw.sample(MODULES, draw.choice((0, 0, 1, 2, 4))):
        path = f"src/lib/{module}.py"
        edited = set(draw.sample(FUNCTIONS, draw.randint(0, 3)))
        text = "".join(function(name, 2 if name in edited else 1) for name in FUNCTIONS)
        new.files[path] = text if edited else f"# only a comment\n{text}"
    for path in draw.sample(("README.md", "docs/a.md", "docs/b.md", "tests/test_a.py"), draw.randint(0, 3)):
        new.files[path] += "# more\n"
    if draw.random() < 0.3:
        new.files["docs/moved.md"] = new.files.pop("docs/b.md")
    if draw.random() < 0.3:
        new.files["scripts/run.sh"] += "false\n"
    if draw.random() < 0.3:
        new.core = "2" * 40
    if new == tree:
        new.files["README.md"] += "x\n"
    return new


def git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=folder, env=GIT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder: Path, tree: Tree) -> str:
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.unlink()
    for name, text in tree.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{tree.core},{CORE}")
    git(folder, "commit", "-qm", "c")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The repository, verl and the policy."""
    folder = tmp_path_factory.mktemp("claims")
    bridge, verl = folder / "bridge", folder / "verl"
    for path in (bridge, verl):
        path.mkdir()
        git(path, "init", "-q")
    (verl / "verl").mkdir()
    imports = "".join(f"from lib.{module} import {name} as {module}_{name}\n" for module, name in sorted(CALLED))
    calls = "".join(f"    {module}_{name}(x)\n" for module, name in sorted(CALLED))
    (verl / "verl/engine.py").write_text(f"{imports}\n\ndef go(x):\n{calls}")
    git(verl, "add", "-A")
    git(verl, "commit", "-qm", "c")
    (folder / "policy.yml").write_text(POLICY)
    return bridge, verl, folder / "policy.yml"


def bodies(text: str) -> Mapping[str, str]:
    """Each function of a module, as it is without comments."""
    return {node.name: ast.dump(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found is not None else None


@dataclass
class Facts:
    """What differs, by git and by the trees themselves, with the plan of it."""

    names: set[str]
    # The changed functions, and those of them that verl calls.
    differing: set[tuple[str, str]]
    run: set[tuple[str, str]]
    plan: Plan

    @property
    def sources(self) -> set[str]:
        return {name for name in self.names if name.startswith("src/")}

    @property
    def idle(self) -> set[str]:
        """The sources of which nothing runs that differs."""
        return {path for path in self.sources if Path(path).stem not in {module for module, _ in self.run}}

    @property
    def aside(self) -> dict[str, int]:
        """How many names the policy's exemptions take."""
        found = Counter("documents" if name.endswith(".md") else name.partition("/")[0] for name in self.names)
        return {kind: found[kind] for kind in ("documents", "tests") if found[kind]}

    @property
    def levels(self) -> set[int]:
        asked = [{0}] * bool(self.run or CORE in self.names)
        asked += [{0, 2}] * any(module == "b" for module, _ in self.run)
        asked += [{0, 1}] * ("scripts/run.sh" in self.names)
        return set().union(*asked)


@pytest.fixture(scope="module", params=range(40))
def facts(request: pytest.FixtureRequest, places: tuple[Path, Path, Path]) -> Facts:
    bridge, verl, policy = places
    old = first_tree()
    new = changed(old, random.Random(request.param))
    base, head = committed(bridge, old), committed(bridge, new)
    rows = [row.split("\t") for row in git(bridge, "diff", "--name-status", "-M", base, head).splitlines()]
    names = {name for _, *paths in rows for name in paths}
    differing = {
        (Path(path).stem, name)
        for path in names
        if path.startswith("src/")
        for name, body in bodies(new.files[path]).items()
        if body != bodies(old.files[path])[name]
    }
    planned = plan_change(PlanRequest(bridge, verl, policy=policy), base, head).plan
    return Facts(names, differing, differing & CALLED, planned)


def test_what_a_plan_claims_to_have_looked_at_is_what_differs(facts: Facts) -> None:
    text = render_plan_text(facts.plan)
    assert set(map(int, facts.plan.levels)) == facts.levels
    assert ("no level is required" in text.splitlines()[0]) == (not facts.levels)
    # Each of these sentences is there where it is so, and nowhere else.
    names = None if facts.sources else len(facts.names)
    assert number(r"Looked at the names of (\d+) changed paths?: none", text) == names
    if not facts.levels and facts.sources:
        assert number(r"Looked at: (\d+) changed source files? compared", text) == len(facts.sources)
        # The package itself and the modules that verl imports.
        assert number(r"compared, (\d+) modules that verl's imports execute read, none", text) == 4
    by_name = facts.names & {CORE, "scripts/run.sh"}
    for row in facts.plan.not_required:
        assert number(r"looked at (\d+) changed symbols? that verl reaches", row.reason) == (len(facts.run) or None)
        assert number(r"(\d+) paths? judged by", row.reason) == (len(by_name) or None)
        # The rules that did not match are those of the policy for this level, of the kinds that were tried.
        tried = [*([BY_SYMBOL] if facts.run else []), *([BY_NAME] if by_name else [])]
        rules = [kind[row.level] for kind in tried if row.level in kind]
        if facts.run or by_name:
            kinds = " or ".join(["symbols"] * bool(facts.run) + ["names"] * bool(by_name))
            none = f"the policy has no rule for this level that judges {kinds}"
            matched = f"no rule for this level matches ({', '.join(rules)})" if rules else none
            assert row.reason.endswith(f"; {matched}")
    asking = facts.names - facts.idle - {name for name in facts.names if name.endswith(".md") or name[:6] == "tests/"}
    assert {row.path for row in facts.plan.reasons if row.path} == asking
    aside = {row.name: row.count for row in facts.plan.exempted}
    assert {kind: aside.pop(kind) for kind in ("documents", "tests") if kind in aside} == facts.aside
    assert sum(aside.values()) == len(facts.idle)
    assert bool(facts.plan.incomplete) == ("The plan is incomplete: " in text) == (CORE in facts.names)


def test_what_a_plan_asks_to_run_is_what_verl_calls_of_it(facts: Facts) -> None:
    text, run = render_plan_text(facts.plan), len(facts.run)
    # Each edit changes one line of its function.
    assert number(r"at least one run must execute: (\d+) function", text) == (run or None)
    assert number(r"at least one run must execute: \d+ functions?, (\d+) line", text) == (run or None)
    assert all(int(found) <= run for found in re.findall(r"  looked for in \S+: (\d+) function", text))
    unreached = re.search(r"verl does not reach by its sources: (.*?)(?: and (\d+) more)?$", text, re.MULTILINE)
    listed = unreached[1].split(", ") if unreached else []
    assert set(listed) <= {f"src/lib/{module}.py:{name}" for module, name in facts.differing - facts.run}
    assert len(listed) + int((unreached and unreached[2]) or 0) == len(facts.differing - facts.run)
    # The cost is that of the jobs that are shown.
    minutes = [int(found) for found in re.findall(r"^  job .* about (\d+) GPU minutes", text, re.MULTILINE)]
    assert number(r"\n(\d+) jobs?, about", text) == (len(minutes) if facts.levels else None)
    assert number(r"jobs?, about (\d+) GPU minutes", text) == (sum(minutes) if facts.levels else None)


def test_a_folder_that_is_of_no_rehearsal_is_the_users_mistake(places: tuple[Path, Path, Path], tmp_path: Path) -> None:
    bridge, verl, policy = places
    base, head = committed(bridge, first_tree()), committed(bridge, changed(first_tree(), random.Random(1)))
    order = PlanRequest(bridge, verl, policy=policy, rehearsal=tmp_path)
    with pytest.raises(UserError, match=r"cell-map\.json\.gz: cannot be read: No such file"):
        plan_change(order, base, head)
    # The cells of another package say nothing of this one.
    (tmp_path / NAME).write_bytes(cell_map_content(packaged_cell_map()))
    same = plan_change(PlanRequest(bridge, verl, policy=policy), base, head).plan
    assert plan_change(order, base, head).plan == same
    assert (same.not_entered, same.not_covered) == ((), ())

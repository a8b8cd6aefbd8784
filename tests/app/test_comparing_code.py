"""What a finished run notices of another head, on real git objects: planted edits that keep its verdict or do not."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.executions import DRIVER, TRAINER
from tests.core.executions import TEST as TEST_PROCESS
from tests.core.pulls.entries import run
from tests.fakes.github_standin.repository import BareRepository, Edit, Submodule
from tests.fakes.run_folders import FakeFolders
from tests.fakes.trees import FakeSummaries
from verl_e2e.app.compare_code import CodeComparison, compare_code
from verl_e2e.app.plan_change import Planner
from verl_e2e.config import load_policy
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.executed import Executed, ExecutedFile, ExecutedFunction
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Record
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.summary import Summary
from verl_e2e.core.reach.walk import Entry
from verl_e2e.git.repository import GitRepository

TEST = "tests/unit/test_lora.py"
POLICY_TEXT = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documentation, paths: [/docs/, "*.md"], reason: nothing imports it}
  - {name: tests, paths: [/tests/], reason: the Bridge checks run tests}
rules: [{name: source, paths: [src/], levels: [0], reason: verl runs it}]
reach:
  {package: lib, roots: [src/], callers: app/, dependencies: [torch], rules: [{name: reached, levels: [0], reason: it}]}
"""
POLICY = load_policy(POLICY_TEXT, "policy.yml")
USES = Uses((Entry("lib", "LoRA", "app/engine.py", 1),), (), "a small verl")
LORA = """\
import json


class LoRA:
    def ran(self):
        return json.dumps(1)

    def spare(self):
        return 1


def helper():
    return 2
"""
TESTED = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"
PROJECT = '[project]\nname = "lib"\ndependencies = ["torch>=2", "rich>=1"]\n'
FILES: Mapping[str, Edit] = {
    "src/lib/__init__.py": "from lib.lora import LoRA\n",
    "src/lib/lora.py": LORA,
    "src/lib/spare.py": "x = 1\n",
    "src/lib/tested.py": TESTED,
    "src/lib/shapes.json": "{}",
    "docs/guide.md": "# Guide\n",
    TEST: "import lib.tested\n\n\ndef test():\n    pass\n",
    "pyproject.toml": PROJECT,
    ".gitmodules": '[submodule "core"]\n\tpath = 3rdparty/core\n\turl = https://example.invalid/core\n',
    "3rdparty/core": Submodule("a" * 40),
}
ENTERED = {"src/lib/lora.py": ("LoRA.ran",), "src/lib/tested.py": ("one",)}
FOLDER = Path("/run")


def entry(symbol: str, process: int) -> ExecutedFunction:
    return ExecutedFunction(symbol=symbol, line=1, first_s={process: 0.0})


@dataclass
class Compared:
    """A run of the first commit, and what it notices of others."""

    repository: BareRepository
    first: str
    job_given: Mapping[str, Any] = field(default_factory=dict)

    def executed(self, entered: Mapping[str, tuple[str, ...]] = ENTERED, **given: Any) -> Executed:
        # The processes are a driver, a trainer and a Bridge test.
        files = tuple(
            ExecutedFile(path=path, functions=tuple(entry(name, 2 if "tested" in path else 1) for name in names))
            for path, names in entered.items()
        )
        known = {"bridge_commit": self.first, "processes": (DRIVER, TRAINER, TEST_PROCESS), "files": files}
        return Executed.model_validate(known | given)

    def job(self) -> Job:
        bridge = Repository(path="bridge", commit=self.first)
        return make_job(bridge=bridge, bridge_tests=(f"{TEST}::test",), **self.job_given)

    def comparison(
        self, edits: Mapping[str, Edit], executed: Executed | None, *, tests: bool, policy: Policy = POLICY
    ) -> CodeComparison:
        head = self.repository.commit("refs/heads/work", edits, "Edit", (self.first,))
        return self.with_head(head, executed, tests=tests, policy=policy)

    def with_head(
        self,
        head: str,
        executed: Executed | None,
        *,
        tests: bool,
        policy: Policy = POLICY,
        summaries: FakeSummaries | None = None,
    ) -> CodeComparison:
        folders = FakeFolders({FOLDER: Record(job=self.job(), executed=executed)})
        planner = Planner(GitRepository(self.repository.path), USES, summaries or FakeSummaries())
        ended = run(self.job(), job=self.job(), head_sha=self.first)
        return compare_code(planner, policy, ended, head, FOLDER, folders, tests=tests)


@pytest.fixture
def code(tmp_path: Path) -> Compared:
    repository = BareRepository(tmp_path / "bridge.git")
    return Compared(repository, repository.commit("refs/heads/main", FILES, "Start"))


def lora(old: str, new: str) -> Mapping[str, Edit]:
    assert old in LORA
    return {"src/lib/lora.py": LORA.replace(old, new)}


@pytest.mark.parametrize(
    ("edits", "run_notices", "tests_notice"),
    (
        # What nothing in the run reads, enters or can tell apart.
        ({"docs/guide.md": "# Other\n"}, False, False),
        ({"src/lib/spare.py": "x = 2\n"}, False, False),
        ({"src/lib/new.py": "x = 2\n"}, False, False),
        (lora("return 1", "return 3"), False, False),
        (lora("return 2", "import lib.spare\n\n    return lib.spare"), False, False),
        (lora("import json\n", "import json\n\n# A comment.\n"), False, False),
        ({"pyproject.toml": PROJECT.replace("rich>=1", "rich>=2")}, False, True),
        # Of the Bridge tests alone.
        ({"src/lib/tested.py": "def one():\n    return 1\n\n\ndef two():\n    return 3\n"}, False, False),
        ({"src/lib/tested.py": "def one():\n    return 2\n\n\ndef two():\n    return 2\n"}, False, True),
        # A function that comes or goes differs at import.
        ({"src/lib/tested.py": "def one():\n    return 1\n"}, True, True),
        ({"src/lib/tested.py": f"{TESTED}\n\ndef three():\n    return 3\n"}, True, True),
        (lora("\n\ndef helper():\n    return 2\n", ""), True, True),
        (lora("def helper", "def added():\n    return 3\n\n\ndef helper"), True, True),
        ({TEST: "def test():\n    assert False\n"}, False, True),
        ({"tests/conftest.py": ""}, False, True),
        # What it enters, what runs at import, and what takes the place of something.
        (lora("json.dumps(1)", "json.dumps(2)"), True, True),
        (lora("def spare", "def other"), True, True),
        (lora("import json\n", "import json\nimport os\n\nos.environ['X'] = '1'\n"), True, True),
        ({"src/lib/lora.py": None}, True, True),
        ({"src/lib/lora.py": None, "src/lib/lora/__init__.py": LORA}, True, True),
        ({"src/lib/lora/__init__.py": LORA}, True, True),
        ({"src/lib/__init__.py": "from lib.lora import LoRA\nfrom lib.spare import x\n"}, True, True),
        ({"src/json.py": ""}, True, True),
        ({"src/sitecustomize.py": "import os\n"}, True, True),
        # Data, native code, submodules and what decides what a checkout holds.
        ({"src/lib/shapes.json": "[]"}, True, True),
        ({"src/lib/spare.cpython-312-x86_64-linux-gnu.so": b"\x7fELF"}, True, True),
        ({"3rdparty/core": Submodule("b" * 40)}, True, True),
        ({".gitattributes": "*.py text eol=crlf\n"}, True, True),
        ({"pyproject.toml": PROJECT.replace("torch>=2", "torch>=3")}, True, True),
        ({"pyproject.toml": PROJECT + '[build-system]\nrequires = ["other"]\n'}, True, True),
        # What no record shows, and what cannot be read.
        (lora("return 2", "return torch.jit.script(LoRA.spare)"), True, True),
        ({"src/lib/lora.py": "def\n"}, True, True),
    ),
)
def test_an_edit_keeps_a_verdict_only_where_the_run_does_the_same(
    code: Compared, edits: Mapping[str, Edit], run_notices: bool, tests_notice: bool
) -> None:
    found = [code.comparison(edits, code.executed(), tests=tests).noticed for tests in (False, True)]
    assert [bool(reason) for reason in found] == [run_notices, tests_notice], found


@pytest.mark.parametrize(
    "given",
    (
        {"cut": ("1 process more",)},
        {"problem": "nothing was recorded"},
        {"processes": (DRIVER, TRAINER.model_copy(update={"problem": "the disk is full"}), TEST_PROCESS)},
        {"bridge_commit": "b" * 40},
        {"processes": (DRIVER, TEST_PROCESS)},
        {"processes": (DRIVER, TRAINER.model_copy(update={"phase": "resume"}), TEST_PROCESS)},
    ),
)
def test_a_record_that_may_not_tell_all_counts_for_nothing(code: Compared, given: dict[str, Any]) -> None:
    assert code.comparison({}, code.executed(**given), tests=False).noticed
    assert code.comparison({}, None, tests=False).noticed
    assert not code.comparison({}, code.executed(), tests=False).noticed


def test_a_module_that_was_imported_in_a_way_of_its_own_counts(code: Compared) -> None:
    imported = code.executed(entered={**ENTERED, "src/lib/spare.py": ()})
    for edits, noticed in (({"src/lib/spare.py": "x = 2\n"}, True), ({"src/lib/spare.py": "x = 1  # One.\n"}, False)):
        found = [code.comparison(edits, executed, tests=False).noticed for executed in (imported, code.executed())]
        assert [bool(reason) for reason in found] == [noticed, False]


@pytest.mark.parametrize(
    ("given", "phases", "noticed"),
    (
        ({"gpu_count": 2}, ("train",), True),
        ({"gpu_count": 2}, ("train", "train"), False),
        ({"level": Level.SAVE_RESUME, "steps": 2, "wrapper": {"SAVE_FREQ": "1"}}, ("save",), True),
        ({"level": Level.SAVE_RESUME, "steps": 2, "wrapper": {"SAVE_FREQ": "1"}}, ("save", "resume"), False),
    ),
)
def test_each_trainer_of_each_start_must_have_left_a_record(
    code: Compared, given: dict[str, Any], phases: tuple[str, ...], noticed: bool
) -> None:
    code.job_given = given
    trainers = tuple(TRAINER.model_copy(update={"phase": phase}) for phase in phases)
    executed = code.executed(processes=(*trainers, DRIVER, TEST_PROCESS), files=())
    assert bool(code.comparison({}, executed, tests=False).noticed) is noticed


def test_bridge_tests_that_left_no_record_count_for_nothing(code: Compared) -> None:
    executed = code.executed(processes=(DRIVER, TRAINER))
    assert code.comparison({}, executed, tests=True).noticed == "no record tells what its Bridge tests entered"
    assert not code.comparison({}, executed, tests=False).noticed


def test_a_function_that_was_entered_though_nothing_seems_to_import_it_counts(code: Compared) -> None:
    entered = {**ENTERED, "src/lib/spare.py": ("late",)}
    assert code.comparison({"src/lib/spare.py": "x = 2\n"}, code.executed(entered), tests=False).noticed


def test_without_reach_or_the_commit_nothing_is_known(code: Compared) -> None:
    plain = POLICY.model_copy(update={"reach": None})
    assert code.comparison({}, code.executed(), tests=False, policy=plain).noticed
    gone = code.with_head("c" * 40, code.executed(), tests=False)
    assert gone.noticed == "it cannot be compared (UnknownRevisionError)"


class Exhausted(FakeSummaries):
    """Summaries that take more than they may."""

    def load(self, ids: Collection[str]) -> Mapping[str, Summary]:
        raise LimitError(f"the time for {len(ids)} sources", "1 s")


def test_what_takes_too_much_is_said_to(code: Compared) -> None:
    with pytest.raises(LimitError):
        code.with_head(code.first, code.executed(), tests=False, summaries=Exhausted())

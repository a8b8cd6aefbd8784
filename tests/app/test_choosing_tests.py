"""Which Bridge tests a change chooses: a small library with tests, planned from its sources."""

from collections.abc import Mapping

import pytest

from tests.fakes.trees import FakeTrees, planner_over
from verl_e2e.config import load_policy
from verl_e2e.core.model.jobs import WhyChosen
from verl_e2e.core.plan.bridge_tests import Choice
from verl_e2e.core.plan.policy import Policy

POLICY_TEXT = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: tests, paths: [tests/], reason: no run imports them}
  - {name: recipes, paths: [src/lib/recipes/], reason: verl imports no recipe}
rules:
  - {name: everything, paths: [src/], levels: [0], reason: unread source}
reach:
  package: lib
  roots: [src/]
  callers: app/
  rules:
    - {name: reached code, levels: [0], reason: verl runs it}
bridge_tests: [tests/unit/test_listed.py]
bridge_test_choice:
  paths: [tests/unit/, "!tests/unit/ours/"]
  files: FILES
  gpu_marks: [gpu, run_only_on]
  conversion:
    changes: ["src/lib/*_bridge.py", src/lib/families/]
    tests: ["*roundtrip*.py", "*bridge*.py"]
"""
CALLER = {"app/engine.py": "from lib import attach\nfrom lib.one_bridge import load\n\nattach(load(1))\n"}


def source(imports: str, extra: str = "") -> str:
    return f"{imports}\n{extra}\ndef test_it():\n    pass\n"


BASE: dict[str, str] = {
    "src/lib/__init__.py": "from lib.peft import attach, shape\n",
    "src/lib/peft.py": "def attach(x):\n    return shape(x)\n\n\ndef shape(x):\n    return x\n",
    "src/lib/one_bridge.py": "from lib.families.two import pairs\n\n\ndef load(x):\n    return pairs(x)\n",
    "src/lib/families/__init__.py": "",
    "src/lib/families/two.py": "def pairs(x):\n    return x\n",
    "src/lib/idle.py": "def idle():\n    return 1\n",
    "src/lib/recipes/r.py": "def r():\n    return 1\n",
    "tests/unit/test_listed.py": source("import lib.peft"),
    "tests/unit/test_symbol.py": source("from lib.peft import shape"),
    "tests/unit/test_peft.py": source("import lib.peft as peft"),
    "tests/unit/test_module.py": source("from lib import peft"),
    "tests/unit/test_reexport.py": source("from lib import attach"),
    "tests/unit/test_patch.py": source("import os", 'NAME = "lib.peft.attach"\n'),
    "tests/unit/helper.py": "from lib.peft import attach\n",
    "tests/unit/test_through.py": source("from .helper import attach"),
    "tests/unit/test_typing.py": source("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib.peft"),
    "tests/unit/test_foreign.py": source("import other.peft\nimport peft"),
    "tests/unit/test_bridge_of_one.py": source("from lib.one_bridge import load"),
    "tests/unit/test_one_roundtrip.py": source("import lib.one_bridge"),
    "tests/unit/test_a_user.py": source("import lib.one_bridge"),
    "tests/unit/families/test_two_roundtrip.py": source("import os"),
    "tests/unit/families/test_other.py": source("import os"),
    "tests/unit/test_recipe.py": source("import lib.recipes.r"),
    "tests/unit/test_idle.py": source("import lib.idle"),
    "tests/unit/ours/test_apart.py": source("import lib.peft"),
    "tests/functional/test_far.py": source("import lib.peft"),
}


def policy(files: int = 12, text: str = POLICY_TEXT) -> Policy:
    return load_policy(text.replace("FILES", str(files)), "policy.yml")


def choice(new: Mapping[str, str | None], *, files: int = 12, renames: Mapping[str, str] | None = None) -> Choice:
    """The choice for a head that differs from BASE by these files; None deletes one."""
    head = {path: text for path, text in {**BASE, **new}.items() if text is not None}
    repository = FakeTrees({"base": BASE, "head": head, "verl": CALLER}, renames=renames or {})
    made = policy(files)
    planned = planner_over(repository, made).plan("base", "head", made).plan
    assert all(job.tests == planned.tests for job in planned.jobs)
    return planned.tests


def names(made: Choice) -> list[str]:
    return [item.test.removeprefix("tests/unit/") for item in made.tests]


def peft(old: str = "return x\n", new: str = "return x + 1\n") -> dict[str, str]:
    text = BASE["src/lib/peft.py"]
    assert old in text
    return {"src/lib/peft.py": text.replace(old, new)}


def test_users_of_a_changed_module_nearest_first() -> None:
    made = choice(peft())
    near = ["test_symbol.py", "test_peft.py", "test_module.py", "test_patch.py"]
    assert names(made) == [*near, "test_reexport.py", "test_through.py"]
    assert {item.test.rpartition("/")[2]: item.reason for item in made.tests} == {
        "test_symbol.py": "it uses shape of lib.peft, which differs",
        "test_peft.py": "it imports lib.peft, which differs",
        "test_module.py": "it imports lib.peft, which differs",
        "test_patch.py": "it imports lib.peft, which differs",
        "test_reexport.py": "it imports attach, which lib.peft defines, and that module differs",
        "test_through.py": "it imports tests.unit.helper, which uses lib.peft, and that module differs",
    }
    assert {item.why for item in made.tests} == {WhyChosen.IMPORTS}


def test_the_limit_counts_the_listed_ones_and_says_what_is_left() -> None:
    made = choice(peft(), files=3)
    assert names(made) == ["test_symbol.py", "test_peft.py"]
    assert made.left_out == (
        "4 more test files are near the change, beyond the 3 of the policy: tests/unit/test_module.py, "
        "tests/unit/test_patch.py, tests/unit/test_reexport.py and 1 more.",
    )
    assert names(choice(peft(), files=1)) == []


def test_a_module_without_a_difference_in_effect_chooses_nothing() -> None:
    documented = {"src/lib/peft.py": '"""A text."""\n' + BASE["src/lib/peft.py"]}
    made = choice({**documented, "src/lib/one_bridge.py": BASE["src/lib/one_bridge.py"].replace("(x)", "(x or 1)")})
    assert not any("peft" in test.reason for test in made.tests)
    assert made.tests


def test_a_change_that_needs_no_level_chooses_nothing() -> None:
    assert choice({"src/lib/idle.py": "def idle():\n    return 2\n"}) == Choice()
    assert choice({"tests/unit/test_peft.py": source("import lib.peft", "X = 1\n")}) == Choice()


def test_tests_that_the_change_touches_come_first_whatever_they_use() -> None:
    new = {
        "tests/unit/test_new.py": source("import os"),
        "tests/unit/test_idle.py": source("import lib.idle", "X = 1\n"),
        "tests/unit/test_module.py": source("from lib import peft", "X = 1\n"),
        "tests/unit/test_reexport.py": None,
        "tests/unit/conftest.py": "import pytest\n",
        "tests/unit/ours/test_apart.py": source("import lib.peft", "X = 1\n"),
        "tests/functional/test_far.py": source("import lib.peft", "X = 1\n"),
    }
    made = choice({**peft(), **new})
    assert names(made)[:3] == ["test_module.py", "test_idle.py", "test_new.py"]
    assert [test.why for test in made.tests[:3]] == [WhyChosen.CHANGED] * 3
    assert not {"test_reexport.py", "conftest.py", "ours/test_apart.py"} & set(names(made))


def test_a_renamed_test_is_run_by_its_new_name() -> None:
    made = choice(
        {**peft(), "tests/unit/test_symbol.py": None, "tests/unit/test_moved.py": BASE["tests/unit/test_symbol.py"]},
        renames={"tests/unit/test_symbol.py": "tests/unit/test_moved.py"},
    )
    assert names(made)[0] == "test_moved.py"
    assert "test_symbol.py" not in names(made)


def test_a_change_of_import_or_export_puts_conversion_tests_first() -> None:
    changed = {"src/lib/one_bridge.py": BASE["src/lib/one_bridge.py"].replace("pairs(x)", "pairs(x or 1)")}
    made = choice(changed)
    assert [(item.test.rpartition("/")[2], item.why) for item in made.tests] == [
        ("test_bridge_of_one.py", WhyChosen.CONVERSION),
        ("test_one_roundtrip.py", WhyChosen.CONVERSION),
        ("test_a_user.py", WhyChosen.IMPORTS),
    ]


def test_a_conversion_that_no_test_uses_takes_those_of_its_folder() -> None:
    made = choice({"src/lib/families/two.py": "def pairs(x):\n    return x or 1\n"})
    assert [(item.test, item.reason) for item in made.tests] == [
        (
            "tests/unit/families/test_two_roundtrip.py",
            "a conversion test of families, where lib.families.two differs",
        )
    ]


def test_a_test_that_still_imports_a_removed_module_is_chosen() -> None:
    renamed = {
        "src/lib/peft.py": None,
        "src/lib/lora.py": BASE["src/lib/peft.py"],
        "src/lib/__init__.py": "from lib.lora import attach, shape\n",
    }
    assert "test_peft.py" in names(choice(renamed))
    assert "test_peft.py" in names(choice(renamed, renames={"src/lib/peft.py": "src/lib/lora.py"}))


def test_what_the_policy_exempts_and_what_verl_does_not_reach() -> None:
    others = {"src/lib/recipes/r.py": "def r():\n    return 2\n", "src/lib/idle.py": "def idle():\n    return 2\n"}
    made = names(choice({**peft(), **others}))
    assert made[-1] == "test_idle.py"
    assert "test_recipe.py" not in made


def test_a_file_without_tests_is_left_out_and_one_for_gpus_says_so() -> None:
    new = {
        "tests/unit/test_empty.py": "import lib.peft\n",
        "tests/unit/test_gpu.py": source("import pytest", 'pytestmark = pytest.mark.run_only_on("GPU")\n'),
    }
    made = choice({**peft(), **new})
    assert made.left_out == ("No test function in tests/unit/test_empty.py.",)
    assert {item.test: item.gpu_count for item in made.tests if item.gpu_count} == {"tests/unit/test_gpu.py": 1}


def test_without_the_key_only_the_listed_tests_are_run() -> None:
    text = POLICY_TEXT.partition("bridge_test_choice")[0]
    repository = FakeTrees({"base": BASE, "head": {**BASE, **peft()}, "verl": CALLER})
    made = policy(text=text)
    planner = planner_over(repository, made)
    assert planner.plan("base", "head", made).plan.tests.tests == ()


@pytest.mark.parametrize("absent", ["tests/unit/test_symbol.py", "tests/unit/helper.py"])
def test_a_test_whose_content_is_not_here_chooses_nothing_and_breaks_nothing(absent: str) -> None:
    repository = FakeTrees({"base": BASE, "head": {**BASE, **peft()}, "verl": CALLER}, absent=frozenset({absent}))
    made = policy()
    planner = planner_over(repository, made)
    assert "tests/unit/test_peft.py" in [item.test for item in planner.plan("base", "head", made).plan.tests.tests]

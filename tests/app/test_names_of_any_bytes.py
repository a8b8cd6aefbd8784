"""Paths that are not UTF-8, and texts with half a surrogate pair, in every place that a plan takes text from."""

import json

from tests.fakes.small_bridge import BASE, CORE, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, LinkTo
from verl_e2e.app.plan_change import Planned, Planner
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.walk import Entry
from verl_e2e.core.report.plan_text import render_plan_text
from verl_e2e.core.text.escape import any_word

ODD = "\udcff"
SOURCE = "import megatron.bridge.peft.lora\n\n\nclass Odd:\n    def run(self):\n        return 1\n"
TEST = "from megatron.bridge.peft import lora\n\n\ndef test_one():\n    assert lora\n"
TEXTS = (
    "\n\nODD = {'\\ud800': ('a.b', '\\ud801'), 'x': '\\udc90.y'}\n__all__ = ['\\udc91']\n\n\n"
    "def __getattr__(name):\n    if name == '\\udc92':\n        raise ValueError('\\udc93')\n    return ODD[name]\n"
)


def planned(uses: Uses = USES) -> Planned:
    core = BASE[CORE]
    assert isinstance(core, str)
    odd = {
        f"src/{ODD}/__init__.py": "x = 1\n",
        f"{TOP}{ODD}.py": SOURCE,
        f"{TOP}models/{ODD}/x.yaml": "a: 1\n",
        f"{TOP}models/link{ODD}": LinkTo(f"../{ODD}"),
        f"docs/{ODD}.md": "text\n",
        f"{ODD}": "text\n",
        f"tests/unit_tests/test_{ODD}.py": TEST,
        f"tests/unit_tests/{ODD}/test_two.py": f"# {ODD.encode('utf-8', 'surrogateescape')!r}\n" + TEST,
        "tests/unit_tests/test_texts.py": TEST + "\n\nNAMES = ['megatron.bridge.peft.lora.\\udc99', '\\ud800']\n",
        CORE: core + TEXTS,
    }
    trees = FakeTrees({"base": BASE, "head": {**BASE, **odd}})
    return Planner(trees, uses, FakeSummaries()).plan("base", "head", packaged_policy())


def test_a_plan_of_names_of_any_bytes_can_be_written_in_each_form() -> None:
    # An import that this Bridge cannot serve is searched for by its name, and found in the odd module.
    guessed = Uses((*USES.entries, Entry("megatron.bridge.gone", "Odd", "caller.py", 7)), USES.calls, USES.source)
    for uses in (USES, guessed):
        found = planned(uses).plan
        assert found.levels
        text = render_plan_text(found)
        assert b"\\xff" in text.encode()
        document = json.loads(plan_json(found).encode())
        tests = [test["test"] for test in document["bridge_tests"]["tests"]]
        assert "tests/unit_tests/test_texts.py" in tests
        assert not [test for test in tests if "xff" in test]
        assert any("their names are not UTF-8" in sentence for sentence in document["bridge_tests"]["left_out"])


def test_words_of_any_bytes_are_found_as_these_bytes() -> None:
    assert any_word([f"a{ODD}b", "c"]).search(b"x a\xffb y")
    assert not any_word([f"a{ODD}b", "c"]).search(b"ab")

"""Which Bridge tests a change chooses, from what is known of the test files at its head."""

import pytest

from verl_e2e.config import packaged_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.jobs import WhyChosen
from verl_e2e.core.plan.bridge_tests import TestsAtHead, changed_modules, changed_tests, choose
from verl_e2e.core.plan.policy import ChoiceOfTests, Policy
from verl_e2e.core.plan.reached_files import Marks
from verl_e2e.core.reach.effects import Effect, Effects, Idle, Inside
from verl_e2e.core.reach.users import ChangedModule, Distance, Use

PACKAGED = packaged_policy()
PEFT = ChangedModule("lib.peft", "src/lib/peft.py")
BRIDGE = ChangedModule("lib.two.two_bridge", "src/lib/two/two_bridge.py")
MORE = "{} more test files are near the change, beyond the {} of the policy: {}."
IDLE = ChangedModule("lib.idle", "src/lib/idle.py", reached=False)


def policy(files: int = 12, *, conversion: bool = True, listed: tuple[str, ...] = ()) -> Policy:
    about = {"changes": ["*_bridge.py"], "tests": ["*roundtrip*.py"]} if conversion else None
    choice = ChoiceOfTests.model_validate({"paths": ["tests/"], "files": files, "conversion": about})
    return PACKAGED.model_copy(update={"bridge_test_choice": choice, "bridge_tests": listed})


def at_head(uses: dict[str, Use], *others: str, empty: tuple[str, ...] = ()) -> TestsAtHead:
    present = frozenset({*uses, *others})
    return TestsAtHead(present, uses, {path: Marks(0 if path in empty else 1) for path in present})


def chosen(made: Policy, known: TestsAtHead, *changed: str) -> list[tuple[str, WhyChosen]]:
    found = choose(made, changed, (PEFT, BRIDGE, IDLE), known)
    return [(item.test, item.why) for item in found.tests]


def test_the_changed_ones_come_first_then_conversion_then_the_nearest_and_the_unreached_last() -> None:
    uses = {
        "tests/test_idle.py": Use(IDLE, Distance.SYMBOL, "f"),
        "tests/test_other.py": Use(PEFT, Distance.MODULE),
        "tests/test_peft.py": Use(PEFT, Distance.MODULE),
        "tests/test_near.py": Use(PEFT, Distance.SYMBOL, "f"),
        "tests/test_roundtrip.py": Use(BRIDGE, Distance.MODULE),
        "tests/test_gone.py": Use(PEFT, Distance.MODULE),
    }
    known = at_head(uses, "tests/test_new.py")
    known = TestsAtHead(known.present - {"tests/test_gone.py"}, uses, known.marks)
    assert chosen(policy(), known, "tests/test_new.py", "tests/test_near.py", "tests/test_removed.py") == [
        ("tests/test_near.py", WhyChosen.CHANGED),
        ("tests/test_new.py", WhyChosen.CHANGED),
        ("tests/test_roundtrip.py", WhyChosen.CONVERSION),
        ("tests/test_peft.py", WhyChosen.IMPORTS),
        ("tests/test_other.py", WhyChosen.IMPORTS),
        ("tests/test_idle.py", WhyChosen.IMPORTS),
    ]


def test_a_conversion_that_no_test_uses_takes_the_two_first_of_its_folder() -> None:
    names = [f"tests/two/test_{name}_roundtrip.py" for name in "abc"]
    assert chosen(policy(), at_head({}, *names, "tests/other/test_roundtrip.py")) == [
        (name, WhyChosen.CONVERSION) for name in names[:2]
    ]
    assert chosen(policy(conversion=False), at_head({}, *names)) == []


@pytest.mark.parametrize(
    ("files", "count", "left_out"),
    (
        (12, 5, ()),
        (5, 4, ("1 more test file is near the change, beyond the 5 of the policy: tests/test_4.py.",)),
        (2, 1, (MORE.format(4, 2, "tests/test_1.py, tests/test_2.py, tests/test_3.py and 1 more"),)),
        (1, 0, (MORE.format(5, 1, "tests/test_0.py, tests/test_1.py, tests/test_2.py and 2 more"),)),
    ),
)
def test_the_listed_ones_count_and_what_is_left_out_is_said(files: int, count: int, left_out: tuple[str, ...]) -> None:
    uses = {f"tests/test_{number}.py": Use(PEFT, Distance.MODULE) for number in range(5)}
    uses["tests/test_listed.py"] = Use(PEFT, Distance.SYMBOL, "f")
    found = choose(policy(files, listed=("tests/test_listed.py::test_a",)), (), (PEFT,), at_head(uses))
    assert (len(found.tests), found.left_out) == (count, left_out)


def test_a_file_without_a_test_is_left_out_and_said() -> None:
    known = at_head({"tests/test_a.py": Use(PEFT, Distance.MODULE)}, empty=("tests/test_a.py",))
    assert choose(policy(), (), (PEFT,), known).left_out == ("No test function in tests/test_a.py.",)


def change(*paths: ChangedPath) -> Change:
    return Change("b", "h", "b", paths)


def test_the_tests_that_a_change_touches_are_those_that_are_there_and_may_be_chosen() -> None:
    paths = (
        ChangedPath("tests/test_b.py", PathStatus.MODIFIED),
        ChangedPath("tests/test_a.py", PathStatus.ADDED),
        ChangedPath("tests/test_gone.py", PathStatus.REMOVED),
        ChangedPath("tests/helper.py", PathStatus.MODIFIED),
        ChangedPath("src/test_c.py", PathStatus.MODIFIED),
        ChangedPath("tests/test_d.py", PathStatus.MODIFIED, submodule=SubmoduleBump("a", "b")),
    )
    assert changed_tests(change(*paths), policy().test_choice) == ("tests/test_a.py", "tests/test_b.py")


def test_the_modules_that_differ_are_those_with_an_effect_and_without_an_exemption() -> None:
    top = "src/megatron/bridge/"
    names = (f"{top}peft/lora.py", f"{top}peft/idle.py", f"{top}peft/quiet.py", "docs/a.md")
    effect = Effect(names[0], "LoRA", "changed", (), (), sure=True)
    effects = Effects(
        {names[0]: Inside((effect,)), names[1]: Inside((), Idle.NO_EFFECT), names[2]: Inside((), Idle.UNREACHED)}
    )
    made = change(*(ChangedPath(name, PathStatus.MODIFIED) for name in names))
    found = changed_modules(made, policy(), effects)
    assert [
        (changed_module.name, sorted(changed_module.symbols), changed_module.reached) for changed_module in found
    ] == [
        ("megatron.bridge.peft.lora", ["LoRA"], True),
        ("megatron.bridge.peft.quiet", [], False),
    ]
    assert [changed_module.reached for changed_module in changed_modules(made, policy(), None)] == [True, True, True]
    assert changed_modules(made, policy().model_copy(update={"reach": None}), effects) == ()

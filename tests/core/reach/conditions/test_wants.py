"""Tests of the wants of a change."""

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree, wants
from tests.core.reach.programs import ROOTS
from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.model.wants import Axis, ModelWant, Value, Want
from verl_e2e.core.reach.conditions.wants import wants_of
from verl_e2e.core.reach.reached_functions import TouchedFunction

MAIN = "\ndef main():\n    f()\n"


def _wants(old: str, new: str) -> tuple[Want, ...]:
    base = {FILE: old + MAIN, "src/lib/__init__.py": ""}
    return wants(base, {FILE: new + MAIN})


def test_a_changed_line_wants_what_guards_it() -> None:
    old = "def f():\n    if tp_size > 1 and x:\n        g(1)\n"
    assert _wants(old, old.replace("g(1)", "g(2)")) == (
        Want(
            path=FILE,
            symbol="f",
            lines=(3,),
            condition="tp_size > 1 and x",
            axes={Axis.TENSOR: 2},
            open=("x",),
            rules=("layer's tensor size",),
        ),
    )


def test_adapters_of_experts_leave_by_themselves_in_a_save_alone() -> None:
    path = "src/megatron/bridge/models/conversion/peft_bridge.py"
    old = "def stream_adapter_weights():\n    if is_shared_outer_lora and merge_adapter_weights:\n        g(1)\n"
    function = ChangedFunction(path=path, symbol="stream_adapter_weights", first_line=1, last_line=3, lines=(3,))
    trees = code_tree({path: old}), code_tree({path: old.replace("g(1)", "g(2)")})
    found = wants_of([TouchedFunction(function, path, "stream_adapter_weights")], trees, ROOTS)
    (own,) = [want for want in found if want.lines]
    assert own.axes[Axis.RESUME] is True
    # Four times the rank, which is 8 for adapters that experts share on the outside.
    assert own.axes[Axis.ADAPTER_ALPHA] == 32
    assert {(want.condition, want.axes.get(Axis.ADAPTER_MERGE)) for want in found if not want.lines} >= {
        ("the adapters leave by themselves", False)
    }


def test_what_every_run_enters_has_no_want() -> None:
    assert _wants("def f():\n    g(1)\n", "def f():\n    g(2)\n") == ()


def test_lines_with_one_condition_are_one_want() -> None:
    old = "def f():\n    if is_expert:\n        g(1)\n        h(1)\n    if cp_size > 1:\n        g(3)\n"
    found = _wants(old, old.replace("1)", "2)").replace("g(3)", "g(4)"))
    assert [(want.lines, want.axes, want.model) for want in found] == [
        ((3, 4), {}, ModelWant(features=frozenset({"moe"}))),
        ((6,), {Axis.CONTEXT: 2}, ModelWant()),
    ]


@pytest.mark.parametrize(
    ("old", "new", "condition"),
    [
        # An operand comes: both versions differ where the rest holds and the new one decides.
        ("if a:\n        g(1)", "if a and tp_size > 1:\n        g(1)", "a and tp_size <= 1"),
        ("if a:\n        g(1)", "if a or tp_size > 1:\n        g(1)", "not a and tp_size > 1"),
        # An operand goes.
        ("if a and b:\n        g(1)", "if a:\n        g(1)", "a and not b"),
        ("if a or b:\n        g(1)", "if a:\n        g(1)", "not a and b"),
        # A guard comes around a statement, or before it.
        ("g(1)", "if a:\n        g(1)", "not a"),
        ("g(1)", "if a:\n        return\n    g(1)", "a"),
        ("if a:\n        return\n    g(1)", "g(1)", "a"),
        # A test is negated.
        ("if a:\n        g(1)", "if not a:\n        g(1)", "not a"),
        # A part of an expression.
        ("x = g(1) if a else h(1)", "x = g(1) if a else h(2)", "not a"),
        ("x = [y for y in z if y.ok]", "x = [y + 1 for y in z if y.ok]", "y.ok"),
        ("x = a and g(1)", "x = a and g(2)", "a"),
        # An operand of a value comes, or goes: the versions differ where it decides.
        ("x = a", "x = a and tp_size > 1", "a and tp_size <= 1"),
        ("x = a", "x = a or tp_size > 1", "not a and tp_size > 1"),
        ("g(a or b)", "g(a or b or c(1))", "not a and not b and c(1)"),
        ("return a", "return not (a and b)", "a and not b"),
    ],
)
def test_a_change_of_a_condition_wants_the_run_that_tells_the_versions_apart(
    old: str, new: str, condition: str
) -> None:
    found = _wants(f"def f():\n    {old}\n", f"def f():\n    {new}\n")
    assert condition in [want.condition for want in found]


def test_a_condition_that_nothing_can_fulfil_wants_nothing() -> None:
    old = "def f():\n    for s in t:\n        if s == 2:\n            g()\n            continue\n        h()\n"
    new = old.replace("s == 2:", "s == 2 and not e:").replace(
        "        h()", "        if s == 2 and e:\n            k()\n            continue\n        h()"
    )
    found = [want.condition for want in _wants(old, new)]
    assert found == ["s == 2", "s == 2 and e"]


def test_a_check_that_only_raises_asks_for_no_run_that_fails() -> None:
    found = _wants("def f():\n    g(1)\n", "def f():\n    if a:\n        raise E\n    g(1)\n")
    assert [want.open for want in found] == []


def test_a_new_call_wants_what_the_called_function_is_guarded_by() -> None:
    helper = (
        "def h(x):\n    'Text.'\n    y = 1\n    if not isinstance(x, DTensor):\n        return x\n"
        "    if x is None:\n        raise E\n    x.full()\n    return x.gather()\n"
    )
    found = _wants(f"{helper}def f():\n    g(1)\n", f"{helper}def f():\n    g(h(1))\n")
    assert [(want.symbol, want.condition, want.axes) for want in found] == [
        ("f", "isinstance(x, DTensor) and x is not None", {Axis.FSDP: True})
    ]


def test_a_new_call_of_what_does_nothing_wants_nothing() -> None:
    helper = "def h(x):\n    if a:\n        return x\n    return None\n"
    assert _wants(f"{helper}def f():\n    g(1)\n", f"{helper}def f():\n    g(h(1))\n") == ()


def test_code_that_cannot_be_followed_has_no_wants() -> None:
    deep = f"def main():\n    if a:\n        x = g{'()' * 900}\n"
    function = ChangedFunction(path=FILE, symbol="main", first_line=1, last_line=3, lines=(3,))
    touched = [TouchedFunction(function, FILE, "main")]
    trees = code_tree({FILE: deep}), code_tree({FILE: deep.replace("g(", "h(")})
    assert wants_of(touched, trees, ROOTS) == ()
    empty = code_tree({FILE: "def other():\n    pass\n"})
    assert wants_of(touched, (empty, empty), ROOTS) == ()


def test_a_method_that_is_newly_called_is_looked_into_as_well() -> None:
    source = (
        "class C:\n    def h(self):\n        if self.tp_size > 1:\n            self.x.append(1)\n"
        "    def f(self):\n        self.k(1){}\n    def k(self, x):\n        return 1\ndef f():\n    C().f()\n"
    )
    found = _wants(
        source.format(""), source.format("\n        self.h()\n        self.no()\n        x.y.z()\n        a()()")
    )
    assert [want.axes for want in found if 7 in want.lines] == [{Axis.TENSOR: 2}]


def test_a_removed_function_wants_what_led_into_it() -> None:
    old = "def gone():\n    g(1)\ndef f():\n    if pp_size > 1:\n        gone()\n    k()\n"
    found = _wants(old, "def f():\n    k()\n")
    assert {(want.symbol, want.side) for want in found} == {("gone", Side.MERGE_BASE), ("f", Side.MERGE_BASE)}
    assert all(want.axes == {Axis.PIPELINE: 2} for want in found)


def test_lines_of_the_head_and_of_the_merge_base_are_never_mixed() -> None:
    guarded = "def f():\n    if pp_size > 1:\n        k(1)\n    if pp_size > 1:\n        gone()\n"
    found = _wants(guarded, guarded.replace("k(1)", "k(2)").replace("    if pp_size > 1:\n        gone()\n", ""))
    assert {(want.side, want.lines) for want in found} == {(Side.HEAD, (3,)), (Side.MERGE_BASE, (5,))}


def test_demands_of_callers_that_no_run_fulfils_stay_open() -> None:
    old = "def h():\n    if tp_size == 1:\n        g(1)\ndef f():\n    if tp_size > 1:\n        h()\n"
    found = _wants(old, old.replace("g(1)", "g(2)"))
    assert [(want.limits, want.open) for want in found] == [({Axis.TENSOR: 1}, ("tp_size > 1",))]


def test_a_function_whose_signature_alone_differs_wants_what_leads_to_it() -> None:
    old = "def h(a):\n    g(a)\ndef f():\n    if cp_size > 1:\n        h(1)\n"
    found = _wants(old, old.replace("def h(a)", "def h(a, b=1)"))
    assert [(want.symbol, want.lines, want.axes) for want in found] == [("h", (), {Axis.CONTEXT: 2})]


@pytest.mark.parametrize(
    "deep",
    [
        "(" * 90 + "a" + " if b else c)" * 90,
        "not " * 900 + "a",
        "".join("a.b or (" for _ in range(90)) + "a" + ")" * 90,
    ],
)
def test_code_that_nests_deeply_is_read_in_time_or_not_at_all(deep: str) -> None:
    old = f"def f():\n    if {deep}:\n        g(1)\n"
    assert len(_wants(old, old.replace("g(1)", "g(2)"))) <= 1


def test_of_very_many_exits_the_first_count() -> None:
    exits = "".join(f"    if a{number}:\n        return\n" for number in range(300))
    found = _wants(f"def f():\n{exits}    g(1)\n", f"def f():\n{exits}    g(2)\n")
    assert [len(want.open) for want in found] == [64]


def test_a_function_inside_another_wants_what_surrounds_it() -> None:
    old = "def f():\n    if cp_size > 1:\n        def inner():\n            g(1)\n        inner()\n"
    found = _wants(old, old.replace("g(1)", "g(2)"))
    assert [(want.symbol, want.axes) for want in found] == [("f.<locals>.inner", {Axis.CONTEXT: 2})]


def test_a_flag_and_a_method_that_returns_a_test_are_looked_through() -> None:
    old = (
        "class A:\n    def f(self):\n        found = False\n        if self.is_expert and self.odd:\n"
        "            found = True\n        if found and self.cut():\n            g(1)\n"
        "    def cut(self):\n        return tp_size > 1 and self.even\n"
    )
    main = "\ndef main():\n    A().f()\n"
    found = wants({FILE: old + main, "src/lib/__init__.py": ""}, {FILE: old.replace("g(1)", "g(2)") + main})
    assert [(want.axes, want.model.features, want.open) for want in found] == [
        ({Axis.EXPERT_TENSOR: 2}, frozenset({"moe"}), ("self.odd", "self.even"))
    ]


def test_what_only_files_of_families_reach_wants_a_model_of_one() -> None:
    made = "from lib.shared import f\ndef {0}():\n    f()\n"
    base = {
        FILE: "from lib.a import a\nfrom lib.b import b\nfrom lib.c import c\ndef main():\n    a()\n    b()\n    c()\n",
        "src/lib/__init__.py": "",
        "src/lib/shared.py": "def f():\n    if tp_size > 1:\n        g(1)\n    h(1)\n",
        **{f"src/lib/{name}.py": made.format(name) for name in "abc"},
    }
    changed = {"src/lib/shared.py": base["src/lib/shared.py"].replace("1)", "2)")}
    families = {f"src/lib/{name}.py": frozenset({name.upper()}) for name in "abc"}

    def conditions(*known: str) -> list[tuple[str, set[str], dict[Axis, Value]]]:
        of = {f"src/lib/{name}.py": families[f"src/lib/{name}.py"] for name in known}
        found = wants(base, changed, families_of=lambda path: of.get(path, frozenset()))
        return [(want.condition, set(want.families), dict(want.axes)) for want in found]

    every = "a model of A, B or C"
    assert conditions("a", "b", "c") == [
        (f"{every} and tp_size > 1", {"A", "B", "C"}, {Axis.TENSOR: 2}),
        (every, {"A", "B", "C"}, {}),
    ]
    assert conditions("a", "b") == [("tp_size > 1", set(), {Axis.TENSOR: 2})]
    # What is in a family's own file is known to be.
    of_shared = wants(base, changed, families_of=lambda _path: frozenset({"S"}))
    assert [want.families for want in of_shared] == [frozenset()]

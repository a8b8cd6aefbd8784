"""Static reach compared with execution maps: each class of agreement, and how it is shown."""

from tests.core.model.test_execution_maps import map_of
from tests.core.reach.programs import entries_of, program
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMaps
from verl_e2e.core.plan.map_agreement import Agreement, Compared, compare_with_maps, render_compared
from verl_e2e.core.reach.walk import Reach

A, B = "src/lib/a.py", "src/lib/sub/b.py"
FILES = {
    "src/lib/__init__.py": "",
    A: """
        class Model:
            def forward(self):
                return helper()
            def guessed(self):
                pass
        def helper():
            pass
        def idle():
            pass
        def hidden():
            pass
        VALUE = 1
    """,
    "src/lib/sub/__init__.py": "",
    B: "def far():\n    pass\n",
}
ENTERED = {A: {"helper": ("trainer",), "hidden": ("rollout",), "f.<locals>.g": ("trainer",)}}
COMMIT = "a" * 40


def compared(maps: ExecutionMaps) -> Compared:
    made = program(FILES)
    reached = Reach(made, entries_of(("lib.a", "helper"), ("lib.a", "Model"), ("lib.sub.b", "far"), ("", "guessed")))
    return compare_with_maps(made, reached, maps, COMMIT)


def test_each_function_is_counted_once_in_its_class() -> None:
    found = compared(ExecutionMaps(maps=(map_of(files=ENTERED),)))
    assert found.counts == {
        Agreement.BOTH: 1,
        Agreement.REACHED_SURELY: 1,
        Agreement.REACHED_PERHAPS: 1,
        Agreement.ENTERED: 1,
        Agreement.NEITHER: 2,
    }
    assert found.unreached == (f"{A}:hidden",)
    assert found.folders == {"src/lib": 1, "src/lib/sub": 1}


def test_the_comparison_as_text() -> None:
    assert render_compared(compared(ExecutionMaps(maps=(map_of(files=ENTERED),)))) == (
        "Static reach and execution maps at Bridge aaaaaaaaaaaa, measured: 0-lora-ddp\n"
        "  1 functions reached and entered\n"
        "  1 functions reached surely and not entered\n"
        "  1 functions reached perhaps and not entered\n"
        "  1 functions entered and not reached\n"
        "  2 functions neither reached nor entered\n"
        "  reached and not entered in src/lib: 1\n"
        "  reached and not entered in src/lib/sub: 1\n"
        f"  entered and not reached: {A}:hidden\n"
    )
    nothing = render_compared(compared(NO_MAPS))
    assert nothing.startswith("Static reach and execution maps at Bridge aaaaaaaaaaaa, measured: no job\n")


def test_of_many_functions_the_first_are_named() -> None:
    names = tuple(f"{A}:f{number}" for number in range(23))
    many = Compared(COMMIT, ("0-lora-ddp",), {}, {}, names)
    text = render_compared(many).splitlines()
    assert (len(text), text[-1]) == (22, "  and 3 more")

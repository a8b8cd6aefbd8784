"""What is said of one path alone, read off the plan of a change of it: a table of plans."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.model.test_execution_maps import LORA, map_of
from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.model.execution import ChangedCode, ChangedFunction, ExecutionMaps, Purpose
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.classify import Classified, SetAside
from verl_e2e.core.plan.explain import (
    Explanation,
    explanation_json,
    explanations,
    render_explanation,
    render_short_explanations,
    with_maps,
    with_must_run,
)
from verl_e2e.core.plan.measured_jobs import NOT_ENTERED, NotCovered, Place
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.plan import MODULE_LEVEL, Exempted, Plan, Reason

PATH = "src/lib/a.py"
NAMES = {"f": False, "f.inner": False, "TABLE": True}
OF_F = Reason(
    Level.SAVE_RESUME, PATH, "saves", symbol="f", via=("verl:7 imports f", "lib.a.f", "saving"), rule="saving"
)
OF_BODY = Reason(Level.SMOKE, PATH, "runs", symbol=MODULE_LEVEL, via=("verl:7 imports lib.a",))
BY_NAME = Reason(Level.SMOKE, PATH, "it is a source", rule="source")


def plan(*reasons: Reason, exempted: tuple[Exempted, ...] = ()) -> Plan:
    levels = tuple(sorted({reason.level for reason in reasons}))
    return Plan("b", "h", levels, (), reasons, (), (), (), exempted)


def judged(**given: Any) -> Classified:
    fields: dict[str, Any] = {"path": PATH, "exemption": None, "rules": (), "families": (), "effects": ()}
    return Classified(**(fields | given))


@pytest.mark.parametrize(
    ("made", "text", "symbol", "expected"),
    (
        (plan(OF_F), judged(), "", [
            "src/lib/a.py: level 1 (saving)",
            "src/lib/a.py:f: level 0, 1 (saving)\n  verl:7 imports f\n    lib.a.f",
            "src/lib/a.py:f.inner: asks for nothing, verl does not reach it",
            "src/lib/a.py:TABLE: asks for nothing, verl does not reach it",
        ]),
        (plan(OF_F), judged(), "f", [
            "src/lib/a.py:f: level 0, 1 (saving)\n  verl:7 imports f\n    lib.a.f",
            "src/lib/a.py:f.inner: asks for nothing, verl does not reach it",
        ]),
        (plan(OF_BODY), judged(), "TABLE", [
            "src/lib/a.py:TABLE: level 0 (no rule names it)\n  it runs when verl imports the module; a change that is "
            "proved to have no effect asks for nothing\n  verl:7 imports lib.a",
        ]),
        (plan(BY_NAME), judged(effects=None), "f", [
            "src/lib/a.py: level 0 (source)\n"
            "  it is a source; it is judged by its name, not by its inside; unless idle",
        ]),
        (plan(exempted=(Exempted("docs", 1, "no run reads it"),)), judged(exemption=SetAside("docs", "no")), "", [
            "src/lib/a.py: asks for nothing, docs: no run reads it",
        ]),
    ),
)  # fmt: skip
def test_what_is_said_of_a_path(made: Plan, text: Classified, symbol: str, expected: list[str]) -> None:
    found = explanations(made, text, symbol, NAMES, "unless idle" if text.effects is None else "")
    assert [render_explanation(explanation) for explanation in found] == expected


def test_a_module_that_runs_has_a_row_of_its_own() -> None:
    found = explanations(plan(OF_BODY), judged(), "", {"f": False})
    assert [(explanation.symbol, [int(level) for level in explanation.levels]) for explanation in found] == [
        ("", [0]),
        (MODULE_LEVEL, [0]),
        ("f", []),
    ]


def test_an_explanation_as_a_document() -> None:
    (found,) = explanations(plan(OF_F), judged(), "f.inner", NAMES)
    assert json.loads(json.dumps(explanation_json(found))) == {
        "path": PATH, "symbol": "f.inner", "levels": [], "rules": [], "via": [],
        "reason": "verl does not reach it", "entered_by": [], "must_run": [],
        "places": [], "reached_by": [],
    }  # fmt: skip


def test_what_each_job_must_run_of_a_path_and_of_a_symbol() -> None:
    def function(symbol: str, path: str = "src/a.py") -> ChangedFunction:
        return ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=9, lines=(2, 3))

    code = ChangedCode(
        functions=(
            function("A.run"),
            function("A.run.<locals>.g"),
            function("Other"),
            function(""),
            function("f", "b.py"),
        )
    )
    smoke = variant_named("0-lora-ddp")
    assert smoke is not None
    jobs = (JobOutline(smoke, (), None, changed=code), JobOutline(smoke, (), None, family="small"))
    made = replace(plan(), levels=(Level.SMOKE,), jobs=jobs)
    found = {
        name: with_must_run(Explanation("src/a.py", name), made).must_run for name in ("", "A.run", "A", "nothing")
    }
    assert found == {
        "": ("0-lora-ddp: 3 functions, 6 lines",),
        "A.run": ("0-lora-ddp: 2 functions, 4 lines",),
        "A": ("0-lora-ddp: 2 functions, 4 lines",),
        "nothing": (),
    }
    assert with_must_run(Explanation("src/a.py", "Other"), made).must_run == ("0-lora-ddp: 1 function, 2 lines",)
    shown = render_explanation(with_must_run(Explanation("src/a.py", "Other", levels=(Level.SMOKE,)), made))
    assert shown.splitlines()[-1] == "  looked for in 0-lora-ddp: 1 function, 2 lines"


def test_the_places_of_a_symbol_each_with_its_job() -> None:
    inside = Purpose(path=PATH, symbol="A.run", condition="tp > 1")
    smoke = variant_named("2-cp")
    assert smoke is not None
    other = inside.model_copy(update={"symbol": "B.run", "condition": "cp > 1"})
    jobs = (JobOutline(smoke, (), None, purposes=(inside, other)),)
    left = NotCovered(inside.model_copy(update={"condition": "pp > 16"}), "no host is large enough")
    function = ChangedFunction(path=PATH, symbol="A.run", first_line=1, last_line=9)
    open_ = Place(function, (3,), frozenset(), problem=NOT_ENTERED)
    made = replace(plan(), jobs=jobs, not_covered=(left,), not_entered=(open_,))
    expected = (
        f"2-cp for {PATH}:A.run: tp > 1",
        f"no job for {PATH}:A.run: pp > 16: no host is large enough",
        f"any job or none for {PATH}:A.run, lines 3: {NOT_ENTERED}",
    )
    for symbol in ("A", "A.run"):
        assert with_must_run(Explanation(PATH, symbol), made).places == expected
    for path, symbol in ((PATH, ""), (PATH, "A.r"), ("b.py", "A.run")):
        assert with_must_run(Explanation(path, symbol), made).places == ()
    shown = render_explanation(with_must_run(Explanation(PATH, "A", levels=(Level.SMOKE,)), made))
    assert shown.splitlines()[-3:] == [f"  place: {row}" for row in expected]


def test_an_explanation_names_who_entered_a_symbol() -> None:
    maps = ExecutionMaps(maps=(map_of(), map_of("1-resume", files={})))
    found = with_maps(Explanation(LORA, "LoRA.transform", reason="it runs"), maps)
    assert render_explanation(found).splitlines()[-1] == "  entered by 0-lora-ddp (trainer)"
    assert explanation_json(found)["entered_by"] == ("0-lora-ddp (trainer)",)
    whole = Explanation(LORA, "")
    assert with_maps(whole, maps) is whole


LONG = Explanation(
    PATH,
    "A.method",
    levels=(Level.SMOKE, Level(4)),
    rules=tuple(f"a rule with a long name {number}" for number in range(9)),
    via=tuple(f"lib.step{number} calls" for number in range(9)),
    must_run=tuple(f"{number}-job: 1 function" for number in range(7)),
    places=tuple(f"place {number} {'x' * 200}" for number in range(7)),
    entered_by=tuple(f"{number}-job (trainer)" for number in range(7)),
)


def test_a_method_takes_twelve_rows_of_a_hundred_columns_and_the_last_says_how_to_see_all() -> None:
    rows = render_short_explanations([LONG], "--full").splitlines()
    assert len(rows) <= 12
    assert max(map(len, rows)) <= 100
    assert rows[0].startswith(f"{PATH}:A.method: level 0, 4")
    assert [row.strip() for row in rows[1:6]] == [
        "lib.step0 calls", "...", "lib.step6 calls", "lib.step7 calls", "lib.step8 calls",
    ]  # fmt: skip
    assert "  looked for in 0-job: 1 function (and 6 more)" in rows
    assert "  entered by 0-job (trainer) (and 6 more)" in rows
    assert rows[-1] == "  --full shows all of it"


def test_what_is_short_is_shown_whole() -> None:
    found = Explanation(PATH, "f", reason="verl does not reach it")
    assert render_short_explanations([found], "--full") == render_explanation(found)


def test_a_path_is_followed_by_a_row_for_each_of_its_first_symbols() -> None:
    whole = Explanation(PATH, "", levels=(Level.SMOKE,), reason="unless idle")
    below = [Explanation(PATH, f"f{number}", levels=(Level.SMOKE,), via=("verl",)) for number in range(40)]
    other = Explanation("src/other.py", "g", reason="verl does not reach it")
    rows = render_short_explanations([whole, *below, other], "--full").splitlines()
    assert rows[:3] == [f"{PATH}: level 0 (no rule names it)", "  unless idle", "  :f0: level 0 (no rule names it)"]
    assert rows[-2:] == [
        "  and more symbols: --full shows them",
        "src/other.py:g: asks for nothing, verl does not reach it",
    ]
    assert len(rows) == 2 + 11 + 2


def test_the_methods_of_a_class_are_rows_below_it_and_another_symbol_of_the_path_is_not() -> None:
    found = [Explanation(PATH, name, levels=(Level.SMOKE,)) for name in ("A", "A.b", "Ab")]
    rows = render_short_explanations(found, "--full").splitlines()
    assert rows == [
        f"{PATH}:A: level 0 (no rule names it)",
        "  :A.b: level 0 (no rule names it)",
        f"{PATH}:Ab: level 0 (no rule names it)",
    ]

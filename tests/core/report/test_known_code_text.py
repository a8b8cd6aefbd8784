"""What a plan says of its changed functions by the maps: the text, the document and the counts of a backtest."""

from dataclasses import replace

from tests.core.model.test_execution_maps import LORA, map_of
from tests.core.reach.programs import program, reach
from tests.core.report.test_plan_text import text_of
from verl_e2e.core.model.execution_maps import ExecutionMaps
from verl_e2e.core.plan.backtest import render_usage, usage, usage_json
from verl_e2e.core.plan.explain import Explanation, explanation_json, render_explanation, with_maps
from verl_e2e.core.plan.known_execution import Entry, KnownExecution
from verl_e2e.core.plan.map_agreement import compare_with_maps
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.plan_document import plan_document

COMMIT = "a" * 40
KNOWN = KnownExecution("a.py", "f", Entry.KNOWN, known=(("0-lora-ddp", COMMIT),), elsewhere=("3-fsdp",))
BELIEVED = KnownExecution("a.py", "g", Entry.BELIEVED, believed=("1-resume",), not_entered=(("0-lora-ddp", COMMIT),))
MISSED = KnownExecution("a.py", "h", Entry.NOT_ENTERED)
UNREACHED = KnownExecution("a.py", "i", Entry.UNREACHED)
PLAN = Plan("b", "h", (), (), (), (), (), (), known=(KNOWN, BELIEVED, MISSED, UNREACHED))


def test_each_function_is_named_with_the_jobs() -> None:
    assert text_of(known=PLAN.known) == [
        "Changed functions by what runs of the planned jobs entered: 1 known, 1 believed, 1 not entered, 1 unreached",
        "  known: a.py:f, entered by 0-lora-ddp at aaaaaaaaaaaa; entered by jobs that are not planned: 3-fsdp",
        "  believed: a.py:g, may be entered by 1-resume; not entered by 0-lora-ddp at aaaaaaaaaaaa",
        "  not entered: a.py:h, no job is planned for it",
    ]


def test_of_many_functions_the_first_are_named_and_the_others_counted() -> None:
    rows = text_of(known=tuple(replace(MISSED, symbol=f"f{number}") for number in range(7)))
    assert (len(rows), rows[-1]) == (7, "  not entered: and 2 more")
    many = tuple(replace(UNREACHED, symbol=f"f{number}") for number in range(7))
    assert len(text_of(known=(KNOWN, *many))) == 2


def test_a_change_that_nothing_leads_to_has_no_block() -> None:
    assert text_of(known=(UNREACHED,)) == text_of() == []


def test_the_document_holds_every_function() -> None:
    first, *_, last = plan_document(PLAN).known
    assert first.model_dump(mode="json") == {
        "path": "a.py",
        "symbol": "f",
        "entry": "known",
        "known": {"0-lora-ddp": COMMIT},
        "believed": [],
        "not_entered": {},
        "elsewhere": ["3-fsdp"],
    }
    assert last.entry is Entry.UNREACHED


def test_an_explanation_names_who_entered_a_symbol() -> None:
    maps = ExecutionMaps(maps=(map_of(),))
    found = with_maps(Explanation(LORA, "LoRA.transform", reason="it runs"), maps)
    assert render_explanation(found).splitlines()[-1] == "  entered by 0-lora-ddp (trainer)"
    assert explanation_json(found)["entered_by"] == ("0-lora-ddp (trainer)",)
    for whole in (Explanation(LORA, ""), Explanation(LORA, "LoRA.transform", found=False)):
        assert with_maps(whole, maps) is whole


def test_a_backtest_counts_the_functions_and_compares_reach_with_the_maps() -> None:
    counted = usage([PLAN, None])
    assert "changed functions: 1 known, 1 believed, 1 not entered, 1 unreached\n" in render_usage(counted)
    assert counted.compared is None
    files = {"src/lib/a.py": "def f():\n    pass\n"}
    compared = compare_with_maps(program(files), reach(files, ("lib.a", "f")), ExecutionMaps(), COMMIT)
    whole = replace(counted, compared=compared)
    assert "Static reach and execution maps at Bridge aaaaaaaaaaaa" in render_usage(whole)
    document = usage_json(whole)
    assert document["functions"] == {"known": 1, "believed": 1, "not entered": 1, "unreached": 1}

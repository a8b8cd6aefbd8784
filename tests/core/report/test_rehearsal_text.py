"""The section of a card and the JSON document that a rehearsal gives."""

import json

import pytest

from tests.core.compare.test_rehearsal import BAD, ERROR, GOOD, PATH, entering, function, record
from verl_e2e.core.compare.rehearsal import IMPORTS, Observed, ObserveLimits, Rehearsal, RunNote, Trial, judge_rehearsal
from verl_e2e.core.report.rehearsal_text import first_failure, rehearsal_json, render_rehearsal


def found() -> Rehearsal:
    """A rehearsal with a cell of every kind."""
    head = entering(12, functions=(f"{PATH}:f",))
    changed = head.model_copy(update={"cell": "changed", "quantities": {**GOOD.quantities, "step1/loss@0": 2.5}})
    base = {
        IMPORTS: record(IMPORTS),
        "a": GOOD,
        "changed": GOOD.model_copy(update={"cell": "changed"}),
        "raises": GOOD.model_copy(update={"cell": "raises"}),
        "broken": record("broken", error=ERROR),
        "known": BAD.model_copy(update={"cell": "known"}),
    }
    after = {
        **base,
        IMPORTS: record(IMPORTS, python="3.12.4", libraries={"torch": "2.13.0+cpu"}),
        "a": BAD,
        "changed": changed,
        "raises": record("raises", error={**ERROR.model_dump(), "text": "<b>@someone</b>"}),
    }
    return judge_rehearsal(base, after, [function("f", (12, 13)), function("g", (40,), first=40)])


def test_the_section_says_what_fails_what_changes_and_what_nobody_entered() -> None:
    text = render_rehearsal(found())
    assert text.startswith(
        "### Rehearsal \\(CPU\\): Fail \\(Fail in 2, Blocked in 1, Changed in 1, Equal in 2 of 6 cells\\)"
    )
    assert "| `a` | logits: off by inf |  | `none` |" in text
    assert "<b>" not in text
    assert f"| `{PATH}:f` | changed | step1/loss is 2.5, was 2.0 | step1/loss by 2.5e-01 |" in text
    assert "- Fails at the base too: known \\(logits\\)" in text
    assert "- Does not run at the base, so nothing was compared: broken \\(KeyError\\)" in text
    assert f"- `{PATH}:f`, lines 13" in text
    assert f"- `{PATH}:g`, lines 40" in text
    assert "Python 3.12.4, torch 2.13.0\\+cpu." in text


def test_cells_that_the_host_blocks_are_named_and_many_of_one_reason_are_counted() -> None:
    names = [f"cell{number}" for number in range(30)]
    base = {IMPORTS: record(IMPORTS), **{name: record(name) for name in names}}
    full = {"type": "Exhausted", "text": "the host had nothing left", "at": ""}
    head = {**base, "cell0": record("cell0", error=full)}
    title = "- Gave nothing to compare for a reason of the host, so rehearse again:"
    assert f"{title} cell0 \\(the host had nothing left\\)" in render_rehearsal(judge_rehearsal(base, head, ()))
    # Of two errors the host's is named.
    raising = {**base, "cell0": record("cell0", error=full)}, {**base, "cell0": record("cell0", error=ERROR)}
    assert f"{title} cell0 \\(the host had nothing left\\)" in render_rehearsal(judge_rehearsal(*raising, ()))
    head = {IMPORTS: record(IMPORTS), **{name: record(name, error=full) for name in names}}
    assert f"{title} 30 cells \\(the host had nothing left\\)" in render_rehearsal(judge_rehearsal(base, head, ()))


def test_the_document_has_every_cell_with_its_findings() -> None:
    document = json.loads(rehearsal_json(found()))
    cells = {cell["cell"]: cell for cell in document["cells"]}
    assert document["outcome"] == "Fail"
    assert cells["a"]["newly"][0]["oracle"] == "logits"
    (difference,) = cells["changed"]["differences"]
    assert (difference["quantity"], difference["what"]) == ("step1/loss@0", "is 2.5, was 2.0")
    assert (difference["size"], difference["one_sided"]) == (0.25, False)
    assert cells["raises"]["head_error"]["type"] == "KeyError"


def test_a_change_that_no_run_executes_is_said_to_be_one() -> None:
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    assert "No function that a run executes is changed." in render_rehearsal(judge_rehearsal(base, base, ()))
    entered = judge_rehearsal(base, {**base, "a": entering(12)}, [function("f", (12,))])
    assert "The cells entered all changed lines of 1 functions." in render_rehearsal(entered)


def test_functions_in_which_no_fault_would_be_noticed_are_named() -> None:
    names = [f"{PATH}:{name}" for name in ("seen", "unseen", "shut")]
    trial = Trial(function=names[0], fault="its result scaled", cell="a", oracles=("logits",))
    tried = Observed(
        trials=(trial, Trial(function=names[1], fault="its <b>result</b> scaled", cell="a")),
        unjudged={names[2]: "its source cannot be compiled again"},
    )
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    changed = [function(name, (12,)) for name in ("seen", "unseen", "shut")]
    head = {**base, "a": entering(12, functions=tuple(names))}
    note = RunNote(isolation="The code ran in a cage.", isolated=True)
    judged = judge_rehearsal(base, head, changed, observed=tried, observe=ObserveLimits(9, 2, 30), run=note)
    text = render_rehearsal(judged)
    assert "at most 2 in each of 9 functions, within 30 s. A fault was noticed in 1 of 3; not in these:" in text
    assert f"- `{names[1]}`: entered, and nothing here would notice: its " in text
    assert "<b>" not in text
    assert f"- `{names[2]}`: not judged, because its source cannot be compiled again" in text
    assert f"- `{names[0]}`" not in text
    assert "The code ran in a cage." in text
    document = json.loads(rehearsal_json(judged))
    assert [item["sight"] for item in document["observations"]] == ["observed", "unnoticed", "unjudged"]
    assert document["observations"][0]["trials"][0]["oracles"] == ["logits"]
    assert (document["run"]["isolated"], document["equal_everywhere"]) == (True, False)
    assert document["observe"] == {"functions": 9, "faults": 2, "seconds": 30}


def test_a_document_has_no_number_that_json_does_not_have() -> None:
    base = {IMPORTS: record(IMPORTS), "a": record("a", quantities={"x@0": 1.0})}
    head = {**base, "a": record("a", quantities={"x@0": float("nan")})}
    document = json.loads(rehearsal_json(judge_rehearsal(base, head, ())), parse_constant=pytest.fail)
    assert document["cells"][1]["differences"][0]["size"] == "inf"


def test_many_changed_functions_are_told_by_file() -> None:
    functions = [function(f"f{number}", (number,), first=number) for number in range(1, 61)]
    base = {IMPORTS: record(IMPORTS), "a": GOOD}
    text = render_rehearsal(judge_rehearsal(base, base, functions))
    assert "Changed and entered by no cell, in 60 of 60 functions:" in text
    assert f"- `{PATH}`: f1, f2, f3 and 57 more" in text
    assert len(text.splitlines()) < 12
    files = [item.model_copy(update={"path": f"src/megatron/{item.symbol}.py"}) for item in functions]
    assert "40 more are in the JSON document." in render_rehearsal(judge_rehearsal(base, base, files))


@pytest.mark.parametrize(("loss", "row"), [(2.0, False), (2.5, True)])
def test_a_field_that_every_configuration_has_now_is_said_once(loss: float, row: bool) -> None:
    before = {name: record(name, quantities={"provider@0": {"gone": 3}, "step1/loss@0": 2.0}) for name in ("a", "b")}
    after = {name: record(name, quantities={"provider@0": {"new_size": 1}, "step1/loss@0": 2.0}) for name in ("a", "b")}
    after["b"] = record("b", quantities={"provider@0": {"new_size": 1}, "step1/loss@0": loss})
    imports = {IMPORTS: record(IMPORTS)}
    text = render_rehearsal(judge_rehearsal({**imports, **before}, {**imports, **after}, ()))
    said = "Fields of the configuration that are new or gone: gone is missing, was 3; new\\_size is 1, was missing."
    assert text.count(said) == 1
    assert f"{1 if row else 2} cells differ in nothing else." in text
    assert ("| `no changed function` | b | step1/loss is 2.5, was 2.0 |" in text) is row
    assert text.count("new\\_size") == 1


def test_a_new_field_with_two_values_is_said_with_both() -> None:
    imports = {IMPORTS: record(IMPORTS)}
    before = {name: record(name, quantities={"provider@0": {"kept": 1}}) for name in ("a", "b")}
    sizes = {"a": 1, "b": 2}
    after = {name: record(name, quantities={"provider@0": {"kept": 1, "size": sizes[name]}}) for name in sizes}
    text = render_rehearsal(judge_rehearsal({**imports, **before}, {**imports, **after}, ()))
    assert "new or gone: size is 1, was missing; size is 2, was missing." in text
    assert "2 cells differ in nothing else." in text


def test_the_section_says_how_many_cells_ran_and_the_first_failure_stands_by_itself() -> None:
    same = record("same")
    head = {IMPORTS: record(IMPORTS), "a": BAD, "same": same.model_copy(update={"carried": True})}
    rehearsal = judge_rehearsal({IMPORTS: record(IMPORTS), "a": GOOD, "same": same}, head, ())
    assert "1 cell ran over the head. What counts for the other 1 is that of a base" in render_rehearsal(rehearsal)
    failure = first_failure(rehearsal)
    assert failure is not None
    assert (failure.what, failure.edited) == ("a: logits: off by inf", "")
    assert first_failure(judge_rehearsal(head, head, ())) is None

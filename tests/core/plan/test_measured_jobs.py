"""Which jobs the places of a change need: few, within the budget, and what is left out is named."""

from dataclasses import replace

import pytest

from tests.core.plan.cells import NAMES, POLICY, ROWS, TABLE, places, planned
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.cell_settings import CellTable
from verl_e2e.core.plan.measured_jobs import NOT_ENTERED, Derived, JobMaker, Place, needs_of, with_measured_jobs
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle
from verl_e2e.core.plan.policy import Policy

SMOKE, RESUME = "0-lora-ddp", "1-resume"
PLAIN = "src/megatron/bridge/training/a.py"
EXPORT = "src/megatron/bridge/models/conversion/model_bridge.py"
ANY = ("qwen2-plain", "qwen2-lora", "qwen3-plain", "qwen3-lora", "moe-plain", "moe-lora", "gemma3-plain", "gemma3-lora")


def place(*cells: str, symbol: str = "f", path: str = PLAIN, **given: object) -> Place:
    function = ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=9)
    made = Place(function, (), places(*cells), inside=places(*cells))
    return replace(made, **given)  # type: ignore[arg-type]


def derive(
    names: tuple[str, ...], *found: Place, minutes: int = 500, table: CellTable = TABLE, policy: Policy = POLICY
) -> Derived:
    maker = JobMaker(policy, policy.checkpoint, table)
    return with_measured_jobs(planned(*names), needs_of(found, table), maker, minutes)


def ids(derived: Derived) -> list[str]:
    return [job.id for job in derived.jobs]


@pytest.mark.parametrize(
    ("names", "cells", "expected"),
    (
        # What level 0 enters needs no other job.
        ((SMOKE,), ANY, [SMOKE]),
        ((SMOKE,), ("qwen2-lora",), [SMOKE]),
        # The nearest cell counts, with the name of the table of levels where there is one.
        ((SMOKE,), ("qwen2-tp2",), [SMOKE, "2-tp2"]),
        ((SMOKE,), ("qwen3-pp4",), [SMOKE, "2-pp4"]),
        ((SMOKE,), ("qwen3-resume",), [SMOKE, RESUME]),
        ((SMOKE,), ("qwen3-recompute",), [SMOKE, "0-recompute"]),
        ((SMOKE,), ("moe-lora-ep2",), [SMOKE, "2-ep2-qwen3-moe"]),
        ((SMOKE,), ("moe-lora-tp2ep2",), [SMOKE, "2-expert"]),
        ((SMOKE,), ("gemma3-plain", "gemma3-lora"), [SMOKE, "4-feature-gemma3"]),
        ((SMOKE,), ("moe-plain", "moe-lora"), [SMOKE, "4-feature-qwen3-moe"]),
        ((SMOKE,), ("qwen3-tied",), [SMOKE, "0-tied"]),
        ((SMOKE,), ("moe-per-expert",), [SMOKE, "4-feature-share-per-expert-qwen3-moe"]),
        # A planned job that does what a cell did.
        ((SMOKE, "2-dense"), ("qwen2-tp2",), [SMOKE, "2-dense"]),
        ((SMOKE, "2-expert"), ("moe-lora-tp2ep2",), [SMOKE, "2-expert"]),
        # The cell with the settings of the planned job is not among them, so the job does not enter it.
        ((SMOKE, "2-expert"), ("moe-per-expert-ep2",), [SMOKE, "2-expert", "2-ep2-share-per-expert-qwen3-moe"]),
        ((SMOKE,), ("qwen2-plain",), [SMOKE, "1-adapter-none-resume"]),
    ),
)
def test_a_place_gets_the_job_of_the_nearest_cell(
    names: tuple[str, ...], cells: tuple[str, ...], expected: list[str]
) -> None:
    found = derive(names, place(*cells))
    assert ids(found) == expected
    assert not found.not_covered


def test_each_job_enters_something_that_no_other_one_does() -> None:
    apart = derive((SMOKE,), place("qwen2-tp2", symbol="f"), place("qwen3-pp4", symbol="g"))
    assert ids(apart) == [SMOKE, "2-pp4", "2-tp2"]
    # One cell that both have is enough.
    both = derive((SMOKE,), place("qwen2-tp2", "qwen3-resume", symbol="f"), place("qwen3-resume", symbol="g"))
    assert ids(both) == [SMOKE, RESUME]
    assert {item.symbol for item in both.jobs[1].purposes} == {"f", "g"}


def test_a_job_says_what_it_is_there_for_and_a_default_one_needs_not() -> None:
    found = derive((SMOKE, "2-dense"), place(*ANY), place("qwen3-recompute", "qwen3-pp4", symbol="g"))
    assert [job.purposes for job in found.jobs[:2]] == [(), ()]
    (purpose,) = found.jobs[2].purposes
    assert (purpose.place, purpose.condition) == (f"{PLAIN}:g", "entered by qwen3-recompute, qwen3-pp4")
    moved = derive((SMOKE,), place("moe-lora-ep2", "moe-lora-tp2ep2", "moe-per-expert-ep2", moved=True))
    (purpose,) = moved.jobs[1].purposes
    assert purpose.condition == "something differs in moe-lora-ep2, moe-lora-tp2ep2 and 1 more"


def test_what_a_measured_job_enters_asks_for_that_job() -> None:
    found = derive((SMOKE,), place(variants=frozenset({"2-cp"})))
    assert (ids(found), found.jobs[1].purposes[0].condition) == ([SMOKE, "2-cp"], "entered by 2-cp")
    assert ids(derive((SMOKE,), place(variants=frozenset({"2-cp", SMOKE})))) == [SMOKE]


def test_what_no_job_can_have_and_what_the_budget_leaves_out_is_named() -> None:
    found = derive((SMOKE,), place("qwen3-square", symbol="f"), place("qwen3-pp4", symbol="g"), minutes=8)
    reasons = {left.purpose.symbol: (left.reason, left.level) for left in found.not_covered}
    assert ids(found) == [SMOKE]
    assert reasons["f"] == ("no job has the settings of a cell that enters it", None)
    assert reasons["g"] == (
        "the plan would take more than the 8 GPU minutes of the policy's budget",
        Level.PARALLELISM,
    )
    no_host = next(family for family in POLICY.families if family.uncoverable and family.features)
    rows = [row.model_copy(update={"family": no_host.name}) if row.name == "qwen3-pp4" else row for row in ROWS]
    (left,) = derive((SMOKE,), place("qwen3-pp4"), table=CellTable(rows, POLICY)).not_covered
    assert left.reason == f"no host can run a model of the family {no_host.name}: {no_host.uncoverable}"


def test_within_the_budget_a_place_gets_a_job_that_others_have_left_room_for() -> None:
    both = place("qwen3-pp4", symbol="f"), place("gemma3-lora", "gemma3-plain", symbol="g")
    found = derive((SMOKE,), *both, minutes=15)
    assert ids(found) == [SMOKE, "4-feature-gemma3"]
    assert [left.purpose.symbol for left in found.not_covered] == ["f"]


def test_what_nothing_enters_needs_no_job() -> None:
    found = derive((SMOKE,), place(problem=NOT_ENTERED))
    assert (ids(found), found.not_covered) == ([SMOKE], ())


def test_a_job_that_cannot_pass_enters_nothing() -> None:
    blocked = replace(planned("2-dense")[0], obstacles=(Obstacle(Missing.GPUS, "too large", "a smaller one"),))
    maker = JobMaker(POLICY, POLICY.checkpoint, TABLE)
    found = with_measured_jobs((*planned(SMOKE), blocked), needs_of([place("qwen2-tp2")], TABLE), maker, 500)
    assert ids(found) == [SMOKE, "2-dense", "2-tp2"]


STANDING = {"symbol": "export_weights", "path": EXPORT}


def test_what_a_change_of_some_code_always_wants_is_wanted_once_for_a_function() -> None:
    found = derive((SMOKE,), place(*ANY, **STANDING), place("qwen2-tp2", inside=places(*ANY, "qwen2-tp2"), **STANDING))
    assert sorted(ids(found)) in (["0-lora-ddp", "0-untied", "2-tp2"], ["0-lora-ddp", "2-tp2-untied"])
    conditions = {purpose.condition for job in found.jobs for purpose in job.purposes}
    assert "the model's embeddings are untied" in conditions


def test_it_is_wanted_of_a_model_that_enters_the_function() -> None:
    found = derive((SMOKE,), place("gemma3-plain", "gemma3-lora", **STANDING))
    assert ids(found) == [SMOKE, "4-feature-untied-gemma3"]
    assert {purpose.symbol for purpose in found.jobs[1].purposes} == {"export_weights"}


def test_adapters_of_experts_leave_by_themselves_in_a_save_alone() -> None:
    dense = derive((SMOKE,), place(*ANY, symbol="stream_adapter_weights", path=EXPORT))
    assert Axis.RESUME not in {axis for job in dense.jobs for axis in job.settings}
    experts = derive((SMOKE,), place("moe-lora", symbol="packed_expert_x", path=EXPORT))
    assert [job.variant.level for job in experts.jobs if job.purposes] == [Level.SAVE_RESUME]


AMPLIFIED = "0-amplified-lora"


def test_a_job_that_a_rule_names_gets_more_settings_and_stays_what_it_is() -> None:
    asked = replace(planned(AMPLIFIED)[0], reason="rule adapters: they add nothing at first")
    maker = JobMaker(POLICY, POLICY.checkpoint, TABLE)

    def with_asked(*found: Place) -> list[JobOutline]:
        return list(with_measured_jobs((*planned(SMOKE), asked), needs_of(found, TABLE), maker, 500).jobs)

    (_, job) = with_asked(place(*ANY, symbol="merge", path="src/megatron/bridge/peft/lora.py"))
    assert (job.id, job.replaces, job.reason) == ("0-alpha16-b-xavier", AMPLIFIED, asked.reason)
    # Other adapters, another level or another model would not show what it is there for.
    for cells in (("qwen3-canonical",), ("qwen3-pp4",), ("gemma3-plain", "gemma3-lora")):
        jobs = with_asked(place(*cells))
        assert (len(jobs), jobs[1]) == (3, asked)


def test_cells_that_raised_say_nothing_about_what_they_did_not_get_to() -> None:
    at = NAMES.index("qwen2-lora")
    rows = [*ROWS[:at], ROWS[at].model_copy(update={"outcome": CellOutcome.BLOCKED}), *ROWS[at + 1 :]]
    table = CellTable(rows, POLICY)
    assert ids(derive((SMOKE,), place("qwen2-plain"), table=table)) == [SMOKE]


def test_what_is_new_in_a_familys_file_is_wanted_of_its_model() -> None:
    path = "src/megatron/bridge/models/qwen_vl/modelling_qwen3_vl/rope.py"
    found = derive((SMOKE,), place(symbol="packed_seq_mask", path=path, problem=NOT_ENTERED))
    assert (ids(found), found.not_covered) == ([SMOKE, "4-feature-packed-qwen3-vl"], ())
    assert [purpose.condition for purpose in found.jobs[1].purposes] == ["sequences are packed"]

"""A plan with what enters the changed code: its levels, its jobs and what each of them must execute."""

from collections.abc import Iterable, Mapping

import pytest

from tests.core.plan.cells import POLICY, entered
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, NO_CODE, NO_MAPS, ChangedFunction
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.measured_jobs import NEW, Measured
from verl_e2e.core.plan.plan import Plan, plan, with_parity
from verl_e2e.core.plan.plan_document import PlanDocument, plan_json
from verl_e2e.core.plan.policy import Budget
from verl_e2e.core.reach.bump import with_bump
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.diff import compare
from verl_e2e.core.reach.effects import Effect, Effects, Inside

# What asks for level 0 alone.
PLAIN = "src/megatron/bridge/training/utils/train_utils.py"
GUIDE = "README.md"
NAMES = ("Thing.merge", "other")
ANY = ("qwen2-plain", "qwen2-lora")
PP4, EP2 = ("qwen3-pp4",), ("moe-lora-ep2", "moe-lora-tp2ep2")


def touched(path: str, symbol: str) -> TouchedFunction:
    function = ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=9, lines=(2,))
    return TouchedFunction(function, path, symbol, earlier=False)


def planned(
    cells: Mapping[str, Iterable[str]] | None = None,
    *,
    minutes: int = 200,
    asked: tuple[Level, ...] = (),
    path: str = PLAIN,
    outcomes: Mapping[str, CellOutcome] | None = None,
) -> Plan:
    """The plan of a change of two functions that verl reaches, by name the cells that entered each."""
    effects = (Effect(path, name, "changed", (), ("verl",), sure=True) for name in NAMES)
    known = Effects({path: Inside(tuple(effects))}, functions=tuple(touched(path, name) for name in NAMES))
    paths = tuple(ChangedPath(name, PathStatus.MODIFIED) for name in (path, GUIDE))
    policy = POLICY.model_copy(update={"budget": Budget(gpu_minutes=minutes)})
    functions = dict.fromkeys(NAMES, ANY) | dict(cells or {})
    measured = Measured(entered(functions, path=path, outcomes=outcomes), of_head=outcomes is not None)
    return plan(Change("a" * 40, "b" * 40, "a" * 40, paths), policy, asked, known, measured=measured)


def test_what_the_jobs_of_the_levels_enter_asks_for_nothing() -> None:
    found = planned()
    assert (found.not_covered, found.not_entered) == ((), ())
    assert [(job.id, job.purposes) for job in found.jobs] == [("0-lora-ddp", ())]


def test_a_place_that_they_do_not_enter_adds_its_job_its_level_and_the_reason() -> None:
    before, after = planned(), planned({"Thing.merge": PP4})
    assert Level.PARALLELISM not in before.levels
    assert set(after.levels) == {*before.levels, Level.PARALLELISM}
    assert Level.PARALLELISM not in {item.level for item in after.not_required}
    (reason,) = (reason for reason in after.reasons if reason.level is Level.PARALLELISM)
    assert (reason.path, reason.symbol) == (PLAIN, "Thing.merge")
    assert reason.reason == "no job without it does what was measured: entered by qwen3-pp4"
    (job,) = (job for job in after.jobs if job.id == "2-pp4")
    assert [function.symbol for function in job.changed.required] == ["Thing.merge"]
    assert [job.id for job in after.jobs if job.id != "2-pp4"] == [job.id for job in before.jobs]


def test_what_cells_of_this_head_entered_of_a_bump_asks_for_jobs_like_them() -> None:
    inner, old, new = "megatron/core/schedules.py", "1" * 40, "2" * 40
    path = f"{MEGATRON_LM_FOLDER}/{inner}"
    bump = ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED, submodule=SubmoduleBump(old, new))
    difference = compare(*(f"def other():\n    return {value}\n".encode() for value in (1, 2)))
    known = with_bump(Effects(), {inner: difference}, NO_MAPS, (old, new))

    def planned_by(outcome: CellOutcome, *, of_head: bool = True, cell: str = "qwen3-pp4") -> list[str]:
        measured = Measured(entered({"other": (cell,)}, path=path, outcomes={cell: outcome}), of_head=of_head)
        found = plan(Change("a" * 40, "b" * 40, "a" * 40, (bump,)), POLICY, (), known, measured=measured)
        return [job.id for job in found.jobs]

    assert planned_by(CellOutcome.CHANGED) == planned_by(CellOutcome.FAIL) == ["0-lora-ddp", "2-pp4"]
    assert planned_by(CellOutcome.EQUAL) == planned_by(CellOutcome.CHANGED, of_head=False) == ["0-lora-ddp"]
    assert planned_by(CellOutcome.CHANGED, cell="qwen2-lora") == ["0-lora-ddp"]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    (
        ({"other": PP4}, "1 place of the change needs a job of this level, and none is planned for it"),
        (
            {"Thing.merge": PP4, "other": ("qwen2-tp2",)},
            "2 places of the change need a job of this level, and none is planned for them",
        ),
    ),
)
def test_what_the_budget_leaves_out_is_named(cells: Mapping[str, Iterable[str]], sentence: str) -> None:
    found = planned(cells, minutes=1)
    assert len(found.not_covered) == len(cells)
    assert all("budget" in left.reason for left in found.not_covered)
    assert [job.id for job in found.jobs] == [job.id for job in planned().jobs]
    reasons = {item.level: item.reason for item in found.not_required}
    assert sentence in reasons[Level.PARALLELISM]
    assert "place" not in reasons[Level.LEARNING_SIGNAL]


def test_what_nothing_enters_is_named_and_has_no_job() -> None:
    found = planned({"other": ()})
    assert [(str(place), place.problem) for place in found.not_entered] == [(f"{PLAIN}:other, lines 2", NEW)]
    assert [job.id for job in found.jobs] == ["0-lora-ddp"]
    (place,) = PlanDocument.model_validate_json(plan_json(found)).not_entered
    assert (place.path, place.symbol, place.lines, place.reason) == (PLAIN, "other", (2,), NEW)


@pytest.mark.parametrize("path", (GUIDE, "docs/index.md"))
def test_a_place_in_what_does_not_count_asks_for_nothing(path: str) -> None:
    found = planned({"other": PP4}, path=path)
    assert (found.levels, found.jobs, found.not_covered, found.not_entered) == ((), (), (), ())


def test_a_rehearsal_of_the_change_asks_for_cells_in_which_something_moved() -> None:
    cells = {"Thing.merge": (*ANY, *EP2), "other": (*ANY, *PP4)}
    assert [job.id for job in planned(cells).jobs] == ["0-lora-ddp"]
    moved = planned(cells, outcomes={"moe-lora-ep2": CellOutcome.FAIL, "qwen3-pp4": CellOutcome.EQUAL})
    assert [job.id for job in moved.jobs] == ["0-lora-ddp", "2-ep2-qwen3-moe"]
    (purpose,) = moved.jobs[1].purposes
    assert (purpose.symbol, purpose.condition) == ("Thing.merge", "something differs in moe-lora-ep2")
    # A rehearsal takes no level away.
    still = planned(cells, outcomes=dict.fromkeys((*ANY, *EP2, *PP4), CellOutcome.EQUAL))
    assert (still.levels, [job.id for job in still.jobs]) == (planned().levels, ["0-lora-ddp"])


def test_a_level_that_is_requested_by_hand_keeps_its_job() -> None:
    found = planned({"other": ("qwen2-tp2",)}, asked=(Level.PARALLELISM,))
    assert [job.id for job in found.jobs if job.variant.level is Level.PARALLELISM] == ["2-dense"]


def test_jobs_of_parity_are_there_for_no_place_and_bring_their_level() -> None:
    before = planned()
    found = with_parity(before, POLICY)
    added = found.jobs[len(before.jobs) :]
    assert [job.id for job in added] == ["2-dp2-parity", "2-tp2-parity", "2-pp2-tied-parity"]
    for job in added:
        assert (job.purposes, job.settings, job.replaces, job.changed, job.blocked) == ((), {}, "", NO_CODE, "")
        assert (job.gpu_count, job.requires, job.reason) == (2, ("0-lora-ddp",), "requested by hand")
        assert job.checkpoint
        assert job.checkpoint.synthetic
        assert job.checkpoint.synthetic.wanted == {"tie_word_embeddings": True}
    assert {*found.levels} - {*before.levels} == {Level.PARALLELISM}
    assert Level.PARALLELISM not in {item.level for item in found.not_required}
    assert with_parity(found, POLICY) == found


def test_a_change_that_needs_no_run_gets_no_job_of_parity() -> None:
    nothing = planned(path=GUIDE)
    assert with_parity(nothing, POLICY) == nothing


def test_the_document_holds_purposes_settings_and_what_is_left_out() -> None:
    found = planned({"Thing.merge": PP4, "other": ("qwen3-square",)})
    read = PlanDocument.model_validate_json(plan_json(found))
    (job,) = (job for job in read.jobs if job.id == "2-pp4")
    assert job.settings == {Axis.PIPELINE: 4}
    assert [purpose.symbol for purpose in job.purposes] == ["Thing.merge"]
    assert [(item.purpose.symbol, bool(item.reason)) for item in read.not_covered] == [("other", True)]

"""What is exported before any training is what the checkpoint's files hold."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.builders import config_with, judged, make_case, make_facts, make_job, make_record
from tests.core.fingerprints import (
    HF,
    HF_NORM,
    ONE,
    WIDTH,
    Taken,
    absent,
    healthy,
    hook,
    model,
    moved,
    other,
    scaled,
    tensor,
    weights,
    zeroed,
)
from tests.core.level_runs import resume_run
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.transfer import imported_weights
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Fingerprints, Point, Snapshot, Tensor
from verl_e2e.core.model.outcome import Result, Stage

FILES, EXPORTED, IMPORTED = Point.CHECKPOINT_FILE, Point.EXPORTED, Point.WEIGHTS_IMPORTED
RUN = healthy()
Q = f"{HF}.q_proj.weight"
WRAPPED = f"{HF}.q_proj.base_layer.weight"
RECORDED = FIXTURES / "imported-weights"


def found(taken: Taken, config: dict[str, Any] | None = None, **given: Any) -> CriterionFinding:
    facts = make_facts(configs=(config_with(config),))
    return imported_weights(make_case(make_record(fingerprints=taken.document(), **given), facts))


def both(name: str, change: Callable[[Tensor], Tensor | None]) -> Taken:
    """A tensor that the first export and what arrived at the rollout have otherwise than the files."""
    return RUN.with_tensor(name, change, EXPORTED, Point.RECEIVED, number=0)


def renamed(held: Tensor) -> Tensor:
    return held.model_copy(update={"name": WRAPPED})


def test_an_export_of_what_the_files_hold_is_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.HF_IMPORT, ())
    expected = "4 tensors were imported and exported again as the checkpoint's files hold them"
    assert item.evidence.summary == expected


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (moved, "a permutation or transposition: the same values in another order"),
        (scaled(2.0), "a scale by 0.5"),
        (other, "other values"),
    ],
)
def test_other_weights_than_the_files_hold_are_a_fail_that_nothing_else_sees(change: Any, what: str) -> None:
    spoiled = RUN.with_tensor(Q, change, FILES)
    verdict = judged(fingerprints=spoiled.document())
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)
    assert verdict.decided_by == Criterion.IMPORTED_WEIGHTS
    text = "the first export of the train phase is not what the checkpoint's files hold"
    assert f"{text} (the import or the export is wrong): {Q}: {what}" in verdict.cause
    broken = [item.criterion for item in verdict.evidence if item.state is State.BROKEN]
    assert broken == [Criterion.IMPORTED_WEIGHTS]


def test_a_layer_with_an_adapter_is_compared_under_the_name_of_the_files() -> None:
    wrapped = both(Q, renamed)
    assert (found(wrapped).evidence, found(wrapped).notes) == (found(RUN).evidence, ())
    spoiled = wrapped.with_tensor(Q, moved, FILES)
    assert f"{WRAPPED}: a permutation" in found(spoiled).evidence.summary


def _imported(*held: Tensor) -> Taken:
    """The run with what the model held right after the import."""
    at = next(item for item in RUN.snapshots if item.point is FILES)
    made = at.model_copy(update={"point": IMPORTED, "tensors": (*model(), *held)})
    return Taken((made, *RUN.snapshots))


@pytest.mark.parametrize(
    ("held", "stage", "which"),
    [
        (("right",), Stage.EXPORT_WEIGHT_SYNC, "the model held what they hold, so the export is wrong"),
        (("wrong",), Stage.HF_IMPORT, "the model held what was exported, so the import is wrong"),
        (("right", "wrong"), Stage.HF_IMPORT, "the import or the export is wrong"),
        ((), Stage.HF_IMPORT, "the import or the export is wrong"),
    ],
)
def test_what_the_model_held_tells_which_way_was_wrong(held: tuple[str, ...], stage: Stage, which: str) -> None:
    right = next(row for item in RUN.snapshots if item.point is FILES for row in item.tensors if row.name == Q)
    rows = {"right": right, "wrong": moved(right)}
    taken = _imported(*(rows[key].model_copy(update={"name": f"decoder.{key}"}) for key in held))
    item = found(taken.with_tensor(Q, moved, EXPORTED, number=0))
    assert item.stage is stage
    assert f"({which})" in item.evidence.summary


def test_equal_values_everywhere_tell_nothing_of_the_way() -> None:
    ones = tensor(HF_NORM, (1.0,) * WIDTH)
    taken = _imported(ones).with_tensor(HF_NORM, lambda _: ones, FILES)
    assert "(the import or the export is wrong)" in found(taken).evidence.summary


def test_every_rank_exports_what_the_files_hold() -> None:
    two = healthy(tuple(ONE[0].model_copy(update={"rank": rank, "data": rank, "data_size": 2}) for rank in range(2)))
    given: dict[str, Any] = {"job": make_job(gpu_count=2)}
    assert found(two, **given).evidence.state is State.MET
    spoiled = two.with_tensor(Q, zeroed, EXPORTED, rank=1, number=0)
    assert f"{Q}: all zero" in found(spoiled, **given).evidence.summary


def test_a_later_export_is_not_what_the_files_hold() -> None:
    taken = RUN.with_snapshots({"adapter_only": False}, EXPORTED).with_tensor(
        f"base_model.model.{Q.replace('.weight', '.lora_B.weight')}", other, EXPORTED, number=2
    )
    assert found(taken).evidence.state is State.MET


WIDE = {"dtype": "float32"}


@pytest.mark.parametrize(
    ("change", "state", "note"),
    [
        (lambda held: held.model_copy(update=WIDE), State.MET, ""),
        (lambda held: moved(held).model_copy(update=WIDE), State.BROKEN, ""),
        (
            lambda held: held.model_copy(update={"dtype": "float8_e4m3fn"}),
            State.MET,
            f"Not compared with the checkpoint's files, which have another type: 1 tensors ({Q})",
        ),
        (
            lambda held: held.model_copy(update={"shape": (3, 12)}),
            State.MET,
            f"Not compared with the checkpoint's files, which have another shape: 1 tensors ({Q})",
        ),
        (absent, State.MET, f"Exported and not in the checkpoint's files: 1 tensors ({Q})"),
    ],
)
def test_files_of_another_type_or_shape_are_compared_where_that_is_possible(
    change: Any, state: State, note: str
) -> None:
    item = found(RUN.with_tensor(Q, change, FILES))
    assert (item.evidence.state, item.notes) == (state, (note,) if note else ())


def test_what_was_never_exported_is_a_limitation_of_whole_snapshots() -> None:
    spoiled = both(Q, absent)
    item = found(spoiled)
    assert item.evidence.state is State.MET
    assert item.notes == (f"In the checkpoint's files and not exported: 1 tensors ({Q})",)
    sampled = found(spoiled.with_snapshots({"left_out": 1}, FILES))
    assert sampled.notes == ("Fingerprints are of a sample: 1 tensors of the actor on each rank were not compared",)


def _rounded(held: Tensor) -> Tensor:
    values = [value * (1 + 2**-9) for value in weights(WIDTH, "hf norm")]
    return tensor(held.name, values, held.shape)


def test_a_norm_may_be_rounded_on_its_way_and_a_matrix_may_not() -> None:
    item = found(RUN.with_tensor(HF_NORM, _rounded, FILES))
    assert item.evidence.state is State.MET
    assert item.notes == (f"Equal to the checkpoint's files but for rounding: 1 tensors ({HF_NORM})",)
    matrix = found(RUN.with_tensor(Q, scaled(1 + 2**-9), FILES)).evidence
    assert f"{Q}: nearly equal values, as after another rounding" in matrix.summary


def test_a_resumed_phase_exports_what_its_checkpoint_holds() -> None:
    taken = healthy(phases=("save", "resume"))
    record = (
        resume_run()
        .case()
        .record.model_copy(
            update={"fingerprints": taken.with_tensor(Q, other, EXPORTED, phase="resume", number=0).document()}
        )
    )
    assert imported_weights(make_case(record)).evidence.state is State.MET
    spoiled = taken.with_tensor(Q, other, EXPORTED, phase="save", number=0).document()
    item = imported_weights(make_case(record.model_copy(update={"fingerprints": spoiled}))).evidence
    assert "the first export of the save phase" in item.summary


MERGED = {"actor_rollout_ref.model.lora.merge": True}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (MERGED, "the adapter is merged into what is exported"),
        (
            {"actor_rollout_ref.actor.megatron.use_dist_checkpointing": True},
            "the weights came from a checkpoint of Megatron's",
        ),
    ],
)
def test_an_export_that_cannot_be_what_the_files_hold_is_not_compared(config: dict[str, Any], text: str) -> None:
    item = found(RUN.with_tensor(Q, moved, FILES), config).evidence
    assert (item.state, item.summary) == (
        State.WAIVED,
        f"{text}: {'it was' if config is MERGED else 'they were'} not compared with the checkpoint's files",
    )


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (
            RUN.with_snapshots({"tensors": (), "problem": "it is not a local folder"}, FILES),
            "what was imported was not compared with the checkpoint's files: it is not a local folder",
        ),
        (
            RUN.without(FILES).with_snapshots({"point": IMPORTED}, Point.MODEL_BUILT),
            "the folder does not say what the checkpoint's files hold: what was imported was not compared with them",
        ),
        (
            RUN.with_snapshots({"adapter_only": True}, EXPORTED),
            "no base weights were exported before the training: they were not compared with the checkpoint's files",
        ),
        (
            RUN.with_snapshots({"tensors": (tensor("strange", (1.0, 2.0)),)}, FILES),
            "no exported tensor could be compared with one of the checkpoint's files",
        ),
    ],
)
def test_what_was_not_compared_is_a_limitation(taken: Taken, text: str) -> None:
    item = found(taken).evidence
    assert (item.state, item.summary) == (State.WAIVED, text)


def test_a_hook_that_never_fired_is_a_gap() -> None:
    item = found(RUN.without(EXPORTED))
    expected = "no fingerprint 'exported' of the actor in the train phase"
    assert (item.evidence.state, item.stage, item.evidence.summary) == (
        State.MISSING,
        Stage.EXPORT_WEIGHT_SYNC,
        expected,
    )
    gone = hook("a.b:AutoBridge.load_hf_weights", installed=False, problem="it is not there")
    document = RUN.without(FILES).document(hooks=(gone,))
    verdict = judged(fingerprints=document)
    assert (verdict.result, verdict.stage) == (Result.BLOCKED, Stage.HF_IMPORT)
    assert "no fingerprint 'checkpoint file' of the actor in the train phase (a.b:AutoBridge.load_hf" in verdict.cause


def recorded(name: str, gpu_count: int) -> CriterionFinding:
    """The finding on figures of a recorded run."""
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    document = Fingerprints(snapshots=tuple(Snapshot.model_validate_json(line) for line in lines))
    return imported_weights(make_case(make_record(job=make_job(gpu_count=gpu_count), fingerprints=document)))


@pytest.mark.parametrize("name", ["healthy-cp", "healthy-vpp"])
def test_recorded_imports_are_what_the_checkpoint_holds(name: str) -> None:
    item = recorded(name, 2)
    assert (item.evidence.state, item.notes) == (State.MET, ())
    assert item.evidence.summary.startswith("10 tensors were imported and exported again")


def test_rows_that_were_flipped_on_import_are_found_in_a_recorded_run() -> None:
    item = recorded("rows-flipped-on-import", 2)
    assert (item.evidence.state, item.stage) == (State.BROKEN, Stage.HF_IMPORT)
    expected = "(the import or the export is wrong): model.embed_tokens.weight (and 4 more): a permutation"
    assert expected in item.evidence.summary
    assert "q_proj.base_layer.weight: other values" in item.evidence.excerpt


def test_a_scale_of_one_export_is_found_in_a_recorded_run() -> None:
    item = recorded("scaled-on-export", 1)
    assert (item.evidence.state, item.stage) == (State.BROKEN, Stage.EXPORT_WEIGHT_SYNC)
    assert "so the export is wrong): model.embed_tokens.weight" in item.evidence.summary

"""A warning that the checkpoint does not hold the output layer, where the recorded weights show that it need not."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.builders import judged, make_case, make_facts, make_job, make_record
from tests.core.fingerprints import Taken, absent, healthy, other, tensor, weights
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.transfer import without_needless_warnings
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import Excerpt
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
IMPORTED, FILES = Point.WEIGHTS_IMPORTED, Point.CHECKPOINT_FILE
VOCABULARY, WIDTH = 8, 4
ONE = (Ranks(),)
PIPELINE = tuple(Ranks(rank=rank, pipeline=rank, pipeline_size=2) for rank in range(2))
BOTH = tuple(Ranks(rank=rank, pipeline=rank // 2, pipeline_size=2, tensor=rank % 2, tensor_size=2) for rank in range(4))
ABSENT = "WARNING: Can't find lm_head.weight in hf_keys"


def head(model: str, ranks: Ranks) -> tuple[Tensor, ...]:
    """The embedding of the first stage; on the last one the critic's own head, or the actor's copy."""
    table = weights(VOCABULARY * WIDTH, f"table {ranks.tensor}")
    held = []
    if ranks.pipeline == 0:
        held.append(tensor(EMBEDDING, table, (VOCABULARY, WIDTH)))
    if ranks.pipeline == ranks.pipeline_size - 1:
        if model == "critic":
            held.append(tensor(OUTPUT, weights(WIDTH, "value"), (1, WIDTH)))
        elif ranks.pipeline_size > 1:
            held.append(tensor(OUTPUT, table, (VOCABULARY, WIDTH)))
    return tuple(held)


def tied(places: tuple[Ranks, ...], phases: tuple[str, ...] = ("train",)) -> Taken:
    """A healthy run of a tied model that was imported, critic and actor."""
    found = healthy(places, phases)
    made: list[Snapshot] = []
    for snapshot in found.snapshots:
        if snapshot.point is Point.MODEL_BUILT:
            made.append(
                snapshot.model_copy(
                    update={"point": IMPORTED, "adapters": None, "tensors": head(snapshot.model, snapshot.ranks)}
                )
            )
        made.append(snapshot)
    return Taken(tuple(made))


def needless(taken: Taken, *texts: str) -> tuple[str, ...]:
    """The warnings set apart of a run that printed these."""
    lines = tuple(Excerpt(1200 + index, text) for index, text in enumerate(texts or (ABSENT,)))
    ranks = 1 + max(item.ranks.rank for item in taken.snapshots)
    phases = tuple(dict.fromkeys(item.phase for item in taken.snapshots))
    resumed: dict[str, Any] = {"level": Level.SAVE_RESUME, "steps": 2, "wrapper": {"SAVE_FREQ": "1"}}
    job = make_job(gpu_count=ranks, **(resumed if len(phases) > 1 else {}))
    case = make_case(make_record(job=job, fingerprints=taken.document()), make_facts(lost_weights=lines))
    found = without_needless_warnings(case)
    assert {*found.facts.lost_weights, *found.needless_warnings} == set(lines)
    return tuple(line.text for line in found.needless_warnings)


@pytest.mark.parametrize("places", [ONE, PIPELINE, BOTH])
@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight", "output.weight"])
def test_the_output_layer_of_a_tied_model_is_not_lost(places: tuple[Ranks, ...], name: str) -> None:
    text = f"WARNING: Can't find {name} in hf_keys"
    assert needless(tied(places), text) == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: Can't find model.layers.0.mlp.gate.weight in hf_keys",
        "WARNING: Can't find model.lm_head.weight.scale in hf_keys",
        "WARNING: Can't find the following HF parameters in hf_keys: ['lm_head.weight']",
        "WARNING: No mapping found for megatron_param: output_layer.weight",
        "3 tensors not written",
    ],
)
def test_any_other_loss_stays_one(text: str) -> None:
    assert needless(tied(PIPELINE), text) == ()
    assert needless(tied(PIPELINE), text, ABSENT) == (ABSENT,)


def in_files(taken: Taken) -> Taken:
    """The checkpoint holds an output layer after all."""
    rows = [
        item.model_copy(update={"tensors": (*item.tensors, tensor("lm_head.weight", weights(WIDTH)))})
        if item.point is FILES
        else item
        for item in taken.snapshots
    ]
    return Taken(tuple(rows))


def with_own_output(taken: Taken) -> Taken:
    """An actor of one stage with an output layer of its own: its embeddings are not tied."""
    rows = [
        item.model_copy(update={"tensors": (*item.tensors, tensor(OUTPUT, weights(VOCABULARY * WIDTH, "own"), (8, 4)))})
        if item.point is IMPORTED and item.model == "actor"
        else item
        for item in taken.snapshots
    ]
    return Taken(tuple(rows))


def constant(held: Tensor) -> Tensor:
    """Zeros on both sides, as memory that was never written may hold."""
    return tensor(held.name, (0.0,) * (VOCABULARY * WIDTH), held.shape)


def spoiled(taken: Taken, name: str, change: Callable[[Tensor], Tensor | None], model: str, rank: int) -> Taken:
    """The run with one imported tensor changed, or left out, on one rank."""
    return taken.with_tensor(name, change, IMPORTED, model=model, rank=rank)


@pytest.mark.parametrize(
    ("places", "spoil"),
    [
        pytest.param(ONE, with_own_output, id="the model is not tied"),
        pytest.param(PIPELINE, in_files, id="the checkpoint holds it"),
        pytest.param(PIPELINE, lambda run: run.without(FILES), id="the checkpoint's files were not recorded"),
        pytest.param(
            PIPELINE, lambda run: run.with_snapshots({"left_out": 1}, FILES), id="a sample of the files was recorded"
        ),
        pytest.param(
            PIPELINE, lambda run: run.with_snapshots({"problem": "unreadable"}, FILES), id="a file was not read"
        ),
        pytest.param(PIPELINE, lambda run: spoiled(run, OUTPUT, other, "actor", 1), id="other bits"),
        pytest.param(
            BOTH,
            lambda run: spoiled(run, OUTPUT, other, "actor", 3),
            id="other bits on one tensor rank",
        ),
        pytest.param(
            PIPELINE,
            lambda run: spoiled(spoiled(run, OUTPUT, constant, "actor", 1), EMBEDDING, constant, "actor", 0),
            id="both are zeros",
        ),
        pytest.param(PIPELINE, lambda run: spoiled(run, EMBEDDING, absent, "actor", 0), id="no embedding"),
        pytest.param(
            PIPELINE,
            lambda run: spoiled(run, OUTPUT, lambda held: tensor(held.name, weights(32), (8, 4)), "critic", 1),
            id="the critic's head is not a value head",
        ),
        pytest.param(ONE, lambda run: spoiled(run, OUTPUT, absent, "critic", 0), id="no model has an output"),
        pytest.param(PIPELINE, lambda run: run.without(IMPORTED, model="critic"), id="the critic was not recorded"),
        pytest.param(PIPELINE, lambda run: run.without(IMPORTED, rank=1), id="a rank was not recorded"),
        pytest.param(
            PIPELINE, lambda run: run.with_snapshots({"left_out": 1}, IMPORTED, rank=1), id="a sample was recorded"
        ),
        pytest.param(PIPELINE, lambda run: run.with_snapshots({"problem": "x"}, IMPORTED, rank=1), id="not whole"),
    ],
)
def test_without_the_evidence_it_is_a_loss(places: tuple[Ranks, ...], spoil: Callable[[Taken], Taken]) -> None:
    assert needless(spoil(tied(places))) == ()


def test_every_phase_must_show_it() -> None:
    run = tied(ONE, ("save", "resume"))
    assert needless(run) == (ABSENT,)
    assert needless(run.without(IMPORTED, phase="resume")) == ()


def test_a_folder_without_fingerprints_excuses_nothing() -> None:
    case = make_case(make_record(fingerprints=None), make_facts(lost_weights=(Excerpt(1200, ABSENT),)))
    assert without_needless_warnings(case) == case


def verdict(taken: Taken) -> tuple[Verdict, Evidence]:
    found = judged(make_facts(lost_weights=(Excerpt(1200, ABSENT),)), fingerprints=taken.document())
    (item,) = (row for row in found.evidence if row.criterion == Criterion.WEIGHTS_KEPT)
    return found, item


def test_the_verdict_names_what_was_not_lost() -> None:
    found, item = verdict(tied(ONE))
    assert (found.result, item.state, item.line, item.excerpt) == (Result.PASS, State.MET, 1200, ABSENT)
    assert item.summary.startswith("no weight was lost: ")
    found, item = verdict(with_own_output(tied(ONE)))
    assert (found.result, found.stage, item.state) == (Result.FAIL, Stage.HF_IMPORT, State.BROKEN)

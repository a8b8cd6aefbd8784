"""A healthy run on two GPUs with tied embeddings, two pipeline stages and a critic, whose head no checkpoint holds."""

from functools import cache

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.fingerprints import Point, Snapshot
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.stages import Stage

FOLDER = FIXTURES / "runs" / "level2-pp2-tied"
WARNING = "WARNING: Can't find lm_head.weight in hf_keys"
OUTPUT = "output_layer.weight"


@cache
def log() -> str:
    return b"".join(open_log(FOLDER / "log.txt.zst")).decode()


@cache
def record() -> Record:
    return read_record(FOLDER)


def kept(verdict: Verdict) -> Evidence:
    (item,) = (item for item in verdict.evidence if item.criterion is Criterion.WEIGHTS_KEPT)
    return item


def test_it_passes_and_names_the_warning() -> None:
    verdict = judge(record(), scan([log().encode()]))
    assert verdict.result is Result.PASS
    item = kept(verdict)
    assert (item.state, item.line, WARNING in item.excerpt) == (State.MET, 1262, True)


def test_the_same_warning_of_another_weight_is_a_loss() -> None:
    assert WARNING in log()
    other = log().replace(WARNING, "WARNING: Can't find model.norm.weight in hf_keys")
    verdict = judge(record(), scan([other.encode()]))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)
    assert "the checkpoint does not hold what Bridge maps to model.norm.weight" in verdict.sentence
    both = log().replace(WARNING, f"{WARNING}\n(WorkerDict pid=3040) WARNING: Can't find model.norm.weight in hf_keys")
    assert kept(judge(record(), scan([both.encode()]))).state is State.BROKEN


def untied(snapshot: Snapshot) -> Snapshot:
    """The last stage with an output layer that is not the embedding."""
    rows = tuple(
        tensor.model_copy(update={"bits": "0123456789abcdef"}) if tensor.name == OUTPUT else tensor
        for tensor in snapshot.tensors
    )
    return snapshot.model_copy(update={"tensors": rows})


def test_an_output_layer_of_other_bits_is_a_loss() -> None:
    found = record().fingerprints
    assert found is not None
    snapshots = tuple(
        untied(item) if item.point is Point.WEIGHTS_IMPORTED and item.model == "actor" else item
        for item in found.snapshots
    )
    assert snapshots != found.snapshots
    changed = record().model_copy(update={"fingerprints": found.model_copy(update={"snapshots": snapshots})})
    verdict = judge(changed, scan([log().encode()]))
    assert (verdict.result, verdict.stage, kept(verdict).state) == (Result.FAIL, Stage.HF_IMPORT, State.BROKEN)


def test_without_fingerprints_it_stays_a_fail() -> None:
    verdict = judge(record().model_copy(update={"fingerprints": None}), scan([log().encode()]))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)

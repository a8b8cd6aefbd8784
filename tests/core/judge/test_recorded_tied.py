"""A healthy run on two GPUs with tied embeddings, two pipeline stages and a critic, whose head no checkpoint holds."""

from tests.core.recorded_run import RecordedRun
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.fingerprints import Point, Snapshot
from verl_e2e.core.model.outcome import Result, Stage

RUN = RecordedRun(FIXTURES / "runs" / "level2-pp2-tied")
WARNING = "WARNING: Can't find lm_head.weight in hf_keys"
OUTPUT = "output_layer.weight"


def kept(verdict: Verdict) -> Evidence:
    (item,) = (item for item in verdict.evidence if item.criterion == Criterion.WEIGHTS_KEPT)
    return item


def test_it_passes_and_names_the_warning() -> None:
    verdict = judge(RUN.documents, scan([RUN.text.encode()]))
    assert verdict.result is Result.PASS
    item = kept(verdict)
    assert (item.state, item.line, WARNING in item.excerpt) == (State.MET, 1262, True)


def test_the_same_warning_of_another_weight_is_a_loss() -> None:
    assert WARNING in RUN.text
    other = RUN.text.replace(WARNING, "WARNING: Can't find model.norm.weight in hf_keys")
    verdict = judge(RUN.documents, scan([other.encode()]))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)
    assert "the checkpoint does not hold what Bridge maps to model.norm.weight" in verdict.sentence
    both = RUN.text.replace(
        WARNING, f"{WARNING}\n(WorkerDict pid=3040) WARNING: Can't find model.norm.weight in hf_keys"
    )
    assert kept(judge(RUN.documents, scan([both.encode()]))).state is State.BROKEN


def untied(snapshot: Snapshot) -> Snapshot:
    """The last stage with an output layer that is not the embedding."""
    rows = tuple(
        tensor.model_copy(update={"bits": "0123456789abcdef"}) if tensor.name == OUTPUT else tensor
        for tensor in snapshot.tensors
    )
    return snapshot.model_copy(update={"tensors": rows})


def test_an_output_layer_of_other_bits_is_a_loss() -> None:
    found = RUN.documents.fingerprints
    assert found is not None
    snapshots = tuple(
        untied(item) if item.point is Point.WEIGHTS_IMPORTED and item.model == "actor" else item
        for item in found.snapshots
    )
    assert snapshots != found.snapshots
    changed = RUN.documents.model_copy(update={"fingerprints": found.model_copy(update={"snapshots": snapshots})})
    verdict = judge(changed, scan([RUN.text.encode()]))
    assert (verdict.result, verdict.stage, kept(verdict).state) == (Result.FAIL, Stage.HF_IMPORT, State.BROKEN)


def test_without_fingerprints_it_stays_a_fail() -> None:
    verdict = judge(RUN.documents.model_copy(update={"fingerprints": None}), scan([RUN.text.encode()]))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)

"""Runs recorded on real GPUs pass, and no mutation of their log or of their files does.

A save and resume; TP=2 PP=2 on four GPUs; tied embeddings on two stages with a critic, whose head no checkpoint holds.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.level_runs import job_of
from tests.core.recorded_run import RecordedRun
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.fingerprints import Point, Snapshot
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage

RESUME, DENSE, TIED = (
    RecordedRun(FIXTURES / "runs" / name) for name in ("level1-resume", "level2-dense", "level2-pp2-tied")
)
WARNING = "WARNING: Can't find lm_head.weight in hf_keys"
OTHER_WARNING = "WARNING: Can't find model.norm.weight in hf_keys"


def evidence_of(run: RecordedRun, criterion: Criterion, text: str | None = None, **given: Any) -> Evidence:
    return next(item for item in run.judged(text, **given).evidence if item.criterion == criterion)


@pytest.mark.no_cover
def test_they_pass() -> None:
    for run in (RESUME, DENSE, TIED):
        assert (run.judged().result, run.judged().cause) == (Result.PASS, "")
    sizes = evidence_of(DENSE, Criterion.PARALLEL_SIZES).summary
    assert "(tensor, pipeline) ranks (0, 0), (0, 1), (1, 0), (1, 1)" in sizes
    assert "(workers of rank 0, 1)" in sizes
    kept = evidence_of(TIED, Criterion.WEIGHTS_KEPT)
    assert (kept.state, kept.line, WARNING in kept.excerpt) == (State.MET, 1262, True)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("run", "old", "new"),
    [
        (RESUME, "Resuming from", ""),
        (RESUME, "Loaded PEFT adapter", ""),
        (RESUME, "timing_s/save_checkpoint:", "timing_s/other:"),
        (RESUME, "step:2 - ", "step:1 - "),
        (RESUME, "'resume_mode': 'auto'", "'resume_mode': 'disable'"),
        (DENSE, "'pipeline_model_parallel_size': 2", "'pipeline_model_parallel_size': 1"),
        (DENSE, "'context_parallel_size': 1", "'context_parallel_size': 2"),
        (DENSE, "rank (1, 0, 1)", "rank (1, 0, 0)"),
        (DENSE, "module: 1", "module: 2"),
        (DENSE, "(Worker_TP1", "(Worker_TP2"),
        (DENSE, "perf/total_num_tokens:", "perf/total_num_tokens:2"),
        (TIED, WARNING, OTHER_WARNING),
        (TIED, WARNING, f"{WARNING}\n(WorkerDict pid=3040) {OTHER_WARNING}"),
    ],
)
def test_no_mutation_of_a_log_passes(run: RecordedRun, old: str, new: str) -> None:
    """Without `new` the lines that hold the text are gone."""
    assert old in run.text
    assert run.judged(run.text.replace(old, new) if new else run.cut(old)).result is not Result.PASS


@pytest.mark.parametrize("name", ["actor/model/dist_ckpt/__0_0.distcp", "actor/ckpt_contents.json", ""])
def test_no_mutation_of_the_files_of_a_checkpoint_passes(name: str) -> None:
    """Without a name there is no list at all."""
    found = RESUME.documents.checkpoints
    assert found is not None
    document = found.model_dump(mode="json")
    for listing in document["listings"]:
        listing["files"] = [file for file in listing["files"] if not file["path"].endswith(name)]
    changed = type(found).model_validate(document) if name else None
    assert changed != found
    assert RESUME.judged(checkpoints=changed).result is not Result.PASS


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("run", "level", "variant"),
    [
        (RESUME, Level.PARALLELISM, "dense"),
        (RESUME, Level.MEGATRON_FSDP, "fsdp"),
        (DENSE, Level.PARALLELISM, "vpp"),
        (DENSE, Level.PARALLELISM, "dp2-parity"),
        (DENSE, Level.FEATURE, "feature"),
        (DENSE, Level.SAVE_RESUME, "resume"),
        (DENSE, Level.SMOKE, "lora-ddp"),
    ],
)
def test_no_run_is_one_of_another_variant(run: RecordedRun, level: Level, variant: str) -> None:
    own, other = run.documents.job, job_of(level, variant)
    assert own is not None
    update = {"id": other.id, "level": level, "variant": variant, "wrapper": {**own.wrapper, **other.wrapper}}
    assert run.judged(job=own.model_copy(update={**update, "expected": {}})).result is Result.BLOCKED


def untied(snapshot: Snapshot) -> Snapshot:
    """The last stage with an output layer that is not the embedding."""
    if snapshot.point is not Point.WEIGHTS_IMPORTED or snapshot.model != "actor":
        return snapshot
    rows = tuple(
        tensor.model_copy(update={"bits": "0123456789abcdef"}) if tensor.name == "output_layer.weight" else tensor
        for tensor in snapshot.tensors
    )
    return snapshot.model_copy(update={"tensors": rows})


@pytest.mark.parametrize("change", [lambda _: None, lambda found: found.model_copy(
    update={"snapshots": tuple(map(untied, found.snapshots))}
)])  # fmt: skip
def test_without_weights_that_show_it_an_output_layer_is_lost(change: Callable[[Any], Any]) -> None:
    found = TIED.documents.fingerprints
    assert change(found) != found
    verdict = TIED.judged(fingerprints=change(found))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.HF_IMPORT)


def test_the_second_phase_is_known_by_its_first_line() -> None:
    starts = [event.data for event in RESUME.documents.events if event.kind == "phase"]
    runs = [start for start in starts if (start["name"], start.get("state")) == ("run", "begin")]
    begun = {start["step"]: start["line"] for start in runs}
    assert begun["save"] == 1
    assert RESUME.text.split("\n")[int(str(begun["resume"])) - 1].startswith("+ ")

"""The recorded TP=2 PP=2 run on four real GPUs passes, and no mutation of it does."""

from collections.abc import Callable

import pytest

from tests.core.level_runs import job_of
from tests.core.recorded_run import RecordedRun
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result

RUN = RecordedRun(FIXTURES / "runs" / "level2-dense")
SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")


def test_it_passes() -> None:
    verdict = RUN.judged()
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    assert verdict.sentence.endswith("tp=2 pp=2 (Level 2, dense)")
    assert not [row for row in verdict.limitations if row.startswith("All parallel sizes are 1")]
    (item,) = (true for true in verdict.evidence if true.criterion == Criterion.PARALLEL_SIZES)
    assert "(tensor, pipeline) ranks (0, 0), (0, 1), (1, 0), (1, 1)" in item.summary
    assert "(workers of rank 0, 1)" in item.summary


def swapped(old: str, new: str) -> Callable[[], str]:
    def edit() -> str:
        assert old in RUN.text
        return RUN.text.replace(old, new)

    return edit


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(swapped(f"'{size}': 2", f"'{size}': 1"), id=f"{size} 1") for size in SIZES),
        pytest.param(swapped("'context_parallel_size': 1", "'context_parallel_size': 2"), id="context size 2"),
        pytest.param(swapped("rank (1, 0, 1)", "rank (1, 0, 0)"), id="a rank that is there twice"),
        pytest.param(lambda: RUN.cut("rank (0, 0, 1)"), id="a rank is not there"),
        pytest.param(swapped("module: 1", "module: 2"), id="a virtual pipeline"),
        pytest.param(swapped("(Worker_TP1", "(Worker_TP2"), id="another rank of the rollout"),
        pytest.param(swapped("perf/total_num_tokens:", "perf/total_num_tokens:2"), id="other token counts"),
    ],
)
def test_no_mutation_of_its_log_passes(text: Callable[[], str]) -> None:
    assert RUN.judged(text()).result is not Result.PASS


@pytest.mark.parametrize(
    ("level", "variant"),
    [
        (Level.PARALLELISM, "vpp"),
        (Level.PARALLELISM, "cp"),
        (Level.PARALLELISM, "expert"),
        (Level.PARALLELISM, "dp"),
        (Level.MEGATRON_FSDP, "fsdp"),
        (Level.FEATURE, "feature"),
        (Level.SAVE_RESUME, "resume"),
    ],
)
def test_it_is_no_run_of_another_variant(level: Level, variant: str) -> None:
    own, other = RUN.documents.job, job_of(level, variant)
    assert own is not None
    update = {"id": other.id, "level": level, "variant": variant, "wrapper": {**own.wrapper, **other.wrapper}}
    verdict = RUN.judged(job=own.model_copy(update={**update, "expected": {}}))
    assert verdict.result is Result.BLOCKED


def test_the_smoke_s_own_job_does_not_take_its_sizes_for_trivial_ones() -> None:
    own, other = RUN.documents.job, job_of(Level.SMOKE, "lora-ddp")
    assert own is not None
    job = own.model_copy(update={"id": other.id, "level": Level.SMOKE, "variant": "lora-ddp", "wrapper": other.wrapper})
    (item,) = (true for true in RUN.judged(job=job).evidence if true.criterion == Criterion.RESOLVED_CONFIG)
    assert item.state is State.BROKEN

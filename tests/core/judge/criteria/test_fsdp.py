"""Level 3: Megatron-FSDP around every model, by the configuration and by the class in the log."""

from tests.core.level_runs import Run, job_of, run_of
from tests.core.logs import recorded
from verl_e2e.core.judge.criteria.features import fsdp_active
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage

DDP, FSDP = "DistributedDataParallel contains", "FullyShardedDataParallelV1 contains"


def run(log: str, level: Level = Level.MEGATRON_FSDP, variant: str = "fsdp") -> Run:
    return run_of(job_of(level, variant), log)


def smoke() -> str:
    return recorded("level0-pass").decode()


def test_a_run_under_fsdp_passes_and_names_the_wrapper() -> None:
    made = run(smoke().replace(DDP, FSDP))
    item = fsdp_active(made.case())
    assert (item.state, item.summary) == (State.MET, "2 model(s) wrapped by FullyShardedDataParallelV1")
    assert FSDP in item.excerpt
    alone = run_of(job_of(Level.MEGATRON_FSDP, "fsdp", gpu_count=1), smoke().replace(DDP, FSDP)).verdict()
    assert alone.result is Result.PASS
    assert "Megatron-FSDP" in alone.sentence
    assert "Megatron-FSDP ran on one GPU: wrapped, but nothing was sharded." in alone.limitations


def test_one_rank_in_the_log_of_a_job_on_two_shows_nothing_sharded() -> None:
    verdict = run(smoke().replace(DDP, FSDP)).verdict()
    assert verdict.result is Result.BLOCKED
    assert "1 of 2 processes say that they built a model" in verdict.cause


def test_ddp_under_a_configuration_that_asks_for_fsdp_fails_at_the_wrap() -> None:
    for log in (smoke(), smoke().replace(DDP, FSDP, 1)):
        made = run(log)
        assert fsdp_active(made.case()).summary.endswith("a model was wrapped by DistributedDataParallel")
        verdict = made.verdict()
        assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.FSDP_WRAP)


def test_a_log_that_names_no_wrapper_is_not_enough() -> None:
    made = run(smoke().replace(DDP, "A module contains"))
    assert (fsdp_active(made.case()).state, made.verdict().result) == (State.MISSING, Result.BLOCKED)


def test_the_smoke_is_no_fsdp_run() -> None:
    made = run(smoke(), Level.SMOKE, "lora-ddp")
    assert made.verdict().result is Result.PASS
    item = fsdp_active(made.case())
    assert (item.state, "Megatron-FSDP is not switched on" in item.summary) == (State.MISSING, True)

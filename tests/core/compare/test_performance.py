"""Time and memory beside those of other runs: what is compared, what is beyond the noise, and what says nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest

from bench.performance_power import Draw, found, gauss, heavy
from tests.core.builders import make_environment, make_job, make_record, step_line
from verl_e2e.core.compare.jobs import settings_digest
from verl_e2e.core.compare.performance import (
    MEASURES,
    STEP,
    compare_performance,
    noise_of,
    performance_bands,
    performance_of,
)
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.record import Event, Gpu, IsolationState, KernelCaches, Record
from verl_e2e.core.model.related import Healthy, Performance, Probe

USUAL: dict[str, Any] = {
    "settings": "a" * 64,
    "stack": "b" * 64,
    "host": "1 x NVIDIA H200, 16 processors",
    "other_runs": 0,
    "step_s": 8.0,
    "tokens_per_s": 1250.0,
    "gpu_gib": 2.5,
    "host_gib": 31.0,
}


def took(**given: Any) -> Performance:
    return Performance(**(USUAL | given))


def scaled(factor: float, **given: Any) -> Performance:
    """A run that takes so many times as long for the same tokens."""
    return took(step_s=8.0 * factor, tokens_per_s=1250.0 / factor, **given)


HEALTHY = tuple(scaled(factor) for factor in (0.97, 1.0, 1.02, 1.03, 0.98))


def memory(held_mib: int = 32_000, **given: Any) -> Event:
    peak = {"held_mib": held_mib, "available_mib": 9, "other_runs": 0, **given}
    return Event(t_s=9.0, kind="memory", data={"peak": peak, "readings": 3})


def step(number: int, seconds: float, gib: float = 2.0, **given: float) -> StepMetrics:
    own = {"timing_s/step": seconds, "perf/throughput": 9000 / seconds}
    return StepMetrics(number, number, {**own, "actor/perf/max_memory_allocated_gb": gib, **given})


def run_of(steps: int = 4, **given: Any) -> Record:
    return make_record(**({"job": make_job(steps=steps), "events": (memory(),)} | given))


SECONDS = (90.0, 9.0, 30.0, 10.0)
STEPS = tuple(step(number, seconds) for number, seconds in enumerate(SECONDS, 1))


def test_the_first_step_and_the_slower_half_of_the_others_are_left_out() -> None:
    found = performance_of(run_of(), (step_line(0), *STEPS))
    assert found is not None
    assert (found.step_s, found.tokens_per_s) == (9.5, (9000 / 9 + 9000 / 10) / 2)
    assert (found.gpu_gib, found.host_gib, found.other_runs) == (2.0, 31.25, 0)
    assert found.host == "1 x NVIDIA H200, processors unknown"


@pytest.mark.parametrize(
    ("record", "steps"),
    [
        (run_of(), STEPS[:3]),
        (run_of(), (*STEPS[:2], STEPS[3])),
        (run_of(steps=3), STEPS),
        (run_of(environment=None), STEPS),
        (run_of(job=None), STEPS),
    ],
)
def test_a_run_that_did_not_do_what_it_was_asked_has_no_figures(record: Record, steps: tuple[StepMetrics, ...]) -> None:
    assert performance_of(record, steps) is None


@pytest.mark.parametrize(
    ("record", "steps", "expected"),
    [
        (run_of(steps=1), STEPS[:1], {"step_s": None, "tokens_per_s": None}),
        (run_of(steps=2), STEPS[:2], {"step_s": 9.0}),
        (run_of(steps=2), (STEPS[0], step(2, math.nan)), {"step_s": None}),
        (run_of(steps=2), (STEPS[0], replace(STEPS[1], values={})), {"step_s": None, "gpu_gib": 2.0}),
        (run_of(steps=2), (step(1, 90.0, 3.5), STEPS[1]), {"gpu_gib": 3.5}),
        (run_of(steps=2), (STEPS[0], step(2, 9.0, **{"critic/perf/max_memory_allocated_gb": 4.0})), {"gpu_gib": 4.0}),
        (run_of(steps=2), (step(1, 90.0, math.inf), STEPS[1]), {"gpu_gib": None}),
        (run_of(steps=2, events=()), STEPS[:2], {"other_runs": None, "host_gib": None}),
        (run_of(steps=2, events=(memory(other_runs=None),)), STEPS[:2], {"other_runs": None, "host_gib": 31.25}),
        (run_of(steps=2, events=(memory(9, other_runs=4), memory())), STEPS[:2], {"other_runs": 4, "host_gib": 31.25}),
        (run_of(steps=2, events=(memory(other_runs=None), memory())), STEPS[:2], {"other_runs": None}),
        # A line that someone wrote into the events.
        (run_of(steps=2, events=(Event(t_s=0, kind="memory", data={"peak": 4}),)), STEPS[:2], {"host_gib": None}),
    ],
)
def test_a_figure_that_is_not_recorded_is_not_known(
    record: Record, steps: tuple[StepMetrics, ...], expected: dict[str, object]
) -> None:
    found = performance_of(record, steps)
    assert found is not None
    assert {name: getattr(found, name) for name in expected} == expected


GPU = Gpu(index=1, name="NVIDIA H100", memory_total_mib=1, memory_used_mib=0)
CACHES = KernelCaches(folders=("triton",), files=1, size_bytes=1, digest="a" * 64)


@pytest.mark.parametrize(
    "given",
    [
        {"gpus": (GPU,)},
        {"gpus": (*make_environment().gpus, GPU)},
        {"cpu_count": 64},
        {"packages": {"torch": "2.10.0", "vllm": "0.11.0"}},
        {"python": "3.13.1"},
        {"driver": "600.1"},
        {"isolation": IsolationState(mode="none")},
        {"kernel_caches": CACHES},
    ],
)
def test_what_else_time_and_memory_depend_on_makes_another_host(given: dict[str, Any]) -> None:
    usual, other = (
        performance_of(run_of(environment=environment), STEPS)
        for environment in (make_environment(), make_environment(**given))
    )
    assert usual is not None
    assert other is not None
    assert (usual.stack, usual.host) != (other.stack, other.host)
    assert compare_performance(other, [usual] * 5).rows == ()


@pytest.mark.parametrize(
    ("job", "same"),
    [
        (make_job(id="0-lora-ddp-again", bridge=make_job().bridge.model_copy(update={"commit": "e" * 40})), True),
        (make_job(wrapper={"MODEL_PATH": "/m"}, overrides=("data.train_files=/d",)), True),
        (make_job(steps=2), False),
        (make_job(gpu_count=2), False),
        (make_job(wrapper={"ALL_OFFLOAD": "True"}), False),
        (make_job(wrapper={"TEST_FREQ": "1"}), False),
        (make_job(process={"CUDA_LAUNCH_BLOCKING": "1"}), False),
        (make_job(overrides=("actor_rollout_ref.rollout.gpu_memory_utilization=0.3",)), False),
        (make_job(checkpoint=Checkpoint(model_id="Qwen/Qwen2.5-0.5B")), False),
        (make_job(verl=make_job().verl.model_copy(update={"commit": "e" * 40})), False),
    ],
)
def test_settings_are_all_that_a_job_is_asked_to_do_but_the_code_under_test(job: Job, same: bool) -> None:
    assert (settings_digest(job) == settings_digest(make_job())) is same


@pytest.mark.parametrize(
    ("own", "findings"),
    [
        (scaled(1.0), ()),
        (scaled(1.10), ()),
        (scaled(0.5), ()),
        (scaled(1.38), ("Slower: step 8 s -> 11 s (+38 %), beyond the noise of 5 runs (±11 %)",)),
        # More tokens in a longer step, and fewer in a step as long, are not slower.
        (took(step_s=11.0), ()),
        (took(tokens_per_s=900.0), ()),
        (took(gpu_gib=2.4), ()),
        (took(gpu_gib=2.54), ()),
        (took(gpu_gib=3.0), ("More memory: GPU memory 2.5 GiB -> 3 GiB (+20 %), beyond the noise of 5 runs (±2 %)",)),
        (took(host_gib=31.9), ()),
        (
            scaled(1.5, host_gib=62.0),
            (
                "Slower: step 8 s -> 12 s (+50 %), beyond the noise of 5 runs (±11 %)",
                "More memory: host memory 31 GiB -> 62 GiB (+100 %), beyond the noise of 5 runs (±5 %)",
            ),
        ),
    ],
)
def test_what_is_worse_by_more_than_the_noise_is_a_finding(own: Performance, findings: tuple[str, ...]) -> None:
    found = compare_performance(own, HEALTHY)
    assert (found.findings, found.unsaid) == (findings, ())


@pytest.mark.parametrize(
    ("own", "runs", "unsaid", "measures"),
    [
        (took(), HEALTHY[:2], ("time: 2 comparable runs", "memory: 2 comparable runs"), 0),
        (
            took(),
            [run.model_copy(update={"host": "other"}) for run in HEALTHY],
            ("time: 0 ",),
            0,
        ),
        (took(other_runs=3), HEALTHY, ("time: 0 comparable runs",), 2),
        (took(other_runs=None), HEALTHY, ("time: 0 comparable runs",), 2),
        (took(step_s=None, tokens_per_s=None), HEALTHY, ("time: the run has no figure of it after its first",), 2),
        (took(gpu_gib=None, host_gib=None), HEALTHY, ("memory: the run has no figure of it",), 2),
        (took(), [run.model_copy(update={"other_runs": None}) for run in HEALTHY], ("time: 0 comparable",), 2),
    ],
)
def test_where_nothing_can_be_said_it_is_said_so(
    own: Performance, runs: list[Performance], unsaid: tuple[str, ...], measures: int
) -> None:
    found = compare_performance(own, runs)
    assert len(found.rows) == measures
    assert found.findings == ()
    for clause, expected in zip(found.unsaid, unsaid, strict=False):
        assert clause.startswith(expected)
    assert len(found.unsaid) >= len(unsaid)


def test_the_merge_base_is_what_a_run_is_compared_with_and_banked_runs_give_the_noise() -> None:
    base = scaled(1.4)
    assert compare_performance(scaled(1.45), HEALTHY).findings
    assert not compare_performance(scaled(1.45), HEALTHY, [base]).findings
    assert compare_performance(scaled(2.0), HEALTHY, [base]).findings
    # One run on the merge base says nothing of its noise; three do.
    assert compare_performance(scaled(2.0), (), [base]).unsaid
    assert compare_performance(scaled(2.0), (), [scaled(1.0), scaled(1.01), scaled(0.99)]).findings


def test_the_noise_is_the_prediction_bound_of_students_t() -> None:
    noise = noise_of(STEP, [took(step_s=seconds) for seconds in (8.0, 8.8, 7.2)])
    assert noise is not None
    logs = [math.log(seconds) for seconds in (8.0, 8.8, 7.2)]
    mean = sum(logs) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / 2)
    assert noise.usual == pytest.approx(math.exp(mean))
    assert noise.allowed == pytest.approx(math.exp(6.965 * spread * math.sqrt(4 / 3)))
    assert noise.found == pytest.approx(noise.allowed * math.exp(1.2816 * spread * math.sqrt(4 / 3)))
    many = noise_of(STEP, [took(step_s=8 + 0.1 * (number % 2)) for number in range(40)])
    assert many is not None
    assert many.allowed == pytest.approx(1.05)


def test_a_bands_file_says_what_is_found_on_which_host() -> None:
    def healthy(number: int, performance: Performance | None) -> Healthy:
        fields: dict[str, Any] = {
            "run": f"{number:064x}",
            "job": "5-signal",
            "bridge_commit": "a" * 40,
            "correlation": 0.9998,
        }
        return Healthy(**fields, performance=performance)

    crowded = [scaled(factor, other_runs=11) for factor in (1.0, 2.0)]
    probe = Probe(healthy=tuple(healthy(number, run) for number, run in enumerate((*HEALTHY, *crowded, None))))
    assert performance_bands(probe) == (
        "5-signal on 1 x NVIDIA H200, 16 processors, other runs beside it: 0: 5 runs; "
        "step 8 s, beyond the noise from +11 %, found in 9 of 10 from +15 %; "
        "throughput 1,250 tokens/s per GPU, beyond the noise from -10 %, found in 9 of 10 from -13 %; "
        "GPU memory 2.5 GiB, beyond the noise from +2 %, found in 9 of 10 from +2 %; "
        "host memory 31 GiB, beyond the noise from +5 %, found in 9 of 10 from +5 %",
        "5-signal on 1 x NVIDIA H200, 16 processors, other runs beside it: 11: 2 runs; 1 more tell the noise",
    )


def test_each_measure_names_a_figure() -> None:
    assert {measure.key for measure in MEASURES} < Performance.model_fields.keys()


@pytest.mark.no_cover
@pytest.mark.parametrize("draw", [gauss, heavy])
def test_few_healthy_runs_are_called_slower(draw: Draw) -> None:
    assert found(5, 0.25, 1.0, 2000, draw) < (0.015 if draw is gauss else 0.03)
    assert found(5, 0.25, 1.0, 2000, draw, base=True) < (0.015 if draw is gauss else 0.03)


def test_a_large_slow_down_is_found() -> None:
    assert found(5, 0.05, 1.5, 500) > 0.95
    assert 0.4 < found(3, 0.05, 1.5, 500) < 0.8
    assert found(5, 0.25, 1.5, 500) < 0.25


@pytest.mark.parametrize("odd", [5e-324, 1e-300, 1e15, 1.7e308])
def test_no_number_of_a_log_or_a_bands_file_stops_a_comparison(odd: float) -> None:
    record, steps = run_of(), [step(1, odd, odd), step(2, odd, odd), step(3, odd, odd), step(4, 1.0)]
    own = performance_of(record, steps)
    assert own is not None
    same = {name: getattr(own, name) for name in ("settings", "stack", "host")}
    others = [took(**same, **figures) for figures in ({}, {"step_s": odd, "tokens_per_s": odd}, {"step_s": 1e300})]
    for run in (own, took(**same, step_s=odd, tokens_per_s=odd)):
        for row in compare_performance(run, others).rows:
            assert str(row)
            assert row.bound
            assert row.beyond in (True, False)

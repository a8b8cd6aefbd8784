"""Every way to a verdict: who is blamed, in which order, and that nothing missing ever passes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.builders import (
    PREFLIGHT,
    TRAINER,
    bar,
    bridge_error,
    config_with,
    cut_facts,
    ended,
    error,
    import_lines,
    judged,
    make_environment,
    make_facts,
    make_job,
    make_record,
    passing_tests,
    step_line,
)
from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.criteria.invariants import Invariant
from verl_e2e.core.judge.criteria.table import ROWS, Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import AdapterReport, Excerpt, LogFacts, ResolvedConfig
from verl_e2e.core.model.facts import TracebackRecord as Printed
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.outcome import Outcome, Result, Stage
from verl_e2e.core.model.record import Check, EndReason, Event, Finding, Record, RunContainer, TestCase

FAILED_TEST = TestCase(name="tests.unit_tests.models.test_param_mapping.test_c", outcome="failed", message="assert 0")
NO_DATA = Finding(check=Check.DATA, ok=False, stage=Stage.DATA, summary="train.parquet is not there", fix="Make it.")
NO_GPU = Finding(check=Check.GPUS, ok=False, stage=Stage.ENVIRONMENT, summary="no GPU", fix="Use a GPU host.")
NOTE = Finding(check=Check.IMAGE, ok=False, blocking=False, summary="the image tag is unknown")
ELSEWHERE = import_lines("run", 9)[0].model_copy(update={"file": "/opt/old/megatron/bridge/__init__.py"})
EXIT_1 = ended(exit_code=1)
PLANTED = cut_facts(Stage.PEFT, errors=(bridge_error(),))
EMPTY_ADAPTER = cut_facts(Stage.PEFT, adapters=(AdapterReport(1191, TRAINER, 1000, 0),))
LOST = (Excerpt(1195, "Can't find the following HF parameters in hf_keys: ['model.norm']"),)
TERMINATED = error("Terminated", "*** SIGTERM received at time=1 ***", stage=Stage.PEFT, line=1260)
VLLM = error("ImportError", "libcudart.so.12: cannot open shared object file", stage=Stage.ROLLOUT_ENGINE, line=1230)


def test_the_healthy_run_passes_and_says_what_was_validated() -> None:
    verdict = judged()
    assert (verdict.result, verdict.stage, verdict.cause) == (Result.PASS, None, "")
    assert verdict.sentence == (
        "verl finished one training step on Bridge aaaaaaaaaaaa with LoRA rank 4 and Megatron DDP, rollout by vllm "
        "(Level 0, lora-ddp)"
    )
    plain = [item for item in verdict.evidence if not isinstance(ROWS[item.criterion].judge, Invariant)]
    assert {item.state for item in plain} == {State.MET}
    assert verdict.followups == ()


Case = tuple[dict[str, Any], LogFacts | None, Result, Stage, str]
HEALTHY = make_facts()
STALLED = ended(EndReason.STALLED, None, "No progress for 600 s in stage ray.")
TIMED_OUT = ended(EndReason.TIME_LIMIT, None, "Time limit of 1800 s reached.")
LOW_MEMORY = ended(EndReason.HOST_MEMORY, None, "The host has 1.2 of 126.0 GiB of memory left.")
NOT_STARTED = ended(EndReason.NOT_STARTED, None, "preflight found what blocks the run")
CAUGHT = replace(bridge_error(), driver=False, record=Printed.ERROR)
BESIDE = replace(bridge_error(), driver=False, record=Printed.SIDE)
OTHER_CONFIG = config_with({"critic.megatron.vanilla_mbridge": True})


def failed(stage: Stage, text: str, facts: LogFacts | None = HEALTHY, **given: Any) -> Case:
    return given, facts, Result.FAIL, stage, text


def blocked(stage: Stage, text: str, facts: LogFacts | None = HEALTHY, **given: Any) -> Case:
    return given, facts, Result.BLOCKED, stage, text


def stepped(**values: Any) -> LogFacts:
    """A run whose one step has these metrics."""
    return make_facts(steps=(step_line(**values),))


CASES: dict[str, Case] = {
    "planted exception": failed(Stage.PEFT, "ValueError: planted in LoRA", PLANTED, events=EXIT_1),
    "planted exception, processes hung": failed(
        Stage.PEFT, "ValueError: planted in LoRA", PLANTED, events=ended(EndReason.FATAL_ERROR_HANG, None)
    ),
    "unrecoverable: adapter without parameters": failed(
        Stage.PEFT,
        "LoRA matched no module: the adapter has 0 parameters",
        EMPTY_ADAPTER,
        events=ended(EndReason.UNRECOVERABLE, None, "Line 1191: Adapter parameters: 0"),
    ),
    "adapter empty in a green run": failed(Stage.PEFT, "LoRA", make_facts(adapters=EMPTY_ADAPTER.adapters)),
    "lost on import": failed(Stage.HF_IMPORT, "1 warning(s) of lost weights", make_facts(lost_weights=LOST)),
    "lost on export": failed(
        Stage.EXPORT_WEIGHT_SYNC,
        "1 warning(s) of lost weights",
        make_facts(lost_weights=(Excerpt(1300, "3 tensors not written"),)),
    ),
    "weights differ": failed(Stage.EXPORT_WEIGHT_SYNC, "do not hold the same weights", stepped(pearson_corr=0.7)),
    "frozen adapter": failed(Stage.TRAIN_STEP, "actor/grad_norm is 0.0 at step 1", stepped(actor_grad_norm=0.0)),
    "loss is not a number": failed(Stage.LEARNING_SIGNAL, "actor/loss is not finite", stepped(actor_loss=math.nan)),
    "failed Bridge test": failed(
        Stage.BRIDGE_PROVIDER, "1 of 5 focused Bridge tests failed", tests=(*passing_tests(), FAILED_TEST)
    ),
    "failed Bridge test, nothing started": failed(
        Stage.BRIDGE_PROVIDER, "1 of 1 focused Bridge tests failed", None, tests=(FAILED_TEST,), events=NOT_STARTED
    ),
    "correlation is not a number": blocked(
        Stage.EXPORT_WEIGHT_SYNC, "which is not a correlation", stepped(pearson_corr=math.nan)
    ),
    "wrong import in a green run": blocked(
        Stage.IMPORT, "not below $BRIDGE/src", imports=(*import_lines("run", TRAINER), ELSEWHERE)
    ),
    "wrong import, whatever the log says": blocked(
        Stage.IMPORT, "not below $BRIDGE/src", PLANTED, imports=(ELSEWHERE,), events=EXIT_1
    ),
    "wrong import and a failed test": blocked(
        Stage.IMPORT, "not below $BRIDGE/src", imports=(ELSEWHERE,), tests=(FAILED_TEST,)
    ),
    "preflight": blocked(
        Stage.DATA,
        "train.parquet is not there",
        None,
        environment=make_environment(findings=(NO_DATA, NO_GPU, NOTE), imports=()),
        events=NOT_STARTED,
        imports=(),
        tests=None,
    ),
    "other configuration, and it failed": blocked(
        Stage.ENVIRONMENT,
        "the run was not as asked: critic.megatron.vanilla_mbridge is True, asked False",
        replace(PLANTED, configs=(OTHER_CONFIG,)),
        events=EXIT_1,
    ),
    "a failure of no one knows what": blocked(
        Stage.PEFT,
        "planted in LoRA, but environment.json does not say which checkout ran",
        PLANTED,
        environment=None,
        events=EXIT_1,
    ),
    "a failure without one import line": blocked(
        Stage.PEFT,
        "but no process of the run shows where it imported Bridge from",
        PLANTED,
        imports=(),
        events=EXIT_1,
    ),
    "rollout engine": blocked(
        Stage.ENVIRONMENT, "libcudart.so.12", cut_facts(Stage.ROLLOUT_ENGINE, errors=(VLLM,)), events=EXIT_1
    ),
    "an earlier fault outside comes before its consequence": blocked(
        Stage.ENVIRONMENT,
        "libcudart.so.12",
        make_facts(errors=(replace(VLLM, driver=True),), steps=(step_line(actor_grad_norm=0.0),)),
        events=EXIT_1,
    ),
    "stalled": blocked(
        Stage.RAY,
        "no progress within the limit of its stage (No progress for 600 s in stage ray.)",
        cut_facts(Stage.RAY),
        events=STALLED,
    ),
    "time limit, and what its end printed": blocked(
        Stage.PEFT,
        "the time limit was reached (Time limit of 1800 s reached.)",
        cut_facts(Stage.PEFT, errors=(TERMINATED,)),
        events=TIMED_OUT,
    ),
    "time limit, below an exception that the run had caught": blocked(
        Stage.TRAIN_STEP, "the time limit was reached", cut_facts(Stage.TRAIN_STEP, errors=(CAUGHT,)), events=TIMED_OUT
    ),
    "interrupted, below the exception of a side thread": blocked(
        Stage.TRAIN_STEP,
        "interrupted",
        cut_facts(Stage.TRAIN_STEP, errors=(BESIDE,)),
        events=ended(EndReason.INTERRUPTED, None),
    ),
    "memory of the host": blocked(
        Stage.TRAIN_STEP,
        "the host ran out of memory, and the run was ended so that others go on (The host has 1.2 of 126.0 GiB",
        cut_facts(Stage.TRAIN_STEP, errors=(TERMINATED,)),
        events=LOW_MEMORY,
    ),
    "memory of the host, with what would be a fault of the change elsewhere": blocked(
        Stage.PEFT, "the host ran out of memory", PLANTED, events=LOW_MEMORY
    ),
    "interrupted": blocked(
        Stage.DATA,
        "the run was interrupted (Interrupted by SIGINT.)",
        cut_facts(Stage.DATA),
        events=ended(EndReason.INTERRUPTED, None, "Interrupted by SIGINT."),
    ),
    "interrupted while a real fault was there": failed(
        Stage.PEFT, "planted in LoRA", PLANTED, events=ended(EndReason.INTERRUPTED, None)
    ),
    "terminated by someone else": blocked(
        Stage.PEFT,
        "interrupted or terminated from outside",
        cut_facts(Stage.PEFT, errors=(TERMINATED,)),
        events=EXIT_1,
    ),
    "exit code 1 after a complete log": blocked(
        Stage.SHUTDOWN, "the process exited with code 1 and no explained error", events=EXIT_1
    ),
    "exit code 0 after an incomplete log": blocked(
        Stage.EXPORT_WEIGHT_SYNC,
        "incomplete: the log ends in export_weight_sync without an error",
        cut_facts(Stage.EXPORT_WEIGHT_SYNC),
    ),
    "unrecoverable for a reason that the log does not show": blocked(
        Stage.SHUTDOWN,
        "the run could no longer succeed (Line 7: x)",
        events=ended(EndReason.UNRECOVERABLE, None, "Line 7: x"),
    ),
    "never started, no reason recorded": blocked(
        Stage.ENVIRONMENT, "the wrapper was never started", None, events=ended(EndReason.NOT_STARTED, None)
    ),
    "no log": blocked(Stage.ENVIRONMENT, "no training progress in the log", None),
    "empty log": blocked(Stage.ENVIRONMENT, "no training progress in the log", LogFacts(0)),
    "no end recorded": blocked(Stage.SHUTDOWN, "no end of the process", events=()),
    "no proof from the trainer": blocked(Stage.IMPORT, "no import line", imports=()),
    "no adapter report": blocked(Stage.PEFT, "no adapter report in the log", make_facts(adapters=())),
    "metrics of another step": blocked(Stage.SHUTDOWN, "says global step 2, 1 requested", stepped(global_step=2.0)),
    "a file is missing": blocked(
        Stage.ENVIRONMENT, "evidence is missing: metrics.jsonl: not there", missing=("metrics.jsonl: not there",)
    ),
    "Bridge checks demanded": blocked(
        Stage.SHUTDOWN,
        "evidence is missing: Bridge checks not run: no junit.xml in the folder",
        tests=None,
        job=make_job(require_bridge_checks=True),
    ),
}


@pytest.mark.parametrize(("given", "facts", "result", "stage", "text"), CASES.values(), ids=CASES)
def test_a_verdict(given: dict[str, Any], facts: LogFacts | None, result: Result, stage: Stage, text: str) -> None:
    verdict = judge(make_record(**given), facts)
    assert (verdict.result, verdict.stage) == (result, stage)
    assert text in verdict.cause
    ending = wording.MERGE_BASE_NOT_RUN if result is Result.FAIL else wording.NOT_EVIDENCE
    assert verdict.sentence.endswith(ending)
    assert [row.name for row in verdict.deliverables] == [
        wording.BRIDGE_CHECKS,
        "Local Bridge import in verl",
        "verl Megatron backend run",
        wording.REQUESTED_VARIANTS,
        wording.LOG_CAPTURE,
    ]
    assert verdict.deliverables[-1].outcome is not Outcome.BLOCKED
    assert all(row.detail for row in verdict.deliverables)


CAUSES = {
    "planted exception": ("log:adapter-path",),
    "frozen adapter": ("criterion:gradients",),
    "failed Bridge test": ("criterion:bridge_tests",),
    "wrong import in a green run": ("criterion:local_import",),
    "preflight": ("preflight:data", "preflight:gpus"),
    "other configuration, and it failed": ("criterion:resolved_config",),
    "a failure of no one knows what": ("verdict:unproven", "log:adapter-path"),
    "rollout engine": ("log:missing-extension",),
    "stalled": ("end:stalled",),
    "memory of the host": ("end:host_memory",),
    "memory of the host, with what would be a fault of the change elsewhere": ("end:host_memory",),
    "interrupted": ("end:interrupted",),
    "exit code 1 after a complete log": ("end:exited",),
    "no log": ("verdict:evidence",),
    "no end recorded": ("verdict:evidence",),
}


@pytest.mark.parametrize(("name", "causes"), CAUSES.items())
def test_a_verdict_names_its_causes_for_programs(name: str, causes: tuple[str, ...]) -> None:
    given, facts = CASES[name][:2]
    assert judge(make_record(**given), facts).causes == causes
    assert judge(make_record(), make_facts()).causes == ()


def test_a_blocked_run_says_how_far_construction_got() -> None:
    far = judged(cut_facts(Stage.ROLLOUT_ENGINE, errors=(VLLM,)), events=EXIT_1)
    assert f"; construction had reached {Stage.DDP_WRAP}; " in far.sentence
    assert far.sentence.count("construction had reached") == 1
    near = judged(cut_facts(Stage.DATA), events=ended(EndReason.STALLED, None))
    assert "construction" not in near.sentence


def test_every_finding_s_fix_is_a_follow_up() -> None:
    environment = make_environment(findings=(NO_DATA, NO_GPU, NOTE))
    verdict = judge(make_record(environment=environment, events=ended(EndReason.NOT_STARTED, None)), None)
    assert verdict.followups == ("Make it. Found: train.parquet is not there", "Use a GPU host. Found: no GPU")
    assert [item.excerpt for item in verdict.key_lines] == ["train.parquet is not there", "no GPU"]
    assert "train.parquet is not there (and 1 more finding);" in verdict.sentence


def test_a_run_that_was_ended_for_its_memory_says_what_to_do_about_it() -> None:
    verdict = judged(cut_facts(Stage.TRAIN_STEP), events=ended(EndReason.HOST_MEMORY, None))
    assert wording.FIX_HOST_MEMORY in verdict.followups


def test_a_finding_without_a_fix_is_still_a_follow_up() -> None:
    findings = tuple(Finding(check=Check.DISK, ok=False, summary=f"disk {n} is full.") for n in range(3))
    verdict = judge(make_record(environment=make_environment(findings=findings), events=NEVER), None)
    assert verdict.followups == ("Fix: disk 0 is full", "Fix: disk 1 is full", "Fix: disk 2 is full")
    assert "disk 0 is full (and 2 more findings)" in verdict.cause


def test_a_fail_asks_for_the_merge_base_and_a_waiver_for_its_tests() -> None:
    failed = judged(PLANTED, events=EXIT_1)
    assert wording.RUN_MERGE_BASE in failed.followups
    waived = judged(tests=None)
    assert waived.result is Result.PASS
    assert waived.followups[-1].startswith("Run the focused Bridge tests on aaaaaaaaaaaa (pytest -q tests/")
    assert judged(tests=None, job=make_job(bridge_tests=())).followups == (
        "Run the focused Bridge tests on aaaaaaaaaaaa.",
    )


def outcomes(verdict: Verdict) -> list[Outcome]:
    return [row.outcome for row in verdict.deliverables]


P, F, S, N, B = Outcome.PASS, Outcome.FAIL, Outcome.SKIPPED, Outcome.NOT_REQUESTED, Outcome.BLOCKED
NEVER = ended(EndReason.NOT_STARTED, None)


@pytest.mark.parametrize(
    ("record", "facts", "expected"),
    [
        (make_record(), make_facts(), [P, P, P, N, P]),
        (make_record(tests=None), make_facts(), [S, P, P, N, P]),
        (make_record(tests=None, job=make_job(require_bridge_checks=True)), make_facts(), [B, P, P, N, P]),
        (make_record(tests=(FAILED_TEST,)), make_facts(), [F, P, P, N, P]),
        (make_record(tests=(FAILED_TEST,), events=NEVER, imports=()), LogFacts(0), [F, B, S, N, S]),
        (make_record(environment=make_environment(findings=(NO_DATA,)), events=NEVER), LogFacts(0), [P, B, B, N, S]),
        (make_record(imports=(ELSEWHERE,), events=NEVER), LogFacts(0), [P, F, B, N, S]),
        (make_record(imports=(ELSEWHERE,)), make_facts(), [P, F, B, N, P]),
        (make_record(events=EXIT_1), PLANTED, [P, P, F, N, P]),
        (make_record(), None, [P, B, B, N, F]),
        (make_record(), LogFacts(0), [P, B, B, N, F]),
        (make_record(job=make_job(variant="amplified-lora")), make_facts(), [P, P, B, B, P]),
        (make_record(job=make_job(Level.PARALLELISM, "own")), make_facts(), [P, P, B, B, P]),
    ],
)
def test_no_deliverable_is_left_implicit(record: Record, facts: LogFacts | None, expected: list[Outcome]) -> None:
    assert outcomes(judge(record, facts)) == expected


ABOVE_ZERO = [entry for entry in VARIANTS if entry.level is not Level.SMOKE]


@pytest.mark.parametrize("variant", ABOVE_ZERO, ids=lambda item: item.job_id)
def test_the_smoke_s_log_passes_no_other_level(variant: Variant) -> None:
    verdict = judged(job=make_job(variant.level, variant.name))
    assert verdict.result is Result.BLOCKED
    assert f"Level {int(variant.level)}" in verdict.sentence


def test_the_level_s_own_evidence_comes_last_and_is_named() -> None:
    verdict = judged(job=make_job(Level.FEATURE, "own"))
    assert verdict.cause == "evidence is missing: the job names no feature to look for"
    assert verdict.evidence[-1].criterion == Criterion.FEATURE_ACTIVE


def test_a_dirty_or_patched_tree_shows_in_the_sentence() -> None:
    states = tuple(
        state.model_copy(update={"dirty": ("src/x.py",), "patches": ("fsdp-class",)})
        if state.name == "bridge"
        else state
        for state in make_environment().repositories
    )
    verdict = judged(environment=make_environment(repositories=states))
    assert "on Bridge aaaaaaaaaaaa plus 1 uncommitted file(s) plus 1 declared patch(es) with" in verdict.sentence
    assert (
        verdict.repositories[0] == f"Bridge repo: {'a' * 40} plus dirty files: src/x.py; declared patches: fsdp-class"
    )


def test_without_a_job_everything_is_blocked_and_named() -> None:
    missing = tuple(f"{name}: not there" for name in ("job.json", "environment.json", "events.jsonl", "imports.jsonl"))
    for facts, text in (
        (make_facts(), "the log itself shows the requested steps completed, which alone proves no level"),
        (PLANTED, "the log itself shows a failure at peft"),
        (cut_facts(Stage.DATA), "the log itself stops at data"),
        (None, "not there; not evidence"),
    ):
        verdict = judge(Record(missing=missing), facts)
        assert verdict.result is Result.BLOCKED
        assert all(name.partition(":")[0] in verdict.sentence for name in missing)
        assert text in verdict.sentence
        assert verdict.sentence.endswith(wording.NOT_EVIDENCE)
        assert outcomes(verdict) == [B, B, B, B, F if facts is None else P]


def test_a_record_that_forgot_to_say_what_is_missing_still_names_the_job() -> None:
    assert "job.json: not there" in judge(Record(), LogFacts(0)).sentence


def test_what_the_folder_knows_without_a_job_is_shown() -> None:
    verdict = judge(Record(environment=make_environment()), make_facts())
    assert verdict.command.startswith("bash ")
    assert verdict.repositories[0] == f"Bridge repo: {'a' * 40} plus no dirty files"


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (make_record(environment=make_environment(command=())), "exact arguments not recorded)"),
        (make_record(environment=None), "exact arguments not recorded)"),
        (make_record(events=NEVER), "trainer.logger=console (never started)"),
        (Record(), "unknown"),
    ],
)
def test_the_command_of_a_run(record: Record, command: str) -> None:
    assert judge(record, make_facts()).command.endswith(command)


def test_an_unrecorded_tree_is_said_to_be_unrecorded() -> None:
    verdict = judge(
        make_record(
            environment=make_environment(repositories=(), gpus=(), container=RunContainer(), packages={}, site="")
        ),
        make_facts(),
    )
    trees = tuple(
        f"{name}: {commit * 40} asked for, the tree and its dirty files are not recorded"
        for name, commit in (("Bridge repo", "a"), ("verl repo", "b"))
    )
    assert verdict.repositories == (*trees, "Host: container not recorded, image not recorded")


# Each takes one piece of evidence away from the healthy run, or spoils it.
Spoiler = Callable[[Record, LogFacts], tuple[Record, LogFacts]]


def of_record(**update: Any) -> Spoiler:
    return lambda record, facts: (record.model_copy(update=update), facts)


def of_facts(**update: Any) -> Spoiler:
    return lambda record, facts: (record, replace(facts, **update))


def of_environment(**update: Any) -> Spoiler:
    def spoil(record: Record, facts: LogFacts) -> tuple[Record, LogFacts]:
        environment = record.environment and record.environment.model_copy(update=update)
        return record.model_copy(update={"environment": environment}), facts

    return spoil


def one_repository_less(index: int) -> Spoiler:
    states = make_environment().repositories
    return of_environment(repositories=states[:index] + states[index + 1 :])


def one_preflight_import_less(index: int) -> Spoiler:
    lines = make_environment().imports
    return of_environment(imports=lines[:index] + lines[index + 1 :])


SPOILERS: tuple[Spoiler, ...] = (
    of_record(job=None),
    of_record(environment=None),
    of_record(events=()),
    of_record(imports=()),
    of_record(imports=import_lines("run", TRAINER)[1:]),
    of_record(imports=import_lines("run", PREFLIGHT)),
    of_record(missing=("config.json: not there",)),
    of_record(events=ended()[:3]),
    of_record(events=EXIT_1),
    of_record(tests=(FAILED_TEST,)),
    of_environment(import_roots={}),
    of_environment(findings=(NO_GPU,)),
    *(one_repository_less(index) for index in range(3)),
    *(one_preflight_import_less(index) for index in range(6)),
    of_facts(configs=()),
    of_facts(configs=(ResolvedConfig(143, None, "cut"),)),
    of_facts(steps=(), last_step=None),
    of_facts(progress=None),
    of_facts(progress=bar(0, 1, 0)),
    of_facts(completed_at=None),
    of_facts(adapters=()),
    of_facts(workers=()),
    of_facts(lost_weights=LOST),
    of_facts(errors=(bridge_error(),)),
)


@settings(deadline=None)
@given(st.sets(st.integers(0, len(SPOILERS) - 1), min_size=1, max_size=4))
def test_a_pass_never_survives_the_loss_of_any_evidence(chosen: set[int]) -> None:
    record, facts = make_record(), make_facts()
    for index in sorted(chosen):
        record, facts = SPOILERS[index](record, facts)
    assert judge(record, facts).result is not Result.PASS


@pytest.mark.parametrize("index", range(len(SPOILERS)))
def test_each_single_loss_is_seen(index: int) -> None:
    assert judge(*SPOILERS[index](make_record(), make_facts())).result is not Result.PASS


@settings(deadline=None)
@given(st.permutations(range(4)), st.permutations(range(6)))
def test_the_order_of_documents_lines_changes_nothing(tests: list[int], imports: list[int]) -> None:
    healthy = make_record()
    shuffled = make_record(
        tests=tuple(passing_tests()[index] for index in tests),
        imports=tuple(healthy.imports[index] for index in imports),
    )
    assert judge(shuffled, make_facts()) == judge(healthy, make_facts())


def test_noise_after_completion_is_a_limitation_and_no_more() -> None:
    event = Event(t_s=1.0, kind="gpu", data={"gpus": []})
    late = error(
        "RuntimeError",
        "DataLoader worker (pid 8000) is killed by signal: Killed.",
        stage=Stage.SHUTDOWN,
        line=1345,
        after_completion=True,
    )
    verdict = judged(make_facts(errors=(late,)), events=(event, *ended()))
    assert verdict.result is Result.PASS
    assert "Residual log noise: dataloader-worker-killed (line 1345)." in verdict.limitations

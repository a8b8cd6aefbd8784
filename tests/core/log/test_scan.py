"""The scan as a whole: the recorded logs, any cut of the input, milestones, bounds."""

import math
import time
from dataclasses import replace

import pytest

from tests.core.logs import NAMES, fed, lines, recorded
from tools.write_tables import grep_patterns
from verl_e2e.core.consumer.consumer import Literal
from verl_e2e.core.log.fold import MAX_STEPS
from verl_e2e.core.log.literals import LITERALS
from verl_e2e.core.log.scan import FindPrefilter, LogScanner, literal_bytes, scan
from verl_e2e.core.model.facts import LogFacts, LoggedError
from verl_e2e.core.model.outcome import Stage

ORDER = ["environment", "ray", "data", "bridge_provider", "peft", "optimizer", "hf_import", "ddp_wrap"]
W = "(WorkerDict pid=7) "
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"


def facts_of(*texts: str) -> LogFacts:
    return scan(lines(*texts))


def _fatal(*chunks: bytes) -> LoggedError | None:
    scanner = LogScanner()
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.fatal


def _unrecoverable(*texts: str) -> int:
    scanner = LogScanner()
    scanner.feed(lines(*texts)[0])
    return 0 if scanner.unrecoverable is None else scanner.unrecoverable.line


def test_the_passing_run() -> None:
    facts = scan([recorded("level0-pass")])
    assert [mark.stage for mark in facts.stages][:8] == ORDER
    assert facts.reached() is Stage.SHUTDOWN
    assert facts.line_count == 1350
    assert facts.progress is not None
    assert (facts.progress.percent, facts.progress.done, facts.progress.total) == (100, 1, 1)
    assert facts.completed_at is not None
    (step,) = facts.steps
    assert step.values["training/rollout_actor_probs_pearson_corr"] == 0.9999604821205139
    assert step.values["training/num_turns/mean"] == 2.0
    (adapter,) = facts.adapters
    assert (adapter.pid, adapter.total, adapter.adapter) == (7470, 17940992, 106496)
    assert [worker.pid for worker in facts.workers if worker.built_model] == [7470]
    assert facts.last is not None
    assert "killed by signal" in facts.last.text


def test_the_last_of_very_many_bars_on_a_line_counts() -> None:
    facts = facts_of("".join(BAR.format(step // 2, step, 200) for step in range(201)))
    assert facts.progress is not None
    assert facts.progress.done == 200
    assert facts.completed_at is not None


def test_the_run_that_was_cut() -> None:
    facts = scan([recorded("level5-flat-cut-at-14-of-20")])
    assert [step.step for step in facts.steps] == list(range(15))
    assert facts.completed_at is None
    assert facts.stood is Stage.TRAIN_STEP
    assert not facts.errors


@pytest.mark.no_cover
@pytest.mark.parametrize("name", NAMES)
def test_the_answer_does_not_depend_on_how_the_bytes_arrive(name: str) -> None:
    log = recorded(name)
    whole = scan([log])
    assert fed(log, 4099) == whole
    assert fed(log, 65536) == whole


def test_one_byte_at_a_time() -> None:
    log = recorded("level0-vllm-extension-missing")
    assert fed(log, 1) == scan([log])


def test_an_unfinished_last_line_is_read_at_the_end_only() -> None:
    scanner = LogScanner()
    scanner.feed(b"all initialize finished, ready to fit\nTotal training")
    assert scanner.facts().line_count == 1
    assert scanner.finish().line_count == 2
    assert scan([b"\n\n"]).line_count == 2
    assert scan([]).line_count == 0


def test_a_scanner_answers_while_the_log_grows() -> None:
    scanner = LogScanner()
    log = recorded("level0-gpu-memory-refused")
    seen: list[Stage] = []
    for start in range(0, len(log), 512):
        scanner.feed(log[start : start + 512])
        if scanner.stage is not None and (not seen or seen[-1] is not scanner.stage):
            seen.append(scanner.stage)
    assert seen[:2] == [Stage.ENVIRONMENT, Stage.RAY]
    assert seen[-1] is Stage.ROLLOUT_ENGINE
    assert scanner.marker > 1200
    assert scanner.fatal is not None
    assert scanner.fatal.driver


def test_a_run_that_hangs_after_its_error_prints_no_more_and_is_fatal_all_the_same() -> None:
    begun = b"Error executing job with overrides: []\nTraceback (most recent call last):\n"
    ended = b'  File "main_ppo.py", line 3, in main\nValueError: no\n'
    assert _fatal(begun) is None
    error = _fatal(begun, ended)
    assert error is not None
    assert error.kind == "ValueError"


def test_a_dead_engine_is_fatal_until_the_run_completed() -> None:
    dead = "ERROR 05-07 21:12:03 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down."
    scanner = LogScanner()
    scanner.feed(lines(dead)[0])
    assert scanner.fatal is not None
    late = LogScanner()
    late.feed(lines(BAR.format(100, 1, 1), dead)[0])
    assert late.fatal is None


DEAD_ENGINE = """\
ERROR 11-25 23:25:37 [async_llm.py:704] Traceback (most recent call last):
ERROR 11-25 23:25:37 [async_llm.py:704]   File "/site/vllm/v1/engine/core_client.py", line 1061, in get_output_async
ERROR 11-25 23:25:37 [async_llm.py:704]     raise self._format_exception(outputs) from None
ERROR 11-25 23:25:37 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
(TaskRunnerV1 pid=1376) INFO:2026-11-25 23:26:28,492:pending: 0, running: 15, finished: 0, failure: 1
"""


def test_an_engine_that_died_by_an_exception_is_fatal_though_its_caller_waits_on() -> None:
    """verl's agent loop logs the error of the request, and its trainer waits for the answer (seen on a GPU)."""
    server = "".join(f"(vLLMHttpServer pid=2445) {line}\n" for line in DEAD_ENGINE.splitlines()[:-1])
    log = (server + DEAD_ENGINE.splitlines()[-1] + "\n").encode()
    found = _fatal(log)
    assert found is not None
    assert (found.kind, found.driver) == ("vllm.v1.engine.exceptions.EngineDeadError", False)
    assert _fatal(lines(BAR.format(100, 1, 1))[0], log) is None


def test_progress_moves_the_marker_and_the_step() -> None:
    scanner = LogScanner()
    scanner.feed(lines(BAR.format(0, 0, 3), "noise", "step:1 - actor/loss:0.5")[0])
    assert (scanner.step, scanner.marker, scanner.stage) == (1, 3, Stage.TRAIN_STEP)
    scanner.feed(b"noise\nnoise\n")
    assert scanner.marker == 3


def test_an_adapter_without_parameters_is_unrecoverable_when_lora_was_asked_for() -> None:
    table = ("  Total parameters:     17,940,992", "  Adapter parameters:   0")
    asked = "Enabling LORA with rank=4, alpha=4, dropout=0.0"
    config = "{'actor_rollout_ref': {'model': {'lora': {'rank': 8}}}}"
    assert _unrecoverable(*table) == 0
    assert _unrecoverable(*table, asked) == 2
    assert _unrecoverable(config, *table) == 3
    assert _unrecoverable("trainable params: 0 || all params: 17 || trainable%: 0.0") == 1
    assert _unrecoverable("trainable params: 4 || all params: 17 || trainable%: 23.5") == 0


def test_a_bar_painted_over_itself() -> None:
    facts = facts_of("(TaskRunner pid=5) \r" + BAR.format(0, 0, 2) + "\r" + BAR.format(50, 1, 2) + "  \r")
    assert facts.progress is not None
    assert facts.progress.done == 1


def test_completion_is_that_of_the_last_run_in_the_log() -> None:
    first = ("ray init kwargs: {}", "step:1 - a:1 - b:2 - c:3", BAR.format(100, 1, 1))
    done = facts_of(
        *first, "ray init kwargs: {}", BAR.format(50, 1, 2), "step:2 - a:1 - b:2 - c:3", BAR.format(100, 2, 2)
    )
    assert done.completed_at is not None
    assert [step.step for step in done.steps] == [1, 2]
    cut = facts_of(*first, "ray init kwargs: {}", BAR.format(50, 1, 2))
    assert cut.completed_at is None
    assert cut.stood is Stage.TRAIN_STEP


def test_a_weight_sync_inside_a_step_is_part_of_the_step() -> None:
    before = facts_of("LoRA adapter sync: remove old lora and prepare new lora")
    assert before.stood is Stage.EXPORT_WEIGHT_SYNC
    inside = facts_of(BAR.format(0, 0, 2), "LoRA adapter sync: remove old lora and prepare new lora")
    assert inside.stood is Stage.TRAIN_STEP


def test_checkpoint_events() -> None:
    facts = facts_of(
        "Checkpoint tracker file does not exist: /c/latest.txt",
        "Training from scratch",
        "INFO:x:Saving checkpoint to /c/global_step_1",
        W + "[Rank 0] Checkpoint save completed for /c/global_step_1/actor",
        "Resuming from /c/global_step_1, setting global step to 1",
        W + "[Rank 0] Loaded PEFT adapter checkpoint from /c/global_step_1/actor/model",
        W + "[Rank 0] Loaded PEFT adapter checkpoint from /c/global_step_1/actor/model",
    )
    found = [(event.action, event.step) for event in facts.checkpoints]
    assert found == [("scratch", None), ("scratch", None), ("saving", 1), ("saved", 1), ("resumed", 1), ("loaded", 1)]
    assert facts.stood is Stage.CHECKPOINT_LOAD


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: Can't find the following HF parameters in hf_keys: ['model.x']",
        "WARNING: Can't find model.x.weight in hf_keys",
        "WARNING: No mapping found for megatron_param: decoder.x",
        "Error: 3 tensors from the original checkpoint were not written:",
        "Rank 0: Error: 3 tensors not written: a, b, c",
        "Warning: tensor 'x' from generator not found in original model structure. Skipping.",
    ],
)
def test_warnings_that_lose_weights(text: str) -> None:
    facts = facts_of(W + text, W + text)
    assert [lost.line for lost in facts.lost_weights] == [1]


def test_a_warning_that_loses_nothing() -> None:
    shape = "WARNING: Shape mismatch for megatron param output_layer.weight allowed by whitelist. Skipping."
    assert not facts_of(W + shape).lost_weights


def test_metrics_that_are_not_finite_are_kept() -> None:
    (step,) = facts_of("step:1 - actor/loss:nan - actor/grad_norm:inf").steps
    assert math.isnan(step.values["actor/loss"])
    assert step.values["actor/grad_norm"] == math.inf


@pytest.mark.slow
def test_steps_beyond_the_bound_move_only_the_last() -> None:
    facts = scan(f"step:{n} - actor/loss:0.5\n".encode() for n in range(MAX_STEPS + 10))
    assert len(facts.steps) == MAX_STEPS
    assert facts.last_step is not None
    assert facts.last_step.step == MAX_STEPS + 9


def test_noise_is_counted() -> None:
    text = W + "/multiprocessing/resource_tracker.py:104: UserWarning: resource_tracker: process died unexpectedly"
    (note,) = facts_of(text, "x", text).noise
    assert (note.name, note.count, note.at.line) == ("resource-tracker", 2, 1)


def test_bytes_that_are_no_text() -> None:
    facts = scan([bytes(range(256)) * 40 + b"\n\xff\xfeTraining Progress:\n"])
    assert facts.completed_at is None
    assert not facts.errors


@pytest.mark.slow
def test_a_line_of_many_megabytes_costs_only_its_ends() -> None:
    endless = (b"\r" + BAR.format(7, 7, 99).encode() for _ in range(60_000))
    facts = scan([*endless, b"\r" + BAR.format(100, 99, 99).encode(), b"\nnext\n"])
    assert facts.progress is not None
    assert facts.progress.done == 99
    assert facts.line_count == 2


def test_long_lines_read_the_same_however_they_are_cut() -> None:
    log = b"step:1 - actor/loss:0.5 - " + b"x" * 300_000 + b" - actor/grad_norm:1.5\nend\n"
    assert fed(log, 1000) == fed(log, 70_000) == scan([log])


@pytest.mark.slow
def test_repeating_a_log_changes_nothing_but_numbers() -> None:
    for name in NAMES:
        once, thrice = scan([recorded(name)]), scan([recorded(name)] * 3)
        assert [mark.stage for mark in thrice.stages] == [mark.stage for mark in once.stages]
        assert [error.kind for error in thrice.errors] == [error.kind for error in once.errors]
        assert len(thrice.steps) == len(once.steps)
        assert thrice.stood == once.stood


def test_the_portable_matcher_names_every_line_and_literal_once() -> None:
    found = FindPrefilter((b"ab", b"b")).hits(b"xab ab\nb\nnothing\nab")
    assert found == [(1, 0), (2, 1), (7, 1), (17, 0), (18, 1)]


def test_literals_are_fit_for_a_pattern_file() -> None:
    for literal in LITERALS:
        assert literal.text
        assert "\n" not in literal.text
    assert len(literal_bytes()) == len(LITERALS)
    assert r"Traceback \(most recent call last\)" in grep_patterns().splitlines()


def test_facts_are_values() -> None:
    facts = scan([recorded("level0-pass")])
    assert replace(facts, line_count=1) != facts


def test_a_process_becomes_a_training_worker_when_it_builds() -> None:
    facts = facts_of(W + "optimizer config after override: {}", W + "PEFT Adapter Information:")
    assert [(worker.pid, worker.line, worker.built_model) for worker in facts.workers] == [(7, 1, True)]


def test_metrics_of_ever_other_names_do_not_pile_up() -> None:
    facts = facts_of(*(f"step:{n} - key{n}:1.0" for n in range(200)))
    assert [dict(step.values) for step in facts.steps[-2:]] == [{"key198": 1.0}, {"key199": 1.0}]


def test_lists_of_facts_are_bounded() -> None:
    facts = facts_of(
        *(f"  Adapter parameters:   {n}" for n in range(1, 400)),
        *(f"(W pid={n})   Total parameters:   {n}" for n in range(1, 400)),
        *(f"WARNING: Can't find the following HF parameters in hf_keys: [{n}]" for n in range(400)),
        *(f"Saving checkpoint to /c/global_step_{n}" for n in range(400)),
    )
    assert len(facts.adapters) == len(facts.lost_weights) == len(facts.checkpoints) == 256


@pytest.mark.slow
@pytest.mark.parametrize("literal", [item for item in LITERALS if item.shape], ids=lambda item: item.text)
def test_no_long_line_takes_more_than_linear_time(literal: Literal) -> None:
    # Each shape is tried on lines that nearly match it many times over.
    fillers = ("1", "a", " ", ": line 1: ", "1 tensors ", f"{literal.text} ", f"{literal.text}1", "x ")
    for filler in fillers:
        line = (filler * (62_000 // len(filler)) + literal.text).encode()
        began = time.process_time()
        scan([line + b"\n"])
        assert time.process_time() - began < 4

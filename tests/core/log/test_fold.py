"""The fold: what a milestone does to a run, and how the facts of a log are joined from those of its runs."""

from dataclasses import fields

import pytest

from tests.core.logs import lines
from verl_e2e.core.log.fold import KINDS, MAX_CONFIG_RUNS, MAX_EARLIER, MAX_RUNS, MAX_STEPS_KEPT, Move, move
from verl_e2e.core.log.scan import LogScanner, scan
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.outcome import Stage

STEP = "step:{} - a:1 - b:2 - c:3"
E, R, T, S = Stage.ENVIRONMENT, Stage.RAY, Stage.TRAIN_STEP, Stage.SHUTDOWN
X, L, P, V = Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_LOAD, Stage.BRIDGE_PROVIDER, Stage.ROLLOUT_ENGINE


@pytest.mark.parametrize(
    ("stood", "to", "driver", "expected"),
    [
        (None, R, True, Move.ON),
        (P, R, False, Move.ON),  # critic and actor are built one after the other
        (V, P, False, Move.ON),
        (V, X, False, Move.ON),
        (X, V, False, Move.STAY),  # a second engine reports late
        (X, R, True, Move.NEW_RUN),
        (T, P, False, Move.STAY),
        (T, P, True, Move.STAY),
        (T, R, False, Move.STAY),  # a worker that starts late connects to Ray
        (T, R, True, Move.NEW_RUN),
        (T, X, False, Move.STAY),
        (T, Stage.CHECKPOINT_SAVE, False, Move.ON),
        (Stage.CHECKPOINT_SAVE, T, False, Move.ON),
        (Stage.CHECKPOINT_SAVE, L, False, Move.ON),
        (T, S, False, Move.ON),
        (S, T, False, Move.STAY),
        (S, X, False, Move.STAY),
        (S, E, False, Move.NEW_RUN),
    ],
)
def test_what_a_milestone_does(stood: Stage | None, to: Stage, driver: bool, expected: Move) -> None:
    assert move(stood, to, driver=driver) is expected


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_may_be_the_first(stage: Stage) -> None:
    assert move(None, stage, driver=False) is Move.ON


def test_a_worker_that_starts_late_moves_nothing_back() -> None:
    facts = scan(lines("Training Progress:   0%|  | 0/2 [00:00]", "(W pid=3) Connecting to existing Ray cluster"))
    assert (facts.stood, facts.runs) == (Stage.TRAIN_STEP, 1)


def test_the_timeline_is_that_of_the_latest_run() -> None:
    first = ("ray init kwargs: {}", "Started a local Ray instance", STEP.format(1))
    facts = scan(lines(*first, "ray init kwargs: {}", "(T pid=5) Using dataset class: RLHFDataset"))
    assert [(mark.stage, mark.at.line) for mark in facts.timeline] == [(E, 4), (Stage.DATA, 5)]
    assert (facts.runs, facts.stood, facts.progress) == (2, Stage.DATA, None)
    assert [mark.at.line for mark in facts.stages] == [1, 2, 3, 5]


def test_a_log_without_milestones_holds_no_run() -> None:
    facts = scan(lines("hello"))
    assert (facts.runs, facts.timeline) == (0, ())
    assert facts.first is not None
    assert facts.first.text == "hello"


# What the whole log has from its last run, from the scanner, or from the runs as such.
OF_THE_LAST = {
    "progress",
    "completed_at",
    "last",
    "stood",
    "final_metrics",
    "last_step",
    "timeline",
    "planned_steps",
    "asked",
    "epochs",
}
OF_THE_LOG = {"line_count", "runs", "first", "parts", "earlier", "truncated", "cut_line", "steps", "stopped"}
OF_THE_FIRST = {"misread", "lora_at"}
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"
RUN = (
    "ray init kwargs: {}",
    "(T pid=5) {'actor_rollout_ref': {}}",
    "(W pid=3) Enabling LORA with rank=4, alpha=4",
    "(W pid=3) WARNING: Can't find the following HF parameters in hf_keys: ['a']",
    "(W pid=3) Traceback (most recent call last):",
    '(W pid=3)   File "a.py", line 1, in f',
    "(W pid=3) ValueError: no",
    "(W pid=3) resource_tracker: process died",
    "Saving checkpoint to /c/global_step_1",
    BAR.format(50, 1, 2),
)


def test_every_field_says_how_it_is_joined() -> None:
    known = [set(KINDS), OF_THE_FIRST, OF_THE_LAST, OF_THE_LOG]
    assert {field.name for field in fields(LogFacts)} == set().union(*known)
    assert sum(map(len, known)) == len(set().union(*known))


def test_what_every_run_prints_alike_is_known_once_for_the_log_and_for_each_run() -> None:
    facts = scan(lines(*RUN * 3))
    for each in (facts, *(part.facts for part in facts.parts)):
        assert [len(each.lost_weights), len(each.checkpoints), len(each.errors), len(each.workers)] == [1, 1, 1, 2]
        assert each.lora_at is not None
    assert (facts.errors[0].count, facts.noise[0].count, len(facts.configs)) == (3, 3, 3)
    assert [part.facts.errors[0].at.line for part in facts.parts] == [7, 17, 27]
    assert [bar.at.line for bar in facts.earlier] == [10, 20]
    assert (facts.runs, facts.line_count) == (3, 30)


@pytest.mark.slow
def test_a_log_of_endlessly_many_runs_is_bounded() -> None:
    facts = scan(lines(*RUN * (MAX_EARLIER + 40)))
    assert (len(facts.parts), len(facts.earlier), len(facts.configs)) == (MAX_RUNS, MAX_EARLIER, 4)
    assert [len(part.facts.configs) for part in facts.parts] == [0] * MAX_RUNS
    assert MAX_CONFIG_RUNS < MAX_EARLIER


def test_of_an_earlier_run_the_first_steps_are_kept() -> None:
    steps = [f"step:{number} - a:{number}" for number in range(MAX_STEPS_KEPT + 5)]
    facts = scan(lines("ray init kwargs: {}", *steps, "ray init kwargs: {}", "step:1 - a:0.5"))
    assert [len(part.facts.steps) for part in facts.parts] == [MAX_STEPS_KEPT, 1]
    assert len(facts.steps) == MAX_STEPS_KEPT + 6


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (
            'Traceback (most recent call last):\n  File "main_ppo.py", line 3, in main\nValueError: the end',
            "ValueError",
        ),
        ("ERROR 05-07 21:12:03 [core.py:5] Engine core proc EngineCore_DP0 died unexpectedly", "EngineDeadError"),
    ],
)
def test_what_ends_the_run_is_kept_after_any_number_of_errors(last: str, kind: str) -> None:
    before = [f"(W pid=3) x.sh: line 1: {chr(97 + n % 26) * (n // 26 + 1)}: command not found" for n in range(260)]
    scanner = LogScanner()
    scanner.feed(lines(*before, last, "over")[0])
    assert scanner.fatal is not None
    assert scanner.fatal.kind == kind
    assert len(scanner.facts().errors) == KINDS["errors"]

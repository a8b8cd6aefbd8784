"""The phase machine: what a milestone does to a run, by where the run stands and who printed it."""

import pytest

from tests.core.logs import lines
from verl_e2e.core.log.fold import Move, move
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.outcome import Stage

E, R, T, S = Stage.ENVIRONMENT, Stage.RAY, Stage.TRAIN_STEP, Stage.SHUTDOWN
X, L, P, V = Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_LOAD, Stage.BRIDGE_PROVIDER, Stage.ROLLOUT_ENGINE
STEP = "step:{} - a:1 - b:2 - c:3"


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

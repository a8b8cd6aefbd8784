"""What a verdict does not prove is said, each thing once."""

from typing import Any

import pytest

from tests.core.builders import (
    config_with,
    ended,
    make_case,
    make_environment,
    make_facts,
    make_job,
    make_record,
    step_line,
)
from verl_e2e.core.judge.criteria.invariants import NOT_RECORDED
from verl_e2e.core.judge.verdict import judge_criteria, limitations_of_case
from verl_e2e.core.model.facts import Excerpt, LogFacts, Noise
from verl_e2e.core.model.jobs import Checkpoint, DeselectedTest, Patch, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Check, EndReason, Event, Finding, RepositoryState

NOTE = Finding(check=Check.IMAGE, ok=False, blocking=False, summary="The image tag is unknown.")
QUIET = Finding(check=Check.IMAGE, ok=True, blocking=False, summary="The image is the one asked for.")
STOPS = Finding(check=Check.DISK, ok=False, summary="The disk is full.")
SIZE = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
EAGER = "actor_rollout_ref.rollout.enforce_eager"
PATCH = Patch(
    name="fsdp-class",
    repository="verl",
    file="verl/utils/megatron_utils.py",
    substitutions=(),
    before="0" * 64,
    after="1" * 64,
    reason="the class has moved",
)
LEFT_OUT = DeselectedTest(test="tests/a.py::test_b", reason="modelopt raises TypeError here")
MANY = RepositoryState(name="bridge", root="$BRIDGE", commit="a" * 40, dirty=tuple(f"f{n}" for n in range(30)))


def said(record: Any = None, facts: LogFacts | None = None) -> tuple[str, ...]:
    case = make_case(record or make_record(), facts or make_facts())
    return tuple(limitation.text for limitation in limitations_of_case(case, judge_criteria(case)))


def test_the_healthy_run_says_what_it_leaves_open() -> None:
    assert said() == (
        f"{NOT_RECORDED[:1].upper()}{NOT_RECORDED[1:]}.",
        "Random weights: construction and training mechanics only, no compatibility of pretrained weights.",
        "Reward model disabled: reward-model serving is not exercised.",
        "enforce_eager is on: vLLM's CUDA graph capture is not exercised.",
        "All parallel sizes are 1: nothing is shown about tensor, pipeline, context or expert parallelism.",
        "One training step: no learning signal and no convergence is claimed.",
        "Save and resume are not exercised.",
        "Gradient accumulation fusion is off.",
    )


def test_a_reward_that_never_moves_is_owned_up_to() -> None:
    steps = tuple(step_line(step, 1330 + step, **{"critic/score/mean": 0.0}) for step in (1, 2, 3))
    found = said(make_record(job=make_job(steps=3)), make_facts(steps=steps))
    assert any(row.startswith("The reward never moves: critic/score/mean is exactly ") for row in found)


def test_missing_bridge_checks_come_first_then_other_waivers() -> None:
    rows = said(make_record(tests=None), make_facts(steps=(step_line(pearson_corr=None),)))
    assert rows[:2] == (
        "Bridge checks not run: no junit.xml in the folder.",
        "Trainer and rollout agreement is not reported.",
    )


@pytest.mark.parametrize(
    ("record", "facts", "row"),
    [
        (
            make_record(),
            make_facts(steps=(step_line(pearson_corr=0.998),)),
            "Trainer and rollout agree at 0.99800 only",
        ),
        (
            make_record(environment=make_environment(findings=(NOTE, QUIET, STOPS))),
            make_facts(),
            "The image tag is unknown.",
        ),
        (
            make_record(environment=make_environment(hand_installed=("mbridge", "apex"))),
            make_facts(),
            "Installed by hand: mbridge, apex.",
        ),
        (
            make_record(job=make_job(patches=(PATCH,))),
            make_facts(),
            "Declared patch fsdp-class in verl (verl/utils/megatron_utils.py): the class has moved.",
        ),
        (
            make_record(job=make_job(site=SiteProfile(name="hopper", deselected_tests=(LEFT_OUT,)))),
            make_facts(),
            "Focused Bridge test tests/a.py::test_b is left out on site hopper: modelopt raises TypeError here.",
        ),
        (
            make_record(job=make_job(checkpoint=Checkpoint(model_id="m", dummy_config="/c.json"))),
            make_facts(),
            "Random weights: construction and training mechanics only, no compatibility of pretrained weights.",
        ),
        (make_record(job=make_job(steps=3)), make_facts(), "3 training steps: no learning signal"),
        (
            make_record(missing=("config.json: not there",)),
            make_facts(),
            "Missing from the folder: config.json: not there.",
        ),
        (
            make_record(events=(*ended(), Event(t_s=9, kind="left_running", data={"processes": [{"pid": 1}]}))),
            make_facts(),
            "1 process(es) of the run could not be ended and may hold its GPUs.",
        ),
        (
            make_record(events=(*ended(), Event(t_s=9, kind="left_running", data={"processes": "odd"}))),
            make_facts(),
            "1 process(es) of the run could not be ended and may hold its GPUs.",
        ),
        (
            make_record(environment=make_environment(repositories=(MANY,))),
            make_facts(),
            "f18, f19 and 10 more.",
        ),
        (
            make_record(environment=make_environment(repositories=(MANY.model_copy(update={"dirty": ("x",)}),))),
            make_facts(),
            "bridge was tested with uncommitted changes: x.",
        ),
        (
            make_record(),
            make_facts(noise=(Noise("signal-stack", Excerpt(1337, "Stack"), 2),)),
            "Residual log noise: signal-stack (line 1337, 2 times).",
        ),
        (
            make_record(),
            make_facts(noise=(Noise("signal-stack", Excerpt(1337, "Stack"), 1),)),
            "Residual log noise: signal-stack (line 1337).",
        ),
    ],
)
def test_a_limitation_is_said(record: Any, facts: LogFacts, row: str) -> None:
    assert any(row in text for text in said(record, facts))


@pytest.mark.parametrize(
    ("record", "facts", "word"),
    [
        (make_record(job=make_job(reward_model=Checkpoint(model_id="r"))), make_facts(), "Reward model"),
        (make_record(), make_facts(configs=(config_with({SIZE: 2}),)), "All parallel sizes"),
        (make_record(), make_facts(configs=(config_with({EAGER: False}),)), "enforce_eager"),
        (make_record(), make_facts(configs=()), "training step"),
        (make_record(job=make_job(Level.LEARNING_SIGNAL, "signal")), make_facts(), "training step"),
        (make_record(job=make_job(Level.SAVE_RESUME, "resume")), make_facts(), "Save and resume"),
        (make_record(job=make_job(checkpoint=Checkpoint(model_id="m"))), make_facts(), "Random weights"),
        (
            make_record(missing=("config.json: not there",), events=ended(EndReason.NOT_STARTED, None)),
            make_facts(),
            "Missing from",
        ),
        (make_record(environment=None), make_facts(), "Installed by hand"),
        (make_record(), make_facts(steps=()), "rollout agreement"),
    ],
)
def test_a_limitation_that_does_not_apply_is_not_said(record: Any, facts: LogFacts, word: str) -> None:
    assert not any(word in text for text in said(record, facts))


def test_what_two_sources_say_is_said_once() -> None:
    site = SiteProfile(name="hopper", limitations=("The same.", "The same."))
    assert said(make_record(job=make_job(site=site))).count("The same.") == 1

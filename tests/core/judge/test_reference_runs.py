"""A judged run as a related run: what is kept of it, and when a kept one may be used again."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_environment, make_facts, make_job, make_record
from tests.core.judged import judged
from verl_e2e.core.judge.related_runs import may_be_kept, may_stand_again, related_run_of
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Event, Gpu
from verl_e2e.core.model.related import Role

PASSED, FAILED = judged("level0-image-tree-first"), judged("level0-lora-exception")
JOB = make_job()
HOST, RECORD = make_environment(), make_record()
STARTED = (Event(t_s=0.0, kind="started", data={"digest": JOB.digest()}),)


def test_what_is_kept_of_a_run_are_its_verdict_its_line_and_its_training_steps() -> None:
    facts = make_facts(steps=(StepMetrics(0, 1, {"a": 1.0}), StepMetrics(1, 2, {"a": 2.0})))
    kept = related_run_of(Role.MERGE_BASE, JOB, FAILED, RECORD, facts, folder="base", cached=True)
    assert (kept.result, kept.cached, [step.step for step in kept.steps]) == (Result.FAIL, True, [1])
    assert kept.excerpt
    passed = related_run_of(Role.RETRY, JOB, PASSED, RECORD, None, folder="again")
    assert (passed.result, passed.excerpt, passed.steps) == (Result.PASS, "", ())
    silent = related_run_of(Role.RETRY, JOB, replace(FAILED, key_lines=()), RECORD, None, folder="again")
    assert silent.excerpt == ""


def test_only_a_conclusive_run_of_nothing_but_commits_is_kept() -> None:
    assert may_be_kept(make_record(), PASSED)
    assert may_be_kept(make_record(), FAILED)
    assert not may_be_kept(make_record(), replace(PASSED, result=Result.BLOCKED))
    assert not may_be_kept(make_record(environment=None), PASSED)
    dirty = tuple(tree.model_copy(update={"dirty": True}) for tree in HOST.repositories)
    assert not may_be_kept(make_record(environment=make_environment(repositories=dirty)), PASSED)


@pytest.mark.parametrize(
    ("events", "host", "again"),
    (
        (STARTED, HOST, True),
        ((), HOST, False),
        ((Event(t_s=0.0, kind="started", data={"digest": "other"}),), HOST, False),
        (STARTED, None, False),
        (STARTED, make_environment(packages={"torch": "2.10"}), False),
        (STARTED, make_environment(container=None), False),
        (STARTED, make_environment(gpus=(Gpu(index=0, name="B200", memory_total_mib=1, memory_used_mib=0),)), False),
    ),
)
def test_a_kept_run_is_taken_again_for_the_same_job_on_the_same_host(
    events: tuple[Event, ...], host: Any, again: bool
) -> None:
    assert may_stand_again(make_record(events=events), PASSED, JOB.digest(), host) is again

"""The facts of a whole log are joined from those of its runs: each field by its rule, and all of it bounded."""

from dataclasses import fields

import pytest

from tests.core.logs import lines
from verl_e2e.core.log.fold import KINDS, MAX_CONFIG_RUNS, MAX_EARLIER, MAX_RUNS, MAX_STEPS_KEPT
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LogFacts

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

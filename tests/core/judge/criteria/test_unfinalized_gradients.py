"""Gradients that were never averaged over four ranks, trained for real on a CPU, before the judge of parity."""

import json
from functools import cache

from tests.core.builders import bar, config_with, make_case, make_facts, make_record
from tests.core.level_runs import job_of
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.metrics import unsharded_parity
from verl_e2e.core.judge.verdict import judge_case
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.related import RelatedRun, RelatedStep, Role

SERIES = FIXTURES / "series" / "data-parallel-gradients.json"


@cache
def series(name: str) -> tuple[StepMetrics, ...]:
    rows = json.loads(SERIES.read_text())[name]
    return tuple(StepMetrics(row["step"], 1000 + row["step"], row["values"]) for row in rows)


def compared_with_one_rank(name: str) -> Case:
    """A run on four data-parallel ranks that printed this series, compared with the same training on one rank."""
    steps = series(name)
    job = job_of(Level.PARALLELISM, "dp2-parity", steps=len(steps))
    reference = RelatedRun(
        role=Role.UNSHARDED,
        job_id="0-unsharded",
        job_digest="d" * 64,
        bridge_commit="a" * 40,
        folder="related/0-unsharded",
        result=Result.PASS,
        steps=tuple(
            RelatedStep(step=step_metrics.step, values=dict(step_metrics.values)) for step_metrics in series("one_rank")
        ),
    )
    printed = (config_with(dict(requested_config(job))),)
    facts = make_facts(steps=steps, progress=bar(len(steps), len(steps)), configs=printed)
    return make_case(make_record(job=job, related=(reference,)), facts)


def judged(name: str) -> Evidence:
    return unsharded_parity(compared_with_one_rank(name))


def test_four_ranks_that_average_their_gradients_agree_with_one() -> None:
    item = judged("four_ranks")
    assert item.state is State.MET, item.summary


def test_four_ranks_that_never_average_them_do_not() -> None:
    item = judged("four_ranks_unfinalized")
    assert item.state is State.BROKEN, item.summary
    assert "actor/grad_norm 1.2437 against 0.54034 at step 1" in item.summary


def test_the_run_fails_at_its_training_step() -> None:
    verdict = judge_case(compared_with_one_rank("four_ranks_unfinalized"))
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.TRAIN_STEP)

"""What follows runs of levels 1 and 5: the runs that they are held against, and what these runs get in turn."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.core.builders import (
    bar,
    bridge_error,
    config_with,
    cut_facts,
    ended,
    make_facts,
    make_record,
    step_line,
)
from tests.core.level_runs import Run, job_of, resume_run
from tests.fakes.recorded import NothingKept
from tests.fakes.run_folders import FakeFolders
from verl_e2e.app.check import FollowUpServices, follow_up
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import Allowed, MergeBase
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.related import Role

HEAD, BASE = "a" * 40, "d" * 40
ALLOWED = Allowed(roles=frozenset(Role), merge_base=MergeBase(BASE))
OUT = Path("/out/jobs/job")
Make = Callable[[Job, Path], Run]


def _at(job: Job, run: Run) -> Run:
    """The run as one of this job and of the commits that it names."""
    environment = run.record.environment
    assert environment is not None
    trees = tuple(
        tree.model_copy(update={"commit": job.bridge.commit}) if tree.name == "bridge" else tree
        for tree in environment.repositories
    )
    moved = environment.model_copy(update={"repositories": trees})
    return replace(run, record=run.record.model_copy(update={"job": job, "environment": moved}))


def _trained(job: Job, steps: tuple[StepMetrics, ...]) -> Run:
    """A healthy run of one phase with these steps."""
    facts = make_facts(
        steps=steps, progress=bar(job.steps, job.steps), configs=(config_with(dict(requested_config(job))),)
    )
    return _at(job, Run(make_record(), facts))


def _failed(job: Job) -> Run:
    """A run that ends in Bridge's LoRA code."""
    facts = cut_facts(Stage.PEFT, errors=(bridge_error(),), configs=(config_with(dict(requested_config(job))),))
    return _at(job, Run(make_record(events=ended(exit_code=1)), facts))


@dataclass
class Host:
    """A dispatcher that makes of each job what the test says, the folders that it fills, and what is kept."""

    make: Make
    folders: FakeFolders = field(default_factory=FakeFolders)
    baselines: NothingKept = field(default_factory=NothingKept)
    jobs: list[Job] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def run(self, job: Job, out: Path) -> int:
        run = self.make(job, out)
        self.jobs.append(job)
        self.places.append(out.relative_to(OUT).as_posix())
        self.folders.records[out] = run.record
        self.folders.logs[out] = run.facts
        return 0

    def follow(self, job: Job, allowed: Allowed = ALLOWED) -> Verdict:
        """Run the job and all that follows it."""
        self.run(job, OUT)
        return follow_up(job, OUT, allowed, FollowUpServices(self, self.folders, self.baselines), lambda _: None)


def _state(verdict: Verdict, criterion: Criterion) -> State:
    return next(item.state for item in verdict.evidence if item.criterion == criterion)


RESUME = job_of(Level.SAVE_RESUME, "resume")
STEPS = resume_run().facts.steps


def _doubled(steps: tuple[StepMetrics, ...]) -> tuple[StepMetrics, ...]:
    """The last step with gradient norms that a forgotten optimizer state could give."""
    last = steps[-1]
    values = {name: value * (3 if name.endswith("grad_norm") else 1) for name, value in last.values.items()}
    return (*steps[:-1], replace(last, values=values))


def _level_1(job: Job, steps: tuple[StepMetrics, ...]) -> Run:
    """A save/resume run, or its reference run with these steps."""
    return _at(job, resume_run()) if job.level is Level.SAVE_RESUME else _trained(job, steps)


UNINTERRUPTED_RUN = "related/uninterrupted"
BASE_AND_UNINTERRUPTED = ["related/merge_base", f"related/merge_base/{UNINTERRUPTED_RUN}"]


def test_a_resume_is_held_against_its_uninterrupted_run() -> None:
    host = Host(lambda job, _: _level_1(job, STEPS))
    verdict = host.follow(RESUME)
    assert host.places == [".", UNINTERRUPTED_RUN]
    assert (verdict.result, _state(verdict, Criterion.RESUMED_STEP)) == (Result.PASS, State.MET)
    assert (host.jobs[1].id, host.jobs[1].wrapper["SAVE_FREQ"]) == ("0-uninterrupted", "-1")
    assert host.folders.record(OUT / UNINTERRUPTED_RUN).related == ()


def test_a_resumed_step_that_differs_on_the_head_alone_is_a_regression() -> None:
    def made(job: Job, _: Path) -> Run:
        return _level_1(job, STEPS if job.bridge.commit == BASE else _doubled(STEPS))

    host = Host(made)
    verdict = host.follow(RESUME)
    assert host.places == [".", UNINTERRUPTED_RUN, *BASE_AND_UNINTERRUPTED, "related/retry"]
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_LOAD)
    assert "the merge base dddddddddddd passed, this head failed twice" in verdict.sentence
    (inherited,) = host.folders.record(OUT / "related/retry").related
    assert (inherited.role, inherited.folder) == (Role.UNINTERRUPTED, "../uninterrupted")


def test_a_resumed_step_that_differs_on_the_base_too_is_pre_existing() -> None:
    host = Host(lambda job, _: _level_1(job, _doubled(STEPS)))
    verdict = host.follow(RESUME)
    assert host.places == [".", UNINTERRUPTED_RUN, *BASE_AND_UNINTERRUPTED]
    assert verdict.result is Result.BLOCKED
    assert "not caused by this change" in verdict.sentence


def test_a_resumed_step_that_differs_once_is_not_reproduced() -> None:
    retried = replace(resume_run(), facts=replace(resume_run().facts, steps=_doubled(STEPS)))

    def made(job: Job, out: Path) -> Run:
        if out.name == "retry":
            return _at(job, retried)
        return _level_1(job, STEPS if job.bridge.commit == BASE else _doubled(STEPS))

    verdict = Host(made).follow(RESUME)
    assert verdict.result is Result.BLOCKED
    assert "passed on a retry" in verdict.sentence


@pytest.mark.parametrize(
    ("without_saving", "text"),
    [
        (lambda job: _trained(job, STEPS), "without saving it passes, so construction is fine"),
        (_failed, "without saving it ends as Fail at peft"),
    ],
)
def test_a_save_that_fails_is_told_apart_from_construction(without_saving: Callable[[Job], Run], text: str) -> None:
    found = replace(bridge_error(), stage=Stage.CHECKPOINT_SAVE, kind="KeyError", message="lost in the save")
    calls = ("verl/trainer/main_ppo.py:run", "verl/utils/checkpoint/megatron_checkpoint_manager.py:save_checkpoint")
    found = replace(found, calls=calls)

    def made(job: Job, _: Path) -> Run:
        if job.level is not Level.SAVE_RESUME:
            return without_saving(job)
        if job.bridge.commit == BASE:
            return _level_1(job, STEPS)
        whole = _at(job, resume_run())
        facts = replace(whole.facts, errors=(replace(found, at=replace(found.at, line=1330)),), completed_at=None)
        return Run(whole.record.model_copy(update={"events": ended(exit_code=1)}), facts)

    host = Host(made)
    verdict = host.follow(RESUME)
    assert host.places == [".", "related/merge_base", "related/retry", "related/without_save"]
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_SAVE)
    assert ", caused by this change" in verdict.sentence
    assert text in verdict.sentence
    assert host.jobs[-1].id == "0-without-save"


SIGNAL = job_of(Level.LEARNING_SIGNAL, "signal")


def _signal(job: Job, _: Path) -> Run:
    return _trained(job, tuple(step_line(step, 1300 + step) for step in range(1, job.steps + 1)))


def test_a_learning_signal_gets_as_many_baselines_as_asked_for_though_it_does_not_fail() -> None:
    host = Host(_signal)
    host.follow(SIGNAL, replace(ALLOWED, baselines=3))
    assert host.places == [".", "related/merge_base", "related/merge_base-2", "related/merge_base-3"]
    baselines = host.folders.record(OUT).related
    assert {run.role for run in baselines} == {Role.MERGE_BASE}
    assert {len(run.steps) for run in baselines} == {SIGNAL.steps}
    assert {job.bridge.commit for job in host.jobs[1:]} == {BASE}
    assert len({job.digest() for job in host.jobs[1:]}) == 1


def test_each_baseline_of_a_noise_band_is_kept_by_itself() -> None:
    def made(job: Job, _: Path) -> Run:
        return _failed(job) if job.bridge.commit == BASE else _signal(job, OUT)

    host = Host(made)
    host.follow(SIGNAL, replace(ALLOWED, baselines=3))
    digest = host.jobs[1].digest()
    assert host.baselines.kept == {
        digest: OUT / "related/merge_base",
        f"{digest}-2": OUT / "related/merge_base-2",
        f"{digest}-3": OUT / "related/merge_base-3",
    }


def test_a_learning_signal_run_that_breaks_is_blamed_like_any_other() -> None:
    host = Host(lambda job, out: _failed(job) if job.bridge.commit == HEAD else _signal(job, out))
    host.follow(SIGNAL, replace(ALLOWED, baselines=3))
    assert host.places[:2] == [".", "related/merge_base"]
    assert "related/merge_base-2" not in host.places

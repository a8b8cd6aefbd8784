"""A pull request with recorded runs of real GPUs, decided on and taken to its card and its gate.

The chain is the one by which verl's and Bridge's sources at the recorded commits connect.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tests.core.judged import RUNS, judged
from tests.core.pulls.entries import target_state
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.execution import ChangeExecution
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.pulls.commands import Trusted
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.forge import Pull, PullRef, PullState
from verl_e2e.core.pulls.gate import Gate, JobStanding
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState, run_key
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.reach.effects import Effect, Effects, Inside
from verl_e2e.core.report.checks import CheckText, gate_text, job_check_text
from verl_e2e.core.report.pull_card import render_pull_card

REF = PullRef("octo/bridge", 7)
BASE = "1c0a8b5e9d3f4a6b7c8d9e0f1a2b3c4d5e6f7a8b"
HEAD = "067f987df03b8355b03192d88d70f1709fedf51a"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
CHANGED = "src/megatron/bridge/training/checkpointing.py"
_CHAIN = (
    "verl/utils/checkpoint/megatron_checkpoint_manager.py:709 imports apply_peft_adapter_filter_to_state_dict",
    "megatron.bridge.training.checkpointing.apply_peft_adapter_filter_to_state_dict calls",
    "megatron.bridge.training.checkpointing._is_model_section",
)
_WORDS = (frozenset({"key", "startswith"}),)
PASSED = ("level0-image-tree-first", "level1-resume")
FAILED = ("level0-lora-exception",)
NOTHING = ChangeExecution()


@cache
def shown_plan(path: str = CHANGED, symbol: str = "_is_model_section") -> Plan:
    """The levels of one function, by default of the checkpoint code (0 and 1), and of a page of documentation."""
    modified = (ChangedPath(path, PathStatus.MODIFIED), ChangedPath("docs/training.md", PathStatus.MODIFIED))
    chain = _CHAIN if path == CHANGED else (f"verl calls {symbol}",)
    effects = Effects({path: Inside((Effect(path, symbol, "changed", _WORDS, chain, sure=True),))})
    return plan(Change(BASE, HEAD, BASE, modified), packaged_policy(), effects=effects)


@cache
def shown_target_state(*recorded: str) -> TargetState:
    """The target state once the recorded runs, by their folders' names, have ended; the others have not begun."""
    jobs = {name: Job.model_validate_json((RUNS / name / "job.json").read_bytes()) for name in recorded}
    wanted = [_wanted(job) for job in jobs.values()]
    begun = {wanted_job.id for wanted_job in wanted}
    later = next(iter(jobs.values()))
    for outline in shown_plan().jobs:
        if outline.id not in begun:
            job = later.model_copy(update={"id": outline.id, "level": outline.variant.level})
            wanted.append(WantedJob(outline.id, outline.variant.level, outline.requires, job, gpu_minutes=8))
    runs = tuple(_run(judged(name), _minutes(RUNS / name), job) for name, job in zip(jobs, wanted, strict=False))
    return _state(shown_plan(), tuple(wanted), runs)


def ended_state(job: Job, verdict: Verdict, minutes: float) -> TargetState:
    """The target state of a change of the functions that this verdict names, once this job of it has ended."""
    wanted = _wanted(job)
    known = shown_plan(*next((item.path, item.symbol) for item in (verdict.execution or NOTHING).functions))
    return _state(known, (wanted,), (_run(verdict, minutes, wanted),))


def _state(known: Plan, wanted: tuple[WantedJob, ...], runs: tuple[Run, ...]) -> TargetState:
    pull = Pull(REF, "main", BASE, HEAD, REF.repository, "ann", "MEMBER", draft=False, state=PullState.OPEN)
    return TargetState(pull, NOW, packaged_policy(), Trusted("ann may run levels"), known, wanted=wanted, runs=runs)


def _wanted(job: Job) -> WantedJob:
    requires = () if int(job.level) == 0 else ("0-lora-ddp",)
    return WantedJob(job.id, job.level, requires, job, gpu_minutes=8 if requires else 5)


def _run(verdict: Verdict, minutes: float, wanted: WantedJob) -> Run:
    return Run(
        key=run_key(REF.repository, HEAD, wanted.digest, 1),
        repository=REF.repository,
        number=REF.number,
        head_sha=HEAD,
        job_id=wanted.id,
        job_digest=wanted.digest,
        state=RunState.FINISHED,
        result=verdict.result,
        sentence=verdict.sentence,
        verdict=verdict_json(verdict),
        never_entered=verdict.never_entered,
        url=f"https://github.com/{REF.repository}/actions/runs/1934{int(wanted.level)}",
        gpu_minutes=minutes,
        created=NOW,
        updated=NOW,
    )


def _minutes(folder: Path) -> float:
    """The length of the recorded run, on one GPU."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    return round(max(float(json.loads(line)["t_s"]) for line in lines) / 60, 1)


def shown_card(*recorded: str) -> str:
    """The card's Markdown."""
    known = shown_target_state(*recorded)
    return render_pull_card(known, decide_actions(known))


def card_that_says(status: JobStatus, title: str, *found: JobStanding, **given: Any) -> str:
    """The card of a head whose gate says this of these jobs."""
    known = target_state(**{"plan": None, "wanted": (), **given})
    return render_pull_card(known, replace(decide_actions(known), standings=found, gate=Gate(status, title)))


def shown_checks(*recorded: str) -> tuple[CheckText, ...]:
    """The texts of the gate and of each job."""
    steps: Actions = decide_actions(shown_target_state(*recorded))
    return (gate_text(steps.standings, steps.gate), *(job_check_text(standing) for standing in steps.standings))

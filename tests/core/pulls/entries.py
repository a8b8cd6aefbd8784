"""A pull request of two jobs, all that may be known of it, and short ways to write its runs and its entries down."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.core.builders import make_job
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.pulls.commands import Trusted
from verl_e2e.core.pulls.forge import MergeGroup, Pull, PullRef, PullState
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Override, RecordedCommand, Run, RunState, run_key
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob

HEAD, OTHER = "a" * 40, "d" * 40
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SMOKE = make_job()
RESUME = make_job(Level.SAVE_RESUME, "resume")
CHANGED = make_job(steps=2)
WANTED = (
    WantedJob("0-lora-ddp", Level.SMOKE, job=SMOKE),
    WantedJob("1-resume", Level.SAVE_RESUME, ("0-lora-ddp",), RESUME),
)

BASE = "b" * 40
PULL = Pull(
    PullRef("octo/bridge", 7), "main", BASE, HEAD, "octo/bridge", "ann", "MEMBER", draft=False, state=PullState.OPEN
)
GROUP = MergeGroup("octo/bridge", "main", BASE, HEAD, since=NOW - timedelta(minutes=1))
LATE = replace(GROUP, since=NOW - timedelta(days=2))
DRAFTED, SHUT = replace(PULL, draft=True), replace(PULL, state=PullState.CLOSED)
POLICY = packaged_policy()
PLAN = Plan(BASE, HEAD, (Level.SMOKE, Level.SAVE_RESUME), (), (), (), (), ())


def run(job: Job, /, state: RunState = RunState.FINISHED, result: Result | None = Result.PASS, **given: object) -> Run:
    digest, attempt = portable(job).digest(), given.get("attempt", 1)
    head = str(given.get("head_sha", HEAD))
    fields: dict[str, object] = {
        "key": run_key("octo/bridge", head, digest, int(str(attempt))),
        "repository": "octo/bridge",
        "number": 7,
        "head_sha": head,
        "job_id": job.id,
        "job_digest": digest,
        "state": state,
        "result": result if state is RunState.FINISHED else None,
        "created": NOW,
        "updated": NOW,
    }
    return Run.model_validate(fields | given)


def override(level: Level, head: str = HEAD) -> Override:
    return Override(
        base="main",
        repository="octo/bridge",
        number=7,
        head_sha=head,
        level=level,
        reason="the cluster is down",
        actor="mona",
        source=f"s:{int(level)}:{head[0]}",
        at=NOW,
    )


def asked(verb: str, *arguments: str, minute: int = 0, head: str = HEAD, **given: object) -> RecordedCommand:
    fields: dict[str, object] = {
        "source": f"comment:{100 + minute}:1",
        "repository": "octo/bridge",
        "number": 7,
        "actor": "ann",
        "verb": verb,
        "arguments": arguments,
        "head_sha": head,
        "at": NOW + timedelta(minutes=minute),
    }
    return RecordedCommand.model_validate(fields | given)


def target_state(*runs: Run, **given: Any) -> TargetState:
    known = TargetState(PULL, NOW, POLICY, Trusted("ann may"), PLAN, wanted=WANTED, runs=runs, merge_base=BASE)
    return replace(known, **given)

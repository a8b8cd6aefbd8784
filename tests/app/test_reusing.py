"""Verdicts on the same code: what a push, another pull request or a person gets, story by story."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_reconciling import SMOKE, approve, ask, finish, gate, live, look, to_the_end
from tests.core.executions import DROPOUT, GATHER, TRANSFORM, change, ran
from tests.fakes.app import BASE, POLICY, REPOSITORY, App, FakeLedger, blocks, fails, passes
from tests.fakes.trees import sha
from verl_e2e.app.required_jobs import Prepared, VerdictReuse
from verl_e2e.config import load_policy
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.execution import ChangedCode
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import RELATED_FILE, Related, RelatedRun, Role
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.pulls.forge import PullRef
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.wiring.app import program_digest

LORA = "src/lora/a.py"
OTHER = PullRef(REPOSITORY, 8)
PINNED = POLICY.replace("tag: t", f"tag: t, digest: 'sha256:{'0' * 64}'")


@pytest.fixture
def app() -> App:
    return App()


def recorded(job: Job) -> tuple[Record, LogFacts | None]:
    """A healthy run that recorded which files it executed."""
    record, facts = passes(job)
    executed = ran(TRANSFORM).model_copy(update={"bridge_commit": job.bridge.commit})
    return record.model_copy(update={"executed": executed}), facts


def open_other(app: App, **given: object) -> None:
    """Another pull request with the code of the first one."""
    app.paths[sha("other")], app.same[sha("other")] = LORA, sha("one")
    found = app.hub.pulls[7]
    app.hub.pulls[8] = replace(found, ref=OTHER, head_sha=sha("other"), **given)  # type: ignore[arg-type]


def look_at_other(app: App) -> None:
    app.clock.pass_s(60)
    app.handlers.reconciler.reconcile(OTHER)


def ran_of(app: App) -> list[tuple[str, str]]:
    return [(run.job_id, run.head_sha) for run in app.backend.submitted]


def test_a_push_that_reaches_the_same_code_runs_nothing_and_says_where_the_verdict_is_from(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app)
    app.push("two", LORA, same="one")
    look(app)
    assert (gate(app, "two")[1], ran_of(app)) == ("success", [(SMOKE, sha("one"))])
    (made,) = app.ledger.runs(REPOSITORY, head_sha=sha("two"))
    assert (made.carried_from, made.origin_number, made.gpu_minutes) == (sha("one"), 7, 0.0)
    assert "reused from" in app.hub.cards(7)[0].body
    look(app)
    assert len(app.ledger.kept) == 2


def test_a_push_of_other_code_runs_again_and_one_back_to_the_old_code_does_not(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app)
    app.push("two", LORA)
    to_the_end(app)
    app.push("three", LORA, same="one")
    to_the_end(app)
    assert ran_of(app) == [(SMOKE, sha("one")), (SMOKE, sha("two"))]
    assert gate(app, "three")[1] == "success"


@pytest.mark.parametrize("how", (fails, blocks))
def test_nothing_but_a_pass_is_taken_over(app: App, how: object) -> None:
    app.open(path=LORA)
    to_the_end(app, how)
    app.push("two", LORA, same="one")
    look(app)
    assert ran_of(app)[-1] == (SMOKE, sha("two"))


@pytest.mark.parametrize(("hours", "waited_h", "runs"), ((0, 0, 2), (2, 1, 1), (2, 3, 2)))
def test_the_policy_says_how_old_a_verdict_may_be(app: App, hours: int, waited_h: int, runs: int) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = f"{POLICY}gate: {{reuse_h: {hours}}}\n".encode()
    app.open(path=LORA)
    to_the_end(app)
    app.push("two", LORA, same="one")
    look(app, 3_600 * waited_h)
    assert len(ran_of(app)) == runs


@pytest.mark.parametrize(
    "policy",
    (
        POLICY.replace("tag: t", "tag: other"),
        POLICY.replace(sha("verl"), sha("another verl")),
        f"{POLICY}isolation: required\n",
        f"{POLICY}bridge_tests: [tests/test_a.py]\n",
    ),
)
def test_a_policy_that_asks_for_another_job_runs_it(app: App, policy: str) -> None:
    app.open(path=LORA)
    to_the_end(app)
    app.hub.files[(BASE, POLICY_PATH)] = policy.encode()
    app.restart()
    app.push("two", LORA, same="one")
    look(app)
    assert ran_of(app) == [(SMOKE, sha("one")), (SMOKE, sha("two"))]


def test_rerun_always_runs(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app)
    app.push("two", LORA, same="one")
    look(app)
    ask(app, "rerun", head="two")
    look(app)
    assert ran_of(app) == [(SMOKE, sha("one")), (SMOKE, sha("two"))]
    finish(app, SMOKE, fails)
    look(app)
    assert gate(app, "two")[1] == "failure"
    # The newer verdict on this code is a Fail, so the older Pass counts for no one.
    app.push("three", LORA, same="one")
    look(app)
    assert ran_of(app)[-1] == (SMOKE, sha("three"))


def test_a_run_under_way_goes_on_and_counts_for_the_new_head(app: App) -> None:
    app.open(path=LORA)
    look(app)
    app.backend.begin()
    look(app)
    app.push("two", LORA, same="one")
    look(app)
    assert (live(app), gate(app, "two")[0]) == ([SMOKE], "in_progress")
    finish(app, SMOKE, passes)
    look(app)
    assert (gate(app, "two")[1], ran_of(app)) == ("success", [(SMOKE, sha("one"))])
    assert [check.status for check in app.hub.runs if check.status != "completed"] == []


def test_a_run_that_goes_on_and_fails_is_run_again_on_the_new_head(app: App) -> None:
    app.open(path=LORA)
    look(app)
    app.push("two", LORA, same="one")
    look(app)
    finish(app, SMOKE, fails)
    look(app)
    assert ran_of(app) == [(SMOKE, sha("one")), (SMOKE, sha("two"))]


@pytest.mark.parametrize(
    ("policy", "how", "fork", "runs"),
    (
        (PINNED, recorded, False, 1),
        # The image could be another one by now, or no one knows which files ran.
        (POLICY, recorded, False, 2),
        (PINNED, passes, False, 2),
        (PINNED + "isolation: required\n", recorded, True, 2),
    ),
)
def test_another_pull_request_takes_over_what_nothing_was_left_open_of(
    app: App, policy: str, how: object, fork: bool, runs: int
) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = policy.encode()
    app.open(path=LORA, head_repository="eve/bridge" if fork else REPOSITORY)
    approve(app, "one")
    to_the_end(app, how)
    assert gate(app)[1] == "success"
    open_other(app, head_repository=REPOSITORY)
    look_at_other(app)
    assert len(ran_of(app)) == runs
    if runs == 1:
        assert "of #\u200b7, 2026-11-20" in app.hub.gate(sha("other")).summary  # type: ignore[union-attr]


def reused(app: App, job: Job, **reached: Any) -> Run | None:
    """What another head takes over for a job from the one run of the first one."""
    target = replace(app.hub.pulls[7], head_sha=sha("two"))
    (origin,) = app.ledger.kept.values()
    wanted = WantedJob(SMOKE, Level.SMOKE, job=job, reuse_key=origin.reuse_key)
    prepared = Prepared(wanted=(wanted,), reached=ReachedFiles("f" * 64, **reached))
    reuse = VerdictReuse(app.analysis(), Path("/artifacts"), app.clock, app.ledger)
    policy = load_policy(POLICY, "policy.yml")
    found = reuse.with_reused(target, policy, prepared, (), (origin,))
    # Looking again changes nothing, whatever came of it.
    assert reuse.with_reused(target, policy, prepared, (), found) == found
    return next((run for run in found if run.head_sha == sha("two")), None)


def job_of(app: App, **changes: object) -> Job:
    (origin,) = app.ledger.kept.values()
    assert origin.job is not None
    bridge = origin.job.bridge.model_copy(update={"commit": sha("two")})
    return origin.job.model_copy(update={"bridge": bridge, **changes})


@pytest.mark.parametrize(("sources", "counts"), ((frozenset({TRANSFORM.path}), True), (frozenset({"src/b.py"}), False)))
def test_a_run_that_executed_what_the_digest_does_not_cover_is_not_taken_over(
    app: App, sources: frozenset[str], counts: bool
) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    assert (reused(app, job_of(app), sources=sources, roots=("src/",)) is not None) is counts


def test_a_damaged_list_of_what_a_run_executed_counts_for_nothing(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    (key, run), *_ = app.ledger.kept.items()
    app.ledger.kept[key] = run.model_copy(update={"executed_files": "?"})
    assert reused(app, job_of(app)) is None


@pytest.mark.parametrize(
    ("changed", "counts"),
    (
        (change(TRANSFORM), True),
        (change(DROPOUT), False),
        # One of another file: that it was entered is not known, as no line of that file was recorded.
        (change(GATHER.model_copy(update={"lines": ()})), False),
        (change(), True),
    ),
)
def test_a_verdict_is_judged_again_for_another_change(app: App, changed: ChangedCode, counts: bool) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    made = reused(app, job_of(app, changed=changed))
    assert (made is not None) is counts
    if made is not None:
        assert made.result is Result.PASS
        verdict = read_verdict(made.verdict)
        assert verdict is not None
        assert (verdict.execution is not None) is bool(changed)


def test_what_nothing_proves_is_said_of_a_verdict_that_was_judged_again(app: App) -> None:
    app.backend.doubt = "no one attests it"
    app.open(path=LORA)
    to_the_end(app, recorded)
    made = reused(app, job_of(app, changed=change(TRANSFORM)))
    assert made is not None
    assert "No one attests it." in made.verdict


class SharedLedger(FakeLedger):
    """A ledger in which another bot starts a job right before something is written for it here."""

    def _start(self, run: Run) -> None:
        live = run.model_copy(update={"state": RunState.RUNNING, "result": None, "carried_from": "", "handle": "77"})
        self.kept.setdefault(run.key, live)

    def put_run(self, run: Run) -> Run:
        self._start(run)
        return super().put_run(run)

    def add_run(self, run: Run) -> Run:
        self._start(run)
        return super().add_run(run)


def test_a_run_that_another_bot_has_just_started_is_not_replaced(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    ledger = SharedLedger()
    ledger.kept = app.ledger.kept
    app.ledger = ledger
    made = reused(app, job_of(app))
    assert made is not None
    assert (made.state, made.handle, made.carried_from) == (RunState.RUNNING, "77", "")
    assert ledger.kept[made.key] == made


def test_a_verdict_whose_folder_is_gone_is_not_judged_again(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    app.folders.records.clear()
    assert reused(app, job_of(app, changed=change(TRANSFORM))) is None
    assert reused(app, job_of(app)) is not None


def test_a_run_that_was_compared_with_another_base_is_not_judged_again(app: App) -> None:
    app.open(path=LORA)
    to_the_end(app, recorded)
    base = RelatedRun(
        role=Role.MERGE_BASE,
        job_id=SMOKE,
        job_digest="0" * 64,
        bridge_commit=BASE,
        folder="related/merge_base",
        result=Result.PASS,
    )
    (folder,) = app.folders.records
    app.folders.write(folder, {RELATED_FILE: Related(runs=(base,)).model_dump_json()})
    assert reused(app, job_of(app, changed=change(TRANSFORM))) is None


def test_a_key_depends_on_the_program_here_and_on_the_one_that_other_machines_call() -> None:
    pinned = program_digest("owner/verl-e2e", "a" * 40)
    assert pinned == program_digest("owner/verl-e2e", "a" * 40)
    assert len({pinned, program_digest(), program_digest("owner/verl-e2e", "b" * 40)}) == 3

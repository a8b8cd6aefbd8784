"""A defect that the policy declares, through the whole service: what avoids it is required, and what has it excuses."""

import json
from datetime import UTC, datetime

from tests.app.test_reconciling import ask, finish, gate, live, look
from tests.core.builders import make_job
from tests.fakes.app import BASE, POLICY, REPOSITORY, App, fails, passes
from tests.fakes.small_bridge import BASE as FILES
from tests.fakes.small_bridge import LORA, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, sha
from verl_e2e.app.analysis import DirectAnalysis
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.outcome import DEFECT_CAUSE, Result
from verl_e2e.core.pulls.forge import Target
from verl_e2e.core.pulls.ledger import Run

USER = (
    str(FILES[LORA])
    .replace("from typing", "from .base import export\nfrom typing", 1)
    .replace("return self.dim * x", "return export(self.dim * x)")
)
SMOKE, AVOIDING, NAMED = "0-lora-ddp", "3-fsdp-adapter-none", "3-fsdp"
DEFECTIVE = f"{TOP}peft/base.py"


def opened(path: str) -> App:
    """A pull request that changes one file, in a repository whose policy declares what a failing run shows."""
    files = {**FILES, DEFECTIVE: "def export(rows):\n    return rows\n", LORA: USER}
    trees = FakeTrees(
        {BASE: files, sha("one"): {**files, path: str(files[path]).replace("return ", "return 0 or ", 1)}}
    )
    verdict = judge(*fails(make_job()))
    error = verdict.fingerprint[0].removeprefix("no_exception: ")
    policy = f"""{POLICY}
reach:
  package: megatron.bridge
  roots: [src/]
  rules:
    - {{name: reached code, levels: [0, 3], reason: verl runs this code}}
defects:
  - name: known
    settings: {{megatron fsdp: true}}
    avoid: {{adapter: none}}
    verl: {sha("verl")}
    objects: {{{DEFECTIVE}: {trees.tree(BASE)[DEFECTIVE]}}}
    until: 2099-01-01
    reason: it raises
    evidence: a run
    shows: [{{stage: {verdict.stage}, error: {json.dumps(error)}}}]
"""
    app = App()
    app.hub.files[(BASE, POLICY_PATH)] = policy.encode()

    class OfToday(DirectAnalysis):
        def _planner(self, target: Target) -> Planner:
            return Planner(self.changes(target), self.uses, self.summaries, app.clock.now().date())

    analysis = OfToday(lambda _: trees, USES, FakeSummaries(), app.folders)
    app.handlers = app.connect(analysis=analysis, changes=lambda _: trees)
    app.open()
    look(app)
    assert live(app) == [SMOKE]
    return app


def of_level_3(app: App) -> list[str]:
    return [job_id for job_id in live(app) if job_id.startswith("3-")]


def last(app: App, job_id: str) -> Run:
    return [run for run in app.ledger.runs(REPOSITORY) if run.job_id == job_id][-1]


def test_what_has_the_defect_is_excused_where_a_person_asks_for_it_and_what_avoids_it_decides() -> None:
    app = opened(LORA)
    finish(app, SMOKE, passes)
    ask(app, "level", "3", variant=NAMED)
    look(app)
    (named,) = (job_id for job_id in of_level_3(app) if job_id.startswith(f"{NAMED}-x"))
    assert sorted(of_level_3(app)) == [AVOIDING, named]
    finish(app, named, fails)
    look(app)
    run = last(app, named)
    assert (run.result, run.causes) == (Result.BLOCKED, (DEFECT_CAUSE,))
    assert "known defect known: it raises" in run.sentence
    # No run on the merge base follows, and the gate still waits for the job without the defect alone.
    assert (of_level_3(app), gate(app)[0]) == ([AVOIDING], "in_progress")
    # The same failure of that job has nothing to excuse it.
    finish(app, AVOIDING, fails)
    look(app)
    assert last(app, AVOIDING).result is Result.FAIL
    assert gate(app)[1] == "failure"


def test_once_the_code_that_has_the_defect_changes_the_job_is_required_and_judged_as_usual() -> None:
    app = opened(DEFECTIVE)
    finish(app, SMOKE, passes)
    look(app)
    assert of_level_3(app) == [NAMED]
    finish(app, NAMED, fails)
    look(app)
    assert last(app, NAMED).result is Result.FAIL
    assert gate(app)[1] == "failure"


def test_a_plan_that_is_at_hand_ends_with_the_last_day_of_a_defect() -> None:
    app = opened(LORA)
    last_day = datetime(2099, 1, 1, 23, tzinfo=UTC)
    app.clock.pass_s((last_day - app.clock.now()).total_seconds())
    look(app)
    finish(app, SMOKE, passes)
    look(app)
    assert of_level_3(app) == [AVOIDING]
    app.clock.pass_s(3600)
    look(app)
    assert NAMED in of_level_3(app)

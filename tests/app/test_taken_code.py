"""A change that takes a guard or a call away, through the whole service: the gate waits for a run of what is left.

The file is one of a family that no host can run, and other code takes a function from it.
"""

import re

import pytest

from tests.app.test_reconciling import SMOKE, finish, gate, live, look
from tests.core.executions import ran
from tests.fakes.app import BASE, POLICY, App, passes
from tests.fakes.small_bridge import BASE as FILES
from tests.fakes.small_bridge import LORA, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, sha
from verl_e2e.app.analysis import DirectAnalysis
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Record

SPLIT = f"{TOP}models/unseen/split.py"
WHOLE = """
from ..conversion.model_bridge import Bridge


def split(rows, size):
    if size > 1:
        rows = rows[:size]
    check(rows)
    return rows


def check(rows):
    return len(rows)


class UnseenBridge(Bridge):
    @staticmethod
    def load(rows, size):
        if size > 1:
            rows = rows[:size]
        check(rows)
        return rows
"""
# What a function of the file loses, the first and the second time that it stands there: the first function is what
# adapters take from the file, the other one is the family's alone.
GUARD, CALL = r" +if size > 1:\n +rows = rows\[:size\]\n", r" +check\(rows\)\n"
TAKEN, OWN = 0, 1
USER = (
    str(FILES[LORA])
    .replace("from typing", "from ..models.unseen.split import split\nfrom typing", 1)
    .replace("return self.dim * x", "return split([self.dim], x)")
)
POLICY_OF_REACH = (
    POLICY
    + """
reach:
  package: megatron.bridge
  roots: [src/]
  rules:
    - {name: reached code, levels: [0], reason: verl runs this code}
families:
  - family: unseen
    paths: [src/megatron/bridge/models/unseen/]
    no_synthetic: no host can run it
gate: {uncoverable: allow}
"""
)


def opened(function: int, gone: str) -> App:
    """A pull request that takes lines out of one function of the family's file."""
    package = {f"{TOP}models/unseen/__init__.py": "from .split import UnseenBridge\n\nKNOWN = UnseenBridge()\n"}
    top = {f"{TOP}models/__init__.py": "import megatron.bridge.models.unseen\n"}
    files = {**FILES, **package, **top, LORA: USER, SPLIT: WHOLE}
    found = list(re.finditer(gone, WHOLE))[function]
    changed = WHOLE[: found.start()] + WHOLE[found.end() :]
    trees = FakeTrees({BASE: files, sha("one"): {**files, SPLIT: changed}})
    app = App()
    app.hub.files[(BASE, POLICY_PATH)] = POLICY_OF_REACH.encode()
    analysis = DirectAnalysis(lambda _: trees, USES, FakeSummaries(), app.folders)
    app.handlers = app.connect(analysis=analysis, changes=lambda _: trees)
    app.open()
    return app


def entering(job: Job) -> tuple[Record, LogFacts | None]:
    """A healthy run that entered all that its job was planned to execute."""
    record, facts = passes(job)
    assert job.changed is not None
    executed = ran(*job.changed.functions, bridge_commit=job.bridge.commit)
    return record.model_copy(update={"executed": executed}), facts


def passing_by(job: Job) -> tuple[Record, LogFacts | None]:
    """A healthy run that entered none of it."""
    record, facts = passes(job)
    return record.model_copy(update={"executed": ran(bridge_commit=job.bridge.commit)}), facts


def ended(function: int, gone: str, how: object) -> tuple[str, str, str]:
    """The gate of the change after its only run."""
    app = opened(function, gone)
    look(app)
    assert live(app) == [SMOKE]
    finish(app, SMOKE, how)
    look(app)
    assert live(app) == []
    return gate(app)


@pytest.mark.parametrize("gone", (GUARD, CALL))
def test_code_that_others_take_keeps_the_gate_closed_until_a_run_enters_what_is_left(gone: str) -> None:
    status, conclusion, title = ended(TAKEN, gone, passing_by)
    assert (status, conclusion) == ("completed", "action_required"), title
    assert "split" in title
    status, conclusion, title = ended(TAKEN, gone, entering)
    assert (status, conclusion) == ("completed", "success"), title


@pytest.mark.parametrize("gone", (GUARD, CALL))
def test_code_of_a_family_alone_that_no_host_can_run_keeps_nothing_closed_and_is_named(gone: str) -> None:
    status, conclusion, title = ended(OWN, gone, passing_by)
    assert (status, conclusion) == ("completed", "success"), title
    assert "unseen" in title

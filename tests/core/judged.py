"""Recorded run folders, judged: the text of their `verdict.json`."""

from dataclasses import replace
from functools import cache

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.judge_folder import judge_run
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.outcome import Deliverable, Outcome

RUNS = FIXTURES / "runs"


@cache
def judged(name: str) -> Verdict:
    """The verdict of a recorded run by the name of its folder."""
    return judge_run(run_folders(), RUNS / name)[0]


@cache
def judged_text(name: str) -> str:
    """The same as the bot keeps it with a run."""
    return verdict_json(judged(name))


def verdict_that_says(*texts: str, times: int = 1) -> Verdict:
    """A failed verdict with these texts wherever a run can put its own."""
    lines = (
        Evidence(State.BROKEN, text, text, 1, text, criterion)
        for criterion in (Criterion.LEARNING_SIGNAL, Criterion.NO_EXCEPTION)
        for text in texts
    )
    return replace(
        judged("level0-lora-exception"),
        sentence="".join(texts[:1]),
        deliverables=tuple(Deliverable(text, Outcome.FAIL, text) for text in texts) * times,
        limitations=tuple(f"{text}{count}" for count in range(times) for text in texts),
        followups=texts * times,
        command="".join(texts) * times,
        key_lines=tuple(lines) * times,
    )

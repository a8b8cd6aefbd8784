"""What an issue on a watched branch says, as a whole, and that no commit or log can change its form."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.pulls.entries import POLICY, SMOKE, run
from tests.fakes.trees import sha
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.change import HistoryCommit
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.plan.policy import Schedule
from verl_e2e.core.pulls.forge import Branch
from verl_e2e.core.pulls.ledger import WatchedJob
from verl_e2e.core.pulls.watch import SearchEnd, SearchResult
from verl_e2e.core.report.watch_text import Break, bump_message, fixed_text, issue_of, marker_of

GOLDEN = Path(__file__).parents[2] / "fixtures" / "cards"
MAIN = Branch("octo/bridge", "main")
GOOD, BAD, TIP = sha("good"), sha("bad"), sha("tip")
COMMIT = HistoryCommit(BAD, GOOD, "Mona Lisa", "Merge adapters by rank (#5232)")
JOB = WatchedJob(job_id="0-lora-ddp", good=GOOD, bad=TIP, probed=(sha("a"), sha("b"), BAD, GOOD), streak=-1)
LINE = Evidence(
    State.BROKEN,
    "it raised",
    "console.log",
    1334,
    "RuntimeError: size mismatch, got 8 and 16",
    criterion="no_exception",
)
VERDICT = Verdict(
    job_id="0-lora-ddp",
    result=Result.FAIL,
    stage=Stage.EXPORT_WEIGHT_SYNC,
    cause="it raised",
    sentence="Fail at export_weight_sync: RuntimeError: size mismatch, got 8 and 16",
    coverage="",
    checkpoint="",
    deliverables=(),
    repositories=(),
    command="",
    key_lines=(LINE,),
    limitations=(),
    followups=(),
)
CULPRIT = SearchResult(SearchEnd.CULPRIT, (COMMIT,), GOOD, BAD, 23, 9, confirmed=True)


def broken(found: SearchResult = CULPRIT, job: WatchedJob = JOB, verdict: Verdict = VERDICT) -> Break:
    ended = run(SMOKE, result=Result.FAIL, sentence=verdict.sentence, verdict=verdict_json(verdict))
    return Break(MAIN, job, found, POLICY, TIP, ended.model_copy(update={"url": "https://ci.example/7"}), 61.5)


def test_the_issue_on_a_commit_that_broke_a_job() -> None:
    message = issue_of(broken())
    assert message.title == "verl-e2e: 0-lora-ddp fails on main"
    assert message.body == (GOLDEN / "watch.md").read_text(encoding="utf-8")
    assert message.body.startswith(message.marker)


def test_a_job_that_is_not_its_levels_default_one_is_repeated_by_a_command() -> None:
    policy = POLICY.model_copy(update={"schedule": Schedule(levels=(Level.SMOKE,), variants=("0-recompute",))})
    job = JOB.model_copy(update={"job_id": "0-recompute"})
    asks = "`/verl-e2e level0 variant=0-recompute` asks for this one"
    assert asks in issue_of(replace(broken(job=job), policy=policy)).body
    assert "asks for this one" not in issue_of(replace(broken(), policy=policy)).body


def test_the_proposal_of_a_newer_verl() -> None:
    message = bump_message(MAIN, POLICY, sha("newer"), TIP, ["0-lora-ddp", "2-dense"])
    assert message.body == (GOLDEN / "watch-verl.md").read_text(encoding="utf-8")


SEVERAL = tuple(replace(COMMIT, sha=sha(str(number)), subject=f"Change {number}") for number in range(40))


@pytest.mark.parametrize(
    ("found", "says", "blames"),
    [
        (SearchResult(SearchEnd.UNSEPARATED, SEVERAL[:3], GOOD, BAD), "One of 3 commits broke it", True),
        (SearchResult(SearchEnd.UNSEPARATED, SEVERAL[:1], GOOD, BAD), "It is not shown whether", True),
        (SearchResult(SearchEnd.SPENT, SEVERAL, GOOD, BAD), "`schedule.gpu_minutes`", True),
        (SearchResult(SearchEnd.OTHERWISE, (), GOOD, TIP), "No commit broke it", False),
        (SearchResult(SearchEnd.FLAKY, (), GOOD, BAD), "It comes and goes, or host", False),
        (SearchResult(SearchEnd.NO_GOOD, bad=TIP), "No commit is known on which it passed", False),
    ],
)
def test_each_end_of_a_search_says_what_is_known_and_no_more(found: SearchResult, says: str, blames: bool) -> None:
    body = issue_of(broken(found)).body
    assert says in body
    assert ("Mona" in body) is blames
    assert body.count("\n- ") == (min(len(found.commits), 31) if len(found.commits) > 1 else 0)


@pytest.mark.parametrize("ending", SearchEnd)
def test_no_end_of_a_search_over_verl_blames_this_repository(ending: SearchEnd) -> None:
    found = replace(CULPRIT, ending=ending, commits=SEVERAL[:1] if ending is SearchEnd.CULPRIT else SEVERAL[:2])
    body = issue_of(broken(found, JOB.model_copy(update={"of_verl": True}))).body
    assert "No commit of this repository is blamed." in body
    assert f"--head {TIP} --level 0 --verl verl --verl-ref {BAD}" in body


HOSTILE = "@mona ```\n<!-- x --> | [a](http://b) \x1b[31m"


def test_no_text_of_a_commit_or_a_log_is_more_than_text() -> None:
    commit = replace(COMMIT, author=HOSTILE, subject=HOSTILE)
    line = replace(LINE, excerpt=HOSTILE)
    verdict = replace(VERDICT, sentence=HOSTILE, key_lines=(line,))
    clean = issue_of(broken()).body
    body = issue_of(broken(replace(CULPRIT, commits=(commit,)), verdict=verdict)).body
    assert body.count("\n") == clean.count("\n"), "a foreign text has a line of its own"
    assert body.count("<!--") == clean.count("<!--")
    assert [bad for bad in ("@mona", "\x1b") if bad in body] == []
    # In a fence it is text.
    assert "](http://b" not in body.partition("Evidence:")[0]
    rows = [row for row in body.splitlines() if row.startswith("| What fails")]
    assert [row.replace("\\\\", "").replace("\\|", "").count("|") for row in rows] == [3]


def test_each_job_and_branch_has_an_issue_of_its_own() -> None:
    other = JOB.model_copy(update={"of_verl": True})
    another = JOB.model_copy(update={"job_id": "2-dense"})
    markers = {marker_of(MAIN), marker_of(MAIN, JOB), marker_of(MAIN, other), marker_of(MAIN, another)}
    assert len(markers | {marker_of(Branch("octo/bridge", "r1"), JOB)}) == 5
    failed = JOB.model_copy(update={"streak": -3})
    said = f"✅ `0-lora-ddp` passes again on `{TIP}`, after it failed in 3 rounds in a row.\n"
    assert fixed_text(failed, TIP) == said

"""The words of check runs: what a reader sees first, what would make the gate green, and GitHub's limits."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.core.builders import make_job
from tests.core.judged import judged, judged_text, verdict_that_says
from tests.core.pulls.entries import SMOKE, override, run
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.execution import Purpose
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.forge import MAX_CHECK_TITLE, MAX_OUTPUT
from verl_e2e.core.pulls.gate import JobStanding, gate, standings
from verl_e2e.core.pulls.ledger import JobStatus, Run
from verl_e2e.core.pulls.target_state import Hold
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.report.checks import CheckText, gate_text, job_check_text
from verl_e2e.core.text.escape import prose

HEAD = "a" * 40
URL = "https://github.com/o/r/actions/runs/12"


def _run(name: str, **changes: object) -> Run:
    verdict = judged(name)
    said = {"job_id": verdict.job_id, "result": verdict.result, "sentence": verdict.sentence, "url": URL}
    return run(SMOKE).model_copy(update={**said, "verdict": judged_text(name), "gpu_minutes": 6.7, **changes})


def _wanted(level: Level = Level.SMOKE, *requires: str, required: bool = True, name: str = "") -> WantedJob:
    return WantedJob(name or f"{int(level)}-job", level, requires, required=required, gpu_minutes=5)


def test_a_failed_job_tells_verdict_table_and_first_line() -> None:
    run = _run("level0-lora-exception")
    found = job_check_text(JobStanding(_wanted(), JobStatus.FAILED, run.sentence, run))
    assert found.title.startswith(
        "Failed: Level 0 failed at peft, not known whether this change caused it: LoRA could not be applied"
    )
    assert found.summary.startswith("**Fail: Level 0 failed at peft")
    assert "6.7 GPU minutes used, about 5 planned (estimate)" in found.summary
    assert f"[artifacts]({URL}#artifacts)" in found.summary
    assert "| verl Megatron backend run | **Fail** |" in found.summary
    assert "log.txt.zst:1299: ValueError: LoRA cannot wrap" in found.summary
    assert "**What to do**" in found.summary
    assert "### What this does not show" in found.text
    assert "Bridge repo: " in found.text


def test_a_job_says_for_which_places_of_the_change_it_was_made() -> None:
    purpose = Purpose(path="a.py", symbol="f", condition="tp > 1 and `x` != '@all'")
    wanted = replace(_wanted(Level.PARALLELISM), job=make_job(purposes=(purpose,)))
    found = job_check_text(JobStanding(wanted, JobStatus.WAITING, "it waits"))
    assert "Required by the plan.  \nMade for a.py" in found.summary
    assert "tp \\> 1 and `x`" in found.summary
    assert "@all" not in found.summary


def test_a_learning_signal_shows_its_curves() -> None:
    run = _run("level5-rising-cut-at-11")
    found = job_check_text(JobStanding(_wanted(Level.LEARNING_SIGNAL), JobStatus.BLOCKED, run.sentence, run))
    assert re.search(r"^  reward +5\.2 [▁-█]+ 5\.71$", found.summary, re.MULTILINE)


def test_a_job_without_a_run_says_that_it_has_not_begun() -> None:
    found = job_check_text(JobStanding(_wanted(), JobStatus.WAITING, "it is about to start"))
    assert found == CheckText("Waiting: the job has not started", found.summary)
    assert found.summary.startswith("**Waiting: the job has not started**")


def test_an_extra_says_that_it_never_counts() -> None:
    run = _run("level0-image-tree-first")
    found = job_check_text(JobStanding(_wanted(required=False), JobStatus.PASSED, run.sentence, run))
    assert "never satisfies the gate" in found.summary


def test_the_gate_names_every_required_job_and_what_makes_it_green() -> None:
    failed = _run("level0-lora-exception")
    rows = (
        JobStanding(_wanted(name="0-lora-ddp"), JobStatus.FAILED, failed.sentence, failed),
        JobStanding(_wanted(Level.SAVE_RESUME, "0-lora-ddp"), JobStatus.SKIPPED, "it needs 0-lora-ddp"),
        JobStanding(_wanted(Level.FEATURE), JobStatus.BLOCKED, "no checkpoint is known"),
        JobStanding(_wanted(Level.MEGATRON_FSDP, required=False), JobStatus.WAITING, "it is about to start"),
    )
    found = gate_text(rows, gate(rows))
    assert found.title.startswith("0-lora-ddp failed: Level 0 failed at peft")
    assert "| 0-lora-ddp | ❌ failed |" in found.summary
    assert (
        "0-lora-ddp: push a fix; if the change did not cause it, ask someone with write access to comment"
        in found.summary
    )
    assert f"`/verl-e2e override 0 {failed.head_sha} REASON`" in found.summary
    assert "1-job: starts by itself when 0-lora-ddp has passed." in found.summary
    assert "4-job: fix what is missing (no checkpoint is known)" in found.summary.replace("\\", "")
    assert "3-job" not in found.summary
    assert "3-job" in found.text


def test_the_gate_says_how_long_the_longest_way_to_an_answer_takes() -> None:
    levels = (Level.SMOKE, Level.SAVE_RESUME, Level.PARALLELISM)
    jobs = [replace(_wanted(level), job=make_job(level, gpu_count=2), gpu_minutes=20) for level in levels]
    first, *rest = [replace(item, requires=() if item is jobs[0] else (jobs[0].id,)) for item in jobs]
    extra = replace(_wanted(Level.FEATURE, required=False), job=make_job(), gpu_minutes=500)

    def summary(of_first: JobStatus, of_rest: JobStatus) -> str:
        rows = (JobStanding(first, of_first, ""), *(JobStanding(item, of_rest, "") for item in rest))
        rows = (*rows, JobStanding(extra, JobStatus.WAITING, ""))
        return gate_text(rows, gate(rows)).summary

    assert "About 20 minutes to an answer" in summary(JobStatus.RUNNING, JobStatus.WAITING)
    assert "About 10 minutes to an answer" in summary(JobStatus.PASSED, JobStatus.RUNNING)
    assert "to an answer" not in summary(JobStatus.PASSED, JobStatus.PASSED)


def test_a_gate_awaiting_approval_tells_the_command_once() -> None:
    action = prose("comment `/verl-e2e approve {sha}` to let it run", sha=HEAD)
    held = Hold("awaiting approval", "the head lies in a fork", action)
    wanted = [replace(_wanted(level), job=make_job(level)) for level in (Level.SMOKE, Level.SAVE_RESUME)]
    rows = standings(wanted, (), (), HEAD, held)
    message = gate(rows)
    summary = gate_text(rows, message).summary
    assert message.title == "Awaiting approval: the head lies in a fork"
    assert summary.count(f"- Comment `/verl-e2e approve {HEAD}` to let it run.") == 1
    assert summary.count("⏸️ held | awaiting approval |") == 2


def test_a_gate_without_a_plan_never_says_that_nothing_is_required() -> None:
    broken = "the policy of the base branch cannot be used: .github/verl-e2e.yml:7: rulez: unknown key"
    message = gate_text((), gate((), obstacle=broken))
    assert message.summary.startswith("\n**The policy of the base branch cannot be used")
    waiting = gate((), waits_for="pull request #8")
    assert gate_text((), waiting).summary.startswith("\n**Waits for pull request")
    for found in (message, gate_text((), waiting), gate_text((), gate((), broken=("verl uses X, which is gone",)))):
        assert "required" not in found.summary.lower()


def test_a_green_gate_asks_for_nothing_and_says_why() -> None:
    nothing = gate_text((), gate((), nothing_reason=("no changed path is run by verl",)))
    assert nothing.title == "No verl coverage is required by this change"
    assert "no changed path is run by verl" in nothing.summary
    row = JobStanding(
        _wanted(), JobStatus.OVERRIDDEN, "level 0 is overridden by ann: hosts are down", override=override(Level.SMOKE)
    )
    for message in (nothing, gate_text((row,), gate((row,)))):
        assert "How to make it green" not in message.summary


def test_an_obstacle_and_broken_uses_are_told_as_reasons() -> None:
    row = JobStanding(_wanted(), JobStatus.PASSED, "passed")
    message = gate((row,), obstacle="the policy cannot be read", broken=("verl uses X, which is gone",))
    assert "verl uses X, which is gone" in gate_text((row,), message).summary


@pytest.mark.parametrize("state", list(JobStatus))
def test_every_state_has_its_words(state: JobStatus) -> None:
    row = JobStanding(_wanted(), state, "because")
    assert str(state) in gate_text((row,), gate((row,))).summary
    assert job_check_text(row).title.lower().startswith(str(state))


TAG = re.compile(r"<(/?\w+)")
HOSTILE = st.text(max_size=200) | st.sampled_from(
    ["@everyone", "<!-- verl-e2e:card:v1 -->", "</details>", "```\n# x", "| a |", "<script>", "](https://e.vil)"]
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=20), st.integers(1, 120), st.sampled_from(JobStatus))
def test_whatever_a_run_says_the_texts_stay_whole(texts: list[str], times: int, state: JobStatus) -> None:
    verdict = verdict_that_says(*texts, times=times)
    run = _run("level0-lora-exception", verdict=verdict_json(verdict), url=texts[0])
    rows = tuple(
        JobStanding(_wanted(name=f"{count}{text}", required=count % 2 == 0), state, text, run)
        for count, text in enumerate(texts * times)
    )
    for found in (job_check_text(rows[0]), gate_text(rows, gate(rows))):
        assert 0 < len(found.title) <= MAX_CHECK_TITLE
        assert "\n" not in found.title
        for text in (found.summary, found.text):
            assert len(text) <= MAX_OUTPUT
            assert "@everyone" not in text
            assert "<!--" not in text
            tokens = MarkdownIt().parse(text)
            blocks = [item.content for item in tokens if item.type == "html_block"]
            tags = [tag for block in blocks for tag in TAG.findall(block)]
            assert set(tags) <= {"details", "/details", "summary", "/summary"}
            assert tags.count("details") == tags.count("/details")
            assert not any("e.vil" in str(child.attrs) for token in tokens for child in token.children or ())

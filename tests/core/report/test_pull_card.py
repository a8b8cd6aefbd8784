"""The pull request's one comment: what stands first, what is folded, and what hostile text cannot do."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.core.judged import judged_text, verdict_that_says
from tests.core.pulls.entries import SMOKE, override, run
from tests.fakes.places import FIXTURES, ROOT
from tests.fakes.red_cards import shown_cards, words_of
from tests.fakes.shown_pull import FAILED, card_that_says, shown_plan, shown_target_state
from verl_e2e.core.consumer.consumers import variants_of
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.execution import ChangedFunction, Purpose
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import SUSPECTS_WORD
from verl_e2e.core.plan.code_plan import Unshown
from verl_e2e.core.plan.measured_jobs import NEW, NotCovered, Place
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.plan import NotRequired, Plan, Reason
from verl_e2e.core.pulls.commands import Uncounted
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.forge import Pull
from verl_e2e.core.pulls.gate import JobStanding
from verl_e2e.core.pulls.ledger import Approval, JobStatus, Run, RunState, status_of_run
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.report.pull_card import (
    MARKER,
    MAX_CARD,
    NOT_PINNED,
    OWN_WORD,
    SHOWN_PLACES,
    card_notices,
    earlier_heads,
    render_pull_card,
)
from verl_e2e.core.report.verdict_rows import command_rows
from verl_e2e.core.text.escape import sentence

HEAD = "a" * 40
RECORDED = ROOT / "bot" / "verl_e2e" / "demo" / "recording" / "verdict.json"


def _run(**changes: object) -> Run:
    return run(SMOKE, RunState.QUEUED, None).model_copy(update=changes)


def _finished(**changes: object) -> Run:
    verdict = json.loads(RECORDED.read_text())
    done = {"state": RunState.FINISHED, "result": Result.PASS, "sentence": verdict["sentence"]}
    return _run(**{**done, "verdict": RECORDED.read_text(), "gpu_minutes": 6.7, **changes})


def of(run: Run, planned: int = 0) -> JobStanding:
    """A required job with that run."""
    wanted = WantedJob(run.job_id, Level.SMOKE, gpu_minutes=planned)
    return JobStanding(wanted, status_of_run(run), run.sentence or run.reason, run)


def test_the_verdict_stands_first_and_the_evidence_is_folded() -> None:
    found = of(_finished(url="https://example.invalid/runs/1"), planned=5)
    text = card_that_says(JobStatus.PASSED, "level 0 passed", found)
    lines = text.splitlines()
    assert lines[0] == MARKER
    assert lines[1] == "### ✅ verl-e2e: Pass - level 0 passed"
    assert "GPU minutes: 6.7 used, about 5 planned" in text
    assert "to an answer" not in text
    assert "| 0-lora-ddp | ✅ Pass | yes |" in text
    assert "[log](https://example.invalid/runs/1)" in text
    assert text.index("Limitations") > text.index("| 0-lora-ddp")
    assert "<summary>Evidence</summary>" in text
    assert "Local Bridge import in verl" in text


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, JobStatus.WAITING),
        ({"state": RunState.SUBMITTED}, JobStatus.RUNNING),
        ({"state": RunState.CANCELLING}, JobStatus.RUNNING),
        ({"state": RunState.CANCELLED}, JobStatus.CANCELLED),
        ({"state": RunState.LOST}, JobStatus.BLOCKED),
        ({"state": RunState.REFUSED}, JobStatus.BLOCKED),
        ({"state": RunState.FINISHED, "result": Result.FAIL}, JobStatus.FAILED),
        ({"state": RunState.FINISHED, "result": Result.BLOCKED}, JobStatus.BLOCKED),
        ({"state": RunState.FINISHED, "result": Result.PASS}, JobStatus.PASSED),
        ({"state": RunState.FINISHED}, JobStatus.BLOCKED),
    ],
)
def test_a_run_stands_where_its_state_and_result_put_it(changes: dict[str, object], status: JobStatus) -> None:
    assert status_of_run(_run(**changes)) is status


def test_a_workflow_run_gives_its_artifacts_too() -> None:
    run = "https://github.com/o/r/actions/runs/12"
    for url in (run, f"{run}/job/7", f"{run}#summary"):
        text = card_that_says(JobStatus.PASSED, "s", of(_finished(url=url)))
        assert f"[artifacts]({run}#artifacts)" in text
    assert "[artifacts]" not in card_that_says(JobStatus.PASSED, "s", of(_finished(url="https://x/log")))


def test_minutes_stand_beside_each_job() -> None:
    found = (of(_finished(), planned=5), of(_run(job_id="1-x"), planned=8), of(_run(job_id="2-x")))
    text = card_that_says(JobStatus.RUNNING, "s", *found)
    assert "| yes | 6.7 of about 5 |" in text
    assert "| yes | 0 of about 8 |" in text
    assert "| 2-x | ⏳ Waiting | yes |  |" in text


def test_the_curves_of_a_learning_signal_are_drawn() -> None:
    text = card_that_says(JobStatus.BLOCKED, "s", of(_run(verdict=judged_text("level5-rising-cut-at-11"))))
    assert "<summary>Curves of 0-lora-ddp</summary>" in text
    assert re.search(r"^  reward +5\.2 [▁-█]+ 5\.71$", text, re.MULTILINE)


LONG = ("verl/a.py:1 uses .x", *(f"megatron.bridge.step{count} calls" for count in range(20)), "rule adapters")


def _planned(places: int = 2, via: tuple[str, ...] = ("verl/a.py:1 uses .x", "rule adapters")) -> Plan:
    reasons = [Reason(Level.SMOKE, f"src/p{count}.py", "verl runs it", "f", via) for count in range(places)]
    smoke = JobOutline(variants_of(Level.SMOKE)[0], (), None)
    others = tuple(NotRequired(level, "nothing touched") for level in Level if level is not Level.SMOKE)
    return Plan("b" * 40, HEAD, (Level.SMOKE,), (smoke,), tuple(reasons), others, (), ())


def test_reasons_are_folded_by_level_with_their_chains() -> None:
    text = card_that_says(JobStatus.PASSED, "s", plan=_planned())
    assert "<summary>Why level 0, LoRA + DDP smoke: 2 changed paths require it, 1 job</summary>" in text
    assert "  src/p0.py: f\n    verl/a.py:1 uses .x\n    rule adapters\n  src/p1.py: f\n" in text
    assert "Level 1, Save/resume: nothing touched" in text
    assert "and 96 more places" in card_that_says(JobStatus.PASSED, "s", plan=_planned(100))


def test_the_places_of_a_job_and_those_without_one_are_in_the_folds() -> None:
    purpose = Purpose(path="src/p0.py", symbol="f", condition="tp > 1")
    made = _planned()
    left = tuple(NotCovered(purpose, f"reason {count}") for count in range(6))
    made = replace(made, jobs=(replace(made.jobs[0], purposes=(purpose,)),), not_covered=left)
    text = card_that_says(JobStatus.PASSED, "s", plan=made)
    assert "job 0-lora-ddp: for src/p0.py:f: tp > 1\n" in text
    assert "No job is planned for src/p0.py:f: tp > 1: reason 3\n" in text
    assert "No job is planned for 2 more places\n" in text
    few = replace(made, not_covered=left[:1])
    assert "more places" not in card_that_says(JobStatus.PASSED, "s", plan=few)


def test_a_long_chain_keeps_its_ends() -> None:
    text = card_that_says(JobStatus.PASSED, "s", plan=_planned(via=LONG))
    assert "    verl/a.py:1 uses .x\n" in text
    assert "    ... 15 steps ...\n" in text
    assert "    megatron.bridge.step19 calls\n    rule adapters\n" in text


def test_a_card_that_fits_is_not_cut_and_one_that_does_not_keeps_a_bit_of_everything() -> None:
    limitations = [f"limitation {count} {'x' * 400}" for count in range(60)]
    recorded = json.loads(RECORDED.read_text())
    some = of(_finished(verdict=json.dumps(recorded | {"limitations": limitations})))
    assert "Cut to fit" not in card_that_says(JobStatus.PASSED, "s", some)
    verdict = recorded | {"limitations": limitations * 9}
    many = tuple(
        of(_finished(job_id=f"{count}-job", verdict=json.dumps({**verdict, "sentence": "y" * 300})))
        for count in range(14)
    )
    text = card_that_says(JobStatus.FAILED, "s", *many, plan=_planned(), runs=(EARLIER,))
    assert len(text) <= MAX_CARD
    for title in (
        "Deliverables of 13-job",
        "Limitations (",
        "Evidence",
        "Why level 0",
        "Earlier heads (1)",
        "Reproduce",
    ):
        assert title in text


def test_a_carried_verdict_names_its_origin() -> None:
    text = card_that_says(JobStatus.PASSED, "s", of(_finished(carried_from="b" * 40)))
    assert "| reused from bbbbbbbbbbbb: verl finished" in text.replace("`", "")


EARLIER = _finished(head_sha="c" * 40, result=Result.FAIL, sentence="failed at peft", verdict="")


def test_overrides_notices_and_history_are_shown() -> None:
    given = override(Level.SAVE_RESUME)
    text = card_that_says(
        JobStatus.OVERRIDDEN,
        "level 1 overridden",
        broken=("verl uses X, which is gone",),
        entries=(given,),
        refused=(Uncounted(given.model_copy(update={"actor": "bob"}), "bob may not override"),),
        runs=(EARLIER,),
    )
    assert "> verl uses X, which is gone" in text
    assert "Level 1 overridden by mona on `aaaaaaaaaaaa`: the cluster is down" in text
    assert "The override of level 1 by bob does not count: bob may not override" in text
    assert "Earlier heads (1)" in text
    assert "`cccccccccccc` ❌ Fail: 0-lora-ddp: failed at peft" in text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://x/)[evil](https://y", "https://x/ y", "https://x/" + "a" * 600]
)
def test_a_strange_link_is_left_out(url: str) -> None:
    assert "[log]" not in card_that_says(JobStatus.PASSED, "s", of(_finished(url=url)))


def test_a_verdict_that_is_no_document_is_no_card_s_end() -> None:
    for text in ("{", "[]", '{"deliverables": 3, "limitations": "x", "key_lines": [1], "repositories": {}}'):
        card = card_that_says(JobStatus.PASSED, "s", of(_finished(verdict=text)))
        assert card == card_that_says(JobStatus.PASSED, "s", of(_finished(verdict="")))
        assert card.startswith(MARKER)


TAG = re.compile(r"<(/?\w+)")
HOSTILE = st.text(max_size=300) | st.sampled_from(["@everyone", MARKER, "</details>", "```\n# x", "| a |", "<script>"])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(HOSTILE, max_size=40), st.integers(1, 400))
def test_whatever_a_run_says_the_card_stays_whole(texts: list[str], times: int) -> None:
    verdict = verdict_that_says(*texts, times=times)
    run = _run(verdict=verdict_json(verdict))
    found = [JobStanding(WantedJob(text, Level.SMOKE), JobStatus.FAILED, text, run) for text in texts[:5]]
    text = card_that_says(JobStatus.FAILED, "".join(texts), *found, broken=tuple(texts))
    assert len(text) <= MAX_CARD
    assert text.count(MARKER) == 1
    assert text.startswith(MARKER)
    assert "@everyone" not in text
    tags = [
        tag for token in MarkdownIt().parse(text) if token.type == "html_block" for tag in TAG.findall(token.content)
    ]
    # What may be taken for a commit is code in a title.
    assert set(tags) <= {"details", "/details", "summary", "/summary", "code", "/code"}
    assert tags.count("details") == tags.count("/details")


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("", ()),
        ("bash 'never closed", ("bash 'never closed",)),
        ("bash  two spaces", ("bash  two spaces",)),
        ("env A=1 bash run.sh", ("env A=1 bash run.sh",)),
    ],
)
def test_a_command_that_a_shell_reads_in_another_way_stays_as_it_is(command: str, rows: tuple[str, ...]) -> None:
    assert command_rows(replace(verdict_that_says("x"), command=command)) == rows


def test_what_a_plan_leaves_open_is_said_up_to_a_number() -> None:
    unshown = (Unshown(Level.FEATURE, "has no model with experts", ("a.py:f", "a.py:g", "a.py:h")),)
    function = ChangedFunction(path="a.py", symbol="f", first_line=1, last_line=9)
    entered = tuple(Place(function, (line,), frozenset(), problem=NEW) for line in range(1, SHOWN_PLACES + 3))
    text = card_that_says(JobStatus.PASSED, "s", plan=replace(_planned(), unshown=unshown, not_entered=entered))
    assert "so it cannot show a.py:f and 2 more" in text
    assert "Nor is it known of 2 more places" in text


def shown(target_state: TargetState) -> str:
    return render_pull_card(target_state, decide_actions(target_state))


@pytest.mark.parametrize("words", ["GitHub counts 9 changed files and 7 are known.", "Whatever it is called tomorrow."])
def test_a_plan_that_may_not_be_what_the_change_needs_says_so_at_the_top(words: str) -> None:
    target_state = shown_target_state(*FAILED)
    assert words not in shown(target_state)
    plan = replace(shown_plan(), incomplete=(words,), notes=(words,))
    text = shown(replace(target_state, plan=plan))
    assert f"> {words}" in text
    assert text.index(words) < text.index("| job |")
    assert "is planned again" not in text
    assert "> This head is planned again in a few minutes." in shown(
        replace(target_state, plan=replace(plan, passing=True))
    )


def test_a_remark_that_says_how_reach_was_found_stays_folded() -> None:
    plan = replace(shown_plan(), notes=("Reach starts from here.", "every level is run"))
    assert "> every level is run" not in shown(replace(shown_target_state(*FAILED), plan=plan))


@pytest.mark.parametrize("words", ["no commit", "x" * 260])
def test_why_there_is_no_plan_is_told_once_and_whole(words: str) -> None:
    text = shown(replace(shown_target_state(*FAILED), plan=None, wanted=(), runs=(), problem=words))
    assert text.lower().count(words) == 1


@pytest.mark.parametrize(
    ("image", "hours", "key", "runs", "said"),
    (
        ("verlai/verl:t", 168, "1" * 64, False, True),
        (f"verlai/verl@sha256:{'0' * 64}", 168, "1" * 64, False, False),
        ("verlai/verl:t", 0, "1" * 64, False, False),
        # It takes over nothing whatever the image is called.
        ("verlai/verl:t", 168, "", False, False),
        # It ran already.
        ("verlai/verl:t", 168, "1" * 64, True, False),
    ),
)
def test_that_no_verdict_of_another_pull_request_counts_is_said_while_jobs_have_to_run(
    image: str, hours: int, key: str, runs: bool, said: bool
) -> None:
    found = shown_target_state(*FAILED)
    jobs = [wanted.job for wanted in found.wanted if wanted.job is not None]
    placed = [job.model_copy(update={"site": job.site.model_copy(update={"image": image})}) for job in jobs]
    wanted = tuple(replace(found.wanted[0], id=job.id, job=job, reuse_key=key, requires=()) for job in placed)
    gate = found.policy.gate.model_copy(update={"reuse_h": hours})
    policy = found.policy.model_copy(update={"gate": gate})
    ran = (replace(found.wanted[0], reuse_key=key),)
    state = replace(found, wanted=ran if runs else wanted, runs=found.runs if runs else (), policy=policy)
    assert (NOT_PINNED in card_notices(state, decide_actions(state))) is said


def limited(state: TargetState) -> bool:
    return f"- {sentence(OWN_WORD, 500)}" in shown(state)


def test_the_card_of_a_head_that_a_person_let_run_says_whose_word_its_evidence_is() -> None:
    state = shown_target_state(*FAILED)
    assert isinstance(state.target, Pull)
    given = Approval(
        base="main",
        repository=state.repository,
        number=state.target.ref.number,
        head_sha=state.head_sha,
        actor="mona",
        source="comment:1:1",
        at=state.now,
    )
    fork = replace(state, target=replace(state.target, head_repository="eve/bridge"))
    assert not limited(state)
    assert limited(fork)
    assert limited(replace(state, entries=(given,)))
    assert not limited(replace(state, entries=(given.model_copy(update={"head_sha": "f" * 40}),)))
    # Nothing ran, so there is no evidence.
    assert not limited(replace(fork, runs=()))
    text = shown(fork)
    folded = text[text.index("Limitations (") :].replace("\\", "")
    assert [part for name in SUSPECTS_WORD for part in name.split("#") if part not in folded] == []


FIRST, SECOND = "1" * 40, "2" * 40


def earlier(state: RunState, result: Result | None = None, *, minute: int = 0, **given: object) -> Run:
    """A run of the shown pull request on an earlier head."""
    run = shown_target_state(*FAILED).runs[0]
    at = run.created + timedelta(minutes=minute)
    said = {"head_sha": FIRST, "sentence": "", "reason": "", "verdict": "", "created": at, "updated": at}
    return run.model_copy(update={**said, "state": state, "result": result, **given})


PASS = earlier(RunState.FINISHED, Result.PASS, sentence="it passed")
FAIL = earlier(RunState.FINISHED, Result.FAIL, sentence="it failed")


@pytest.mark.parametrize(
    ("runs", "expected"),
    (
        ((), []),
        ((PASS,), [(FIRST, JobStatus.PASSED, "0-lora-ddp: it passed")]),
        # Of one job the last run counts, of several jobs the worst.
        (
            (FAIL, earlier(RunState.FINISHED, Result.PASS, minute=1)),
            [(FIRST, JobStatus.PASSED, "0-lora-ddp: finished")],
        ),
        ((PASS, FAIL.model_copy(update={"job_id": "1-resume"})), [(FIRST, JobStatus.FAILED, "1-resume: it failed")]),
        ((earlier(RunState.LOST, reason="no runner"),), [(FIRST, JobStatus.BLOCKED, "0-lora-ddp: no runner")]),
        ((earlier(RunState.CANCELLED),), [(FIRST, JobStatus.CANCELLED, "0-lora-ddp: cancelled")]),
        ((earlier(RunState.RUNNING),), [(FIRST, JobStatus.RUNNING, "0-lora-ddp: running")]),
        ((earlier(RunState.QUEUED),), [(FIRST, JobStatus.WAITING, "0-lora-ddp: queued")]),
        (
            (earlier(RunState.QUEUED, minute=3, head_sha=SECOND), PASS),
            [(SECOND, JobStatus.WAITING, "0-lora-ddp: queued"), (FIRST, JobStatus.PASSED, "0-lora-ddp: it passed")],
        ),
    ),
)
def test_an_earlier_head_shows_the_worst_of_its_last_runs(
    runs: tuple[Run, ...], expected: list[tuple[str, JobStatus, str]]
) -> None:
    now = shown_target_state(*FAILED)
    assert list(earlier_heads(replace(now, runs=(*now.runs, *runs)))) == expected


def test_of_many_earlier_heads_the_latest_are_shown() -> None:
    now = shown_target_state(*FAILED)
    runs = tuple(earlier(RunState.LOST, minute=number, head_sha=f"{number:040}") for number in range(12))
    history = earlier_heads(replace(now, runs=runs))
    assert [int(head) for head, _, _ in history] == list(range(11, 1, -1))


def test_a_red_card_says_what_where_whose_and_what_now_before_its_folds() -> None:
    verdict = (FIXTURES / "runs" / "level0-lora-exception" / "verdict.json").read_text()
    title = "Level 0 failed at peft"
    red = of(_finished(result=Result.FAIL, sentence="LoRA could not be applied", verdict=verdict), planned=7)
    text = card_that_says(JobStatus.FAILED, title, red)
    before = text.partition("<details>")[0]
    assert [row.partition("**")[2].partition(":")[0] for row in before.splitlines() if row.startswith("- **")] == [
        *("What", "Where", "Whose", "Now")
    ]
    assert "| see above" in text
    assert len(before.removeprefix(MARKER).split()) <= 120


ENDS = ("caused by this change", "caused it", "the changed lines", "this change too", "passed once", "host problem")


def test_a_card_of_every_kind_of_failure_is_short_and_says_whose_it_is() -> None:
    counted = {name: words_of(card) for name, card in shown_cards().items()}
    assert {name: count for name, count in counted.items() if count[0] > 115 or count[1] > 400} == {}
    for name, card in shown_cards().items():
        before = card.partition("<details>")[0]
        heading = next(row for row in before.splitlines() if row.startswith("### "))
        assert heading.endswith(ENDS), name

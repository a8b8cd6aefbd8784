"""The card: its fixed form, word for word, and what no log can do to it."""

import re
from dataclasses import replace

import pytest

from tests.core.builders import (
    bridge_error,
    cut_facts,
    ended,
    error,
    judged,
    make_environment,
    make_facts,
    make_job,
    make_record,
)
from tests.core.executions import DROPOUT, IN_TEST, change, ran, verdict_on
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import Excerpt, LogFacts
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.outcome import Deliverable, Outcome, Result, Stage
from verl_e2e.core.model.record import Check, EndReason, Finding, Record
from verl_e2e.core.report.run_card import (
    MAX_MARKDOWN,
    Card,
    NotRun,
    render_markdown,
    render_text,
    render_unfit_host,
    result_of,
    sentence_of,
)
from verl_e2e.core.text.escape import BREAK

GOLDEN = FIXTURES / "cards"
LATE = error(
    "RuntimeError",
    "DataLoader worker (pid 8000) is killed by signal: Killed.",
    stage=Stage.SHUTDOWN,
    line=1345,
    after_completion=True,
)
PASSED = judged(make_facts(errors=(LATE,)))
FAILED = judged(cut_facts(Stage.PEFT, errors=(bridge_error(),)), events=ended(exit_code=1))
FINDINGS = (
    Finding(check=Check.GPUS, ok=False, summary="no GPU is visible", fix="Run it on a host with 1 GPU."),
    Finding(check=Check.DATA, ok=False, stage=Stage.DATA, summary="train.parquet is not there", fix="Prepare it."),
)
NOT_STARTED = judge(
    make_record(
        environment=make_environment(findings=FINDINGS, imports=(), gpus=()),
        events=ended(EndReason.NOT_STARTED, None, "preflight found what blocks the run"),
        imports=(),
        tests=None,
    ),
    LogFacts(0),
)
DENSE = NotRun("2-dense", "Level 2: Parallelism stress (dense)", "it needs 0-lora-ddp, which did not pass")
LOG_ONLY = judge(Record(missing=("job.json: not there", "environment.json: not there")), make_facts())
CARDS = {
    "pass": Card((PASSED,)),
    "fail": Card((FAILED,)),
    "several": Card((NOT_STARTED,), (DENSE,), ("This run is a recording.",), "Level 0\n  2-dense after it"),
    "log-only": Card((LOG_ONLY,)),
    "nothing": Card(()),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_text_card(name: str) -> None:
    assert render_text(CARDS[name]) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", CARDS)
def test_the_markdown_card(name: str) -> None:
    assert render_markdown(CARDS[name]) == (GOLDEN / f"{name}.md").read_text()


FORM = re.compile(
    r"""Result: (Pass|Fail|Blocked) - .+
Requested coverage: .+
Checkpoint/config: .+
(?:Deliverables(?: \(.+\))?:
- Bridge-side checks: (?:Pass|Fail|Skipped|Not requested|Blocked) - .+
- Local Bridge import in verl: (?:Pass|Fail|Skipped|Not requested|Blocked) - .+
- verl Megatron backend run: (?:Pass|Fail|Skipped|Not requested|Blocked) - .+
- Requested variants: (?:Pass|Fail|Skipped|Not requested|Blocked) - .+
- Log capture: (?:Pass|Fail|Skipped|Not requested) - .+
)+Evidence:
(?:- .+\n)+Limitations:
(?:- .+\n)+Follow-ups:
(?:- .+\n)+\Z"""
)


@pytest.mark.parametrize("name", CARDS)
def test_every_card_has_the_fixed_form(name: str) -> None:
    text = render_text(CARDS[name])
    assert FORM.match(text), text
    groups = len(CARDS[name].verdicts) + len(CARDS[name].not_run) or 1
    assert text.count("- Bridge-side checks: ") == groups


def test_every_job_names_its_repositories_command_and_key_lines() -> None:
    text = render_text(Card((PASSED, FAILED)))
    for label in ("- Bridge repo: ", "- verl repo: ", "- Command: ", "- Job: 0-lora-ddp - "):
        assert text.count(label) == 2
    assert "Deliverables (0-lora-ddp):" in text


@pytest.mark.parametrize(
    ("card", "result"),
    [
        (Card(()), Result.PASS),
        (Card((PASSED,)), Result.PASS),
        (Card((PASSED, PASSED)), Result.PASS),
        (Card((PASSED, NOT_STARTED)), Result.BLOCKED),
        (Card((PASSED,), (DENSE,)), Result.BLOCKED),
        (Card((), (DENSE,)), Result.BLOCKED),
        (Card((NOT_STARTED, FAILED, PASSED), (DENSE,)), Result.FAIL),
    ],
)
def test_fail_outranks_blocked_outranks_pass(card: Card, result: Result) -> None:
    assert result_of(card) is result
    assert render_text(card).startswith(f"Result: {result} - ")


KIMI = NotRun("4-feature-kimi", "Level 4: Feature e2e (feature)", "no host can run kimi", uncoverable=True)
ALLOWED = ExecutionRules(uncoverable=Demand.ALLOW)


def test_a_job_that_no_host_can_run_blocks_the_whole_unless_the_policy_allows_it() -> None:
    for card in (Card((PASSED,), (KIMI,)), Card((PASSED,), (KIMI,), execution=ExecutionRules())):
        assert result_of(card) is Result.BLOCKED
        assert sentence_of(card) == "Level 4: Feature e2e (feature) did not run: no host can run kimi"
    card = Card((PASSED,), (KIMI,), execution=ALLOWED)
    assert result_of(card) is Result.PASS
    assert sentence_of(card).startswith("4-feature-kimi is not covered, no host can run kimi; ")
    text = render_text(card)
    assert FORM.match(text), text
    assert "- Level 4: Feature e2e (feature): not covered, no host can run kimi.\n" in text
    assert "Still to run" not in text
    # What could run and did not still counts.
    assert sentence_of(Card((PASSED,), (KIMI, DENSE), execution=ALLOWED)).startswith(DENSE.coverage)


@pytest.mark.parametrize(
    ("checkpoint", "shown"),
    [
        (Checkpoint(model_id="Qwen/Qwen2.5-0.5B"), "MODEL_ID Qwen/Qwen2.5-0.5B"),
        (Checkpoint(model_id="a/b", model_path="/m"), "MODEL_PATH /m (MODEL_ID a/b)"),
        (
            Checkpoint(model_id="a/b", model_path="/m", random_weights=True),
            "MODEL_PATH /m (MODEL_ID a/b, random weights)",
        ),
        (Checkpoint(model_id="a/b", dummy_config="/c.json"), "dummy config /c.json (MODEL_ID a/b)"),
    ],
)
def test_the_checkpoint_is_what_was_really_loaded(checkpoint: Checkpoint, shown: str) -> None:
    text = render_text(Card((judged(job=make_job(checkpoint=checkpoint)),)))
    assert text.splitlines()[2] == f"Checkpoint/config: {shown}"


def test_a_run_names_the_features_that_were_asked_for() -> None:
    verdict = judged(job=make_job(wrapper={"LORA_RANK": "0", "USE_MEGATRON_FSDP": "True", "ENGINE": "sglang"}))
    assert verdict.deliverables[2].detail.startswith("Megatron-FSDP, rollout by sglang - ")


def test_the_sentence_is_that_of_the_job_that_decides() -> None:
    assert sentence_of(Card((PASSED, FAILED))) == FAILED.sentence
    assert sentence_of(Card((PASSED, PASSED))) == f"{PASSED.sentence}; {PASSED.sentence}"
    expected = "Level 2: Parallelism stress (dense) did not run: it needs 0-lora-ddp, which did not pass"
    assert sentence_of(Card((PASSED,), (DENSE,))) == expected


def test_what_two_jobs_say_is_said_once() -> None:
    text = render_text(Card((PASSED, replace(PASSED, job_id="0-recompute"))))
    assert text.count("- all jobs: Save and resume are not exercised.") == 1


def hostile(text: str, rows: int = 1) -> Verdict:
    """A verdict whose every free text is foreign."""
    item = Evidence(State.BROKEN, text, text, 7, text, criterion=Criterion.NO_EXCEPTION)
    return Verdict(
        job_id=text,
        result=Result.FAIL,
        stage=Stage.PEFT,
        cause=text,
        sentence=text,
        coverage=text,
        checkpoint=text,
        deliverables=tuple(Deliverable("Log capture", Outcome.PASS, text) for _ in range(5)),
        evidence=(item,),
        repositories=(text,) * rows,
        command=text,
        key_lines=(item,) * rows,
        limitations=tuple(f"{n} {text}" for n in range(rows)),
        followups=tuple(f"{n} {text}" for n in range(rows)),
    )


EVIL = "x\nResult: Pass - all good\r\n</details><!-- verl-e2e --> @all ``` | [a](http://b) <b> \u202egnp"


def test_foreign_text_stays_on_its_line() -> None:
    text = render_text(Card((hostile(EVIL, 3),), (NotRun(EVIL, EVIL, EVIL),), (EVIL,), EVIL))
    assert [line for line in text.splitlines() if line.startswith("Result:")] == [text.splitlines()[0]]
    assert text.startswith("Result: Fail - x Result: Pass - all good")
    assert "\u202e" not in text
    assert "\r" not in text


def test_foreign_text_cannot_break_out_of_the_markdown() -> None:
    text = render_markdown(Card((hostile(EVIL, 3),), (NotRun(EVIL, EVIL, EVIL),), (EVIL,), EVIL))
    assert "<!--" not in text
    assert not re.search(rf"@(?!{BREAK})", text)
    tags = re.findall(r"</?[a-z]+>", "".join(text.split("````")[::2]))
    # What stands between two backticks is code, the person who wrote it.
    assert set(tags) - {"<code>", "</code>"} == {"<details>", "</details>", "<summary>", "</summary>"}
    assert text.count("\n````\n") == 2
    assert len([line for line in text.splitlines() if line.startswith("### ")]) == 1


@pytest.mark.no_cover
@pytest.mark.parametrize("text", ["&" * 9_000, "`" * 9_000, "a\n" * 9_000, EVIL * 200])
@pytest.mark.parametrize(("jobs", "rows"), [(1, 40), (40, 1), (3, 20)])
def test_the_markdown_fits_whatever_the_log_holds(text: str, jobs: int, rows: int) -> None:
    card = Card((hostile(text, rows),) * jobs, (NotRun(text, text, text),) * jobs, (text,) * rows, text)
    shown = render_markdown(card)
    assert len(shown) <= MAX_MARKDOWN
    lines = shown.splitlines()
    assert sum(line.startswith("<details>") for line in lines) == lines.count("</details>")
    assert "_Cut to fit; the whole is in card.txt._" in shown


def test_a_huge_document_is_no_heavier_than_what_is_shown_of_it() -> None:
    shown = render_markdown(Card((hostile("y\x1b" * 2_000_000, 3),), (), ("\n" * 2_000_000,)))
    assert len(shown) <= MAX_MARKDOWN


def test_a_large_card_still_starts_with_its_result_and_keeps_its_limitations() -> None:
    shown = render_markdown(Card((hostile("y" * 5_000, 100),) * 8))
    assert shown.lstrip().startswith("### ❌ Fail - yyy")
    assert "<summary>Limitations</summary>" in shown


def test_a_quoted_line_is_cut_and_placed() -> None:
    fact = Excerpt(1250, "ValueError: " + "z" * 900)
    verdict = judged(cut_facts(Stage.PEFT, errors=(replace(bridge_error(), at=fact),)), events=ended(exit_code=1))
    row = next(row for row in render_text(Card((verdict,))).splitlines() if "log.txt.zst:1250" in row)
    assert row.startswith("- Key lines: log.txt.zst:1250: ValueError: zzz")
    assert len(row) < 340


def test_a_pass_says_in_its_first_line_what_bridge_tests_alone_executed() -> None:
    job = make_job(changed=change(DROPOUT))
    entered = verdict_on(job, ran(DROPOUT))
    in_tests = replace(verdict_on(job, ran(DROPOUT, by=(IN_TEST,))), job_id="1-resume")
    alone = "the change was executed by Bridge tests alone, by no verl run"
    rules = ExecutionRules()
    assert alone in sentence_of(Card((in_tests,), execution=rules))
    assert alone in render_text(Card((in_tests,), execution=rules)).splitlines()[0]
    assert alone in render_markdown(Card((in_tests,), execution=rules)).splitlines()[0]
    assert alone not in render_text(Card((entered, in_tests), execution=rules))
    assert result_of(Card((in_tests,), execution=rules)) is Result.PASS


def unfit(*findings: Finding) -> Verdict:
    """The verdict of a job that a host could not begin."""
    environment = make_environment(findings=findings, imports=(), gpus=())
    stopped = ended(EndReason.NOT_STARTED, None, "preflight found what blocks the run")
    return judge(make_record(environment=environment, events=stopped, imports=(), tests=None), LogFacts(0))


def test_a_host_that_cannot_begin_a_job_is_told_in_15_rows() -> None:
    others = [Finding(check=Check.DATA, ok=False, summary=f"{number} {'x' * 150}", fix="Do.") for number in range(9)]
    card = Card((unfit(FINDINGS[0], *others),), (DENSE,))
    rows = render_unfit_host(card, "out").splitlines()
    assert len(rows) <= 15
    assert max(map(len, rows)) <= 100
    assert rows[0].startswith("Result: Blocked - Level 0 blocked at environment: no GPU is visible")
    assert next(row for row in rows if row.startswith("1. ")).startswith(
        "1. Run it on a host with 1 GPU. Found: no GPU"
    )
    left = next(row for row in rows if row.startswith("and "))
    shown = sum(row[0].isdigit() for row in rows)
    assert left == f"and {10 - shown} more to fix"
    assert rows[-2].startswith("Planned: Level 0: LoRA + DDP smoke")
    assert "`verl-e2e card out`" in rows[-1]


@pytest.mark.parametrize("name", ["pass", "fail", "log-only", "nothing"])
def test_another_card_is_shown_whole(name: str) -> None:
    assert render_unfit_host(CARDS[name], "out") == ""
    assert render_unfit_host(Card((NOT_STARTED, PASSED)), "out") == ""

"""Several runs in one log: each error belongs to its run, the last whole run is the answer, the others are named."""

import pytest

from tests.core.logs import fed, lines, recorded
from tests.core.several_runs import FAILED, PASSED, Run, case, several_runs
from tests.core.triage.tables import PREFILTER, answer_of, check, judged
from verl_e2e.core.log.fold import MAX_RUNS
from verl_e2e.core.log.scan import LogScanner, scan
from verl_e2e.core.triage.explain import explain_log, explain_text
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage, triage_json, triage_of_run

STEP = "step:{} - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5"
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"
COMMAND = "+ python3 -m verl.trainer.main_ppo a=b"
FATAL = ("Error executing job with overrides: []", "Traceback (most recent call last):", '  File "a.py", line 1, in f')


def of(*texts: str) -> Triage:
    return triage(scan(lines(*texts)))


@pytest.mark.slow
def test_the_generated_table() -> None:
    check(judged(several_runs()), least=1)


def test_the_other_runs_are_named_with_their_own_outcome() -> None:
    answer = answer_of(case("fail, fail, pass", FAILED[0], FAILED[3], PASSED[0], answer=3))
    assert (answer.verdict, answer.run) == (TriageVerdict.PASS, 3)
    found = [(run.run, run.begins, run.verdict, run.stage, run.line) for run in answer.others]
    second = len(FAILED[0].rows)
    assert [(number, verdict, stage, line) for number, _, verdict, stage, line in found] == [
        (1, "fail", "peft", 1299),
        (2, "blocked", "data", second + 1211),
    ]
    assert answer.others[0].begins == 1
    # A later run begins where the shell echoes the command.
    assert (answer.others[1].begins, answer.others[0].ends) == (second + 122, second + 121)


def test_a_single_run_names_no_other() -> None:
    answer = triage(scan([recorded("level0-pass")]))
    assert (answer.run, answer.others) == (1, ())


def test_in_a_run_folder_an_error_of_any_phase_counts() -> None:
    log = case("fail, then pass", FAILED[0], PASSED[0], answer=2).log
    assert triage(scan([log])).verdict is TriageVerdict.PASS
    assert triage_of_run(scan([log])).verdict is TriageVerdict.FAIL


def test_the_explanation_is_about_the_run_that_is_the_answer() -> None:
    row = case("fail, then cut", FAILED[0], Run("cut", PASSED[0].rows[:1200], "", "", 0), answer=1)
    message = explain_log(scan([row.log], PREFILTER))
    assert (message.answer.run, message.runs, message.answer.line) == (1, 2, 1299)
    assert all(phase.at.line < 1302 for phase in message.phases)
    assert [candidate.line for candidate in message.candidates if candidate.chosen] == [1299]
    text = explain_text("x", message)
    assert "Phases of run 1 of 2" in text
    assert "Run 2, lines 1423-2501: blocked in ddp_wrap, line 2501: incomplete" in text


@pytest.mark.no_cover
@pytest.mark.parametrize("size", [977, 65536])
def test_the_answer_does_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    log = case("fail, then pass", FAILED[0], PASSED[0], answer=2).log
    assert fed(log, size) == scan([log], PREFILTER)


def test_a_growing_log_forgets_the_error_of_the_run_before() -> None:
    scanner = LogScanner()
    scanner.feed(lines("ray init kwargs: {}", *FATAL, "ValueError: no", "over")[0])
    assert scanner.fatal is not None
    scanner.feed(lines("ray init kwargs: {}", BAR.format(0, 0, 2))[0])
    assert scanner.fatal is None


@pytest.mark.parametrize(
    "texts",
    [
        # What one run may print twice, or late, begins no other run.
        ("Started a local Ray instance", "(W pid=3) Connecting to existing Ray cluster", BAR.format(0, 0, 2)),
        ("ray init kwargs: {}", "ray init kwargs: {}"),
        ("Connecting to existing Ray cluster", "(W pid=3) Connecting to existing Ray cluster", "ray init kwargs: {}"),
        ("(T pid=5) {'actor_rollout_ref': 1}", "(T pid=6) {'actor_rollout_ref': 1} [repeated 2x across cluster]"),
        ("ray init kwargs: {}", *FATAL, "ValueError: no", "(T pid=5) {'actor_rollout_ref': 1}"),
        ("(T pid=5) {'actor_rollout_ref': 1}", *FATAL, "ValueError: no", "(T pid=5) " + BAR.format(0, 0, 2)),
        (BAR.format(50, 1, 2), STEP.format(1), STEP.format(1), BAR.format(50, 1, 2)),
        ("(Trainer pid=5) " + STEP.format(3), "(Rollouter pid=6) " + STEP.format(1)),
        # What a shell or a program without prefixes prints may be survived: its run goes on.
        ("x.sh: line 3: nvidia-smi: command not found", "ray init kwargs: {}", BAR.format(0, 0, 2)),
        ("ray init kwargs: {}", "CUDA out of memory", STEP.format(1)),
        ("ray init kwargs: {}", "WARNING:root:x", *FATAL[1:], "OSError: x", "over", STEP.format(1)),
    ],
)
def test_one_run_stays_one(texts: tuple[str, ...]) -> None:
    assert scan(lines(*texts)).parts == ()


@pytest.mark.parametrize(
    ("texts", "begins"),
    [
        ((BAR.format(50, 1, 2), BAR.format(0, 0, 2)), 2),
        ((STEP.format(1), STEP.format(2), STEP.format(1)), 3),
        (("ray init kwargs: {}", "Started a local Ray instance", "ray init kwargs: {}"), 3),
        (("(T pid=5) {'actor_rollout_ref': 1}", "(T pid=9) {'actor_rollout_ref': 1}"), 2),
        (("ray init kwargs: {}", COMMAND), 2),
        ((*FATAL, "ValueError: no", "Started a local Ray instance"), 5),
        ((COMMAND, "x.sh: line 3: python3: command not found", COMMAND), 3),
        ((*FATAL, "ValueError: no", BAR.format(0, 0, 2)), 5),
    ],
)  # fmt: skip
def test_what_begins_another_run(texts: tuple[str, ...], begins: int) -> None:
    assert [part.begins for part in scan(lines(*texts)).parts] == [1, begins]


def test_of_many_runs_the_last_are_kept() -> None:
    failed = ("ray init kwargs: {}", *FATAL, "ValueError: no", "over")
    facts = scan(lines(*failed * 50))
    assert (len(facts.parts), facts.parts[-1].number, facts.runs) == (MAX_RUNS, 50, 50)
    assert triage(facts).line == 49 * len(failed) + 5


def test_the_json_line_names_the_other_runs() -> None:
    answer = of(
        "ray init kwargs: {}", *FATAL, "ValueError: no", "ray init kwargs: {}", STEP.format(1), BAR.format(100, 1, 1)
    )
    shown = triage_json("a.log", answer)
    assert (shown["verdict"], shown["run"]) == ("pass", 2)
    assert shown["other_runs"] == [
        {
            "run": 1,
            "begins": 1,
            "ends": 5,
            "verdict": "blocked",
            "stage": "environment",
            "cause": "an error that no rule explains: ValueError: no",
            "line": 5,
        }
    ]  # fmt: skip

"""`triage --explain`: the timeline with its times, the candidates in the order weighed, and the rule that decided."""

import json

import pytest

from tests.core.logs import NAMES, lines, recorded
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.explain import SHOWN_CANDIDATES, Explained, explain_json, explain_log, explain_text, timeline
from verl_e2e.core.triage.triage import triage_json

H = "Traceback (most recent call last):"
STEP = "step:{} - a:1 - b:2 - c:3"


def facts_of(*texts: str) -> LogFacts:
    return scan(lines(*texts))


def explained(*texts: str) -> Explained:
    return explain_log(facts_of(*texts))


def seconds(*texts: str) -> list[float | None]:
    return [phase.seconds for phase in timeline(facts_of(*texts))]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_runs_are_explained(name: str) -> None:
    message = explain_log(scan([recorded(name)]))
    known = [phase.seconds for phase in message.phases]
    assert all(second is not None for second in known)
    assert known == sorted(known, key=lambda second: second or 0.0)
    assert [phase.at.line for phase in message.phases] == sorted(phase.at.line for phase in message.phases)
    assert sum(candidate.chosen for candidate in message.candidates) == (
        message.answer.rule not in ("completed", "incomplete")
    )
    if message.candidates:
        assert message.candidates[0].chosen
    text = explain_text(name, message)
    assert message.decided in text
    assert message.answer.fix in text


def test_the_passing_run_took_its_stages_at_these_seconds() -> None:
    message = explain_log(scan([recorded("level0-pass")]))
    at = {phase.stage: phase.seconds for phase in message.phases}
    assert (at[Stage.RAY], at[Stage.PEFT], at[Stage.TRAIN_STEP], at[Stage.SHUTDOWN]) == (31.0, 91.0, 179.0, 240.0)


def test_the_events_of_a_run_outrank_the_clock_of_its_log() -> None:
    facts = facts_of("14:00:00 first", "14:00:10 ray init kwargs: {}", "14:00:20 Started a local Ray instance")
    assert [stage_mark.seconds for stage_mark in timeline(facts, {Stage.RAY: 7.5})] == [10.0, 7.5]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("ray init kwargs: {}", "Started a local Ray instance"), [None, None]),
        (("14:00:00 hello", "14:00:05 ray init kwargs: {}", "Started a local Ray instance"), [5.0, None]),
        (("23:59:58 ray init kwargs: {}", "00:00:03 Started a local Ray instance"), [0.0, 5.0]),
        (
            ("2026-01-01T10:00:00.5Z ray init kwargs: {}", "2026-01-01T10:00:02.0Z Started a local Ray instance"),
            [0.0, 1.5],
        ),
        (("x 2026-11-20 16:42:08,500 ray init kwargs:", "E 11-20 16:42:10 Started a local Ray instance"), [0.0, 1.5]),
        (("ray init kwargs: {}", "Training Progress:  5%|x | 1/20 [1:17:48<24:01:11, 434.53s/it]"), [None, None]),
    ],
)
def test_times_are_read_from_the_lines(texts: tuple[str, ...], expected: list[float | None]) -> None:
    assert seconds(*texts) == expected


def test_of_several_runs_the_last_is_shown() -> None:
    message = explained("ray init kwargs: {}", STEP.format(1), "ray init kwargs: {}", "Started a local Ray instance")
    assert message.runs == 2
    assert [phase.at.line for phase in message.phases] == [3, 4]
    assert "of run 2 of 2" in explain_text("x", message)


def test_the_candidates_stand_in_the_order_in_which_they_were_weighed() -> None:
    message = explained(
        "(W pid=3) " + H,
        '(W pid=3)   File "megatron/bridge/peft/lora.py", line 1, in transform',
        "(W pid=3) ValueError: no such layer",
        "(W pid=4) " + H,
        '(W pid=4)   File "gloo.py", line 1, in wait',
        "(W pid=4) RuntimeError: [gloo] Connection closed by peer",
        "'timed out' thrown while requesting HEAD the hub",
        "Error executing job with overrides: []",
        H,
        '  File "main_ppo.py", line 3, in main',
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    )
    assert [(candidate.line, candidate.chosen) for candidate in message.candidates] == [
        (3, True),
        (11, False),
        (6, False),
        (7, False),
    ]
    assert [candidate.state.split(":")[0].split()[0] for candidate in message.candidates] == [
        "raised",
        "only",
        "only",
        "a",
    ]
    assert message.decided == "rule peft: the stage decides; construction of the model had begun at peft: Fail"


@pytest.mark.parametrize(
    ("texts", "decided"),
    [
        (
            (STEP.format(1), "Training Progress: 100%|#| 1/1 [00:01]"),
            "the last requested step and its metrics are there",
        ),
        (("ray init kwargs: {}",), "no error ended the run"),
        ((H, '  File "a.py", line 1, in f', "ValueError: odd"), "no rule explains the error"),
        (("step:1 - actor/loss:nan - b:2 - c:3",), "rule metrics-not-finite: nothing was raised"),
        (("x.sh: line 12: python3: command not found",), "rule shell: a fault outside of the change"),
        (
            (H, '  File "verl/utils/dataset/rl_dataset.py", line 1, in f', "KeyError: 'prompt'"),
            "rule data: the stage decides; construction of the model had not begun at data: Blocked",
        ),
    ],
)
def test_every_way_to_decide_has_its_sentence(texts: tuple[str, ...], decided: str) -> None:
    assert explained(*texts).decided.startswith(decided)


def test_many_candidates_are_cut_in_the_text_and_whole_in_the_json() -> None:
    texts = [
        text
        for n in range(SHOWN_CANDIDATES + 5)
        for text in (H, '  File "x.py", line 1, in f', f"{'A' * (n + 1)}Error: x")
    ]
    message = explained(*texts)
    assert "and 5 more" in explain_text("x", message)
    assert len(json.loads(json.dumps(explain_json("x", message)))["candidates"]) == SHOWN_CANDIDATES + 5


def test_nothing_to_explain_is_said() -> None:
    text = explain_text("x", explained("hello"))
    assert "Phases: none is proven" in text
    assert "Candidates: no error" in text


def test_the_json_begins_with_the_keys_of_triage() -> None:
    message = explain_log(scan([recorded("level0-pass")]))
    shown = explain_json("a.log", message)
    assert list(shown)[:11] == list(triage_json("a.log", message.answer))
    assert list(shown)[11:] == ["schema", "rule", "decided", "fix", "runs", "phases", "candidates"]

"""The answer of triage as a person reads it: what it says, how long it may get, and what a terminal must not see."""

import pytest

from tests.core.logs import NAMES, lines, recorded
from tests.core.several_runs import FAILED, PASSED, case
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import Excerpt, Frame, Noise
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.explain import MAX_WIDTH, explain_log, explain_text, printable, triage_text
from verl_e2e.core.triage.triage import RunOutcome, Triage, TriageVerdict, triage

FAILURE = """\
run.log: fail in peft
  LoRA could not be applied: ValueError: no such layer
  at:     /w/megatron/bridge/peft/lora.py:7 transform
          raise ValueError(name)
  log:    line 4: (W pid=3) ValueError: no such layer
          Known layers: linear_qkv, linear_proj
  to do:  Reproduce with the PEFT tests; check target modules, rank and the layer that is wrapped. \
See docs/triage.md#peft."""


def test_a_failure_is_told_with_its_frame_message_and_what_to_do() -> None:
    texts = ("Traceback (most recent call last):", '  File "/w/megatron/bridge/peft/lora.py", line 7, in transform')
    rows = (*texts, "    raise ValueError(name)", "ValueError: no such layer", "Known layers: linear_qkv, linear_proj")
    shown = triage_text("run.log", triage(scan(lines(*(f"(W pid=3) {row}" for row in rows)))))
    assert shown == FAILURE


def test_a_pass_names_its_noise() -> None:
    shown = triage_text("run.log", triage(scan([recorded("level0-pass")]))).splitlines()
    assert shown[0] == "run.log: pass in shutdown"
    assert shown[-1] == "  noise:  dataloader-worker-killed, line 1350, 1x"
    assert not any(row.startswith("  to do:") for row in shown)


def test_the_other_runs_are_reported() -> None:
    answer = triage(scan([case("fail, then pass", FAILED[0], PASSED[0], answer=2).log]))
    shown = triage_text("run.log", answer).splitlines()
    assert shown[-2] == "  run:    the answer is about run 2 of the 2 in this log"
    assert shown[-1].startswith(
        "  run 1:  lines 1-1422: fail in peft, line 1299: LoRA could not be applied: ValueError"
    )


def hostile(text: str) -> Triage:
    """An answer that a log wrote as far as a log can."""
    at = Excerpt(7, text)
    noise = tuple(Noise(f"{text}{number}", at, 1) for number in range(200))
    others = tuple(RunOutcome(n, 1, 2, TriageVerdict.FAIL, Stage.PEFT, text, 3) for n in range(1, 8))
    return Triage(
        TriageVerdict.FAIL, Stage.PEFT, text, 7, text, noise, "x", text, Frame(text, 1, text, text), text, 8, others
    )  # fmt: skip


HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x1bc",
    "\x9b31m red",
    "a\rb\x08\x08c\x00",
    "\u202egnp.exe\u2066\u200b\u2028",
    "\ud800\udfff",
    "first\n\x1b[1A\x1b[2Ksecond",
    "y" * 100_000,
    "long words " * 20_000,
    "\n" * 10_000,
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_log_reaches_the_terminal_as_a_command(text: str) -> None:
    shown = triage_text(text, hostile(text))
    assert all(char.isprintable() for row in shown.split("\n") for char in row)
    assert len(shown.split("\n")) < 45
    assert all(len(row) <= MAX_WIDTH for row in shown.split("\n"))


@pytest.mark.parametrize("text", HOSTILE)
def test_the_explanation_is_as_harmless(text: str) -> None:
    log = f"ray init kwargs: {text}\nTraceback (most recent call last):\n{text}Error: {text}\n".encode(
        "utf-8", "replace"
    )
    message = explain_log(scan([log]))
    assert all(char.isprintable() for row in explain_text(text, message).split("\n") for char in row)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_run_fits_a_screen(name: str) -> None:
    shown = triage_text(name, triage(scan([recorded(name)])))
    assert len(shown.split("\n")) <= 24


def test_printable_keeps_what_people_read() -> None:
    assert printable("caf\xe9 100%|██| \u4f60\t.") == "caf\xe9 100%|██| \u4f60 ."

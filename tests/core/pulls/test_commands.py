"""Each command as it is read, and what it asks for."""

import string
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pulls.entries import HEAD, NOW, OTHER, SMOKE, asked, override, run
from tests.fakes.places import ROOT
from tools.write_tables import render_reference
from verl_e2e.core.model.access import Capability
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.commands import (
    LEVEL,
    MAX_REASON,
    MAX_REQUESTS,
    OPTIONS,
    PREFIX,
    TABLE,
    Command,
    CommandLine,
    Mistake,
    asked_again,
    asked_for,
    cancelled_by,
    in_written_order,
    level_requests,
    parse_commands,
    was_begun,
)
from verl_e2e.core.pulls.ledger import RecordedCommand, Run, RunState
from verl_e2e.core.report.command_text import render_help, render_mistakes

SHA = "0123456789abcdef0123456789abcdef01234567"


def parsed(text: str) -> Command | Mistake:
    (one,) = parse_commands((CommandLine(1, f"{PREFIX} {text}".rstrip()),))
    return one


UNDERSTOOD: tuple[tuple[str, str, tuple[str, ...], dict[str, str]], ...] = (
    ("level0", "level", ("0",), {}),
    ("level2 level0", "level", ("0", "2"), {}),
    ("level0-2 level1", "level", ("0", "1", "2"), {}),
    ("level1-level3", "level", ("1", "2", "3"), {}),
    ("all", "level", ("0", "1", "2", "3", "4", "5"), {}),
    ("level5 steps=40 model=Qwen/Qwen3-0.6B", "level", ("5",), {"steps": "40", "model": "Qwen/Qwen3-0.6B"}),
    ("LEVEL2 variant=2-vpp", "level", ("2",), {"variant": "2-vpp"}),
    ("level2 parity", "level", ("2",), {"variant": "parity"}),
    ("level2 Parity steps=5", "level", ("2",), {"variant": "parity", "steps": "5"}),
    ("all variant=2-vpp", "level", ("0", "1", "2", "3", "4", "5"), {"variant": "2-vpp"}),
    ("level0 verl-ref=release/v0.7.x", "level", ("0",), {"verl_ref": "release/v0.7.x"}),
    (f"level2 mcore_ref={SHA.upper()}", "level", ("2",), {"mcore_ref": SHA}),
    ("level0 image=verlai/verl:vllm024.dev2", "level", ("0",), {"image": "verlai/verl:vllm024.dev2"}),
    ("plan", "plan", (), {}),
    ("run", "run", (), {}),
    ("rerun", "rerun", (), {}),
    ("rerun failed", "rerun", ("failed",), {}),
    ("rerun Blocked", "rerun", ("blocked",), {}),
    ("cancel", "cancel", (), {}),
    ("status", "status", (), {}),
    ("explain src/megatron/bridge/peft/lora.py:LoRA.transform", "explain",
     ("src/megatron/bridge/peft/lora.py:LoRA.transform",), {}),
    (f"approve {SHA.upper()}", "approve", (SHA,), {}),
    (f"override 2 {SHA}  no four GPUs = no run ", "override", ("2", SHA, "no four GPUs = no run"), {}),
    (f"override level3 {SHA.upper()} no one has FSDP here", "override", ("3", SHA, "no one has FSDP here"), {}),
    ("help", "help", (), {}),
)  # fmt: skip


@pytest.mark.parametrize(("text", "verb", "arguments", "options"), UNDERSTOOD)
def test_a_command_is_understood(text: str, verb: str, arguments: tuple[str, ...], options: dict[str, str]) -> None:
    assert parsed(text) == Command(1, verb, arguments, options)


LONG = f"down {'x' * MAX_REASON}"
MISTAKEN = (
    ("", PREFIX, "no command follows", "help"),
    ("levl0", "levl0", "no such command", "'level0'"),
    ("rerunn failed", "rerunn", "no such command", "'rerun'"),
    ("level", "level", "no such command", "'level"),
    ("level7", "level7", "no such level", "0 to 5"),
    ("level3-1", "level3-1", "backwards", "0 to 5"),
    ("level0 levle2", "levle2", "not a level", "'level2'"),
    ("level0 stepz=3", "stepz=3", "no such option", "'steps'"),
    ("level0 steps=0", "steps=0", "no number of steps", "1 to 1000"),
    ("level0 steps=1001", "steps=1001", "no number of steps", "1 to 1000"),
    ("level0-2 steps=1", "steps=1", "saves before its last step", "2 or more"),
    ("level0 steps=2 steps=3", "steps=3", "given twice", "leave one out"),
    ("level0 model=Qwen", "model=Qwen", "no model id", "Qwen/Qwen3"),
    ("level0 model=a/b;rm", "model=a/b;rm", "no model id", "Qwen/Qwen3"),
    ("level0 variant=2-vp", "variant=2-vp", "no such variant", "'2-vpp'"),
    ("level1 variant=2-vpp", "variant=2-vpp", "not a variant of the levels that are requested", "level2"),
    ("level1 parity", "parity", "not a variant of the levels that are requested", "level2"),
    ("level2 parity variant=2-vpp", "variant=2-vpp", "given twice", "leave one out"),
    ("parity", "parity", "no such command", ""),
    ("level0 mcore_ref=main", "mcore_ref=main", "no full commit SHA", "write all 40 hexadecimal digits"),
    ("level0 verl_ref=a..b", "verl_ref=a..b", "no commit", "verl_ref=main"),
    ("level0 verl_ref=--upload-pack=x", "verl_ref=--upload-pack=x", "no commit", "verl_ref=main"),
    ("level0 image=$(id)", "image=$(id)", "no image", "name:tag"),
    ("run steps=3", "steps=3", "does not take this word", "/verl-e2e run"),
    ("rerun fialed", "fialed", "not known here", "'failed'"),
    ("approve", "approve", "FULL-SHA is missing", "approve FULL-SHA"),
    ("approve 0123456", "0123456", "no full commit SHA", "40 hexadecimal"),
    ("override 2", "2", "FULL-SHA is missing", "override LEVEL FULL-SHA REASON"),
    (f"override 2 {SHA}", SHA, "REASON is missing", "override LEVEL FULL-SHA REASON"),
    (f"override 2 {SHA} because", "because", "no reason", "few words"),
    (f"override 2 {SHA} {LONG}", LONG, "longer than", "shorter"),
    ("override 2 the cluster is down", "the", "no full commit SHA", "40 hexadecimal"),
    ("override 2 0123456 the cluster is down", "0123456", "no full commit SHA", "40 hexadecimal"),
    ("override 9 the cluster is down", "9", "not a level", "0 to 5"),
    ("explain ../../etc/passwd", "../../etc/passwd", "no path", "top folder"),
    ("explain `id`", "`id`", "no path", "top folder"),
)


@pytest.mark.parametrize(("text", "wrong", "what", "fix"), MISTAKEN)
def test_a_mistake_is_found_where_it_stands(text: str, wrong: str, what: str, fix: str) -> None:
    found = parsed(text)
    assert isinstance(found, Mistake)
    assert (found.text[found.start : found.end], what in found.what, fix in found.fix) == (wrong, True, True), found


def test_the_answer_to_a_mistake_points_at_the_word() -> None:
    found = parsed("level0 stepz=3 model=a/b")
    assert isinstance(found, Mistake)
    assert render_mistakes([found]).splitlines() == [
        "No such option: did you mean 'steps'?",
        "```text",
        "/verl-e2e level0 stepz=3 model=a/b",
        "                 ^^^^^^^",
        "```",
    ]


@given(st.text(max_size=300))
def test_no_answer_calls_anybody_or_leaves_its_fence(text: str) -> None:
    line = " ".join(text.split())
    found = parsed(f"level0 @everyone {line} <!-- verl-e2e -->")
    assert isinstance(found, Mistake)
    words, fence, shown, caret, end, *rest = render_mistakes([found]).split("\n")
    assert fence == f"{end}text"
    assert end not in shown
    assert "@" not in shown + words
    assert "<!--" not in shown
    assert (set(caret), rest) == ({" ", "^"}, [""])


def test_more_than_ten_commands_are_one_mistake() -> None:
    lines = tuple(CommandLine(number, f"{PREFIX} status") for number in range(1, 14))
    *commands, last = parse_commands(lines)
    assert [type(command) for command in commands] == [Command] * 10
    assert isinstance(last, Mistake)
    assert last.line == 11


def test_a_line_without_end_is_a_mistake() -> None:
    found = parsed(f"override 2 {SHA} " + "x" * 5_000)
    assert isinstance(found, Mistake)
    assert "longer than 1000" in found.what


@given(st.text(alphabet=string.printable, max_size=80))
def test_what_is_understood_holds_nothing_that_a_shell_acts_on(text: str) -> None:
    found = parsed(" ".join(text.split()) or "help")
    if isinstance(found, Mistake) or found.verb == "override":
        return
    values = (*found.arguments, *found.options.values())
    assert not set("".join(values)) & set(" ;&|<>$`\\\"'(){}[]*?!#~\n\t")


@pytest.mark.parametrize("verb", TABLE, ids=lambda item: item.name)
def test_every_example_is_its_own_command(verb) -> None:  # type: ignore[no-untyped-def]
    (found,) = parse_commands((CommandLine(1, verb.example),))
    assert isinstance(found, Command)
    assert found.verb == verb.name


def test_help_and_document_name_every_command_option_and_capability() -> None:
    for text in (render_help(), render_reference()):
        assert [item.name for item in TABLE if item.help not in text] == []
        assert [option.name for option in OPTIONS if f"{option.name}=" not in text] == []
    assert {item.needs for item in TABLE} == set(Capability)


# A test of what each command does, beyond that it is understood.
PROVED = {
    "level": "tests/app/test_reconciling.py::test_an_extra_level_runs_beside_the_plan_and_never_satisfies_the_gate",
    "plan": "tests/core/pulls/test_decide.py::test_what_starts_and_what_ends",
    "run": "tests/core/pulls/test_commands.py::test_whether_the_work_on_a_head_was_begun_or_ended",
    "rerun": "tests/app/test_reconciling.py::test_rerun_runs_again_what_it_names_and_once",
    "cancel": "tests/core/pulls/test_commands.py::test_whether_the_work_on_a_head_was_begun_or_ended",
    "status": "tests/app/test_restoring.py::test_status_puts_right_what_somebody_changed",
    "explain": "tests/app/test_reconciling.py::test_explain_and_help_are_answered_once",
    "rehearse": "tests/stories/test_rehearsals.py::test_a_fail_closes_the_gate_and_no_job_starts",
    "approve": "tests/app/test_reconciling.py::test_a_fork_waits_for_an_approval_of_exactly_its_head",
    "override": "tests/app/test_reconciling.py::test_an_override_needs_nothing_to_run_and_is_shown",
    "priority": "tests/core/pulls/test_decide.py::test_the_last_priority_counts_on_every_head",
    "pause": "tests/stories/test_slots.py::test_a_pause_holds_what_has_not_started_and_says_so_until_it_is_resumed",
    "resume": "tests/stories/test_slots.py::test_a_pause_holds_what_has_not_started_and_says_so_until_it_is_resumed",
    "help": "tests/app/test_reconciling.py::test_explain_and_help_are_answered_once",
}


def test_every_command_has_a_test_of_what_it_does() -> None:
    assert sorted(PROVED) == sorted(verb.name for verb in TABLE)
    for proof in PROVED.values():
        file, _, name = proof.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), proof


@pytest.mark.parametrize(
    ("line", "verb"),
    ((PREFIX, ""), (f"{PREFIX} Approve 0123456", "approve"), (f"{PREFIX}  nonsense", "nonsense")),
)
def test_a_mistake_names_the_command_that_was_meant(line: str, verb: str) -> None:
    assert Mistake(1, line, 0, 0, "wrong").verb == verb


def test_entries_count_in_the_order_in_which_they_were_written() -> None:
    first = asked("run", minute=9, source="comment:5:1", written=NOW)
    second = asked("cancel", minute=1, source="comment:6:1", written=NOW)
    label = asked("run", minute=2, source="label:level0:aaaa")
    odd = asked("run", minute=3, source="check:abc:rerun", written=NOW + timedelta(minutes=1))
    given = override(Level.SMOKE)
    assert in_written_order((label, odd, second, first, given)) == (given, first, second, odd, label)


def test_only_commands_on_this_head_count() -> None:
    here, there = asked("run"), asked("run", head=OTHER)
    assert asked_for((here, there, override(Level.SMOKE)), HEAD) == (here,)


@pytest.mark.parametrize(
    ("entries", "cancelled", "begun"),
    (
        ((), False, False),
        ((asked("cancel"),), True, False),
        ((asked("cancel"), asked("run", minute=1)), False, True),
        ((asked("cancel"), asked("rerun", minute=1)), False, True),
        ((asked("cancel"), asked(LEVEL, "1", minute=1)), False, False),
        ((asked("cancel"), asked("plan", minute=1)), True, False),
        ((asked("run"), asked("cancel", minute=1)), True, True),
        ((asked("cancel", head=OTHER), asked("run", head=OTHER)), False, False),
    ),
)
def test_whether_the_work_on_a_head_was_begun_or_ended(
    entries: tuple[RecordedCommand, ...], cancelled: bool, begun: bool
) -> None:
    assert (cancelled_by(entries, HEAD) is not None, was_begun(entries, HEAD)) == (cancelled, begun)


def test_the_same_levels_asked_for_twice_count_once() -> None:
    entries = (
        asked(LEVEL, "1", "2"),
        asked(LEVEL, "1", "2", minute=1),
        asked(LEVEL, "1", "2", minute=2, options={"steps": "3"}),
        asked("run", minute=3),
        asked(LEVEL, "1", head=OTHER),
    )
    found = level_requests(entries, HEAD)
    assert [(request.source, request.levels, dict(request.options)) for request in found] == [
        ("comment:100:1", (Level(1), Level(2)), {}),
        ("comment:102:1", (Level(1), Level(2)), {"steps": "3"}),
    ]


def test_so_many_different_requests_for_one_head_are_served() -> None:
    many = tuple(asked(LEVEL, "0", minute=count, options={"steps": str(count)}) for count in range(MAX_REQUESTS + 5))
    assert len(level_requests(many, HEAD)) == MAX_REQUESTS


FAILED = run(SMOKE, result=Result.FAIL)
BLOCKED = run(SMOKE, result=Result.BLOCKED)
LOST = run(SMOKE, RunState.LOST)
CANCELLED = run(SMOKE, RunState.CANCELLED, updated=NOW + timedelta(minutes=5))


@pytest.mark.parametrize(
    ("last", "entry", "again"),
    (
        (FAILED, asked("rerun"), True),
        (FAILED, asked("rerun", "failed"), True),
        (FAILED, asked("rerun", "blocked"), False),
        (FAILED, asked("rerun", SMOKE.id), True),
        (FAILED, asked("rerun", "1-resume"), False),
        (FAILED, asked("plan"), False),
        (BLOCKED, asked("rerun", "failed"), False),
        (BLOCKED, asked("rerun", "blocked"), True),
        (LOST, asked("rerun", "blocked"), True),
        # A pass stays, and what has not ended is not begun a second time.
        (run(SMOKE), asked("rerun"), False),
        (run(SMOKE, RunState.RUNNING), asked("rerun"), False),
        # `run` goes on only with what was cancelled, and counts from the start of that run.
        (FAILED, asked("run"), False),
        (CANCELLED, asked("run", minute=1), True),
        (CANCELLED, asked("run", minute=-1), False),
        (FAILED, asked("rerun", minute=-1), False),
        # An entry counts once for a job.
        (run(SMOKE, result=Result.FAIL, asked_by="comment:100:1"), asked("rerun"), False),
    ),
)
def test_which_entry_wants_an_ended_run_once_more(last: Run, entry: RecordedCommand, again: bool) -> None:
    assert asked_again(last, (last,), (entry,)) == (entry.source if again else "")

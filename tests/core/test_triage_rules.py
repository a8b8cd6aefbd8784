"""The rule tables: every rule earns its place, quotes nothing particular, and has its section in the docs."""

import re
from pathlib import Path

import pytest

from bot.core.facts import LoggedError
from bot.core.scan import scan
from bot.core.scan_literals import grep_patterns
from bot.core.stages import Stage
from bot.core.triage import RULES, Triage, stage_of, triage
from bot.core.triage_docs import noise_table, runbook
from bot.core.triage_noise import NOISE_RULES, noise_name
from bot.core.triage_rules import Rule

ROOT = Path(__file__).resolve().parents[2]
IDS = [rule.id for rule in RULES]


def judged(rule: Rule, rules: tuple[Rule, ...]) -> Triage:
    return triage(scan([rule.example.encode()]), rules)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_each_rule_explains_its_example(rule: Rule) -> None:
    answer = judged(rule, RULES)
    assert answer.rule == rule.id
    assert answer.cause.startswith(rule.cause)
    assert rule.stage in (None, answer.stage)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_without_a_rule_its_example_is_judged_otherwise(rule: Rule) -> None:
    with_it, without = judged(rule, RULES), judged(rule, tuple(other for other in RULES if other is not rule))
    assert (with_it.verdict, with_it.stage, with_it.cause) != (without.verdict, without.stage, without.cause)


def test_ids_are_unique_and_fit_for_an_anchor() -> None:
    assert len(set(IDS)) == len(IDS)
    assert all(re.fullmatch(r"[a-z][a-z-]+", name) for name in IDS)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_no_rule_quotes_anything_particular(rule: Rule) -> None:
    matcher = " ".join((rule.message, rule.kind, rule.calls))
    assert matcher.strip(), "a rule without a matcher would take everything"
    # Absolute paths, models, process ids and line numbers belong to one log, not to a kind of error.
    assert not re.search(r"/(?:root|home|opt|workspace|tmp|mnt|usr)\b", matcher)
    assert not re.search(r"(?i)qwen|llama|deepseek|gsm8k|mistral", matcher)
    assert not re.search(r"(?<!\\)(?<![{,\d])\d{4,}", matcher)
    assert "line \\d" not in matcher


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_every_rule_says_what_to_do_and_where_it_is_from(rule: Rule) -> None:
    assert rule.mend.endswith(".")
    assert rule.source
    assert not rule.cause.endswith(".")


def test_the_stage_of_an_error_is_what_its_frames_say() -> None:
    (error,) = scan([b'  File "megatron/bridge/peft/lora.py", line 1, in transform\nValueError: no\n']).errors
    assert stage_of(error) is Stage.PEFT
    (elsewhere,) = scan([b'  File "somewhere.py", line 1, in work\nValueError: no\n']).errors
    assert stage_of(elsewhere) is Stage.ENVIRONMENT


@pytest.mark.parametrize("noise", NOISE_RULES, ids=[noise.name for noise in NOISE_RULES])
def test_each_noise_rule_explains_its_example_after_completion_only(noise: object) -> None:
    rule = next(rule for rule in NOISE_RULES if rule is noise)
    kind, _, message = rule.example.partition(": ")
    known = kind if kind.endswith("Error") else "Terminated" if "SIGTERM" in kind else ""
    late = scan([b"x\n"]).last
    assert late is not None
    error = LoggedError(late, known, message or kind, (), "", None, Stage.SHUTDOWN, after_completion=True)
    early = LoggedError(late, known, message or kind, (), "", None, Stage.SHUTDOWN, after_completion=False)
    assert noise_name(error) == rule.name
    assert noise_name(early) == ""


def test_the_docs_hold_a_section_for_every_rule() -> None:
    text = (ROOT / "docs" / "triage.md").read_text()
    assert runbook(RULES) in text, "run `python bench/write_tables.py`"
    assert noise_table() in text, "run `python bench/write_tables.py`"
    assert all(f"`{stage}`" in text for stage in Stage)


def test_the_pattern_file_of_the_benchmark_is_in_step() -> None:
    assert (ROOT / "bench" / "grep.txt").read_text() == grep_patterns(), "run `python bench/write_tables.py`"

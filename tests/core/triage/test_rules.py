"""The rule table: every rule earns its place, quotes nothing particular, and has its section in the docs."""

import ast
import re

import pytest

from tests.fakes.places import ROOT
from tools.write_tables import grep_patterns, noise_table, runbook
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.rules import NoiseRule, TriageRule
from verl_e2e.core.triage.table import NOISE, RULES
from verl_e2e.core.triage.triage import COMPLETED, INCOMPLETE, UNEXPLAINED, Triage, fix_of, noise_name, stage_of, triage

TABLE = ROOT / "bot" / "verl_e2e" / "core" / "triage" / "table.py"
IDS = [rule.id for rule in RULES]


def judged(rule: TriageRule, rules: tuple[TriageRule, ...]) -> Triage:
    return triage(scan([rule.example.encode()]), rules)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_each_rule_explains_its_example(rule: TriageRule) -> None:
    answer = judged(rule, RULES)
    assert answer.rule == rule.id
    assert rule.stage in (None, answer.stage)
    assert answer.fix == f"{rule.fix} See docs/triage.md#{rule.id}."


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_without_a_rule_its_example_is_judged_otherwise(rule: TriageRule) -> None:
    with_it, without = judged(rule, RULES), judged(rule, tuple(other for other in RULES if other is not rule))
    assert (with_it.verdict, with_it.stage, with_it.cause) != (without.verdict, without.stage, without.cause)
    assert with_it.verdict.capitalize() in rule.outcome


def test_ids_are_unique_and_fit_for_an_anchor() -> None:
    assert len(set(IDS)) == len(IDS)
    assert all(re.fullmatch(r"[a-z][a-z-]+", name) for name in IDS)


def test_the_table_is_one_file_of_rows_and_nothing_else() -> None:
    tree = ast.parse(TABLE.read_text())
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    assert all(isinstance(node, allowed) for node in tree.body)
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert called == {"TriageRule", "NoiseRule"}
    computing = (ast.IfExp, ast.BinOp, ast.comprehension, ast.Lambda, ast.FormattedValue)
    assert not any(isinstance(node, computing) for node in ast.walk(tree))
    others = [path for path in (ROOT / "bot").rglob("*triage*.py") if path != TABLE]
    assert not any(re.search(r"\b(?:Noise|Triage)Rule\(\n?\s*(?:id|name)=", path.read_text()) for path in others)


def test_every_silent_fault_has_one_row() -> None:
    rows = [rule.fact for rule in RULES if rule.fact is not None]
    assert len(rows) == len(set(rows)) == 16


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_no_rule_quotes_anything_particular(rule: TriageRule) -> None:
    matcher = " ".join((rule.message, rule.kind, rule.calls))
    assert matcher.strip() or rule.fact or rule.origin, "a rule without a matcher would take everything"
    # Absolute paths, models, process ids and line numbers belong to one log, not to a kind of error.
    assert not re.search(r"(?<![\w)\]+*])/(?:root|home|opt|workspace|tmp|mnt|usr|data|media)\b", matcher)
    assert not re.search(r"(?i)qwen|llama|deepseek|gsm8k|mistral|gemma|\bglm", matcher)
    assert not re.search(r"(?i)\bpid\b|\bip=", matcher)
    assert not re.search(r"(?<!\\)(?<![{,\d])\d{4,}", matcher)
    assert not re.search(r"line \\?d|(?<!\?):\d+\b", matcher)


@pytest.mark.parametrize("rule", [*RULES, *NOISE], ids=[*IDS, *(noise.name for noise in NOISE)])
def test_every_rule_says_where_it_is_from(rule: TriageRule | NoiseRule) -> None:
    # `Project, path:function`, or a public repository and file, or an issue.
    assert re.match(r"[A-Za-z][\w -]+, \S+", rule.source)
    assert rule.example.strip()


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_every_rule_says_what_to_do(rule: TriageRule) -> None:
    assert rule.fix.endswith(".")
    assert len(rule.fix) <= 200
    assert not rule.cause.endswith(".")
    assert all(step.strip() == step for step in rule.steps)


def anchors() -> set[str]:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "triage.md").read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*IDS, INCOMPLETE, UNEXPLAINED])
def test_every_fix_links_to_a_section_that_exists(name: str) -> None:
    rule = next((rule for rule in RULES if rule.id == name), None)
    linked = re.search(r"See docs/triage\.md#([\w-]+)\.$", fix_of(name, rule))
    assert linked is not None
    assert linked[1] in anchors()


def test_nothing_is_to_be_done_about_a_pass() -> None:
    assert fix_of(COMPLETED) == ""


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        ("ValueError: Shape mismatch for megatron param decoder.x:", "provider-mpu-sizes", ("mpu", "provider")),
        (
            "AssertionError: LoRA/PEFT only supported via Megatron-Bridge",
            "adapter-path",
            ("target_modules", "linear_qkv"),
        ),
        (
            "RuntimeError: 3 tensors from the original checkpoint were not written.",
            "export-strict",
            ("keys", "mapping"),
        ),
        ("OSError: [Errno 28] No space left on device", "disk-full", ("HF_HOME", "HF_HUB_CACHE", "MODEL_PATH")),
        (
            "ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set.",
            "rocr-and-cuda",
            ("ROCR_VISIBLE_DEVICES", "unset"),
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", "gpu-memory", ()),
    ],
)
def test_the_runbooks_that_the_guide_asks_for(line: str, rule: str, words: tuple[str, ...]) -> None:
    answer = triage(scan([f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{line}\n'.encode()]))
    assert answer.rule == rule
    section = runbook([row for row in RULES if row.id == rule])
    assert all(word in section for word in words)


def test_the_oom_ladder_ends_with_nodes() -> None:
    (row,) = (rule for rule in RULES if rule.id == "gpu-memory")
    rungs = ("Per-GPU load", "Micro-batch", "Response length", "Nodes")
    assert [step.startswith(rung) for step, rung in zip(row.steps, rungs, strict=True)] == [True] * 4
    assert fix_of(row.id, row).startswith("Lower the memory use: per-GPU load, then micro-batch")


def test_the_stage_of_an_error_is_what_its_frames_say() -> None:
    (error,) = scan([b'  File "megatron/bridge/peft/lora.py", line 1, in transform\nValueError: no\n']).errors
    assert stage_of(error) is Stage.PEFT
    (elsewhere,) = scan([b'  File "somewhere.py", line 1, in work\nValueError: no\n']).errors
    assert stage_of(elsewhere) is Stage.ENVIRONMENT


@pytest.mark.parametrize("noise", NOISE, ids=[noise.name for noise in NOISE])
def test_each_noise_rule_explains_its_example_after_completion_only(noise: object) -> None:
    rule = next(rule for rule in NOISE if rule is noise)
    kind, _, message = rule.example.partition(": ")
    known = kind if kind.endswith("Error") else "Terminated" if "SIGTERM" in kind else ""
    late = scan([b"x\n"]).last
    assert late is not None
    error = LoggedError(late, known, message or kind, "", None, Stage.SHUTDOWN, after_completion=True)
    early = LoggedError(late, known, message or kind, "", None, Stage.SHUTDOWN, after_completion=False)
    assert noise_name(error) == rule.name
    assert noise_name(early) == ""


def test_the_docs_hold_a_section_for_every_rule() -> None:
    text = (ROOT / "docs" / "triage.md").read_text()
    assert runbook(RULES) in text, "run `python tools/write_tables.py`"
    assert noise_table() in text, "run `python tools/write_tables.py`"
    assert all(f"`{stage}`" in text for stage in Stage)


def test_the_pattern_file_of_the_benchmark_is_in_step() -> None:
    assert (ROOT / "bench" / "grep.txt").read_text() == grep_patterns(), "run `python tools/write_tables.py`"

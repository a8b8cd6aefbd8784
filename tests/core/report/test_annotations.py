"""Annotations of changed lines: only where the traceback of a recorded failure passes through the change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.judged import judged
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import Plan, Reason
from verl_e2e.core.pulls.forge import MAX_ANNOTATIONS
from verl_e2e.core.report.annotations import MAX_ANNOTATED_PATHS, ChangedSource, annotate, paths_to_read

FAILED = judged("level0-lora-exception")
LORA = "src/megatron/bridge/peft/lora.py"
BASE = b"""import torch

class LoRA:
    def match(self):
        return 1

    def transform(self, module):
        size = module.size
        if size is None:
            return module
        return wrap(module, size)
"""
HEAD = BASE.replace(b"            return module\n", b"            raise ValueError(size)\n")


def _plan(*reasons: Reason) -> Plan:
    return Plan("b" * 40, "a" * 40, (Level.SMOKE,), (), reasons, (), (), ())


def _reason(path: str | None, symbol: str | None, *via: str) -> Reason:
    return Reason(Level.SMOKE, path, "verl runs it", symbol, via)


def test_the_changed_line_of_a_symbol_in_the_traceback_is_pointed_at() -> None:
    plan = _plan(_reason(LORA, "LoRA.transform"), _reason("src/megatron/bridge/peft/dora.py", "DoRA.transform"))
    assert paths_to_read(plan, FAILED) == (LORA,)
    (found,) = annotate(plan, FAILED, {LORA: ChangedSource(HEAD, BASE)})
    assert (found.path, found.first_line, found.last_line, found.level) == (LORA, 10, 10, "failure")
    assert found.title == "0-lora-ddp failed at peft"
    assert "src/megatron/bridge/peft/lora.py:transform" in found.message
    assert "the input size is unknown" in found.message


def test_all_lines_of_the_symbol_are_meant_where_none_of_them_is_new() -> None:
    (found,) = annotate(_plan(_reason(LORA, "LoRA.transform")), FAILED, {LORA: ChangedSource(HEAD, HEAD)})
    assert (found.first_line, found.last_line) == (7, 11)


def test_the_innermost_frame_comes_first() -> None:
    plan = _plan(_reason("src/megatron/bridge/peft/base.py", "PEFT.__call__"), _reason(LORA, "LoRA.transform"))
    assert paths_to_read(plan, FAILED) == (LORA, "src/megatron/bridge/peft/base.py")


def test_what_the_failed_function_leads_to_is_a_warning() -> None:
    changed = "src/megatron/bridge/peft/sizes.py"
    chain = (
        "verl/utils/megatron_utils.py:349 uses .x",
        "megatron.bridge.peft.lora.LoRA.transform calls",
        "megatron.bridge.peft.sizes.size",
    )
    (found,) = annotate(
        _plan(_reason(changed, "size", *chain)), FAILED, {changed: ChangedSource(b"def size():\n    pass\n")}
    )
    assert (found.level, found.first_line, found.last_line) == ("warning", 1, 2)
    assert found.message.startswith("The function that failed leads to size")


@pytest.mark.parametrize(
    "reason",
    [
        _reason(LORA, "LoRA.match"),
        _reason("src/megatron/bridge/peft/my_lora.py", "LoRA.transform"),
        _reason("lora.py", "LoRA.transform.inner"),
        _reason(None, None),
        _reason("src/other.py", "size", "megatron.bridge.other.LoRA.transform calls", "rule adapters"),
    ],
)
def test_nothing_else_of_a_change_is_accused(reason: Reason) -> None:
    assert paths_to_read(_plan(reason), FAILED) == ()


def test_only_a_fail_accuses() -> None:
    plan = _plan(_reason(LORA, "LoRA.transform"))
    for result in (Result.BLOCKED, Result.PASS):
        assert paths_to_read(plan, replace(FAILED, result=result)) == ()
    assert annotate(plan, FAILED, {}) == ()


def test_a_file_judged_by_its_name_is_met_by_any_of_its_functions() -> None:
    (found,) = annotate(_plan(_reason(LORA, None)), FAILED, {LORA: ChangedSource(HEAD, BASE)})
    assert (found.first_line, found.last_line) == (10, 10)


def test_a_file_that_cannot_be_read_is_pointed_at_as_far_as_it_goes() -> None:
    (found,) = annotate(_plan(_reason(LORA, "LoRA.transform")), FAILED, {LORA: ChangedSource(b"def (:\n")})
    assert (found.first_line, found.last_line) == (1, 1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=40), max_size=30),
    st.lists(st.tuples(st.text(max_size=30), st.none() | st.text(max_size=30), st.text(max_size=30)), max_size=80),
    st.binary(max_size=80),
)
def test_whatever_a_run_says_the_remarks_are_within_the_limits(
    calls: list[str], places: list[tuple[str, str | None, str]], content: bytes
) -> None:
    reasons = tuple(_reason(path, symbol, step) for path, symbol, step in places)
    calls += [f"{path}:{symbol}" for path, symbol, _ in places]
    verdict = replace(FAILED, calls=tuple(calls), cause="".join(calls))
    plan = replace(_plan(*reasons), levels=(Level.SMOKE,))
    assert len(paths_to_read(plan, verdict)) <= MAX_ANNOTATED_PATHS
    found = annotate(plan, verdict, {path: ChangedSource(content) for path, _, _ in places})
    assert len(found) <= MAX_ANNOTATIONS
    for annotation in found:
        assert 1 <= annotation.first_line <= annotation.last_line
        assert "\n" not in annotation.message
        assert len(annotation.message) < 2_000

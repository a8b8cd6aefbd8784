"""Patches and overrides that touch what a change touches."""

import pytest

from verl_e2e.core.model.execution import ChangedCode, ChangedFunction, Side
from verl_e2e.core.model.jobs import Patch, Substitution
from verl_e2e.core.plan.code_plan import read_overrides, replaced_lines, without_touched

SOURCE = b"import os\nX = 1\ndef f():\n    a()\n    b()\n\ndef g():\n    a()\n"


def patch(*pairs: tuple[str, str], repository: str = "bridge", file: str = "src/a.py") -> Patch:
    changes = tuple(Substitution(old=old, new=new) for old, new in pairs)
    return Patch.model_validate(
        {
            "name": "fix",
            "repository": repository,
            "file": file,
            "substitutions": changes,
            "before": "0" * 64,
            "after": "1" * 64,
            "reason": "it does not start",
        }
    )


@pytest.mark.parametrize(
    ("pairs", "lines"),
    (
        ([("b()", "c()")], ((5, 5),)),
        ([("a()", "c()")], ((4, 4), (8, 8))),
        ([("    a()\n    b()\n", "")], ((4, 5),)),
        ([("X = 1", "Y = 1"), ("b()", "c()")], ((2, 2), (5, 5))),
        # The second place is there only after the first one was replaced.
        ([("b()", "c()"), ("c()", "d()")], ((1, 9),)),
    ),
)
def test_the_lines_that_a_patch_replaces(pairs: list[tuple[str, str]], lines: tuple[tuple[int, int], ...]) -> None:
    assert replaced_lines(patch(*pairs), SOURCE) == lines


def function(symbol: str, first: int, last: int, **given: object) -> ChangedFunction:
    fields = {"path": "src/a.py", "symbol": symbol, "first_line": first, "last_line": last} | given
    return ChangedFunction.model_validate(fields)


F, G, BODY = function("f", 3, 5), function("g", 7, 8), function("", 1, 8, lines=(2,))


@pytest.mark.parametrize(
    ("made", "changed", "touched"),
    (
        (patch(("b()", "c()")), (F,), "f"),
        (patch(("b()", "c()")), (G,), ""),
        (patch(("a()", "c()")), (G,), "g"),
        (patch(("X = 1", "X = 2")), (BODY,), "the module level"),
        (patch(("import os", "import re")), (BODY,), ""),
        (patch(("b()", "c()")), (function("f", 3, 5, side=Side.MERGE_BASE),), ""),
        (patch(("b()", "c()"), file="src/b.py"), (F,), ""),
        # verl's own files are not under test.
        (patch(("b()", "c()"), repository="verl"), (F,), ""),
    ),
)
def test_a_patch_of_changed_code_is_left_out(made: Patch, changed: tuple[ChangedFunction, ...], touched: str) -> None:
    lines = {made: replaced_lines(made, SOURCE)}
    kept, left_out = without_touched([made], lines, ChangedCode(functions=changed))
    assert kept == (() if touched else (made,))
    says = f"patch fix is left out, because it replaces code that the change touches: src/a.py, {touched}"
    assert left_out == ((says,) if touched else ())


def test_a_patch_whose_lines_are_not_known_touches_its_whole_file() -> None:
    assert without_touched([patch(("b()", "c()"))], {}, ChangedCode(functions=(G,)))[0] == ()


@pytest.mark.parametrize(
    ("override", "value"),
    (
        ("++actor.megatron.override_transformer_config.fusion=False", "False"),
        ("+critic.override_ddp_config.fusion=True", "True"),
        ("actor.model.lora.fusion=8", "8"),
        # Not a setting of Bridge, or not one that the change reads.
        ("trainer.fusion=1", ""),
        ("fusion=1", ""),
        ("actor.megatron.fusion.other=1", ""),
    ),
)
def test_an_override_of_what_the_change_reads_is_named(override: str, value: str) -> None:
    found = read_overrides([override], frozenset({"fusion"}))
    assert found == (
        (f"the change reads fusion, which the site fixes as {value}: other values are not exercised",) if value else ()
    )


def test_one_setting_is_named_once() -> None:
    overrides = [
        f"++{name}.megatron.override_transformer_config.fusion={value}"
        for name, value in (("a", 0), ("b", 1), ("c", 0))
    ]
    (sentence,) = read_overrides(overrides, frozenset({"fusion"}))
    assert "as 0 and 1:" in sentence

"""What a verdict carries of executed code: small, and read back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from verl_e2e.core.model.execution import MOST_LINES, Entered, FunctionRun, LineNumbers, line_ranges

_LINES: TypeAdapter[tuple[int, ...]] = TypeAdapter(LineNumbers)
LINE_SETS = st.sets(st.integers(1, 400)).map(lambda found: tuple(sorted(found)))


def test_lines_are_shown_as_ranges() -> None:
    assert line_ranges((20, 12, 13, 14, 14)) == ("12-14", "20")
    assert line_ranges(()) == ()


@given(LINE_SETS)
def test_lines_are_written_as_one_text_and_read_back(lines: tuple[int, ...]) -> None:
    text = _LINES.dump_json(lines)
    assert text.count(b",") == max(0, len(line_ranges(lines)) - 1)
    assert _LINES.validate_json(text) == lines


@pytest.mark.parametrize("text", ["twelve", "1-", "-3", "3-2-1", "1;2", "²", "12-x", f"1-{MOST_LINES + 1}", "9" * 10])
def test_what_is_not_a_list_of_lines_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        _LINES.validate_python(text)


def test_a_list_of_numbers_is_read_too() -> None:
    assert _LINES.validate_json("[3, 5]") == (3, 5)


def test_code_at_import_is_named_by_its_lines() -> None:
    function = FunctionRun("a.py", "", 1, Entered.IN_VERL, ran=(3,), missed=(7, 8))
    assert (function.name, function.place) == ("code at import", "a.py:3, 7-8")
    assert FunctionRun("a.py", "", 1, Entered.NEVER).place == "a.py:1"
    assert FunctionRun("a.py", "f", 9, Entered.NEVER, missed=(10,)).place == "a.py:9"

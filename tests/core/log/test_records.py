"""Records that a log store put around lines: texts with their leaves, and records with the field of the line."""

import json
from collections.abc import Mapping

import pytest

from verl_e2e.core.log.lines import MAX_LEAVES, MAX_NESTING, message_path, parse_record

DEEP = '{"a": ' * (MAX_NESTING + 1) + "1" + "}" * (MAX_NESTING + 1)


@pytest.mark.parametrize(
    ("text", "leaves"),
    (
        ("", None),
        ("step:1 - actor/loss:0.5", None),
        ('{"log": "a line", "count": 2}', {"log": "a line", "count": "2"}),
        ('{"a": {"b": "x"}, "none": null, "list": [1]}', {"a.b": "x"}),
        # A row of an array, the first, a middle and the last one.
        ('[{"log": "x"},', {"log": "x"}),
        (',{"log": "x"}', {"log": "x"}),
        ('{"log": "x"},', {"log": "x"}),
        ('{"log": "x"}]', {"log": "x"}),
        ('{"log": "x"} and more', None),
        ('{"log": x}', None),
        ("{}", None),
        (DEEP, None),
        ('level=info msg="a \\"quoted\\" line"', {"level": "info", "msg": 'a "quoted" line'}),
        ('msg="a line" level=', {"msg": "a line", "level": ""}),
        # What is not an escape of JSON stays as it is.
        ('level=info msg="a \\x line"', {"level": "info", "msg": "a \\x line"}),
        ('msg="a line"', None),
        ('level=info msg="a line" and more', None),
    ),
)
def test_the_leaves_of_a_record(text: str, leaves: Mapping[str, str] | None) -> None:
    assert parse_record(text) == leaves


@pytest.mark.parametrize(
    "text",
    (
        json.dumps({f"key{number}": "x" for number in range(MAX_LEAVES + 5)}),
        " ".join(f'key{number}="x"' for number in range(MAX_LEAVES + 5)),
    ),
)
def test_the_leaves_of_a_record_are_bounded(text: str) -> None:
    assert len(parse_record(text) or {}) == MAX_LEAVES


@pytest.mark.parametrize(
    ("records", "known", "path"),
    (
        ([], "", None),
        ([{"time": "12:00", "log": "a line here"}], "", "log"),
        # The field whose values say most; what differs in digits only is a time or a count.
        ([{"when": f"day {day} of all", "what": f"{day} {'ab'[day]} line"} for day in (0, 1)], "", "what"),
        # A name of the common stores decides between two that say as much.
        ([{"a.other": "one line", "a.message": "one line"}], "", "a.message"),
        # A line of the program goes before all others, also where a record has no such field.
        ([{"log": "a long line of no one", "x": "step:1 - a"}, {"log": "more of the same"}], "step:", "x"),
    ),
)
def test_the_field_that_holds_the_line(records: list[dict[str, str]], known: str, path: str | None) -> None:
    assert message_path(records, lambda text: bool(known) and text.startswith(known)) == path

"""One line of a log: prefixes, colours, carriage returns, odd bytes, and the records that log stores put around it."""

import json
from collections.abc import Mapping

import pytest

from verl_e2e.core.log.lines import (
    EXCERPT_CAP,
    LINE_CAP,
    MAX_LEAVES,
    MAX_NESTING,
    clean,
    message_path,
    parse_line,
    parse_record,
)

CASES = (
    (b"plain", "", "plain"),
    (b"14:20:56 + export X=1", "", "+ export X=1"),
    (b"2026-11-20T14:20:56.1234567Z   File x", "", "  File x"),
    (b"2026-11-20 14:20:56 [rank3]: x", "[rank3]: ", "x"),
    (b"2026-11-20 14:22:49,005 - INFO - x", "", "2026-11-20 14:22:49,005 - INFO - x"),
    (b"\x1b[36m(WorkerDict pid=7470)\x1b[0m   File x", "(WorkerDict pid=7470) ", "  File x"),
    (b"14:22:49 (vLLMHttpServer pid=1) (Worker pid=2) text", "(vLLMHttpServer pid=1) (Worker pid=2) ", "text"),
    (b"(WorkerDict pid=7, ip=192.0.2.7) text", "(WorkerDict pid=7, ip=192.0.2.7) ", "text"),
    (b"(pid=7998) text", "(pid=7998) ", "text"),
    (b"[rank0]:   File x", "[rank0]: ", "  File x"),
    (b"[rank12]: ", "[rank12]: ", ""),
    (b"(raylet) text", "(raylet) ", "text"),
    (
        b"(EngineCore pid=3) ERROR 11-20 14:54:32 [core.py:1231]   File x",
        "(EngineCore pid=3)  [core.py:1231] ",
        "  File x",
    ),
    (b"(W pid=3) ERROR 03-10 22:48:08 core.py:12] raised", "(W pid=3)  core.py:12] ", "raised"),
    (b"(WorkerDict pid=3) warn [repeated 7x across cluster]", "(WorkerDict pid=3) [repeated]", "warn"),
    (b"(TaskRunner pid=3) \rbar 1%\rbar 2%\r", "(TaskRunner pid=3) ", "bar 2%"),
    (b"(not a prefix) text", "", "(not a prefix) text"),
    (b"caf\xe9", "", "caf\N{REPLACEMENT CHARACTER}"),
    (b"", "", ""),
)


@pytest.mark.parametrize(("raw", "source", "text"), CASES)
def test_a_line_is_taken_apart(raw: bytes, source: str, text: str) -> None:
    line = parse_line(1, raw)
    assert (line.source, line.text) == (source, text)


def test_the_innermost_process_speaks() -> None:
    line = parse_line(5, b"(vLLMHttpServer pid=1) (Worker pid=22) text")
    assert (line.actor, line.pid, line.number) == ("Worker", 22, 5)
    assert parse_line(1, b"text").pid is None
    assert parse_line(1, b"(pid=9) text").actor == ""


def test_the_time_in_a_logger_prefix_does_not_split_a_source() -> None:
    first = parse_line(1, b"(W pid=1) ERROR 11-20 14:54:32 [core.py:1231] a")
    second = parse_line(2, b"(W pid=1) ERROR 11-20 14:54:33 [core.py:1231] b")
    assert first.source == second.source


def test_an_excerpt_is_short_and_free_of_control_characters() -> None:
    excerpt = parse_line(3, b"\x1b]0;title\x07\x1b[1mbold\x00\x08" + b"x" * 2000).excerpt()
    assert excerpt.line == 3
    assert excerpt.text.startswith("boldxxx")
    assert len(excerpt.text) == EXCERPT_CAP
    assert clean("a\x9bb\tc\n") == "ab\tc"


def test_a_long_line_is_read_up_to_the_cap() -> None:
    assert len(parse_line(1, b"y" * (LINE_CAP + 10)).text) == LINE_CAP


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

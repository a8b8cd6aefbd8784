"""One line of a log: prefixes, colours, carriage returns, odd bytes."""

import pytest

from verl_e2e.core.log.lines import EXCERPT_CAP, LINE_CAP, clean, parse_line

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

"""Test results as a JUnit document that states the commit it is of."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

COMMIT_PROPERTY = "bridge_commit"
UNFINISHED = "unfinished"

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One test by its pytest node id. `unfinished` has no result: it could not be collected, or its end never came."""

    node: str
    outcome: Literal["passed", "failed", "skipped", "unfinished"]
    text: str = ""
    seconds: float = 0.0
    # What its environment lacks, where that kept it from saying anything; empty for every other end.
    lack: str = ""


def junit_text(results: Iterable[CaseResult], commit: str) -> str:
    """The whole document, one suite; `commit` is the Bridge commit that the tests were run on."""
    results = tuple(results)
    failures = sum(one.outcome == "failed" for one in results)
    skipped = sum(one.outcome in ("skipped", UNFINISHED) for one in results)
    seconds = sum(one.seconds for one in results)
    counts = f'errors="0" failures="{failures}" skipped="{skipped}" tests="{len(results)}" time="{seconds:.3f}"'
    property_ = f"<property name={_quoted(COMMIT_PROPERTY)} value={_quoted(commit)}/>"
    rows = "\n".join(map(_case, results))
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuites>\n<testsuite name="Bridge tests" {counts}>\n<properties>{property_}</properties>\n'
        f"{rows}\n</testsuite>\n</testsuites>\n"
    )


def _case(one: CaseResult) -> str:
    file, *parts = one.node.split("::")
    classes = [file.removesuffix(".py").replace("/", "."), *parts[:-1]]
    names = (".".join(classes), parts[-1]) if parts else ("", classes[0])
    opening = f'<testcase classname={_quoted(names[0])} name={_quoted(names[1])} time="{one.seconds:.3f}"'
    return f"{opening}>{_inside(one)}</testcase>" if one.outcome != "passed" else f"{opening}/>"


def _inside(one: CaseResult) -> str:
    first = next((line.strip() for line in one.text.splitlines() if line.strip()), "")
    message = _quoted(first[:_LONGEST_MESSAGE])
    if one.outcome == "failed":
        return f"<failure message={message}>{escape(_legal(one.text))}</failure>"
    kind = UNFINISHED if one.outcome == UNFINISHED else "pytest.skip"
    return f"<skipped type={_quoted(kind)} message={message}/>"


def _quoted(text: str) -> str:
    return quoteattr(_legal(text))


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)

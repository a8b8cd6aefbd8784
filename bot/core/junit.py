"""The result of the focused Bridge tests, read from pytest's JUnit file."""

from xml.parsers import expat

from bot.core.record import TestCase

MAX_CASES = 20_000
MAX_NAME = 300
MAX_MESSAGE = 500

# An error of set-up, collection or tear-down is a failed test: it proved nothing and was meant to pass.
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


class JunitError(ValueError):
    """The file cannot be trusted as a test result; the text says why."""


def read_junit(raw: bytes) -> tuple[TestCase, ...]:
    """Every test of a JUnit document. Raises JunitError for text that is no such document.

    A suite that counts failures without naming a failed test adds one, so that the count cannot be lost.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.refuse_doctype
    parser.StartElementHandler = reader.open
    parser.EndElementHandler = reader.close
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(raw, True)  # noqa: FBT003  (expat takes it by position)
    except expat.ExpatError as error:
        raise JunitError(str(error)) from None
    if not reader.suites:
        raise JunitError("no test suite in it")
    return reader.result()


class _Reader:
    """Collects test cases from the parser's calls."""

    def __init__(self) -> None:
        self.suites = 0
        self._counted = 0
        self._cases: list[TestCase] = []
        self._case: dict[str, str] | None = None
        self._speaking = False

    def refuse_doctype(self, *_: object) -> None:
        """Entities can blow a small file up; JUnit needs none."""
        raise JunitError("it declares a document type")

    def open(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in ("testsuite", "testsuites"):
            self.suites += 1
            self._counted = max(self._counted, *(_count(attributes.get(name)) for name in ("failures", "errors")))
        elif tag == "testcase":
            parts = (attributes.get("classname"), attributes.get("name"))
            self._case = {"name": ".".join(part for part in parts if part)[:MAX_NAME], "outcome": "passed"}
        elif self._case is not None and tag in _OUTCOMES and self._case["outcome"] != "failed":
            self._case |= {"outcome": _OUTCOMES[tag], "message": attributes.get("message", "")[:MAX_MESSAGE]}
            self._speaking = not self._case["message"]

    def text(self, data: str) -> None:
        if self._speaking and self._case is not None:
            self._case["message"] = (self._case["message"] + data)[:MAX_MESSAGE]

    def close(self, tag: str) -> None:
        if tag in _OUTCOMES:
            self._speaking = False
        elif tag == "testcase" and self._case is not None:
            if len(self._cases) >= MAX_CASES:
                raise JunitError(f"more than {MAX_CASES:,} tests")
            self._cases.append(TestCase.model_validate(self._case))
            self._case = None

    def result(self) -> tuple[TestCase, ...]:
        """All tests, and what the suites count beyond them."""
        if self._counted and not any(case.outcome == "failed" for case in self._cases):
            unnamed = f"the suite counts {self._counted} failed, none is named"
            return (*self._cases, TestCase(name="testsuite", outcome="failed", message=unnamed))
        return tuple(self._cases)


def _count(shown: str | None) -> int:
    return int(shown) if shown and shown.isascii() and shown.isdigit() and len(shown) < 10 else 0


def covers(listed: str, case: TestCase) -> bool:
    """Whether a test case belongs to a path or node id as pytest takes it: `dir`, `dir/test_x.py::test_y`.

    Compared by the last parts only, because a JUnit name starts at pytest's root folder.
    """
    path, *parts = listed.split("::")
    wanted = [path.rstrip("/").rpartition("/")[2].removesuffix(".py"), *(part.partition("[")[0] for part in parts)]
    named = case.name.partition("[")[0].replace("/", ".").split(".")
    return all(part in named for part in wanted)

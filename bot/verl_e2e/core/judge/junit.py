"""The result of the focused Bridge tests, read from a JUnit file: pytest's own, or one that a runner wrote."""

from dataclasses import dataclass
from xml.etree import ElementTree
from xml.parsers import expat

from verl_e2e.core.judge.bridge_environment import lacking, missing_package, skip_reason
from verl_e2e.core.judge.junit_writing import COMMIT_PROPERTY, UNFINISHED
from verl_e2e.core.model.record import TestCase

MAX_CASES = 20_000
MAX_NAME = 300
MAX_MESSAGE = 500
_MAX_TEXT = 20_000

# An error of set-up, collection or tear-down is a failed test: it proved nothing and was meant to pass.
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
_SUITES = ("testsuite", "testsuites")
_NOT_COLLECTED = "collection failure"


class JunitError(ValueError):
    """The file cannot be trusted as a test result; the text says why."""


@dataclass(frozen=True, slots=True)
class Junit:
    """The tests of a file, and the commit that it says they were run on; empty when it says none."""

    tests: tuple[TestCase, ...]
    commit: str = ""


def read_junit(raw: bytes) -> Junit:
    """Every test of a JUnit document. Raises JunitError for text that is no such document.

    A suite that counts failures without naming a failed test adds one, so that the count cannot be lost. Suites of
    different commits, or of which only some state one, cannot be told apart: that is an error too.
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


def stating_commit(raw: bytes, commit: str) -> bytes:
    """The document with every suite stating the commit. Raises JunitError when one states another, or none can."""
    stated = read_junit(raw).commit
    if stated not in ("", commit):
        raise JunitError(f"its tests were run on {stated}")
    if stated:
        return raw
    root = ElementTree.fromstring(raw)  # noqa: S314  (read_junit has refused document types and with them entities)
    for suite in root.iter("testsuite"):
        properties = ElementTree.Element("properties")
        ElementTree.SubElement(properties, "property", {"name": COMMIT_PROPERTY, "value": commit})
        suite.insert(0, properties)
    text: str = ElementTree.tostring(root, encoding="unicode")
    return text.encode()


class _Reader:
    """Collects test cases from the parser's calls."""

    def __init__(self) -> None:
        self.suites = 0
        self._counted = 0
        self._cases: list[TestCase] = []
        self._case: dict[str, str] | None = None
        self._text: str | None = None
        # For every suite that is open the commit that it states; for every test the commit that held for it.
        self._open: list[str] = []
        self._commits: set[str] = set()
        self._waiting: list[int] = []
        self._excused = 0

    def refuse_doctype(self, *_: object) -> None:
        """Entities can blow a small file up; JUnit needs none."""
        raise JunitError("it declares a document type")

    def open(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _SUITES:
            self.suites += 1
            self._open.append("")
            self._waiting.append(0)
            self._counted = max(self._counted, *(_count(attributes.get(name)) for name in ("failures", "errors")))
        elif tag == "testcase":
            parts = (attributes.get("classname"), attributes.get("name"))
            self._case = {"name": ".".join(part for part in parts if part)[:MAX_NAME], "outcome": "passed"}
        elif tag == "property" and self._case is None and self._open:
            if attributes.get("name") == COMMIT_PROPERTY:
                self._state(attributes.get("value", "").strip().lower())
        elif self._case is not None and tag in _OUTCOMES and self._case["outcome"] != "failed":
            outcome = UNFINISHED if attributes.get("type") == UNFINISHED else _OUTCOMES[tag]
            self._case |= {"outcome": outcome, "message": attributes.get("message", "")[:MAX_MESSAGE]}
            self._text = ""

    def text(self, data: str) -> None:
        if self._text is not None:
            self._text = (self._text + data)[-_MAX_TEXT:]

    def close(self, tag: str) -> None:
        if tag in _SUITES:
            self._close_suite()
        elif tag in _OUTCOMES and self._case is not None and self._text is not None:
            self._told(self._case, self._text)
            self._text = None
        elif tag == "testcase" and self._case is not None:
            if len(self._cases) >= MAX_CASES:
                raise JunitError(f"more than {MAX_CASES:,} tests")
            self._cases.append(TestCase.model_validate(self._case))
            self._case = None
            if self._waiting:
                self._waiting[-1] += 1

    def result(self) -> Junit:
        """All tests, and what the suites count beyond them."""
        cases = self._cases
        if self._counted and not any(case.outcome == "failed" for case in cases):
            unnamed = f"the suite counts {self._counted} failed, none is named"
            if self._counted > self._excused:
                cases = [*cases, TestCase(name="testsuite", outcome="failed", message=unnamed)]
        if len(self._commits) > 1:
            told = " and ".join(sorted(commit[:12] or "none" for commit in self._commits))
            raise JunitError(f"its suites state different commits, {told}")
        return Junit(tuple(cases), next(iter(self._commits), ""))

    def _state(self, commit: str) -> None:
        if self._open[-1] not in ("", commit):
            raise JunitError(f"one suite states two commits, {self._open[-1][:12]} and {commit[:12]}")
        self._open[-1] = commit

    def _close_suite(self) -> None:
        """The suite's own word counts for its tests, else that of the suites around it."""
        own, tests = self._open.pop(), self._waiting.pop()
        if not tests:
            return
        if own:
            self._commits.add(own)
        elif self._waiting:
            self._waiting[-1] += tests
        else:
            self._commits.add("")

    def _told(self, case: dict[str, str], text: str) -> None:
        module = missing_package(text) if case["message"] == _NOT_COLLECTED else ""
        if module:
            reason = f"it cannot be collected there: package {module} is missing"
            case |= {"outcome": UNFINISHED, "message": reason}
            self._excused += 1
        elif case["outcome"] == "failed" and (lack := lacking(case["message"] or text)):
            case |= {"outcome": "skipped", "message": skip_reason(lack)}
            self._excused += 1
        elif not case["message"]:
            case["message"] = text[:MAX_MESSAGE]


def _count(shown: str | None) -> int:
    return int(shown) if shown and shown.isascii() and shown.isdigit() and len(shown) < 10 else 0


def covers(listed: str, case: TestCase) -> bool:
    """Whether a test case belongs to a path or node id as pytest takes it: `dir`, `dir/test_x.py::test_y`.

    A JUnit name starts at pytest's root folder, which may lie above or below the top of the repository.
    """
    path, *parts = listed.split("::")
    wanted = path.rstrip("/").removesuffix(".py").split("/")
    named = case.name.partition("[")[0].replace("/", ".").split(".")
    rest = [part.partition("[")[0] for part in parts]
    return any(rest == named[end : end + len(rest)] for end in _ends(wanted, named))


def _ends(wanted: list[str], named: list[str]) -> list[int]:
    """Where in a name the path ends: the whole path anywhere, or an end of it at the beginning."""
    size = len(wanted)
    found = [at + size for at in range(len(named) - size + 1) if named[at : at + size] == wanted]
    return found + [size - cut for cut in range(1, size) if named[: size - cut] == wanted[cut:]]

"""The results of the focused Bridge tests as a JUnit document, and which of them are about the environment.

What is missing from a test's environment is read from the error that ended the test, never from the source that it
quotes: it says nothing about the change.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from verl_e2e.core.model.record import TestCase

# Top-level names of the trees under test, whose absence is a fault of the trees; others share the name `megatron`.
_OURS = frozenset({"verl", "tests", "examples", "scripts", "tools", "tutorials", "skills"})
_MEGATRON = frozenset(
    {"", "bridge", "core", "training", "legacy", "inference", "post_training", "rl", "elastification"}
)
_UNAVAILABLE = re.compile(
    r"The (?P<first>[\w.-]+) package is not available"
    r"|requires the (?P<second>[\w.-]+) library\W+[Bb]ut (?:it|that) was not found"
)
_MODULE = re.compile(r"No module named '(?P<module>[^']+)'")
# What a test itself claims or expects is its own matter, whatever words it quotes; torch says one thing in that way.
_CLAIMS = ("AssertionError", "assert ", "Failed:")
_OF_TORCH = "AssertionError: Torch not compiled with CUDA enabled"
_MISSING = {
    "the GPUs that it asks for": re.compile(
        r"Found no NVIDIA driver|No CUDA GPUs are available|^AssertionError: Torch not compiled with CUDA enabled"
        r"|CUDA driver version is insufficient|Invalid device id|invalid device ordinal"
        r"|TransformerEngine needs CUDA|Cannot access accelerator device when none is available"
    ),
    "apex's fused kernels": re.compile(r"fused_weight_gradient_mlp_cuda module is not found"),
    "a way to the network": re.compile(
        r"OfflineModeIsEnabled|outgoing traffic has been disabled|couldn't connect to 'https://huggingface\.co'"
        r"|LocalEntryNotFoundError|Name or service not known|Temporary failure in name resolution"
        r"|Network is unreachable"
    ),
    "a port that no one else on the host uses": re.compile(r"EADDRINUSE|[Aa]ddress already in use"),
    "room on the disk": re.compile(r"No space left on device|Disk quota exceeded"),
}


def missing_package(text: str) -> str:
    """The package that an import error says is missing; empty for none, and for modules of the trees under test."""
    found = [match["module"] for match in _MODULE.finditer(text)]
    if not found:
        return ""
    top, _, rest = found[-1].partition(".")
    ours = top in _OURS or (top == "megatron" and rest.partition(".")[0] in _MEGATRON)
    return "" if ours else found[-1]


def missing_from_environment(error: str) -> str:
    """What is missing, by an error with its kind (`RuntimeError: ...`); empty when the environment is not to blame."""
    if error.startswith(_CLAIMS) and not error.startswith(_OF_TORCH):
        return ""
    clause = next((clause for clause, pattern in _MISSING.items() if pattern.search(error)), "")
    unavailable = _UNAVAILABLE.search(error)
    first = error.partition("\n")[0]
    package = missing_package(first) if first.startswith(("ModuleNotFoundError", "ImportError")) else ""
    if unavailable is not None:
        package = unavailable["first"] or unavailable["second"]
    return clause or (f"package {package}" if package else "")


def skip_reason(missing: str) -> str:
    """The reason of a skipped test that its environment kept from saying anything."""
    return f"its environment does not have {missing}"


MAX_CASES = 20_000
MAX_NAME = 300
MAX_MESSAGE = 500
COMMIT_PROPERTY = "bridge_commit"
UNFINISHED = "unfinished"

# An element of the parsed tree takes some hundred bytes, whatever it took in the file; pytest writes a few a test.
_MAX_ELEMENTS = 10 * MAX_CASES
_MAX_TEXT = 20_000

# An error of set-up, collection or tear-down is a failed test: it proved nothing and was meant to pass.
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
_SUITES = ("testsuite", "testsuites")
_NOT_COLLECTED = "collection failure"
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JunitError(ValueError):
    """The file cannot be trusted as a test result; the text says why."""


@dataclass(frozen=True, slots=True)
class Junit:
    """The tests of a file, and the commit that it says they were run on; empty when it says none."""

    tests: tuple[TestCase, ...]
    commit: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One test by its pytest node id. `unfinished` has no result: it could not be collected, or its end never came."""

    node: str
    outcome: Literal["passed", "failed", "skipped", "unfinished"]
    text: str = ""
    seconds: float = 0.0
    # What its environment does not have, where that kept it from saying anything; empty for every other end.
    missing: str = ""


def read_junit(raw: bytes) -> Junit:
    """Every test of a JUnit document. Raises JunitError for text that is no such document.

    A suite that counts failures without naming a failed test adds one, so that the count cannot be lost. Suites of
    different commits, or where only some state one, are an error too: one cannot say which commit was tested.
    """
    root = _parse(raw)
    suites = [element for element in root.iter() if element.tag in _SUITES]
    if not suites:
        raise JunitError("no test suite in it")
    found = list(_cases(root))
    if len(found) > MAX_CASES:
        raise JunitError(f"more than {MAX_CASES:,} tests")
    results = [_result(case) for case, _ in found]
    tests = [test for test, _ in results]
    counts = (suite.get(name, "") for suite in suites for name in ("failures", "errors"))
    counted = max(int(count) if re.fullmatch("[0-9]{1,9}", count) else 0 for count in counts)
    excused = sum(count for _, count in results)
    if counted > excused and not any(test.outcome == "failed" for test in tests):
        message = f"the suite counts {counted} failed, none is named"
        tests.append(TestCase(name="testsuite", outcome="failed", message=message))
    commits = {commit for _, commit in found}
    if len(commits) > 1:
        named = " and ".join(sorted(commit[:12] or "none" for commit in commits))
        raise JunitError(f"its suites state different commits, {named}")
    return Junit(tuple(tests), next(iter(commits), ""))


def stating_commit(raw: bytes, commit: str) -> bytes:
    """The document with every suite stating the commit. Raises JunitError when one states another, or none can."""
    stated = read_junit(raw).commit
    if stated not in ("", commit):
        raise JunitError(f"its tests were run on {stated}")
    if stated:
        return raw
    root = _parse(raw)
    for suite in root.iter("testsuite"):
        properties = Element("properties")
        SubElement(properties, "property", name=COMMIT_PROPERTY, value=commit)
        suite.insert(0, properties)
    return _document(root)


def junit_document(results: Iterable[CaseResult], commit: str) -> bytes:
    """The whole document, one suite; `commit` is the Bridge commit that the tests were run on."""
    results = tuple(results)
    counts = {
        "errors": 0,
        "failures": sum(result.outcome == "failed" for result in results),
        "skipped": sum(result.outcome in ("skipped", UNFINISHED) for result in results),
        "tests": len(results),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    root = Element("testsuites")
    shown = {"name": "Bridge tests", **{key: str(value) for key, value in counts.items()}}
    suite = SubElement(root, "testsuite", shown)
    SubElement(SubElement(suite, "properties"), "property", name=COMMIT_PROPERTY, value=commit)
    for result in results:
        file, *parts = result.node.split("::")
        classes = [file.removesuffix(".py").replace("/", "."), *parts[:-1]]
        names = (".".join(classes), parts[-1]) if parts else ("", classes[0])
        class_name, name = map(_legal, names)
        case = SubElement(suite, "testcase", classname=class_name, name=name, time=f"{result.seconds:.3f}")
        first = next((line.strip() for line in result.text.splitlines() if line.strip()), "")
        message = _legal(first[:MAX_MESSAGE])
        if result.outcome == "failed":
            SubElement(case, "failure", message=message).text = _legal(result.text)
        elif result.outcome != "passed":
            kind = UNFINISHED if result.outcome == UNFINISHED else "pytest.skip"
            SubElement(case, "skipped", type=kind, message=message)
    return _document(root)


class _TreeBuilder(ElementTree.TreeBuilder):
    """Refuses what makes a large tree of a small file."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = 0

    def doctype(self, *_: object) -> None:
        """Entities can blow a small file up; JUnit needs none."""
        raise JunitError("it declares a document type")

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._elements += 1
        if self._elements > _MAX_ELEMENTS:
            raise JunitError(f"more than {_MAX_ELEMENTS:,} elements")
        # Some writers name a namespace; the words are JUnit's all the same.
        return super().start(tag.rpartition("}")[2], attrs)


def _parse(raw: bytes) -> Element:
    parser = ElementTree.XMLParser(target=_TreeBuilder())  # noqa: S314  (it refuses document types, and so entities)
    try:
        return ElementTree.XML(raw, parser)
    except JunitError:
        raise
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise JunitError(str(error)) from None


def _cases(root: Element) -> Iterator[tuple[Element, str]]:
    """Each test case in order, with the commit that the closest suite around it states. Suites may nest without end."""
    waiting = [(root, "")]
    while waiting:
        element, commit = waiting.pop()
        if element.tag == "testcase":
            yield element, commit
            continue
        if element.tag in _SUITES:
            properties = [*element.findall("property"), *element.findall("properties/property")]
            named = [item for item in properties if item.get("name") == COMMIT_PROPERTY]
            commits = sorted({item.get("value", "").strip().lower() for item in named})
            if len(commits) > 1:
                raise JunitError(f"one suite states two commits, {' and '.join(item[:12] for item in commits)}")
            commit = "".join(commits) or commit
        waiting.extend((child, commit) for child in reversed(element))


def _result(case: Element) -> tuple[TestCase, int]:
    """A test with the worst of its outcomes, and how many of its failures its environment is to blame for."""
    outcome, message, excused = "passed", "", 0
    for element in case.iter():
        if element.tag not in _OUTCOMES or outcome == "failed":
            continue
        outcome, message = _OUTCOMES[element.tag], element.get("message", "")
        text = "".join(element.itertext())[-_MAX_TEXT:]
        if message == _NOT_COLLECTED and (module := missing_package(text)):
            outcome, message = UNFINISHED, f"it cannot be collected there: package {module} is missing"
            excused += 1
        elif element.get("type") == UNFINISHED:
            outcome = UNFINISHED
        elif outcome == "failed" and (missing := missing_from_environment(message[:MAX_MESSAGE] or text)):
            outcome, message = "skipped", skip_reason(missing)
            excused += 1
        message = message or text
    name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
    test = {"name": name[:MAX_NAME], "outcome": outcome, "message": message[:MAX_MESSAGE]}
    return TestCase.model_validate(test), excused


def _legal(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)


def _document(root: Element) -> bytes:
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def covers(listed: str, case: TestCase) -> bool:
    """Whether a test case belongs to a path or node id as pytest takes it: `dir`, `dir/test_x.py::test_y`.

    A JUnit name starts at pytest's root folder, which may lie above or below the top of the repository.
    """
    path, *parts = listed.split("::")
    wanted = path.rstrip("/").removesuffix(".py").split("/")
    named = case.name.partition("[")[0].replace("/", ".").split(".")
    rest, size = [part.partition("[")[0] for part in parts], len(wanted)
    # Where in the name the path ends: the whole path anywhere, or an end of it at the beginning.
    ends = [at + size for at in range(len(named) - size + 1) if named[at : at + size] == wanted]
    ends += [size - cut for cut in range(1, size) if named[: size - cut] == wanted[cut:]]
    return any(rest == named[end : end + len(rest)] for end in ends)

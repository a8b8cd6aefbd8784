"""What the tests of a session came to, from the lines that the plugin in `instrumentation` wrote while it ran."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_e2e.core.judge.junit import CaseResult, missing_from_environment, missing_package, skip_reason
from verl_e2e_runner.folder.suspect_files import read_below

_MOST_BYTES = 16 << 20
_SAME_NAME = "import file mismatch"
_PASSED = CaseResult("", "passed")
_WORST = {"failed": 2, "skipped": 1, "passed": 0}


@dataclass(slots=True)
class Session:
    """The events of one session; `running` is the test that had started and not ended, empty when there is none."""

    collected: list[str] = field(default_factory=list)
    results: dict[str, CaseResult] = field(default_factory=dict)
    running: str = ""
    ended: bool = False

    def outcomes(self, *, reason: str, killed_by: str = "") -> tuple[CaseResult, ...]:
        """Every result, and the tests that have none with the reason why.

        `killed_by` says what ended the interpreter in the middle of a test, which that test is blamed for.
        """
        found = dict(self.results)
        if self.running and found.get(self.running, _PASSED).outcome != "failed":
            found[self.running] = CaseResult(self.running, "unfinished", reason)
            if killed_by:
                found[self.running] = CaseResult(self.running, "failed", f"it ended the interpreter: {killed_by}")
        for node in self.collected:
            found.setdefault(node, CaseResult(node, "unfinished", reason))
        return tuple(found.values())


def read_session(file: Path) -> Session:
    """The session as far as the file goes; a last line that was cut is ignored."""
    session = Session()
    raw = read_below(file.parent, file.name, limit=_MOST_BYTES) or b""
    for line in raw.decode(errors="replace").splitlines(keepends=True):
        if line.endswith("\n"):
            # The code under test may write into this file: a line of another shape is none.
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                _take(session, json.loads(line))
    return session


def _take(session: Session, event: Mapping[str, Any]) -> None:
    match event["kind"]:
        case "collected":
            session.collected = list(event["nodes"])
        case "start":
            session.running = event["node"]
        case "report":
            _report(session, event)
        case "uncollected":
            session.results[event["node"]] = _uncollected(event["node"], event["text"])
        case "end":
            session.ended = True
        case _:
            pass


def _report(session: Session, event: Mapping[str, Any]) -> None:
    """A test has a line for set-up, call and tear-down: the worst counts, and the test ends with its tear-down."""
    node, outcome = event["node"], event["outcome"]
    if event["when"] == "teardown" and session.running == node:
        session.running = ""
    if outcome not in _WORST:
        return
    text = event["text"]
    missing = missing_from_environment(event["error"]) if outcome == "failed" else ""
    if missing:
        outcome, text = "skipped", skip_reason(missing)
    before = session.results.get(node)
    seconds = event["seconds"] + (before.seconds if before else 0.0)
    if before is None or _WORST[outcome] > _WORST.get(before.outcome, 0):
        session.results[node] = CaseResult(node, outcome, text, seconds, missing)
    else:
        session.results[node] = replace(before, seconds=seconds)


def _uncollected(node: str, text: str) -> CaseResult:
    """A missing package, or two files of one name, is not a result about the change."""
    module = missing_package(text)
    if module:
        return CaseResult(node, "unfinished", f"it cannot be collected here: package {module} is missing")
    if _SAME_NAME in text:
        return CaseResult(node, "unfinished", "it cannot be collected together with another file of the same name")
    last_line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
    return CaseResult(node, "failed", f"it cannot be collected: {last_line}\n{text}")

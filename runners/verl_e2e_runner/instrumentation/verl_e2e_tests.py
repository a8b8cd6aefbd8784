"""A pytest plugin that writes each result at once, so that a session that hangs or dies keeps what had finished.

pytest writes its JUnit file only at its end. This writes one JSON line an event to the file that VERL_E2E_TESTS names:
what was collected, which test starts, every report, and every file that could not be collected.
"""

import importlib
import json
import os
import re

_LONGEST = 4000
_NO_ATTRIBUTE = re.compile(r"AttributeError: module '([\w.]+)' has no attribute '(\w+)'")
_FILE = os.environ.get("VERL_E2E_TESTS", "")


def pytest_collectreport(report):
    """A file or folder that could not be collected."""
    if report.failed:
        _write_event(kind="uncollected", node=report.nodeid, text=_text(report))
    elif report.skipped:
        data = {"when": "collect", "outcome": "skipped", "text": _reason(report), "error": "", "seconds": 0}
        _write_event(kind="report", node=report.nodeid, **data)


def pytest_collection_finish(session):
    """All tests that are going to be run."""
    _write_event(kind="collected", nodes=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid):
    """A test starts."""
    _write_event(kind="start", node=nodeid)


def pytest_runtest_logreport(report):
    """One part of a test ended: its set-up, its call or its tear-down."""
    outcome = report.outcome
    text = _reason(report) if outcome == "skipped" else _text(report) if outcome == "failed" else ""
    seconds = round(getattr(report, "duration", 0), 3)
    data = {"when": report.when, "outcome": outcome, "text": text, "error": _error(report), "seconds": seconds}
    _write_event(kind="report", node=report.nodeid, **data)


def _error(report):
    """The error itself, with its kind and without the source around it."""
    try:
        message = report.longrepr.reprcrash.message[:_LONGEST]
    except AttributeError:
        return ""
    return _hidden_import(message) or message


def _hidden_import(message):
    """Why a module that a test names by its text, as for a patch, could not be imported: the error does not say it."""
    found = _NO_ATTRIBUTE.match(message)
    if not found:
        return ""
    try:
        importlib.import_module(".".join(found.groups()))
    except ModuleNotFoundError as error:
        return f"ModuleNotFoundError: {error}"[:_LONGEST]
    except Exception:
        return ""
    return ""


def _text(report):
    whole = str(getattr(report, "longreprtext", "") or report.longrepr or "")
    return f"{_error(report)}\n{whole[-_LONGEST:]}".lstrip("\n")


def _reason(report):
    if getattr(report, "wasxfail", None) is not None:
        return f"expected to fail: {report.wasxfail}"[:_LONGEST]
    reason = report.longrepr
    return str(reason[2] if isinstance(reason, tuple) and len(reason) == 3 else reason)[:_LONGEST]


def _write_event(**event):
    if not _FILE:
        return
    line = (json.dumps(event, default=str) + "\n").encode("utf-8", "replace")
    handle = os.open(_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)

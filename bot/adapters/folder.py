"""Run folders on disk: parsed into a `Record`, and the judgement written beside it.

Everything in a folder is untrusted: sizes are capped, unknown shapes are reported as missing, nothing is executed.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring
from pydantic import BaseModel, ValidationError

from bot.core.jobs import Job
from bot.core.record import (
    ENVIRONMENT_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    JOB_FILE,
    JUNIT_FILE,
    LOG_FILE,
    Environment,
    Event,
    ImportLine,
    Record,
    TestCase,
)

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_ROWS = 200_000
# A folder written by hand may hold the log in another form.
LOG_NAMES = (LOG_FILE, "log.txt", "log.txt.xz", "log.txt.gz")
_Model = TypeVar("_Model", bound=BaseModel)


class FolderError(Exception):
    """A folder that cannot be read at all; the text says which and what to do."""


def find_jobs(folder: Path) -> tuple[Path, ...]:
    """The run folders in `folder`: itself, or those below its `jobs/`, in name order."""
    if not folder.is_dir():
        raise FolderError(f"{folder}: not a folder; give the --out folder of `verl-e2e run` or `verl-e2e check`")
    jobs = folder / "jobs"
    if jobs.is_dir():
        return tuple(sorted(path for path in jobs.iterdir() if path.is_dir()))
    return (folder,)


def find_log(folder: Path) -> Path | None:
    """The console log of a run folder, None when there is none."""
    return next((folder / name for name in LOG_NAMES if (folder / name).is_file()), None)


def read_record(folder: Path) -> Record:
    """Parse a run folder; what is missing or unreadable is named in `missing` and never raises."""
    missing: list[str] = []
    job = _document(folder / JOB_FILE, Job, missing)
    environment = _document(folder / ENVIRONMENT_FILE, Environment, missing)
    events = tuple(_rows(folder / EVENTS_FILE, Event, missing))
    imports = tuple(_rows(folder / IMPORTS_FILE, ImportLine, missing))
    tests = _tests(folder / JUNIT_FILE, missing)
    if find_log(folder) is None:
        missing.append(f"{LOG_FILE}: not there")
    return Record(job=job, environment=environment, events=events, imports=imports, tests=tests, missing=tuple(missing))


def _document(path: Path, model: type[_Model], missing: list[str]) -> _Model | None:
    raw = _read(path, missing)
    if raw is None:
        return None
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        missing.append(f"{path.name}: {where}: {first['msg']}")
        return None


def _read(path: Path, missing: list[str]) -> bytes | None:
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            missing.append(f"{path.name}: larger than {MAX_DOCUMENT_BYTES:,} bytes")
            return None
        return path.read_bytes()
    except FileNotFoundError:
        missing.append(f"{path.name}: not there")
    except OSError as error:
        missing.append(f"{path.name}: {error.strerror}")
    return None


def _rows(path: Path, model: type[_Model], missing: list[str]) -> Iterator[_Model]:
    """JSON lines; a cut last line, as a crash leaves it, ends the file."""
    raw = _read(path, missing)
    for number, line in enumerate((raw or b"").splitlines()[:MAX_ROWS], start=1):
        try:
            yield model.model_validate_json(line)
        except ValidationError:
            missing.append(f"{path.name}: line {number} cannot be read")
            return


def _tests(path: Path, missing: list[str]) -> tuple[TestCase, ...] | None:
    if not path.exists():
        return None
    raw = _read(path, missing)
    if raw is None:
        return None
    try:
        root = fromstring(raw, forbid_dtd=True)
    except (ParseError, DefusedXmlException) as error:
        missing.append(f"{path.name}: not readable as JUnit ({error})")
        return None
    return tuple(_test_case(node) for node in root.iter("testcase"))


def _test_case(node: Any) -> TestCase:
    name = ".".join(part for part in (node.get("classname"), node.get("name")) if part)
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        child = node.find(tag)
        if child is not None:
            message = (child.get("message") or (child.text or ""))[:500]
            return TestCase.model_validate({"name": name, "outcome": outcome, "message": message})
    return TestCase(name=name, outcome="passed")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the judgement's files, each one whole or not at all."""
    for name, text in files.items():
        temporary = folder / f".{name}.part"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / name)

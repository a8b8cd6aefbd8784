"""Run folders on disk: parsed into a `Record`, and the judgement is written into it.

Everything in a folder is untrusted: sizes are capped, unknown shapes are reported as missing, nothing is executed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, Field, RootModel, ValidationError

from verl_e2e.core.compare.cell_map import AskedCells
from verl_e2e.core.compare.rehearsal import IMPORTS, MOST_BYTES_OF_ALL, MOST_RECORD_BYTES, CellRecord, Observed, RunNote
from verl_e2e.core.judge.junit import JunitError, read_junit
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import EXECUTED_FILE, Executed
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Fingerprints, HookState, ModelInputs, Snapshot
from verl_e2e.core.model.jobs import ASKED_FILE, BASE_RECORDS, HEAD_RECORDS, Job, RehearsalJob
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import (
    BEGIN,
    CHECK_FILE,
    CHECKPOINTS_FILE,
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    JOB_FILE,
    JUNIT_FILE,
    LOG_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    PLAN_FILE,
    SIGNATURE_FILE,
    STOPPED,
    CheckNotes,
    Checkpoints,
    EndedEvent,
    Environment,
    Event,
    ImportLine,
    Manifest,
    ManifestSignature,
    PhaseEvent,
    Record,
    Seal,
    StageEvent,
    is_sealed,
    read_data,
    seal_differences,
)
from verl_e2e.core.model.related import RELATED_FILE, RELATED_FOLDER, Related, Role
from verl_e2e.core.plan.plan_document import PlanDocument
from verl_e2e.ports import RehearsalFolder

_MAX_BYTES = 4 << 20
_MAX_FILES = 10_000


def read_seal(folder: Path, *, keys: frozenset[str] | None = None) -> Seal:
    """The seal of a folder. With `keys` (public keys in hexadecimal) only a signature by one of them is good enough."""
    raw, signed = _read_file(folder / MANIFEST_FILE), _read_file(folder / SIGNATURE_FILE)
    if raw is None and keys is None and signed is None:
        return Seal(state="none")
    signature = None
    problem = f"{MANIFEST_FILE} is not there"
    if raw is not None:
        try:
            manifest = Manifest.model_validate_json(raw)
            signature = ManifestSignature.model_validate_json(signed) if signed is not None else None
            if signature is not None:
                key, sent = bytes.fromhex(signature.key), bytes.fromhex(signature.signature)
                Ed25519PublicKey.from_public_bytes(key).verify(sent, raw)
            if keys is not None and (signature is None or signature.key not in keys):
                problem = f"{MANIFEST_FILE} is not signed by a recorder that is known here"
            else:
                problem = seal_differences(manifest, dict(_files(folder)))
        except ValidationError:
            problem = f"{MANIFEST_FILE} or {SIGNATURE_FILE} cannot be read"
        except (InvalidSignature, ValueError):
            problem = f"{SIGNATURE_FILE} does not fit {MANIFEST_FILE}"
    if problem:
        return Seal(state="broken", problem=problem)
    return Seal(state="signed" if keys is not None else "whole", key=signature.key if signature else "")


def public_keys(file: Path) -> frozenset[str]:
    """The public keys in a file, one a line; none when it is not there."""
    raw = _read_file(file) or b""
    lines = (line.split("#")[0].strip() for line in raw.decode(errors="replace").splitlines())
    return frozenset(line for line in lines if line)


def _read_file(path: Path, limit: int = _MAX_BYTES) -> bytes | None:
    """The start of a regular file: a pipe or a device would be read for ever, and a link leads out of the folder."""
    try:
        if S_ISREG(path.lstat().st_mode):
            with path.open("rb") as file:
                return file.read(limit)
    except OSError:
        pass
    return None


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Every file that a seal is about; a link or a pipe counts as one of no known content."""
    count = 0
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if not is_sealed(relative):
                continue
            count += 1
            if count > _MAX_FILES:
                return
            found = path.lstat()
            if not S_ISREG(found.st_mode):
                yield relative, (0, "")
                continue
            with path.open("rb") as file:
                yield relative, (found.st_size, hashlib.file_digest(file, "sha256").hexdigest())


MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_JSON_LINES = 200_000
# The runner keeps 24 MiB of what the processes wrote.
MAX_FINGERPRINTS_BYTES = 32 * 1024 * 1024
# The values of one document; 16 MiB of `{}` would be five million.
MAX_VALUES = 250_000
_MOST_MISTAKES = 1_000
# A folder written by hand may hold the log in another form.
LOG_NAMES = (LOG_FILE, "log.txt", "log.txt.xz", "log.txt.gz")
LOG_SUFFIXES = (".log", ".log.zst", ".log.xz", ".log.gz")
_Model = TypeVar("_Model", bound=BaseModel)
_FingerprintLine = RootModel[Annotated[Snapshot | HookState | ModelInputs, Field(discriminator="kind")]]


class FolderError(UserError):
    """A folder that cannot be read at all; the text says which and what to do. The user's mistake."""


def find_jobs(folder: Path) -> tuple[Path, ...]:
    """The run folders in `folder`: itself, or those below its `jobs/`, in name order; none when none was planned.

    Raises FolderError for a folder that holds neither a run nor a plan, so that nothing is judged or written there.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder}: not a folder; give the --out folder of `verl-e2e run` or `verl-e2e check`")
    planned = (folder / PLAN_FILE).exists()
    jobs = folder / "jobs"
    if jobs.is_dir():
        found = tuple(sorted(path for path in jobs.iterdir() if path.is_dir()))
        if not planned and not any(map(_holds_run, found)):
            raise FolderError(f"{jobs}: no run folder in it; run `verl-e2e check` or `verl-e2e run` first")
        return found
    if _holds_run(folder):
        return (folder,)
    if planned:
        return ()
    log = find_log(folder)
    fix = f"for a bare log: verl-e2e triage {log}" if log else "give the --out folder of `verl-e2e run` or of a check"
    raise FolderError(f"{folder}: no run in this folder, neither {JOB_FILE} nor {EVENTS_FILE} is there; {fix}")


def _holds_run(folder: Path) -> bool:
    """Whether the runner wrote here: it leaves the job and the first event before anything else."""
    return (folder / JOB_FILE).exists() or (folder / EVENTS_FILE).exists()


def find_log(folder: Path) -> Path | None:
    """The console log of a run folder, else the only file that looks like one; None when there is none."""
    named = next((folder / name for name in LOG_NAMES if (folder / name).is_file()), None)
    if named or not folder.is_dir():
        return named
    others = [path for path in folder.iterdir() if path.is_file() and path.name.endswith(LOG_SUFFIXES)]
    return others[0] if len(others) == 1 else None


def planned_jobs(folder: Path) -> dict[str, Level]:
    """The jobs of the folder's `plan.json` by id, empty when there is none; FolderError when it cannot be read."""
    path = folder / PLAN_FILE
    if not path.exists():
        return {}
    missing: list[str] = []
    document = _document(path, PlanDocument, missing)
    if document is None:
        raise FolderError(f"{missing[0]}; make it again with `verl-e2e check`")
    return {job.id: job.level for job in document.jobs}


def check_notes(folder: Path) -> CheckNotes:
    """The folder's `check.json`, empty when there is none; one that cannot be read becomes a note."""
    path = folder / CHECK_FILE
    if not path.exists():
        return CheckNotes()
    missing: list[str] = []
    notes = _document(path, CheckNotes, missing)
    return notes if notes else CheckNotes(notes=tuple(f"{problem}." for problem in missing))


def stage_times(folder: Path) -> dict[Stage, float]:
    """Seconds since the start of a run at which its last phase first entered each stage; empty without events."""
    times: dict[Stage, float] = {}
    for event in _rows(folder / EVENTS_FILE, Event, []):
        phase = read_data(event, PhaseEvent) if event.kind == "phase" else None
        if phase is not None and phase.is_run(BEGIN):
            times.clear()
        entered = read_data(event, StageEvent) if event.kind == "stage" else None
        if entered is not None and entered.stage in [str(stage) for stage in Stage]:
            times.setdefault(Stage(entered.stage), event.t_s)
    return times


def was_stopped(folder: Path) -> bool:
    """Whether the recorder says that time or a person ended the run; False without events."""
    ends = [read_data(event, EndedEvent) for event in _rows(folder / EVENTS_FILE, Event, []) if event.kind == "ended"]
    return any(ended is not None and ended.end_reason in STOPPED for ended in ends[-1:])


def read_record(folder: Path) -> Record:
    """Parse a run folder; what is missing or unreadable is named in `missing` and never raises."""
    missing: list[str] = []

    def optional(name: str, model: type[_Model]) -> _Model | None:
        return _document(folder / name, model, missing) if (folder / name).exists() else None

    job = _document(folder / JOB_FILE, Job, missing)
    environment = _document(folder / ENVIRONMENT_FILE, Environment, missing)
    events = tuple(_rows(folder / EVENTS_FILE, Event, missing))
    imports = tuple(_rows(folder / IMPORTS_FILE, ImportLine, missing))
    tests, junit = None, folder / JUNIT_FILE
    if junit.exists() and (raw := _read(junit, missing)) is not None:
        try:
            tests = read_junit(raw)
        except JunitError as error:
            missing.append(f"{JUNIT_FILE}: not readable as JUnit ({error})")
    checkpoints = optional(CHECKPOINTS_FILE, Checkpoints)
    related = optional(RELATED_FILE, Related)
    executed = optional(EXECUTED_FILE, Executed)
    # What cannot be read there is missing from the other run, not from this one.
    of_base = folder / RELATED_FOLDER / Role.MERGE_BASE / EXECUTED_FILE
    base_executed = _document(of_base, Executed, []) if of_base.exists() else None
    log = find_log(folder)
    # Two files that repeat the log: nothing is judged by them, but they must be whole.
    metrics, config = folder / METRICS_FILE, folder / CONFIG_FILE
    missing += [f"{path.name}: not there" for path in (metrics, config) if not path.is_file()]
    if metrics.is_file():
        with metrics.open("rb") as file:
            lines = enumerate(iter(lambda: file.readline(MAX_DOCUMENT_BYTES), b""), start=1)
            odd = next((number for number, line in lines if not _is_object(line)), 0)
        missing += [f"{METRICS_FILE}: line {odd} cannot be read"] if odd else []
    if config.is_file() and (raw := _read(config, missing)) is not None and not _is_object(raw):
        missing.append(f"{CONFIG_FILE}: not a JSON document")
    if log is None:
        missing.append(f"{LOG_FILE}: not there")
    if tests is None and job is not None and job.require_bridge_checks and not junit.exists():
        missing.append(f"{JUNIT_FILE}: not there")
    fingerprints = None
    if (folder / FINGERPRINTS_FILE).exists():
        rows = _rows(folder / FINGERPRINTS_FILE, _FingerprintLine, missing, limit=MAX_FINGERPRINTS_BYTES)
        written = [row.root for row in rows]
        # Of each hook the last state counts.
        hooks = {(line.phase, line.pid, line.target): line for line in written if isinstance(line, HookState)}
        fingerprints = Fingerprints(
            snapshots=tuple(
                sorted((line for line in written if isinstance(line, Snapshot)), key=lambda line: line.t_s)
            ),
            hooks=tuple(hooks.values()),
            inputs=tuple(
                sorted((line for line in written if isinstance(line, ModelInputs)), key=lambda line: line.t_s)
            ),
        )
    return Record(
        job=job,
        environment=environment,
        events=events,
        imports=imports,
        tests=tests.tests if tests else None,
        tests_commit=tests.commit if tests else "",
        related=related.runs if related else (),
        related_not_run=related.not_run if related else {},
        checkpoints=checkpoints,
        executed=executed,
        base_executed=base_executed,
        fingerprints=fingerprints,
        missing=tuple(missing),
        log=log.name if log else LOG_FILE,
    )


def _document(path: Path, model: type[_Model], missing: list[str]) -> _Model | None:
    raw = _read(path, missing)
    if raw is None:
        return None
    if sum(map(raw.count, (b",", b"{", b"["))) > MAX_VALUES:
        missing.append(f"{path.name}: more than {MAX_VALUES:,} values")
        return None
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        if error.error_count() > _MOST_MISTAKES:
            # To list them would take many times the memory of the document.
            missing.append(f"{path.name}: {error.error_count():,} mistakes in it")
            return None
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        missing.append(f"{path.name}: {where}: {first['msg']}")
        return None


def _read(path: Path, missing: list[str], *, limit: int = MAX_DOCUMENT_BYTES) -> bytes | None:
    try:
        found = path.stat()
        # A pipe or a device would be read for ever.
        if not S_ISREG(found.st_mode):
            missing.append(f"{path.name}: not a regular file")
            return None
        if found.st_size > limit:
            missing.append(f"{path.name}: larger than {limit:,} bytes")
            return None
        return path.read_bytes()
    except FileNotFoundError:
        missing.append(f"{path.name}: not there")
    except OSError as error:
        missing.append(f"{path.name}: {error.strerror}")
    return None


def _rows(path: Path, model: type[_Model], missing: list[str], *, limit: int = MAX_DOCUMENT_BYTES) -> Iterator[_Model]:
    """JSON lines; the first one that cannot be read, as a crash leaves it, ends the file and is named."""
    raw = _read(path, missing, limit=limit)
    lines = (raw or b"").split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if number > MAX_JSON_LINES:
            missing.append(f"{path.name}: more than {MAX_JSON_LINES:,} lines")
            return
        try:
            yield model.model_validate_json(line)
        except ValidationError:
            missing.append(f"{path.name}: line {number} cannot be read")
            return


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except (ValueError, RecursionError):
        return False


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the judgement's files, each one whole or not at all; FolderError when the folder cannot be written."""
    write_bytes(folder, {name: text.encode() for name, text in files.items()})


def write_bytes(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, each one whole or not at all, and none through a link; FolderError when it cannot be written."""
    for name, content in files.items():
        temporary = folder / f".{name}.part"
        try:
            # A folder from elsewhere may hold a link or a pipe there.
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                file.write(content)
            os.replace(temporary, folder / name)
        except OSError as error:
            fix = "remove what is there, or copy the folder to a place that you may write"
            raise FolderError(f"{folder / name}: cannot be written: {error.strerror}; {fix}") from None


# Files of a folder of records besides those of cells: what was tried at the head, and how the driver ran.
OBSERVED_FILE, RUN_NOTE = "observed.json", "run.json"
_Read = TypeVar("_Read", bound=Document)


def read_rehearsal(folder: Path) -> RehearsalFolder:
    """The order and the records of a run folder; what cannot be read is not there."""
    asked = read_document(folder / ASKED_FILE, AskedCells) or AskedCells()
    return RehearsalFolder(
        order=read_document(folder / JOB_FILE, RehearsalJob),
        asked=asked,
        base=read_records(folder / BASE_RECORDS, asked.cells),
        head=read_records(folder / HEAD_RECORDS, asked.cells),
        observed=read_document(folder / HEAD_RECORDS / OBSERVED_FILE, Observed),
        note=read_document(folder / HEAD_RECORDS / RUN_NOTE, RunNote),
    )


def read_records(folder: Path, cells: Iterable[str]) -> dict[str, CellRecord]:
    """The records of these cells and of the imports; one that cannot be read, or is another's, is not there."""
    found: dict[str, CellRecord] = {}
    # One side may not be read as the other.
    left = 0 if folder.is_symlink() else MOST_BYTES_OF_ALL
    for name in dict.fromkeys((IMPORTS, *cells)):
        file = folder / f"{name}.json"
        record = read_document(file, CellRecord) if left > 0 else None
        with suppress(OSError):
            left -= min(file.lstat().st_size, MOST_RECORD_BYTES)
        if record is not None and record.cell == name:
            found[name] = record
    return found


def read_document(file: Path, kind: type[_Read]) -> _Read | None:
    """The document in a file; None where there is none of this kind, or one that is too long."""
    data = _read_file(file, MOST_RECORD_BYTES + 1)
    try:
        return None if data is None or len(data) > MOST_RECORD_BYTES else kind.model_validate_json(data)
    except ValidationError:
        return None

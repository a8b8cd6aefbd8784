"""Writes the run folder so that a crash at any moment leaves one that can be judged, and seals it at the end.

Everything is redacted before it touches the disk: the directories, names, addresses and secret variables of this host.
Events are appended one line at a time, the log is a stream of Zstandard frames whose last block is at most a second
old, every other file appears whole or not at all. The seal holds digests of all files, signed with a key that only the
recorder can read. The checkpoints of a run are listed before its first and after each of its phases; nothing but small
files is opened.
"""

import hashlib
import json
import math
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import IO, Self

import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ValidationError

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import BASE_RECORDS, HEAD_RECORDS, RunOrder
from verl_e2e.core.model.record import (
    CHECKPOINTS_FILE,
    CONFIG_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    JOB_FILE,
    LOG_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    SIGNATURE_FILE,
    SUSPECTS_WORD,
    CheckpointFile,
    CheckpointListing,
    Checkpoints,
    Event,
    ImportLine,
    Manifest,
    ManifestSignature,
    Mode,
    SealedFile,
    Word,
    is_sealed,
)
from verl_e2e.core.pulls.job_order import RECORDER_KEY_VARIABLE
from verl_e2e.core.text.redact import Redactor, redactor, secrets_in
from verl_e2e_runner.process.cage import is_folder_below, read_below
from verl_e2e_runner.process.processes import Ended

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_HOST_VARIABLES = ("HOSTNAME", "SLURMD_NODENAME", "NODE_NAME", "RUNNER_NAME")


def host_redactor(
    environ: Mapping[str, str], places: Mapping[str, Path | str], *, resolver: Path = Path("/etc/resolv.conf")
) -> Redactor:
    """A redactor for this host.

    `environ` are the variables of the runner and of the run, for HOME and for those that hold a secret.
    `places` maps a placeholder (`$OUT`, `$WORK`, `$BRIDGE`, `$MEGATRON_LM`, `$VERL`) to its directory. Every
    directory is known by the name given and by the one that its links lead to.
    """
    named = [
        *places.items(),
        ("$HOME", environ.get("HOME") or os.path.expanduser("~")),
        ("$TMPDIR", environ.get("TMPDIR") or tempfile.gettempdir()),
        ("$TMPDIR", "/tmp"),  # noqa: S108 - programs write there whatever TMPDIR says
    ]
    # Short and complete names, by the domains of the resolver's file; to ask the resolver could take seconds.
    domains: list[str] = []
    with suppress(OSError):
        for words in map(str.split, resolver.read_text(errors="replace").splitlines()):
            if words[:1] in (["search"], ["domain"]):
                domains += [domain.strip(".") for domain in words[1:] if domain.strip(".")]
    hosts: list[str] = []
    for name in filter(None, (socket.gethostname(), *(environ.get(variable) for variable in _HOST_VARIABLES))):
        short, dot, _ = name.partition(".")
        hosts += [name, short] if dot else [name, *(f"{name}.{domain}" for domain in domains)]
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = [entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in families]
    return redactor(
        paths=[
            (path, placeholder)
            for placeholder, place in named
            for path in dict.fromkeys((os.path.abspath(place), os.path.realpath(place)))
        ],
        hosts=list(dict.fromkeys(hosts)),
        addresses=[entry.address.partition("%")[0] for entry in addresses],
        secrets=[(text, name) for name, value in environ.items() for text in secrets_in(name, value)],
    )


FLUSH_S = 1.0
FRAME_BYTES = 8 << 20
_LEVEL = 3


class FolderInUseError(UserError):
    """The folder already holds a run; the message says so to the user, whose mistake it is."""


class Recorder:
    """The open run folder; close it at the end."""

    def __init__(self, folder: Path, *, redactor: Redactor, monotonic: Callable[[], float]) -> None:
        """Make the folder and open its streams; a folder that already holds a run is a `FolderInUseError`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (EVENTS_FILE, LOG_FILE, JOB_FILE):
            if (folder / name).exists():
                raise FolderInUseError(
                    f"{folder} already holds a run ({name}); give --out a new folder or remove this one."
                )
        self.folder, self.redactor = folder, redactor
        # What the order held, to be returned with the end of the run; empty for none.
        self.nonce = ""
        self._monotonic = monotonic
        self._began = self._flushed_at = monotonic()
        self._events = (folder / EVENTS_FILE).open("xb")
        self._log = (folder / LOG_FILE).open("xb", buffering=0)
        self._stream = redactor.stream()
        self._frame = zstd.ZstdCompressor(level=_LEVEL)
        # Bytes in the frame, and of them those that were not flushed.
        self._framed = self._unflushed = 0
        self._last, self._lines, self._resumed = b"\n", 0, False

    @property
    def next_line(self) -> int:
        """The number, from 1, of the line of the log that the next phase of the run begins with."""
        return self._lines + (1 if self._last == b"\n" else 2)

    def elapsed(self) -> float:
        """Seconds since the folder was opened."""
        return round(self._monotonic() - self._began, 3)

    def since_opened(self, monotonic_s: float) -> float:
        """A time of the monotonic clock in seconds since the folder was opened."""
        return round(monotonic_s - self._began, 3)

    def begin(self, job: RunOrder, began: datetime, nonce: str) -> None:
        """Write what is done here, and that it has begun; `nonce` is what the order held."""
        self.nonce = nonce
        self.document(JOB_FILE, job)
        self.event("started", job=job.id, digest=job.digest(), unix_s=round(began.timestamp(), 3))

    def event(self, kind: str, /, **data: object) -> float:
        """Append one event and return its time in seconds since the run began."""
        event = Event(t_s=self.elapsed(), kind=kind, data=data)
        self._events.write(self._line(event))
        self._events.flush()
        return event.t_s

    def log(self, chunk: bytes) -> bytes:
        """Take output of the wrapper; returns what was written of it, redacted, for a reader that follows the log.

        A line that has not ended yet is held back until it has.
        """
        if self._resumed and chunk:
            chunk = chunk if self._last == b"\n" else b"\n" + chunk
            self._resumed = False
        return self._write(self._stream.feed(chunk))

    def end_of_output(self) -> bytes:
        """The wrapper writes no more: write and return what was held back; a next one begins on a new line."""
        written = self._write(self._stream.finish())
        self._resumed = True
        self.flush()
        return written

    def flush(self, *, if_older_s: float = 0.0) -> None:
        """Make what was logged so far readable on disk, if the last time is `if_older_s` seconds ago."""
        if self._unflushed and self._monotonic() - self._flushed_at >= if_older_s:
            if self._framed >= FRAME_BYTES:
                self._append(self._frame.flush(zstd.ZstdCompressor.FLUSH_FRAME))
                self._framed = 0
            else:
                self._append(self._frame.flush(zstd.ZstdCompressor.FLUSH_BLOCK))
            self._unflushed = 0
            self._flushed_at = self._monotonic()

    def document(self, name: str, document: BaseModel | dict[str, object]) -> None:
        """Write a JSON document, whole or not at all."""
        value = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
        text = json.dumps(self.redactor.redact_document(value), indent=2, ensure_ascii=False, allow_nan=False)
        self.text(name, text + "\n")

    def lines(self, name: str, documents: Iterable[BaseModel | dict[str, object]]) -> int:
        """Write a file of one JSON document a line, whole or not at all; returns the number of lines."""
        return self.redacted_lines(name, map(self._line, documents))

    def redacted_lines(self, name: str, lines: Iterable[bytes]) -> int:
        """Write a file of lines that are redacted already, whole or not at all; returns the number of lines."""
        count = 0
        # The file takes its place only when everything was written and reached the disk.
        path = self.folder / name
        draft = path.with_name(f".{path.name}.part")
        with draft.open("wb") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007  (the last count is the number of lines)
                file.write(line)
            _flush_to_disk(file)
        draft.replace(path)
        return count

    def redacted_line(self, document: dict[str, object]) -> bytes:
        """A JSON document as a line, as `redacted_lines` takes it, for one of many short texts.

        They are looked at together, and one by one only where something is to be hidden in them.
        """
        texts = "\n".join(_texts(document))
        if self.redactor.redact_text(texts) != texts:
            return self._line(document)
        return json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"

    def text(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all; the text of `document` comes here too, already redacted."""
        self.redacted_lines(name, [self.redactor.redact_text(text).encode("utf-8", "replace")])

    def close(self) -> None:
        """End the log's last frame and close both streams; a second call does nothing."""
        if self._log.closed:
            return
        with ExitStack() as stack:
            for file in (self._events, self._log):
                stack.enter_context(file)
                stack.callback(_flush_to_disk, file)
            self.end_of_output()
            self._append(self._frame.flush(self._frame.FLUSH_FRAME))

    def seal(
        self, job: RunOrder, began: datetime, ended: datetime, isolation: Mode, key: Ed25519PrivateKey | None
    ) -> None:
        """Close the folder and seal it: from here on nothing in it changes but by those who judge."""
        self.close()
        manifest = Manifest(
            job=job.id,
            job_digest=job.digest(),
            began=began.isoformat(timespec="milliseconds"),
            ended=ended.isoformat(timespec="milliseconds"),
            seconds=self.elapsed(),
            isolation=isolation,
            files=(),
        )
        seal(self.folder, manifest, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        """All of it or an OSError: a disk that is almost full takes a part and says nothing."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._log.write(rest) :]

    def _write(self, text: bytes) -> bytes:
        if text:
            self._last = text[-1:]
            self._lines += text.count(b"\n")
            self._append(self._frame.compress(text))
            self._framed += len(text)
            self._unflushed += len(text)
            self.flush(if_older_s=FLUSH_S)
        return text

    def _line(self, document: BaseModel | dict[str, object]) -> bytes:
        value = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
        redacted = self.redactor.redact_document(value)
        return json.dumps(redacted, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def _texts(value: object) -> Iterator[str]:
    """All strings of a JSON value, keys apart."""
    match value:
        case str():
            yield value
        case dict():
            for entry in value.values():
                yield from _texts(entry)
        case list() | tuple():
            for entry in value:
                yield from _texts(entry)
        case _:
            pass


def _flush_to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


_KEY_BYTES = 32
# What the cells of a rehearsal left.
_CELL_RECORDS = (f"{BASE_RECORDS}/", f"{HEAD_RECORDS}/")


def key_file(environ: Mapping[str, str]) -> Path:
    """Where the recorder's key lies: as the variable says, else in the state folder of the recorder's user."""
    if given := environ.get(RECORDER_KEY_VARIABLE):
        return Path(given).expanduser()
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local/state")
    return Path(state) / "verl-e2e" / "recorder.key"


def recorder_key(file: Path) -> Ed25519PrivateKey:
    """The recorder's key, made on first use; `FILE.pub` next to it holds the public half for those who verify.

    UserError where the file is another thing.
    """
    if not os.path.lexists(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of several runs that make it at the same time all have the first one's, and it whole.
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(Ed25519PrivateKey.generate().private_bytes_raw())
            with suppress(FileExistsError):
                os.link(draft, file)
        finally:
            draft.unlink()
    raw = file.read_bytes()
    mode = file.stat().st_mode
    if len(raw) != _KEY_BYTES or mode & 0o077:
        raise UserError(f"{file} is not a key that its owner alone may read; remove it, and a new one is made")
    key = Ed25519PrivateKey.from_private_bytes(raw)
    public = file.with_name(f"{file.name}.pub")
    text = f"{public_half(key)}\n"
    if not public.is_file() or public.read_text() != text:
        _write(public, text.encode())
    return key


def usable_key(environ: Mapping[str, str], say: Callable[[str], None]) -> Ed25519PrivateKey | None:
    """The recorder's key, None and a sentence to `say` where there is none: the seal is then not signed."""
    file = key_file(environ)
    try:
        return recorder_key(file)
    except (OSError, UserError) as error:
        why = f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error)
        say(f"the run folder is not signed: {why}")
        return None


def public_half(key: Ed25519PrivateKey) -> str:
    """The public half in hexadecimal."""
    return key.public_key().public_bytes_raw().hex()


def seal(folder: Path, manifest: Manifest, key: Ed25519PrivateKey | None) -> None:
    """Write the manifest with every file of the folder, and its signature where there is a key."""
    files = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if is_sealed(relative) and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                suspect = name in SUSPECTS_WORD or relative.startswith(_CELL_RECORDS)
                word: Word = "suspect" if suspect else "recorder"
                files.append(SealedFile(path=relative, size=path.stat().st_size, sha256=digest, word=word))
    listed = manifest.model_copy(update={"files": tuple(files)})
    text = (json.dumps(listed.model_dump(mode="json"), indent=2) + "\n").encode()
    _write(folder / MANIFEST_FILE, text)
    if key is None:
        (folder / SIGNATURE_FILE).unlink(missing_ok=True)
        return
    signature = ManifestSignature(key=public_half(key), signature=key.sign(text).hex())
    _write(folder / SIGNATURE_FILE, (signature.model_dump_json(indent=2) + "\n").encode())


def seal_again(folder: Path, key: Ed25519PrivateKey | None) -> None:
    """Seal a folder once more after related runs were added; nothing where it has no seal yet."""
    with suppress(FileNotFoundError):
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        seal(folder, manifest, key)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    draft.write_bytes(content)
    draft.replace(path)


MAX_IMPORT_LINES = 20_000
_LINE_CHARS = 4096
_MOST_BYTES = 16 << 20


def collect_run(recorder: Recorder, facts: LogFacts, *, imports_file: Path, ended: Ended) -> None:
    """Write what the log and the instrumentation say into the folder, then the closing events; nothing is judged.

    `facts` are those of the log as written. `imports_file` is removed once its lines are in the folder.
    """
    raw = read_below(imports_file.parent, imports_file.name, limit=_MOST_BYTES)
    imported = []
    given = (raw or b"").splitlines()[:MAX_IMPORT_LINES]
    for line in given:
        with suppress(ValidationError):
            imported.append(ImportLine.model_validate_json(line[:_LINE_CHARS]))
    if raw is not None:
        recorder.lines(IMPORTS_FILE, imported)
        imports_file.unlink()
    recorder.event("probe", lines=len(imported), unreadable=len(given) - len(imported))
    steps = ({"step": step.step, "line": step.line, "metrics": plain(step.values)} for step in facts.steps)
    recorder.lines(METRICS_FILE, steps)
    configs = [
        {"line": config.line, "problem": config.problem, "values": plain(config.values)} for config in facts.configs
    ]
    recorder.document(CONFIG_FILE, {"schema": 1, "configs": configs})
    record_end(recorder, ended)


def record_end(recorder: Recorder, ended: Ended) -> None:
    """The two closing events, also for a run whose wrapper never started."""
    # The order's nonce comes last, when nothing that the run started is left to read it.
    nonce = {"nonce": recorder.nonce} if recorder.nonce else {}
    recorder.event("ended", reason=ended.reason.value, exit_code=ended.exit_code, note=ended.note, **nonce)
    survivors = [
        {"pid": survivor.pid, "name": survivor.name, "command": survivor.command} for survivor in ended.survivors
    ]
    recorder.event("left_running", processes=survivors)


def plain(value: object) -> object:
    """The value in JSON's terms: NaN and the infinities as "nan", "inf", "-inf", unknown objects as their text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): plain(entry) for key, entry in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(entry) for entry in value]
        case _:
            return str(value)


MAX_FILES = 2000
MAX_SEEN = 10 * MAX_FILES
HASHED_BYTES = 1 << 20
_TRACKER_BYTES = 64


# What a consumer writes the number of the last step into whose checkpoint is complete.
_TRACKERS = frozenset(consumer.checkpoint.tracker for consumer in CONSUMERS.values())


@dataclass(slots=True)
class CheckpointLister:
    """Writes `checkpoints.json` again after each phase."""

    recorder: Recorder
    # The wrapper's working directory.
    cwd: Path
    # Where the trainer saves, relative to `cwd`.
    folder: str
    # The folder below which the run may write and whose links are not followed; None where it may write anywhere.
    bounds: Path | None = None
    _listings: list[CheckpointListing] = field(default_factory=list)

    def list_after(self, phase: str) -> None:
        """List what lies there now; `phase` is the one that just ended, empty before the first."""
        folder = self.cwd / self.folder
        inside = self.bounds is None or is_folder_below(self.bounds, folder)
        self._listings.append(listing(folder, phase) if inside else CheckpointListing(after=phase))
        self.recorder.document(CHECKPOINTS_FILE, Checkpoints(folder=self.folder, listings=tuple(self._listings)))


def listing(folder: Path, after: str) -> CheckpointListing:
    """What lies in a folder, by path; links are not followed, and one that does not exist is empty."""
    below = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    paths = sorted(islice(below, MAX_SEEN))
    files = []
    for path in paths[:MAX_FILES]:
        with suppress(OSError):
            found = path.lstat()
            if S_ISREG(found.st_mode):
                digest = hashlib.sha256(path.read_bytes()).hexdigest() if found.st_size <= HASHED_BYTES else ""
                name = path.relative_to(folder).as_posix()
                files.append(
                    CheckpointFile(path=name, size=found.st_size, modified_ns=found.st_mtime_ns, sha256=digest)
                )
    trackers = {file.path: "" for file in files if Path(file.path).name in _TRACKERS}
    for name in trackers:
        with suppress(OSError), (folder / name).open("rb") as opened:
            trackers[name] = opened.read(_TRACKER_BYTES).decode(errors="replace").strip()
    return CheckpointListing(after=after, files=tuple(files), trackers=trackers, cut=len(paths) > MAX_FILES)

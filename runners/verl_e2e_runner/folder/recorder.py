"""Writes the run folder so that a crash at any moment leaves one that can be judged.

Everything is redacted before it touches the disk: the directories, names, addresses and secret variables of this host.
Events are appended one line at a time, the log is a stream of Zstandard frames whose last block is at most a second
old, every other file appears whole or not at all.
"""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import psutil
from pydantic import BaseModel

from verl_e2e.core.model import record
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.record import Event
from verl_e2e.core.text.redact import RedactingStream, Redactor, redactor, secrets_in

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
    names = [socket.gethostname(), *(environ.get(variable, "") for variable in _HOST_VARIABLES)]
    return redactor(
        paths=[
            (path, placeholder)
            for placeholder, place in named
            for path in dict.fromkeys((os.path.abspath(place), os.path.realpath(place)))
        ],
        hosts=_with_domains([name for name in dict.fromkeys(names) if name], _domains(resolver)),
        addresses=_addresses(),
        secrets=[(text, name) for name, value in environ.items() for text in secrets_in(name, value)],
    )


def _domains(resolver: Path) -> list[str]:
    """The domains that short host names are completed with; asking the resolver itself could take seconds."""
    try:
        lines = [line.split() for line in resolver.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    found = [domain for words in lines if words[:1] in (["search"], ["domain"]) for domain in words[1:]]
    return [domain.strip(".") for domain in found if domain.strip(".")]


def _with_domains(names: Iterable[str], domains: Iterable[str]) -> list[str]:
    complete = []
    for name in names:
        short, dot, _ = name.partition(".")
        complete += [name, short] if dot else [name, *(f"{name}.{domain}" for domain in domains)]
    return complete


def _addresses() -> list[str]:
    families = (socket.AF_INET, socket.AF_INET6)
    found = [entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in families]
    return [entry.address.partition("%")[0] for entry in found]


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FLUSH_S = 1.0
FRAME_BYTES = 8 << 20
_LEVEL = 3


class FolderInUseError(UserError):
    """The folder already holds a run; the message says so to the user, whose mistake it is."""


@dataclass(slots=True)
class Recorder:
    """The open run folder; make it with `open_recorder`, close it at the end."""

    folder: Path
    redactor: Redactor
    _monotonic: Callable[[], float]
    _events: IO[bytes]
    _log: IO[bytes]
    _began: float
    _stream: RedactingStream
    _frame: zstd.ZstdCompressor = field(default_factory=lambda: zstd.ZstdCompressor(level=_LEVEL))
    _framed: int = 0
    _unflushed: int = 0
    _flushed_at: float = 0.0
    _last: bytes = b"\n"
    _lines: int = 0
    _resumed: bool = False
    # What the order held, to be returned with the end of the run; empty for none.
    nonce: str = ""

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
        with _replacing(self.folder / name) as file:
            for line in lines:
                file.write(line)
                count += 1
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
        with _replacing(self.folder / name) as file:
            file.write(self.redactor.redact_text(text).encode("utf-8", "replace"))

    def close(self) -> None:
        """End the log's last frame and close both streams; a second call does nothing."""
        if self._log.closed:
            return
        with ExitStack() as stack:
            for file in (self._events, self._log):
                stack.callback(_close, file)
            self.end_of_output()
            self._append(self._frame.flush(self._frame.FLUSH_FRAME))

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


def open_recorder(folder: Path, *, redactor: Redactor, monotonic: Callable[[], float]) -> Recorder:
    """Make the folder and open its streams; a folder that already holds a run is a `FolderInUseError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (record.EVENTS_FILE, record.LOG_FILE, record.JOB_FILE):
        if (folder / name).exists():
            raise FolderInUseError(
                f"{folder} already holds a run ({name}); give --out a new folder or remove this one."
            )
    began = monotonic()
    return Recorder(
        folder=folder,
        redactor=redactor,
        _monotonic=monotonic,
        _events=(folder / record.EVENTS_FILE).open("xb"),
        _log=(folder / record.LOG_FILE).open("xb", buffering=0),
        _began=began,
        _stream=redactor.stream(),
        _flushed_at=began,
    )


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


def _close(file: IO[bytes]) -> None:
    with file:
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` only when everything was written and reached the disk."""
    draft = path.with_name(f".{path.name}.part")
    with draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)

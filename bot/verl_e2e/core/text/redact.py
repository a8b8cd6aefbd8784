"""Redaction: private names become placeholders of equal meaning, secrets disappear, the log's shape stays.

A `Redactor` is built from explicit values and gives the same placeholder for the same value everywhere, in
the log as in every document. Lines are neither added nor removed, `\\r` and ANSI sequences stay as they are,
and redacting twice changes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.text.secret_patterns import (
    ANSI,
    PATTERNS,
    assigned_secrets,
    hide_secrets,
    hide_value,
    mark,
    one_line_keys,
)

WINDOW = 256 * 1024
OVERLAP = 16 * 1024
_KEY_LINES = 400
_NAME_REACH = 120

_LINE = re.compile(rb"[^\r\n]*[\r\n]|[^\r\n]+")
_KEY_BEGIN = re.compile(rb"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)([^\r\n]*)")
_KEY_END = re.compile(rb"[^\r\n]*-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_BODY = re.compile(
    rb"\A((?:" + ANSI + rb")*+(?:\([^)\r\n]{1,200}\))?+(?:" + ANSI + rb"|[ \t>|+])*+)([A-Za-z0-9+/=]++)(?=\s*+\Z)"
)
# A path may also begin after a colour, an escaped line end, `file://` or a compiler's flag.
_FRESH = re.compile(rb"(?:" + ANSI + rb"|\\[nrt]|file:(?://)?|(?:^|[\s'\"=])-[A-Za-z])\Z")
# Host names that are also words of every log: replacing them would change what the log says.
_PLAIN_HOST = re.compile(
    r".{0,2}|localhost(?:\..*)?|cuda|driver|gpu|host|linux|local|main|megatron|model|node|python|ray|rollout|root|server"
    r"|test|train|trainer|ubuntu|verl|vllm|worker",
    re.IGNORECASE,
)
_KEPT_ADDRESSES = frozenset(("127.0.0.1", "0.0.0.0", "::1", "::"))  # noqa: S104 - nothing is bound here


@dataclass(frozen=True, slots=True)
class _Name:
    """A literal that is replaced where it stands alone: no character of `joined` before it."""

    value: bytes
    placeholder: bytes
    joined: re.Pattern[bytes]
    pattern: re.Pattern[bytes]

    def swap(self, match: re.Match[bytes]) -> bytes:
        before = match.string[max(0, match.start() - 16) : match.start()]
        if self.joined.match(before[-1:]) and not _FRESH.search(before):
            return match[0]
        return self.placeholder


_PATH_JOINED = re.compile(rb"[\w.\-~/\x80-\xff]")
_HOST_JOINED = re.compile(rb"[\w\-]")
_ADDRESS_JOINED = re.compile(rb"[\w.:]")


def _path(value: str, placeholder: str) -> _Name:
    raw = value.rstrip("/").encode("utf-8", "surrogateescape")
    pattern = re.compile(re.escape(raw) + rb"(?![\w\-\x80-\xff]|\.\w)")
    return _Name(raw, placeholder.encode(), _PATH_JOINED, pattern)


def _host(value: str, placeholder: str) -> _Name:
    raw = value.encode()
    return _Name(raw, placeholder.encode(), _HOST_JOINED, re.compile(re.escape(raw) + rb"(?![\w\-])"))


def _address(value: str, placeholder: str) -> _Name:
    pattern = re.compile(re.escape(value.encode()) + rb"(?!\w|\.\d)")
    return _Name(value.encode(), placeholder.encode(), _ADDRESS_JOINED, pattern)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces known values and whatever looks like a secret; build it with `redactor`."""

    names: tuple[_Name, ...] = ()
    secrets: tuple[tuple[bytes, bytes], ...] = ()

    def stream(self) -> "RedactingStream":
        """A new stream of log bytes."""
        return RedactingStream(self)

    def redact_text(self, text: str) -> str:
        """The text with everything private replaced."""
        stream = self.stream()
        raw = text.encode("utf-8", "surrogatepass")
        return (stream.feed(raw) + stream.finish()).decode("utf-8", "surrogatepass")

    def redact_document(self, value: object) -> object:
        """A JSON value with all its strings and keys redacted; a string under a secret name goes whole."""
        match value:
            case str():
                return self.redact_text(value)
            case Mapping():
                return {self._key(key): self._entry(key, entry) for key, entry in value.items()}
            case list() | tuple():
                return [self.redact_document(entry) for entry in value]
            case _:
                return value

    def redact_block(self, block: bytes) -> bytes:
        """Whole lines, redacted; private keys of several lines are the stream's matter."""
        for secret, placeholder in self.secrets:
            if secret in block:
                block = block.replace(secret, placeholder)
        block = hide_secrets(block)
        for name in self.names:
            if name.value in block:
                block = name.pattern.sub(name.swap, block)
        return block

    def _key(self, key: object) -> object:
        return self.redact_text(key) if isinstance(key, str) else key

    def _entry(self, key: object, entry: object) -> object:
        redacted = self.redact_document(entry)
        return hide_value(key, redacted) if isinstance(key, str) and isinstance(redacted, str) else redacted


def redactor(
    *,
    paths: Iterable[tuple[str, str]] = (),
    hosts: Iterable[str] = (),
    addresses: Iterable[str] = (),
    secrets: Iterable[tuple[str, str]] = (),
) -> Redactor:
    """A redactor of these values.

    `paths` are (absolute directory, placeholder) such as ("/home/a", "$HOME"): the longest wins, and several
    may share a placeholder. `hosts` become host-1, host-2 ..., where a name and its longer forms
    (`a`, `a.example.org`) are one host. `addresses` become ip-1 ..., loopback stays. `secrets` are
    (value, kind) and are replaced wherever they occur, unless so short or plain that they may be any word.
    """
    named = [_path(value, placeholder) for value, placeholder in paths if value.strip("/") and value.startswith("/")]
    named += [_host(name, f"host-{number}") for name, number in _numbered_hosts(hosts)]
    kept = dict.fromkeys(address for address in addresses if address and address not in _KEPT_ADDRESSES)
    named += [_address(address, f"ip-{number}") for number, address in enumerate(kept, 1)]
    known = {line: kind for value, kind in secrets for line in value.splitlines() if _is_telling(line)}
    return Redactor(
        names=tuple(sorted(dict.fromkeys(named), key=lambda name: -len(name.value))),
        secrets=tuple((raw.encode(), mark(known[raw].encode())) for raw in sorted(known, key=len, reverse=True)),
    )


def _is_telling(secret: str) -> bool:
    """Whether a value is long enough to be replaced everywhere: 8 characters, 12 if all letters or all digits."""
    return len(secret) >= (12 if secret.isalpha() or secret.isdigit() else 8)


def _numbered_hosts(hosts: Iterable[str]) -> list[tuple[str, int]]:
    shorts: dict[str, int] = {}
    numbered: list[tuple[str, int]] = []
    for host in dict.fromkeys(hosts):
        short = host.partition(".")[0]
        if not _PLAIN_HOST.fullmatch(host):
            numbered.append((host, shorts.setdefault(short, len(shorts) + 1)))
    return numbered


@dataclass(slots=True)
class RedactingStream:
    """Redacts a stream of log bytes in bounded memory; lines come back in the order and number of the input.

    A line is held until its end (`\\n` or `\\r`) is read; one longer than `WINDOW` is handled piecewise, cut
    where no secret is.
    """

    redactor: Redactor
    _pending: bytes = b""
    _key_lines: int = field(default=0)

    def feed(self, chunk: bytes) -> bytes:
        """Take more bytes, return what may be written."""
        data = self._pending + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > WINDOW:
            end = self._safe_cut(data, end)
        self._pending = data[end:]
        return self._redact(data[:end]) if end else b""

    def finish(self) -> bytes:
        """The rest, after the last byte was fed."""
        data, self._pending = self._pending, b""
        return self._redact(data) if data else b""

    def _redact(self, block: bytes) -> bytes:
        if not self._key_lines and b"PRIVATE KEY-----" not in block:
            return self.redactor.redact_block(block)
        lines = (self._hide_key(line) for line in _LINE.findall(self.redactor.redact_block(block)))
        return b"".join(lines)

    def _hide_key(self, line: bytes) -> bytes:
        if begin := _KEY_BEGIN.search(line):
            if not _KEY_END.match(line):
                self._key_lines = _KEY_LINES
                rest = mark(b"private_key") if begin[2] else b""
                return line[: begin.end(1)] + rest + line[begin.end(2) :]
            return line
        if not self._key_lines:
            return line
        self._key_lines -= 1
        if end := _KEY_END.match(line):
            self._key_lines = 0
            body = end[0].rpartition(b"-----END")
            return _KEY_BODY.sub(rb"\1" + mark(b"private_key"), body[0]) + body[1] + body[2] + line[end.end() :]
        return _KEY_BODY.sub(rb"\1" + mark(b"private_key"), line, count=1)

    def _safe_cut(self, data: bytes, start: int) -> int:
        """A place to cut a line without end: `OVERLAP` bytes before what was read last, and in no secret."""
        floor = max(start, len(data) - 2 * OVERLAP)
        cut = len(data) - OVERLAP
        tail = data[floor:]
        spans = [(floor + begin, floor + end) for begin, end in self._spans(tail)]
        for begin, end in sorted(spans, reverse=True):
            if begin < cut <= end:
                cut = begin
        return cut

    def _spans(self, tail: bytes) -> Iterable[tuple[int, int]]:
        values = [value for value, _ in self.redactor.secrets] + [name.value for name in self.redactor.names]
        for value in values:
            at = tail.find(value)
            while at >= 0:
                yield at, at + len(value)
                at = tail.find(value, at + 1)
        for pattern in PATTERNS:
            for begin, end, _ in pattern.spans(tail):
                yield max(0, begin - _NAME_REACH), end
        for begin, end, _ in one_line_keys(tail):
            yield max(0, begin - _NAME_REACH), end
        for begin, end, _ in assigned_secrets(tail):
            yield max(0, begin - _NAME_REACH), end

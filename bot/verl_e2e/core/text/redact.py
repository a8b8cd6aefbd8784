"""Redaction: private names become placeholders of equal meaning, secrets disappear, the log's shape stays.

Which names and values are secret is listed here alone.

A `Redactor` is built from explicit values and gives the same placeholder for the same value everywhere, in
the log as in every document. Lines are neither added nor removed, `\r` and ANSI sequences stay as they are,
and redacting twice changes nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# Wherever they stand in a name, in upper or lower case.
_ANYWHERE = (
    "password", "passwd", "passphrase", "passfile", "secret", "credential", "apikey", "api_key", "access_key",
    "private_key", "connection_string", "auth_config",
)  # fmt: skip
# At the end of a name, in upper or lower case.
_ENDS = ("auth", "cookie", "cookies", "dsn", "jwt", "webhook", "webhook_url")
_LAST = tuple(f"_{end}" for end in _ENDS)
# Whole names, in upper or lower case.
_ALONE = frozenset({*_ENDS, "token"} - {"auth"})
# What is named for an account with a cloud or a store of secrets is that account's.
_ACCOUNTS = ("AWS_", "AZURE_", "GCP_", "GOOGLE_", "VAULT_")

# In lower case: only after a word of credentials.
_LOWER = re.compile(
    r"(?:.*_)?(?:access|account|api|auth|bearer|bot|ci|client|csrf|deploy|gh|github|gitlab|hf|hub|id|jwt|npm|oauth|personal"
    r"|pypi|refresh|registry|session|slack|ssh|vault|wandb)_tokens?"
    r"|(?:.*_)?(?:account|auth|client|crypt|decryption|deploy|encryption|gpg|hmac|host|license|master|pgp|rsa|service"
    r"|session|shared|signing|ssh|storage|tls|webhook)_keys?"
    r"|(?:.*_)?(?:admin|basic|database|db|ftp|http|https|ldap|login|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|sudo"
    r"|user)_pass"
    r"|(?:.*_)?(?:ado|bitbucket|docker|gh|git|github|gitlab|hub)_pat"
)
# In upper case: unless one of these comes before it.
_UPPER = re.compile(r"(?:(?P<before>.*)_)?(?P<word>TOKENS?|KEY|PASS|PAT|AUTH)")
_HARMLESS_BEFORE = {
    "TOKEN": "AUDIO BOS CLS END EOS IMAGE LAST MASK MAX MIN NEW NUM PAD PER SEP SPECIAL START STOP UNK VIDEO",
    "TOKENS": (
        "BATCHED CACHED GENERATED INPUT MAX MIN NEW NUM OUTPUT PER PREFILL PROMPT RESPONSE SPECIAL STOP THINKING TOTAL"
    ),
    "KEY": (
        "AUDIO CACHE COLUMN DICT FN FOREIGN GROUP HASH IMAGE INDEX JSON LOOKUP MAP MESSAGES METRIC MODALITY"
        " PARTITION PRIMARY PROMPT PUBLIC RESPONSE REWARD SORT SOURCE TEACHER TOOLS VIDEO"
    ),
    "PASS": "BACKWARD BYPASS FIRST FORWARD MULTI ONE SECOND SINGLE",
}  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER_OF_URL = re.compile(r"://(?!git@)([^/\s?#@]+)@")


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: `HF_TOKEN` and `apiKey` do, `eos_token` does not."""
    words = _CAMEL.sub("_", name).replace("-", "_").replace(".", "_")
    lowered = words.lower()
    if words.startswith(_ACCOUNTS) or any(part in lowered for part in _ANYWHERE):
        return True
    if lowered in _ALONE or lowered.endswith(_LAST):
        return True
    if _LOWER.fullmatch(lowered):
        return True
    found = _UPPER.fullmatch(words)
    if found is None:
        return False
    before, harmless = (found["before"] or "").split("_"), _HARMLESS_BEFORE.get(found["word"], "").split()
    spoken = before if found["word"] == "TOKENS" else before[-1:]
    return not any(word in harmless for word in spoken)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must stay with the machine: by its name, or by a web address in it that names a user."""
    return is_secret_name(name) or _USER_OF_URL.search(value) is not None


def secrets_in(name: str, value: str) -> tuple[str, ...]:
    """The texts of a variable that must not be shown, the longest first; empty for one that is not secret."""
    if not is_secret(name, value):
        return ()
    users = _USER_OF_URL.findall(value)
    passwords = [user.partition(":")[2] for user in users]
    return tuple(dict.fromkeys(text for text in (value, *users, *passwords) if text))


ANSI = rb"\x1b\[[0-9;?]*[A-Za-z]"

Span = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A kind of secret; the first group, or the whole match when there is none, is what must go."""

    kind: bytes
    literals: tuple[bytes, ...]
    regex: re.Pattern[bytes]

    def spans(self, block: bytes) -> Iterator[Span]:
        """Where the secrets lie, as (start, end, kind)."""
        for match in self.regex.finditer(block):
            start, end = match.span(1 if self.regex.groups else 0)
            yield start, end, self.kind


def _pattern(kind: str, literals: tuple[bytes, ...], regex: bytes) -> SecretPattern:
    return SecretPattern(kind.encode(), literals, re.compile(regex))


_WORD = rb"[A-Za-z0-9_\-]"

PATTERNS: tuple[SecretPattern, ...] = (
    # An installation token may also be `ghs_`, an app id and a JSON web token.
    _pattern(
        "github_token",
        (b"gh",),
        rb"gh[pousr]_(?:[A-Za-z0-9]{1,20}_eyJ" + _WORD + rb"+(?:\." + _WORD + rb"+){0,2}|[A-Za-z0-9]{16,})",
    ),
    _pattern("github_token", (b"github_pat_",), rb"github_pat_[A-Za-z0-9_]{20,}"),
    _pattern("hf_token", (b"hf_",), rb"hf_(?=[a-z]{0,60}[A-Z0-9])[A-Za-z0-9]{20,}"),
    _pattern("hf_token", (b"api_org_",), rb"api_org_[A-Za-z0-9]{20,}"),
    _pattern("wandb_key", (b"wandb_v",), rb"wandb_v[0-9]+_" + _WORD + rb"{16,}"),
    _pattern(
        "wandb_key",
        (b"wandb", b"WANDB"),
        rb"(?:wandb|WANDB)[^\r\n]{0,80}?(?:key|KEY|login|LOGIN)[^\r\n]{0,40}?(?<![0-9a-f])([0-9a-f]{40})(?![0-9a-f])",
    ),
    _pattern("aws_key", (b"AKIA", b"ASIA"), rb"A(?:KI|SI)A[A-Z0-9]{16}"),
    _pattern("google_key", (b"AIza",), rb"AIza" + _WORD + rb"{35}"),
    _pattern("api_key", (b"sk-",), rb"(?<![A-Za-z0-9])sk-(?=" + _WORD + rb"{0,80}[0-9])" + _WORD + rb"{24,}"),
    _pattern("api_key", (b"nvapi-",), rb"nvapi-" + _WORD + rb"{20,}"),
    _pattern("gitlab_token", (b"glpat-",), rb"glpat-" + _WORD + rb"{16,}"),
    _pattern("slack_token", (b"xox",), rb"xox[abeoprs]-[A-Za-z0-9\-]{10,}"),
    _pattern("docker_token", (b"dckr_pat_",), rb"dckr_pat_" + _WORD + rb"{16,}"),
    # Looked for from the first character of a word on, and only in one that a second part follows: otherwise each
    # `eyJ` of a long word would be read to its end.
    _pattern(
        "jwt",
        (b"eyJ",),
        rb"(?<!" + _WORD + rb")(?=" + _WORD + rb"*+\." + _WORD + rb"{8})"
        rb"" + _WORD + rb"*?(eyJ" + _WORD + rb"{8,}+\." + _WORD + rb"++(?:\." + _WORD + rb"*+)?)",
    ),
    _pattern(
        "bearer",
        (b"earer", b"BEARER"),
        rb"(?:[Bb]earer|BEARER)[ \t]+([A-Za-z0-9._~+/\-]{8,}=*)",
    ),
    _pattern(
        "authorization",
        (b"uthorization", b"AUTHORIZATION"),
        rb"(?:[Aa]uthorization|AUTHORIZATION)['\"]?[ \t]*[:=][ \t]*['\"]?(?:[A-Za-z]{2,10}[ \t]+)?([^\s'\",;<>]{8,})",
    ),
    _pattern("cookie", (b"ookie",), rb"(?:[Ss]et-)?[Cc]ookie['\"]?[ \t]*:[ \t]*['\"]?([^\r\n'\"]+)"),
    _pattern("userinfo", (b"://",), rb"://(?!git@)([^\s/?#@'\"<>]{1,400})@"),
)

# Names are found by these parts in lower case, then judged whole by `is_secret_name`; one with `=` ends a name.
_NAME_PARTS = (
    *(b"token", b"passw", b"passphrase", b"passfile", b"secret", b"credential", b"_key", b"-key", b"apikey", b"key="),
    *(b"_pass", b"-pass", b"pass=", b"_pat", b"pat=", b"_auth", b"-auth", b"auth=", b"cookie", b"dsn", b"jwt"),
    *(b"webhook", b"connection_string", b"aws_", b"azure_", b"gcp_", b"google_", b"vault_"),
)

_KEY_MARK = re.compile(rb"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY-----|[\r\n]")

# No variable has a longer name, and this much of a value is enough to decide. A secret itself may be longer.
_NAME_BYTES, _JUDGED_BYTES = 80, 4096

_GAP = rb"(?:" + ANSI + rb"|[ \t'\"])*+"
_ASSIGNMENT = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.\-]{0,80}+)(?P<sep>" + _GAP + rb"[=:](?!:)" + _GAP + rb"|[ \t]++)"
    rb"(?=[^\s'\",;&\x1b])"
)
_VALUE_END = re.compile(rb"[\s'\",;&\x1b]")
_CLOSING = b")]}"
_NAME_CHARS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_HARMLESS = re.compile(rb"(?:None|none|null|True|False|true|false|\*+|\.\.\.|\$\{?\w+\}?|[{<\[(].*|[0-9]{1,3})\Z")
_NUMBER = re.compile(rb"(?:[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan|np\.\w+\(.*)\Z")
_OPAQUE = re.compile(rb"(?=.*[0-9])[A-Za-z0-9_.~+/=\-]{16,}\Z")


def one_line_keys(block: bytes) -> Iterator[Span]:
    """Where the bodies of private keys lie that begin and end on one line."""
    begun = -1
    for found in _KEY_MARK.finditer(block):
        match found[1]:
            case b"BEGIN":
                begun = begun if begun >= 0 else found.end()
            case b"END" if 0 <= begun < found.start():
                yield begun, found.start(), b"private_key"
                begun = -1
            case _:
                begun = -1


def assigned_secrets(block: bytes) -> Iterator[Span]:
    """Where values lie that are given to a secret name: `X_TOKEN=...`, `'password': '...'`, `--api-key ...`.

    In time linear in the block, whatever it holds.
    """
    lowered, ends = block.lower(), _Ends(block)
    for part in _NAME_PARTS:
        at = lowered.find(part)
        while at >= 0:
            span = _assigned_at(block, at, at + len(part.rstrip(b"=")), ends)
            if span:
                yield span
            at = lowered.find(part, max(at + len(part), span[1] if span else 0))


class _Ends:
    """Where values and lines of a block end; what was searched once is not searched again."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._value = self._line = (0, 0, 0)

    def of_value(self, start: int) -> int:
        """The end of a value that begins at `start`, closing brackets left out; `start` when nothing is left."""
        begun, bare, until = self._value
        if not begun <= start < until:
            found = _VALUE_END.search(self._block, start)
            until = found.start() if found else len(self._block)
            bare = until
            while bare > start and self._block[bare - 1] in _CLOSING:
                bare -= 1
            self._value = (start, bare, until)
        return max(bare, start)

    def of_line(self, start: int) -> int:
        """The end of the line in which `start` lies."""
        begun, _, until = self._line
        if not begun <= start <= until or not until:
            ends = (self._block.find(mark, start) for mark in (b"\n", b"\r"))
            until = min((at for at in ends if at >= 0), default=len(self._block))
            self._line = (start, until, until)
        return until


def _assigned_at(block: bytes, start: int, end: int, ends: _Ends) -> Span | None:
    match = _ASSIGNMENT.match(block, end)
    if match is None:
        return None
    while start > 0 and end - start < _NAME_BYTES and block[start - 1] in _NAME_CHARS:
        start -= 1
    name = block[start : match.end("rest")].decode("ascii", "replace")
    bare = name.lstrip("-.")
    begins = match.end()
    value_end = ends.of_value(begins)
    value = block[begins : min(value_end, begins + _JUDGED_BYTES)]
    if not value or (not match["sep"].strip() and not name.startswith("--")):
        return None
    # Alone and in lower case it is a language model's token more often than one that opens a door.
    plain_word = bare != "TOKEN" and bare.lower() == "token" and not _OPAQUE.match(value)
    if _HARMLESS.match(value) or plain_word or not is_secret_name(bare):
        return None
    kind = _kind_of(bare)
    if kind == b"token" and _NUMBER.match(value):
        return None
    quote = block[begins - 1 : begins]
    if quote in (b"'", b'"'):
        # A quoted value ends with the closing quote on the same line.
        closing = block.find(quote, value_end, ends.of_line(value_end))
        value_end = closing if closing >= 0 else value_end
    return begins, value_end, kind


def _kind_of(name: str) -> bytes:
    return b"token" if name.lower().endswith("token") else b"password" if "pass" in name.lower() else b"secret"


def hide_secrets(block: bytes) -> bytes:
    """The block with every secret that a pattern or a name gives away replaced by `<redacted:kind>`."""
    for pattern in PATTERNS:
        if any(literal in block for literal in pattern.literals):
            block = _replace(block, pattern.spans(block))
    if b"PRIVATE KEY-----" in block:
        block = _replace(block, one_line_keys(block))
    return _replace(block, assigned_secrets(block))


def _replace(block: bytes, spans: Iterator[Span]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for start, end, kind in sorted(spans):
        if start >= done:
            parts += (block[done:start], mark(kind))
            done = end
    return b"".join((*parts, block[done:])) if parts else block


def mark(kind: bytes) -> bytes:
    """The placeholder of a secret."""
    return b"<redacted:" + kind + b">"


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
                found: dict[object, object] = {}
                for key, entry in value.items():
                    redacted = self.redact_document(entry)
                    if isinstance(key, str) and isinstance(redacted, str) and redacted and is_secret_name(key):
                        # What is set to nothing in particular tells nothing.
                        harmless = _HARMLESS.match(redacted.encode("utf-8", "surrogatepass"))
                        redacted = redacted if harmless else mark(_kind_of(key)).decode()
                    found[self.redact_text(key) if isinstance(key, str) else key] = redacted
                return found
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
    named: list[_Name] = []

    def replace(value: str, placeholder: str, joined: re.Pattern[bytes], after: bytes) -> None:
        raw = value.encode("utf-8", "surrogateescape")
        named.append(_Name(raw, placeholder.encode(), joined, re.compile(re.escape(raw) + after)))

    for value, placeholder in paths:
        if value.strip("/") and value.startswith("/"):
            replace(value.rstrip("/"), placeholder, _PATH_JOINED, rb"(?![\w\-\x80-\xff]|\.\w)")
    numbers: dict[str, int] = {}
    for host in dict.fromkeys(hosts):
        if not _PLAIN_HOST.fullmatch(host):
            number = numbers.setdefault(host.partition(".")[0], len(numbers) + 1)
            replace(host, f"host-{number}", _HOST_JOINED, rb"(?![\w\-])")
    kept = dict.fromkeys(address for address in addresses if address and address not in _KEPT_ADDRESSES)
    for number, address in enumerate(kept, 1):
        replace(address, f"ip-{number}", _ADDRESS_JOINED, rb"(?!\w|\.\d)")
    # 8 characters are enough to be no other word, of letters or digits alone 12.
    lines = ((line, kind) for value, kind in secrets for line in value.splitlines())
    known = {line: kind for line, kind in lines if len(line) >= (12 if line.isalpha() or line.isdigit() else 8)}
    return Redactor(
        names=tuple(sorted(dict.fromkeys(named), key=lambda name: -len(name.value))),
        secrets=tuple((raw.encode(), mark(known[raw].encode())) for raw in sorted(known, key=len, reverse=True)),
    )


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
        values = (*(value for value, _ in self.redactor.secrets), *(name.value for name in self.redactor.names))
        spans = [found.span(1) for value in values for found in re.finditer(rb"(?=(%b))" % re.escape(value), tail)]
        shaped = (*(pattern.spans(tail) for pattern in PATTERNS), one_line_keys(tail), assigned_secrets(tail))
        spans += [(max(0, begin - _NAME_REACH), end) for kind in shaped for begin, end, _ in kind]
        for begin, end in sorted(spans, reverse=True):
            if floor + begin < cut <= floor + end:
                cut = floor + begin
        return cut

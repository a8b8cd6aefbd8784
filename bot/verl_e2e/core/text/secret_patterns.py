"""What a secret looks like in a log: patterns of well-known tokens, and values given to a name that is secret.

No pattern crosses a line end, so that line numbers stay as they are. Each has literals that are looked for
first: a search for a literal is many times faster than a regular expression, and ordinary text has none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.text.secret_names import is_secret_name

ANSI = rb"\x1b\[[0-9;?]*[A-Za-z]"

Span = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A kind of secret; the first group, or the whole match when there is none, is what must go."""

    kind: bytes
    literals: tuple[bytes, ...]
    regex: re.Pattern[bytes]

    def may_occur(self, block: bytes) -> bool:
        """Whether a block of text holds one of the literals."""
        return any(literal in block for literal in self.literals)

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
    return begins, _closed(block, begins, value_end, ends), kind


def _closed(block: bytes, begins: int, end: int, ends: _Ends) -> int:
    """The end of the value: of a quoted one the closing quote on the same line."""
    quote = block[begins - 1 : begins]
    if quote not in (b"'", b'"'):
        return end
    closing = block.find(quote, end, ends.of_line(end))
    return closing if closing >= 0 else end


def hide_value(name: str, value: str) -> str:
    """The value of a document's key: a placeholder when the name is secret and the value tells something."""
    raw = value.encode("utf-8", "surrogatepass")
    if not value or not is_secret_name(name) or _HARMLESS.match(raw):
        return value
    return mark(_kind_of(name)).decode()


def _kind_of(name: str) -> bytes:
    return b"token" if name.lower().endswith("token") else b"password" if "pass" in name.lower() else b"secret"


def hide_secrets(block: bytes) -> bytes:
    """The block with every secret that a pattern or a name gives away replaced by `<redacted:kind>`."""
    for pattern in PATTERNS:
        if pattern.may_occur(block):
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

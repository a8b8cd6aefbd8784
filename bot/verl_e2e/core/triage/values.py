"""Values as Hydra and the operating system read them, and whether two of them are the same.

Hydra takes its own quotes off an override, reads lists, mappings, numbers, truth values and `null`, and leaves
interpolations to be worked out later: such a value is unreadable here, and contradicts nothing.
"""

import math
import posixpath
import re
from collections.abc import Iterator, Mapping

MAX_DEPTH = 16
UNREADABLE = object()

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<sign>[\[\]{},:])|(?P<plain>[^\[\]{},:]+))"""
)
_WORKED_OUT = re.compile(
    r"\$[({\w]|^\s*(?:choice|range|interval|glob|sort|shuffle|tag|extend_list|cast|int|float|str)\("
)
_ESCAPED = re.compile(r"\\([\\'\"(){}\[\],:=\s])")
_UNKNOWN = re.compile(r"~[\w.-]*(?=/|$)|\.\.?(?=/)")
_WORDS = {"null": None, "none": None, "true": True, "false": False}


def read_value(text: str) -> object:
    """What an override or a variable says: a plain value, a list or a mapping, or `UNREADABLE`."""
    if _WORKED_OUT.search(text):
        return UNREADABLE
    bare = text.strip()
    if not bare.startswith(("[", "{")):
        return _plain(bare)
    tokens = _TOKEN.finditer(bare)
    try:
        value = _container(tokens, next(tokens)["sign"], 0)
    except (StopIteration, ValueError, RecursionError):
        return UNREADABLE
    return UNREADABLE if next(tokens, None) is not None else value


def same_value(found: object, wanted: object) -> bool:
    """Whether a printed value is the one that was wanted; a mapping that was asked for is merged into the whole."""
    if wanted is UNREADABLE:
        return True
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(key not in found or same_value(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list | tuple):
        return len(found) == len(wanted) and all(map(same_value, found, wanted))
    if isinstance(found, str) and isinstance(wanted, str) and same_text(found, wanted):
        return True
    left, right = _read(found), _read(wanted)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right) or (isinstance(left, str) and isinstance(right, str) and same_text(left, right))


def same_text(left: str, right: str) -> bool:
    """Equality of two texts, or of two paths or lists of paths as the operating system reads them."""
    parts = left.split(":"), right.split(":")
    return len(parts[0]) == len(parts[1]) and all(map(_same_path, *parts))


def _same_path(left: str, right: str) -> bool:
    """A home folder is that of a user who is not known here, and `./` stands for a folder that is not known."""
    for one, other in ((left, right), (right, left)):
        unknown = _UNKNOWN.match(one)
        if unknown is not None and other.startswith("/"):
            return _normal(other).endswith(_normal(one[unknown.end() :]).removesuffix("/"))
    return _normal(left) == _normal(right)


def _normal(path: str) -> str:
    return re.sub("^//", "/", posixpath.normpath(path)) if "/" in path else path


def _container(tokens: Iterator[re.Match[str]], opened: str | None, depth: int) -> object:
    """The list or mapping that `opened` begins; ValueError for what is none."""
    if opened not in ("[", "{") or depth > MAX_DEPTH:
        raise ValueError
    closing, rows, row = {"[": "]", "{": "}"}[opened], list[list[object]](), list[object]()
    for token in tokens:
        match token["sign"]:
            case "[" | "{":
                row.append(_container(tokens, token["sign"], depth + 1))
            case "]" | "}" | ",":
                rows += [row] if row else []
                row = []
                if token["sign"] == closing:
                    return _mapping(rows) if opened == "{" else [_one(items) for items in rows]
                if token["sign"] != ",":
                    raise ValueError
            case ":":
                row.append(":")
            case _:
                row.append(_plain(token[0].strip()))
    raise ValueError


def _mapping(rows: list[list[object]]) -> dict[str, object]:
    if any(len(row) < 3 or row[1] != ":" for row in rows):
        raise ValueError
    return {str(row[0]): _one(row[2:]) for row in rows}


def _one(items: list[object]) -> object:
    """The item of a list; a text may hold colons."""
    if len(items) == 1:
        return items[0]
    if not all(isinstance(item, str) for item in items):
        raise ValueError
    return "".join(str(item) for item in items)


def _plain(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace(f"\\{text[0]}", text[0]).replace("\\\\", "\\")
    return _ESCAPED.sub(r"\1", text)


def _read(value: object) -> object:
    """A text as the number, truth value or nothing that it spells; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip("'\" ")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

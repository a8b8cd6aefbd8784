"""Lines that a log store packed into records of their own: JSON objects, or `key=value` pairs with a quoted message."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

MAX_LEAVES: Final = 64
MAX_DEPTH: Final = 5
# Where two fields are equally likely to hold the line, the name decides: those of the common log stores.
_NAMES: Final = ("log", "message", "msg", "MESSAGE", "line", "textPayload", "text", "body", "event", "data")
_PAIR: Final = re.compile(r'([\w.@/-]{1,64})=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))(?: +|$)')
_DIGITS: Final = re.compile(r"\d+")


def parse_record(text: str) -> Mapping[str, str] | None:
    """The leaves of the record that is the whole of `text`, by their dotted path; None when it is not one."""
    text = text.strip()
    if text[:1] in ("[", ","):
        text = text[1:].lstrip()
    if text.startswith("{"):
        return _json(
            text.removesuffix(",") if text.endswith(",") else text.removesuffix("]") if text[-2:] == "}]" else text
        )
    return _pairs(text) if '="' in text else None


def _json(text: str) -> Mapping[str, str] | None:
    if not text.endswith("}"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    leaves: dict[str, str] = {}
    _flatten("", value, leaves, MAX_DEPTH)
    return leaves or None


def _flatten(path: str, value: object, leaves: dict[str, str], depth: int) -> None:
    if len(leaves) >= MAX_LEAVES:
        return
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            _flatten(f"{path}.{key}" if path else str(key), item, leaves, depth - 1)
    elif isinstance(value, str | int | float) and path:
        leaves[path] = value if isinstance(value, str) else str(value)


def _pairs(text: str) -> Mapping[str, str] | None:
    leaves: dict[str, str] = {}
    at = 0
    while at < len(text) and len(leaves) < MAX_LEAVES:
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        leaves[pair[1]] = _unquoted(pair[2]) if pair[2] is not None else pair[3]
        at = pair.end()
    return leaves if len(leaves) > 1 else None


def _unquoted(value: str) -> str:
    if "\\" not in value:
        return value
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def message_path(records: Sequence[Mapping[str, str]], begins_known: Callable[[str], bool]) -> str | None:
    """The field that holds what the program printed: the one whose values say most, None when none says anything.

    A field with a value that begins as a program's known line does comes before all others.
    """
    paths = dict.fromkeys(path for record in records for path in record)
    return max((path for path in paths), key=lambda path: _weight(path, records, begins_known), default=None)


def _weight(
    path: str, records: Sequence[Mapping[str, str]], begins_known: Callable[[str], bool]
) -> tuple[bool, int, int]:
    values = [record[path] for record in records if path in record]
    # What differs in digits only is a time, a count or an id.
    text = {_DIGITS.sub("0", value): len(value) for value in values if " " in value.strip() or not value.strip()}
    name = path.rsplit(".", 1)[-1]
    rank = len(_NAMES) - _NAMES.index(name) if name in _NAMES else 0
    return any(map(begins_known, values)), sum(text.values()), rank

"""Values as Python prints them: numbers with the constructors around them, and whole dicts. Nothing is evaluated."""

import ast
import math
import re
from collections.abc import Mapping
from typing import Any, Final

# Metrics of one step that are kept.
MAX_KEYS = 2000

# One number in the constructor that numpy or torch shows around it, in brackets when it is an array of one element.
_WRAPPED_NUMBER = re.compile(
    r"^[A-Za-z_][\w.]{0,60}\(\s*(?:(\[{1,4})\s*)?'?(?P<number>[^\s,()\[\]']{1,60})'?(?(1)\s*\]{1,4})\s*(?:,[^()\[\]]{0,200})?\)$"
)
_STRING_OR_WORD = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?:np|numpy)\.\w+\((?P<inner>[^()'"]{1,64})\)"""
    r"""|(?P<call>[A-Za-z_][\w.]*\((?P<argument>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\))"""
    r"""|(?P<angle><[^<>'"]{1,200}(?:'[^']{0,200}')?[^<>'"]{0,200}>)"""
    r"""|(?P<word>(?<![\w.])[A-Za-z_][\w.]*)"""
)
_KEPT_WORDS = frozenset({"None", "True", "False"})
_NAN: Final = "\x00nan"


def parse_number(shown: str) -> float | None:
    """A float from `1.5`, `nan`, `inf`, `np.float64(2.0)`, `np.int64(2)` or `tensor(0.1)`; None otherwise."""
    try:
        return float(shown)
    except ValueError:
        wrapped = _WRAPPED_NUMBER.match(shown.strip())
        if wrapped is None:
            return None
    try:
        return float(wrapped["number"])
    except ValueError:
        return None


def read_dict(text: str) -> Mapping[str, Any]:
    """The mapping that a pretty-printed dict shows; raises ValueError with a reason when it is none."""
    try:
        value = ast.literal_eval(_STRING_OR_WORD.sub(_literal, text).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"the printed configuration is not a readable dict: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ValueError("the printed configuration is not a dict")
    restored = _restore(value)
    assert isinstance(restored, dict)
    return restored


def _literal(match: re.Match[str]) -> str:
    kept = match["string"] or match["inner"] or match["argument"]
    word = match[0]
    if kept or word in _KEPT_WORDS:
        return kept or word
    return {"inf": "1e999", "nan": repr(_NAN)}.get(word, repr(word))


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restore(item) for item in value]
    return math.nan if value == _NAN else value

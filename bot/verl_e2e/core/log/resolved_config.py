"""The configuration that a run printed: collect the pretty-printed dict from prefixed lines, and read it safely.

The printer's output may be cut into lines anywhere between two tokens, and lines of other streams of the same
process may stand in between. Nothing is evaluated: the text goes through `ast.literal_eval` after names that
are not literals (`torch.bfloat16`, `nan`, `<Enum: 1>`) became strings or numbers.
"""

import ast
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from verl_e2e.core.log.lines import Line
from verl_e2e.core.model.facts import ResolvedConfig

START: Final = "{'actor_rollout_ref':"
MAX_CHARACTERS = 2 * 1024 * 1024
MAX_LINES = 20_000
MAX_DEPTH = 80
MAX_FOREIGN_LINES = 200

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[][(){}]""")
_STRING_OR_WORD = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?:np|numpy)\.\w+\((?P<inner>[^()'"]{1,64})\)"""
    r"""|(?P<call>[A-Za-z_][\w.]*\((?P<argument>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\))"""
    r"""|(?P<angle><[^<>'"]{1,200}(?:'[^']{0,200}')?[^<>'"]{0,200}>)"""
    r"""|(?P<word>(?<![\w.])[A-Za-z_][\w.]*)"""
)
_CONTINUES = re.compile(r"""\s*(?:$|[][(){},:'"<]|-?[\d.]|(?:None|True|False|nan|-?inf|np\.|torch\.|numpy\.)\b)""")
_KEPT_WORDS = frozenset({"None", "True", "False"})
_NAN: Final = "\x00nan"


class ConfigCollector:
    """Gathers one dump, line by line, from the source that began it.

    `done` turns true when its brackets are closed or it can no longer be completed.
    """

    def __init__(self, first: Line) -> None:
        self.line = first.number
        self.last = first.number
        self.source = first.source
        self.done = False
        self._parts: list[str] = []
        self._size = 0
        self._depth = 0
        self._deepest = 0
        self._foreign = 0
        self._problem = ""
        self.add(first)

    def add(self, line: Line) -> None:
        """Take the next line of the same source; lines that are not part of a dict are passed over."""
        self.last = line.number
        if not _CONTINUES.match(line.text):
            self._pass_over()
            return
        self._parts.append(line.text)
        self._size += len(line.text)
        for token in _TOKEN.finditer(line.text):
            self._depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(token[0], 0)
            self._deepest = max(self._deepest, self._depth)
        if self._depth <= 0:
            self.done = True
        elif self._size > MAX_CHARACTERS or len(self._parts) > MAX_LINES or self._deepest > MAX_DEPTH:
            self._give_up("the printed configuration is larger or deeper than any real one")

    def result(self) -> ResolvedConfig:
        """What was gathered so far, read; `values` is None with the reason when it is cut or broken."""
        if self._problem:
            return ResolvedConfig(self.line, None, self._problem)
        if not self.done:
            return ResolvedConfig(self.line, None, "the printed configuration is cut before its last bracket")
        try:
            return ResolvedConfig(self.line, read_dict("\n".join(self._parts)))
        except ValueError as error:
            return ResolvedConfig(self.line, None, str(error))

    def _pass_over(self) -> None:
        self._foreign += 1
        if self._foreign > MAX_FOREIGN_LINES:
            self._give_up("the printed configuration is cut before its last bracket")

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self.done = True
        self._parts.clear()


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


def lookup(values: Mapping[str, Any] | None, key: str, default: Any = None) -> Any:
    """The value under a dotted key, `default` where the mapping has no such key."""
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def lora_rank(config: ResolvedConfig) -> float:
    """The LoRA rank that the actor was asked for; 0 when none, or when the configuration cannot be read."""
    rank = lookup(config.values, "actor_rollout_ref.model.lora.rank")
    return rank if isinstance(rank, int | float) else 0


def _literal(match: re.Match[str]) -> str:
    if match["string"]:
        return match[0]
    if match["inner"]:
        return match["inner"]
    if match["argument"]:
        return match["argument"]
    word = match[0]
    if word in _KEPT_WORDS:
        return word
    return {"inf": "1e999", "nan": repr(_NAN)}.get(word, repr(word))


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restore(item) for item in value]
    return math.nan if value == _NAN else value

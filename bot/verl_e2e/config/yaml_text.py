"""A strict YAML reader that knows the line of every key.

It refuses repeated keys, tags and aliases. The only types are mapping, list, text, number, boolean and null."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from verl_e2e.config.problems import ConfigError, Problem

Path = tuple[str | int, ...]
MOST_BYTES = 1 << 20
# No number of a file has as many characters. The time to convert one grows with the square of its digits.
_MOST_DIGITS = 40
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed file: plain values, and the line (from 1) of each key and list item."""

    source: str
    value: Any
    lines: Mapping[Path, int]

    def line_of(self, path: Path) -> int:
        """The line of the key, else of the nearest key around it; 0 for an empty file."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 0)


def load_yaml(text: str | bytes, source: str, *, packaged: bool = False) -> YamlDocument:
    """Parse one YAML document; `source` names the file in errors. Raises ConfigError with line and fix.

    `packaged` says that the file comes with the program and is known to have no mistakes: it is read faster.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError([Problem(source, 0, "", f"{len(text)} bytes are too many; the limit is {MOST_BYTES}")])
    reader = _Reader(source)
    try:
        node = _composed(_decoded(text, source), source, packaged=packaged)
        value = reader.read(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, source)]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(source, 0, "", f"not valid YAML: {' '.join(str(error).split())}")]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return YamlDocument(source, value, reader.lines)


def _decoded(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(source, line, "", "a byte that is not UTF-8", "save the file as UTF-8")]) from None


class _NoAliases(yaml.composer.Composer):
    """Refuses aliases: they hide what a line says, and can expand without bound."""

    # Of the parser that it is joined with.
    check_event: Callable[..., bool]
    peek_event: Callable[[], Any]

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed; repeat the value", mark)
        return super().compose_node(parent, index)


class _Loader(_NoAliases, yaml.SafeLoader):
    """PyYAML's safe loader without aliases."""


def _composed(text: str, source: str, *, packaged: bool) -> yaml.Node | None:
    if not (packaged and yaml.__with_libyaml__):
        return _composed_with_care(text, source)

    class _FastLoader(_NoAliases, yaml.cyaml.CSafeLoader):
        """The same by libyaml, an eighth of the time; of mistakes it says less, and it takes some tabs."""

        def __init__(self, stream: str) -> None:
            yaml.cyaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

    return yaml.compose(text, Loader=_FastLoader)


def _composed_with_care(text: str, source: str) -> yaml.Node | None:
    line = 0
    try:
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
            return node
        finally:
            line = loader.line + 1
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what, fix = f"not valid YAML: {error.reason}", "leave the character out, or write it as an escape"
    except RecursionError:
        what, fix = "nested too deeply", "use fewer levels"
    except (ValueError, OverflowError):
        what, fix = "not valid YAML: the number of an escape or a directive is too large", "write the character itself"
    raise ConfigError([Problem(source, line, "", what, fix)])


def _syntax_problem(error: yaml.MarkedYAMLError, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    return Problem(source, mark.line + 1 if mark else 0, "", f"not valid YAML: {error.problem or error.context}")


class _Reader:
    """Turns YAML nodes into plain values and collects lines and problems on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._constructor = yaml.SafeLoader("")

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[Hashable, Any]:
        values: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or not _is_whole(key):
                self._problem(key_node, path, "a key must be plain text", "use a word")
                continue
            here = (*path, key)
            if key in values:
                first = self.lines[here]
                self._problem(key_node, here, f"line {first} has this key already", "keep one of them")
                continue
            self.lines[here] = key_node.start_mark.line + 1
            values[key] = self.read(value_node, here)
        return values

    def _scalar(self, node: yaml.Node, path: Path) -> str | int | float | bool | None:
        try:
            if not isinstance(node, yaml.ScalarNode) or not _is_whole(node.value) or _is_odd_number(node):
                raise ValueError
            value = self._constructor.construct_object(node, deep=True)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError
        # PyYAML takes the text of a value with a tag for what the tag says.
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError):
            whole = ascii(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            shown = whole if len(whole) <= _MOST_DIGITS else f"{whole[:_MOST_DIGITS]}..."
            self._problem(node, path, f"{shown} with tag {node.tag!r} is not a plain value", "put it in quotes")
            return None
        if isinstance(value, str | int | float | bool) or value is None:
            return value
        return str(node.value)

    def _problem(self, node: yaml.Node, path: Path, what: str, fix: str) -> None:
        key = dotted(path)
        self.problems.append(Problem(self.source, node.start_mark.line + 1, key, what, fix))


def _is_odd_number(node: yaml.ScalarNode) -> bool:
    """Whether YAML takes a text for a number that no one means: 1:30 with base 60, or one with very many digits."""
    is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
    return is_number and (":" in node.value or len(node.value) > _MOST_DIGITS)


def _is_whole(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as an escape can make one: nothing could be written with it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def dotted(path: Path) -> str:
    """A key path as people write it: `rules.3.levels`, list items counted from 0."""
    return ".".join(str(part) for part in path)

"""A strict YAML reader that knows the line of every key.

It refuses repeated keys, tags and aliases. The only types are mapping, list, text, number, boolean and null."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from verl_e2e.config.problems import ConfigError, Problem

Path = tuple[str | int, ...]
MOST_BYTES = 1 << 20


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
        node = _composed(_decoded(text, source), packaged=packaged)
        value = reader.read(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, source)]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(source, 0, "", f"not valid YAML: {' '.join(str(error).split())}")]) from None
    except RecursionError:
        raise ConfigError([Problem(source, 0, "", "nested too deeply", "use fewer levels")]) from None
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


def _composed(text: str, *, packaged: bool) -> yaml.Node | None:
    if not (packaged and yaml.__with_libyaml__):
        return yaml.compose(text, Loader=_Loader)

    class _FastLoader(_NoAliases, yaml.cyaml.CSafeLoader):
        """The same by libyaml, an eighth of the time; of mistakes it says less, and it takes some tabs."""

        def __init__(self, stream: str) -> None:
            yaml.cyaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

    return yaml.compose(text, Loader=_FastLoader)


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
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[Hashable, Any]:
        values: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
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
            value = self._constructor.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError):
            self._problem(node, path, f"{node.value!r} with tag {node.tag!r} is not a plain value", "put it in quotes")
            return None
        if isinstance(value, str | int | float | bool) or value is None:
            return value
        return str(node.value)

    def _problem(self, node: yaml.Node, path: Path, what: str, fix: str) -> None:
        key = dotted(path)
        self.problems.append(Problem(self.source, node.start_mark.line + 1, key, what, fix))


def dotted(path: Path) -> str:
    """A key path as people write it: `rules.3.levels`, list items counted from 0."""
    return ".".join(str(part) for part in path)

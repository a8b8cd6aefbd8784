"""A strict YAML reader that knows the line of every key, and checked models of what it read."""

import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.text.escape import suggest as suggest

# A file in which everything is wrong needs another look before all of it is read.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file."""

    # The file, or "environment".
    source: str
    # The line, from 1; 0 for the whole file.
    line: int
    # The key with dots (`rules.3.levels`), or the variable; empty for the whole file.
    key: str
    # What is wrong.
    what: str
    # What to do about it; empty when nothing more can be said.
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{place}: {self.key}" if self.key else place
        return f"{subject}: {self.what}; {self.fix}" if self.fix else f"{subject}: {self.what}"


class ConfigError(UserError):
    """A file or the environment has mistakes; the message has one line for each of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_SHOWN]]
        left = len(self.problems) - len(shown)
        super().__init__("\n".join([*shown, f"and {left} more"] if left else shown))


Path = tuple[str | int, ...]
MOST_CONFIG_BYTES = 1 << 20
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

    def mistake(line: int, what: str, fix: str = "") -> ConfigError:
        return ConfigError([Problem(source, line, "", what, fix)])

    if len(text) > MOST_CONFIG_BYTES:
        raise mistake(0, f"{len(text)} bytes are too many; the limit is {MOST_CONFIG_BYTES}")
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise mistake(line, "a byte that is not UTF-8", "save the file as UTF-8") from None
    reader = _Reader(source)
    line = 0
    try:
        if packaged and yaml.__with_libyaml__:
            node = yaml.compose(text, Loader=_fast_loader())
        else:
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
            finally:
                line = loader.line + 1
    except yaml.MarkedYAMLError as error:
        mark, what = error.problem_mark or error.context_mark, error.problem or error.context
        raise mistake(mark.line + 1 if mark else 0, f"not valid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fix = "leave the character out, or write it as an escape"
        raise mistake(line, f"not valid YAML: {error.reason}", fix) from None
    except yaml.YAMLError as error:
        raise mistake(0, f"not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise mistake(line, "nested too deeply", "use fewer levels") from None
    except (ValueError, OverflowError):
        what = "not valid YAML: the number of an escape or a directive is too large"
        raise mistake(line, what, "write the character itself") from None
    value = reader.read(node, ()) if node is not None else None
    if reader.problems:
        raise ConfigError(reader.problems)
    return YamlDocument(source, value, reader.lines)


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


def _fast_loader() -> Any:
    class FastLoader(_NoAliases, yaml.cyaml.CSafeLoader):
        """The same by libyaml, an eighth of the time; of mistakes it says less, and it takes some tabs."""

        def __init__(self, stream: str) -> None:
            yaml.cyaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

    return FastLoader


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
        key = dotted_key(path)
        self.problems.append(Problem(self.source, node.start_mark.line + 1, key, what, fix))


def _is_odd_number(node: yaml.ScalarNode) -> bool:
    """Whether YAML takes a text for a number that no one means: 1:30 with base 60, or one with very many digits."""
    is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
    return is_number and (":" in node.value or len(node.value) > _MOST_DIGITS)


def _is_whole(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as an escape can make one: nothing could be written with it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def dotted_key(path: Path) -> str:
    """A key path as people write it: `rules.3.levels`, list items counted from 0."""
    return ".".join(str(part) for part in path)


_Model = TypeVar("_Model", bound=BaseModel)
# The mistakes whose path ends with a key that is not there, or not known.
_OF_KEYS = frozenset({"missing", "extra_forbidden"})
# The types of a value, by the mistake of not being one.
_TYPES = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "none_required": "null",
}


# What values of a pattern are.
_FORMS = {
    r"^[0-9a-f]{40}$": "write the full SHA of a commit, 40 digits and letters from a to f",
    r"^[0-9a-f]{64}$": "write a SHA-256, 64 digits and letters from a to f",
    r"^[0-9a-f]{16}$": "write the 16 digits and letters from a to f that `verl-e2e flaky` shows",
    r"^(sha256:[0-9a-f]{64})?$": "write sha256: and 64 digits and letters from a to f",
    r"^https://\S+$": "write an address that begins with https://",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "write the name of a variable: letters, digits and underscores",
    r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,49}$": "write at most 50 letters, digits, blanks, dots, dashes and underscores",
    r"^(?:log|preflight|end|engine|criterion):[a-z][a-z0-9_-]{0,60}$": "write a cause as `verl-e2e flaky` shows it",
}
_BOUNDS = {
    "greater_than": "write more than",
    "greater_than_equal": "write at least",
    "less_than": "write less than",
    "less_than_equal": "write at most",
}


def validate(document: YamlDocument, model: type[_Model]) -> _Model:
    """The content of the file as the model; raises ConfigError with one problem for each mistake."""
    if not isinstance(document.value, Mapping):
        what = "the file is empty" if document.value is None else "the file is not a mapping of keys to values"
        fields = zip(_names(model), model.model_fields.values(), strict=True)
        keys = ", ".join(name for name, field in fields if field.is_required())
        raise ConfigError([Problem(document.source, document.line_of(()), "", what, f"write these keys: {keys}")])
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(_problems(error, document, model)) from None


def _problems(error: ValidationError, document: YamlDocument, model: type[BaseModel]) -> Iterable[Problem]:
    found: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # there are items, and each has its own problem
        path = tuple(part for part in detail["loc"] if part != "[key]")
        unfit = detail.get("ctx", {}).get("error")
        path = (*path, *unfit.at) if isinstance(unfit, UnfitError) else path
        place = path if detail["type"] in _OF_KEYS else _in_file(path, document.value)
        found.setdefault(place, []).append(detail)
    for place, details in found.items():
        what, fix = _sentence(details[0], place, model)
        if len(details) > 1:  # of a value that may have several types each one has refused it
            fix = f"use one of: {', '.join(_TYPES.get(detail['type'], detail['type']) for detail in details)}"
        yield Problem(document.source, document.line_of(place), dotted_key(place), what, fix)


def _in_file(path: tuple[str | int, ...], value: Any) -> tuple[str | int, ...]:
    """The part of a path that leads to a value of the file: the rest names a type that it may have."""
    for place, part in enumerate(path):
        known = isinstance(part, int) and isinstance(value, list) and part < len(value)
        if not known and not (isinstance(value, Mapping) and part in value):
            return path[:place]
        value = value[part]
    return path


def _sentence(detail: ErrorDetails, path: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str, str]:
    text = json.dumps(detail["input"], ensure_ascii=False, default=str)
    value = text if len(text) <= 80 else f"{text[:77]}..."
    match detail["type"]:
        case "extra_forbidden":
            hints: Mapping[str, str] = getattr(model, "hints", {}) if len(path) == 1 else {}
            key = str(path[-1])
            return "unknown key", hints.get(key) or suggest(key, _keys_at(model, path[:-1]))
        case "missing":
            return "missing", "this key is required"
        case "string_type" if isinstance(detail["input"], bool | int | float):
            return f"{value} is not text", f'put it in quotes: "{detail["input"]}"'
        case "string_pattern_mismatch":
            pattern = detail["ctx"]["pattern"]
            return f"{value} has the wrong form", _FORMS.get(pattern, f"it must match {pattern}")
        case "literal_error" | "enum":
            return f"{value} is not allowed", f"use {detail['ctx']['expected']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = ", ".join(_keys_at(model, path))
            return f"{value} is not allowed", f"write a mapping{f' with some of the keys {keys}' if keys else ''}"
        case kind if kind in _TYPES:
            return f"{value} is not allowed", f"write {_TYPES[kind]}"
        case kind if kind in _BOUNDS:
            return f"{value} is not allowed", f"{_BOUNDS[kind]} {next(iter(detail['ctx'].values()))}"
        case "value_error":
            error = detail["ctx"]["error"]
            return (error.what, error.fix) if isinstance(error, UnfitError) else (str(error), "")
        case _:
            return f"{value} is not allowed", detail["msg"][:1].lower() + detail["msg"][1:]


def _names(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _keys_at(model: type[BaseModel], path: Iterable[str | int]) -> tuple[str, ...]:
    """The keys of the model below a path, to suggest one for an unknown key."""
    here: Any = model
    for part in (*path, None):
        # The type inside `Annotated` and `| None`.
        while (origin := typing.get_origin(here)) in {typing.Annotated, typing.Union, types.UnionType}:
            inner = typing.get_args(here)
            here = inner[0] if origin is typing.Annotated else next(arg for arg in inner if arg is not type(None))
        if part is None:
            break
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = {field.alias or name: field.annotation for name, field in here.model_fields.items()}.get(str(part))
        else:
            arguments = typing.get_args(here)
            here = arguments[0 if isinstance(part, int) else -1] if arguments else None
    return _names(here) if isinstance(here, type) and issubclass(here, BaseModel) else ()

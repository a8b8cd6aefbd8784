"""From a parsed YAML file to a checked model. Each mistake is reported with its file, line, key, value and fix."""

import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from verl_e2e.config.problems import ConfigError, Problem, suggest
from verl_e2e.config.yaml_text import YamlDocument, dotted
from verl_e2e.core.model.validated import UnfitError

Model = TypeVar("Model", bound=BaseModel)
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


def validate(document: YamlDocument, model: type[Model]) -> Model:
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
        yield Problem(document.source, document.line_of(place), dotted(place), what, fix)


def _in_file(path: tuple[str | int, ...], value: Any) -> tuple[str | int, ...]:
    """The part of a path that leads to a value of the file: the rest names a type that it may have."""
    for place, part in enumerate(path):
        known = isinstance(part, int) and isinstance(value, list) and part < len(value)
        if not known and not (isinstance(value, Mapping) and part in value):
            return path[:place]
        value = value[part]
    return path


def _sentence(detail: ErrorDetails, path: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str, str]:
    value = _as_json(detail["input"])
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
        case kind if kind in _TYPES:
            return f"{value} is not allowed", f"write {_TYPES[kind]}"
        case kind if kind in _BOUNDS:
            return f"{value} is not allowed", f"{_BOUNDS[kind]} {next(iter(detail['ctx'].values()))}"
        case "value_error":
            error = detail["ctx"]["error"]
            return (error.what, error.fix) if isinstance(error, UnfitError) else (str(error), "")
        case _:
            return f"{value} is not allowed", _lower_first(detail["msg"])


def _as_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _names(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _keys_at(model: type[BaseModel], path: Iterable[str | int]) -> tuple[str, ...]:
    """The keys of the model below a path, to suggest one for an unknown key."""
    here: Any = model
    for part in path:
        here = _step(_without_wrappers(here), part)
    here = _without_wrappers(here)
    return _names(here) if isinstance(here, type) and issubclass(here, BaseModel) else ()


def _step(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
        return fields.get(str(part))
    arguments = typing.get_args(annotation)
    return arguments[0 if isinstance(part, int) else -1] if arguments else None


def _without_wrappers(annotation: Any) -> Any:
    """The type inside `Annotated` and `| None`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _without_wrappers(typing.get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return _without_wrappers(next(arg for arg in typing.get_args(annotation) if arg is not type(None)))
    return annotation

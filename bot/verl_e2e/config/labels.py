"""Reads labelled pull requests for the backtest."""

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from verl_e2e.config.problems import ConfigError, Problem
from verl_e2e.core.plan.backtest import Case

# Unknown keys are notes for people and are ignored.
_LABELS = TypeAdapter(tuple[Case, ...])


def load_labels(text: str | bytes, source: str) -> tuple[Case, ...]:
    """The labelled pull requests of a JSON list; raises ConfigError that names the entry and the key."""
    try:
        return _LABELS.validate_json(text)
    except ValidationError as error:
        raise ConfigError([_problem(detail, source) for detail in error.errors(include_url=False)]) from None


def _problem(detail: ErrorDetails, source: str) -> Problem:
    if detail["type"] == "json_invalid":
        return Problem(source, 0, "", "not valid JSON", "give a JSON list of labelled changes")
    return Problem(source, 0, ".".join(map(str, detail["loc"])), detail["msg"])

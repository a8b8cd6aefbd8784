"""Labelled pull requests, for the backtest."""

import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from verl_e2e.config.problems import ConfigError, Problem
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.backtest import Case


def _level(number: int) -> int:
    if number not in set(Level):
        raise ValueError(f"{number} is no level")
    return number


_LevelNumber = Annotated[int, Field(strict=True), AfterValidator(_level)]


class _Label(BaseModel):
    """One pull request; keys beside these are notes for people."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pr: int
    title: str = ""
    base: Sha
    head: Sha
    required: tuple[_LevelNumber, ...]
    optional: tuple[_LevelNumber, ...] = ()
    features: frozenset[str] | None = None
    families: frozenset[str] | None = None


def load_labels(text: str | bytes, source: str) -> tuple[Case, ...]:
    """The labelled pull requests of a JSON list; raises ConfigError that names the entry and the key."""
    try:
        labels = TypeAdapter(tuple[_Label, ...]).validate_python(json.loads(text))
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigError([Problem(source, 0, "", "no JSON", "give a JSON list of labelled changes")]) from None
        details = error.errors(include_url=False)
        raise ConfigError(
            [Problem(source, 0, ".".join(map(str, detail["loc"])), detail["msg"]) for detail in details]
        ) from None
    return tuple(
        Case(
            one.pr,
            one.title,
            one.base,
            one.head,
            _levels(one.required),
            _levels(one.optional),
            one.features,
            one.families,
        )
        for one in labels
    )


def _levels(numbers: tuple[int, ...]) -> frozenset[Level]:
    return frozenset(Level(number) for number in numbers)

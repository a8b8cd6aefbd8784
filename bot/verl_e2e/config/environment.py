"""Settings from environment variables: text in, checked values out. Each mistake is reported with its variable and fix.

The environment is an argument; only entry points read the environment of the process. No message contains a secret.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from verl_e2e.config.validation import ConfigError, Problem, suggest
from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.text.escape import likely

_SOURCE = "environment"
_PREFIXES = ("VERL_E2E_", "GITHUB_APP_", "GITHUB_WEBHOOK_")
# Variables of verl-e2e that other modules read.
_READ_ELSEWHERE = frozenset(
    {
        "VERL_E2E_DEBUG",
        "VERL_E2E_EXECUTED",
        "VERL_E2E_FINGERPRINTS",
        "VERL_E2E_IMPORTS",
        "VERL_E2E_RECORD",
        "VERL_E2E_RECORDER_KEY",
        "VERL_E2E_REHEARSAL_PYTHON",
        "VERL_E2E_PATH",
        "VERL_E2E_RUN",
        "VERL_E2E_TESTS",
    }
)


class EnvironmentSettings(BaseModel):
    """Settings from the environment; each field is read from one variable."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    # The fix in the message about a required variable that is not set.
    fix_of_missing: ClassVar[str] = "it is required"
    # Whether a secret may be given in a file whose path is the variable `NAME_FILE`.
    secrets_in_files: ClassVar[bool] = True


_Model = TypeVar("_Model", bound=EnvironmentSettings)


def variable(name: str, meaning: str, default: str | None = None, *, shown: str = "", secret: bool = False) -> Any:
    """A field that is read from one variable.

    `default` is text, as in the environment; None makes the variable required. `shown` is the default in the
    documentation. A secret does not appear in the settings' `repr`.
    """
    if default is None:
        return Field(alias=name, description=meaning, repr=not secret, json_schema_extra={"shown": "(required)"})
    return Field(
        default,
        alias=name,
        description=meaning,
        validate_default=True,
        repr=not secret,
        json_schema_extra={"shown": shown or (f"`{default}`" if default else "none")},
    )


def variables(model: type[EnvironmentSettings]) -> dict[str, FieldInfo]:
    """The fields by the names of their variables."""
    return {str(field.alias): field for field in model.model_fields.values()}


def secrets(model: type[EnvironmentSettings]) -> tuple[str, ...]:
    """The variables that hold secrets."""
    return tuple(name for name, field in variables(model).items() if not field.repr)


def read_settings(model: type[_Model], environ: Mapping[str, str], known: Collection[str] = ()) -> _Model:
    """The settings of an environment; raises ConfigError with one line for each variable that is missing or wrong.

    `known` are other variables that may be set.
    """
    files = {name: f"{name}_FILE" for name in secrets(model)} if model.secrets_in_files else {}
    names = {*variables(model), *files.values(), *known}
    # Without these a misspelt setting, which nothing reads, would go unnoticed.
    problems = [
        Problem(_SOURCE, 0, name, "there is no such variable", suggest(name, names))
        for name in sorted(set(environ) - names - _READ_ELSEWHERE)
        if name.startswith(_PREFIXES) and likely(name, names)
    ]
    texts: dict[str, str] = {}
    for name in variables(model):
        # For a secret also from the file that `NAME_FILE` names.
        text, file = environ.get(name, "").strip(), environ.get(files.get(name, ""), "").strip()
        if text and file:
            problems.append(Problem(_SOURCE, 0, name, f"{files[name]} is set too", "set only one of the two"))
            continue
        try:
            text = Path(file).read_text(encoding="ascii", errors="replace").strip() if file else text
        except OSError as error:
            what, fix = f"{files[name]} {file}: {error.strerror}", "name a file that verl-e2e can read"
            problems.append(Problem(_SOURCE, 0, name, what, fix))
            continue
        if text:
            texts[name] = text
    reported = {problem.key for problem in problems}
    try:
        settings = model.model_validate(texts)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            place = str(detail["loc"][0])
            # For an unfit default, pydantic names the field and not its variable.
            name = str(model.model_fields[place].alias) if place in model.model_fields else place
            if detail["type"] == "missing":
                what = "it is empty" if name in environ else "it is not set"
                fix = model.fix_of_missing + (f", here or in a file that {files[name]} names" if name in files else "")
            else:
                unfit = detail["ctx"]["error"]
                assert isinstance(unfit, UnfitError)
                what, fix = unfit.what, unfit.fix
            if name not in reported:
                problems.append(Problem(_SOURCE, 0, name, what, fix))
    if problems:
        raise ConfigError(problems)
    return settings

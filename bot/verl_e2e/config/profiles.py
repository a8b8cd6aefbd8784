"""Site profiles: the settings of a kind of GPU host, packaged under a name or in a YAML file of the site."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from verl_e2e.config.validation import ConfigError, Problem, YamlDocument, dotted_key, load_yaml, suggest, validate
from verl_e2e.config.validation import Path as KeyPath
from verl_e2e.core.model.jobs import Network, SiteProfile

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_PLACEHOLDER = re.compile(r"\$(?P<literal>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


def load_profile(
    name_or_path: str, values: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> SiteProfile:
    """Read a packaged profile or a YAML file and replace each `${name}`; `$${name}` becomes `${name}`.

    `values` come from the user; a value that the profile does not use is an error. `defaults` (such as `home`) are used
    for names that `values` does not have. Raises ConfigError.
    """
    source = name_or_path
    if _NAME.fullmatch(name_or_path):
        if name_or_path not in packaged_profiles():
            fix = suggest(name_or_path, packaged_profiles())
            raise ConfigError([Problem(f"site profile {name_or_path!r}", 0, "", "no such packaged profile", fix)])
        text = files("verl_e2e").joinpath("profiles", f"{name_or_path}.yml").read_bytes()
        source = f"packaged {name_or_path}.yml"
    else:
        try:
            text = Path(name_or_path).read_bytes()
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            fix = f"give a YAML file or a packaged name: {', '.join(packaged_profiles())}"
            raise ConfigError([Problem(name_or_path, 0, "", what, fix)]) from None
    document = load_yaml(text, source)
    used = {name for _, name in _placeholders(document.value, ())}
    unused = sorted(set(values) - used)
    if unused:
        fix = suggest(unused[0], used) if used else "remove it: this profile takes no values"
        raise ConfigError([Problem(source, 0, "", f"this profile does not use the value ${{{unused[0]}}}", fix)])
    filled = {**(defaults or {}), **values}
    missing = [
        Problem(source, document.line_of(path), dotted_key(path), f"${{{name}}} has no value", f"add --set {name}=...")
        for path, name in _placeholders(document.value, ())
        if name not in filled
    ]
    if missing:
        raise ConfigError(missing)
    return validate(YamlDocument(source, _replaced(document.value, filled), document.lines), SiteProfile)


def checked_for_slots(site: SiteProfile, slots: int) -> SiteProfile:
    """The profile, if so many runs can be side by side on its host; raises ConfigError."""
    if slots > 1 and site.isolation.network is not Network.NONE:
        what = f"the site profile {site.name} gives runs the host's network, where fixed ports collide"
        fix = "set `isolation.network: none` in the profile, or 1 here"
        raise ConfigError([Problem("environment", 0, "VERL_E2E_LOCAL_SLOTS", what, fix)])
    return site


def packaged_profiles() -> tuple[str, ...]:
    """The names of the profiles that come with the program."""
    names = (entry.name for entry in files("verl_e2e").joinpath("profiles").iterdir())
    return tuple(sorted(name.removesuffix(".yml") for name in names if name.endswith(".yml")))


def _placeholders(value: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    """The name of every placeholder with the key path of its value."""
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in _placeholders(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _placeholders(item, (*path, index))]
    if not isinstance(value, str):
        return []
    return [(path, match["name"]) for match in _PLACEHOLDER.finditer(value) if not match["literal"]]


def _replaced(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, values) for item in value]
    if not isinstance(value, str):
        return value
    return _PLACEHOLDER.sub(lambda match: match[0][1:] if match["literal"] else values[match["name"]], value)

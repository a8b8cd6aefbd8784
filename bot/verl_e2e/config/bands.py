"""Bands files: the measurements of healthy runs, packaged and in a YAML file of the user."""

from importlib.resources import files
from pathlib import Path

import yaml

from verl_e2e.config.problems import ConfigError, Problem
from verl_e2e.config.validation import validate
from verl_e2e.config.yaml_text import MOST_BYTES, load_yaml
from verl_e2e.core.model.bands import Bands
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.ports import ChangeSource

_PACKAGED = "policy/bands.yml"
_HEAD = (
    "# What healthy runs measured, by probe digest. Written by `verl-e2e bands add` and `verl-e2e bands pair`;\n"
    "# read by `judge`, `check` and `parity`. docs/parity.md describes it.\n"
)


def packaged_bands() -> Bands:
    """The measurements that come with the program."""
    return load_bands(files("verl_e2e").joinpath(_PACKAGED).read_bytes(), f"packaged bands ({_PACKAGED})")


def load_bands(text: str | bytes, source: str) -> Bands:
    """Read the text of a bands file; `source` names the file in errors. Raises ConfigError."""
    return validate(load_yaml(text, source), Bands)


def read_bands(path: Path) -> Bands:
    """Read a bands file on disk; raises ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        fix = "name a file that `verl-e2e bands add` wrote"
        raise ConfigError([Problem(str(path), 0, "", f"cannot be read: {error.strerror}", fix)]) from None
    return load_bands(text, str(path))


def policy_bands(policy: Policy, file: Path | None, changes: ChangeSource, commit: str) -> Bands | None:
    """The bands that a policy names: next to its file on disk, else in the commit that it is from."""
    if not policy.bands:
        return None
    if file is not None:
        return read_bands(file.parent / policy.bands)
    text = changes.read_blob(commit, policy.bands)
    if text is None:
        raise UserError(f"{policy.source}: bands: {policy.bands} is not in the base commit; add it or drop the key")
    return load_bands(text, policy.bands)


def bands_text(bands: Bands) -> str:
    """The text of a bands file with these measurements; the same measurements always give the same text."""
    document = bands.model_dump(mode="json", by_alias=True)
    return _HEAD + yaml.safe_dump(document, sort_keys=True, width=120)

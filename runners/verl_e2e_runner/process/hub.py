"""The Hugging Face cache as files: where it lies, what it holds, whether the run may go online. No client needed."""

from collections.abc import Mapping
from pathlib import Path

_YES = frozenset({"1", "ON", "YES", "TRUE"})


def hub_home(variables: Mapping[str, str]) -> Path:
    """HF_HOME as the libraries work it out."""
    home = Path(variables.get("HOME", "/"))
    cache = Path(variables.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(variables.get("HF_HOME") or cache / "huggingface").expanduser()


def hub_cache(variables: Mapping[str, str]) -> Path:
    """The folder of the downloaded models."""
    given = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return Path(given).expanduser() if given else hub_home(variables) / "hub"


def synthetic_folder(variables: Mapping[str, str]) -> Path:
    """Where the runner keeps the models and pictures that it makes: a run can read it, and cannot change it."""
    return hub_cache(variables) / "verl-e2e-synthetic"


def is_offline(variables: Mapping[str, str]) -> bool:
    """Whether a variable forbids the libraries to use the network."""
    return any(variables.get(name, "").upper() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cached_snapshot(model_id: str, variables: Mapping[str, str]) -> Path | None:
    """The snapshot of a hub model's main branch in the cache, with its configuration; None when none can be read."""
    folder = hub_cache(variables) / f"models--{model_id.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        return snapshot if (snapshot / "config.json").is_file() else None
    except OSError:
        return None

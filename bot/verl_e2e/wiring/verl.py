"""verl as the service reads it: a clone on this machine, or single files and names through GitHub's API."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from verl_e2e.adapters.github.public_repository import PublicRepository, named_by
from verl_e2e.adapters.github.session import anonymously
from verl_e2e.git.repository import GitRepository
from verl_e2e.ports import Revisions


def verl_at(place: str) -> GitRepository | PublicRepository:
    """The verl repository of a folder or of an address, `https://HOST/OWNER/NAME`."""
    if not place.startswith(("https://", "http://")):
        return GitRepository(Path(place))
    api_url, name = named_by(place)
    return PublicRepository(anonymously(api_url=api_url), name)


def verl_source(place: str) -> Callable[[str], Revisions]:
    """The verl repository of a place for whatever revision; it is opened with the first."""
    opened = lru_cache(1)(verl_at)
    return lambda _: opened(place)

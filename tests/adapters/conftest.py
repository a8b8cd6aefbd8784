"""What the tests of several adapters start from: a database, a stand-in of GitHub, a world of repositories."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.databases import database, server, store
from tests.adapters.github_adapters import GithubAdapters, github_adapters
from tests.runners.world import World, make_world

__all__ = ["database", "server", "store"]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))

"""A small GitHub with a repository, a policy and people, for the service as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.github_standin.world import World, living
from tests.stories.furnished import furnish


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "world") as world:
        furnish(world)
        yield world

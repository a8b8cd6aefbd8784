"""What the suites of this folder share: GitHub's description and the proxy, and jobs for the back ends."""

from pathlib import Path

import pytest

from tests.contract.openapi import DESCRIPTION, description_of_routes
from tests.fakes.engines import unending
from tests.fakes.npm import install
from tests.runners.world import World, make_world
from verl_e2e.core.model.jobs import Job

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_folder(request: pytest.FixtureRequest) -> Path:
    """The folder with `node_modules`, of the versions in the lock file of this folder."""
    return install(HERE, request.config.cache.mkdir("contract")).parent


@pytest.fixture(scope="session")
def description(node_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that Prism reads."""
    file = tmp_path_factory.mktemp("description") / "api.github.com.json"
    file.write_text(description_of_routes(node_folder / DESCRIPTION), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The repositories of the jobs."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Job:
    """A job that runs until it is ended."""
    return unending(world, tmp_path)

"""GitHub's description and the proxy, of the versions in the lock file of this folder."""

from pathlib import Path

import pytest

from tests.fakes.npm import install

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_folder(request: pytest.FixtureRequest) -> Path:
    """The folder with `node_modules`."""
    return install(HERE, request.config.cache.mkdir("contract")).parent

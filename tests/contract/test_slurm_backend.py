"""The promises of a back end on a real Slurm cluster.

A controller that is killed begins with a state that is up to 5 s old: runs of earlier tests, which ended, may then hold
the node until their time limit. So what holds after a crash is not tested here.
"""

from collections.abc import Iterator

import pytest

from tests.contract.backend_promises import Promises
from tests.fakes.engines import engine
from tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster

__all__ = ["engine"]

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


class TestSlurm(Promises):
    """Nothing of its own."""

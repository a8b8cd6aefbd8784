"""The promises of a back end on a real Ray cluster of two nodes, and what a run sees of that cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.backend_promises import Promises, PromisesAfterACrash, wait_for
from tests.fakes.engines import RayEngine, order, ready
from tests.fakes.ray_cluster import RayCluster, ray_cluster
from tests.runners.world import World
from verl_e2e.core.pulls.ledger import RunState

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture
def engine(nodes: RayCluster, tmp_path: Path) -> Iterator[RayEngine]:
    with ready(RayEngine(tmp_path / "orders", nodes)) as made:
        yield made


class TestRay(Promises, PromisesAfterACrash):
    """Its head keeps nothing, so a restart is a crash."""

    def test_a_run_has_its_gpus_and_no_way_to_the_cluster(
        self, world: World, engine: RayEngine, tmp_path: Path
    ) -> None:
        show = tmp_path / "show"
        show.write_text('#!/bin/sh\nenv > "$(dirname "$3")/environment"\n')
        show.chmod(0o755)
        backend = engine.make(command=(str(show),))
        run = order(world.job().model_copy(update={"needs": None, "gpu_count": 2}))
        backend.submit(run)
        wait_for(backend, run, RunState.LOST)
        lines = (engine.root / run.key / "environment").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        assert len(found["CUDA_VISIBLE_DEVICES"].split(",")) == 2
        assert engine.cluster.token not in found.values()
        assert [name for name in found if name.startswith("RAY_") or name == "OMP_NUM_THREADS"] == []

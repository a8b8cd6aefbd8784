"""Over how many nodes the GPUs of a job are spread."""

import pytest

from tests.core.builders import make_job
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import node_count


@pytest.mark.parametrize(
    ("gpu_count", "gpus_per_node", "nodes"),
    [(16, None, 1), (8, 8, 1), (1, 8, 1), (16, 8, 2), (12, 8, 2), (10, 4, 5), (9, 8, 3), (7, 4, 7)],
)
def test_the_fewest_nodes_with_as_many_gpus_on_each(gpu_count: int, gpus_per_node: int | None, nodes: int) -> None:
    assert node_count(gpu_count, gpus_per_node) == nodes


def test_a_job_counts_its_nodes_by_its_site() -> None:
    job = make_job(gpu_count=16)
    spread = job.model_copy(update={"site": job.site.model_copy(update={"gpus_per_node": 8})})
    assert [(made.node_count, made.gpus_of_node) for made in (job, spread)] == [(1, 16), (2, 8)]
    assert Job.model_validate_json(spread.model_dump_json()) == spread
    assert spread.digest() != job.digest()

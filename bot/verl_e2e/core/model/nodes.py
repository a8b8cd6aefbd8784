"""Over how many nodes of a cluster the GPUs of a job are spread, and how a run is given the Ray cluster of them."""

# The GPUs of one host, where nothing says what a node of a site holds.
MOST_GPUS = 8

# In the runner's environment: the address, HOST:PORT, of the Ray cluster that the job's nodes form.
CLUSTER_VARIABLE = "VERL_E2E_RAY_CLUSTER"


def node_count(gpu_count: int, gpus_per_node: int | None) -> int:
    """The fewest nodes that hold the GPUs with as many on each; 1 where nothing says what a node holds."""
    if gpus_per_node is None:
        return 1
    fewest = -(-gpu_count // gpus_per_node)
    return next(count for count in range(fewest, gpu_count + 1) if gpu_count % count == 0)

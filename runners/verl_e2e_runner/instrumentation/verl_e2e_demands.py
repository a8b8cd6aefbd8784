"""Ends the wait of a run whose Ray has demands that it can never meet: a thread of the driver that only looks.

Ray waits for ever where a placement group or an actor asks for more than is left, and what verl's actors and placement
groups hold they hold until the run ends. What is left on every node is asked for as `ray status` does. A demand that
fits nowhere while nothing is given back or taken for `STEADY_S` seconds is printed as an error, for which the runner
ends the run.
"""

import sys
import time
import traceback

_LOOK_S = 5.0
STEADY_S = 30.0
NOT_OURS = ("node:", "memory", "object_store_memory", "bundle_group_")


class RayResourcesError(RuntimeError):
    """Ray can never place what the run asks for."""


def watch():
    """Look after the Ray of this process, where it starts or joins one as a driver."""
    import threading

    threading.Thread(target=_watch, name="verl-e2e-ray-demands", daemon=True).start()


def _watch():
    seen, since = None, time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        try:
            worker = sys.modules["ray"]._private.worker
            if worker.global_worker.mode == worker.WORKER_MODE:
                return
            found = _look(worker.global_worker.gcs_client.address) if worker.is_initialized() else None
        except Exception:
            found = None
        if found is None or not found[0] or found != seen:
            seen, since = found, time.monotonic()
        elif time.monotonic() - since >= STEADY_S:
            try:
                raise RayResourcesError(sentence(*found))
            except RayResourcesError:
                # Python's own report of it would say that it was only a thread.
                traceback.print_exc()
            return


def _look(address):
    """The demands that fit nowhere now and the nodes with total and free resources; None where more nodes may come."""
    from ray._private import state
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(address)
    if status.pending_nodes or status.pending_launches:
        return None
    nodes = [
        {item.resource_name: (item.total, item.total - item.used) for item in node.resource_usage.usage}
        for node in (*status.active_nodes, *status.idle_nodes)
    ]
    demands = []
    for group in status.resource_demands.placement_group_demand:
        bundles = [dict(part.bundle) for part in group.bundles_by_count for _ in range(part.count)]
        if group.state == "PENDING":
            demands.append((f"a placement group ({group.strategy})", bundles, group.strategy))
    # Tasks wait for other tasks, which end; actors wait for what actors hold.
    actors = state.actors().values()
    if any(actor["State"] == "PENDING_CREATION" and not actor["Address"]["IPAddress"] for actor in actors):
        for demand in status.resource_demands.ray_task_actor_demand:
            demands += [("an actor", [dict(part.bundle)], "PACK") for part in demand.bundles_by_count]
    frees = [{name: free for name, (_, free) in node.items()} for node in nodes]
    unmet = [(what, bundles) for what, bundles, strategy in demands if not fits(bundles, strategy, frees)]
    kept = [{name: sizes for name, sizes in node.items() if not name.startswith(NOT_OURS)} for node in nodes]
    return unmet, kept


def fits(bundles, strategy, frees):
    """Whether all bundles find a place in what the nodes have free, the largest first."""
    if strategy == "STRICT_PACK":
        bundles = [total(bundles)]
    left = [dict(free) for free in frees]
    for bundle in sorted(bundles, key=lambda bundle: -sum(bundle.values())):
        node = next((node for node in left if all(node.get(name, 0) >= size for name, size in bundle.items())), None)
        if node is None:
            return False
        for name, size in bundle.items():
            node[name] -= size
        if strategy == "STRICT_SPREAD":
            left.remove(node)
    return True


def total(bundles):
    """What the bundles ask for together."""
    names = sorted({name for bundle in bundles for name in bundle})
    return {name: sum(bundle.get(name, 0) for bundle in bundles) for name in names}


def sentence(unmet, nodes):
    """What is asked for, and what each node has."""
    what, bundles = unmet[0]
    wanted = total(bundles)
    asked = ", ".join(f"{size:g} {name}" for name, size in wanted.items())
    left = []
    for node in nodes:
        known = [(name, *node[name]) for name in wanted if name in node]
        left.append(", ".join(f"{free:g} of {whole:g} {name} free" for name, whole, free in known) or "none")
    held = f"its {len(nodes)} node(s) have {'; '.join(left)}, and nothing changes"
    return f"Ray can never place {what} that asks for {asked}: {held}"

"""The script that each node of a job runs: their GPUs form one Ray cluster, and the run on the first node joins it.

The nodes share the folder of the order. There the first node writes where the cluster is, and that the run has ended;
another one writes that its part of the cluster ended before that. All of them look there for a request to end.
"""

import shlex

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import CLUSTER_VARIABLE

ADDRESS_FILE, END_FILE, LOST_FILE = "ray-address", "ray-end", "ray-node-lost"
# Lies there when the run was asked to end.
STOP_FILE = "stop"
# How a node that cannot take part ends, and the first one where the run was asked to end before it began.
NO_CLUSTER, _NOT_BEGUN = 79, 76
_JOIN_S = 300

# Ray has no command that takes every port from the system; left alone, two clusters on one host want the same ones.
_PORTS = (
    *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0", "--disable-usage-stats"),
    "--block",
)
_HEAD = "--head --port=0 --include-dashboard=false"
# Waits until all nodes are there: verl counts the GPUs of the cluster once, when it starts.
_WAIT = """\
import sys, time
import ray
address, wanted, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
deadline = time.monotonic() + seconds
while (alive := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"{alive} of {wanted} nodes joined the Ray cluster within {seconds:g} s")
    time.sleep(1)
"""

_SCRIPT = """\
{exports}
temporary=$(mktemp -d /tmp/ve-nodes-XXXXXX) || exit {no_cluster}
trap 'rm -rf "$temporary"' EXIT
start_ray() {{
    {ray} start "$@" --temp-dir="$temporary" {resources} {ports} > "$temporary/ray.out" 2>&1 &
    ray=$!
}}
end_ray() {{ kill -TERM "$ray" 2>/dev/null; wait "$ray"; }}
give_up() {{
    echo "node ${{SLURM_PROCID:-0}}: $1" >&2
    tail -n 5 "$temporary/ray.out" >&2
    : > "$folder/{lost}"
    end_ray
    exit {no_cluster}
}}
end_if_asked() {{
    [ -e "$folder/{stop}" ] || return 0
    echo "the run was ended before it began" >&2
    kill "$joining" 2>/dev/null
    : > "$folder/{end}"
    end_ray
    exit {not_begun}
}}
if [ "${{SLURM_PROCID:-0}}" != 0 ]; then
    until [ -s "$folder/{address}" ]; do
        if [ -e "$folder/{end}" ] || [ -e "$folder/{lost}" ] || [ -e "$folder/{stop}" ]; then exit 0; fi
        sleep 1
    done
    start_ray --address="$(cat "$folder/{address}")"
    until [ -e "$folder/{end}" ]; do
        kill -0 "$ray" 2>/dev/null || give_up "its part of the Ray cluster ended before the run did"
        sleep 1
    done
    end_ray
    exit 0
fi
start_ray {head}
until [ -s "$temporary/ray_current_cluster" ]; do
    kill -0 "$ray" 2>/dev/null || give_up "the Ray cluster did not start"
    end_if_asked
    sleep 1
done
cp "$temporary/ray_current_cluster" "$folder/.{address}" && mv "$folder/.{address}" "$folder/{address}"
{variable}=$(cat "$folder/{address}")
{python} -c {wait} "${variable}" {nodes} {join_s} >> "$temporary/ray.out" 2>&1 &
joining=$!
while kill -0 "$joining" 2>/dev/null; do
    end_if_asked
    sleep 1
done
wait "$joining" || give_up "the nodes did not all join the Ray cluster"
export {variable}
"""

_END = """\
: > "$folder/{end}"
end_ray
"""


def node_script(job: Job) -> str:
    """What a node runs before the run itself, which only the first one goes on to; `folder` is the one that they share.

    `SLURM_PROCID` is the node's number. The job's Python has Ray, and the job's variables are set before Ray starts.
    """
    python = shlex.quote(job.site.python)
    variables = {**job.site.process, **job.process}
    return _SCRIPT.format(
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())),
        ray=f"{python} -c {shlex.quote('from ray.scripts.scripts import main; main()')}",
        head=_HEAD,
        resources=f"--num-gpus={job.gpus_of_node} --num-cpus={job.site.ray_cpus_of(job.gpus_of_node, job.node_count)}",
        ports=" ".join(_PORTS),
        python=python,
        wait=shlex.quote(_WAIT),
        nodes=job.node_count,
        join_s=_JOIN_S,
        variable=CLUSTER_VARIABLE,
        no_cluster=NO_CLUSTER,
        address=ADDRESS_FILE,
        end=END_FILE,
        lost=LOST_FILE,
        stop=STOP_FILE,
        not_begun=_NOT_BEGUN,
    )


def end_script() -> str:
    """What the first node runs after the run, so that the others end too."""
    return _END.format(end=END_FILE)


def by_hand_text(job: Job, address: str) -> str:
    """How the cluster is made that a dry run of the job needs, as comments of its script; empty for one node."""
    if job.node_count == 1:
        return ""
    given = f"They join the Ray cluster at {address}." if address else f"Set {CLUSTER_VARIABLE} to its address."
    ports = " ".join(_PORTS)
    resources = f"--num-gpus={job.gpus_of_node} --num-cpus={job.site.ray_cpus_of(job.gpus_of_node, job.node_count)}"
    return "".join(
        f"# {line}\n"
        for line in (
            f"They need a Ray cluster of {job.node_count} nodes with {job.gpus_of_node} GPUs each. {given}",
            f"on the first node:   ray start {_HEAD} {resources} {ports}",
            f"on each other node:  ray start --address=HOST:PORT {resources} {ports}",
        )
    )

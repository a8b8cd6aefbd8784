"""The batch script of a run and the options that it is submitted with, made from values alone."""

import hashlib
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from verl_e2e.adapters.dispatch.order_folder import (
    CANCELLED,
    EXIT_CODE,
    KEY_VARIABLE,
    ORDER_VARIABLE,
    RECORDER_KEY,
    RUNNER_LOG,
    OrderFolder,
)
from verl_e2e.core.model.jobs import REHEARSAL_CORES, Isolation, Job
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, minutes_of
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.ray_nodes import STOP_FILE, end_script, node_script
from verl_e2e.ports import BackendError


class Container(StrEnum):
    """What starts the container of a job."""

    NONE = "none"
    PYXIS = "pyxis"
    ENROOT = "enroot"


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """How jobs are submitted to a cluster."""

    folder: Path
    """The folder of orders, at the same path here and on the nodes."""
    gpus: str = "--gpus-per-node=N"
    """The option that asks for GPUs; `N` stands for their number."""
    options: tuple[str, ...] = ()
    """More options of `sbatch`."""
    command: tuple[str, ...] = ("verl-e2e",)
    """How `verl-e2e` is called on a node, in the container where there is one."""
    setup: str = ""
    """A bash script that is read before that, in the same step; empty for none."""
    container: Container = Container.NONE
    """What starts the container of a job."""
    mounts: tuple[str, ...] = ()
    """More mounts, `SOURCE:TARGET` or `SOURCE:TARGET:FLAGS`; the folder of orders is mounted always."""
    token_file: str = ""
    """The file on the nodes with the token for fetching repositories; empty for none."""
    warn_s: int = 300
    """Seconds before the time limit at which the run is asked to end."""


# Enroot hands down no variable by itself: who the run is, which task of Slurm it is, and its GPUs.
HANDED_DOWN = (
    *(
        ORDER_VARIABLE,
        KEY_VARIABLE,
        TOKEN_VARIABLE,
        "SLURM_JOB_ID",
        "SLURM_PROCID",
        "SLURM_NODEID",
        "CUDA_VISIBLE_DEVICES",
    ),
    "NVIDIA_VISIBLE_DEVICES",
)
# Below the folder of orders: images as files, made once for all nodes.
IMAGES = "images"

# A container of its own for each task; `$1` is the file of the image, `$2` where it is made from, empty for nowhere.
_ENROOT = """\
image=$1
source=$2
shift 2
name=verl-e2e-$SLURM_JOB_ID-${{SLURM_PROCID:-0}}
if [ -n "$source" ]; then
    mkdir -p "${{image%/*}}" || exit 80
    exec 9> "$image.lock"
    flock 9 || exit 80
    if [ ! -e "$image" ]; then
        rm -f "$image.part"
        enroot import --output "$image.part" "$source" && mv "$image.part" "$image" || exit 80
    fi
    exec 9>&-
fi
trap 'enroot remove --force "$name" > /dev/null' EXIT
enroot create --name "$name" "$image" || exit 80
enroot start --rw {options} "$name" "$@"
"""


def container_words(job: Job, settings: SlurmSettings) -> list[str]:
    """pyxis' options of `srun` for the job's image; none without pyxis. BackendError without an image."""
    if settings.container is not Container.PYXIS:
        return []
    mounts = ",".join((f"{settings.folder}:{settings.folder}", *settings.mounts))
    return [f"--container-image={enroot_image(_image(job))}", f"--container-mounts={mounts}"]


def enroot_words(job: Job, settings: SlurmSettings) -> list[str]:
    """The words before a command that run it in a container by Enroot; none without. BackendError without an image."""
    if settings.container is not Container.ENROOT:
        return []
    image = _image(job)
    file, source = image, ""
    if not image.startswith("/"):
        digest = hashlib.sha256(image.encode()).hexdigest()
        file, source = str(settings.folder / IMAGES / f"{digest[:32]}.sqsh"), f"docker://{enroot_image(image)}"
    options = [f"--env={name}" for name in HANDED_DOWN]
    for mount in (f"{settings.folder}:{settings.folder}", *settings.mounts):
        place, target, *flags = mount.split(":")
        options.append(f"--mount={place}:{target}:none:{','.join(('x-create=auto,rbind', *flags)).replace('+', ',')}")
    return ["bash", "-c", _ENROOT.format(options=shlex.join(options)), "enroot", file, source]


def enroot_image(image: str) -> str:
    """An image as Enroot names it: `REGISTRY#NAME` where Docker writes `REGISTRY/NAME`; a file stays as it is."""
    registry, slash, name = image.partition("/")
    is_registry = slash and registry and re.search(r"[.:]", registry)
    return f"{registry}#{name}" if is_registry else image


def _image(job: Job) -> str:
    if not job.site.image:
        fix = "set `image` in the policy or in the site profile"
        raise BackendError(f"no container image is named for {job.id}; {fix}", final=True)
    return job.site.image


# A note in an order: cancelled for waiting too long.
OVERDUE = "overdue"

# Runs in one step, in the container where there is one, once on each node. It alone ends the runner: a signal of Slurm
# would reach the programs under test as well, and the runner ends those itself.
_STEP = """\
if [ -n "$1" ]; then . "$1" || exit 78; fi
folder=$2
shift 2
{nodes}"$@" &
runner=$!
while kill -0 "$runner" 2>/dev/null; do
    if [ -e "$folder/{stop}" ]; then kill -TERM "$runner" 2>/dev/null; break; fi
    sleep 1
done
wait "$runner"
code=$?
echo "$code" > "$folder/{exit_code}"
{end}exit "$code"
"""

# Slurm keeps the text of the script, so no one who can write the folder changes what is checked here.
_SCRIPT = """\
#!/bin/bash
cd {folder} || exit 71
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then
    : > requeued
    echo "Slurm started this job again, and a run is never continued" >&2
    exit 75
fi
if [ -e {cancelled} ] || [ -e {overdue} ]; then
    echo "the run was ended before it began" >&2
    exit 76
fi
if ! mkdir claim; then
    echo "another job of Slurm has this order" >&2
    exit 76
fi
echo "$SLURM_JOB_ID" > claim/job
if ! echo {digest} | sha256sum --check --status; then
    echo "job.json is not the job that was ordered" >&2
    exit 77
fi
trap ': > {stop}' TERM
export {order}={key} {key_variable}={recorder_key} {token_variable}={token_file}
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
{srun} &
child=$!
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
exit "$code"
"""


def batch_script(run: Run, arguments: tuple[str, ...], folder: OrderFolder, settings: SlurmSettings) -> str:
    """The script that Slurm runs on the first node of the job."""
    root = folder.path.parent
    called = [*settings.command, "run", "--job", str(folder.job_file), "--out", str(folder.run_folder)]
    called += ["--work", str(root / "work"), *arguments]
    if run.rehearsal is not None:
        # Its Python lies on the host, and no container is made for it.
        srun, step = ["srun", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1"], _one_node()
    else:
        job = ordered_job(run)
        srun = ["srun", f"--nodes={job.node_count}", f"--ntasks={job.node_count}", "--kill-on-bad-exit=1"]
        srun += [*container_words(job, settings), *enroot_words(job, settings)]
        step = _step(job)
    srun += ["bash", "-c", step, "step", settings.setup, str(folder.path), *called]
    return _SCRIPT.format(
        folder=shlex.quote(str(folder.path)),
        digest=shlex.quote(f"{folder.digest_of_order(run)}  {folder.job_file.name}"),
        cancelled=CANCELLED,
        overdue=OVERDUE,
        stop=STOP_FILE,
        order=ORDER_VARIABLE,
        key=run.key,
        key_variable=KEY_VARIABLE,
        recorder_key=shlex.quote(str(root / RECORDER_KEY)),
        token_variable=TOKEN_VARIABLE,
        token_file=shlex.quote(settings.token_file),
        srun=shlex.join(srun),
    )


def _step(job: Job) -> str:
    """What each node of the job runs."""
    if job.node_count == 1:
        return _one_node()
    return _STEP.format(nodes=node_script(job), stop=STOP_FILE, exit_code=EXIT_CODE, end=end_script())


def _one_node() -> str:
    return _STEP.format(nodes="", stop=STOP_FILE, exit_code=EXIT_CODE, end="")


def ordered_job(run: Run) -> Job:
    """The job of a run; BackendError, final, where there is none, or one that cannot run on several nodes."""
    if run.job is None:
        raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
    job = run.job
    if job.node_count > 1 and job.isolation is Isolation.REQUIRED:
        what = f"{job.id} needs {job.node_count} nodes, and code under test can be isolated on one node only"
        fix = "set `isolation: preferred` in the policy, which does not hold for a fork's code"
        raise BackendError(f"{what}; {fix}", final=True)
    return job


def gpus_words(option: str, of_node: int, nodes: int = 1) -> list[str]:
    """The option that asks for GPUs: `--gpus` counts those of all nodes, the others those of one."""
    count = of_node * nodes if option.startswith("--gpus=") else of_node
    return [re.sub(r"(?<=[=:])N$", str(count), option)]


def sbatch_words(run: Run, folder: OrderFolder, settings: SlurmSettings) -> list[str]:
    """The command that submits the script on its standard input; the run's key is the job's name."""
    if run.rehearsal is not None:
        nodes, minutes = 1, minutes_of(run.rehearsal)
        asked = [f"--cpus-per-task={REHEARSAL_CORES}"]
    else:
        job = ordered_job(run)
        nodes, minutes = job.node_count, minutes_of(job)
        asked = gpus_words(settings.gpus, job.gpus_of_node, nodes)
    # The warning must come after the start and before the end.
    minutes += settings.warn_s // 60
    return [
        *("sbatch", "--parsable", f"--job-name={run.key}", f"--comment={run.key}"),
        *("--no-requeue", "--open-mode=append", f"--output={folder.path / RUNNER_LOG}", f"--chdir={folder.path}"),
        *(f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *asked,
        *(f"--time={minutes}", f"--signal=B:TERM@{settings.warn_s}"),
        *settings.options,
    ]

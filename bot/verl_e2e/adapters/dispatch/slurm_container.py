"""The container of a job on a Slurm cluster: pyxis' options of `srun`, or Enroot's commands where there is no pyxis.

The interfaces: https://github.com/NVIDIA/pyxis/wiki/Usage and https://github.com/NVIDIA/enroot/tree/master/doc/cmd.
"""

import hashlib
import re
import shlex

from verl_e2e.adapters.dispatch.order_folder import KEY_VARIABLE, ORDER_VARIABLE
from verl_e2e.adapters.dispatch.slurm_settings import Container, SlurmSettings
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e.ports import BackendError

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

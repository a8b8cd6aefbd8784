"""The container of this process, from files of the kernel and of the engine, else from variables.

Anyone who starts the runner can set a variable, so no variable counts for the image. The output of `docker inspect`, in
a file that `VERL_E2E_CONTAINER_INSPECT` names, counts when it describes this container. Everything is read before any
code under test runs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_e2e.core.model.record import Container

ID_VARIABLE = "VERL_E2E_CONTAINER_ID"
INSPECT_VARIABLE = "VERL_E2E_CONTAINER_INSPECT"
_MOST_BYTES = 1 << 20
# A line of /proc/self/cgroup: `/docker/ID`, `/system.slice/docker-ID.scope`, `.../cri-containerd-ID.scope`.
_CGROUP = re.compile(r"(?P<engine>docker|libpod|podman|crio|cri-containerd|containerd)[-/:](?P<id>[0-9a-f]{64})\b")
_POD = re.compile(r"kubepods[^\n]*?[/:-](?P<id>[0-9a-f]{64})\b")
# A mount that an engine makes in each container, from its own folder on the host.
_MOUNTS = (
    ("docker", re.compile(r"/docker/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)")),
    ("podman", re.compile(r"/overlay-containers/([0-9a-f]{64})/userdata/")),
)
_ENROOT_ROOT = re.compile(r"/enroot[^\s]*/(?P<name>pyxis_[\w.-]+|[\w.+-]+) / ")
_ENGINES = {"libpod": "podman", "crio": "kubernetes", "cri-containerd": "kubernetes", "containerd": "containerd"}
# Variables by which a scheduler names the container.
_VARIABLES = {"SLURM_CONTAINER_ID": "slurm", "ENROOT_CONTAINER_NAME": "enroot", "POD_UID": "kubernetes"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read_container(environ: Mapping[str, str], root: Path = Path("/")) -> Container:
    """What is known of the container; `environ` are the runner's own variables, `root` where its files are."""
    found = _from_kernel(root) or _from_engine(root) or _from_variables(environ)
    keys = _containerenv(root)
    if keys.get("image"):
        # Podman names the image by its name and by the digest of its configuration, which no reference pins.
        found = found.model_copy(update={"image": keys["image"], "image_from": "/run/.containerenv"})
    return _inspected(found, environ)


def _from_kernel(root: Path) -> Container | None:
    """The container by its control group, or by the mounts that an engine makes."""
    groups, mounts = _text(root / "proc/self/cgroup"), _text(root / "proc/self/mountinfo")
    if match := _POD.search(groups):
        return Container(engine="kubernetes", id=match["id"], id_from="/proc/self/cgroup")
    if match := _CGROUP.search(groups):
        engine = _ENGINES.get(match["engine"], match["engine"])
        return Container(engine=engine, id=match["id"], id_from="/proc/self/cgroup")
    for engine, pattern in _MOUNTS:
        if match := pattern.search(mounts):
            return Container(engine=engine, id=match[1], id_from="/proc/self/mountinfo")
    if match := _ENROOT_ROOT.search(mounts):
        return Container(engine="enroot", id=match["name"], id_from="/proc/self/mountinfo")
    return None


def _from_engine(root: Path) -> Container | None:
    """The container by the files that an engine leaves in it."""
    keys = _containerenv(root)
    if keys:
        return Container(engine="podman", id=keys.get("id", ""), id_from="/run/.containerenv" if "id" in keys else "")
    if (root / ".dockerenv").exists():
        return Container(engine="docker")
    return None


def _from_variables(environ: Mapping[str, str]) -> Container:
    """The container by what started the runner: GitHub's runner, Slurm, Kubernetes. None of them names the image."""
    given = environ.get(ID_VARIABLE, "")
    if re.fullmatch("[0-9a-f]{12,64}", given):
        return Container(engine="docker", id=given, id_from=ID_VARIABLE)
    for name, engine in _VARIABLES.items():
        if environ.get(name):
            return Container(engine=engine, id=environ[name], id_from=name)
    return Container(engine="kubernetes") if environ.get("KUBERNETES_SERVICE_HOST") else Container()


def _containerenv(root: Path) -> dict[str, str]:
    """The keys of Podman's file; empty where there is none."""
    rows = (line.partition("=") for line in _text(root / "run/.containerenv").splitlines())
    return {key.strip(): value.strip().strip('"') for key, equals, value in rows if equals}


def _inspected(found: Container, environ: Mapping[str, str]) -> Container:
    """With the image that the engine named when it was asked about this container, and not about another."""
    file = environ.get(INSPECT_VARIABLE, "")
    documents = tuple(_documents(_text(Path(file)) if file else ""))
    own = next(
        (document for document in documents if found.id and str(document.get("Id", "")).startswith(found.id)), None
    )
    if own is None:
        return found
    config = own.get("Config")
    name = str(config.get("Image", "")) if isinstance(config, dict) else ""
    # The output of `docker image inspect`, in the same file, lists the digests of an image that was pulled by its tag.
    listed = [document.get("RepoDigests") for document in documents if document.get("Id") == own.get("Image")]
    references = [name, *(str(item) for row in listed if isinstance(row, list) for item in row)]
    digests = [match[0] for reference in references if (match := _DIGEST.fullmatch(reference.partition("@")[2]))]
    update = {"image": name, "digests": tuple(dict.fromkeys(digests)), "image_from": "docker inspect"}
    return found.model_copy(update=update if name or digests else {})


def _documents(text: str) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return
    yield from (load for load in (value if isinstance(value, list) else [value]) if isinstance(load, dict))


def _text(path: Path) -> str:
    """The beginning of a file, empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""

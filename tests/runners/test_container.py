"""What a process can know of its container, from the files that kernel and engines leave; a variable names no image."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from verl_e2e.core.model.record import RunContainer
from verl_e2e_runner.preflight.host import read_container

ID, OTHER = "0123456789abcdef" * 4, "f" * 64
DIGEST, CONFIG = f"sha256:{'a' * 64}", f"sha256:{'e' * 64}"
MOUNT = "1032 1021 8:1 {root} {at} rw,relatime - ext4 /dev/sda1 rw"

CGROUPS = (
    ("12:memory:/docker/{id}", "docker"),
    ("0::/system.slice/docker-{id}.scope", "docker"),
    ("0::/machine.slice/libpod-{id}.scope/container", "podman"),
    ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-pod1_2.slice/cri-containerd-{id}.scope", "kubernetes"),
    ("11:cpu:/kubepods/besteffort/pod3c1d/{id}", "kubernetes"),
)
MOUNTS = (
    ("/var/lib/docker/containers/{id}/hostname", "/etc/hostname", "docker"),
    ("/mnt/disk/docker/containers/{id}/resolv.conf", "/etc/resolv.conf", "docker"),
    ("/home/ada/.local/share/containers/storage/overlay-containers/{id}/userdata/hosts", "/etc/hosts", "podman"),
)


def host(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(("line", "engine"), CGROUPS)
def test_the_control_group_tells_engine_and_id(line: str, engine: str, tmp_path: Path) -> None:
    files = {"proc/self/cgroup": f"1:name=systemd:/\n{line.format(id=ID)}\n", ".dockerenv": ""}
    found = read_container({}, host(tmp_path, files))
    assert (found.engine, found.id, found.id_from) == (engine, ID, "/proc/self/cgroup")


@pytest.mark.parametrize(("root", "at", "engine"), MOUNTS)
def test_where_control_groups_are_hidden_a_mount_tells(root: str, at: str, engine: str, tmp_path: Path) -> None:
    mount = MOUNT.format(root=root.format(id=ID), at=at)
    found = read_container({}, host(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": f"{mount}\n"}))
    assert (found.engine, found.id, found.id_from) == (engine, ID, "/proc/self/mountinfo")


def test_enroot_is_known_by_its_root(tmp_path: Path) -> None:
    mount = MOUNT.format(root="/enroot-data/user-1000/pyxis_4711.0", at="/")
    found = read_container({}, host(tmp_path, {"proc/self/mountinfo": f"{mount}\n"}))
    assert (found.engine, found.id) == ("enroot", "pyxis_4711.0")


def test_podman_leaves_a_file_with_id_and_image(tmp_path: Path) -> None:
    text = f'engine="podman-5.2.1"\nname="x"\nid="{ID}"\nimage="docker.io/verlai/verl:vllm"\nimageid="{OTHER}"\n'
    found = read_container({}, host(tmp_path, {"run/.containerenv": text}))
    assert (found.engine, found.id, found.image) == ("podman", ID, "docker.io/verlai/verl:vllm")
    assert (found.image_from, found.digests) == ("/run/.containerenv", ())


@pytest.mark.parametrize(
    ("variables", "engine", "number"),
    [
        ({"VERL_E2E_CONTAINER_ID": ID}, "docker", ID),
        ({"SLURM_CONTAINER_ID": "4711.0"}, "slurm", "4711.0"),
        ({"ENROOT_CONTAINER_NAME": "pyxis_1"}, "enroot", "pyxis_1"),
        ({"POD_UID": "3c1d-22"}, "kubernetes", "3c1d-22"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", ""),
        ({}, "", ""),
    ],
)
def test_what_started_the_runner_may_tell_the_container(
    variables: dict[str, str], engine: str, number: str, tmp_path: Path
) -> None:
    found = read_container(variables, tmp_path)
    assert (found.engine, found.id) == (engine, number)


def test_no_variable_names_the_image(tmp_path: Path) -> None:
    names = ("VERL_IMAGE", "IMAGE", "SLURM_CONTAINER_IMAGE", "CONTAINER_IMAGE")
    assert read_container(dict.fromkeys(names, f"verlai/verl@{DIGEST}"), tmp_path) == RunContainer()


def inspected(tmp_path: Path, *documents: object, number: str = ID) -> RunContainer:
    place = tmp_path / "inspect.json"
    place.write_text(json.dumps(documents))
    files = {"proc/self/cgroup": f"0::/docker/{number}\n"} if number else {}
    return read_container({"VERL_E2E_CONTAINER_INSPECT": str(place)}, host(tmp_path, files))


OWN = {"Id": ID, "Image": CONFIG, "Config": {"Image": f"verlai/verl@{DIGEST}"}}


def test_what_the_engine_says_of_this_container_counts(tmp_path: Path) -> None:
    found = inspected(tmp_path, OWN)
    assert (found.image, found.digests, found.image_from) == (f"verlai/verl@{DIGEST}", (DIGEST,), "docker inspect")


def test_the_digests_of_a_tag_come_from_the_image(tmp_path: Path) -> None:
    tagged = {**OWN, "Config": {"Image": "verlai/verl:t"}}
    foreign = {"Id": f"sha256:{OTHER}", "RepoDigests": [f"verlai/verl@sha256:{OTHER}"]}
    found = inspected(tmp_path, tagged, foreign, {"Id": CONFIG, "RepoDigests": [f"verlai/verl@{DIGEST}"]})
    assert (found.image, found.digests) == ("verlai/verl:t", (DIGEST,))


@pytest.mark.parametrize("number", ["", OTHER])
def test_what_it_says_of_another_container_does_not(number: str, tmp_path: Path) -> None:
    assert inspected(tmp_path, OWN, number=number).digests == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "[1, null]", '{"Id": 5}', f'[{{"Id": "{ID}", "Config": []}}]'])
def test_a_damaged_answer_says_nothing(text: str, tmp_path: Path) -> None:
    place = tmp_path / "inspect.json"
    place.write_text(text)
    files = host(tmp_path, {"proc/self/cgroup": f"0::/docker/{ID}\n"})
    found = read_container({"VERL_E2E_CONTAINER_INSPECT": str(place)}, files)
    assert (found.id, found.image, found.digests) == (ID, "", ())

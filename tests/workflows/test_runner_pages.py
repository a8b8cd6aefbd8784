"""Runners on GitHub: the set-up of an image, and what the pages say of Kubernetes and of containers by hand."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.places import ROOT

SET_UP = ROOT / "scripts" / "set-up-image.sh"
WORKFLOW = ROOT / ".github" / "workflows" / "verl-e2e.yml"
RUNNERS = ROOT / "docs" / "runners"

# An image with these programs alone; what `apt-get` or `dnf` installs is there afterwards, unless it is refused.
PACKAGES = """#!/bin/sh
echo "${0##*/} $*" >> "$ASKED"
case $* in *install*) [ -n "${REFUSED:-}" ] && exit 100
    for package; do case $package in
        git) cp "$BIN/true" "$BIN/git" ;;
        bubblewrap) cp "$BIN/true" "$BIN/bwrap" ;;
        util-linux) cp "$BIN/true" "$BIN/setpriv" ;;
        python3*) cp "$BIN/true" "$BIN/python3.12" ;;
    esac; done ;;
esac
"""


def set_up(folder: Path, *there: str, **variables: str) -> tuple[int, str, list[str]]:
    """The script in an image that has some programs: its exit code, what it says, and what it asked for."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sh", "cp", "true"):
        (programs / name).symlink_to(f"/bin/{name}")
    for name in there:
        (programs / name).write_text(PACKAGES if name in ("apt-get", "dnf") else "#!/bin/sh\n")
        (programs / name).chmod(0o755)
    environ = {"PATH": str(programs), "BIN": str(programs), "ASKED": str(folder / "asked"), **variables}
    done = subprocess.run(["/bin/sh", SET_UP], env=environ, capture_output=True, text=True, check=False)
    asked = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    return done.returncode, done.stderr, asked


def test_an_image_that_has_everything_is_left_alone(tmp_path: Path) -> None:
    assert set_up(tmp_path, "git", "bwrap", "setpriv", "python3", "apt-get") == (0, "", [])


@pytest.mark.parametrize(("manager", "python"), [("apt-get", "python3-venv"), ("dnf", "python3.12")])
def test_what_an_image_lacks_is_installed_by_its_own_package_manager(tmp_path: Path, manager: str, python: str) -> None:
    code, said, asked = set_up(tmp_path, manager)
    assert (code, said) == (0, f"the image does not have: git ca-certificates bubblewrap util-linux {python}\n")
    assert asked[-1].startswith(f"{manager} install ")
    assert asked[-1].endswith(f" git ca-certificates bubblewrap util-linux {python}")


@pytest.mark.parametrize(
    ("there", "code", "says"),
    [
        (("python3", "bwrap", "setpriv"), 1, "there is no git"),
        (("git", "bwrap", "setpriv"), 1, "there is no Python 3.11 or later"),
        (("git", "python3", "setpriv"), 0, "there is no bubblewrap: code under test is not isolated"),
    ],
)
@pytest.mark.parametrize("manager", [(), ("apt-get",)])
def test_what_cannot_be_installed_is_named(
    tmp_path: Path, there: tuple[str, ...], code: int, says: str, manager: tuple[str, ...]
) -> None:
    ended, said, _ = set_up(tmp_path, *there, *manager, REFUSED="1")
    assert (ended, says in said) == (code, True), said


def document(page: str, name: str) -> dict[str, Any]:
    found = re.search(rf"<!-- begin {name} -->\n```yaml\n(.*?)```", (RUNNERS / page).read_text(), re.S)
    assert found is not None
    read = yaml.safe_load(found[1])
    assert isinstance(read, dict)
    return read


def test_every_way_to_start_a_job_gives_the_recorder_the_same_capabilities() -> None:
    workflow = set(re.findall(r"--cap-add (\w+)", WORKFLOW.read_text()))
    by_hand = set(re.findall(r"--cap-add (\w+)", (RUNNERS / "containers.md").read_text()))
    data = document("github.md", "arc-template")["data"]
    (container,) = yaml.safe_load(data["job.yaml"])["spec"]["containers"]
    assert container["name"] == "$job"
    assert workflow == by_hand == set(container["securityContext"]["capabilities"]["add"])
    assert workflow


def test_the_scale_set_mounts_the_template_that_its_hook_reads() -> None:
    template = document("github.md", "arc-template")
    values = document("github.md", "arc-values")
    spec = values["template"]["spec"]
    (runner,) = spec["containers"]
    hook = {item["name"]: item.get("value") for item in runner["env"]}
    mounts = {item["name"]: item["mountPath"] for item in runner["volumeMounts"]}
    volumes = {item["name"]: item for item in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert volumes["template"]["configMap"]["name"] == template["metadata"]["name"]
    assert hook["ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"] == f"{mounts['template']}/job.yaml"


def test_the_index_names_every_page_and_every_back_end() -> None:
    text = (RUNNERS / "README.md").read_text()
    assert {page.name for page in RUNNERS.glob("*.md")} - {"README.md"} <= set(re.findall(r"\((\S+?\.md)[#)]", text))
    for backend in ("github-actions", "local", "slurm", "ray"):
        assert f"`{backend}`" in text

"""What a release holds: one version, addresses of one repository, and files that GitHub reads for it."""

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.core.model.outcome import Result

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def check_release(folder: Path, tag: str, address: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/check-release.sh"), tag, address]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S)


def test_this_checkout_can_be_released() -> None:
    answer = check_release(ROOT, f"v{verl_e2e.__version__}", HOME)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tag", "address", "changelog", "text"),
    [
        ("v9.9.9", HOME, None, "the tag is v9.9.9 and the version is"),
        (f"v{verl_e2e.__version__}", f"{HOME}-fork", None, "correct [project.urls] in pyproject.toml"),
        (f"v{verl_e2e.__version__}", HOME, "# Changelog\n\n## Unreleased\n", "CHANGELOG.md has no section"),
    ],
)
def test_a_release_whose_parts_disagree_is_refused(
    tmp_path: Path, tag: str, address: str, changelog: str | None, text: str
) -> None:
    for name in ("bot/verl_e2e/__init__.py", "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if changelog is not None:
        (tmp_path / "CHANGELOG.md").write_text(changelog)
    answer = check_release(tmp_path, tag, address)
    assert answer.returncode == 2
    assert text in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_the_version_is_written_once() -> None:
    """The metadata takes it from the package; nothing else that is built repeats it."""
    assert "version" not in PROJECT
    files = ("action.yml", "Containerfile", ".github/workflows/release.yml", "Makefile")
    assert [name for name in files if verl_e2e.__version__ in (ROOT / name).read_text()] == []


def test_every_address_of_ours_is_of_the_repository_that_publishes() -> None:
    assert all(address == HOME or address.startswith(f"{HOME}/") for address in PROJECT["urls"].values())
    files = (*(ROOT / ".github").rglob("*.yml"), ROOT / "SECURITY.md", *(ROOT / "bot").rglob("*.py"))
    named = {
        found for file in files for found in re.findall(r"https://github\.com/[\w.-]+/verl-e2e\b", file.read_text())
    }
    assert named == {HOME}
    assert {
        path.split("/verl-e2e")[0] for path in re.findall(r"@(\S+)", (ROOT / ".github/CODEOWNERS").read_text())
    } == {HOME.split("/")[-2]}


def test_every_path_of_the_owners_file_exists() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert paths[0] == "*"
    assert [path for path in paths[1:] if not (ROOT / path.strip("/")).exists()] == []


def test_the_sdist_holds_what_its_build_and_the_action_need(tmp_path: Path) -> None:
    """Built from the sdist, the wheel has the same files as the one that is built from the checkout."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"verl_e2e-{verl_e2e.__version__}"
    needed = re.findall(r"GITHUB_ACTION_PATH/([\w./-]+\w)", (ROOT / "action.yml").read_text())
    assert needed
    assert [name for name in needed if not (unpacked / name).is_file()] == []
    names = []
    for place in (ROOT, unpacked):
        (wheel,) = WheelBuilder(str(place)).build(directory=str(tmp_path / place.name), versions=["standard"])
        with zipfile.ZipFile(wheel) as archive:
            names.append({name for name in archive.namelist() if not name.endswith((".pyc", "/RECORD"))})
            (metadata,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
            assert f"Project-URL: Documentation, {HOME}/tree/main/docs" in archive.read(metadata).decode()
    assert names[0] == names[1]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_version_and_its_ids_are_its_own(form: Path) -> None:
    body = yaml.safe_load(form.read_text())["body"]
    ids = [item["id"] for item in body if "id" in item]
    assert len(ids) == len(set(ids))
    assert ids[-1] == "version"
    assert all(item["attributes"]["label"] for item in body if "id" in item)


def test_a_wrong_verdict_is_reported_with_its_report_and_one_of_the_verdicts() -> None:
    (form,) = [path for path in FORMS if path.stem == "wrong-verdict"]
    body = {item.get("id"): item for item in yaml.safe_load(form.read_text())["body"]}
    assert "report.html" in body["report"]["attributes"]["label"]
    assert body["report"]["validations"]["required"]
    assert body["verdict"]["attributes"]["options"] == [result.value for result in Result]
    assert "template=wrong-verdict.yml" in (ROOT / "SECURITY.md").read_text()


def test_only_the_jobs_that_publish_may_write_and_each_file_is_tried_first() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert set(jobs["build"]["permissions"].values()) == {"read"}
    assert {name: job["needs"] for name, job in jobs.items() if name != "build"} == {"draft": "build", "image": "build"}
    names = [step.get("name", "") for step in jobs["build"]["steps"]]
    assert names.index("Try what was built, each file in an empty environment") > names.index("Build")
    assert not any("checkout" in step.get("uses", "") for step in jobs["draft"]["steps"])
    published = [step for name in ("draft", "image") for step in jobs[name]["steps"]]
    given = [step["with"] for step in published if "attest" in step.get("uses", "")]
    assert [sorted(inputs) for inputs in given] == [
        ["subject-path"],
        ["sbom-path", "subject-path"],
        ["subject-digest", "subject-name"],
    ]

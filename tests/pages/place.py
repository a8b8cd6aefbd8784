"""A folder in which the commands of the pages can be typed: what their words name lies there under those names.

Stand-ins, each for what no test machine has: small repositories of our own making for Megatron-Bridge, verl and
Megatron-LM; recorded run folders for runs; a GitHub of our own on this machine; no GPU, so that a run is Blocked; the
packages of the test environment in the place of a download; a shell script for pipx; and a process that has imported
our packages starts our command (`tests.fakes.command_server`).
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.world import APP_ID, World, living
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.world import commit, git, make_world
from verl_e2e.adapters.store import open_store
from verl_e2e.config.maps import NAME as NAME_OF_MAP
from verl_e2e.config.maps import cell_map_content, packaged_cell_map
from verl_e2e.config.policy import workflow_text
from verl_e2e.core.model.execution import (
    EXECUTED_FILE,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ProcessRole,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RUNS = ROOT / "tests" / "fixtures" / "runs"
RECORDING = ROOT / "bot" / "verl_e2e" / "demo" / "recording"
NAME = "octo/bridge"
# A second run of the recording's job.
AGAIN = RUNS / "level0-image-tree-first"
POLICY = ".github/verl-e2e.yml"
WORKFLOW = ".github/workflows/verl-e2e.yml"
LORA = "src/megatron/bridge/peft/lora.py"
BRIDGE = {
    "src/megatron/bridge/__init__.py": "from megatron.bridge.peft.lora import LoRA\n",
    "src/megatron/bridge/peft/__init__.py": "",
    LORA: "class LoRA:\n    def transform(self, module):\n        return module\n",
    "tests/unit_tests/models/test_model_provider_mixin.py": "def test_it():\n    pass\n",
}
CHANGED = {LORA: "class LoRA:\n    def transform(self, module):\n        return [module]\n"}
VERL = {"verl/workers/engine.py": "from megatron.bridge import LoRA\n\nLoRA().transform(None)\n"}
JUNIT = """<testsuites><testsuite name="pytest" tests="1"><properties>
<property name="bridge_commit" value="{commit}"/></properties>
<testcase classname="tests.unit_tests.models.test_model_provider_mixin" name="test_it"/></testsuite></testsuites>
"""
# An environment of its own, with the packages of the tests in the place of those of the index.
PIPX = """#!/bin/sh
set -eu
shift
"$PYTHON" -m venv "$HOME/pipx"
echo "$PACKAGES" > "$(echo "$HOME"/pipx/lib/python3*/site-packages)/tests.pth"
exec "$HOME/pipx/bin/python" -m pip --quiet install --no-deps --no-build-isolation --no-index "$@"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is typed: the folder with the stand-ins, a copy of the checkout, and the environment."""

    folder: Path
    checkout: Path
    clone: Path
    environment: dict[str, str]
    words: dict[str, str]
    # What was typed already, with the folder.
    typed: set[tuple[Path, str]] = field(default_factory=set)

    def type(self, command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command as a person's shell does, and wait for its end."""
        return subprocess.run(
            ("bash", "-euo", "pipefail", "-c", command),
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
            stdin=subprocess.DEVNULL,
        )


@contextmanager
def place(root: Path) -> Iterator[Place]:
    """Make the folder, and keep the stand-in for GitHub alive meanwhile."""
    folder = root / "work"
    made = make_world(root / "world")
    words = _repositories(folder, made.verl)
    _runs(folder, words)
    with living(root / "github", NAME) as world:
        words |= _on_github(world)
        settings = _settings(world, folder)
        lines = (f'{name}="{value}"' for name, value in settings.items() if "KEY" not in name)
        (folder / "verl-e2e.env").write_text("\n".join(lines) + "\n")
        (folder / "app.pem").write_text(world.private_key)
        (folder / "app.pem").chmod(0o600)
        yield Place(folder, _checkout(root), _clone(root, folder), _environment(root, settings), words)


def _repositories(folder: Path, wrapper: Path) -> dict[str, str]:
    """Megatron-Bridge with a change since origin/main, verl and Megatron-LM, each a checkout."""
    folder.mkdir()
    core = commit(folder / "Megatron-LM", {"megatron/core/__init__.py": "VALUE = 1\n"})
    shutil.copytree(wrapper, folder / "verl")
    verl = commit(folder / "verl", VERL)
    bridge = folder / "Megatron-Bridge"
    commit(bridge, {**BRIDGE, POLICY: _policy(verl)})
    git(
        bridge,
        "clone",
        "--quiet",
        "--bare",
        str(folder / "Megatron-LM"),
        str(bridge / ".git/modules/3rdparty/Megatron-LM"),
    )
    git(bridge, "update-index", "--add", "--cacheinfo", f"160000,{core},3rdparty/Megatron-LM")
    git(bridge, "commit", "--quiet", "--message=pin")
    base = git(bridge, "rev-parse", "HEAD")
    git(bridge, "update-ref", "refs/remotes/origin/main", base)
    # `add --all` would take the submodule away, for its folder is empty.
    (bridge / LORA).write_text(CHANGED[LORA])
    git(bridge, "commit", "--quiet", "--message=change", LORA)
    shutil.copy(bridge / POLICY, folder / "verl-e2e.yml")
    (folder / ".github").mkdir()
    shutil.copy(bridge / POLICY, folder / POLICY)
    git(folder, "init", "--quiet")
    labels = [{"pr": 1, "base": base, "head": git(bridge, "rev-parse", "HEAD"), "required": [0], "optional": [1]}]
    (folder / "labels.json").write_text(json.dumps(labels))
    return {"BASE": base, "HEAD": git(bridge, "rev-parse", "HEAD"), "VERL": verl}


def _policy(verl: str, address: str = "https://github.com/verl-project/verl") -> str:
    """The packaged policy with a verl that is there."""
    text = (
        (ROOT / "bot/verl_e2e/policy/megatron-bridge.yml")
        .read_text()
        .replace("https://github.com/verl-project/verl", address)
    )
    return re.sub(r"(?m)^  commit: [0-9a-f]{40}$", f"  commit: {verl}", text, count=1)


def _runs(folder: Path, words: dict[str, str]) -> None:
    """Recorded run folders and logs under the names that the pages use, and a job for the repositories."""
    jobs = folder / "out" / "jobs"
    shutil.copytree(RECORDING, jobs / "0-lora-ddp")
    shutil.copytree(RUNS / "level2-dense", jobs / "2-dense")
    shutil.copytree(RUNS / "level2-dense", jobs / "2-dense" / "related" / "unsharded")
    shutil.copytree(RUNS / "level5-signal", jobs / "5-signal")
    shutil.copytree(RUNS / "level5-signal", folder / "base" / "jobs" / "5-signal")
    for name in ("first", "second"):
        shutil.copytree(RECORDING if name == "first" else AGAIN, folder / name / "jobs" / "2-dense")
    _record(shutil.copytree(RECORDING, folder / "recorded" / "jobs" / "0-lora-ddp"))
    derived = shutil.copytree(folder / "recorded" / "jobs" / "0-lora-ddp", folder / "derived" / "jobs" / "0-lora-ddp")
    purpose = {"path": LORA, "symbol": "LoRA.transform", "condition": "self.dim > 1", "rules": ["adapter rank"]}
    as_run = json.loads((derived / "job.json").read_text()) | {"purposes": [purpose]}
    (derived / "job.json").write_text(json.dumps(as_run))
    for name in ("run2.log.zst", "log.txt.zst"):
        shutil.copy(RECORDING / "log.txt.zst", folder / name)
    for source, names in (
        ("0-lora-ddp", ("train.log", "run1.log")),
        ("5-signal", ("run.log", "base.log", "again.log")),
    ):
        text = zstd.decompress((jobs / source / "log.txt.zst").read_bytes())
        for name in names:
            (folder / name).write_bytes(text)
    (folder / "rehearsed").mkdir()
    (folder / "rehearsed" / NAME_OF_MAP).write_bytes(cell_map_content(packaged_cell_map()))
    (folder / "junit.xml").write_text(JUNIT.format(commit=words["HEAD"]))
    job = json.loads((RECORDING / "job.json").read_text())
    job["bridge"] = {"path": str(folder / "Megatron-Bridge"), "commit": words["HEAD"]}
    job["verl"] = {"path": str(folder / "verl"), "commit": words["VERL"]}
    job |= {"megatron_lm": None, "patches": [], "bridge_tests": []}
    (folder / "job.json").write_text(json.dumps(job))


def _record(run: Path) -> None:
    """Give a run folder the date of its start and a record of what ran."""
    events = (run / "events.jsonl").read_text().replace('"job":', '"unix_s": 1795000000.0, "job":', 1)
    (run / "events.jsonl").write_text(events)
    process = ExecutedProcess(phase="train", role=ProcessRole.TRAINER, title="trainer", pid=1, python="3.12", began_s=1)
    ran = ExecutedFunction(symbol="LoRA.transform", line=2, first_s={0: 9.5})
    executed = Executed(processes=(process,), files=(ExecutedFile(path=LORA, functions=(ran,)),))
    (run / EXECUTED_FILE).write_text(executed.model_dump_json())


def _on_github(world: World) -> dict[str, str]:
    """The stand-in's repository with policy, workflow, runners, the required check and one pull request."""
    verl = world.state.add_repository("octo/verl").git.commit("refs/heads/main", VERL, "Start")
    world.commit({**BRIDGE, POLICY: _policy(verl, f"{world.url}/octo/verl"), WORKFLOW: workflow_text()})
    world.commit({WORKFLOW: workflow_text()}, "Hold the workflow", "verl-e2e")
    world.protect(("verl-e2e", APP_ID))
    for size in (1, 2, 4, 8):
        world.runner(f"host-{size}", "self-hosted", "linux", f"gpu-x{size}")
    world.runner("for-forks", "self-hosted", "forks", ephemeral=True, shared=True)
    number = world.open_pull("ada", dict(CHANGED))
    return {"PULL": f"{world.url}/{NAME}/pull/{number}"}


def _settings(world: World, folder: Path) -> dict[str, str]:
    (folder / "data").mkdir()
    open_store(f"sqlite:///{folder}/data/verl-e2e.sqlite3").close()
    return {
        "GITHUB_API_URL": f"{world.url}/api/v3",
        "GITHUB_APP_ID": str(APP_ID),
        "GITHUB_APP_PRIVATE_KEY_FILE": str(folder / "app.pem"),
        "GITHUB_WEBHOOK_SECRET": "a secret of sixteen",
        "VERL_E2E_DATA": str(folder / "data"),
        "VERL_E2E_FORK_RUNNERS": "8=self-hosted,forks",
        "VERL_E2E_PORT": "0",
        "VERL_E2E_TOOL": f"octo/verl-e2e@{'a' * 40}",
        "VERL_E2E_REPOSITORIES": NAME,
    }


def _environment(root: Path, settings: dict[str, str]) -> dict[str, str]:
    """A person's environment: a home of their own, our command and the stand-ins for programs on PATH."""
    programs = root / "bin"
    programs.mkdir()
    for name, text in (("pipx", PIPX), ("verl-e2e", f'#!/bin/sh\nexec {shlex.join(verl_e2e())} "$@"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (root / "home").mkdir()
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(root / "home"),
        "PYTHON": sys.executable,
        "PACKAGES": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "LC_ALL": "C.UTF-8",
        "VERL_E2E_RECORDER_KEY": str(root / "recorder.key"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(_identity(root)),
        **settings,
    }


def _checkout(root: Path) -> Path:
    """A copy of this checkout, with the environment of the tests in the place of the one that make builds."""
    copy = root / "verl-e2e"
    listing = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    names = [name for name in listing.stdout.split("\0") if name and not name.startswith("tests/fixtures")]
    for name in names:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    git(copy, "init", "--quiet")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message=copy")
    set_up(copy)
    return copy


def set_up(checkout: Path) -> None:
    """The environment of the tests in the place of the one that make would build in a checkout."""
    (checkout / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (checkout / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    for stamp in (".run", ".dev", ".all"):
        (checkout / ".venv" / stamp).touch()


def _identity(root: Path) -> Path:
    """A person's own configuration of git."""
    file = root / "gitconfig"
    file.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    return file


def _clone(root: Path, folder: Path) -> Path:
    """A clone of the repository under test that may push to its origin."""
    git(root, "clone", "--quiet", "--bare", str(folder / "Megatron-Bridge"), str(root / "origin.git"))
    git(root, "clone", "--quiet", str(root / "origin.git"), str(root / "clone"))
    shutil.copytree(ROOT / "docs" / "workflows", root / "clone" / ".github" / "workflows")
    return root / "clone"

"""`verl-e2e doctor` as a user types it, against the stand-in."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.faults import server_error
from tests.fakes.github_standin.world import APP_ID, World, living
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.config.policy import workflow_text

NAME = "octo/bridge"
WORKFLOW = ".github/workflows/verl-e2e.yml"
PACKAGED = (ROOT / "bot" / "verl_e2e" / "policy" / "megatron-bridge.yml").read_text()
BROKEN_KEY = "-----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY-----"
LABELS = {size: ("self-hosted", "linux", f"gpu-x{size}") for size in (1, 2, 4, 8)}


def policy(world: World, commit: str) -> str:
    """The packaged policy, with a verl of the stand-in's."""
    text = PACKAGED.replace("https://github.com/verl-project/verl", f"{world.url}/octo/verl")
    text = text.replace("https://github.com/NVIDIA/Megatron-LM", f"{world.url}/octo/mlm")
    return re.sub(r"(?m)^  commit: [0-9a-f]{40}$", f"  commit: {commit}", text, count=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A repository where all is well."""
    with living(tmp_path / "github", NAME) as world:
        world.state.add_repository("octo/mlm").git.commit("refs/heads/main", {"mlm.py": "x = 1\n"}, "Start")
        verl = world.state.add_repository("octo/verl").git.commit("refs/heads/main", {"verl.py": "x = 1\n"}, "Start")
        world.commit({".github/verl-e2e.yml": policy(world, verl), WORKFLOW: workflow_text()})
        world.commit({WORKFLOW: workflow_text()}, "Hold the workflow", "verl-e2e")
        world.protect(("verl-e2e", APP_ID))
        for size, labels in LABELS.items():
            world.runner(f"host-{size}", *labels)
        world.runner("for-forks", "self-hosted", "forks", ephemeral=True, shared=True)
        yield world


def doctor(world: World, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*verl_e2e(), "doctor", *arguments]
    settings = {
        "PATH": os.environ["PATH"],
        "GITHUB_API_URL": f"{world.url}/api/v3",
        "GITHUB_APP_ID": str(APP_ID),
        "GITHUB_APP_PRIVATE_KEY": world.private_key,
        "GITHUB_WEBHOOK_SECRET": "a secret of sixteen",
        "VERL_E2E_DATA": str(folder / "data"),
        "VERL_E2E_FORK_RUNNERS": "8=self-hosted,forks",
        "VERL_E2E_TOOL": f"octo/verl-e2e@{'a' * 40}",
    }
    env = {**settings, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=HANG_S, check=False)


def sick(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What is to be fixed, by what it is about; every one with its fix."""
    found = [
        item for ones in json.loads(done.stdout)["repositories"].values() for item in ones if item["state"] == "error"
    ]
    assert all(load["fix"] for load in found)
    return {load["about"]: load["sentence"] for load in found}


def test_all_well_exits_with_0(world: World, tmp_path: Path) -> None:
    done = doctor(world, tmp_path, NAME)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "FIX" not in done.stdout
    assert sick(doctor(world, tmp_path, "--json", VERL_E2E_REPOSITORIES=NAME)) == {}


def test_everything_that_is_wrong_is_told_at_once(world: World, tmp_path: Path) -> None:
    world.app.permissions = {**world.app.permissions, "checks": "read"}
    world.app.events = ("pull_request",)
    world.protect(("verl-e2e", None), as_ruleset=True)
    world.commit({WORKFLOW: "on: push\n", ".github/verl-e2e.yml": "verl: {}\n"})
    world.state.shared_runners[0].ephemeral = False
    for runner in world.repository.runners:
        runner.online = False
    here = {"VERL_E2E_PUBLIC_URL": "https://bot.example", "VERL_E2E_WORKFLOW_REF": "main"}
    done = doctor(world, tmp_path, NAME, "--json", **here)
    assert done.returncode == 1, done.stderr
    found = sick(done)
    assert "checks: write" in found["permissions"]
    assert "check_run" in found["events"]
    assert "from anyone" in found["required check"]
    assert "differs from this version's" in found["workflow"]
    assert ".github/verl-e2e.yml" in found["policy"]
    assert "hook.invalid" in found["webhook"]
    assert "host-1" in found["runners for 1 GPU"]
    assert "approved code may write the caches" in found["dispatch branch"]
    assert "for-forks takes jobs of forks and stays" in found["runners for forks"]


def test_an_engine_that_would_not_run_jobs_is_reported(world: World, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(str(shutil.which("git")))
    slurm = {"VERL_E2E_BACKEND": "slurm", "PATH": str(tmp_path / "bin"), "VERL_E2E_SLURM_FOLDER": str(tmp_path)}
    assert "sbatch cannot be started" in sick(doctor(world, tmp_path, NAME, "--json", **slurm))["engine"]


def test_a_verl_commit_that_is_nowhere_is_reported(world: World, tmp_path: Path) -> None:
    world.commit({".github/verl-e2e.yml": policy(world, "b" * 40)})
    done = doctor(world, tmp_path, NAME, "--json")
    assert sick(done) == {"verl": f"the pinned verl {'b' * 40} is not in {world.url}/octo/verl"}


def test_webhooks_that_were_not_taken_are_told_and_sent_again(world: World, tmp_path: Path) -> None:
    world.deliveries.url = "http://127.0.0.1:9/webhook"
    world.open_pull("ada", {"a.py": "x = 1\n"})
    world.deliveries.wait()
    (message,) = sick(doctor(world, tmp_path, NAME, "--json")).values()
    assert "1 webhook(s) of the last 3 days were not taken, last pull_request.opened" in message
    before = len(world.deliveries.attempts)
    again = doctor(world, tmp_path, NAME, "--redeliver")
    assert again.returncode == 0, again.stdout
    assert "they were asked for again" in again.stdout
    deadline = time.monotonic() + HANG_S
    while len(world.deliveries.attempts) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len({attempt.delivery.guid for attempt in world.deliveries.attempts}) == 1
    assert len(world.deliveries.attempts) == before + 1


def test_an_app_that_is_not_installed_is_the_first_thing_to_fix(world: World, tmp_path: Path) -> None:
    world.state.installations.clear()
    done = doctor(world, tmp_path, NAME, "--json")
    assert done.returncode == 1
    assert sick(done) == {"app": f"our App is not installed in {NAME}"}


def test_one_refusal_does_not_hide_the_rest(world: World, tmp_path: Path) -> None:
    world.faults.add(server_error(418), "GET", "/actions/runners", times=99)
    found = sick(doctor(world, tmp_path, NAME, "--json"))
    assert list(found) == ["runners"]
    assert "it could not be checked" in found["runners"]


def test_a_database_that_is_not_there_is_reported(world: World, tmp_path: Path) -> None:
    done = doctor(world, tmp_path, NAME, "--json", DATABASE_URL="sqlite:////nonexistent/folder/x.sqlite3")
    assert done.returncode == 1
    assert "/nonexistent" in sick(done)["database"]


def clone(world: World, folder: Path) -> None:
    """A clone of verl on this machine."""
    source = world.state.repositories["octo/verl"].git.path
    subprocess.run(("git", "clone", "--quiet", source, folder), check=True, timeout=HANG_S)


def test_a_clone_of_verl_on_this_machine_is_looked_into(world: World, tmp_path: Path) -> None:
    clone(world, tmp_path / "verl")
    done = doctor(world, tmp_path, NAME, VERL_E2E_VERL=str(tmp_path / "verl"))
    assert done.returncode == 0, done.stdout
    assert f"is in {tmp_path / 'verl'}, which VERL_E2E_VERL names" in done.stdout
    world.commit({".github/verl-e2e.yml": policy(world, "b" * 40)})
    message = doctor(world, tmp_path, NAME, VERL_E2E_VERL=str(tmp_path / "verl")).stdout
    assert f"the pinned verl {'b' * 40} is not in {tmp_path / 'verl'}, which VERL_E2E_VERL names" in message


def test_a_machine_without_a_network_is_told_that_and_nothing_else(world: World, tmp_path: Path) -> None:
    done = doctor(world, tmp_path, NAME, "octo/other", "--json", GITHUB_API_URL="http://127.0.0.1:9")
    assert done.returncode == 1
    ((found,),) = json.loads(done.stdout)["repositories"].values()
    message = "GitHub cannot be reached from this machine: Connection refused"
    assert (found["about"], found["state"], found["sentence"]) == ("network", "error", message)
    assert found["fix"].startswith("check the network of this machine")


def test_a_name_that_no_service_knows_is_told_as_text(world: World, tmp_path: Path) -> None:
    done = doctor(world, tmp_path, NAME, GITHUB_API_URL="https://github.invalid/api/v3")
    first, message, fix = done.stdout.splitlines()
    assert (first, "GitHub cannot be reached from this machine: " in message) == (NAME, True)
    assert "check the network of this machine" in fix


def test_a_server_that_does_not_answer_is_no_matter_of_our_network(world: World, tmp_path: Path) -> None:
    world.faults.add(server_error(502), "GET", "/installation", times=99)
    (found,) = sick(doctor(world, tmp_path, NAME, "--json")).items()
    assert found[0] == "app"
    assert "did not answer" in found[1]


def test_a_verl_on_a_site_that_cannot_be_reached_is_no_matter_of_permissions(world: World, tmp_path: Path) -> None:
    elsewhere = policy(world, "b" * 40).replace(f"{world.url}/octo/verl", "http://127.0.0.1:9/octo/verl")
    world.commit({".github/verl-e2e.yml": elsewhere})
    done = doctor(world, tmp_path, NAME, "--json")
    assert list(sick(done)) == ["verl"]
    assert "127.0.0.1:9" in sick(done)["verl"]
    assert "installed" not in done.stdout


def test_without_a_workflow_back_end_no_workflow_is_looked_for(world: World, tmp_path: Path) -> None:
    world.commit({WORKFLOW: None})
    world.repository.runners.clear()
    done = doctor(world, tmp_path, NAME, VERL_E2E_BACKEND="local")
    assert done.returncode == 0, done.stderr + done.stdout
    for address in ("octo/bridge.git", "octo/verl", "octo/mlm"):
        assert f"this machine can fetch from {world.url}/{address}, as the hosts of jobs will" in done.stdout


@pytest.mark.parametrize("gone", ["octo/verl", "octo/mlm"])
def test_a_repository_that_no_host_of_jobs_can_fetch_is_reported(world: World, tmp_path: Path, gone: str) -> None:
    verl = world.state.repositories["octo/verl"].git.find("refs/heads/main")
    text = policy(world, str(verl)).replace(f"{world.url}/{gone}", f"{world.url}/octo/gone")
    world.commit({".github/verl-e2e.yml": text})
    found = sick(doctor(world, tmp_path, NAME, "--json", VERL_E2E_BACKEND="local"))
    assert f"this machine cannot fetch from {world.url}/octo/gone" in found["sources"]
    assert "sources" not in sick(doctor(world, tmp_path, NAME, "--json"))


@pytest.mark.parametrize("off_s", [-3600, 300])
def test_a_clock_that_is_wrong_is_named_and_nothing_else_is(tmp_path: Path, world: World, off_s: int) -> None:
    world.state.clock = lambda: datetime.now(UTC) - timedelta(seconds=off_s)
    done = doctor(world, tmp_path, NAME)
    assert done.returncode == 0, done.stdout
    found = re.search(r"this machine's clock is (\d+) s (behind|ahead of) GitHub's", done.stdout)
    assert found, done.stdout
    assert abs(int(found[1]) - abs(off_s)) <= 5
    assert found[2] == ("ahead of" if off_s > 0 else "behind")
    assert "NTP" in done.stdout


def test_a_key_of_another_app_is_not_taken_for_missing_permissions(world: World, tmp_path: Path) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = other.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    done = doctor(world, tmp_path, NAME, GITHUB_APP_PRIVATE_KEY=text)
    assert done.returncode == 1
    assert "check GITHUB_APP_ID and the private key of the App" in done.stdout
    assert "permission" not in done.stdout


def test_a_token_of_hosts_that_is_not_there_is_reported(world: World, tmp_path: Path) -> None:
    token = {"VERL_E2E_BACKEND": "local", "VERL_E2E_FETCH_TOKEN_FILE": str(tmp_path / "no-token")}
    assert (
        "VERL_E2E_FETCH_TOKEN_FILE cannot be read" in sick(doctor(world, tmp_path, NAME, "--json", **token))["sources"]
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "name a repository"),
        (("bridge",), {}, "is not a repository"),
        ((NAME,), {"GITHUB_APP_ID": ""}, "GITHUB_APP_ID"),
        ((NAME,), {"GITHUB_APP_PRIVATE_KEY": BROKEN_KEY}, "key"),
    ],
)  # fmt: skip
def test_a_mistake_exits_with_2(
    world: World, tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    done = doctor(world, tmp_path, *arguments, **environment)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr

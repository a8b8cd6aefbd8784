"""`verl-e2e serve` as a process: what it says at start, what it takes, how it ends."""

import hashlib
import hmac
import json
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.service_process import figures, inherited, serving

SECRET = "hunter2hunter2hunter2"


@pytest.fixture(scope="module")
def key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return made.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()


@pytest.fixture
def settings(key: str, tmp_path: Path) -> dict[str, str]:
    return inherited() | {
        "GITHUB_API_URL": "http://127.0.0.1:9",
        "GITHUB_APP_ID": "1",
        "GITHUB_APP_PRIVATE_KEY": key,
        "GITHUB_WEBHOOK_SECRET": SECRET,
        "VERL_E2E_TOOL": "owner/verl-e2e@" + "a" * 40,
        "VERL_E2E_DATA": str(tmp_path / "data"),
        "VERL_E2E_PORT": "0",
    }


def ended(environ: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (*verl_e2e(), "serve", *words), env=dict(environ), capture_output=True, text=True, timeout=HANG_S, check=False
    )


def deliver(address: str, event: str, body: bytes, delivery: str, secret: str = SECRET) -> int:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": f"sha256={signature}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"{address}/webhook", body, headers)
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return int(answer.status)


def waited_for(address: str, name: str, value: float) -> None:
    deadline = time.monotonic() + HANG_S
    while figures(address)[name] != value:
        assert time.monotonic() < deadline, figures(address)
        time.sleep(0.1)


def test_check_says_that_settings_are_good_and_starts_nothing(settings: dict[str, str]) -> None:
    done = ended(settings, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "settings are valid: App 1 at http://127.0.0.1:9, jobs on github-actions\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    (
        ("GITHUB_WEBHOOK_SECRET", "", "environment: GITHUB_WEBHOOK_SECRET: it is empty; it is required"),
        ("GITHUB_APP_PRIVATE_KEY", "hunter2", "environment: GITHUB_APP_PRIVATE_KEY: it is not PEM text"),
        (
            "DATABASE_URL",
            "sqlite:////proc/none/x.sqlite3",
            "DATABASE_URL sqlite:////proc/none/x.sqlite3: unable to open",
        ),
        ("VERL_E2E_SITE_PROFILE", "hoper-offline", "did you mean 'hopper-offline'?"),
        ("VERL_E2E_DATA", "/proc/none", "VERL_E2E_DATA /proc/none: No such file or directory; name a folder"),
        ("VERL_E2E_TRUSTED_ROOT", "/proc/none", "VERL_E2E_TRUSTED_ROOT: /proc/none cannot be read"),
        ("VERL_E2E_TRUSTED_ROOT", "/proc/version", "VERL_E2E_TRUSTED_ROOT: /proc/version cannot be read"),
        ("VERL_E2E_VERL", "/proc", "VERL_E2E_VERL: /proc is not a git repository"),
        ("PATH", "/proc", "git is not installed on this machine"),
    ),
)
def test_a_mistake_is_one_line_and_ends_with_2(settings: dict[str, str], name: str, value: str, message: str) -> None:
    done = ended(settings | {name: value}, "--check")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


# Of each extra, and of what the packaged settings need: a module, the settings that need it, and what is said.
_NEEDED = {
    "attestation": ("sigstore", {}, "VERL_E2E_ATTESTATION=required needs sigstore"),
    "postgres": ("psycopg", {"DATABASE_URL": "postgresql://u@127.0.0.1:9/n"}, "pip install 'verl-e2e[postgres]'"),
    "ray": ("ray", {"VERL_E2E_BACKEND": "ray", "VERL_E2E_RAY_ADDRESS": "http://127.0.0.1:9"}, "verl-e2e[ray]"),
}
# No setting of the service asks for these: curves are drawn where they can be, and a GPU host imports the rest.
_UNASKED = {"gpu", "plots"}


def test_every_extra_is_asked_for_by_a_setting_or_by_none() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() == (_NEEDED.keys() - {"attestation"}) | _UNASKED


def checked_without(modules: Iterable[str], environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    without = f"import sys; sys.modules |= dict.fromkeys({[*modules]!r}); from verl_e2e.cli import main; main()"
    command = (sys.executable, "-c", without, "serve", "--check")
    return subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize("name", _NEEDED)
def test_a_setting_that_this_installation_cannot_serve_is_refused(
    settings: dict[str, str], tmp_path: Path, name: str
) -> None:
    module, needing, message = _NEEDED[name]
    done = checked_without([module], settings | {"VERL_E2E_RAY_FOLDER": str(tmp_path)} | needing)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


def test_an_installation_without_any_extra_serves_what_asks_for_none(settings: dict[str, str]) -> None:
    modules = [module for module, _, _ in _NEEDED.values()]
    done = checked_without(modules, settings | {"VERL_E2E_ATTESTATION": "preferred"})
    assert done.returncode == 0, done.stderr


def test_metrics_have_an_address_of_their_own_and_readiness_says_what_is_missing(
    settings: dict[str, str], tmp_path: Path
) -> None:
    token = {"VERL_E2E_METRICS_ADDRESS": "127.0.0.1:0", "VERL_E2E_METRICS_TOKEN": "t" * 16}
    with serving(settings | token, tmp_path / "log") as (process, address):
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:2] == ["metrics", "on"]
        assert page(f"{address}/metrics")[0] == 404
        assert page(said[2])[0] == 401
        status, text = page(said[2], Authorization=f"Bearer {'t' * 16}")
        assert (status, "verl_e2e_database_up 1.0" in text) == (200, True)
        status, text = page(f"{address}/readyz")
        checks = json.loads(text)["checks"]
        assert (status, checks.pop("github")[:25]) == (503, "GitHub cannot be reached ")
        assert checks == dict.fromkeys(("database", "worker"), "ok")
        assert page(f"{address}/healthz") == (200, '{"ok":true}')


def page(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=HANG_S) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_port_in_use_is_reported(settings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ended(settings | {"VERL_E2E_PORT": port})
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_deliveries_are_processed_refused_or_left_and_survive_a_kill(settings: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    ping = json.dumps({"zen": "x", "hook_id": 1}).encode()
    with serving(settings, log) as (process, address):
        assert deliver(address, "ping", ping, "one") == 202
        assert deliver(address, "ping", ping, "one") == 200
        assert deliver(address, "pull_request", b'{"action": "opened"}', "two") == 202
        waited_for(address, "deliveries_refused", 1)
        waited_for(address, "deliveries_waiting", 0)
        second = ended(settings)
        assert second.returncode == 2
        assert "another verl-e2e serve uses this folder" in second.stderr
        process.send_signal(signal.SIGKILL)
        process.wait()
    with serving(settings, log) as (process, address):
        assert deliver(address, "ping", ping, "one") == 200
        assert figures(address)["deliveries_refused"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    for line in log.read_text().splitlines():
        json.loads(line)
    assert SECRET not in log.read_text()

"""The whole service as a process, from a webhook to a green gate, killed on the way."""

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.github_standin.world import SECRET, World
from tests.fakes.patience import HANG_S, slowness
from tests.fakes.service_process import environment, figures, serving, until
from tests.fakes.sigstore_instance import SigstoreInstance
from tests.stories.recordings import SMOKE, left_by

# The figure asked for: the plan stands on the pull request this long after the delivery, on an idle machine.
PLAN_S = 5.0
# And the first sign of us this long after it.
SIGN_S = 3.0


def test_from_opened_to_green_with_a_kill_between(world: World, tmp_path: Path) -> None:
    sigstore, log = SigstoreInstance(), tmp_path / "log"
    root = sigstore.write_trusted_root(tmp_path / "trusted_root.json")
    environ = environment(world, tmp_path / "data") | {"VERL_E2E_TRUSTED_ROOT": str(root)}
    with serving(environ, log) as (process, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
        took = until(lambda: world.cards(number) and world.live_runs())
        assert took < 4 * PLAN_S * slowness()
        process.send_signal(signal.SIGKILL)
        process.wait()
    (run,) = world.live_runs()
    folder = left_by(run, SMOKE)
    world.finish_run(folder, run, artifact=f"verl-e2e-{run.inputs['key']}", sigstore=sigstore)
    with serving(environ, log) as (process, address):
        world.deliveries.url = f"{address}/webhook"
        until(lambda: world.gate(number) == "success")
        until(lambda: "Pass" in world.card(number))
        assert figures(address)["reconciles_failed_total"] == 0
        name = world.repository.full_name
        pull = read(f"{address}/{name}/pull/{number}")
        (key,) = set(re.findall(r"/run/([0-9a-f]{64})", pull))
        assert "Pass" in pull
        assert '<span class="badge Pass">Pass</span> <code>0-lora-ddp</code>' in read(f"{address}/run/{key}")
        assert "0-lora-ddp" in read(f"{address}/")
        assert re.search(r"<td>[0-9a-f]{12}:\.github/verl-e2e\.yml</td>", read(f"{address}/{name}/policy"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    assert (len(world.runs()), len(world.cards(number))) == (1, 1)
    for secret in (SECRET, "PRIVATE KEY"):
        assert secret not in log.read_text()


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=HANG_S) as answer:
        return str(answer.read().decode())


def test_the_pages_of_a_private_repository_are_not_found(world: World, tmp_path: Path) -> None:
    world.repository.private = True
    with serving(environment(world, tmp_path / "data"), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
        until(world.live_runs)
        name = world.repository.full_name
        assert name not in read(f"{address}/")
        for path in (f"/{name}/pull/{number}", f"/{name}/policy"):
            with pytest.raises(urllib.error.HTTPError, match="404") as refused:
                read(f"{address}{path}")
            refused.value.close()


def test_the_first_sign_on_a_fresh_service_comes_before_the_plan(world: World, tmp_path: Path) -> None:
    environ, log = environment(world, tmp_path / "data"), tmp_path / "log"
    with serving(environ, log) as (_, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
        took = until(lambda: world.gate(number))
        assert took < 4 * SIGN_S * slowness()
        until(lambda: world.live_runs() and world.cards(number))
    made = [json.loads(item.sent) for item in world.standin.traffic if item.path.endswith("/check-runs") and item.sent]
    assert [check["output"]["title"] for check in made if check["name"] == "verl-e2e"] == ["Planning"]
    gate = world.check(world.head(number), "verl-e2e")
    assert gate is not None
    assert gate.title == "0 of 1 required jobs satisfied, running 0-lora-ddp"


def test_a_pull_request_whose_deliveries_were_all_lost_is_found(world: World, tmp_path: Path) -> None:
    environ, log = environment(world, tmp_path / "data"), tmp_path / "log"
    with serving(environ, log) as (_, address):
        world.deliveries.url = f"{address}/webhook"
        first = world.open_pull("alice", {"docs/guide.md": "other\n"})
        until(lambda: world.gate(first) == "success")
    world.deliveries.url = ""
    second = world.open_pull("alice", {"docs/guide.md": "again\n"})
    with serving(environ, log):
        until(lambda: world.gate(second) == "success")


def test_a_repository_that_is_not_served_is_left_alone(world: World, tmp_path: Path) -> None:
    environ = environment(world, tmp_path / "data") | {"VERL_E2E_REPOSITORIES": "someone/else"}
    with serving(environ, tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
        until(lambda: figures(address)["deliveries_processed_total"] >= 1)
        assert (world.cards(number), world.runs(), world.gate(number)) == ([], [], "")

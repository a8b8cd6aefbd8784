"""`verl-e2e serve` while strangers push what is small to send and huge to read, all at once."""

import hashlib
import hmac
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fakes.git_bombs import COMMITS, ENTRY, POLICY_TEXT, Bombs
from tests.fakes.github_standin.repository import BareRepository
from tests.fakes.github_standin.world import SECRET, World, living
from tests.fakes.patience import HANG_S, slowness
from tests.fakes.service_process import SERVE, environment, serving

# Of forks one is planned at a time, so some more than one hold up whatever comes after them. Each kind of bomb is tried
# in tests/adapters/test_bombs.py; bench/results/measurements.md has the figures with twenty.
BOMBS, OTHERS = 4, 4
# Far more than it takes, for a machine that does other things too.
PATIENCE_S = HANG_S


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "world") as made:
        made.person("alice", "write")
        made.person("carol")
        files = {ENTRY: "value = 1\n", "docs/guide.md": "how to\n", ".github/verl-e2e.yml": POLICY_TEXT.decode()}
        made.commit(files, "Start")
        yield made


# Signed deliveries, twenty a second, until the input ends; prints how long each took to be answered. A process of its
# own, for the stand-in and the bombs keep this one busy.
PINGS = """
import http.client, json, select, sys, time
host, headers, body = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()
seconds = []
while not select.select([sys.stdin], [], [], 0.05)[0]:
    began = time.perf_counter()
    connection = http.client.HTTPConnection(host, timeout=900)
    connection.request("POST", "/webhook", body, headers | {"X-GitHub-Delivery": f"p{len(seconds)}"})
    assert connection.getresponse().status == 202
    connection.close()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


@contextmanager
def pinged(address: str, seconds: list[float]) -> Iterator[None]:
    """Send pings while the block lasts; then `seconds` are those that each took."""
    body = '{"zen": "x", "hook_id": 1}'
    signature = hmac.new(SECRET.encode(), body.encode(), hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": "ping",
        "X-Hub-Signature-256": f"sha256={signature}",
        "Content-Type": "application/json",
    }
    command = [sys.executable, "-c", PINGS, address.removeprefix("http://"), json.dumps(headers), body]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield
        out, _ = process.communicate()
    seconds += json.loads(out)


def awaited(world: World, numbers: list[int], process_id: int) -> dict[int, float]:
    """When the gate of each pull request was no longer in progress, in seconds from now."""
    began, found, most_bytes = time.monotonic(), dict[int, float](), 0
    while len(found) < len(numbers):
        assert time.monotonic() - began < PATIENCE_S, {number: world.gate(number) for number in numbers}
        for number in numbers:
            if number not in found and world.gate(number) not in ("", "in_progress", "queued", "missing"):
                found[number] = time.monotonic() - began
        most_bytes = max(most_bytes, psutil.Process(process_id).memory_info().rss)
        time.sleep(0.2)
    # The service itself reads nothing of it.
    assert most_bytes < 1 << 30
    return found


def bomb(name: str, world: World) -> int:
    def made(git: BareRepository, start: str) -> str:
        return COMMITS[name](Bombs(git, start))

    return world.open_pull("carol", {ENTRY: "value = 2\n"}, name, fork=True, made=made)


@pytest.mark.host
def test_bombs_at_once_hold_up_neither_webhooks_nor_other_pull_requests(
    world: World, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seconds: list[float] = []
    environ = environment(world, tmp_path / "data")
    del environ["VERL_E2E_TICK_S"]
    with serving(environ, tmp_path / "log", SERVE) as (process, address):
        world.deliveries.url = f"{address}/webhook"
        world.deliveries.hold()
        names = [list(COMMITS)[2 * number % len(COMMITS)] for number in range(BOMBS)]
        bombs = [bomb(name, world) for name in names]
        others = [world.open_pull("alice", {"docs/guide.md": f"how {number}\n"}) for number in range(OTHERS)]
        world.deliveries.release()
        with pinged(address, seconds):
            found = awaited(world, [*bombs, *others], process.pid)
        assert process.poll() is None
        assert [world.gate(number) for number in others] == ["success"] * OTHERS
        assert {world.gate(number) for number in bombs} == {"action_required"}
    p99 = statistics.quantiles(seconds, n=100)[98]
    message = f"webhook p99 {1000 * p99:.1f} ms of {len(seconds)}, others planned after "
    message += f"{max(found[number] for number in others):.1f} s, all after {max(found.values()):.1f} s"
    record_property("measured", message)
    print(message)  # noqa: T201
    # 50 ms where nothing else runs, see docs/design.md; the parser's old hold on the service was 37 s.
    assert p99 < 2 * slowness()

"""How fast the service answers webhooks: a burst of signed deliveries over HTTP against a whole process.

150 deliveries a second for 10 s, about 100 pull requests, half of a payload's usual size and more. The process is the
one of `verl-e2e serve`, database, worker and DBOS queue included, on SQLite; only what a look at a pull request asks
of GitHub is replaced by a pause. Called by `bench/bench.py`; alone: `python bench/webhooks.py [--runs N]`.
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECRET = "a secret of twenty-four c"
RATE, SECONDS, PULLS, CONNECTIONS = 150, 10, 100, 16
P99_S, DRAIN_S = 0.050, 60.0
RECONCILE_S = 0.05
PAYLOAD_BYTES = 24_000

# argv: the root, a data folder, seconds for one look at a pull request.
SERVER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from verl_e2e.adapters.durable import Work
from verl_e2e.adapters.json_log import log_to_stderr
from verl_e2e.cli.serve import listen
from verl_e2e.config.settings import Settings
from verl_e2e.wiring.app import open_service
from datetime import UTC, datetime
data = Path(sys.argv[2])
def hear(delivery):
    payload = json.loads(delivery.body)
    return [f"{payload['repository']['full_name']}#{payload['number']}"]
def make_work(settings, ledger, worklist, now):
    return Work(hear, lambda target: time.sleep(float(sys.argv[3])), tuple, tuple, now)
settings = Settings(
    api_url="https://api.github.com", app_id=1, private_key="", webhook_secret=sys.argv[4],
    database_url=f"sqlite:///{data / 'bench.sqlite3'}", public_url="", host="127.0.0.1", port=0, data=data,
    repositories=(), backend="local", workflow="", workflow_ref="", tool=("", ""), image="", verl="", bridge="",
    runners={}, site_profile="", site_values={}, workers=4, tick_s=60,
    log_level="info",
)
log_to_stderr("info")
listen(settings, open_service(settings, lambda: datetime.now(UTC), make_work))
"""


def payloads(run: int) -> list[bytes]:
    """The deliveries of a burst: distinct, of a real payload's size, several for each pull request."""
    filler = {f"field_{index}": "x" * 80 for index in range(PAYLOAD_BYTES // 100)}
    return [
        json.dumps(
            {"number": index % PULLS, "repository": {"full_name": "o/r"}, "id": f"{run}-{index}", **filler}
        ).encode()
        for index in range(RATE * SECONDS)
    ]


def request(index: int, body: bytes, run: int) -> bytes:
    """One delivery as GitHub sends it."""
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    head = (
        f"POST /webhook HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-GitHub-Event: pull_request\r\nX-GitHub-Delivery: {run:08d}-0000-0000-0000-{index:012d}\r\n"
        f"X-Hub-Signature-256: sha256={signature}\r\n\r\n"
    )
    return head.encode() + body


async def burst(port: int, requests: list[bytes]) -> tuple[list[float], list[int]]:
    """Seconds until each answer and its status; each is sent at its time, whether or not the earlier are answered."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    took, statuses = [], []
    started = time.perf_counter()

    async def send(index: int, raw: bytes) -> None:
        await asyncio.sleep(max(0.0, started + index / RATE - time.perf_counter()))
        at = time.perf_counter()
        reader, writer = await free.get()
        writer.write(raw)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(length)
        took.append(time.perf_counter() - at)
        statuses.append(int(head.split()[1]))
        free.put_nowait((reader, writer))

    await asyncio.gather(*(send(index, raw) for index, raw in enumerate(requests)))
    return took, statuses


def figures(port: int) -> dict[str, float]:
    """The service's own numbers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        rows = (line.rpartition(" ") for line in answer.read().decode().splitlines())
        return {name.removeprefix("verl_e2e_"): float(value) for name, _, value in rows}


def drained(port: int) -> tuple[float, dict[str, float]]:
    """Seconds until nothing waits any more."""
    started = time.perf_counter()
    while time.perf_counter() - started < 2 * DRAIN_S:
        now = figures(port)
        if not now["deliveries_waiting"] and not now["targets_waiting"]:
            return time.perf_counter() - started, now
        time.sleep(0.2)
    return 2 * DRAIN_S, figures(port)


def measure(run: int = 1, reconcile_s: float = RECONCILE_S) -> bool:
    """One burst against a fresh service; prints a row, and says whether every figure is met."""
    with tempfile.TemporaryDirectory(prefix="verl-e2e-bench-") as data, (Path(data) / "log").open("w") as log:
        argv = [sys.executable, "-c", SERVER, str(ROOT), data, str(reconcile_s), SECRET]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().rsplit(":", 1)[1].partition("/")[0])
                requests = [request(index, body, run) for index, body in enumerate(payloads(run))]
                took, statuses = asyncio.run(burst(port, requests))
                drain, numbers = drained(port)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(30)
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    kept, heard = statuses.count(202), int(numbers["deliveries_heard_total"])
    lost = len(requests) - min(kept, heard)
    print(
        f"  webhooks {RATE}/s for {SECONDS} s: p50 {p50 * 1000:5.1f} ms, p99 {p99 * 1000:5.1f} ms, "
        f"most {took[-1] * 1000:5.1f} ms; lost {lost}; drained {drain:.1f} s after the last answer by "
        f"{numbers['reconciles_total']:.0f} reconciles; load {os.getloadavg()[0]:.1f}"
    )
    return p99 <= P99_S and lost == 0 and drain <= DRAIN_S


def main() -> int:
    """0 when every figure is met in the best run, as elsewhere in this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    met = [measure(run) for run in range(options.runs)]
    return 0 if any(met) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How fast the service answers webhooks: a burst of signed deliveries over HTTP against a whole process.

150 deliveries a second for 10 s, about 100 pull requests, half of a payload's usual size and more. The process is the
one of `verl-e2e serve`, database and worker included; only what a look at a pull request asks
of GitHub is replaced by a pause. Called by `bench/bench.py`; alone: `python bench/webhooks.py [--runs N]`.
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

ROOT = Path(__file__).resolve().parents[1]
SECRET = "a secret of twenty-four c"
RATE, SECONDS, PULLS, CONNECTIONS = 150, 10, 100, 16
P99_S, DRAIN_S = 0.050, 60.0
RECONCILE_S = 0.05
PAYLOAD_BYTES = 24_000

SERVER = ROOT / "bench" / "webhook_server.py"


def settings(data: Path, database: str, bot: int) -> dict[str, str]:
    """The environment of one bot."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "GITHUB_APP_ID": "1",
        "GITHUB_APP_PRIVATE_KEY": key.private_bytes(
            Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
        ).decode(),
        "GITHUB_WEBHOOK_SECRET": SECRET,
        "DATABASE_URL": database or f"sqlite:///{data / 'bench.sqlite3'}",
        "VERL_E2E_DATA": str(data / f"bot{bot}"),
        "VERL_E2E_PORT": "0",
        "VERL_E2E_TOOL": "owner/verl-e2e@" + "a" * 40,
        "VERL_E2E_TICK_S": "60",
    }


@contextmanager
def bots(data: Path, database: str, count: int, reconcile_s: float) -> Iterator[list[int]]:
    """The ports of so many bots on one database."""
    argv = [sys.executable, str(SERVER), str(reconcile_s)]
    with ExitStack() as stack:
        ports = []
        for bot in range(count):
            (data / f"bot{bot}").mkdir()
            log = stack.enter_context((data / f"log{bot}").open("w"))
            environment = settings(data, database, bot)
            server = stack.enter_context(
                subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            )
            stack.callback(server.send_signal, signal.SIGTERM)
            assert server.stdout is not None
            words = server.stdout.readline()
            assert words, (data / f"log{bot}").read_text()
            ports.append(int(words.rsplit(":", 1)[1].partition("/")[0]))
        yield ports


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


async def burst(ports: list[int], requests: list[bytes]) -> tuple[list[float], list[int]]:
    """Seconds until each answer and its status; each is sent at its time, whether or not the earlier are answered."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for number in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", ports[number % len(ports)]))
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
        lines = answer.read().decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("verl_e2e_"): float(value) for name, _, value in rows}


def drained(ports: list[int]) -> tuple[float, list[dict[str, float]]]:
    """Seconds until nothing waits any more, and the figures of each bot."""
    started = time.perf_counter()
    while True:
        now = [figures(port) for port in ports]
        waited = time.perf_counter() - started
        if waited > 2 * DRAIN_S or not (now[0]["deliveries_waiting"] or now[0]["targets_waiting"]):
            return waited, now
        time.sleep(0.2)


def cpu_of_children_s() -> float:
    """Processor time of the bots that have ended: a figure that a busy machine does not change much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(run: int = 1, reconcile_s: float = RECONCILE_S, *, database: str = "", count: int = 1) -> bool:
    """One burst against a fresh service; prints a row, and says whether every figure is met."""
    load, before_s = os.getloadavg()[0], cpu_of_children_s()
    with (
        tempfile.TemporaryDirectory(prefix="verl-e2e-bench-") as folder,
        bots(Path(folder), database, count, reconcile_s) as ports,
    ):
        requests = [request(index, body, run) for index, body in enumerate(payloads(run))]
        took, statuses = asyncio.run(burst(ports, requests))
        drain, numbers = drained(ports)
    cpu_s = cpu_of_children_s() - before_s
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    kept, processed = statuses.count(202), sum(int(bot["deliveries_processed_total"]) for bot in numbers)
    lost, doubled = len(requests) - min(kept, processed), max(0, processed - len(requests))
    reconciles = " + ".join(format(bot["reconciles_total"], ".0f") for bot in numbers)
    print(
        f"  webhooks {RATE}/s for {SECONDS} s, {count} bot(s): p50 {p50 * 1000:5.1f} ms, p99 {p99 * 1000:5.1f} ms, "
        f"most {took[-1] * 1000:5.1f} ms; lost {lost}, twice {doubled}; drained {drain:.1f} s "
        f"after the last answer by {reconciles} reconciles; {cpu_s:.1f} s of processor time; load {load:.1f}"
    )
    return p99 <= P99_S and lost == 0 and drain <= DRAIN_S


def main() -> int:
    """0 when every figure is met in the best run, as elsewhere in this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--database", default="", help="a PostgreSQL URL with an empty database; SQLite without it")
    parser.add_argument("--bots", type=int, default=1, help="processes on this database")
    options = parser.parse_args()
    # Numbered by the time, because a database remembers the deliveries of earlier runs.
    began = int(time.time()) % 10**7
    met = [measure(began + run, database=options.database, count=options.bots) for run in range(options.runs)]
    return 0 if any(met) else 1


if __name__ == "__main__":
    sys.exit(main())

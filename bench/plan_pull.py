"""Time `verl-e2e plan PULL` against a local API and a local smart-HTTP git server over a real repository.

python bench/plan_pull.py --bridge BARE_DIR --labels prs.json --pr 5232 --pr 5558

Each pull request is planned with an empty cache, again, and (all of them, one after the other) with one cache shared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.smart_http import GitServer, serving  # noqa: E402

NAME = "NVIDIA-NeMo/Megatron-Bridge"


@contextmanager
def api(labels: list[dict], asked: list[str]) -> Iterator[str]:
    """Answers one endpoint, the facts of a pull request."""
    pulls = {f"/api/v3/repos/{NAME}/pulls/{label['pr']}": label for label in labels}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            one = pulls[self.path]
            repo = {"full_name": NAME}
            facts = {
                "number": one["pr"],
                "state": "closed",
                "changed_files": len(one["files"]),
                "head": {"ref": "topic", "sha": one["head"], "repo": repo},
                "base": {"ref": "main", "sha": one["base"], "repo": repo},
            }
            body = json.dumps(facts).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/api/v3"
        server.shutdown()


def plan(number: int, cache: Path, environment: dict[str, str], git: GitServer, asked: list[str]) -> str:
    calls, fetches, sent = len(asked), git.fetches, git.sent
    command = [sys.executable, "-m", "verl_e2e", "plan", f"{NAME}#{number}", "--json", "--cache", str(cache)]
    with tempfile.TemporaryFile("w+") as out:
        begun = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        took = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        levels = json.loads(out.read())["levels"] if status == 0 else f"failed with {process.returncode}"
    disk = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    figures = (
        f"{took:6.2f} s",
        f"{used.ru_utime + used.ru_stime:5.2f} s of CPU with its git",
        f"{len(asked) - calls} API calls",
        f"{git.fetches - fetches} fetches",
        f"{(git.sent - sent) / 1e6:5.2f} MB",
        f"cache {disk / 1e6:5.1f} MB",
        f"levels {levels}",
    )
    return " | ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--pr", type=int, action="append", required=True)
    given = parser.parse_args()
    asked: list[str] = []
    with tempfile.TemporaryDirectory() as folder, api(json.loads(given.labels.read_text()), asked) as api_url:
        root = Path(folder) / "git"
        (root / NAME).parent.mkdir(parents=True)
        (root / f"{NAME}.git").symlink_to(given.bridge.resolve())
        with serving(root) as git:
            environment = {"PATH": os.environ["PATH"], "GITHUB_API_URL": api_url, "GITHUB_SERVER_URL": git.url}
            for number in given.pr:
                cache = Path(folder) / f"cache-{number}"
                print(f"#{number} first   ", plan(number, cache, environment, git, asked))
                print(f"#{number} again   ", plan(number, cache, environment, git, asked))
            for number in given.pr:
                print(f"#{number} shared  ", plan(number, Path(folder) / "shared", environment, git, asked))


main()

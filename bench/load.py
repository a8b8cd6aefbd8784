"""Many pull requests within a minute, against a whole service whose jobs take a second on this machine.

python bench/load.py [--pulls 500] [--seconds 60] [--slots 4]

Every pull request changes a source, so each is planned, runs its smoke level on the local back end, is judged, and gets
its card and gate from the stand-in of GitHub on the same machine. The verdict is Blocked: the folder that a job leaves
is a recording of 399 s, and the service sees that it ran for seconds. Printed: when all were finished, how long the
pull requests of each author waited, and the memory of the service with its processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.github_standin.world import World, living  # noqa: E402  (the checkout that this file lies in)
from tests.fakes.service_process import environment  # noqa: E402
from tests.stories.conftest import furnish  # noqa: E402

SERVER = ROOT / "bench" / "load_server.py"
# One author opens most of them, at first.
AUTHORS = ("alice", "bob", "carol-w", "dora")
LIMIT_MIB = 400
PATIENCE_S = 3 * 3600.0


def main() -> int:
    """0 when every pull request got its verdict and memory stayed below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulls", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--slots", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verl-e2e-load-") as name, living(Path(name) / "world") as world:
        folder = Path(name)
        furnish(world)
        for author in AUTHORS:
            world.person(author, "write")
        settings = environment(world, folder / "data") | {
            "VERL_E2E_BACKEND": "local",
            "VERL_E2E_LOCAL_SLOTS": str(options.slots),
            "VERL_E2E_VERL": str(empty_clone(folder / "verl")),
            "VERL_E2E_TICK_S": "2",
            "VERL_E2E_SITE_PROFILE": str(site_of(folder)),
        }
        with (folder / "log").open("w") as log:
            service = subprocess.Popen([sys.executable, str(SERVER)], env=settings, stdout=subprocess.PIPE, stderr=log)
        try:
            assert service.stdout is not None
            line = service.stdout.readline().decode()
            assert line.startswith("listening on "), (folder / "log").read_text()
            world.deliveries.url = line.split()[2]
            return measure(world, service, options, folder)
        finally:
            service.terminate()
            service.wait()


def measure(world: World, service: "subprocess.Popen[bytes]", options: argparse.Namespace, folder: Path) -> int:
    """Open the pull requests, wait for their gates, and print the figures."""
    memory = Memory(service.pid)
    opened: dict[int, tuple[str, float]] = {}
    began = time.monotonic()
    for index in range(options.pulls):
        time.sleep(max(0.0, began + index * options.seconds / options.pulls - time.monotonic()))
        author = AUTHORS[0] if index < options.pulls // 2 else AUTHORS[index % len(AUTHORS)]
        number = world.open_pull(author, {"src/bridge.py": f"value = {index + 2}\n"})
        opened[number] = (author, time.monotonic())
    print(f"{options.pulls} pull requests opened in {time.monotonic() - began:.0f} s", flush=True)
    ended: dict[int, float] = {}
    while len(ended) < len(opened) and time.monotonic() - began < PATIENCE_S:
        for number in opened.keys() - ended.keys():
            if world.gate(number) in ("success", "failure", "action_required"):
                ended[number] = time.monotonic()
        print(f"{len(ended)} ended after {time.monotonic() - began:.0f} s, {memory.now_mib:.0f} MiB", file=sys.stderr)
        time.sleep(5)
    # A card is edited every 15 s at most.
    time.sleep(20)
    report(world, opened, ended, began, memory)

    problems = [line for line in (folder / "log").read_text().splitlines() if '"error"' in line.lower()]
    print(f"errors in the log: {len(problems)}", *problems[:3], sep="\n  ")
    return 0 if len(ended) == len(opened) and memory.peak_mib <= LIMIT_MIB else 1


def report(
    world: World, opened: dict[int, tuple[str, float]], ended: dict[int, float], began: float, memory: "Memory"
) -> None:
    """The figures."""
    seen = Counter(line for number in opened for line in world.card(number).splitlines()[1:2])
    print(*(f"{count} x {line}" for line, count in seen.most_common(5)), sep="\n")
    gates = Counter(world.gate(number) for number in opened)
    last = max(ended.values(), default=began) - began
    print(f"{len(ended)} of {len(opened)} ended, the last after {last:.0f} s; gates: {dict(gates)}")
    for author in AUTHORS:
        waits = [ended[number] - opened[number][1] for number in ended if opened[number][0] == author]
        if waits:
            worst, middle = max(waits), statistics.median(waits)
            print(f"  {author}: {len(waits)} pull requests, median wait {middle:.0f} s, longest {worst:.0f} s")
    print(f"memory: service {memory.peak_mib:.0f} MiB at most, with its child processes {memory.peak_all_mib:.0f} MiB")
    print(f"requests to GitHub: {len(world.standin.traffic)}; load {os.getloadavg()[0]:.1f}")


class Memory:
    """Watches what the service and its analysis processes hold; the jobs are not its."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.now_mib = self.peak_mib = self.peak_all_mib = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._process.is_running():
            try:
                self.now_mib = self._process.memory_info().rss / 2**20
                children = [child for child in self._process.children(recursive=True) if _is_ours(child)]
                every = self.now_mib + sum(child.memory_info().rss for child in children) / 2**20
            except psutil.Error:
                continue
            self.peak_mib, self.peak_all_mib = max(self.peak_mib, self.now_mib), max(self.peak_all_mib, every)
            time.sleep(0.5)


def _is_ours(child: psutil.Process) -> bool:
    return not any("short_job.py" in word for word in child.cmdline())


def site_of(folder: Path) -> Path:
    """A site profile like the recording's host, whose runs share nothing."""
    text = (ROOT / "bot/verl_e2e/profiles/hopper-offline.yml").read_text()
    place = folder / "site.yml"
    place.write_text(f"{text}isolation:\n  network: none\n")
    return place


def empty_clone(folder: Path) -> Path:
    """A repository that jobs name and that nothing reads."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())

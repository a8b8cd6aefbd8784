"""What many open pull requests cost while nothing happens to them: requests to GitHub in an hour, time and memory.

python bench/open_pulls.py [--pulls 1000] [--minutes 60]

The service is production's own worker, tables and GitHub adapter, stepped in this process on a clock of its own; the
stand-in of GitHub answers on the same machine, tags its answers and confirms unchanged ones, and a new token makes its
tags invalid, as on GitHub. A quarter of the pull requests waits for a run that never ends, the rest needs none.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.github_standin.world import World, living  # noqa: E402  (the checkout that this file lies in)
from tests.stories.conftest import furnish  # noqa: E402
from tests.stories.service import Service, running  # noqa: E402

TICK_S = 60.0
AT_ONCE = 50
# The service writes at most 480 things an hour and repository.
BETWEEN_S = 400.0


def main() -> None:
    """Open the pull requests, let an hour go by, and print what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulls", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, living(Path(folder) / "world") as world:
        furnish(world)
        with running(world, Path(folder) / "service", tick_s=TICK_S) as service:
            took = open_pulls(world, service, options.pulls)
            asked = len(world.standin.traffic)
            print(f"{options.pulls} pull requests opened and answered in {took:.0f} s; {asked} requests")
            idle(world, service, options.minutes)


def open_pulls(world: World, service: Service, number: int) -> float:
    """Open so many, and give the seconds until all were answered."""
    began = time.monotonic()
    for index in range(number):
        path = "docs/guide.md" if index % 4 else "src/bridge.py"
        world.open_pull("alice", {path: f"value = {index}\n"})
        if index % AT_ONCE == AT_ONCE - 1:
            service.go_on(BETWEEN_S)
            print(f"{index + 1} after {time.monotonic() - began:.0f} s", file=sys.stderr)
    service.settle()
    return time.monotonic() - began


def idle(world: World, service: Service, minutes: int) -> None:
    """Let minutes go by in which nothing happens, and print what they cost."""
    mark, looks, began = len(world.standin.traffic), service.looks, time.process_time()
    by_minute = []
    for _ in range(minutes):
        before = len(world.standin.traffic)
        service.go_on(TICK_S)
        by_minute.append(len(world.standin.traffic) - before)
    asked = world.standin.traffic[mark:]
    charged = Counter(f"{item.method} {item.route}" for item in asked if item.status != 304)
    print(f"{minutes} minutes: {service.looks - looks} looks, {len(asked)} requests, at most {max(by_minute)} a minute")
    print(f"charged by GitHub: {charged.total()}")
    for name, count in charged.most_common():
        print(f"  {count:5} {name}")
    print(f"processor time of service and stand-in: {time.process_time() - began:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of service and stand-in: {peak:.0f} MiB; kept answers: {service.kept_answers_bytes} bytes")


if __name__ == "__main__":
    main()

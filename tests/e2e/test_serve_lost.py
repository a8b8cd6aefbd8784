"""The whole service as a process: what no webhook tells of is found in the time that the pages state."""

import signal
import sys
from pathlib import Path

from tests.fakes.github_standin.world import World
from tests.fakes.patience import slowness
from tests.fakes.service_process import environment, serving, until

TICK_S = 5.0
# For the look itself, on a machine that others use too.
AROUND_S = 20.0
SOURCE = {"src/bridge.py": "value = 2\n"}


def settings(world: World, tmp_path: Path) -> dict[str, str]:
    return environment(world, tmp_path / "data") | {"VERL_E2E_TICK_S": f"{TICK_S:.0f}"}


def ended(world: World, number: int) -> bool:
    return world.gate(number) not in ("", "queued", "in_progress")


def test_a_lost_end_of_a_run_and_a_lost_push_are_found_by_the_clock(world: World, tmp_path: Path) -> None:
    with serving(settings(world, tmp_path), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        first = world.open_pull("alice", SOURCE)
        second = world.open_pull("alice", {"docs/guide.md": "other\n"})
        until(lambda: world.live_runs() and world.gate(second) == "success")
        world.deliveries.wait()
        # As if GitHub had never sent them: there is nothing to be asked for again.
        world.deliveries.url = ""
        world.push(second, {"docs/guide.md": "more\n"})
        found_push = until(lambda: world.gate(second) == "success")
        world.finish_run({}, world.live_runs()[0])
        found_end = until(lambda: ended(world, first))
        sys.stderr.write(f"push found after {found_push:.1f} s, end after {found_end:.1f} s\n")
        assert max(found_push, found_end) < (TICK_S + AROUND_S) * slowness()


def test_an_end_while_the_service_was_down_is_found_at_its_start(world: World, tmp_path: Path) -> None:
    environ = settings(world, tmp_path) | {"VERL_E2E_TICK_S": "600"}
    with serving(environ, tmp_path / "log") as (process, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", SOURCE)
        # Right after the dispatch, before its answer is written down.
        until(world.live_runs)
        process.send_signal(signal.SIGKILL)
        process.wait()
    world.finish_run({}, world.live_runs()[0])
    with serving(environ, tmp_path / "log"):
        found = until(lambda: ended(world, number))
        sys.stderr.write(f"end found {found:.1f} s after the start\n")
        assert found < AROUND_S * slowness()
    assert len(world.runs()) == 1

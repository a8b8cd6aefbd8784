"""The whole service on PostgreSQL: what it does while the database is away, and how soon another one takes over."""

import sys
import time
from pathlib import Path

import pytest

from tests.adapters.databases import fresh_database
from tests.fakes.github_standin.world import World
from tests.fakes.postgres import controlled_server
from tests.fakes.service_process import environment, figures, serving, until

pytestmark = pytest.mark.postgres

# Several ticks and attempts of the service.
AWAY_S = 8.0
# The figure asked for is 15 s on an idle machine.
BACK_S = 15.0
TAKEN_OVER_S = 10.0


def test_without_the_database_deliveries_are_refused_and_soon_asked_for_again(world: World, tmp_path: Path) -> None:
    with controlled_server() as server:
        environ = environment(world, tmp_path / "data") | {"DATABASE_URL": fresh_database(server.url)}
        with serving(environ, tmp_path / "log") as (_, address):
            world.deliveries.url = f"{address}/webhook"
            first = world.open_pull("alice", {"docs/guide.md": "other\n"})
            until(lambda: world.gate(first) == "success")
            server.stop()
            began = time.monotonic()
            pulls: list[int] = []
            while time.monotonic() - began < AWAY_S:
                pulls.append(world.open_pull("alice", {"docs/guide.md": f"other {len(pulls)}\n"}))
                world.comment("alice", "/verl-e2e status", first)
                time.sleep(1)
            world.deliveries.wait()
            refused = {attempt.status for attempt in world.deliveries.attempts if not 200 <= attempt.status < 300}
            server.start()
            back = until(lambda: all(world.gate(number) == "success" for number in pulls), seconds=120)
            lines = (tmp_path / "log").read_text().splitlines()
            warnings = [line for line in lines if '"warning"' in line.lower() or '"error"' in line.lower()]
            sys.stderr.write(f"back after {back:.1f} s, {len(warnings)} warnings\n")
            until(lambda: figures(address)["deliveries_waiting"] == 0)
            assert refused == {503}
            taken = {attempt.delivery.guid for attempt in world.deliveries.attempts if 200 <= attempt.status < 300}
            assert {delivery.guid for delivery in world.deliveries.made} == taken
            # A busy machine is slow; what was seen before took six minutes.
            assert back < 4 * BACK_S
            assert len(warnings) < 100


def test_a_standby_keeps_deliveries_and_takes_over_within_ten_seconds(world: World, tmp_path: Path) -> None:
    with controlled_server() as server:
        shared = {"DATABASE_URL": fresh_database(server.url)}
        first, second = (environment(world, tmp_path / name) | shared for name in ("first", "second"))
        with serving(first, tmp_path / "log") as (process, address):
            until(lambda: figures(address)["active"] == 1)
            with serving(second, tmp_path / "second-log") as (_, standby):
                world.deliveries.url = f"{standby}/webhook"
                before = world.open_pull("alice", {"docs/guide.md": "other\n"})
                until(lambda: world.gate(before) == "success")
                assert [figures(each)["active"] for each in (address, standby)] == [1, 0]
                assert figures(standby)["deliveries_processed_total"] == 0
                process.kill()
                process.wait()
                after = world.open_pull("alice", {"docs/guide.md": "another\n"})
                took_s = until(lambda: figures(standby)["active"] == 1)
                until(lambda: world.gate(after) == "success")
    sys.stderr.write(f"the standby took over after {took_s:.1f} s\n")
    assert took_s < TAKEN_OVER_S

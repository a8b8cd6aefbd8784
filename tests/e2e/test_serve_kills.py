"""The whole service as a process, killed again and again in the middle of pull requests, pushes, comments and runs.

`--kills` gives the number; the long test run takes more of them than this file by itself.
"""

import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.adapters.databases import fresh_database, server
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, slow_down
from tests.fakes.github_standin.world import World
from tests.fakes.patience import HANG_S
from tests.fakes.service_process import environment, serving

__all__ = ["server"]

KILLS = 4
PATIENCE_S = HANG_S
LAG_S = 3.0
# Runs that leave nothing block the gate, and some are still under way.
WITH_RUNS = ("in_progress", "queued", "action_required", "failure")
FAULTS = (server_error(502), server_error(502, When.AFTER), cut(), cut(When.AFTER), slow_down(429, 1))


class Sides:
    """What people do, by a seed, and what must be there in the end."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.dice = world, random.Random(seed)
        self.pulls: dict[int, bool] = {}
        self.typos: Counter[int] = Counter()

    def act(self) -> None:
        """One thing that someone does."""
        world, dice = self.world, self.dice
        match dice.choice(("open", "push", "say", "typo", "finish")) if len(self.pulls) > 2 else "open":
            case "open":
                source = dice.random() < 0.5
                path = "src/bridge.py" if source else "docs/guide.md"
                number = world.open_pull("alice", {path: f"value = {dice.random()}\n"})
                self.pulls[number] = source
            case "push":
                number = dice.choice(list(self.pulls))
                self.pulls[number] = True
                world.push(number, {"src/bridge.py": f"value = {dice.random()}\n"})
            case "say":
                world.comment("alice", "/verl-e2e status", dice.choice(list(self.pulls)))
            case "typo":
                number = dice.choice(list(self.pulls))
                self.typos[number] += 1
                world.comment("alice", f"/verl-e2e rnu {self.typos[number]}", number)
            case _:
                for run in world.live_runs()[:1]:
                    world.finish_run({}, run)

    def faulty(self, method: str, path: str) -> Fault | None:
        """Every twentieth answer goes wrong."""
        del path
        return self.dice.choice(FAULTS) if method != "GET" and self.dice.random() < 0.05 else None

    def missing(self) -> list[str]:
        """What is not as it must be yet."""
        world, text = self.world, []
        for number, source in self.pulls.items():
            if world.gate(number) not in (("success",) if not source else WITH_RUNS):
                text.append(f"#{number} says {world.gate(number)}")
            cards = sum("verl-e2e:card" in comment.body for comment in world.comments(number))
            if cards != 1:
                text.append(f"#{number} has {cards} cards")
            replies = sum("verl-e2e:reply" in comment.body for comment in world.comments(number))
            if replies != self.typos[number]:
                text.append(f"#{number} has {replies} replies for {self.typos[number]} errors")
        return text

    def doubled(self) -> list[str]:
        """What is there twice, and gates that are green though nothing passed."""
        world = self.world
        keys = Counter(run.inputs["key"] for run in world.runs() if run.conclusion != "cancelled")
        checks = Counter(
            (check.name, check.suite.head_sha) for check in world.state.checks.values() if check.name == "verl-e2e"
        )
        green = [number for number, source in self.pulls.items() if source and world.gate(number) == "success"]
        return [f"{name} {count}" for name, count in (*keys.items(), *checks.items()) if count > 1] + [
            f"#{number} is green" for number in green
        ]


@pytest.fixture(params=("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)))
def settings(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> dict[str, str]:
    made = environment(world, tmp_path / "data") | {"VERL_E2E_LIST_LAG_S": "5"}
    if request.param == "postgresql":
        made["DATABASE_URL"] = fresh_database(request.getfixturevalue("server"))
    return made


def test_kills_lose_nothing_double_nothing_and_turn_nothing_green(
    settings: dict[str, str], world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = int(request.config.getoption("--kills") or KILLS)
    sides = Sides(world, seed=kills)
    world.state.lag_s = LAG_S
    world.faults.choose = sides.faulty
    for _ in range(kills):
        with serving(settings, tmp_path / "log") as (process, address):
            world.deliveries.url = f"{address}/webhook"
            for _ in range(2):
                sides.act()
            time.sleep(sides.dice.uniform(0.1, 4.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
    world.faults.clear()
    with serving(settings, tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        began = time.monotonic()
        while sides.missing() and time.monotonic() - began < PATIENCE_S:
            time.sleep(0.1)
        took = time.monotonic() - began
        assert sides.missing() == []
        sys.stderr.write(f"{kills} kills, {world.faults.met} faults, {len(sides.pulls)} pulls: after {took:.1f} s\n")
        time.sleep(2 * LAG_S)
        assert sides.doubled() == []
        assert sides.missing() == []

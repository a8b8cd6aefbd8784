"""The whole service, one process or two, killed again and again amid pull requests, pushes, comments and runs.

In the end nothing is lost, doubled or falsely green, and cards and checks are those of a service that no one killed.
`--kills` gives the number; the long test run takes more of them than this file by itself.
"""

import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from difflib import unified_diff
from pathlib import Path
from subprocess import Popen

import pytest

from tests.adapters.databases import fresh_database, server
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, slow_down
from tests.fakes.github_standin.world import World, living
from tests.fakes.patience import HANG_S
from tests.fakes.service_process import environment, serving, until
from tests.stories.conftest import furnish

__all__ = ["server"]

KILLS = 2
PATIENCE_S = HANG_S
LAG_S = 3.0
# Runs that leave nothing block the gate, and some are still under way.
WITH_RUNS = ("in_progress", "queued", "action_required", "failure")
# A dispatched run may take so many quarters of a second until GitHub's list shows it.
_QUIET_ROUNDS = 20
RUNNING = "\N{ANTICLOCKWISE DOWNWARDS AND UPWARDS OPEN CIRCLE ARROWS}"
FAULTS = (server_error(502), server_error(502, When.AFTER), cut(), cut(When.AFTER), slow_down(429, 1))


class Sides:
    """What people do, by a seed, and what must be there in the end."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.dice = world, random.Random(seed)
        self.pulls: dict[int, bool] = {}
        self.typos: Counter[int] = Counter()
        # What was done to pull requests, in its order, for a service that no one kills.
        self.done: list[Callable[[World], object]] = []

    def act(self) -> None:
        """One thing that someone does."""
        dice = self.dice
        match dice.choice(("open", "push", "say", "typo", "finish")) if len(self.pulls) > 2 else "open":
            case "open":
                source, text = dice.random() < 0.5, f"value = {dice.random()}\n"
                path = "src/bridge.py" if source else "docs/guide.md"
                number = self._do(lambda world: world.open_pull("alice", {path: text}))
                self.pulls[number] = source
            case "push":
                number, text = dice.choice(list(self.pulls)), f"value = {dice.random()}\n"
                self.pulls[number] = True
                self._do(lambda world: len(world.push(number, {"src/bridge.py": text})))
            case "say":
                number = dice.choice(list(self.pulls))
                self._do(lambda world: world.comment("alice", "/verl-e2e status", number).id)
            case "typo":
                number = dice.choice(list(self.pulls))
                self.typos[number] += 1
                text = f"/verl-e2e rnu {self.typos[number]}"
                self._do(lambda world: world.comment("alice", text, number).id)
            case _:
                for run in self.world.live_runs()[:1]:
                    self.world.finish_run({}, run)

    def _do(self, act: Callable[[World], int]) -> int:
        self.done.append(act)
        return act(self.world)

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

    def end_runs(self) -> None:
        """Every run ends and leaves nothing, until none is under way, none starts, and the cards say so."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            live = self.world.live_runs()
            for run in live:
                self.world.finish_run({}, run)
            quiet = 0 if live or any(self._goes_on(number) for number in self.pulls) else quiet + 1
            time.sleep(0.25)

    def _goes_on(self, number: int) -> bool:
        shown = "".join(self._card(number)[1:2])
        return self.world.gate(number) not in ("success", "action_required", "failure") or f"{RUNNING} " in shown

    def _card(self, number: int) -> list[str]:
        cards = (comment.body for comment in self.world.cards(number) if "verl-e2e:card" in comment.body)
        return next(cards, "").splitlines()

    def shown(self) -> list[str]:
        """What GitHub shows of each pull request, without what differs between two worlds: ids, addresses, times."""
        found: list[str] = []
        for number in self.pulls:
            checks = self.world.checks(self.world.head(number))
            lines = [f"{check.name}: {check.conclusion or check.status}; {check.title}" for check in checks]
            found += [f"#{number}", *sorted(lines), *self._card(number)]
        return [plain(line) for line in found]


def plain(text: str) -> str:
    """A text without ids of commits, addresses and times."""
    return re.sub(r"http://\S+|\b[0-9a-f]{7,40}\b|\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-]\d\d:\d\d)?", "#", text)


class Bots:
    """The processes of a service; deliveries go to one of those that live."""

    def __init__(self, settings: list[dict[str, str]], sides: Sides, log: Path, stack: ExitStack) -> None:
        self._settings, self._sides, self._log, self._stack = settings, sides, log, stack
        self._live: dict[int, tuple[Popen[str], str]] = {}

    def start(self) -> None:
        """Start those that are not there."""
        for index, environ in enumerate(self._settings):
            if index not in self._live:
                log = self._log.with_name(f"{self._log.name}{index}")
                self._live[index] = self._stack.enter_context(serving(environ, log))

    def deliver(self) -> None:
        """The next deliveries go to one of them, as a proxy sends them."""
        _, address = self._sides.dice.choice(list(self._live.values()))
        self._sides.world.deliveries.url = f"{address}/webhook"

    def kill(self) -> None:
        """Kill one of them."""
        index = self._sides.dice.choice(list(self._live))
        process, _ = self._live.pop(index)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def bots(settings: list[dict[str, str]], sides: Sides, log: Path) -> Iterator[Bots]:
    """The processes of a service, all started."""
    with ExitStack() as stack:
        made = Bots(settings, sides, log, stack)
        made.start()
        made.deliver()
        yield made


SERVICES = (
    ("sqlite", 1),
    pytest.param(("postgresql", 2), marks=pytest.mark.postgres),
    # What two processes on it go through holds for one as well, so this takes its turn in long runs alone.
    pytest.param(("postgresql", 1), marks=pytest.mark.postgres),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "settings" in metafunc.fixturenames:
        chosen = SERVICES if metafunc.config.getoption("--kills") else SERVICES[:2]
        metafunc.parametrize("settings", chosen, indirect=True, ids=lambda param: f"{param[0]}-{param[1]}")


@pytest.fixture
def settings(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> list[dict[str, str]]:
    """The environment of each process."""
    database, count = request.param
    made = [environment(world, tmp_path / f"data{index}") | {"VERL_E2E_LIST_LAG_S": "5"} for index in range(count)]
    if database == "postgresql":
        url = fresh_database(request.getfixturevalue("server"))
        # Slots are shared by the database, and a killed bot must leave none of them taken.
        slots = {"VERL_E2E_SLOTS": "all=2"} if count > 1 else {}
        made = [environ | {"DATABASE_URL": url} | slots for environ in made]
    return made


def test_kills_lose_nothing_double_nothing_turn_nothing_green_and_change_no_end(
    settings: list[dict[str, str]], world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = int(request.config.getoption("--kills") or KILLS)
    sides = Sides(world, seed=kills)
    world.state.lag_s = LAG_S
    world.faults.choose = sides.faulty
    with bots(settings, sides, tmp_path / "log") as service:
        for _ in range(kills):
            for _ in range(2):
                service.deliver()
                sides.act()
            time.sleep(sides.dice.uniform(0.1, 4.0))
            service.kill()
            service.start()
        service.deliver()
        world.faults.clear()
        took = until(lambda: not sides.missing(), PATIENCE_S)
        sys.stderr.write(f"{kills} kills, {world.faults.met} faults, {len(sides.pulls)} pulls: after {took:.1f} s\n")
        time.sleep(2 * LAG_S)
        assert sides.doubled() == []
        assert sides.missing() == []
        sides.end_runs()
        shown = sides.shown()
        assert sides.doubled() == []
    if not request.config.getoption("--kills") and len(settings) == 1:
        # Two processes go through all that one does, and the long comparison is made once in a run.
        return
    calm = undisturbed(sides, tmp_path / "undisturbed")
    differences = "\n".join(unified_diff(calm, shown, "undisturbed", "killed", lineterm=""))
    assert not differences, differences


def undisturbed(sides: Sides, folder: Path) -> list[str]:
    """What GitHub shows in the end of the same pull requests when no one kills the service and GitHub has no faults."""
    with living(folder / "world") as world:
        furnish(world)
        calm = Sides(world, seed=0)
        calm.pulls, calm.typos = sides.pulls, sides.typos
        environ = environment(world, folder / "data") | {"VERL_E2E_LIST_LAG_S": "5"}
        with serving(environ, folder / "log") as (_, address):
            world.deliveries.url = f"{address}/webhook"
            for act in sides.done:
                act(world)
            until(lambda: not calm.missing(), PATIENCE_S)
            calm.end_runs()
            return calm.shown()

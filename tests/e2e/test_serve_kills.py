"""The whole service, one process or two, killed again and again amid pull requests, pushes, comments and runs.

A service that no one disturbs gets the same pull requests, pushes and comments. In the end nothing is lost, nothing
was ever doubled or falsely green, and cards and checks of both are the same. PostgreSQL crashes meanwhile, too.

`--kills` gives the number, `--search-seed` the moments; the long test run takes two kills. What is judged at the end is
judged when nothing is left to do, by what the database and GitHub say, and not after some time.
"""

import json
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from difflib import unified_diff
from pathlib import Path
from subprocess import Popen

import pytest
import sqlalchemy as sa

from tests.adapters.databases import fresh_database
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, silence, slow_down
from tests.fakes.github_standin.server import Exchange
from tests.fakes.github_standin.world import World, living
from tests.fakes.postgres import Server, controlled_server
from tests.fakes.service_process import SERVE, environment, serving, until
from tests.stories.furnished import furnish
from tests.stories.service import Service, running
from verl_e2e.adapters.store import Store, open_store
from verl_e2e.adapters.store.database import IS_OPEN, deliveries, outbox, runs, targets
from verl_e2e.config.settings import DEFAULT_VERL

KILLS = 2
GATE = "verl-e2e"
# GitHub's lists show what was created after so long. The service waits longer, by the time that may pass from when it
# writes down that it creates something until GitHub has it: requests that GitHub puts off, and a busy machine.
LAG_S, LIST_LAG_S = 5.0, 12
# A kill comes after so many requests to GitHub at most; planning a pull request and starting its run takes about 30.
# Every other one comes while GitHub creates something and has not answered yet.
MOST_CALLS, LONGEST_S = 30, 20.0
CREATIONS = (r"/dispatches$", r"/comments$", r"/check-runs$")
# Runs that leave nothing block the gate, and some are still under way.
WITH_RUNS = ("in_progress", "queued", "action_required", "failure")
FAULTS = (server_error(502), server_error(502, When.AFTER), cut(), cut(When.AFTER), slow_down(429, 1))


class Sides:
    """What people do, by a seed, and what must be there in the end."""

    def __init__(self, world: World, undisturbed: World, seed: int) -> None:
        self.world, self.undisturbed = world, undisturbed
        self.dice = random.Random(seed)
        # Of their own: they are thrown by the threads that answer.
        self._fault_dice = random.Random(seed)
        # The creation that a kill waits for, empty for none.
        self._awaited = ""
        self._lock = threading.Lock()
        self.pulls: dict[int, bool] = {}
        self.typos: Counter[int] = Counter()
        # The heads that no gate may call good: no run of theirs passes.
        self._never_green: set[str] = set()

    def act(self) -> None:
        """One thing that someone does."""
        dice = self.dice
        match dice.choice(("open", "push", "say", "typo", "finish")) if len(self.pulls) > 2 else "open":
            case "open":
                source, text = dice.random() < 0.5, f"value = {dice.random()}\n"
                path = "src/bridge.py" if source else "docs/guide.md"
                number = self._do(lambda world: world.open_pull("alice", {path: text}))
                self._has_head(number, source=source)
            case "push":
                number, text = dice.choice(list(self.pulls)), f"value = {dice.random()}\n"
                self._do(lambda world: len(world.push(number, {"src/bridge.py": text})))
                self._has_head(number, source=True)
            case "say":
                number = dice.choice(list(self.pulls))
                self._do(lambda world: len(world.comment("alice", "/verl-e2e status", number).body))
            case "typo":
                number = dice.choice(list(self.pulls))
                self.typos[number] += 1
                text = f"/verl-e2e rnu {self.typos[number]}"
                self._do(lambda world: len(world.comment("alice", text, number).body))
            case _:
                # Undisturbed, it ends with the others.
                for run in self.world.live_runs()[:1]:
                    self.world.finish_run({}, run)

    def _do(self, act: Callable[[World], int]) -> int:
        done = act(self.undisturbed)
        assert act(self.world) == done
        return done

    def _has_head(self, number: int, *, source: bool) -> None:
        self.pulls[number] = source
        if source:
            self._never_green.add(self.world.head(number))

    def faulty(self, method: str, path: str) -> Fault | None:
        """Every twentieth answer goes wrong, and the one that a kill waits for."""
        with self._lock:
            if self._awaited and method == "POST" and re.search(self._awaited, path):
                self._awaited = ""
                return silence(0.3, When.AFTER)
            return self._fault_dice.choice(FAULTS) if method != "GET" and self._fault_dice.random() < 0.05 else None

    def go_on(self) -> None:
        """Until the service has asked GitHub for so much more: the moment does not depend on the machine's speed."""
        calls = self.world.standin.traffic
        asked = len(calls) + self.dice.randint(0, MOST_CALLS)
        _wait(lambda: len(calls) >= asked)
        time.sleep(self.dice.uniform(0.0, 0.2))

    def await_creation(self) -> None:
        """Until GitHub is about to create something; its answer will be lost."""
        self._awaited = self.dice.choice(CREATIONS)
        _wait(lambda: not self._awaited)
        self._awaited = ""

    def missing(self, world: World) -> list[str]:
        """What is not as it must be yet."""
        text = []
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

    def wrong(self) -> list[str]:
        """What was ever there twice, also what was taken back since; and gates that ever were green falsely."""
        checks = list(self.world.state.checks.values())
        keys = Counter(f"run {run.inputs['key']}" for run in self.world.runs())
        named = Counter(f"check {check.name.removesuffix(' (replaced)')} {check.suite.head_sha}" for check in checks)
        found = [f"{name}: {count} times" for name, count in (keys | named).items() if count > 1]
        calls = list(self.world.standin.traffic)
        found += [f"deleted: {call.path}" for call in calls if call.method == "DELETE"]
        return found + [f"green: {head}" for head in map(self._made_green, calls) if head in self._never_green]

    def open_checks(self) -> list[str]:
        """The checks without a conclusion, on whatever head."""
        checks = list(self.world.state.checks.values())
        return [f"{check.name} {check.suite.head_sha}" for check in checks if check.status != "completed"]

    def _made_green(self, call: Exchange) -> str:
        """The head whose gate a request calls good, empty for any other request."""
        if call.method not in ("POST", "PATCH") or "/check-runs" not in call.path or b'"success"' not in call.sent:
            return ""
        sent, number = json.loads(call.sent), call.path.rpartition("/check-runs/")[2]
        known = self.world.state.checks.get(int(number)) if number.isdigit() else None
        name, head = (known.name, known.suite.head_sha) if known else (sent.get("name"), sent.get("head_sha"))
        return str(head) if (name, sent.get("conclusion")) == (GATE, "success") else ""

    def shown(self, world: World) -> list[str]:
        """What GitHub shows of each pull request, without what differs between two worlds: ids, addresses, times."""
        found: list[str] = []
        for number in self.pulls:
            checks = sorted(
                f"{check.name}: {check.conclusion or check.status}; {check.title}"
                for check in world.checks(world.head(number))
            )
            cards = [comment.body for comment in world.cards(number) if "verl-e2e:card" in comment.body]
            found += [f"#{number}", *checks, *(line for card in cards for line in plain(card).splitlines())]
        return found


def _wait(true: Callable[[], object]) -> None:
    """Wait for something that may not come."""
    deadline = time.monotonic() + LONGEST_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)


def plain(text: str) -> str:
    """A card without ids of commits, addresses and times.

    Which of the earlier heads had a run depends on how soon each was followed by the next one.
    """
    text = re.sub(r"<details><summary>Earlier heads.*?</details>\n*", "", text, flags=re.DOTALL)
    return re.sub(r"http://\S+|\b[0-9a-f]{7,40}\b|\d{4}-\d\d-\d\d[T ][\d:.]+(Z|[+-]\d\d:\d\d)?", "#", text)


class Bots:
    """The processes of a service; deliveries go to one of those that live."""

    def __init__(self, settings: list[dict[str, str]], world: World, log: Path, stack: ExitStack) -> None:
        self._settings, self._world, self._log, self._stack = settings, world, log, stack
        self._live: dict[int, tuple[Popen[str], str]] = {}
        self._store: Store | None = None

    def start(self) -> None:
        """Start those that are not there."""
        for index, environ in enumerate(self._settings):
            if index not in self._live:
                log = self._log.with_name(f"{self._log.name}{index}")
                self._live[index] = self._stack.enter_context(serving(environ, log, SERVE))

    def deliver(self, dice: random.Random) -> None:
        """The next deliveries go to one of them, as a proxy sends them."""
        _, address = dice.choice(list(self._live.values()))
        self._world.deliveries.url = f"{address}/webhook"

    def kill(self, dice: random.Random) -> None:
        """Kill one of them."""
        process, _ = self._live.pop(dice.choice(list(self._live)))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def settle(self) -> None:
        """Every run ends and leaves nothing, until the service has nothing left to do."""
        until(lambda: not self._left(), why=self._left)

    def _left(self) -> list[str]:
        """What is still to be done, now or later; runs end by this."""
        sent = self._world.deliveries.made[:]
        for run in self._world.live_runs():
            self._world.finish_run({}, run)
        taken = {attempt.delivery.guid for attempt in self._world.deliveries.attempts[:] if 200 <= attempt.status < 300}
        left = [f"delivery {delivery.event}" for delivery in sent if delivery.guid not in taken] or self._in_tables()
        # What happened meanwhile has made a delivery.
        return left or ["a new delivery"] * (len(self._world.deliveries.made) - len(sent))

    def _in_tables(self) -> list[str]:
        """What the tables hold that is still to be done, and runs that have not ended."""
        if self._store is None:
            environ = self._settings[0]
            default = f"sqlite:///{environ['VERL_E2E_DATA']}/verl-e2e.sqlite3"
            self._store = open_store(environ.get("DATABASE_URL", default))
            self._stack.callback(self._store.close)
        waiting = (
            sa.select(deliveries.c.id).where(deliveries.c.state == "waiting"),
            sa.select(outbox.c.subject).where(outbox.c.state == "waiting"),
            sa.select(targets.c.target).where(targets.c.asked > targets.c.done),
            sa.select(runs.c.key).where(IS_OPEN),
        )
        with self._store.read() as connection:
            return [str(row) for wanted in waiting for row in connection.scalars(wanted)]


@contextmanager
def bots(settings: list[dict[str, str]], world: World, log: Path) -> Iterator[Bots]:
    """The processes of a service, all started."""
    with ExitStack() as stack:
        made = Bots(settings, world, log, stack)
        made.start()
        made.deliver(random.Random(0))
        yield made


SERVICES = (
    ("sqlite", 1),
    pytest.param(("postgresql", 2), marks=pytest.mark.postgres),
    # What two processes on it go through holds for one as well, so this takes its turn in long runs alone.
    pytest.param(("postgresql", 1), marks=pytest.mark.postgres),
)
# Every so many kills PostgreSQL ends as in a crash, and starts again.
KILLS_PER_RESTART = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        chosen = SERVICES if metafunc.config.getoption("--kills") else SERVICES[:2]
        metafunc.parametrize("kind", chosen, ids=lambda param: f"{param[0]}-{param[1]}")


def settings(world: World, folder: Path) -> dict[str, str]:
    """The environment of a process."""
    return environment(world, folder) | {"VERL_E2E_LIST_LAG_S": str(LIST_LAG_S)}


@contextmanager
def undisturbed(world: World, folder: Path) -> Iterator[Service]:
    """The service in this process, stepped by the test, with the settings of the others."""
    with running(world, folder) as service:
        service.environ = settings(world, folder) | {"VERL_E2E_VERL": DEFAULT_VERL}
        service.restart()
        yield service


def end_runs(service: Service) -> None:
    """Every run ends and leaves nothing, until none is started any more and the cards say so."""
    service.settle()
    while live := service.world.live_runs():
        for run in live:
            service.world.finish_run({}, run)
        service.settle()
    service.tick()


def disturbed(world: World, folder: Path, server: Server | None, count: int) -> list[dict[str, str]]:
    """The environment of each process of the service that is killed."""
    shared = {"DATABASE_URL": fresh_database(server.url)} if server is not None else {}
    # Slots are shared by the database, and a killed bot must leave none of them taken.
    shared |= {"VERL_E2E_SLOTS": "all=2"} if count > 1 else {}
    return [settings(world, folder / f"data{index}") | shared for index in range(count)]


def test_kills_lose_nothing_double_nothing_turn_nothing_green_and_change_no_end(
    kind: tuple[str, int], world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database, count = kind
    kills, seed = int(request.config.getoption("--kills") or KILLS), request.config.option.search_seed
    with ExitStack() as stack:
        server = stack.enter_context(controlled_server()) if database == "postgresql" else None
        calm_world = stack.enter_context(living(tmp_path / "undisturbed"))
        furnish(calm_world)
        calm = stack.enter_context(undisturbed(calm_world, tmp_path / "calm"))
        service = stack.enter_context(bots(disturbed(world, tmp_path, server, count), world, tmp_path / "log"))
        sides = Sides(world, calm_world, seed)
        world.state.lag_s, world.faults.choose = LAG_S, sides.faulty
        for number in range(kills):
            for _ in range(2):
                service.deliver(sides.dice)
                sides.act()
            sides.go_on()
            if server is not None and number % KILLS_PER_RESTART == 0:
                server.restart()
            if number % 2:
                sides.await_creation()
            service.kill(sides.dice)
            service.start()
        service.deliver(sides.dice)
        took_s = until(lambda: not sides.missing(world), why=lambda: sides.missing(world))
        pulls = f"{len(sides.pulls)} pull requests, {len(world.runs())} runs"
        sys.stderr.write(f"{kills} kills, seed {seed}, {world.faults.met} faults, {pulls}: there in {took_s:.1f} s\n")
        service.settle()
        end_runs(calm)
        assert sides.missing(calm_world) == []
        assert sides.wrong() == []
        assert sides.missing(world) == []
        assert sides.open_checks() == []
        differences = unified_diff(sides.shown(calm_world), sides.shown(world), "undisturbed", "killed", lineterm="")
        assert "\n".join(differences) == ""

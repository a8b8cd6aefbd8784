"""The worker on a real queue and real databases: nothing is lost, nothing runs twice at once, a kill is survived."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.adapters.databases import fresh_database
from tests.fakes.clocks import StoryClock
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.adapters.store import SqlDeliveries, SqlFigures, SqlOutbox, SqlWorklist, Store, open_store
from verl_e2e.adapters.worker import Work, Worker
from verl_e2e.core.pulls.deliveries import Posting, Received, reply_to
from verl_e2e.ports import ForgeError, UnreadableDeliveryError


def now() -> datetime:
    return datetime.now(UTC)


def deliver(store: Store, key: str, target: str) -> bool:
    return SqlDeliveries(store).keep([Received(key, "push", target.encode(), now())])[0]


@dataclass
class Pulls:
    """Pull requests whose looks can be held up or made to fail; counts them, and those that ran side by side."""

    looks: Counter[str] = field(default_factory=Counter)
    overlaps: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    gate: threading.Event = field(default_factory=threading.Event)
    running: set[str] = field(default_factory=set)
    open: tuple[str, ...] = ()
    again_s: float | None = None
    missed: tuple[str, ...] = ()
    lanes: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    processed: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    limited_s: dict[str, float] = field(default_factory=dict)

    def lane_of(self, delivery: Received) -> str:
        return self.lanes.get(delivery.body.decode(), "")

    def announce(self, target: str) -> None:
        assert target not in self.running
        self.announced.append(target)

    def write(self, message: Posting) -> None:
        """Some lanes get no answer for as long as the gate is closed; some subjects must wait."""
        if message.lane in self.silent:
            self.gate.wait(HANG_S)
        if wait_s := self.limited_s.pop(message.subject, 0.0):
            raise ForgeError("limited", passing=True, wait_s=wait_s)
        self.messages.append(message.subject)

    def hear(self, delivery: Received) -> Collection[str]:
        target = delivery.body.decode()
        if self.lane_of(delivery) in self.silent:
            self.gate.wait(HANG_S)
        self.processed.append(target)
        if target == "unreadable":
            raise UnreadableDeliveryError("no JSON")
        if self.failures[f"hear {target}"]:
            self.failures[f"hear {target}"] -= 1
            raise ConnectionError("502")
        return [target]

    def search(self) -> Collection[str]:
        if self.failures["search"]:
            raise ConnectionError("502")
        return self.missed

    def reconcile(self, target: str) -> float | None:
        if target in self.running:
            self.overlaps.append(target)
        self.running.add(target)
        self.gate.wait(HANG_S)
        self.running.discard(target)
        self.looks[target] += 1
        if self.failures[target]:
            self.failures[target] -= 1
            raise ConnectionError("502")
        return self.again_s if self.looks[target] == 1 else None


@contextmanager
def working(store: Store, pulls: Pulls, tick_s: float = 60, clock: StoryClock | None = None) -> Iterator[Worker]:
    work = Work(
        pulls.hear,
        pulls.reconcile,
        lambda: pulls.open,
        pulls.search,
        lane_of=pulls.lane_of,
        write=pulls.write,
        announce=pulls.announce,
    )
    worker = worker_of(work, store, tick_s, clock or StoryClock())
    worker.start()
    try:
        yield worker
    finally:
        pulls.gate.set()
        worker.stop()


def worker_of(work: Work, store: Store, tick_s: float, clock: StoryClock) -> Worker:
    tables = (SqlDeliveries(store), SqlWorklist(store), SqlOutbox(store))
    return Worker(work, *tables, store, clock, lambda: False, workers=2, tick_s=tick_s)


def until(true: Callable[[], bool], seconds: float = HANG_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def idle(store: Store) -> bool:
    backlog = SqlFigures(store).read(now())
    return not backlog.deliveries.count and not backlog.targets.count


def test_a_delivery_becomes_one_look_and_many_of_one_pull_few(store: Store) -> None:
    pulls = Pulls()
    pulls.gate.set()
    for number in range(60):
        deliver(store, f"{number}", f"o/r#{number % 2}")
    with working(store, pulls):
        until(lambda: idle(store))
    assert set(pulls.looks) == {"o/r#0", "o/r#1"}
    assert pulls.looks.total() <= 4
    assert not pulls.overlaps


def test_news_during_a_look_bring_another_one_after_it_and_never_beside_it(store: Store) -> None:
    pulls = Pulls()
    deliver(store, "first", "o/r#1")
    with working(store, pulls) as worker:
        until(lambda: "o/r#1" in pulls.running)
        deliver(store, "second", "o/r#1")
        worker.wake()
        until(lambda: not SqlFigures(store).read(now()).deliveries.count)
        pulls.gate.set()
        # What is due from this instant on is not due yet for who asked for the time a moment before.
        until(lambda: pulls.looks["o/r#1"] == 2 and idle(store))
    assert pulls.looks["o/r#1"] == 2
    assert not pulls.overlaps


def test_what_fails_is_tried_again_and_holds_up_nothing_else(store: Store) -> None:
    pulls = Pulls(failures=Counter({"o/r#1": 1, "hear o/r#2": 1}))
    pulls.gate.set()
    for key, target in enumerate(("o/r#1", "o/r#2", "unreadable", "o/r#3")):
        deliver(store, f"{key}", target)
    clock = StoryClock()
    with working(store, pulls, clock=clock) as worker:
        until(lambda: pulls.looks["o/r#3"] == 1 and worker.counts.failed == 1)
        assert pulls.looks["o/r#2"] == 0
        clock.pass_s(30)
        until(lambda: pulls.looks == {"o/r#1": 2, "o/r#2": 1, "o/r#3": 1})
    assert SqlFigures(store).read(now()).deliveries_refused == 1


def test_a_look_may_ask_for_another_one_later(store: Store) -> None:
    pulls = Pulls(again_s=0.5)
    pulls.gate.set()
    deliver(store, "1", "o/r#1")
    with working(store, pulls):
        until(lambda: pulls.looks["o/r#1"] == 2)
        until(lambda: idle(store))


def test_the_tick_looks_again_where_runs_are_under_way(store: Store) -> None:
    pulls = Pulls(open=("o/r#7",))
    pulls.gate.set()
    with working(store, pulls, tick_s=0.1):
        until(lambda: pulls.looks["o/r#7"] >= 3)


def test_what_no_delivery_told_of_is_found(store: Store) -> None:
    pulls = Pulls(missed=("o/r#8",))
    pulls.gate.set()
    with working(store, pulls):
        until(lambda: pulls.looks["o/r#8"] == 1)


def test_a_search_that_takes_long_holds_up_nothing(store: Store) -> None:
    pulls = Pulls()
    pulls.gate.set()
    slow = threading.Event()
    pulls.search = lambda: [str(slow.wait(HANG_S))]  # type: ignore[method-assign]
    with working(store, pulls):
        deliver(store, "1", "o/r#1")
        until(lambda: pulls.looks["o/r#1"] == 1)
        assert not slow.is_set()
        slow.set()


def test_after_a_start_runs_under_way_are_looked_at_at_once(store: Store) -> None:
    pulls = Pulls(open=("o/r#7",))
    pulls.gate.set()
    SqlWorklist(store).want(["o/r#7"], now())
    (taken,) = SqlWorklist(store).take(now(), 1)
    SqlWorklist(store).finish(taken, now(), again_at=now() + timedelta(minutes=10))
    with working(store, pulls):
        until(lambda: pulls.looks["o/r#7"] == 1)


def test_a_search_that_fails_stops_nothing(store: Store) -> None:
    pulls = Pulls(failures=Counter({"search": 1}), open=("o/r#7",))
    pulls.gate.set()
    with working(store, pulls):
        until(lambda: pulls.looks["o/r#7"] == 1)


def test_the_tick_looks_again_at_recent_pulls_of_which_nothing_was_received_for_a_while(store: Store) -> None:
    pulls = Pulls()
    pulls.gate.set()
    deliver(store, "1", "o/r#1")
    clock = StoryClock()
    with working(store, pulls, tick_s=0.1, clock=clock):
        until(lambda: pulls.looks["o/r#1"] == 1)
        clock.pass_s(16 * 60)
        until(lambda: pulls.looks["o/r#1"] == 2)
        clock.pass_s(4 * 86_400)
        time.sleep(0.5)
    assert pulls.looks["o/r#1"] == 2


def test_a_delivery_that_waits_for_github_holds_up_no_push_and_no_other_lane(store: Store) -> None:
    """100 deliveries of one lane get no answer: a push, a command of a person and another installation pass."""
    lanes = {f"o/r#{number}": "o:others" for number in range(100)}
    pulls = Pulls(lanes=lanes | {"o/r#200": "o:people", "p/r#1": "p:others"}, silent={"o:others"})
    for number in range(100):
        deliver(store, f"{number}", f"o/r#{number}")
    for target in ("o/r#200", "p/r#1", "o/r#300"):
        deliver(store, f"later {target}", target)
    with working(store, pulls):
        until(lambda: {"o/r#200", "p/r#1", "o/r#300"} <= set(pulls.processed))
        assert len(pulls.processed) == 3
        until(lambda: SqlFigures(store).read(now()).deliveries.count == 100)
        pulls.gate.set()
        until(lambda: idle(store))
    assert len(pulls.processed) == 103


def test_a_message_that_is_limited_waits_alone(store: Store) -> None:
    pulls = Pulls(silent={"o:others"}, limited_s={"reply:1:first": 40.0})
    outbox = SqlOutbox(store)
    clock = StoryClock()
    for source, person in (("first", True), ("second", True), ("stranger's", False)):
        assert outbox.put(reply_to("o/r", 1, source, "text", person=person), now())
    assert outbox.put(reply_to("p/r", 1, "other", "text", person=False), now())
    with working(store, pulls, clock=clock):
        until(lambda: {"reply:1:second", "reply:1:other"} <= set(pulls.messages))
        assert "reply:1:first" not in pulls.messages
        clock.pass_s(41)
        until(lambda: "reply:1:first" in pulls.messages)
        assert "reply:1:stranger's" not in pulls.messages
    assert Counter(pulls.messages).most_common(1)[0][1] == 1


def test_what_nobody_has_time_for_is_announced_once_and_looked_at_later(store: Store) -> None:
    pulls = Pulls()
    for number in range(6):
        deliver(store, f"{number}", f"o/r#{number}")
    with working(store, pulls):
        until(lambda: len(pulls.announced) == 4)
        assert pulls.running.isdisjoint(pulls.announced)
        pulls.gate.set()
        until(lambda: idle(store))
    assert len(pulls.looks) == 6
    assert sorted({*pulls.announced}) == sorted(pulls.announced)


def test_what_a_person_asks_about_is_looked_at_though_every_worker_is_busy(store: Store) -> None:
    pulls = Pulls(lanes={"o/r#9": "o:people"})
    for number in range(5):
        deliver(store, f"{number}", f"o/r#{number}")
    with working(store, pulls) as worker:
        until(lambda: len(pulls.running) == 2)
        deliver(store, "command", "o/r#9")
        worker.wake()
        until(lambda: "o/r#9" in pulls.running)
        assert len(pulls.running) == 3
        pulls.gate.set()
        until(lambda: idle(store))
    assert not pulls.overlaps


# argv: root, database, file of looks, seconds a look takes.
PROCESS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.store import SqlDeliveries, SqlOutbox, SqlWorklist, open_store
from verl_e2e.adapters.worker import Work, Worker
store = open_store(sys.argv[2])
def write(line):
    with open(sys.argv[3], "a") as looks:
        looks.write(f"{line} {os.getpid()}\\n")
def reconcile(target):
    write(f"begin {target}")
    time.sleep(float(sys.argv[4]))
    write(f"end {target}")
def hear(delivery):
    write(f"hear {delivery.id}")
    return [delivery.body.decode()]
rest = {"lane_of": lambda delivery: "", "write": print, "announce": lambda target: None}
work = Work(hear, reconcile, tuple, tuple, **rest)
tables = (SqlDeliveries(store), SqlWorklist(store), SqlOutbox(store))
worker = Worker(work, *tables, store, SystemClock(), lambda: False, workers=2, tick_s=60)
worker.start()
print("started", flush=True)
time.sleep(600)
"""


@contextmanager
def process(database: str, looks: Path, look_s: float) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", PROCESS, str(ROOT), database, str(looks), str(look_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
            yield child
        finally:
            child.kill()


def looks_of(file: Path) -> list[tuple[str, str, str]]:
    """What processes wrote of their looks: begin or end, the target, the process."""
    return [found for found in written(file) if found[0] != "hear"]


def written(file: Path) -> list[tuple[str, str, str]]:
    """What processes wrote of their looks and of the deliveries that they processed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], line.split()[1], line.split()[2]) for line in lines]


def ended(file: Path) -> set[str]:
    return {target for what, target, _ in looks_of(file) if what == "end"}


def cut_off(file: Path, pid: int) -> set[str]:
    """The targets that a killed process was looking at."""
    own = [(what, target) for what, target, process in looks_of(file) if process == str(pid)]
    return {target for what, target in own if what == "begin"} - {target for what, target in own if what == "end"}


def test_after_a_kill_every_delivery_is_processed_and_every_target_looked_at_to_the_end(
    database: str, store: Store, tmp_path: Path
) -> None:
    looks = tmp_path / "looks"
    for number in range(36):
        deliver(store, f"{number}", f"o/r#{number % 12}")
    with process(database, looks, look_s=0.3) as child:
        until(lambda: len(looks_of(looks)) >= 5)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    lost = cut_off(looks, child.pid)
    assert lost
    assert len(ended(looks)) < 12
    deliver(store, "while no one worked", "o/r#99")
    with process(database, looks, look_s=0.01):
        until(lambda: idle(store))
    assert ended(looks) == {*(f"o/r#{number}" for number in range(12)), "o/r#99"}


@pytest.mark.postgres
def test_one_process_works_and_another_one_takes_over_within_10_s_when_it_is_killed(
    server: str, tmp_path: Path
) -> None:
    database, looks = fresh_database(server), tmp_path / "looks"
    store = open_store(database)
    with process(database, looks, look_s=0.3) as first:
        deliver(store, "0", "o/r#0")
        until(lambda: bool(written(looks)))
        with process(database, looks, look_s=0.3) as second:
            for number in range(1, 60):
                deliver(store, f"{number}", f"o/r#{number % 20}")
            until(lambda: bool(cut_off(looks, first.pid)))
            assert {pid for _, _, pid in written(looks)} == {str(first.pid)}
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            killed = time.monotonic()
            lost = cut_off(looks, first.pid)
            deliver(store, "after the kill", "o/r#99")
            until(lambda: str(second.pid) in {pid for _, _, pid in written(looks)})
            took_s = time.monotonic() - killed
            sys.stderr.write(f"{len(lost)} looks of a killed process taken up after {took_s:.1f} s\n")
            until(lambda: idle(store))
    assert took_s < 10
    assert ended(looks) == {*(f"o/r#{number}" for number in range(20)), "o/r#99"}
    assert side_by_side(looks, but_for=str(first.pid)) == []
    store.close()


@pytest.mark.postgres
def test_no_delivery_is_processed_by_two_processes_that_both_live(server: str, tmp_path: Path) -> None:
    database, looks = fresh_database(server), tmp_path / "looks"
    store = open_store(database)
    with process(database, looks, look_s=0.05), process(database, looks, look_s=0.05):
        for number in range(100):
            deliver(store, f"{number}", f"o/r#{number % 9}")
        until(lambda: SqlFigures(store).read(now()).deliveries.count == 0)
    processed = [key for what, key, _ in written(looks) if what == "hear"]
    assert sorted(processed, key=int) == [str(number) for number in range(100)]
    store.close()


def side_by_side(file: Path, but_for: str) -> list[str]:
    """Targets at which two looks went on at once; a look of the killed process ended with its last line."""
    running: dict[str, str] = {}
    found = []
    for what, target, pid in looks_of(file):
        if what == "end":
            running.pop(target, None)
            continue
        if running.get(target, but_for) != but_for:
            found.append(target)
        running[target] = pid
    return found

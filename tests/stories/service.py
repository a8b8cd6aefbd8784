"""The service as a story runs it: the real handlers on the real adapters, looked at step by step.

Webhooks come in over HTTP at the real web application and lie in the real tables. What the queue does in the service
happens here when a test says `settle`, so that a story is the same each time. `restart` forgets what a process holds.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn

from tests.fakes.app import FakeSource
from tests.fakes.github_standin.world import APP_ID, SECRET, World
from verl_e2e.adapters.dispatch.github_actions import ActionsSettings, GitHubActionsBackend
from verl_e2e.adapters.files.reach_cache import SummaryCache
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.conversation import GithubConversation
from verl_e2e.adapters.github.people import GithubPeople
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.retry import Patience
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.ledger import SqlDeliveries, SqlLedger, SqlOutbox, SqlWorklist, Store, open_store
from verl_e2e.adapters.markdown import command_lines
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.analysis import DirectAnalysis
from verl_e2e.app.base_branch_changed import base_pushed, look_again
from verl_e2e.app.keep_message import write
from verl_e2e.app.on_event import hear
from verl_e2e.app.reconcile import due, reconcile
from verl_e2e.app.redeliver import Redelivery
from verl_e2e.app.services import AppRooms
from verl_e2e.config.callers import packaged_uses
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.model.bands import Bands
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.references import read_reference, reference_text
from verl_e2e.core.pulls.webhook_events import PushEvent
from verl_e2e.core.pulls.webhooks import parse_event
from verl_e2e.ports import Revisions
from verl_e2e.web import Door, create_app
from verl_e2e.wiring.folders import run_folders

# A story whose looks go on for longer than this never comes to rest.
_MOST_LOOKS = 200
# Events tell of runs; this is for the lost ones.
POLL_S = 600.0
# GitHub's lists are believed after so long.
LAG_S = 30.0
_RETRY = timedelta(seconds=5)
_HANDED_OVER = 64


class StoryClock:
    """The true time, moved on by hand."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        """Now, with its zone."""
        return datetime.now(UTC) + self.ahead

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.ahead += timedelta(seconds=seconds)


@dataclass
class Waits:
    """Takes the place of sleeping; the story's time goes on instead, or the process ends here."""

    clock: StoryClock
    killed: type[BaseException] | None = None
    taken: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        if self.killed is not None:
            raise self.killed
        self.taken.append(seconds)
        self.clock.pass_s(seconds)


class Service:
    """One process of the service after another, on the same folder."""

    def __init__(self, world: World, folder: Path, api_url: str = "") -> None:
        self.world = world
        self.api_url = api_url or world.url
        self.folder = folder
        self.clock = StoryClock()
        self.waits = Waits(self.clock)
        self.looks = 0
        self.failures: list[Exception] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        self.store: Store = open_store(f"sqlite:///{self.folder / 'verl-e2e.sqlite3'}")
        self.ledger = SqlLedger(self.store)
        self.deliveries = SqlDeliveries(self.store)
        self.worklist = SqlWorklist(self.store)
        self.outbox = SqlOutbox(self.store)
        patience = Patience(total_s=30.0, first_wait_s=1.0, sleep=self.waits)
        self.github: GitHub = as_app(
            APP_ID, self.world.private_key, api_url=self.api_url, patience=patience, pace=(), timeout_s=5
        )
        self.rooms = self._rooms()
        self.redelivery = Redelivery(GithubAdministration(self.github), self.clock)

    def _rooms(self) -> AppRooms:
        world, github = self.world, self.github
        mirrors = Mirrors(self.folder / "cache", world.url)
        settings = ActionsSettings(branch="main", tool_repository="octo/verl-e2e", tool_sha="0" * 40)
        return AppRooms(
            pulls=GithubPulls(github),
            conversation=GithubConversation(github),
            checks=GithubChecks(github),
            people=GithubPeople(github),
            ledger=self.ledger,
            backend=GitHubActionsBackend(GithubWorkflows(github), settings, self.clock),
            analysis=DirectAnalysis(
                mirrors.changes, packaged_uses(), SummaryCache(self.folder / "summaries"), run_folders(Bands())
            ),
            clock=self.clock,
            changes=mirrors.changes,
            verl=_no_verl,
            site=load_profile("hopper-offline", {"kit": "/opt/kit"}),
            artifacts=self.folder / "artifacts",
            read_commands=command_lines,
            poll_s=POLL_S,
            lag_s=LAG_S,
            outbox=self.outbox,
            app_id=APP_ID,
        )

    def restart(self) -> None:
        """End the process and start another on what it left."""
        self.close()
        self._open()

    def close(self) -> None:
        """End the process."""
        self.github.close()
        self.store.close()

    # What the worker does

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """What the web application does with deliveries; the process may be another by then."""
        return self.deliveries.keep(received)

    def settle(self) -> None:
        """Hear and look until nothing is due now."""
        self.world.deliveries.wait()
        for _ in range(_MOST_LOOKS):
            if not (self.hear() or self.look() or self.mail()):
                return
            self.world.deliveries.wait()
        raise AssertionError("the service never comes to rest")

    def hear(self) -> bool:
        """Hear what was delivered; whether there was anything."""
        batch = self.deliveries.waiting(self.clock.now(), _HANDED_OVER)
        for one in batch:
            try:
                event = parse_event(one.event, one.body)
                if isinstance(event, PushEvent) and event.number is None:
                    base_pushed(event, self.rooms, self.worklist)
                found = () if event is None else hear(event, self.rooms, one.id)
                self.deliveries.heard([(one.id, [reference_text(each) for each in found])], self.clock.now())
            except Exception as error:
                self.failures.append(error)
                self.deliveries.failed(one.id, str(error), self.clock.now() + _RETRY)
        return bool(batch)

    def look(self) -> bool:
        """Look at every target that is due; whether there was one."""
        targets = self.worklist.wanted(self.clock.now(), _HANDED_OVER)
        for target in targets:
            self.look_at(target)
        return bool(targets)

    def mail(self) -> bool:
        """Write the messages that are due; whether there was one."""
        letters = self.outbox.due(self.clock.now(), _HANDED_OVER)
        for letter in letters:
            try:
                write(letter.message, self.rooms)
                self.outbox.written(letter.number)
            except Exception as error:
                self.failures.append(error)
                wait_s = getattr(error, "wait_s", 0.0) or _RETRY.total_seconds()
                self.outbox.failed(letter.number, str(error), self.clock.now() + timedelta(seconds=wait_s))
        return bool(letters)

    def look_at(self, target: str) -> None:
        """One look at one target."""
        self.looks += 1
        asked = self.worklist.asked(target)
        try:
            again_s = reconcile(read_reference(target), self.rooms)
        except Exception as error:
            self.failures.append(error)
            wait = timedelta(seconds=getattr(error, "wait_s", 0.0)) or _RETRY
            self.worklist.postpone(target, str(error), self.clock.now() + wait)
        else:
            again_at = None if again_s is None else self.clock.now() + timedelta(seconds=again_s)
            self.worklist.finish(target, asked, self.clock.now(), again_at)

    def tick(self) -> None:
        """What the clock asks for: every open pull request, and whatever has a run under way."""
        wanted = [reference_text(one) for one in due(self.world.full_name, self.rooms)]
        self.worklist.want(wanted, self.clock.now())
        self.redelivery.ask_again()
        self.settle()

    def search(self) -> None:
        """What the service looks for now and then: what no delivery told of."""
        look_again(self.rooms.pulls.open_pulls(self.world.full_name), self.rooms, self.worklist)
        self.settle()

    def go_on(self, seconds: float = 31.0) -> None:
        """Let time go by, and do what is due then."""
        self.clock.pass_s(seconds)
        self.settle()


def _no_verl(_: str) -> Revisions:
    return FakeSource({})


@contextmanager
def running(world: World, folder: Path, api_url: str = "") -> Iterator[Service]:
    """A service whose web application takes the world's webhooks; `api_url` where not the world's own."""
    service = Service(world, folder, api_url)
    door = Door(SECRET, service.keep, lambda: None, dict, service.clock.now)
    config = uvicorn.Config(create_app(door), host="127.0.0.1", port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    world.deliveries.url = f"http://127.0.0.1:{port}/webhook"
    try:
        yield service
    finally:
        world.deliveries.url = ""
        server.should_exit = True
        thread.join(5)
        service.close()

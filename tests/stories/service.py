"""The service as a story runs it: production's own wiring and worker, stepped by the test on a clock of the story.

Webhooks come in over HTTP at the real web application and lie in the real tables. The worker does its rounds in the
test's thread when a test says `settle`, so that a story is the same each time. `restart` ends the process as a kill
does, and starts another on what it left.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.routing import Route

from tests.fakes.clocks import StoryClock
from tests.fakes.github_standin.world import APP_ID, SECRET, World
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.workflows import unpack_archive
from verl_e2e.adapters.markdown import command_lines
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.adapters.store import SqlLedger
from verl_e2e.adapters.worker import Work
from verl_e2e.app.analysis import DirectAnalysis
from verl_e2e.cli.serve import page_sources
from verl_e2e.config.maps import packaged_uses
from verl_e2e.config.settings import Settings, load_settings
from verl_e2e.core.model.related import Bands
from verl_e2e.core.pulls.commands import CommandLine
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.web import Door, Probes, create_app, page_routes
from verl_e2e.wiring.app import github_work, open_service

Given = TypeVar("Given")
Result = TypeVar("Result")

# A story whose rounds go on for longer than this never comes to rest.
_MOST_ROUNDS = 400
# Events tell of runs; this is for the lost ones.
POLL_S = 600.0
# GitHub's lists are believed after so long.
LAG_S = 30.0


class InThisThread(Executor):
    """Does what it is given at once, in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """The result of a call that has ended."""
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **named))
        return future


class InThisProcess(DirectAnalysis):
    """What strangers wrote, read without a child process."""

    def unpack(self, archive: Path, into: Path, *, limit: int) -> None:
        """Unpack an archive."""
        unpack_archive(archive, into, limit=limit)

    def commands(self, body: str) -> tuple[CommandLine, ...]:
        """The command lines of a comment."""
        return command_lines(body)


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

    def __init__(self, world: World, folder: Path, api_url: str = "", tick_s: float = POLL_S) -> None:
        self.world = world
        self.tick_s = tick_s
        self.api_url = api_url or world.url
        self.folder = folder
        self.clock = StoryClock()
        self.waits = Waits(self.clock)
        self.looks = 0
        self.failures: list[Exception] = []
        # Settings of this story alone; `restart` takes them up.
        self.environ: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        made = github_work({}, connect=self._connect, make_analysis=self._make_analysis)

        def observed(*arguments: Any) -> Work:
            work = made(*arguments)
            reconcile = self._noting_failures(work.reconcile)

            def look(target: str) -> float | None:
                self.looks += 1
                return reconcile(target)

            process, write = self._noting_failures(work.process), self._noting_failures(work.write)
            return replace(work, process=process, reconcile=look, write=write)

        self._service = open_service(self._settings(), self.clock, observed, lambda *_: InThisThread())
        self._service.enter()
        self.ledger = SqlLedger(self._service.store)

    def _settings(self) -> Settings:
        return load_settings(
            {
                # Where git clones from; the API is reached as `_connect` says, which may be through a proxy.
                "GITHUB_API_URL": self.world.url,
                "GITHUB_APP_ID": str(APP_ID),
                "GITHUB_APP_PRIVATE_KEY": self.world.private_key,
                "GITHUB_WEBHOOK_SECRET": SECRET,
                "VERL_E2E_ATTESTATION": "preferred",
                "VERL_E2E_DATA": str(self.folder),
                "VERL_E2E_LIST_LAG_S": str(int(LAG_S)),
                "VERL_E2E_SITE_PROFILE": "hopper-offline",
                "VERL_E2E_SITE_VALUES": "kit=/opt/kit",
                "VERL_E2E_TICK_S": str(int(self.tick_s)),
                # The world has no such repository, so no patch of the policy's fits.
                "VERL_E2E_VERL": f"{self.world.url}/octo/verl",
                "VERL_E2E_TOOL": f"octo/verl-e2e@{'0' * 40}",
                "VERL_E2E_WORKFLOW_REF": "main",
                **self.environ,
            }
        )

    def _connect(self, settings: Settings) -> GitHub:
        patience = RetryPolicy(total_s=30.0, first_wait_s=1.0, sleep=self.waits)
        self._github = as_app(
            settings.app_id, settings.private_key, api_url=self.api_url, retry_policy=patience, limiter=(), timeout_s=5
        )
        return self._github

    def _make_analysis(self, settings: Settings, mirrors: Mirrors) -> InThisProcess:
        summaries = SummaryCache(settings.data / "summaries")
        folders = run_folders(Bands())
        return InThisProcess(mirrors.changes, packaged_uses(), summaries, folders, megatron_lm=mirrors.commits)

    def _noting_failures(self, call: Callable[[Given], Result]) -> Callable[[Given], Result]:
        def noting(given: Given) -> Result:
            try:
                return call(given)
            except Exception as error:
                self.failures.append(error)
                raise

        return noting

    def pages(self) -> Iterable[Route]:
        """The pages that people read, of this process."""
        return page_routes(page_sources(self._service.settings, self._service))

    def restart(self) -> None:
        """End the process and start another on what it left."""
        self.close()
        self._open()

    def close(self) -> None:
        """End the process as a kill does: nothing is returned."""
        self._github.close()
        self._service.store.close()

    @property
    def kept_answers_bytes(self) -> int:
        """The memory of GitHub's answers that the service keeps."""
        return self._github.known_answers.size

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """What the web application does with deliveries; the process may be another by then."""
        return self._service.keep(received)

    def round(self) -> bool:
        """One round of the worker: process, reconcile, write; whether there was anything to do."""
        return self._service.worker.round()

    def settle(self) -> None:
        """Hear and look until nothing is due now."""
        self.world.deliveries.wait()
        for _ in range(_MOST_ROUNDS):
            if not self.round():
                return
            self.world.deliveries.wait()
        raise AssertionError("the service never comes to rest")

    def tick(self) -> None:
        """Let so much time go by that the worker looks for what no delivery reported."""
        self.go_on(POLL_S)

    def go_on(self, seconds: float = 31.0) -> None:
        """Let time go by, and do what is due then."""
        self.clock.pass_s(seconds)
        self.settle()


@contextmanager
def running(
    world: World, folder: Path, api_url: str = "", tick_s: float = POLL_S, *, pages: bool = False
) -> Iterator[Service]:
    """A service whose web application takes the world's webhooks; `api_url` where not the world's own."""
    service = Service(world, folder, api_url, tick_s)
    probes = Probes(lambda: "", dict, bytes)
    door = Door(SECRET, service.keep, lambda: None, service.clock.now, lambda *_: None, probes)
    application = create_app(door, service.pages() if pages else ())
    config = uvicorn.Config(application, host="127.0.0.1", port=0, log_config=None, lifespan="off")
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

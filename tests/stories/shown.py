"""A pull request on the stand-in of GitHub, with the real service, for a person with a browser.

`make run` calls it on a terminal after the story. Jobs do not run: recordings are played in their place.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.github_standin.pull_page import pull_page
from tests.fakes.github_standin.state import WorkflowRun
from tests.fakes.github_standin.world import World, living
from tests.fakes.places import ROOT
from tests.stories.furnished import POLICY, POLICY_FILE, furnish
from tests.stories.recordings import RESUME, SMOKE, job_of, left_by
from tests.stories.service import Service, running

_FAILED = ROOT / "bot/verl_e2e/demo/failed"
_RULE = "  - {name: packages, paths: [pyproject.toml], levels: [0], reason: verl installs it}\n"
_NEEDS = '[project]\nname = "model-bridge"\nversion = "0.1.0"\ndependencies = ["transformers>={}"]\n'
_LOOK_S = 0.5
# So much time goes by for the service at each look: a card waits for it before it is written again.
_FASTER_S = 15.0


@dataclass
class Shown:
    """The pull request, the service that looks after it, and how long a job takes to play, in seconds."""

    world: World
    service: Service
    number: int
    run_s: float
    # When each workflow run began to play, by its id.
    begun: dict[int, float] = field(default_factory=dict)
    fixed: str = ""

    def step(self, now_s: float) -> None:
        """Do what is due: the service's work, a job that begins or ends, and the fix after the failure."""
        self.service.go_on(_FASTER_S)
        for run in self.world.live_runs():
            if run.id not in self.begun:
                self.begun[run.id] = now_s
                self.world.start_run(run)
            elif now_s - self.begun[run.id] >= self.run_s:
                self._end(run)
        if not self.fixed and self.world.gate(self.number) == "failure" and not self.world.live_runs():
            self.fixed = self.world.push(self.number, {"pyproject.toml": _NEEDS.replace("{}", "5.12.1")}, "Fix it")
        self.service.settle()

    def _end(self, run: WorkflowRun) -> None:
        job = job_of(run)
        failing = job.bridge.commit not in (self.fixed, self.world.pull(self.number).base_sha)
        recordings = {"0-lora-ddp": _FAILED if failing else SMOKE, "1-resume": RESUME}
        left = left_by(run, recordings[job.id]) if job.id in recordings else {}
        self.world.finish_run(left, run, artifact=f"verl-e2e-{run.inputs['key']}")


@contextmanager
def showing(folder: Path, run_s: float) -> Iterator[Shown]:
    """The stand-in with its page, and the service with its own, until the block ends."""
    with living(folder / "world") as world:
        furnish(world)
        files = {
            POLICY_FILE: POLICY.replace("rules:\n", f"rules:\n{_RULE}"),
            "pyproject.toml": _NEEDS.replace("{}", "5.11"),
        }
        world.commit(files, "Name the packages")
        world.standin.web = lambda request: pull_page(world, request)
        with running(world, folder / "service", pages=True) as service:
            changed = {"pyproject.toml": _NEEDS.replace("{}", "5.12")}
            number = world.open_pull("alice", changed, "Need transformers 5.12")
            yield Shown(world, service, number, run_s)


def show(say: Callable[[str], None]) -> None:
    """Show it until the person has seen enough."""
    with tempfile.TemporaryDirectory(prefix="verl-e2e-shown-") as folder, showing(Path(folder), 10.0) as shown:
        pull = f"{shown.world.url}/{shown.world.full_name}/pull/{shown.number}"
        site = shown.world.deliveries.url.removesuffix("webhook")
        say(f"\nIn a browser:\n  {pull}\n      a pull request on a stand-in of GitHub; its jobs are recordings")
        say(f"      write a command into the page, as /verl-e2e help\n  {site}\n      the service's own pages")
        say("Ctrl-C ends it.")
        while True:
            shown.step(time.monotonic())
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        show(lambda text: print(text, flush=True))  # noqa: T201  (a program for a terminal)

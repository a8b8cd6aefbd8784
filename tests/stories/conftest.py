"""A repository with a policy, a workflow and people, and the service; all traffic held to the contract."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.openapi import Contract, all_violations, contract
from tests.fakes.github_standin.state import Comment, WorkflowRun
from tests.fakes.github_standin.world import World, living
from tests.fakes.npm import install
from tests.fakes.places import ROOT
from tests.stories.furnished import furnish
from tests.stories.recordings import job_of, left_by
from tests.stories.service import Service, running


@dataclass
class Story:
    """The two sides, and what happens most often between them."""

    world: World
    service: Service

    def open(
        self, path: str = "src/bridge.py", author: str = "alice", *, fork: bool = False, draft: bool = False
    ) -> int:
        """A pull request that changes one file; the service has done what it will."""
        number = self.world.open_pull(author, {path: "value = 2\n"}, fork=fork, draft=draft)
        self.service.settle()
        return number

    def say(self, user: str, body: str, number: int = 1) -> Comment:
        """Someone comments, and the service has done what it will."""
        made = self.world.comment(user, body, number)
        self.service.settle()
        return made

    def finish(self, recording: Path, run: WorkflowRun | None = None) -> None:
        """The run under way ends as the recording did."""
        chosen = run or self.world.live_runs()[0]
        self.world.finish_run(left_by(chosen, recording), chosen, artifact=f"verl-e2e-{chosen.inputs['key']}")
        self.service.settle()

    def live(self) -> list[tuple[str, str]]:
        """The runs under way: the job and the head that it is for."""
        return [
            (job_of(workflow_run).id, job_of(workflow_run).bridge.commit) for workflow_run in self.world.live_runs()
        ]

    def reactions(self, comment: Comment) -> set[str]:
        """How our App reacted to a comment."""
        return {reaction.content for reaction in comment.reactions.values() if reaction.user is self.world.app.bot}


@pytest.fixture(scope="session")
def described(request: pytest.FixtureRequest) -> Contract | None:
    """GitHub's description; None without an npm to install it."""
    if shutil.which("npm") is None:
        return None
    return contract(install(ROOT / "tests" / "contract", request.config.cache.mkdir("contract")).parent)


@pytest.fixture
def story(tmp_path: Path, described: Contract | None) -> Iterator[Story]:
    """A world and a service; where GitHub's description can be had, everything that was said is held to it."""
    with living(tmp_path / "world") as world:
        furnish(world)
        with running(world, tmp_path / "service") as service:
            yield Story(world, service)
        if described is not None:
            text = all_violations(described, world.standin.traffic, world.deliveries.made)
            assert "\n".join(text) == ""

"""A stand-in of GitHub with one pull request, and the adapters that reach it over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.github_standin.world import APP_ID, World, living
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import GitHub, anonymously, as_app
from verl_e2e.core.pulls.forge import PullRef

REPOSITORY = "octo/bridge"
ONE = PullRef(REPOSITORY, 1)


@dataclass
class Waits:
    """Takes the place of sleeping; remembers how long was asked for."""

    taken: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@dataclass
class GithubAdapters:
    """What a test works with."""

    world: World
    github: GitHub
    waits: Waits

    def calls(self, method: str, end: str) -> int:
        """How often a route whose template ends so was asked."""
        wanted = ((route, count) for route, count in self.world.standin.calls().items())
        return sum(count for route, count in wanted if route.startswith(f"{method} ") and route.endswith(end))


@contextmanager
def github_adapters(folder: Path, *, total_s: float = 120.0, timeout_s: int = 15) -> Iterator[GithubAdapters]:
    """A repository with one open pull request, seen by our App."""
    waits = Waits()
    patience = RetryPolicy(total_s=total_s, first_wait_s=0.25, sleep=waits)
    with living(folder) as world:
        world.commit({"README.md": b"a bridge\n"})
        world.open_pull("ada", {"src/a.py": b"a = 1\n"})
        github = as_app(APP_ID, world.private_key, api_url=world.url, retry_policy=patience, timeout_s=timeout_s)
        try:
            yield GithubAdapters(world, github, waits)
        finally:
            github.close()


@contextmanager
def anonymous(world: World) -> Iterator[GitHub]:
    """The same repository without a token."""
    github = anonymously(api_url=world.url)
    try:
        yield github
    finally:
        github.close()

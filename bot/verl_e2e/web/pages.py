"""The pages that people read: GET only, made on this side, without a session, and of public repositories alone.

What a page asks is answered by two threads of its own, so that readers take nothing from deliveries.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from verl_e2e.core.plan.policy import PolicyValue
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot
from verl_e2e.pages.site import (
    QueueNow,
    render_history,
    render_overview,
    render_policy,
    render_pull,
    render_run,
    site_file,
)
from verl_e2e.ports import RunLists

_ENDED_SHOWN = 50
_HISTORY = timedelta(weeks=8)
# Of a pull request: no database knows a greater one, and a longer text of digits Python does not read at all.
_NUMBER = re.compile(r"[0-9]{1,9}")
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
# Requests that wait for the threads; more are turned away.
_MOST_ASKED = 32
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class PageSources:
    """What the pages are made from."""

    lists: RunLists
    # What the queue decides from.
    snapshot: Callable[[], QueueSnapshot]
    pools: Collection[Pool]
    # Whether anyone may read a repository; false where that is not known.
    shown: Callable[[str], bool]
    # The policy of a repository's default branch, or why it is not known.
    policy: Callable[[str], Sequence[PolicyValue] | str]
    # The address of GitHub's own pages.
    web_url: str
    now: Callable[[], datetime]


def page_routes(sources: PageSources) -> tuple[Route, ...]:
    """The pages, the style and the script."""
    pages = _Pages(sources)
    made: dict[str, Callable[..., str | None]] = {
        "/": pages.overview,
        "/history": pages.history,
        "/run/{key}": pages.run,
        "/{owner}/{name}/pull/{number}": pages.pull,
        "/{owner}/{name}/policy": pages.policy,
    }
    threads = _Threads()
    files = {"/style.css": "text/css", "/live.js": "text/javascript"}
    return (
        *(Route(path, threads.serving(page), methods=["GET"]) for path, page in made.items()),
        *(Route(path, _file(path[1:], media), methods=["GET"]) for path, media in files.items()),
    )


class _Threads:
    """Makes pages, two at a time; turns away what would wait long."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="page")
        self._asked = 0

    def serving(self, page: Callable[..., str | None]) -> Callable[[Request], Any]:
        """The endpoint of a page: 404 where it gives None."""

        async def serve(request: Request) -> Response:
            if self._asked >= _MOST_ASKED:
                return PlainTextResponse("busy\n", status_code=503, headers={**_HEADERS, "Retry-After": "5"})
            self._asked += 1
            try:
                loop = asyncio.get_running_loop()
                text = await loop.run_in_executor(self._pool, lambda: page(**request.path_params))
            finally:
                self._asked -= 1
            if text is None:
                return PlainTextResponse("Not Found", status_code=404, headers=_HEADERS)
            return Response(text, media_type="text/html", headers=_HEADERS)

        return serve


def _file(name: str, media_type: str) -> Callable[[Request], Any]:
    async def serve(_: Request) -> Response:
        return Response(site_file(name), media_type=media_type, headers=_HEADERS)

    return serve


@dataclass(frozen=True, slots=True)
class _Pages:
    """Each page as its text, None where there is none or not everyone may read it: the two cannot be told apart."""

    sources: PageSources

    def overview(self) -> str:
        """What runs and waits, and the newest results."""
        lists, public = self.sources.lists, self._public()
        ended = lists.lines(public, over=True, limit=_ENDED_SHOWN)
        return render_overview(self._queue(), public, lists.lines(public, over=False), ended)

    def history(self) -> str:
        """What the runs of some weeks came to."""
        since, public = self.sources.now() - _HISTORY, self._public()
        lists = self.sources.lists
        return render_history(since, lists.counts(public, since), lists.overrides(public, since))

    def pull(self, owner: str, name: str, number: str) -> str | None:
        """The runs of a pull request."""
        if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name) and _NUMBER.fullmatch(number)):
            return None
        repository = f"{owner}/{name}"
        lines = self.sources.lists.lines((repository,), number=int(number))
        if not lines or not self.sources.shown(repository):
            return None
        overrides = self.sources.lists.overrides((repository,), lines[-1].created)
        of_pull = [entry for entry in overrides if entry.number == lines[0].number]
        return render_pull(self._queue(), lines, of_pull, self.sources.web_url)

    def policy(self, owner: str, name: str) -> str | None:
        """The policy in force for what is opened now."""
        repository = f"{owner}/{name}"
        if repository not in self._public():
            return None
        return render_policy(repository, self.sources.policy(repository))

    def run(self, key: str) -> str | None:
        """One run."""
        run = self.sources.lists.run(key) if _KEY.fullmatch(key) else None
        return render_run(self._queue(), run) if run is not None and self.sources.shown(run.repository) else None

    def _public(self) -> tuple[str, ...]:
        return tuple(filter(self.sources.shown, self.sources.lists.repositories()))

    def _queue(self) -> QueueNow:
        return QueueNow(self.sources.snapshot(), self.sources.pools, self.sources.now())

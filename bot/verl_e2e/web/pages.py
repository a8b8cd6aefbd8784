"""The pages that people read: GET only, made on this side, of public repositories and of those that a visitor may read.

A page whose content changes answers a request for events as well: its changing part, again whenever it differs.

What a page asks is answered by two threads of its own, so that readers take nothing from deliveries.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from verl_e2e.core.plan.policy import PolicyValue
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot
from verl_e2e.core.pulls.run_lines import Glance
from verl_e2e.pages.site import (
    LIVE,
    LOGIN,
    QueueNow,
    render_history,
    render_missing,
    render_overview,
    render_policy,
    render_pull,
    render_run,
    site_file,
)
from verl_e2e.ports import RunLists
from verl_e2e.web.login import PageLogin

_ENDED_SHOWN = 50
_HISTORY = timedelta(weeks=8)
# Of a pull request: no database knows a greater one, and a longer text of digits Python does not read at all.
_NUMBER = re.compile(r"[0-9]{1,9}")
_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
# Requests that wait for the threads; more are turned away.
_MOST_ASKED = 32
# Readers who are sent what changes: how many, how often each is looked for, and for how long before they ask again.
_MOST_STREAMS, _EVERY_S, _STREAM_S = 64, 2.0, 600.0
# A look that took long comes later again, so that all readers together leave most of the threads' time to others.
_PAUSE = 50
# Of so many runs under way the overview says how far they are.
_GLANCES = 8
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Accept, Cookie",
}
# A proxy that keeps answers back until they are whole would keep events back for ever.
_STREAM_HEADERS = {**_HEADERS, "X-Accel-Buffering": "no"}


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
    # A look at a run under way.
    glance: Callable[[Run], Glance] = lambda _: Glance()
    # Who may read more than what is public; None: no one.
    login: PageLogin | None = None


def page_routes(sources: PageSources) -> tuple[Route, ...]:
    """The pages, the style and the script."""
    made: dict[str, Callable[..., str | None]] = {
        "/": _Pages.overview,
        "/history": _Pages.history,
        "/run/{key}": _Pages.run,
        "/{owner}/{name}/pull/{number}": _Pages.pull,
        "/{owner}/{name}/policy": _Pages.policy,
    }
    threads = _Threads(sources)
    files = {"/style.css": "text/css", "/live.js": "text/javascript"}
    return (
        *(Route(path, threads.serving(page), methods=["GET"]) for path, page in made.items()),
        *(sources.login.routes() if sources.login else ()),
        *(Route(path, _file(path[1:], media), methods=["GET"]) for path, media in files.items()),
    )


class _Threads:
    """Makes pages, two at a time; turns away what would wait long."""

    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="page")
        self._asked = self._streams = 0

    def serving(self, page: Callable[..., str | None]) -> Callable[[Request], Any]:
        """The endpoint of a page: 404 where it gives None."""

        async def serve(request: Request) -> Response:
            events = request.method == "GET" and request.headers.get("accept", "").startswith("text/event-stream")
            if self._asked >= _MOST_ASKED or (events and self._streams >= _MOST_STREAMS):
                return PlainTextResponse("busy\n", status_code=503, headers={**_HEADERS, "Retry-After": "5"})
            text = await self._made(page, request)
            login = self._sources.login
            if text is None and login is None:
                return PlainTextResponse("Not Found", status_code=404, headers=_HEADERS)
            if events and text is not None and LIVE[0] in text:
                changes = self._changes(page, request, text)
                return StreamingResponse(changes, media_type="text/event-stream", headers=_STREAM_HEADERS)
            shown = (text or render_missing()).replace(LOGIN, login.link(request) if login else "", 1)
            return Response(shown, 404 if text is None else 200, _HEADERS, "text/html")

        return serve

    async def _made(self, page: Callable[..., str | None], request: Request) -> str | None:
        login, public = self._sources.login, self._sources.shown
        visitor = login.visitor(request) if login else ""

        def may_read(repository: str) -> bool:
            return public(repository) or bool(login and visitor and login.reads(visitor, repository))

        self._asked += 1
        try:
            call = partial(page, _Pages(self._sources, may_read), **request.path_params)
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        finally:
            self._asked -= 1

    async def _changes(self, page: Callable[..., str | None], request: Request, text: str | None) -> AsyncIterator[str]:
        """The changing part of a page as events, until it is gone or the reader is to ask again."""
        loop, sent, took_s = asyncio.get_running_loop(), "", 0.0
        until = loop.time() + _STREAM_S
        self._streams += 1
        try:
            while text is not None and loop.time() < until:
                part = text.partition(LIVE[0])[2].rpartition(LIVE[1])[0]
                # A comment finds out that the reader has gone.
                yield ":\n\n" if part == sent else "".join(f"data: {line}\n" for line in part.splitlines()) + "\n"
                await asyncio.sleep(max(_EVERY_S, _PAUSE * took_s))
                sent, began = part, loop.time()
                text = await self._made(page, request)
                took_s = loop.time() - began
        finally:
            self._streams -= 1


def _file(name: str, media_type: str) -> Callable[[Request], Any]:
    async def serve(_: Request) -> Response:
        return Response(site_file(name), media_type=media_type, headers=_HEADERS)

    return serve


@dataclass(frozen=True, slots=True)
class _Pages:
    """Each page as its text, None where there is none or the visitor may not read it: the two cannot be told apart."""

    sources: PageSources
    may_read: Callable[[str], bool]

    def overview(self) -> str:
        """What runs and waits, and the newest results."""
        lists, readable = self.sources.lists, self._readable()
        ended = lists.lines(readable, over=True, limit=_ENDED_SHOWN)
        running = lists.lines(readable, over=False)
        found = [lists.run(line.key) for line in running if line.state is RunState.RUNNING][:_GLANCES]
        glances = {run.key: self.sources.glance(run) for run in found if run is not None}
        return render_overview(self._queue(), readable, running, ended, glances)

    def history(self) -> str:
        """What the runs of some weeks came to."""
        since, readable = self.sources.now() - _HISTORY, self._readable()
        lists = self.sources.lists
        return render_history(since, lists.counts(readable, since), lists.overrides(readable, since))

    def pull(self, owner: str, name: str, number: str) -> str | None:
        """The runs of a pull request."""
        if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name) and _NUMBER.fullmatch(number)):
            return None
        repository = f"{owner}/{name}"
        # Asked of all repositories alike, so that no time tells which there are.
        known = repository in self._readable()
        lines = self.sources.lists.lines((repository,), number=int(number)) if known else ()
        if not lines:
            return None
        overrides = self.sources.lists.overrides((repository,), lines[-1].created)
        of_pull = [entry for entry in overrides if entry.number == lines[0].number]
        return render_pull(self._queue(), lines, of_pull, self.sources.web_url)

    def policy(self, owner: str, name: str) -> str | None:
        """The policy in force for what is opened now."""
        repository = f"{owner}/{name}"
        if repository not in self._readable():
            return None
        return render_policy(repository, self.sources.policy(repository))

    def run(self, key: str) -> str | None:
        """One run."""
        run = self.sources.lists.run(key) if _KEY.fullmatch(key) else None
        if run is None or not self.may_read(run.repository):
            return None
        return render_run(self._queue(), run, self.sources.glance(run) if run.state is RunState.RUNNING else Glance())

    def _readable(self) -> tuple[str, ...]:
        return tuple(filter(self.may_read, self.sources.lists.repositories()))

    def _queue(self) -> QueueNow:
        return QueueNow(self.sources.snapshot(), self.sources.pools, self.sources.now())

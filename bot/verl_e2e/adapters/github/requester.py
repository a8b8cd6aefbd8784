"""One request to GitHub: counted, rate limited, never redirected, and repeated only when that is safe."""

import re
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

from github.Auth import Auth
from github.GithubException import GithubException
from github.Requester import (
    HTTPRequestsConnectionClass,
    HTTPSRequestsConnectionClass,
    Requester,
    RequestsResponse,
)
from pydantic import BaseModel
from requests.exceptions import RequestException

from verl_e2e.adapters.github.answers import read
from verl_e2e.adapters.github.known_answers import KnownAnswers
from verl_e2e.adapters.github.pace import Calls, Lane, RateLimiter
from verl_e2e.adapters.github.retry import (
    RefusedError,
    RetryPolicy,
    Trouble,
    as_forge_error,
    holds_all_s,
    is_limit,
    persist,
    repeatable,
    trouble_of,
)
from verl_e2e.ports import UncertainError

M = TypeVar("M", bound=BaseModel)
USER_AGENT = "verl-e2e"
PAGE = 100
_UNAUTHORIZED = 401
# Cancelling a run and creating a check run go first.
_URGENT = re.compile(r"/actions/runs/\d+/(force-)?cancel$|/check-runs$")


class CountedConnection:
    """A PyGithub connection that counts requests and rejects redirects.

    PyGithub itself follows a redirect without the query, so it could read the content of another revision. For a
    redirected write it takes the redirect page for a success.
    """

    def __init__(
        self, inner: HTTPRequestsConnectionClass | HTTPSRequestsConnectionClass, calls: Calls, owner: str
    ) -> None:
        self._inner = inner
        self._calls, self._owner = calls, owner

    def request(self, verb: str, url: str, body: Any, headers: dict[str, str], stream: object = None) -> None:
        """Prepare the request that `getresponse` sends."""
        del stream
        self._inner.request(verb, url, body, headers)

    def getresponse(self) -> RequestsResponse:
        """Send it once."""
        self._calls.count(self._inner.verb)
        try:
            response = self._inner.getresponse()
        except RequestException:
            self._calls.unanswered(self._inner.verb)
            raise
        limited = is_limit(response.status, response.headers, response.read() if response.status == 403 else "")
        self._calls.answered(self._owner, self._inner.verb, response.status, response.headers, limited=limited)
        if 300 <= response.status < 400 and response.status != 304:
            place = response.headers.get("location", "another place")
            raise GithubException(response.status, None, dict(response.headers), f"moved to {place}")
        if response.status == 202 and self._inner.verb == "GET":
            # PyGithub would wait without an end.
            raise GithubException(503, None, dict(response.headers), "not ready yet")
        return response

    def close(self) -> None:
        """Close it."""
        self._inner.close()


class ApiRequester(Requester):
    """PyGithub's requester with our rules. Use one for each thread: PyGithub's connections cannot be shared."""

    def __init__(
        self,
        auth: Auth | None,
        api_url: str,
        *,
        calls: Calls,
        limiter: RateLimiter,
        retry_policy: RetryPolicy,
        timeout_s: int,
        lane: Lane = Lane.NORMAL,
        known: KnownAnswers | None = None,
        owner: str = "",
    ) -> None:
        super().__init__(
            auth=auth,
            base_url=api_url,
            timeout=timeout_s,
            user_agent=USER_AGENT,
            per_page=PAGE,
            verify=True,
            retry=None,
            pool_size=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
            lazy=True,
        )
        parts = urlsplit(api_url)
        kind = HTTPSRequestsConnectionClass if parts.scheme == "https" else HTTPRequestsConnectionClass
        self._connection = CountedConnection(kind(str(parts.hostname), parts.port, timeout=timeout_s), calls, owner)
        self.pace = limiter
        self._lane = lane
        self._calls = calls
        self._known = known if known is not None else KnownAnswers()
        self.retry_policy = retry_policy

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._connection.close()

    def requestJson(  # noqa: N802 - PyGithub's name
        self,
        verb: str,
        url: str,
        parameters: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        input: Any | None = None,  # noqa: A002 - PyGithub's name
        cnx: Any = None,  # noqa: ARG002
        follow_302_redirect: bool = False,
    ) -> tuple[int, dict[str, Any], str]:
        """Send one request once, over our connection; what GitHub confirms by 304 is the answer that it gave before."""
        address = self.add_parameters_to_url(url, dict(parameters or {}))
        known = self._known.find(address) if verb == "GET" else None
        asked = dict(headers or {}) | ({"If-None-Match": known.etag} if known is not None else {})
        status, answered, body = super().requestJson(
            verb,
            url,
            parameters,
            asked,
            input,
            self._connection,  # type: ignore[arg-type]
            follow_302_redirect,
        )
        if status == 304 and known is not None:
            return 200, {**answered, "link": known.link}, known.body
        if verb == "GET" and status == 200 and answered.get("etag"):
            self._known.keep(address, etag=answered["etag"], link=answered.get("link", ""), body=body)
        return status, answered, body

    def requestJsonAndCheck(  # noqa: N802 - PyGithub's name
        self,
        verb: str,
        url: str,
        parameters: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        input: Any | None = None,  # noqa: A002 - PyGithub's name
        follow_302_redirect: bool = False,
    ) -> tuple[dict[str, Any], Any]:
        """Send a request until it is answered or the retry policy gives up.

        Raises ForgeError; UncertainError when it may have succeeded and must not be repeated; RefusedError on a final
        status.
        """
        path = self.path_of(url)
        may_repeat = repeatable(verb, path, input)

        def attempt() -> tuple[dict[str, Any], Any]:
            self.pace.wait_while_held(self.retry_policy.total_s)
            if verb != "GET" and not path.endswith("/access_tokens"):
                urgent = verb == "POST" and bool(_URGENT.search(path))
                lane = Lane.URGENT if urgent else self._lane
                self.pace.wait(self.retry_policy.total_s, lane, what=_identity(verb, path, input))
            ask = super(ApiRequester, self).requestJsonAndCheck
            given = verb, path, dict(parameters or {}), dict(headers or {}), input, follow_302_redirect
            try:
                try:
                    return ask(*given)
                except GithubException as error:
                    # What GitHub says of a JWT that it refuses is a sentence of its own for each reason.
                    if error.status != _UNAUTHORIZED or not self._renew():
                        raise
                    return ask(*given)
            except GithubException as error:
                # The others stop as well: who goes on after a refusal is blocked for longer.
                self.pace.hold(holds_all_s(error))
                raise

        again = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN} if may_repeat else {Trouble.LIMITED})
        try:
            return persist(attempt, again=again, retry_policy=self.retry_policy)
        except (GithubException, RequestException, ValueError) as error:
            if trouble_of(error) is Trouble.UNCERTAIN and not may_repeat:
                raise UncertainError(
                    f"GitHub did not confirm the request, which may have succeeded: {verb} {path}"
                ) from error
            raise as_forge_error(error, f"{verb} {path}") from error

    @classmethod
    def createException(  # noqa: N802 - PyGithub's name
        cls, status: int, headers: dict[str, Any], output: Any
    ) -> GithubException:
        """The error for a status, also when what came with it is not what GitHub sends."""
        message = output.get("message") if isinstance(output, dict) else None
        return super().createException(status, headers, {"message": message if isinstance(message, str) else ""})

    def ask(self, verb: str, path: str, *, parameters: dict[str, Any] | None = None, body: Any | None = None) -> Any:
        """The JSON that answers a request.

        PyGithub's own objects are not used for it: they send further requests for keys that an answer does not have.
        """
        return self.requestJsonAndCheck(verb, path, parameters, None, body)[1]

    def entries(self, path: str, item: str = "", **parameters: Any) -> Iterator[Any]:
        """All entries of a list, page by page; `item` names the key that holds them."""
        following = {"per_page": PAGE, **parameters}
        while True:
            headers, data = self.requestJsonAndCheck("GET", path, following)
            yield from (data or {}).get(item, []) if item else data or []
            url = next_page(headers)
            if not url:
                return
            path, following = self.path_of(url), {}

    def read(self, model: type[M], path: str, *, parameters: dict[str, Any] | None = None) -> M:
        """What lies at a path, as its model; RefusedError where there is nothing."""
        return read(model, self.ask("GET", path, parameters=parameters), path)

    def find(self, model: type[M], path: str, *, parameters: dict[str, Any] | None = None) -> M | None:
        """What lies at a path, as its model; None where there is nothing, or nothing that we may see."""
        try:
            return self.read(model, path, parameters=parameters)
        except RefusedError as error:
            if error.absent:
                return None
            raise

    def read_all(self, model: type[M], path: str, item: str = "", **parameters: Any) -> list[M]:
        """All entries of a list, over all its pages, as their model; `item` names the key that holds them.

        A page of pull requests has several MB, so one is turned into models before the next is asked for.
        """
        return [read(model, entry, path) for entry in self.entries(path, item, **parameters)]

    def act(self, verb: str, path: str, body: Any | None = None) -> bool:
        """Change what may be gone by now; false when it is."""
        try:
            self.ask(verb, path, body=body)
        except RefusedError as error:
            if error.absent:
                return False
            raise
        return True

    def path_of(self, url: str) -> str:
        """An address of GitHub's API as a path below ours: whatever a list says, our token goes nowhere else."""
        if url.startswith("/"):
            return url
        parts = urlsplit(url)
        prefix = urlsplit(self.base_url).path.rstrip("/")
        path = parts.path.removeprefix(prefix) if parts.path.startswith(prefix + "/") else parts.path
        return f"{path}?{parts.query}" if parts.query else path

    def _renew(self) -> bool:
        renew = getattr(self.auth, "renew", None)
        return bool(renew and renew())


def _identity(verb: str, path: str, body: Any) -> tuple[str, ...]:
    """By what a write is known when it is attempted again later: its text may be another by then."""
    fields = body if isinstance(body, dict) else {}
    return verb, path, *(str(fields.get(name, "")) for name in ("head_sha", "name", "inputs"))


def next_page(headers: dict[str, Any]) -> str:
    """The address of a list's next page, empty at its end."""
    for link in str(headers.get("link", "")).split(","):
        url, _, kind = link.partition(";")
        if 'rel="next"' in kind:
            return url.strip().strip("<>")
    return ""

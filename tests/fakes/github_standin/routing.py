"""Requests, answers and routes of the stand-in's REST API, and who may call what."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.fakes.github_standin.shapes import Json, Shapes
from tests.fakes.github_standin.state import App, Issue, PullRequest, Repository, State, Token, User

_DOCS = "https://docs.github.com/rest"
_LARGEST_PAGE = 100


class ApiError(Exception):
    """An answer that says no."""

    def __init__(self, status: int, message: str, field_name: str = "", code: str = "invalid") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field_name = field_name
        self.code = code

    def reply(self) -> "Reply":
        """The error as GitHub words it."""
        body: Json = {"message": self.message, "documentation_url": _DOCS, "status": str(self.status)}
        if self.field_name:
            one = {"resource": "Request", "field": self.field_name, "code": self.code, "message": self.message}
            body["errors"] = [one]
        return Reply(self.status, body)


NOT_FOUND = ApiError(404, "Not Found")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: no one, an App by its JWT (`as_app`), or the bearer of a token."""

    user: User | None = None
    app: App | None = None
    as_app: bool = False
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request, with the variables of its path."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller = Caller()
    variables: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Json:
        """The body, which must be a JSON object."""
        if not self.body:
            return {}
        try:
            found = json.loads(self.body)
        except ValueError:
            raise ApiError(400, "Problems parsing JSON") from None
        if not isinstance(found, dict):
            raise ApiError(422, "Invalid request.\n\nFor 'links/0/schema', the body is not an object.")
        return found

    def page(self) -> tuple[int, int]:
        """The page asked for and its size."""
        size = min(max(int(self.query.get("per_page", "30") or 30), 1), _LARGEST_PAGE)
        return max(int(self.query.get("page", "1") or 1), 1), size


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `body` is a JSON value, bytes, or None for none at all."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Hooks(Protocol):
    """What sends webhooks, as far as the API needs it."""

    def emit(self, event: str, action: str | None, repository: Repository | None, payload: Json) -> None:
        """Tell every App whose permissions and events ask for it."""
        ...

    def listed(self, query: Mapping[str, str]) -> list[Json]:
        """The App's deliveries, newest first."""
        ...

    def detail(self, delivery: int) -> Json | None:
        """One delivery with its request and answer."""
        ...

    def redeliver(self, delivery: int) -> bool:
        """Send one again under the same name."""
        ...


@dataclass(frozen=True, slots=True)
class Api:
    """What every endpoint works on."""

    state: State
    shapes: Shapes
    hooks: Hooks

    def repository(self, request: Request) -> Repository:
        """The repository of the path, 404 when the caller cannot see it."""
        full_name = f"{request.variables['owner']}/{request.variables['repo']}"
        found = self.state.repository(full_name)
        token = request.caller.token
        hidden = found is not None and found.private and not _sees_private(found, request.caller.user)
        outside = token is not None and token.repositories is not None and full_name.lower() not in token.repositories
        if found is None or hidden or (outside and found.private):
            raise NOT_FOUND
        if outside and request.method != "GET":
            raise ApiError(403, "Resource not accessible by integration")
        return found

    def pull(self, request: Request) -> PullRequest:
        """The pull request of the path."""
        found = self.repository(request).pulls.get(_number(request.variables["number"]))
        if found is None:
            raise NOT_FOUND
        return found

    def conversation(self, request: Request) -> PullRequest | Issue:
        """The pull request or issue of the path."""
        issue = self.repository(request).issues.get(_number(request.variables["number"]))
        return issue or self.pull(request)

    def paged(self, request: Request, rows: Sequence[object]) -> Reply:
        """One page of rows, with links to the others."""
        page, size = request.page()
        shown = list(rows[(page - 1) * size : page * size])
        return Reply(200, shown, self._links(request, page, max(1, -(-len(rows) // size)), size))

    def paged_in(self, request: Request, name: str, rows: Sequence[object]) -> Reply:
        """One page of rows in an object with their count."""
        reply = self.paged(request, rows)
        return Reply(200, {"total_count": len(rows), name: reply.body}, reply.headers)

    def _links(self, request: Request, page: int, last: int, size: int) -> Mapping[str, str]:
        wanted = [("prev", page - 1, page > 1), ("next", page + 1, page < last)]
        wanted += [("first", 1, page > 1), ("last", last, page < last)]
        rest = "&".join(f"{key}={value}" for key, value in request.query.items() if key not in ("page", "per_page"))
        url = f"{self.shapes.base}{request.path}?{rest}{'&' if rest else ''}per_page={size}&page="
        links = ", ".join(f'<{url}{number}>; rel="{rel}"' for rel, number, there in wanted if there)
        return {"Link": links} if links else {}


def _sees_private(repository: Repository, user: User | None) -> bool:
    if user is None or user.kind != "User":
        return user is not None
    return user is repository.owner or user.login in repository.roles


def _number(text: str) -> int:
    if not text.isdigit():
        raise NOT_FOUND
    return int(text)


def number_in(request: Request, name: str) -> int:
    """A number of the path, 404 when it is none."""
    return _number(request.variables[name])


Endpoint = Callable[[Api, Request], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint. `needs` is a permission and how much of it; `app_only` is for an App's own JWT."""

    method: str
    template: str
    endpoint: Endpoint
    needs: tuple[str, str] = ("metadata", "read")
    app_only: bool = False
    no_anonymous: bool = False

    def match(self, method: str, path: str) -> Mapping[str, str] | None:
        """The variables of the path, None when it is another route's."""
        if method != self.method:
            return None
        found = _pattern(self.template).fullmatch(path)
        return None if found is None else found.groupdict()


_PATTERNS: dict[str, re.Pattern[str]] = {}


def _pattern(template: str) -> re.Pattern[str]:
    if template not in _PATTERNS:
        greedy = re.sub(r"\{(\w+)\*\}", r"(?P<\1>.*)", template)
        _PATTERNS[template] = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", greedy))
    return _PATTERNS[template]


_ENOUGH = {"read": ("read", "write", "admin"), "write": ("write", "admin"), "admin": ("admin",)}
_ROLES_THAT_WRITE = ("admin", "maintain", "write")
_OPEN_TO_ALL = ("issues", "own issues", "metadata")


def check_access(api: Api, route: Route, request: Request) -> None:
    """ApiError where the caller may not."""
    caller = request.caller
    if route.app_only:
        if not caller.as_app:
            raise ApiError(401, "A JSON web token could not be decoded")
    elif caller.as_app:
        raise ApiError(403, "Resource not accessible by integration")
    elif caller.user is None:
        if route.needs[1] != "read" or route.no_anonymous:
            raise ApiError(401, "Requires authentication")
    elif caller.token is not None and caller.token.permissions is not None:
        _check_permission(route.needs, caller.token.permissions)
    else:
        _check_role(api, route.needs, request, caller.user)


def _check_permission(needs: tuple[str, str], granted: Mapping[str, str]) -> None:
    permission, access = needs
    # Pull requests are issues: either permission lets an App write to their conversation, but not open one.
    asked = {"issues": ("issues", "pull_requests"), "own issues": ("issues",)}.get(permission, (permission,))
    if permission != "metadata" and not any(granted.get(item, "") in _ENOUGH[access] for item in asked):
        raise ApiError(403, "Resource not accessible by integration")


def _check_role(api: Api, needs: tuple[str, str], request: Request, user: User) -> None:
    permission, access = needs
    if access == "read" or permission in _OPEN_TO_ALL or "repo" not in request.variables:
        return
    repository = api.repository(request)
    if repository.owner is not user and repository.roles.get(user.login, "") not in _ROLES_THAT_WRITE:
        raise ApiError(403, "Must have write access to the repository")

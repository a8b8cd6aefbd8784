"""The App itself: installations, tokens, deliveries; and what a branch asks for."""

import secrets
from collections.abc import Mapping
from datetime import timedelta

from tests.fakes.github_standin.routing import NOT_FOUND, Api, ApiError, Reply, Request, Route, number_in
from tests.fakes.github_standin.shapes import Json, time
from tests.fakes.github_standin.state import App, Installation, RequiredChecks

_ORDER = ("read", "write", "admin")
_LIMIT = 5_000


def _app(request: Request) -> App:
    app = request.caller.app
    if app is None:
        raise ApiError(401, "A JSON web token could not be decoded")
    return app


def get_app(api: Api, request: Request) -> Reply:
    """The App that asks."""
    count = sum(installation.app is _app(request) for installation in api.state.installations.values())
    return Reply(200, {**api.shapes.app(_app(request)), "installations_count": count})


def convert_manifest(api: Api, request: Request) -> Reply:
    """The App that someone has just made from a manifest, with its secrets: for a code that works once."""
    pem = api.state.app_codes.pop(request.variables["code"], None)
    if pem is None:
        raise NOT_FOUND
    app = next(iter(api.state.apps.values()))
    secrets_of_it = {"client_secret": "s" * 40, "webhook_secret": "w" * 40, "pem": pem}
    return Reply(201, {**api.shapes.app(app), "client_id": app.client_id, **secrets_of_it})


def list_installations(api: Api, request: Request) -> Reply:
    """Where the App is installed."""
    found = [item for item in api.state.installations.values() if item.app is _app(request)]
    return api.paged(request, [api.shapes.installation(item) for item in found])


def get_installation(api: Api, request: Request) -> Reply:
    """One installation."""
    return Reply(200, api.shapes.installation(_installation(api, request)))


def _installation(api: Api, request: Request) -> Installation:
    found = api.state.installations.get(number_in(request, "installation"))
    if found is None or found.app is not _app(request):
        raise NOT_FOUND
    return found


def get_repository_installation(api: Api, request: Request) -> Reply:
    """The App's installation that covers a repository."""
    repository = api.repository(request)
    for item in api.state.installations.values():
        if item.app is _app(request) and item.account is repository.owner:
            return Reply(200, api.shapes.installation(item))
    raise NOT_FOUND


def get_organization_installation(api: Api, request: Request) -> Reply:
    """The App's installation on an account."""
    for item in api.state.installations.values():
        if item.app is _app(request) and item.account.login.lower() == request.variables["org"].lower():
            return Reply(200, api.shapes.installation(item))
    raise NOT_FOUND


def create_token(api: Api, request: Request) -> Reply:
    """A token of an installation, as narrow as asked."""
    installation, sent = _installation(api, request), request.json()
    if installation.suspended:
        raise ApiError(403, "This installation has been suspended")
    permissions = sent.get("permissions") or dict(installation.app.permissions)
    _check_narrower(permissions, installation.app.permissions)
    repositories = _asked_repositories(api, installation, sent)
    text = f"ghs_{installation.app.id}_{secrets.token_urlsafe(220)}"
    permissions = {"metadata": "read", **permissions}
    token = api.state.add_token(text, installation.app.bot, installation.app, permissions, repositories)
    body: Json = {
        "token": text,
        "expires_at": time(token.expires),
        "permissions": permissions,
        "repository_selection": "all" if repositories is None else "selected",
    }
    if repositories is not None:
        named = [api.state.repositories[name] for name in sorted(repositories)]
        body["repositories"] = [api.shapes.repository(item) for item in named]
    return Reply(201, body)


def _check_narrower(asked: Mapping[str, str], has: Mapping[str, str]) -> None:
    for key, access in asked.items():
        if key != "metadata" and (key not in has or _ORDER.index(access) > _ORDER.index(has[key])):
            raise ApiError(422, "The permissions requested are not granted to this installation.", "permissions")


def _asked_repositories(api: Api, installation: Installation, sent: Json) -> frozenset[str] | None:
    names, ids = sent.get("repositories"), sent.get("repository_ids")
    if names is None and ids is None:
        return None
    owned = [repository for repository in api.state.repositories.values() if repository.owner is installation.account]
    chosen = {
        repository.full_name.lower()
        for repository in owned
        if repository.name in (names or ()) or repository.id in (ids or ())
    }
    if len(chosen) < len(names or ()) or len(chosen) < len(ids or ()):
        raise ApiError(422, "There is at least one repository that is not accessible.", "repositories")
    return frozenset(chosen)


def list_token_repositories(api: Api, request: Request) -> Reply:
    """The repositories that the token reaches."""
    token = request.caller.token
    app = request.caller.app
    if token is None or app is None:
        raise ApiError(403, "You must authenticate with an installation access token")
    accounts = [installation.account for installation in api.state.installations.values() if installation.app is app]
    found = [
        repository
        for name, repository in sorted(api.state.repositories.items())
        if repository.owner in accounts and (token.repositories is None or name in token.repositories)
    ]
    reply = api.paged_in(request, "repositories", [api.shapes.repository(item) for item in found])
    assert isinstance(reply.body, dict)
    return Reply(200, {**reply.body, "repository_selection": "selected"}, reply.headers)


def get_rate_limit(api: Api, request: Request) -> Reply:
    """What is left of the hour; the stand-in never runs out by itself."""
    del request
    reset = int((api.state.now() + timedelta(hours=1)).timestamp())
    one = {"limit": _LIMIT, "remaining": _LIMIT - 1, "reset": reset, "used": 1}
    return Reply(200, {"resources": {"core": one, "search": one, "graphql": one}, "rate": one})


def list_deliveries(api: Api, request: Request) -> Reply:
    """The App's webhook deliveries, newest first, each page naming where the next begins."""
    _, size = request.page()
    before = int(request.query.get("cursor") or 0)
    rows = [hook for hook in api.hooks.listed(request.query) if not before or hook["id"] < before]
    more = f"{api.shapes.base}{request.path}?per_page={size}&cursor={rows[size - 1]['id']}" if len(rows) > size else ""
    return Reply(200, rows[:size], {"Link": f'<{more}>; rel="next"'} if more else {})


def get_delivery(api: Api, request: Request) -> Reply:
    """One delivery with what was sent and answered."""
    found = api.hooks.detail(number_in(request, "delivery"))
    if found is None:
        raise NOT_FOUND
    return Reply(200, found)


def redeliver(api: Api, request: Request) -> Reply:
    """Send a delivery again under the same name."""
    if not api.hooks.redeliver(number_in(request, "delivery")):
        raise NOT_FOUND
    return Reply(202, {})


def get_hook_config(api: Api, request: Request) -> Reply:
    """Where the App's webhooks go."""
    del api, request
    return Reply(200, {"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": "http://hook.invalid"})


def get_branch(api: Api, request: Request) -> Reply:
    """A branch with its last commit."""
    repository, name = api.repository(request), request.variables["branch"]
    commit = repository.git.find(f"refs/heads/{name}")
    if commit is None:
        raise ApiError(404, "Branch not found")
    required = repository.protections.get(name)
    url = f"{api.shapes.at(repository.full_name)}/branches/{name}"
    protection: Json = {"enabled": required is not None}
    return Reply(
        200,
        {
            "name": name,
            "commit": api.shapes.commit(repository, repository.git.facts(commit)),
            "_links": {"self": url, "html": f"{api.shapes.base}/{repository.full_name}/tree/{name}"},
            "protected": required is not None,
            "protection": protection,
            "protection_url": f"{url}/protection",
        },
    )


def get_protection(api: Api, request: Request) -> Reply:
    """A branch's classic protection."""
    repository, name = api.repository(request), request.variables["branch"]
    required = repository.protections.get(name)
    if required is None or required.as_ruleset:
        raise ApiError(404, "Branch not protected")
    url = f"{api.shapes.at(repository.full_name)}/branches/{name}/protection"
    flags = ("enforce_admins", "required_linear_history", "allow_force_pushes", "allow_deletions")
    return Reply(
        200,
        {
            "url": url,
            "required_status_checks": _status_checks(required, f"{url}/required_status_checks"),
            **{key: {"enabled": False} | ({"url": f"{url}/{key}"} if key == "enforce_admins" else {}) for key in flags},
        },
    )


def _status_checks(required: RequiredChecks, url: str) -> Json:
    checks = [{"context": context, "app_id": app} for context, app in required.checks]
    contexts = [context for context, _ in required.checks]
    more = {"url": url, "contexts_url": f"{url}/contexts", "enforcement_level": "non_admins"}
    return {"strict": False, "contexts": contexts, "checks": checks, **more}


def list_rules(api: Api, request: Request) -> Reply:
    """What the rulesets ask of a branch."""
    repository, name = api.repository(request), request.variables["branch"]
    required, source = repository.protections.get(name), repository.full_name
    rules: list[Json] = []
    origin = {"ruleset_source_type": "Repository", "ruleset_source": source, "ruleset_id": 1}
    if required is not None and required.as_ruleset:
        checks = [
            {"context": context} | ({} if app is None else {"integration_id": app}) for context, app in required.checks
        ]
        parameters: Json = {"required_status_checks": checks, "strict_required_status_checks_policy": False}
        rules.append({"type": "required_status_checks", "parameters": parameters, **origin})
    if name in repository.merge_queues:
        queue = {
            "check_response_timeout_minutes": repository.merge_queues[name],
            "grouping_strategy": "ALLGREEN",
            "max_entries_to_build": 5,
            "max_entries_to_merge": 5,
            "merge_method": "SQUASH",
            "min_entries_to_merge": 1,
            "min_entries_to_merge_wait_minutes": 5,
        }
        rules.append({"type": "merge_queue", "parameters": queue, **origin})
    return api.paged(request, rules)


_BRANCH = "/repos/{owner}/{repo}/branches/{branch}"
ROUTES = (
    Route("GET", "/app", get_app, app_only=True),
    Route("POST", "/app-manifests/{code}/conversions", convert_manifest),
    Route("GET", "/app/installations", list_installations, app_only=True),
    Route("GET", "/app/installations/{installation}", get_installation, app_only=True),
    Route("POST", "/app/installations/{installation}/access_tokens", create_token, app_only=True),
    Route("GET", "/repos/{owner}/{repo}/installation", get_repository_installation, app_only=True),
    Route("GET", "/orgs/{org}/installation", get_organization_installation, app_only=True),
    Route("GET", "/app/hook/deliveries", list_deliveries, app_only=True),
    Route("GET", "/app/hook/deliveries/{delivery}", get_delivery, app_only=True),
    Route("POST", "/app/hook/deliveries/{delivery}/attempts", redeliver, app_only=True),
    Route("GET", "/app/hook/config", get_hook_config, app_only=True),
    Route("GET", "/installation/repositories", list_token_repositories, no_anonymous=True),
    Route("GET", "/rate_limit", get_rate_limit),
    Route("GET", _BRANCH, get_branch, ("contents", "read")),
    Route("GET", f"{_BRANCH}/protection", get_protection, ("administration", "read"), no_anonymous=True),
    Route("GET", "/repos/{owner}/{repo}/rules/branches/{branch}", list_rules, ("metadata", "read")),
)

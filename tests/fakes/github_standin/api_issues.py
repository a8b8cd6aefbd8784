"""Comments, reactions, labels, and who someone is."""

from datetime import timedelta

from tests.fakes.github_standin.routing import NOT_FOUND, Api, ApiError, Reply, Request, Route, number_in
from tests.fakes.github_standin.shapes import REACTIONS, time
from tests.fakes.github_standin.state import App, Comment, Issue, Label, PullRequest, Reaction, Repository, User

LONGEST_BODY = 65_536
# A person reads before editing, and GitHub's times have whole seconds: an edit is never as old as its comment.
_READING = timedelta(seconds=1)
_PERMISSION = {"maintain": "write", "triage": "read"}
_ROLES = ("admin", "maintain", "write", "triage", "read")


def _shape(api: Api, found: PullRequest | Issue) -> dict[str, object]:
    return api.shapes.issue(found) if isinstance(found, Issue) else api.shapes.pull_as_issue(found)


def get_issue(api: Api, request: Request) -> Reply:
    """An issue, or a pull request as one."""
    return Reply(200, _shape(api, api.conversation(request)))


def list_issues(api: Api, request: Request) -> Reply:
    """The issues and pull requests of a repository in one state, newest first."""
    repository, state = api.repository(request), request.query.get("state", "open")
    both: dict[int, PullRequest | Issue] = {**repository.pulls, **repository.issues}
    found = [both[number] for number in sorted(both, reverse=True) if state in ("all", both[number].state)]
    return api.paged(request, [_shape(api, item) for item in found if api.state.listed(item.id)])


def create_issue(api: Api, request: Request) -> Reply:
    """Open an issue; labels that are not there are made."""
    repository, user, sent, now = api.repository(request), _caller(request), request.json(), api.state.now()
    if not isinstance(sent.get("title"), str) or not sent["title"]:
        raise ApiError(422, "Validation Failed", "title", "missing_field")
    names = [str(name) for name in sent.get("labels", [])]
    labels = [repository.labels.setdefault(name, Label(api.state.new_id(), name)) for name in names]
    number, app = repository.next_number(), request.caller.app
    values = (api.state.new_id(), repository.full_name, number, sent["title"], _body(request), user, app, now, now)
    repository.issues[number] = Issue(*values, labels)
    return Reply(201, api.shapes.issue(repository.issues[number]))


def edit_issue(api: Api, request: Request) -> Reply:
    """Close an issue, or open it again."""
    issue, state = api.conversation(request), request.json().get("state")
    if not isinstance(issue, Issue) or state not in ("open", "closed"):
        raise ApiError(422, "Validation Failed", "state")
    issue.state, issue.state_reason = state, request.json().get("state_reason")
    issue.closed = api.state.now() if state == "closed" else None
    return Reply(200, api.shapes.issue(issue))


def list_comments(api: Api, request: Request) -> Reply:
    """The comments of a pull request or issue, oldest first."""
    pull, since = api.conversation(request), request.query.get("since", "")
    there = [item for item in api.state.comments_of(pull.repository, pull.number) if api.state.listed(item.id)]
    found = [item for item in there if time(item.updated) >= since]
    return api.paged(request, [api.shapes.comment(item) for item in found])


def create_comment(api: Api, request: Request) -> Reply:
    """Write a comment."""
    pull, body = api.conversation(request), _body(request)
    user = _caller(request)
    return Reply(201, api.shapes.comment(write_comment(api, pull, user, request.caller.app, body)))


def write_comment(api: Api, pull: PullRequest | Issue, user: User, app: App | None, body: str) -> Comment:
    """Add a comment and tell of it."""
    now = api.state.now()
    made = Comment(api.state.new_id(), pull.repository, pull.number, user, app, body, now, now)
    api.state.comments[made.id] = made
    tell_of_comment(api, "created", made, user)
    return made


def tell_of_comment(api: Api, action: str, comment: Comment, sender: User, before: str | None = None) -> None:
    """Send `issue_comment`."""
    repository = api.state.repositories[comment.repository.lower()]
    about = repository.issues.get(comment.number) or repository.pulls[comment.number]
    issue = _shape(api, about)
    changes = {} if before is None else {"changes": {"body": {"from": before}}}
    payload = {"issue": issue, "comment": api.shapes.comment(comment), "sender": api.shapes.user(sender), **changes}
    api.hooks.emit("issue_comment", action, repository, payload)


def edit_comment_text(api: Api, comment: Comment, body: str, sender: User) -> None:
    """Replace a comment's text and tell of it."""
    before, comment.body = comment.body, body
    comment.edits += 1
    comment.updated = max(api.state.now(), comment.created + _READING)
    tell_of_comment(api, "edited", comment, sender, before)


def _body(request: Request) -> str:
    body = request.json().get("body")
    if not isinstance(body, str) or not body.strip():
        raise ApiError(422, "Validation Failed: body can't be blank", "body", "missing_field")
    if len(body) > LONGEST_BODY:
        raise ApiError(422, f"Validation Failed: body is too long (maximum is {LONGEST_BODY} characters)", "body")
    return body


def _caller(request: Request) -> User:
    user = request.caller.user
    if user is None:
        raise ApiError(401, "Requires authentication")
    return user


def _comment(api: Api, request: Request) -> Comment:
    repository = api.repository(request)
    found = api.state.comments.get(number_in(request, "comment"))
    if found is None or found.repository != repository.full_name:
        raise NOT_FOUND
    return found


def get_comment(api: Api, request: Request) -> Reply:
    """One comment."""
    return Reply(200, api.shapes.comment(_comment(api, request)))


def edit_comment(api: Api, request: Request) -> Reply:
    """Replace a comment's text: anyone's, for the person who may write; that is the trap."""
    comment, body = _comment(api, request), _body(request)
    edit_comment_text(api, comment, body, _caller(request))
    return Reply(200, api.shapes.comment(comment))


def delete_comment(api: Api, request: Request) -> Reply:
    """Remove a comment."""
    comment = _comment(api, request)
    del api.state.comments[comment.id]
    tell_of_comment(api, "deleted", comment, _caller(request))
    return Reply(204)


def list_reactions(api: Api, request: Request) -> Reply:
    """The reactions to a comment."""
    wanted = request.query.get("content", "")
    found = [item for item in _comment(api, request).reactions.values() if wanted in ("", item.content)]
    return api.paged(request, [api.shapes.reaction(item) for item in found])


def create_reaction(api: Api, request: Request) -> Reply:
    """React; the same reaction of the same person is not made twice."""
    comment, content, user = _comment(api, request), request.json().get("content"), _caller(request)
    if content not in REACTIONS:
        raise ApiError(422, "Validation Failed", "content")
    key = (user.login, str(content))
    if key in comment.reactions:
        return Reply(200, api.shapes.reaction(comment.reactions[key]))
    comment.reactions[key] = Reaction(api.state.new_id(), user, str(content), api.state.now())
    return Reply(201, api.shapes.reaction(comment.reactions[key]))


def list_labels(api: Api, request: Request) -> Reply:
    """The labels of a pull request."""
    repository, pull = api.repository(request), api.pull(request)
    return api.paged(request, [api.shapes.label(repository, label) for label in pull.labels])


def add_labels(api: Api, request: Request) -> Reply:
    """Put labels on a pull request."""
    repository, pull, sender = api.repository(request), api.pull(request), _caller(request)
    for name in request.json().get("labels", []):
        put_label(api, repository, pull, str(name), sender)
    return Reply(200, [api.shapes.label(repository, label) for label in pull.labels])


def remove_label(api: Api, request: Request) -> Reply:
    """Take a label off a pull request."""
    repository, pull, name = api.repository(request), api.pull(request), request.variables["name"]
    found = next((label for label in pull.labels if label.name == name), None)
    if found is None:
        raise ApiError(404, "Label does not exist")
    pull.labels.remove(found)
    tell_of_label(api, repository, pull, "unlabeled", found, _caller(request))
    return Reply(200, [api.shapes.label(repository, label) for label in pull.labels])


def put_label(api: Api, repository: Repository, pull: PullRequest, name: str, sender: User) -> None:
    """Label a pull request, once, and tell of it."""
    label = repository.labels.setdefault(name, Label(api.state.new_id(), name))
    if label not in pull.labels:
        pull.labels.append(label)
        pull.updated = api.state.now()
        tell_of_label(api, repository, pull, "labeled", label, sender)


def tell_of_label(api: Api, repository: Repository, pull: PullRequest, action: str, label: Label, sender: User) -> None:
    """Send `pull_request.labeled` or `unlabeled`."""
    shapes = api.shapes
    payload = {"number": pull.number, "pull_request": shapes.whole_pull(pull), "sender": shapes.user(sender)}
    api.hooks.emit("pull_request", action, repository, {**payload, "label": shapes.label(repository, label)})


def get_permission(api: Api, request: Request) -> Reply:
    """Someone's role, both as the old four words and by its name."""
    repository, login = api.repository(request), request.variables["user"]
    known = api.state.users.get(login)
    if known is None:
        raise ApiError(404, f"{login} is not a user")
    role = repository.roles.get(login) or ("admin" if repository.owner is known else "")
    role = role or ("none" if repository.private else "read")
    legacy = _PERMISSION.get(role, role if role in (*_ROLES, "none") else "write")
    grants = {"pull": "read", "triage": "triage", "push": "write", "maintain": "maintain", "admin": "admin"}
    order = [*reversed(_ROLES)]
    rank = order.index(role) if role in order else (order.index("write") if role != "none" else -1)
    permissions = {key: order.index(needed) <= rank for key, needed in grants.items()}
    user = {**api.shapes.user(known), "permissions": permissions, "role_name": role}
    return Reply(200, {"permission": legacy, "role_name": role, "user": user})


def get_membership(api: Api, request: Request) -> Reply:
    """Someone's place in a team."""
    team = f"{request.variables['org']}/{request.variables['team']}"
    state = api.state.teams.get(team, {}).get(request.variables["user"])
    if state is None:
        raise NOT_FOUND
    url = f"{api.shapes.base}{request.path}"
    return Reply(200, {"url": url, "role": "member", "state": state})


def get_user(api: Api, request: Request) -> Reply:
    """Someone by login."""
    user = api.state.users.get(request.variables["user"])
    if user is None:
        raise NOT_FOUND
    return Reply(200, _public_user(api, user))


def _public_user(api: Api, user: User) -> dict[str, object]:
    texts = ("name", "company", "location", "email", "hireable", "bio")
    counts = ("public_repos", "public_gists", "followers", "following")
    made = "2026-01-01T00:00:00Z"
    more = {**dict.fromkeys(texts), **dict.fromkeys(counts, 0), "blog": "", "created_at": made, "updated_at": made}
    return {**api.shapes.user(user), **more, "user_view_type": "public"}


_READ, _WRITE = ("issues", "read"), ("issues", "write")
_ISSUE = "/repos/{owner}/{repo}/issues/{number}"
_OWN_READ, _OWN_WRITE = ("own issues", "read"), ("own issues", "write")
_ISSUES = "/repos/{owner}/{repo}/issues"
_COMMENT = "/repos/{owner}/{repo}/issues/comments/{comment}"
ROUTES = (
    Route("GET", _ISSUES, list_issues, _OWN_READ),
    Route("POST", _ISSUES, create_issue, _OWN_WRITE),
    Route("PATCH", _ISSUE, edit_issue, _OWN_WRITE),
    Route("GET", _ISSUE, get_issue, _READ),
    Route("GET", f"{_ISSUE}/comments", list_comments, _READ),
    Route("POST", f"{_ISSUE}/comments", create_comment, _WRITE),
    Route("GET", _COMMENT, get_comment, _READ),
    Route("PATCH", _COMMENT, edit_comment, _WRITE),
    Route("DELETE", _COMMENT, delete_comment, _WRITE),
    Route("GET", f"{_COMMENT}/reactions", list_reactions, _READ),
    Route("POST", f"{_COMMENT}/reactions", create_reaction, _WRITE),
    Route("GET", f"{_ISSUE}/labels", list_labels, _READ),
    Route("POST", f"{_ISSUE}/labels", add_labels, _WRITE),
    Route("DELETE", f"{_ISSUE}/labels/{{name}}", remove_label, _WRITE),
    Route("GET", "/repos/{owner}/{repo}/collaborators/{user}/permission", get_permission, no_anonymous=True),
    Route("GET", "/orgs/{org}/teams/{team}/memberships/{user}", get_membership, ("members", "read"), no_anonymous=True),
    Route("GET", "/users/{user}", get_user),
)

"""Repositories, pull requests, contents and git objects."""

import base64
from urllib.parse import quote

from tests.fakes.github_standin.routing import NOT_FOUND, Api, ApiError, Reply, Request, Route
from tests.fakes.github_standin.shapes import Json
from tests.fakes.github_standin.state import Repository

_LISTED_FILES = 3_000
_COMPARED_FILES = 300
_LARGEST_CONTENT = 1_000_000


def get_repository(api: Api, request: Request) -> Reply:
    """One repository."""
    return Reply(200, api.shapes.repository(api.repository(request)))


def list_pulls(api: Api, request: Request) -> Reply:
    """Pull requests, newest first unless asked otherwise."""
    wanted, base, head = (request.query.get(key, "") for key in ("state", "base", "head"))
    found = [
        pull
        for pull in api.repository(request).pulls.values()
        if (wanted or "open") in ("all", pull.state)
        and base in ("", pull.base_branch)
        and head in ("", f"{(pull.head_repository or '').partition('/')[0]}:{pull.head_branch}")
    ]
    by_update = request.query.get("sort") == "updated"
    downward = request.query.get("direction", "desc") == "desc"
    found.sort(key=lambda pull: (pull.updated if by_update else pull.created, pull.number), reverse=downward)
    return api.paged(request, [api.shapes.pull(pull) for pull in found])


def get_pull(api: Api, request: Request) -> Reply:
    """One pull request."""
    return Reply(200, api.shapes.whole_pull(api.pull(request)))


def list_files(api: Api, request: Request) -> Reply:
    """The changed files, 3,000 of them at most."""
    pull = api.pull(request)
    git = api.repository(request).git
    base = git.merge_base(pull.base_sha, pull.head_sha) or pull.base_sha
    files = git.changed(base, pull.head_sha)[:_LISTED_FILES]
    page, size = request.page()
    head = pull.head_sha
    rows: list[object] = list(files)
    reply = api.paged(request, rows)
    shown = files[(page - 1) * size : page * size]
    return Reply(200, [api.shapes.file(pull.repository, head, file) for file in shown], reply.headers)


def list_pull_commits(api: Api, request: Request) -> Reply:
    """The commits of a pull request, oldest first, 250 at most."""
    pull, repository = api.pull(request), api.repository(request)
    base = repository.git.merge_base(pull.base_sha, pull.head_sha) or pull.base_sha
    commits = repository.git.between(base, pull.head_sha)[:250]
    return api.paged(request, [api.shapes.commit(repository, repository.git.facts(item)) for item in commits])


def get_contents(api: Api, request: Request) -> Reply:
    """A file, or the entries of a folder, at a ref."""
    repository, path = api.repository(request), request.variables["path"].strip("/")
    ref = _commit_of(repository, request.query.get("ref") or "main")
    found = repository.git.entry(ref, path) if path else ("tree", ref)
    if found is None:
        raise NOT_FOUND
    kind, name = found
    if kind == "tree":
        entries = repository.git.tree(name, recursive=False)
        return Reply(200, [_entry(api, repository, ref, path, entry) for entry in entries])
    if kind == "commit":
        raise ApiError(422, "The requested path is a submodule")
    content = repository.git.blob(name) or b""
    if "raw" in request.headers.get("accept", ""):
        return Reply(200, content, {"Content-Type": "application/vnd.github.raw; charset=utf-8"})
    large = len(content) > _LARGEST_CONTENT
    encoded = "" if large else base64.encodebytes(content).decode("ascii")
    more = {"content": encoded, "encoding": "none" if large else "base64"}
    return Reply(200, {**_content(api, repository, ref, path, ("file", name, len(content))), **more})


def _entry(api: Api, repository: Repository, ref: str, folder: str, entry: tuple[str, str, str, str]) -> Json:
    _, kind, name, path = entry
    word = {"tree": "dir", "commit": "submodule"}.get(kind, "file")
    size = len(repository.git.blob(name) or b"") if word == "file" else 0
    return _content(api, repository, ref, f"{folder}/{path}".strip("/"), (word, name, size))


def _content(api: Api, repository: Repository, ref: str, path: str, what: tuple[str, str, int]) -> Json:
    kind, name, size = what
    quoted = quote(path)
    url = f"{api.shapes.at(repository.full_name)}/contents/{quoted}?ref={ref}"
    git = f"{api.shapes.at(repository.full_name)}/git/blobs/{name}"
    html = f"{api.shapes.base}/{repository.full_name}/blob/{ref}/{quoted}"
    return {
        "type": kind,
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": name,
        "size": size,
        "url": url,
        "git_url": git,
        "html_url": html,
        "download_url": f"{api.shapes.base}/{repository.full_name}/raw/{ref}/{quoted}",
        "_links": {"self": url, "git": git, "html": html},
    }


def _commit_of(repository: Repository, ref: str) -> str:
    short = ref.removeprefix("refs/")
    for name in (f"refs/heads/{ref}", f"refs/{short}", ref if len(ref) == 40 else ""):
        found = repository.git.find(name) if name else None
        if found:
            return found
    raise ApiError(404, f"No commit found for the ref {ref}")


def get_blob(api: Api, request: Request) -> Reply:
    """A content by id."""
    repository, name = api.repository(request), request.variables["sha"]
    content = repository.git.blob(name)
    if content is None:
        raise NOT_FOUND
    url = f"{api.shapes.at(repository.full_name)}/git/blobs/{name}"
    encoded = base64.encodebytes(content).decode("ascii")
    shape = {"sha": name, "node_id": f"B_{name}", "size": len(content), "url": url, "encoding": "base64"}
    return Reply(200, {**shape, "content": encoded})


def get_tree(api: Api, request: Request) -> Reply:
    """A tree, with all below it where asked."""
    repository, name = api.repository(request), request.variables["sha"]
    base = f"{api.shapes.at(repository.full_name)}/git"
    try:
        rows = repository.git.tree(name, recursive=bool(request.query.get("recursive")))
    except OSError:
        raise NOT_FOUND from None
    entries = [
        {"path": path, "mode": mode, "type": kind, "sha": one}
        | ({} if kind == "commit" else {"url": f"{base}/{'trees' if kind == 'tree' else 'blobs'}/{one}"})
        for mode, kind, one, path in rows
    ]
    return Reply(200, {"sha": name, "url": f"{base}/trees/{name}", "tree": entries, "truncated": False})


def list_commits(api: Api, request: Request) -> Reply:
    """The commits up to one, newest first."""
    repository = api.repository(request)
    last = _commit_of(repository, request.query.get("sha", "main"))
    listed = repository.git.text("rev-list", last).split()
    return api.paged(request, [api.shapes.commit(repository, repository.git.facts(item)) for item in listed])


def get_commit(api: Api, request: Request) -> Reply:
    """A commit with the files that it changes."""
    repository = api.repository(request)
    sha = _commit_of(repository, request.variables["ref"])
    facts = repository.git.facts(sha)
    files = repository.git.changed(facts.parents[0], sha)[:_COMPARED_FILES] if facts.parents else ()
    counts = {"additions": sum(path.additions for path in files), "deletions": sum(path.deletions for path in files)}
    stats = {**counts, "total": sum(counts.values())}
    shown = [api.shapes.file(repository.full_name, sha, path) for path in files]
    return Reply(200, {**api.shapes.commit(repository, facts), "stats": stats, "files": shown})


def compare(api: Api, request: Request) -> Reply:
    """Two commits compared: 300 files at most, on the first page only."""
    repository = api.repository(request)
    first, _, second = request.variables["basehead"].partition("...")
    base, head = _commit_of(repository, first), _commit_of(repository, second)
    parted = repository.git.merge_base(base, head)
    if parted is None:
        raise ApiError(404, f"No common ancestor between {first} and {second}.")
    ahead, behind = repository.git.between(base, head), repository.git.between(head, base)
    status = {(False, False): "identical", (True, False): "ahead", (False, True): "behind"}
    files = repository.git.changed(parted, head)[:_COMPARED_FILES] if request.page()[0] == 1 else ()
    url = f"{api.shapes.at(repository.full_name)}/compare/{base}...{head}"
    html = f"{api.shapes.base}/{repository.full_name}/compare/{base}...{head}"
    return Reply(
        200,
        {
            "url": url,
            "html_url": html,
            "permalink_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "base_commit": api.shapes.commit(repository, repository.git.facts(base)),
            "merge_base_commit": api.shapes.commit(repository, repository.git.facts(parted)),
            "status": status.get((bool(ahead), bool(behind)), "diverged"),
            "ahead_by": len(ahead),
            "behind_by": len(behind),
            "total_commits": len(ahead),
            "commits": [api.shapes.commit(repository, repository.git.facts(item)) for item in ahead[:250]],
            "files": [api.shapes.file(repository.full_name, head, path) for path in files],
        },
    )


def get_ref(api: Api, request: Request) -> Reply:
    """A ref by its name without `refs/`."""
    repository, name = api.repository(request), request.variables["ref"]
    found = repository.git.find(f"refs/{name}")
    if found is None:
        raise NOT_FOUND
    base = f"{api.shapes.at(repository.full_name)}/git"
    target = {"type": "commit", "sha": found, "url": f"{base}/commits/{found}"}
    url = f"{base}/refs/{name}"
    return Reply(200, {"ref": f"refs/{name}", "node_id": f"REF_{found}", "url": url, "object": target})


_CONTENTS = ("contents", "read")
_PULLS = ("pull_requests", "read")
ROUTES = (
    Route("GET", "/repos/{owner}/{repo}", get_repository),
    Route("GET", "/repos/{owner}/{repo}/pulls", list_pulls, _PULLS),
    Route("GET", "/repos/{owner}/{repo}/pulls/{number}", get_pull, _PULLS),
    Route("GET", "/repos/{owner}/{repo}/pulls/{number}/files", list_files, _PULLS),
    Route("GET", "/repos/{owner}/{repo}/pulls/{number}/commits", list_pull_commits, _PULLS),
    Route("GET", "/repos/{owner}/{repo}/contents/{path*}", get_contents, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/git/blobs/{sha}", get_blob, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/git/trees/{sha}", get_tree, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/git/ref/{ref*}", get_ref, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/commits", list_commits, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/commits/{ref}", get_commit, _CONTENTS),
    Route("GET", "/repos/{owner}/{repo}/compare/{basehead*}", compare, _CONTENTS),
)

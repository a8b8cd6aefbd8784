"""People, repositories, pull requests and comments as GitHub's API writes them."""

from collections import Counter
from datetime import datetime
from typing import Any
from urllib.parse import quote

from tests.fakes.github_standin.repository import ChangedFile, CommitFacts
from tests.fakes.github_standin.state import (
    App,
    Comment,
    Installation,
    Issue,
    Label,
    PullRequest,
    Reaction,
    Repository,
    State,
    User,
)

Json = dict[str, Any]

_USER_URLS = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
_REPOSITORY_URLS = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}
REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


def time(moment: datetime) -> str:
    """A moment as GitHub writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def maybe_time(moment: datetime | None) -> str | None:
    """A moment, or null."""
    return None if moment is None else time(moment)


def node(kind: str, number: int) -> str:
    """A node id."""
    return f"{kind}_kwDO{number:012d}"


class Shapes:
    """The documents, with addresses below one base URL."""

    def __init__(self, state: State, base: str) -> None:
        self.state = state
        self.base = base
        # Where stored files lie: not behind a proxy that stands before the API.
        self.home = base

    def at(self, repository: str) -> str:
        """The API address of a repository."""
        return f"{self.base}/repos/{repository}"

    def user(self, user: User) -> Json:
        """`simple-user`."""
        url = f"{self.base}/users/{quote(user.login)}"
        return {
            "login": user.login,
            "id": user.id,
            "node_id": node("U", user.id),
            "avatar_url": f"{self.base}/avatars/{user.id}",
            "gravatar_id": "",
            "url": url,
            "html_url": f"{self.base}/{quote(user.login)}",
            **{key: url + tail for key, tail in _USER_URLS.items()},
            "type": user.kind,
            "site_admin": False,
        }

    def app(self, app: App) -> Json:
        """`integration`."""
        made = "2026-01-01T00:00:00Z"
        return {
            "id": app.id,
            "slug": app.slug,
            "client_id": app.client_id,
            "node_id": node("A", app.id),
            "owner": self.user(app.owner),
            "name": app.slug,
            "description": "",
            "external_url": f"{self.base}/apps/{app.slug}/home",
            "html_url": f"{self.base}/apps/{app.slug}",
            "created_at": made,
            "updated_at": made,
            "permissions": dict(app.permissions),
            "events": list(app.events),
        }

    def installation(self, installation: Installation) -> Json:
        """`installation`."""
        app, made = installation.app, "2026-01-01T00:00:00Z"
        return {
            "id": installation.id,
            # GitHub describes an account as someone and an enterprise at once.
            "account": {
                **self.user(installation.account),
                "name": installation.account.login,
                "slug": installation.account.login,
                "created_at": made,
                "updated_at": made,
            },
            "access_tokens_url": f"{self.base}/app/installations/{installation.id}/access_tokens",
            "repositories_url": f"{self.base}/installation/repositories",
            "html_url": f"{self.base}/settings/installations/{installation.id}",
            "app_id": app.id,
            "client_id": app.client_id,
            "app_slug": app.slug,
            "target_id": installation.account.id,
            "target_type": installation.account.kind,
            "repository_selection": "all",
            "permissions": dict(app.permissions),
            "events": list(app.events),
            "single_file_name": None,
            "has_multiple_single_files": False,
            "single_file_paths": [],
            "suspended_by": None,
            "suspended_at": None,
            "created_at": made,
            "updated_at": made,
        }

    def minimal_repository(self, repository: Repository) -> Json:
        """`minimal-repository`."""
        name, url = repository.full_name, self.at(repository.full_name)
        return {
            "id": repository.id,
            "node_id": node("R", repository.id),
            "name": repository.name,
            "full_name": name,
            "private": repository.private,
            "owner": self.user(repository.owner),
            "html_url": f"{self.base}/{name}",
            "description": None,
            "fork": repository.parent is not None,
            "url": url,
            **{key: url + tail for key, tail in _REPOSITORY_URLS.items()},
        }

    def repository(self, repository: Repository) -> Json:
        """`repository` and `full-repository` at once."""
        name = repository.full_name
        still_open = sum(pull.state == "open" for pull in repository.pulls.values())
        made = time(repository.created)
        flags = ("has_projects", "has_wiki", "has_pages", "has_discussions", "has_downloads", "archived", "disabled")
        return {
            **self.minimal_repository(repository),
            "clone_url": f"{self.base}/{name}.git",
            "git_url": f"{self.base}/{name}.git",
            "ssh_url": f"git@example.invalid:{name}.git",
            "svn_url": f"{self.base}/{name}",
            "mirror_url": None,
            "homepage": None,
            "language": "Python",
            "license": None,
            "default_branch": "main",
            "visibility": "private" if repository.private else "public",
            "topics": [],
            "size": 1,
            "has_issues": True,
            **dict.fromkeys(flags, False),
            "allow_forking": True,
            "is_template": False,
            "web_commit_signoff_required": False,
            **dict.fromkeys(("forks", "forks_count", "stargazers_count", "watchers", "watchers_count"), 0),
            **dict.fromkeys(("network_count", "subscribers_count"), 0),
            "open_issues": still_open,
            "open_issues_count": still_open,
            "created_at": made,
            "updated_at": made,
            "pushed_at": made,
        }

    def label(self, repository: Repository, label: Label) -> Json:
        """`label`."""
        return {
            "id": label.id,
            "node_id": node("LA", label.id),
            "url": f"{self.at(repository.full_name)}/labels/{quote(label.name)}",
            "name": label.name,
            "description": "",
            "color": "ededed",
            "default": False,
        }

    def pull(self, pull: PullRequest) -> Json:
        """`pull-request-simple`."""
        repository = self.state.repositories[pull.repository.lower()]
        url = f"{self.at(pull.repository)}/pulls/{pull.number}"
        issue = f"{self.at(pull.repository)}/issues/{pull.number}"
        html = f"{self.base}/{pull.repository}/pull/{pull.number}"
        statuses = f"{self.at(pull.repository)}/statuses/{pull.head_sha}"
        links = {
            "self": url,
            "html": html,
            "issue": issue,
            "comments": f"{issue}/comments",
            "review_comments": f"{url}/comments",
            "review_comment": f"{self.at(pull.repository)}/pulls/comments{{/number}}",
            "commits": f"{url}/commits",
            "statuses": statuses,
        }
        return {
            "url": url,
            "id": pull.id,
            "node_id": node("PR", pull.id),
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "issue_url": issue,
            "number": pull.number,
            "state": pull.state,
            "locked": False,
            "title": pull.title,
            "user": self.user(pull.author),
            "body": pull.body,
            "created_at": time(pull.created),
            "updated_at": time(pull.updated),
            "closed_at": maybe_time(pull.closed),
            "merged_at": maybe_time(pull.closed) if pull.merged else None,
            "merge_commit_sha": None,
            "assignee": None,
            "assignees": [],
            "requested_reviewers": [],
            "requested_teams": [],
            "labels": [self.label(repository, label) for label in pull.labels],
            "milestone": None,
            "draft": pull.draft,
            "commits_url": f"{url}/commits",
            "review_comments_url": f"{url}/comments",
            "review_comment_url": f"{self.at(pull.repository)}/pulls/comments{{/number}}",
            "comments_url": f"{issue}/comments",
            "statuses_url": statuses,
            "head": self._end(pull.head_repository, pull.head_branch, pull.head_sha, pull.author),
            "base": self._end(pull.repository, pull.base_branch, pull.base_sha, repository.owner),
            "_links": {key: {"href": href} for key, href in links.items()},
            "author_association": pull.association,
            "auto_merge": None,
            "active_lock_reason": None,
        }

    def _end(self, full_name: str | None, branch: str, sha: str, owner: User) -> Json:
        repository = self.state.repository(full_name) if full_name else None
        user = repository.owner if repository else owner
        return {
            "label": f"{user.login}:{branch}",
            "ref": branch,
            "sha": sha,
            "user": self.user(user),
            "repo": self.repository(repository) if repository else None,
        }

    def whole_pull(self, pull: PullRequest) -> Json:
        """`pull-request`: with the counts that only a single look-up gives."""
        repository = self.state.repositories[pull.repository.lower()]
        base = repository.git.merge_base(pull.base_sha, pull.head_sha) or pull.base_sha
        files = repository.git.changed(base, pull.head_sha)
        return {
            **self.pull(pull),
            "merged": pull.merged,
            "mergeable": None if pull.state == "closed" else True,
            "rebaseable": None,
            "mergeable_state": "unknown" if pull.state == "closed" else "clean",
            "merged_by": None,
            "comments": len(self.state.comments_of(pull.repository, pull.number)),
            "review_comments": 0,
            "maintainer_can_modify": False,
            "commits": len(repository.git.between(base, pull.head_sha)),
            "additions": sum(file.additions for file in files),
            "deletions": sum(file.deletions for file in files),
            "changed_files": len(files),
        }

    def pull_as_issue(self, pull: PullRequest) -> Json:
        """`issue`, as a pull request looks to the issues API and to comment events."""
        repository = self.state.repositories[pull.repository.lower()]
        shape = self.pull(pull)
        url = shape["issue_url"]
        kept = (
            "html_url",
            "number",
            "title",
            "user",
            "labels",
            "state",
            "locked",
            "assignee",
            "assignees",
            "milestone",
        )
        more = ("created_at", "updated_at", "closed_at", "author_association", "active_lock_reason", "draft", "body")
        parts = ("url", "html_url", "diff_url", "patch_url", "merged_at")
        return {
            "url": url,
            "id": pull.id + 500_000,
            "node_id": shape["node_id"],
            "repository_url": self.at(repository.full_name),
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            **{key: shape[key] for key in (*kept, *more)},
            "comments": len(self.state.comments_of(pull.repository, pull.number)),
            "pull_request": {key: shape[key] for key in parts},
            "reactions": self._reactions(url, []),
            "timeline_url": f"{url}/timeline",
            "performed_via_github_app": None,
            "state_reason": None,
        }

    def issue(self, issue: Issue) -> Json:
        """`issue` that is no pull request."""
        repository = self.state.repositories[issue.repository.lower()]
        url = f"{self.at(repository.full_name)}/issues/{issue.number}"
        return {
            "url": url,
            "id": issue.id,
            "node_id": f"I_{issue.id}",
            "repository_url": self.at(repository.full_name),
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "html_url": f"{self.base}/{repository.full_name}/issues/{issue.number}",
            "number": issue.number,
            "title": issue.title,
            "user": self.user(issue.author),
            "labels": [self.label(repository, label) for label in issue.labels],
            "state": issue.state,
            "locked": False,
            "assignee": None,
            "assignees": [],
            "milestone": None,
            "comments": len(self.state.comments_of(issue.repository, issue.number)),
            "created_at": time(issue.created),
            "updated_at": time(issue.updated),
            "closed_at": time(issue.closed) if issue.closed else None,
            "author_association": "NONE",
            "active_lock_reason": None,
            "body": issue.body,
            "reactions": self._reactions(url, []),
            "timeline_url": f"{url}/timeline",
            "performed_via_github_app": self.app(issue.app) if issue.app else None,
            "state_reason": issue.state_reason,
        }

    def file(self, repository: str, head: str, file: ChangedFile) -> Json:
        """`diff-entry`."""
        path = quote(file.path.encode("utf-8", "surrogateescape"))
        shape: Json = {
            "sha": file.blob,
            "filename": file.path,
            "status": file.status,
            "additions": file.additions,
            "deletions": file.deletions,
            "changes": file.additions + file.deletions,
            "blob_url": f"{self.base}/{repository}/blob/{head}/{path}",
            "raw_url": f"{self.base}/{repository}/raw/{head}/{path}",
            "contents_url": f"{self.at(repository)}/contents/{path}?ref={head}",
        }
        return shape | ({"previous_filename": file.previous} if file.previous else {})

    def comment(self, comment: Comment) -> Json:
        """`issue-comment`."""
        issue = f"{self.at(comment.repository)}/issues/{comment.number}"
        url = f"{self.at(comment.repository)}/issues/comments/{comment.id}"
        repository = self.state.repositories[comment.repository.lower()]
        return {
            "url": url,
            "html_url": f"{self.base}/{comment.repository}/pull/{comment.number}#issuecomment-{comment.id}",
            "issue_url": issue,
            "id": comment.id,
            "node_id": node("IC", comment.id),
            "user": self.user(comment.user),
            "created_at": time(comment.created),
            "updated_at": time(comment.updated),
            "body": comment.body,
            "author_association": association(repository, comment.user),
            "reactions": self._reactions(url, list(comment.reactions.values())),
            "performed_via_github_app": None if comment.app is None else self.app(comment.app),
        }

    def _reactions(self, url: str, reactions: list[Reaction]) -> Json:
        counted = Counter(reaction.content for reaction in reactions)
        return {
            "url": f"{url}/reactions",
            "total_count": len(reactions),
            **{content: counted[content] for content in REACTIONS},
        }

    def reaction(self, reaction: Reaction) -> Json:
        """`reaction`."""
        return {
            "id": reaction.id,
            "node_id": node("REA", reaction.id),
            "user": self.user(reaction.user),
            "content": reaction.content,
            "created_at": time(reaction.created),
        }

    def commit(self, repository: Repository, facts: CommitFacts) -> Json:
        """`commit` without files."""
        url = f"{self.at(repository.full_name)}/commits/{facts.sha}"
        git = f"{self.at(repository.full_name)}/git"
        html = f"{self.base}/{repository.full_name}/commit"
        person = {"name": "Octo", "email": "octo@example.invalid", "date": facts.date}
        return {
            "url": url,
            "sha": facts.sha,
            "node_id": f"C_{facts.sha}",
            "html_url": f"{html}/{facts.sha}",
            "comments_url": f"{url}/comments",
            "commit": {
                "url": f"{git}/commits/{facts.sha}",
                "author": person,
                "committer": person,
                "message": facts.message,
                "comment_count": 0,
                "tree": {"sha": facts.tree, "url": f"{git}/trees/{facts.tree}"},
                "verification": {
                    "verified": False,
                    "reason": "unsigned",
                    "signature": None,
                    "payload": None,
                    "verified_at": None,
                },
            },
            "author": None,
            "committer": None,
            "parents": [
                {
                    "sha": parent,
                    "url": f"{self.at(repository.full_name)}/commits/{parent}",
                    "html_url": f"{html}/{parent}",
                }
                for parent in facts.parents
            ],
        }

    def simple_commit(self, repository: Repository, sha: str) -> Json:
        """`simple-commit`."""
        facts = repository.git.facts(sha)
        person = {"name": "Octo", "email": "octo@example.invalid"}
        return {
            "id": facts.sha,
            "tree_id": facts.tree,
            "message": facts.message,
            "timestamp": facts.date,
            "author": person,
            "committer": person,
        }


def association(repository: Repository, user: User) -> str:
    """GitHub's word for who someone is to a repository."""
    if user.login == repository.owner.login:
        return "OWNER"
    role = repository.roles.get(user.login)
    if role in ("admin", "maintain", "write"):
        return "MEMBER"
    if role is not None:
        return "COLLABORATOR"
    if any(pull.author is user and pull.merged for pull in repository.pulls.values()):
        return "CONTRIBUTOR"
    return "NONE"

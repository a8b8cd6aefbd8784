"""Writing what an installation needs: files of a checkout, the branch that jobs run on, and the service's settings."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from verl_e2e.adapters.github.pulls import PublicRepository
from verl_e2e.adapters.github.requester import Answer, RetryPolicy, read
from verl_e2e.adapters.github.session import anonymously
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.forge import PUBLIC_API
from verl_e2e.core.text.escape import one_line
from verl_e2e.git.repository import GitFailedError, GitRepository
from verl_e2e.ports import ForgeError

# Holds the workflow that runs jobs and nothing else, so that a job cannot write a cache of the default branch.
JOB_BRANCH = "verl-e2e"
_ORIGIN = re.compile(r"(?P<host>[^/:]+)[/:](?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII)
_BRIDGE = "src/megatron/bridge"
_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "verl-e2e"), ("EMAIL", "verl-e2e@example.invalid"))
}
_PATIENCE_S = 10.0
_FORCE = "compare, then remove it or use --force"


@dataclass(frozen=True, slots=True)
class BridgeClone:
    """A clone of the repository to install into."""

    # The top folder of its files.
    folder: Path
    # Where it was cloned from: `https://HOST`, and `owner/name`.
    web: str
    name: str

    @classmethod
    def at(cls, folder: Path) -> "BridgeClone":
        """The clone in a folder; UserError when it is none of Megatron-Bridge, or was cloned from nowhere."""
        repository = GitRepository(folder)
        if repository.git.work_tree is None or not (folder / _BRIDGE).is_dir():
            raise UserError(
                f"{folder.absolute()} has no {_BRIDGE}; go to a clone of Megatron-Bridge, or name it: --repo DIR"
            )
        found = _ORIGIN.fullmatch(repository.origin())
        if found is None:
            fix = "run `git remote add origin https://github.com/OWNER/REPO` there"
            raise UserError(f"{folder.absolute()} has no remote `origin` on GitHub; {fix}")
        return cls(folder, f"https://{found['host']}", found["name"])

    def write_branch(self, path: str, content: str, *, force: bool) -> bool:
        """Give the clone a branch JOB_BRANCH that holds one file; False where it has it already."""
        repository = GitRepository(self.folder)
        before = repository.find(f"refs/heads/{JOB_BRANCH}") or repository.find(f"refs/remotes/origin/{JOB_BRANCH}")
        tree = self._tree(repository, path, content)
        if before is not None:
            if self._run(repository, "rev-parse", f"{before}^{{tree}}") == tree:
                return False
            if not force:
                raise UserError(f"the branch {JOB_BRANCH} exists and holds something else; {_FORCE}")
        parent = ("-p", before) if before else ()
        subject = "Hold the workflow that runs verl-e2e's jobs"
        commit = self._run(repository, "commit-tree", tree, *parent, "-m", subject)
        # Refuses a branch that is checked out: its work tree would show all files as deleted.
        made = repository.git.run("branch", "--force", "--no-track", JOB_BRANCH, commit)
        if not made.ok:
            fix = "go to another branch, or remove the one that is in its way"
            raise UserError(f"the branch {JOB_BRANCH} cannot be written ({one_line(made.stderr)}); {fix}")
        return True

    def _tree(self, repository: GitRepository, path: str, content: str) -> str:
        entry = self._run(repository, "hash-object", "-w", "--stdin", given=content)
        kind = "100644 blob"
        for name in reversed(Path(path).parts):
            entry = self._run(repository, "mktree", given=f"{kind} {entry}\t{name}\n")
            kind = "040000 tree"
        return entry

    @staticmethod
    def _run(repository: GitRepository, *arguments: str, given: str = "") -> str:
        finished = repository.git.run(*arguments, stdin=given.encode(), variables=_WHO)
        if not finished.ok:
            raise GitFailedError(finished)
        return finished.output.decode().strip()


def install_files(folder: Path, texts: Mapping[str, str], *, force: bool, private: bool = False) -> dict[str, bool]:
    """Write files below a folder, or none of them; by path whether it was written, False for one that was the same.

    UserError names every file that holds something else, unless `force`. Private ones are for this user only.
    """
    before = {path: _text_at(folder / path) for path in texts}
    if not force and (others := [path for path, text in before.items() if text not in (None, texts[path])]):
        raise UserError("\n".join(f"{folder / path} exists and holds something else; {_FORCE}" for path in others))
    changed = {path: before[path] != text for path, text in texts.items()}
    for path, text in texts.items():
        if changed[path]:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # Beside it first, so that a file with another mode is never followed and no half is left.
            beside = target.with_name(f".{target.name}.new")
            beside.unlink(missing_ok=True)
            with os.fdopen(
                os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "w"
            ) as file:
                file.write(text)
            beside.replace(target)
    return changed


def _text_at(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        return ""


def commit_of(tool: str, revision: str, api_url: str) -> str:
    """The full commit of a tag of verl-e2e's repository, as GitHub tells anyone; ForgeError."""
    if len(revision) == 40:
        return revision
    github = anonymously(api_url=api_url, retry_policy=RetryPolicy(total_s=_PATIENCE_S))
    try:
        return PublicRepository(github, tool).resolve(f"tags/{revision}")
    except ForgeError as error:
        raise ForgeError(f"the commit of {tool}@{revision} could not be read ({error})") from None
    finally:
        github.close()


class _App(Answer):
    id: int
    client_id: str
    client_secret: str
    webhook_secret: str
    pem: str
    html_url: str


def convert_manifest(code: str, api_url: str) -> tuple[dict[str, str], str]:
    """The settings of the App that GitHub made, with its secrets, and its page; the code works once. ForgeError."""
    github = anonymously(api_url=api_url, retry_policy=RetryPolicy(total_s=_PATIENCE_S))
    try:
        answer = github.app().ask("POST", f"/app-manifests/{quote(code, safe='')}/conversions")
    finally:
        github.close()
    app = read(_App, answer, "the manifest's code")
    settings = {"GITHUB_APP_ID": str(app.id), "GITHUB_WEBHOOK_SECRET": app.webhook_secret}
    settings |= {"GITHUB_APP_PRIVATE_KEY": app.pem}
    settings |= {"GITHUB_APP_CLIENT_ID": app.client_id, "GITHUB_APP_CLIENT_SECRET": app.client_secret}
    return settings | ({} if api_url == PUBLIC_API else {"GITHUB_API_URL": api_url}), app.html_url

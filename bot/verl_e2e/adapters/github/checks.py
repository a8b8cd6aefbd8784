"""Check runs: created once, found again by their external id, annotations appended once."""

from typing import Any

from pydantic import Field

from verl_e2e.adapters.github.requester import Answer, IdAnswer, once, read
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.core.pulls.forge import MAX_ANNOTATIONS, Annotation, CheckRun


class _OutputAnswer(Answer):
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations_count: int = 0


class _CheckAnswer(Answer):
    id: int
    name: str
    head_sha: str
    status: str
    conclusion: str | None = None
    details_url: str | None = None
    external_id: str | None = None
    output: _OutputAnswer = Field(default_factory=_OutputAnswer)
    app: IdAnswer | None = None


def output(check: CheckRun, annotations: tuple[Annotation, ...] = ()) -> dict[str, Any]:
    """What GitHub shows of the check run, with one batch of its annotations."""
    shown: dict[str, Any] = {"title": check.title or check.name, "summary": check.summary or check.title}
    if check.text:
        shown["text"] = check.text
    if annotations:
        shown["annotations"] = [
            {
                "path": note.path,
                "start_line": note.first_line,
                "end_line": note.last_line,
                "annotation_level": note.level,
                "message": note.message,
                **({"title": note.title} if note.title else {}),
            }
            for note in annotations
        ]
    return shown


class GithubChecks:
    """Check runs, as `verl_e2e.ports.Checks`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def check_runs(self, repository: str, head_sha: str) -> tuple[CheckRun, ...]:
        """Every check run of a commit with its author, oldest first; of several with one name and App the latest."""
        return self._list(repository, head_sha)

    def same_name(self, repository: str, head_sha: str, name: str) -> tuple[CheckRun, ...]:
        return self._list(repository, head_sha, name)

    def write_check(self, repository: str, check: CheckRun) -> int:
        """Create the check run (id 0) or update it, and give its id.

        Annotations of an update are those wanted in all: what GitHub has of them already is not sent again.
        """
        if not check.id:
            remote_id, known = self._create(repository, check)
        else:
            remote_id, known = self._update(repository, check.id, check)
        for start in range(known, len(check.annotations), MAX_ANNOTATIONS):
            batch = check.annotations[start : start + MAX_ANNOTATIONS]

            def write(batch: tuple[Any, ...] = batch) -> bool:
                self._send(repository, remote_id, {"output": output(check, batch)})
                return True

            def find(wanted: int = start + len(batch)) -> bool | None:
                return True if self._annotated(repository, remote_id) >= wanted else None

            once(write, find, retry_policy=self._github.retry_policy)
        return remote_id

    def _create(self, repository: str, check: CheckRun) -> tuple[int, int]:
        """The new check run's id, and how many annotations it has."""
        first = check.annotations[:MAX_ANNOTATIONS]

        def write() -> tuple[int, int]:
            body = {"head_sha": check.head_sha, **_fields(check), "output": output(check, first)}
            path = f"/repos/{repository}/check-runs"
            return read(IdAnswer, self._github.requester(repository).ask("POST", path, body=body), path).id, len(first)

        def find() -> tuple[int, int] | None:
            ours = (self._github.app_id, check.name, check.external_id)
            listed = self._list(repository, check.head_sha, check.name)
            found = [run.id for run in listed if (run.app_id, run.name, run.external_id) == ours]
            # One of an earlier attempt may be it as well, so it is brought to what is wanted now.
            return self._update(repository, max(found), check) if found else None

        return once(write, find, retry_policy=self._github.retry_policy)

    def _update(self, repository: str, check_id: int, check: CheckRun) -> tuple[int, int]:
        self._send(repository, check_id, {**_fields(check), "output": output(check)})
        return check_id, self._annotated(repository, check_id) if check.annotations else 0

    def _annotated(self, repository: str, check_id: int) -> int:
        path = f"/repos/{repository}/check-runs/{check_id}"
        return self._github.requester(repository).read(_CheckAnswer, path).output.annotations_count

    def _send(self, repository: str, check_id: int, body: dict[str, Any]) -> None:
        self._github.requester(repository).ask("PATCH", f"/repos/{repository}/check-runs/{check_id}", body=body)

    def _list(self, repository: str, head_sha: str, name: str = "") -> tuple[CheckRun, ...]:
        wanted: dict[str, Any] = {"check_name": name, "filter": "all"} if name else {}
        path = f"/repos/{repository}/commits/{head_sha}/check-runs"
        answers = self._github.requester(repository).read_all(_CheckAnswer, path, "check_runs", **wanted)
        return tuple(
            CheckRun(
                name=answer.name,
                head_sha=answer.head_sha,
                status=answer.status,
                conclusion=answer.conclusion or "",
                title=answer.output.title or "",
                summary=answer.output.summary or "",
                text=answer.output.text or "",
                details_url=answer.details_url or "",
                external_id=answer.external_id or "",
                id=answer.id,
                app_id=answer.app.id if answer.app else None,
            )
            for answer in sorted(answers, key=lambda answer: answer.id)
        )


def _fields(check: CheckRun) -> dict[str, Any]:
    """The fields without the output. Buttons are always sent, so that those of an earlier state disappear."""
    optional = {"details_url": check.details_url, "external_id": check.external_id, "conclusion": check.conclusion}
    known = {name: value for name, value in optional.items() if value}
    names = ("label", "description", "identifier")
    actions = [dict(zip(names, action, strict=True)) for action in check.actions]
    return {"name": check.name, "status": check.status, "actions": actions, **known}

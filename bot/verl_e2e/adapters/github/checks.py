"""Check runs: created once, found again by their external id, annotations appended once."""

from typing import Any

from verl_e2e.adapters.github.answers import CheckAnswer, IdAnswer, read
from verl_e2e.adapters.github.requester import once
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.core.pulls.forge import (
    MAX_ACTIONS,
    MAX_ANNOTATIONS,
    MAX_CHECK_TITLE,
    MAX_DESCRIPTION,
    MAX_IDENTIFIER,
    MAX_LABEL,
    Annotation,
    CheckRun,
)
from verl_e2e.ports import ForgeError

# GitHub's own figure for the summary and for the text.
_MAX_TEXT = 65_535
MAX_MESSAGE_BYTES = 65_536


def checked(check: CheckRun) -> CheckRun:
    """The check run, when it is within the limits; else ForgeError that names the limit, for GitHub only says 422."""
    problems = [*_texts(check), *_actions(check), *_annotations(check)]
    if check.conclusion and check.status != "completed":
        problems.append(f"it is {check.status} and has a conclusion")
    if check.status == "completed" and not check.conclusion:
        problems.append("it is completed and has no conclusion")
    if problems:
        raise ForgeError(f"The check run {check.name!r} is not what GitHub takes: {'; '.join(problems)}")
    return check


def output(check: CheckRun, annotations: tuple[Annotation, ...] = ()) -> dict[str, Any]:
    """What GitHub shows of the check run, with one batch of its annotations."""
    shown: dict[str, Any] = {"title": check.title or check.name, "summary": check.summary or check.title}
    if check.text:
        shown["text"] = check.text
    if annotations:
        shown["annotations"] = [_annotation(note) for note in annotations]
    return shown


def _texts(check: CheckRun) -> list[str]:
    limits = (
        ("title", check.title, MAX_CHECK_TITLE),
        ("summary", check.summary, _MAX_TEXT),
        ("text", check.text, _MAX_TEXT),
    )
    return [
        f"its {name} has {len(text):,} of {limit:,} characters" for name, text, limit in limits if len(text) > limit
    ]


def _actions(check: CheckRun) -> list[str]:
    problems = [f"it has {len(check.actions)} of {MAX_ACTIONS} buttons"] if len(check.actions) > MAX_ACTIONS else []
    for label, description, identifier in check.actions:
        limits = (
            ("label", label, MAX_LABEL),
            ("description", description, MAX_DESCRIPTION),
            ("identifier", identifier, MAX_IDENTIFIER),
        )
        problems += [
            f"the {name} {text!r} is over {limit}" for name, text, limit in limits if not 0 < len(text) <= limit
        ]
    return problems


def _annotations(check: CheckRun) -> list[str]:
    return [
        f"the annotation of {note.path} at {note.first_line} is out of range"
        for note in check.annotations
        if not 1 <= note.first_line <= note.last_line
        or note.level not in ("notice", "warning", "failure")
        or not 0 < len(note.message.encode()) <= MAX_MESSAGE_BYTES
        or len(note.title) > MAX_CHECK_TITLE
    ]


def _annotation(note: Annotation) -> dict[str, object]:
    shown: dict[str, object] = {
        "path": note.path,
        "start_line": note.first_line,
        "end_line": note.last_line,
        "annotation_level": note.level,
        "message": note.message,
    }
    return shown | ({"title": note.title} if note.title else {})


class GithubChecks:
    """Check runs, as `verl_e2e.ports.Checks`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def check_runs(self, repository: str, head_sha: str) -> tuple[CheckRun, ...]:
        """Every check run of a commit with its author, oldest first; of several with one name and App the latest."""
        return self._list(repository, head_sha)

    def same_name(self, repository: str, head_sha: str, name: str) -> tuple[CheckRun, ...]:
        """Every check run of a commit that has a name, also those that a later one hides, oldest first."""
        return self._list(repository, head_sha, name)

    def write_check(self, repository: str, check: CheckRun) -> int:
        """Create the check run (id 0) or update it, and give its id.

        Annotations of an update are those wanted in all: what GitHub has of them already is not sent again.
        """
        checked(check)
        if not check.id:
            remote_id, known = self._create(repository, check)
        else:
            remote_id, known = self._update(repository, check.id, check)
        self._annotate(repository, remote_id, check, known)
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

    def _annotate(self, repository: str, check_id: int, check: CheckRun, known: int) -> None:
        for start in range(known, len(check.annotations), MAX_ANNOTATIONS):
            batch = check.annotations[start : start + MAX_ANNOTATIONS]

            def write(batch: tuple[Any, ...] = batch) -> bool:
                self._send(repository, check_id, {"output": output(check, batch)})
                return True

            def find(wanted: int = start + len(batch)) -> bool | None:
                return True if self._annotated(repository, check_id) >= wanted else None

            once(write, find, retry_policy=self._github.retry_policy)

    def _annotated(self, repository: str, check_id: int) -> int:
        path = f"/repos/{repository}/check-runs/{check_id}"
        return self._github.requester(repository).read(CheckAnswer, path).output.annotations_count

    def _send(self, repository: str, check_id: int, body: dict[str, Any]) -> None:
        self._github.requester(repository).ask("PATCH", f"/repos/{repository}/check-runs/{check_id}", body=body)

    def _list(self, repository: str, head_sha: str, name: str = "") -> tuple[CheckRun, ...]:
        wanted: dict[str, Any] = {"check_name": name, "filter": "all"} if name else {}
        path = f"/repos/{repository}/commits/{head_sha}/check-runs"
        answers = self._github.requester(repository).read_all(CheckAnswer, path, "check_runs", **wanted)
        return tuple(sorted((_as_check(answer) for answer in answers), key=lambda check: check.id))


def _fields(check: CheckRun) -> dict[str, Any]:
    """The fields without the output. Buttons are always sent, so that those of an earlier state disappear."""
    optional = {
        "details_url": check.details_url,
        "external_id": check.external_id,
        "conclusion": check.conclusion,
    }
    known = {name: value for name, value in optional.items() if value}
    names = ("label", "description", "identifier")
    actions = [dict(zip(names, action, strict=True)) for action in check.actions]
    return {"name": check.name, "status": check.status, "actions": actions, **known}


def _as_check(answer: CheckAnswer) -> CheckRun:
    return CheckRun(
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

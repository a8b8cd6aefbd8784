"""A check run as GitHub takes it: its limits are looked at here, before anything is sent."""

from typing import Any

from verl_e2e.core.pulls.check_runs import (
    MAX_ACTIONS,
    MAX_ANNOTATIONS,
    MAX_DESCRIPTION,
    MAX_IDENTIFIER,
    MAX_LABEL,
    Annotation,
    CheckRun,
)
from verl_e2e.ports import ForgeError

# GitHub's own figure for the summary and for the text.
MAX_TEXT = 65_535
MAX_TITLE = 255
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


def actions(check: CheckRun) -> list[dict[str, str]]:
    """Its buttons."""
    return [
        {"label": label, "description": description, "identifier": identifier}
        for label, description, identifier in check.actions
    ]


def batches(annotations: tuple[Annotation, ...]) -> list[tuple[Annotation, ...]]:
    """Annotations as many at once as GitHub takes."""
    return [annotations[start : start + MAX_ANNOTATIONS] for start in range(0, len(annotations), MAX_ANNOTATIONS)]


def _texts(check: CheckRun) -> list[str]:
    limits = (("title", check.title, MAX_TITLE), ("summary", check.summary, MAX_TEXT), ("text", check.text, MAX_TEXT))
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
        or len(note.title) > MAX_TITLE
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

"""What comes from one verdict, as rows of Markdown or of plain text, for the card and for check runs."""

import re
import shlex
from collections.abc import Iterator

from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.text.escape import markdown, one_line, sentence

_MAX_LINK = 500
_MAX_COMMAND = 12_000
_COMMAND_WIDTH = 150
# A page of our documentation, which is not in the repository that is tested.
_OWN_DOCUMENT = re.compile(r"(?<![\w./`-])docs/[\w-]{1,60}\.md(#[\w-]{1,100})?(?! of verl-e2e)")
_PLAIN_LINK = re.compile(r"https?://[A-Za-z0-9:/._?=&%#~-]*")
_WORKFLOW_RUN = re.compile(r".*?/actions/runs/[0-9]+(?=[/#]|\Z)")


def verdict_sentence(text: str, limit: int = 1000) -> str:
    """A sentence of a verdict for a reader in another repository: it names our documents as documents of verl-e2e."""
    return sentence(_OWN_DOCUMENT.sub(r"`\g<0>` of verl-e2e", text), limit)


def requested_rows(verdict: Verdict) -> tuple[str, ...]:
    """What was asked for and which model was trained, as rows of Markdown."""
    named = (("Requested coverage", verdict.coverage), ("Checkpoint/config", verdict.checkpoint))
    return tuple(f"**{title}:** {markdown(value, 600)}  " for title, value in named if value)


def command_rows(verdict: Verdict) -> tuple[str, ...]:
    """The command in lines that a shell takes as one, for a fence; empty where the verdict has none."""
    if not verdict.command:
        return ()
    shown = one_line(verdict.command, _MAX_COMMAND)
    try:
        words = [shlex.quote(word) for word in shlex.split(shown)]
    except ValueError:
        return (shown,)
    if " ".join(words) != shown:
        return (shown,)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _COMMAND_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


def deliverable_rows(verdict: Verdict) -> tuple[str, ...]:
    """The deliverables as a Markdown table, empty where there are none."""
    rows = [
        f"| {markdown(row.name, 80)} | **{row.outcome}** | {verdict_sentence(row.detail, 500)} |"
        for row in verdict.deliverables
    ]
    return ("| deliverable | outcome | detail |", "|---|---|---|", *rows) if rows else ()


def key_lines(verdict: Verdict) -> tuple[str, ...]:
    """The lines that decided, as `file:line: text`, for a fence; for curves see `curves`."""
    rows = []
    for item in verdict.key_lines:
        if item.criterion != Criterion.LEARNING_SIGNAL:
            where = f"{item.file}:{item.line}" if item.line else item.file
            rows.append(f"{one_line(where, 200)}: {one_line(item.excerpt, 300)}")
    return tuple(rows)


def curves(verdict: Verdict) -> Iterator[str]:
    """The curves of a learning signal, one for each row: title, first value, sparkline, last value, aligned."""
    for item in verdict.key_lines:
        if item.criterion != Criterion.LEARNING_SIGNAL:
            continue
        if item.summary:
            yield one_line(item.summary, 400)
        rows = one_line(item.excerpt, 2000).split(", ")
        cells = [row.rsplit(" ", 3) for row in rows]
        if any(len(row) != 4 for row in cells):
            yield from rows
            continue
        widths = [max(len(row[column]) for row in cells) for column in range(4)]
        for title, first, line, last in cells:
            yield f"  {title:<{widths[0]}}  {first:>{widths[1]}} {line:<{widths[2]}} {last}"


def links(url: str) -> str:
    """Links to the log of a run in Markdown, and to its folder where it is a workflow run of GitHub's.

    Empty where the address, which a back end gave, cannot stand in Markdown as it is.
    """
    if len(url) > _MAX_LINK or not _PLAIN_LINK.fullmatch(url):
        return ""
    run = _WORKFLOW_RUN.match(url)
    return f" [log]({url})" + (f" · [artifacts]({run[0]}#artifacts)" if run else "")

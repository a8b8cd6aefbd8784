"""The commands as people read them: the help comment, and the answer to a mistake."""

import re
from collections.abc import Iterable

from verl_e2e.core.pulls.commands import OPTIONS, PREFIX, TABLE, Mistake, Verb
from verl_e2e.core.text.escape import BREAK, fence_for, fenced_row, sentence

# What someone meant for a commit, a short one too.
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
SHOWN_BEFORE, SHOWN_AFTER = 60, 40


def render_help() -> str:
    """The answer to `help`: every command in one table, for a comment."""
    rows = ["| command | what it does | needs |", "|---|---|---|", *map(_row, TABLE)]
    options = ["| option | what it does |", "|---|---|", *option_rows()]
    return "\n".join([*rows, "", *options]) + "\n"


def _row(verb: Verb) -> str:
    return f"| `{PREFIX} {_cell(verb.usage)}` | {verb.help} | {verb.needs} |"


def option_rows() -> Iterable[str]:
    """A row of Markdown for each option of the commands."""
    return (f"| `{option.name}={_cell(option.shown)}` | {option.help} |" for option in OPTIONS)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render_mistakes(mistakes: Iterable[Mistake]) -> str:
    """Each line that was not understood, with a caret under the wrong word, what is wrong, and the fix."""
    return "\n".join(_mistake(mistake) for mistake in mistakes)


def render_approve(head_sha: str) -> str:
    """The command that approves a head, to be copied whole, for someone who named another commit or a part of one."""
    return (
        f"The head is `{head_sha}`. Look at it first; this approves it:\n\n```text\n{PREFIX} approve {head_sha}\n```\n"
    )


def render_named(verb: str, head_sha: str, words: Iterable[str] = ()) -> str:
    """The command that names a head, to be copied whole, for someone who named another commit, a part of one or none.

    `words` are those that followed the verb as they were written.
    """
    if verb == "approve":
        return render_approve(head_sha)
    given = [word for word in words if not _COMMIT.fullmatch(word)]
    level = next(iter(given[:1]), "LEVEL")
    reason = " ".join(given[1:]) or "REASON"
    line = fenced_row(f"{PREFIX} {verb} {level} {head_sha} {reason}")
    fence = fence_for((line,))
    return f"The head is `{head_sha}`. Look at it first; this overrides it:\n\n{fence}text\n{line}\n{fence}\n"


def _mistake(mistake: Mistake) -> str:
    first = max(0, mistake.start - SHOWN_BEFORE)
    last = min(len(mistake.text), max(mistake.end, mistake.start + 1) + SHOWN_AFTER)
    last = min(last, first + SHOWN_BEFORE * 3)
    line = "".join(_neutralize(char) for char in mistake.text[first:last])
    caret = " " * (mistake.start - first) + "^" * max(1, min(mistake.end, last) - mistake.start)
    fence = fence_for((line,))
    words = sentence(mistake.what[:1].upper() + mistake.what[1:])
    fix = f": {sentence(mistake.fix)}" if mistake.fix else ""
    return f"{words}{fix}\n{fence}text\n{line}\n{caret}\n{fence}\n"


def _neutralize(char: str) -> str:
    """One character for one, so that the caret stays below its word; a mistyped `@name` mentions no one."""
    if char == "@":
        return "＠"
    if char == "<":
        return "‹"
    return char if char.isprintable() and char != BREAK else "·"

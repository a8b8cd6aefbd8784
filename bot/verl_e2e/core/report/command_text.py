"""The commands as people read them: the help comment, and the answer to a mistake."""

import re
from collections.abc import Iterable

from verl_e2e.core.pulls.commands import OPTIONS, PREFIX, TABLE, Mistake
from verl_e2e.core.text.escape import BREAK, fence_for, fenced_row, sentence

# What someone meant for a commit, a short one too.
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
SHOWN_BEFORE, SHOWN_AFTER = 60, 40
_INERT = str.maketrans("@<", "＠‹")


def render_help() -> str:
    """The answer to `help`: every command and every option in a table, for a comment."""
    verbs = (f"| `{PREFIX} {_cell(verb.usage)}` | {verb.help} | {verb.needs} |" for verb in TABLE)
    rows = ["| command | what it does | needs |", "|---|---|---|", *verbs]
    rows += ["", "| option | what it does |", "|---|---|", *option_rows()]
    return "\n".join(rows) + "\n"


def option_rows() -> Iterable[str]:
    """A row of Markdown for each option of the commands."""
    return (f"| `{option.name}={_cell(option.shown)}` | {option.help} |" for option in OPTIONS)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render_mistakes(mistakes: Iterable[Mistake]) -> str:
    """Each line that was not understood, with a caret under the wrong word, what is wrong, and the fix."""
    texts = []
    for mistake in mistakes:
        first = max(0, mistake.start - SHOWN_BEFORE)
        last = min(len(mistake.text), max(mistake.end, mistake.start + 1) + SHOWN_AFTER, first + SHOWN_BEFORE * 3)
        # One character for one, so that the caret stays below its word; a mistyped `@name` mentions no one.
        shown = mistake.text[first:last].translate(_INERT)
        line = "".join(char if char.isprintable() and char != BREAK else "·" for char in shown)
        caret = " " * (mistake.start - first) + "^" * max(1, min(mistake.end, last) - mistake.start)
        fence = fence_for((line,))
        fix = f": {sentence(mistake.fix)}" if mistake.fix else ""
        what = sentence(mistake.what[:1].upper() + mistake.what[1:])
        texts.append(f"{what}{fix}\n{fence}text\n{line}\n{caret}\n{fence}\n")
    return "\n".join(texts)


def render_named(verb: str, head_sha: str, words: Iterable[str] = ()) -> str:
    """The command that names a head, to be copied whole, for someone who named another commit, a part of one or none.

    `words` are those that followed the verb as they were written.
    """
    if verb == "approve":
        line = f"{PREFIX} approve {head_sha}"
    else:
        given = [word for word in words if not _COMMIT.fullmatch(word)]
        level, reason = next(iter(given[:1]), "LEVEL"), " ".join(given[1:]) or "REASON"
        line = fenced_row(f"{PREFIX} {verb} {level} {head_sha} {reason}")
    fence, does = fence_for((line,)), "approves" if verb == "approve" else "overrides"
    return f"The head is `{head_sha}`. Look at it first; this {does} it:\n\n{fence}text\n{line}\n{fence}\n"

"""Parts of a comment or a check that come from one `verdict.json`: rows of Markdown or of plain text, all inert.

The document was written by us, but of a run that nobody trusts, and it may be of an older version: whatever is not of
the expected shape is left out.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from verl_e2e.core.judge.left_open import OfJob, paired
from verl_e2e.core.model.evidence import Criterion
from verl_e2e.core.text.escape import markdown, one_line, sentence

VerdictDocument = Mapping[str, Any]
_MAX_LINK = 500
MAX_COMMAND = 12_000
_COMMAND_WIDTH = 150
# A page of our documentation, which lies beside none of the code that is tested.
_OWN_DOCUMENT = re.compile(r"(?<![\w./`-])docs/[\w-]{1,60}\.md(#[\w-]{1,100})?(?! of verl-e2e)")
_LINK_SIGNS = frozenset(":/._-?=&%#~")


def parsed(text: str) -> VerdictDocument:
    """The document of `verdict.json`; empty for anything else."""
    try:
        document = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def texts(document: VerdictDocument, key: str) -> tuple[str, ...]:
    """The texts listed under a key."""
    value = document.get(key)
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


def verdict_sentence(text: str, limit: int = 1000) -> str:
    """A sentence of a verdict for somebody in another repository: a document of ours is named as one of ours."""
    return sentence(_OWN_DOCUMENT.sub(r"`\g<0>` of verl-e2e", text), limit)


def left_open(job_id: str, document: VerdictDocument, *, passed: bool) -> OfJob:
    """What the job of a verdict leaves open, and what it shows where it passed."""
    listed = document.get("left_open")
    aspects = [texts({"of": one}, "of") for one in listed] if isinstance(listed, list) else []
    shows = frozenset(texts(document, "shows")) if passed else frozenset()
    return OfJob(job_id, paired(texts(document, "limitations"), aspects), shows)


def asked(document: VerdictDocument) -> tuple[str, ...]:
    """What was asked for and which model was trained, as rows of Markdown; empty where the verdict does not say."""
    named = (("Requested coverage", "coverage"), ("Checkpoint/config", "checkpoint"))
    found = ((title, document.get(key)) for title, key in named)
    return tuple(f"**{title}:** {markdown(value, 600)}  " for title, value in found if isinstance(value, str) and value)


def command_rows(document: VerdictDocument) -> tuple[str, ...]:
    """The command in lines that a shell takes as one, for a fence; empty where the verdict has none."""
    command = document.get("command")
    if not isinstance(command, str) or not command:
        return ()
    shown = one_line(command, MAX_COMMAND)
    try:
        words = [shlex.quote(word) for word in shlex.split(shown)]
    except ValueError:
        return (shown,)
    if shlex.join(shlex.split(shown)) != shown:
        return (shown,)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _COMMAND_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


def rows_of(document: VerdictDocument, key: str) -> tuple[Mapping[str, Any], ...]:
    """The documents listed under a key."""
    value = document.get(key)
    return tuple(one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def sentence_of(document: VerdictDocument) -> str:
    """Result and sentence as the card of the run begins; empty where there is no verdict."""
    result, sentence = document.get("result"), document.get("sentence")
    return f"{result}: {sentence}" if isinstance(result, str) and isinstance(sentence, str) else ""


def deliverables(document: VerdictDocument) -> tuple[str, ...]:
    """The deliverables as a Markdown table, empty where there are none."""
    found = rows_of(document, "deliverables")
    return ("| deliverable | outcome | detail |", "|---|---|---|", *map(_deliverable, found)) if found else ()


def _deliverable(one: Mapping[str, Any]) -> str:
    name, outcome = markdown(str(one.get("name", "")), 80), markdown(str(one.get("outcome", "")), 40)
    return f"| {name} | **{outcome}** | {verdict_sentence(str(one.get('detail', '')), 500)} |"


def key_lines(document: VerdictDocument) -> tuple[str, ...]:
    """The lines that decided, as `file:line: text`, for a fence; curves stand apart, see `curves`."""
    return tuple(_key_line(one) for one in rows_of(document, "key_lines") if not _is_signal(one))


def _key_line(one: Mapping[str, Any]) -> str:
    line = one.get("line")
    where = f"{one.get('file', '')}:{line}" if line else str(one.get("file", ""))
    return f"{one_line(where, 200)}: {one_line(str(one.get('excerpt', '')), 300)}"


def curves(document: VerdictDocument) -> Iterator[str]:
    """The curves of a learning signal, one for each row: title, first value, sparkline, last value, aligned."""
    for one in rows_of(document, "key_lines"):
        if _is_signal(one):
            summary = one_line(str(one.get("summary", "")), 400)
            yield from ([summary] if summary else [])
            yield from _aligned(one_line(str(one.get("excerpt", "")), 2000).split(", "))


def _aligned(drawn: list[str]) -> Iterator[str]:
    """Rows of equal columns where each is `title first sparkline last`, else as they are."""
    cells = [one.rsplit(" ", 3) for one in drawn]
    if any(len(row) != 4 for row in cells):
        yield from drawn
        return
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for title, first, line, last in cells:
        yield f"  {title:<{widths[0]}}  {first:>{widths[1]}} {line:<{widths[2]}} {last}"


def _is_signal(one: Mapping[str, Any]) -> bool:
    return one.get("criterion") == Criterion.LEARNING_SIGNAL.value


def is_plain_link(url: str) -> bool:
    """Whether an address can stand in Markdown as it is; it comes from a back end, which is not trusted."""
    safe = url.startswith(("https://", "http://")) and len(url) <= _MAX_LINK
    return safe and all(sign.isascii() and (sign.isalnum() or sign in _LINK_SIGNS) for sign in url)


def artifacts_url(url: str) -> str:
    """Where the run folder lies, beside the log of a workflow run on GitHub; empty for any other back end."""
    head, mark, rest = url.partition("/actions/runs/")
    number = rest.split("/")[0].split("#")[0]
    return f"{head}{mark}{number}#artifacts" if number.isascii() and number.isdigit() else ""


def links(url: str) -> str:
    """Links to the log and the artifacts of a run in Markdown, empty where the address cannot be relied on."""
    if not is_plain_link(url):
        return ""
    artifacts = artifacts_url(url)
    return f" [log]({url})" + (f" · [artifacts]({artifacts})" if artifacts else "")

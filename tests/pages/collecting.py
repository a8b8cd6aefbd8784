"""Every command that a page, a help text or a comment of a workflow shows, where it stands and in what form."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.fakes.places import ROOT
from verl_e2e.cli import cli

PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
# Files whose comments speak to people who set the product up.
COMMENTED = (
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    *sorted((ROOT / "docs" / "workflows").glob("*.yml")),
    *sorted((ROOT / "bot" / "verl_e2e" / "policy").glob("*.yml")),
    *sorted((ROOT / "bot" / "verl_e2e" / "profiles").glob("*.yml")),
    ROOT / "action.yml",
    ROOT / "Makefile",
)
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *(?P=mark) *$", re.M | re.S
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SHELLS = frozenset({"sh", "bash", "console", "shell"})
# First words by which text in backticks is a command line; the name of a program alone is none.
_PROGRAMS = (
    r"(?:[\w~.$][\w~.$/{}-]*/)?(?:verl-e2e|make|python3?|pip|pipx|uv|git|gh|curl|docker|kubectl|apt|apt-get|sqlite3|sed|zstd"
    r"|srun|sbatch|sinfo|scontrol|nvidia-smi|bash|sh|node|npm|systemctl|nft|ray|export|source|\.ci/run)"
)
# A verb with an option is short for our command with both.
_VERBS = "|".join(cli.commands)
_COMMAND = re.compile(rf"^(?:[A-Z][A-Z0-9_]*=\S+ )*(?:{_PROGRAMS} +\S|(?:{_VERBS}) --)")
_COMMENT = re.compile(r"^/verl-e2e\b")


@dataclass(frozen=True, slots=True)
class Shown:
    """One command or block of commands: the place as `file:line`, and the text as it stands.

    `block` is true for a fenced block, which is run as a whole; false for a command within a sentence.
    """

    place: str
    text: str
    block: bool


def shell_commands() -> tuple[Shown, ...]:
    """Everything for a shell."""
    found = [shown for page in PAGES for shown in _of_page(page)]
    found += [shown for file in COMMENTED for shown in _of_comments(file)]
    return (*found, *_of_help(cli, "verl-e2e"))


def pull_request_commands() -> tuple[Shown, ...]:
    """Everything that is written as a comment on a pull request."""
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = re.findall(r"^(?: {4})?(/verl-e2e [a-z].*)$", text, re.M)
        found += [Shown(_place(page, text.index(line), text), line, block=False) for line in lines]
        for match in _INLINE.finditer(_without_fences(text)):
            if _COMMENT.match(match[1]):
                found.append(Shown(_place(page, match.start(), text), match[1], block=False))
    return tuple(found)


def _of_page(page: Path) -> Iterator[Shown]:
    text = page.read_text()
    for match in _FENCE.finditer(text):
        body = match["body"].replace(f"\n{match['indent']}", "\n").removeprefix(match["indent"])
        if match["language"] == "console":
            prompted = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
            yield Shown(_place(page, match.start(), text), "\n".join(prompted), block=True)
        elif match["language"] in _SHELLS or (not match["language"] and _COMMAND.search(body)):
            yield Shown(_place(page, match.start(), text), body.rstrip("\n"), block=True)
    for match in _INLINE.finditer(_without_fences(text)):
        if _COMMAND.match(match[1]):
            yield Shown(_place(page, match.start(), text), match[1], block=False)


def _of_comments(file: Path) -> Iterator[Shown]:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        _, sharp, comment = line.partition("# ")
        for match in _INLINE.finditer(comment if sharp else ""):
            if _COMMAND.match(match[1]):
                yield Shown(f"{file.relative_to(ROOT)}:{number}", match[1], block=False)


def _of_help(command: click.Command, name: str) -> Iterator[Shown]:
    """The examples of a help text, of the commands below it too; click folds a paragraph into one line."""
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        folded = " ".join(paragraph.split())
        if folded.startswith("Example: "):
            yield Shown(f"{name} --help", folded.removeprefix("Example: "), block=False)
    if isinstance(command, click.Group):
        for verb, below in command.commands.items():
            yield from _of_help(below, f"{name} {verb}")


def _without_fences(text: str) -> str:
    """The same text with fenced blocks blanked, so that positions stay."""
    return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _place(page: Path, position: int, text: str) -> str:
    return f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, position) + 1}"

"""The documents say what the program does: tables are rendered from its own, links lead somewhere, commands parse."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from bot.adapters.github.tokens import PERMISSIONS
from bot.cli import cli
from bot.core.command_text import render_capabilities, render_reference
from bot.core.commands import CommandLine, Mistake, parse
from bot.core.levels import Level
from bot.core.webhook_events import MODELS
from bot.handlers.hearing import LABEL
from tests.fakes.shown_pull import PASSED, shown_card

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ("card.md", "commands.md")
# GitHub sends these to every App, and does not let one ask for them.
ALWAYS_SENT = {"installation", "installation_repositories", "ping"}
# The event `merge_group` can be asked for only with this permission; no call of ours needs it.
FOR_EVENTS = {"merge_queues": "read"}


def _text(page: str) -> str:
    return (DOCS / page).read_text()


def _between(text: str, name: str) -> str:
    return text.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->\n")[0]


def test_the_commands_page_is_what_the_table_renders() -> None:
    text = _text("commands.md")
    assert _between(text, "commands") == render_reference(), "run `python bench/write_tables.py`"
    assert _between(text, "capabilities") == render_capabilities(), "run `python bench/write_tables.py`"


def test_the_labels_of_the_commands_page_are_those_that_are_heard() -> None:
    text = _text("commands.md")
    for name in ("run", *(f"level{int(level)}" for level in (min(Level), max(Level)))):
        assert f"`{LABEL}{name}`" in text


def test_the_manifest_asks_for_what_the_app_uses_and_no_more() -> None:
    manifest = json.loads(_text("app-manifest.json"))
    assert manifest["default_permissions"] == {**PERMISSIONS, **FOR_EVENTS}
    assert set(manifest["default_events"]) == set(MODELS) - ALWAYS_SENT
    assert manifest["public"] is False
    assert manifest["hook_attributes"]["url"].endswith("/webhook")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]+)\)", _text(page)):
        path, _, anchor = target.partition("#")
        found = (DOCS / path) if path else DOCS / page
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}, target


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_page_is_one(page: str) -> None:
    """Comments speak the language of the table, and shell lines that of the command line."""
    text = _text(page)
    for number, line in enumerate(re.findall(r"^(?: {4})?(/verl-e2e [a-z].*)$", text, re.MULTILINE)):
        assert not [one for one in parse((CommandLine(number, line),)) if isinstance(one, Mistake)], line
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.findall(r"\bverl-e2e ((?:--)?[a-z].*)", block.replace("\\\n", " ")):
            _check_call(shlex.split(line, comments=True))


def test_the_command_that_a_card_gives_to_repeat_it_is_one() -> None:
    block = shown_card(*PASSED).split("<summary>Reproduce</summary>\n\n```text\n")[1].split("\n```")[0]
    _check_call(shlex.split(block)[1:])


def _check_call(words: list[str]) -> None:
    """The verb is there, and so is every option that the line gives it."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        assert found is not None, words
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words

"""What a message tells the reader to type exists: every option that a text of the program names is one."""

import ast
import re
from collections.abc import Iterator

import click
import pytest

from tests.fakes.places import ROOT
from verl_e2e.cli import cli

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Options of other programs that messages name, each with what the same message must say so that it is clear whose.
OTHERS = {
    "--account": ("sbatch",),
    "--address": ("ray job", "ray start"),
    "--auto": ("git remote set-head",),
    "--cap-add": ("container",),
    "--config": ("run_grpo",),
    "--ephemeral": ("register",),
    "--filter": ("git -C",),
    "--gpus": ("container", "sbatch"),
    "--gpus-per-node": ("sbatch",),
    "--gres": ("sbatch",),
    "--init": ("git submodule",),
    "--jitconfig": ("register",),
    "--mem": ("sbatch", "VERL_E2E_SLURM_OPTIONS"),
    "--orphan": ("git switch",),
    "--partition": ("sbatch",),
    "--refetch": ("git -C",),
    "--shm-size": ("container",),
    "--unshallow": ("git fetch",),
}
# A shell script that the program writes does not address the reader.
_SCRIPT = re.compile(r"\|\| exit \S|^#!/bin/")


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _options(inner)


@pytest.fixture(scope="module")
def sentences() -> list[tuple[str, str]]:
    """Every message of the program, with its file: texts of several words, but for docstrings and arguments."""
    found: list[tuple[str, str]] = []
    for folder in ("bot", "runners"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
            parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
            parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            texts = (_text(node) for node in nodes if id(node) not in parts)
            found += [(path.relative_to(ROOT).as_posix(), text) for text in texts if " " in text and text[0] != "-"]
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_option_that_a_text_names_is_one(sentences: list[tuple[str, str]]) -> None:
    known = {*_options(cli), "--help", "--version"}
    unknown = [
        (file, option, text[:80])
        for file, text in sentences
        for option in _OPTION.findall(text)
        if option not in known and not _SCRIPT.search(text)
        if not any(clue in text for clue in OTHERS.get(option, ()))
    ]
    assert unknown == []


def test_no_message_sends_the_reader_to_the_command_line_without_an_option(sentences: list[tuple[str, str]]) -> None:
    assert [row for row in sentences if "on the command line" in row[1] and not _OPTION.search(row[1])] == []

"""What all verbs share: the group, common options, and how an outcome becomes an exit code.

Exit codes: 0 done, 1 judged Fail, 2 the user's mistake, 3 a fault of ours, 4 judged Blocked, 130 interrupted,
141 the reader of the output closed the pipe.
1 and 4 are judgements of `run`, `judge` and `check`; `doctor` exits with 1 when something must be fixed. A verb
imports the packages that it needs when it runs.
"""

import errno
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from verl_e2e import __version__
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.text.escape import LINE_ENDS, step_text, with_addresses

if TYPE_CHECKING:
    from verl_e2e.core.report.run_card import Card


_LINE_END = re.compile(f"[{LINE_ENDS}]")
# A command may start after white space; after this many characters we no longer search for its colon.
_MOST_SPACE = 200


class StepOutput(io.TextIOWrapper):
    """A stream that disables every workflow command in the text, also one that arrives in several pieces."""

    _before = ""

    def write(self, text: str) -> int:
        """Write the text; the part of the line that was written before decides whether it begins a command."""
        super().write(step_text(self._before + text)[len(self._before) :])
        # The part of the current line that the next piece of text could complete to a command.
        line = _LINE_END.split(self._before + text)[-1]
        may_begin = not line.strip().removeprefix(":") and len(line) <= _MOST_SPACE
        self._before = line if may_begin else f"x{line[-2:]}"
        return len(text)


def neutralise_streams() -> None:
    """Disable workflow commands in standard output and standard error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, StepOutput):
            encoding, line_buffering = stream.encoding, stream.line_buffering
            raw = stream.detach()
            setattr(sys, name, StepOutput(raw, encoding, "backslashreplace", line_buffering=line_buffering))


EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 3
EXIT_BLOCKED = 4
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141

# Errors of the operating system that the user can fix by another path, each with its fix.
_FIXES = {
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "free space within your quota, or choose a folder on another disk",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "make it accessible, or choose another place",
    errno.EPERM: "make it accessible, or choose another place",
    errno.ENOTDIR: "give a path whose parents are folders",
    errno.EISDIR: "remove that folder, or give the path of a file",
    errno.EEXIST: "give a path that does not exist yet",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "give a path without circular links",
}


class _Place(click.Path):
    """A path that may not be empty: an empty one is usually an unset variable, and click would read it as `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error."""
        if value == "":
            self.fail("the path is empty; name a folder", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Place(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


def cache_folder(given: Path | None = None) -> Path | None:
    """The folder for cached summaries of source files; None when neither XDG_CACHE_HOME nor HOME is set."""
    if given is not None:
        return given
    named = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if named:
        return Path(named) / "verl-e2e"
    return Path(home) / ".cache" / "verl-e2e" if home else None


class _ReaderLeftError(Exception):
    """The reader of standard output closed the pipe."""


class Verbs(click.Group):
    """A group that lists its verbs in the order in which a pull request needs them, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """The verbs in the order in which they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. When the reader closes the pipe, click would exit with 1, which is the code of a Fail."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeftError from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quiet", is_flag=True, help="Print no progress on standard error; errors are printed all the same.")
@click.option("--no-color", is_flag=True, help="Print no colour on a terminal, as with NO_COLOR set.")
@click.version_option(__version__, prog_name="verl-e2e")
@click.pass_context
def cli(context: click.Context, *, quiet: bool, no_color: bool) -> None:
    """Protect Megatron-Bridge from changes that break reinforcement learning with verl.

    verl-e2e plans the tests that a change needs, runs them with verl's own Megatron wrapper, judges the evidence in the
    logs, and shows the result as a card.
    """
    if no_color or os.environ.get("NO_COLOR"):
        context.color = False
    context.obj = open(os.devnull, "w") if quiet else sys.stderr  # noqa: SIM115


def progress() -> TextIO:
    """Where the progress of the running command goes: standard error, or nowhere with --quiet."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and context.obj is not None else sys.stderr


def say(sentence: str) -> None:
    """Print a line of progress."""
    click.echo(sentence, file=progress())


_COLORS = {"Pass": "green", "Fail": "red", "Blocked": "yellow"}
_RESULT = re.compile(rf"(?m)^((?:[\w-]+: )?)({'|'.join(_COLORS)})(?= - )")


def colored(text: str) -> str:
    """A text in which each result at the start of a line, as in `Result: Fail - why`, has its colour."""
    return _RESULT.sub(lambda found: found[1] + click.style(found[2], _COLORS[found[2]], bold=True), text)


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def this_checkout() -> Path:
    """The checkout that the working directory lies in; outside of any the directory itself."""
    from verl_e2e.wiring.planning import checkout_of

    return checkout_of(Path()) or Path()


REPO_OPTION = click.option(
    "--repo",
    default=this_checkout,
    show_default="this checkout",
    type=FOLDER,
    help="A Megatron-Bridge checkout or bare git directory.",
)
BASE_OPTION = click.option("--base", required=True, metavar="SHA", help="The commit that the change is based on.")
WORK_OPTION = click.option("--work", type=FOLDER, help="Folder for worktrees and caches; it is kept between runs.")
POLICY_OPTION = click.option("--policy", type=FILE, help="Use this policy file instead of the repository's own.")
MAPS_OPTION = click.option(
    "--maps", type=FILE, help="Use your own maps file in addition to the packaged one and that of the policy."
)
BANDS_OPTION = click.option(
    "--bands", type=FILE, help="Use your own bands file in addition to the packaged measurements."
)


def main() -> NoReturn:
    """Run the command and exit with its code. A user's mistake is printed as one message, never as a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # An odd character from a log or a file name must not make a verb fail when it prints its result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        neutralise_streams()
    words = sys.argv[1:]
    # The switches of all verbs come before the verb, where click reads them, wherever they were typed.
    end = words.index("--") if "--" in words else len(words)
    words[:end] = sorted(words[:end], key=lambda word: word not in {"--quiet", "--no-color"})
    try:
        code = cli.main(words, prog_name="verl-e2e", standalone_mode=False)
    except _ReaderLeftError:
        # As a program that SIGPIPE ended, for a reader that stops early, such as `| head -1`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EXIT_READER_LEFT
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except Exception as error:
        code = report_fault(error)
    sys.exit(code if isinstance(code, int) else 0)


def report_fault(error: Exception) -> int:
    """Print on standard error what went wrong, and return the exit code.

    A user's mistake is printed as its own message. Any other error is an internal one; VERL_E2E_DEBUG shows its
    traceback.
    """
    from verl_e2e.ports import ForgeError

    # A refusal by GitHub is printed in the same way and has the same code.
    if isinstance(error, UserError | ForgeError):
        click.echo(with_addresses(f"verl-e2e: {error}"), err=True)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _FIXES:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"verl-e2e: {place}{error.strerror}; {_FIXES[error.errno]}", err=True)
        return EXIT_USAGE
    if os.environ.get("VERL_E2E_DEBUG"):
        raise error
    click.echo(
        f"verl-e2e: internal error: {type(error).__name__}: {error} (set VERL_E2E_DEBUG=1 to see the traceback)",
        err=True,
    )
    return EXIT_INTERNAL


def exit_code(card: "Card") -> int:
    """The exit code of a judgement."""
    from verl_e2e.core.model.outcome import Result
    from verl_e2e.core.report.run_card import result_of

    return {Result.PASS: 0, Result.FAIL: EXIT_FAIL, Result.BLOCKED: EXIT_BLOCKED}[result_of(card)]


def print_card(card: "Card", *, as_json: bool) -> None:
    """Print the card on standard output, as text or as one JSON document."""
    from verl_e2e.core.report.run_card import card_json, render_text

    click.echo(card_json(card) if as_json else colored(with_addresses(render_text(card))), nl=False)


def indented_json(document: object) -> str:
    """A document as indented JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False)

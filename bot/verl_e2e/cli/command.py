"""What all verbs share: the group, common options, and how an outcome becomes an exit code.

Exit codes: 0 done, 1 judged Fail, 2 the user's mistake, 3 a fault of ours, 4 judged Blocked, 130 interrupted,
141 the reader of the output went away.
1 and 4 are judgements of `run`, `judge` and `check`; from `doctor` 1 says that something is to be fixed. Rooms are
imported by the verb that needs them.
"""

import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from verl_e2e import __version__
from verl_e2e.cli.step_output import neutralise_streams
from verl_e2e.core.model.errors import UserError

if TYPE_CHECKING:
    from verl_e2e.core.report.run_card import Card

EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 3
EXIT_BLOCKED = 4
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141

# What the system refuses because of where the user points, with what to do about it.
_FIXES = {
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "free space within your quota, or choose a folder on another disk",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "make it accessible, or choose another place",
    errno.EPERM: "make it accessible, or choose another place",
    errno.ENOTDIR: "give a path whose parents are folders",
    errno.EEXIST: "give a path that does not exist yet",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "give a path without circular links",
}


class _Place(click.Path):
    """A path; an empty one is a variable that was not set, and not the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error."""
        if value == "":
            self.fail("the path is empty; name a folder", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Place(path_type=Path)


class _ReaderLeftError(Exception):
    """No one reads our output any more."""


class Verbs(click.Group):
    """Verbs in the order of a pull request's life rather than of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """The verbs as they were declared."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; click itself would end with 1 where the reader went away, and 1 is the code of a Fail."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeftError from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="verl-e2e")
def cli() -> None:
    """Protect Megatron-Bridge from changes that break reinforcement learning with verl.

    Plan the coverage a change needs, run it through verl's own Megatron wrapper, judge the evidence, show the card.
    """


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
REPO_OPTION = click.option(
    "--repo", required=True, type=FOLDER, help="A Megatron-Bridge checkout or bare git directory."
)
BASE_OPTION = click.option("--base", required=True, metavar="SHA", help="The commit that the change starts from.")
WORK_OPTION = click.option("--work", type=FOLDER, help="Where private worktrees and caches are kept between runs.")
POLICY_OPTION = click.option(
    "--policy", type=click.Path(dir_okay=False, path_type=Path), help="A policy file instead of the base commit's."
)

BANDS_OPTION = click.option(
    "--bands",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A bands file of your own beside the packaged measurements.",
)


def main() -> NoReturn:
    """Run the command and exit with its code; a user's mistake is one sentence, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A progress bar of a log, or a file name that is no text, must not end a verb that did its work.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        neutralise_streams()
    try:
        code = cli.main(standalone_mode=False)
    except _ReaderLeftError:
        code = _reader_left()
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


def _reader_left() -> int:
    """The reader of the output went away, as `| head -1` does: the code of a program that SIGPIPE ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EXIT_READER_LEFT


def report_fault(error: Exception) -> int:
    """Say on standard error what went wrong, and give the exit code.

    A user's mistake says so in one sentence; anything else is ours, with the traceback on request.
    """
    from verl_e2e.ports import ForgeError

    # What GitHub refuses is told as plainly, and has no other code.
    if isinstance(error, UserError | ForgeError):
        click.echo(f"verl-e2e: {error}", err=True)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _FIXES:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"verl-e2e: {place}{error.strerror}; {_FIXES[error.errno]}", err=True)
        return EXIT_USAGE
    if os.environ.get("VERL_E2E_DEBUG"):
        raise error
    click.echo(f"verl-e2e: internal error: {type(error).__name__}: {error} (VERL_E2E_DEBUG=1 shows where)", err=True)
    return EXIT_INTERNAL


def exit_code(card: "Card") -> int:
    """The exit code of a judgement."""
    from verl_e2e.core.judge.verdict import Result
    from verl_e2e.core.report.run_card import result_of

    return {Result.PASS: 0, Result.FAIL: EXIT_FAIL, Result.BLOCKED: EXIT_BLOCKED}[result_of(card)]


def print_card(card: "Card", *, as_json: bool) -> None:
    """The card on standard output, as text or as one document."""
    from verl_e2e.core.report.documents import card_json
    from verl_e2e.core.report.run_card import render_text

    click.echo(card_json(card) if as_json else render_text(card), nl=False)


def json_text(document: object) -> str:
    """A document as people read it."""
    return json.dumps(document, indent=2, ensure_ascii=False)

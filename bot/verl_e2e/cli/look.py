"""The verbs that show what a run folder holds: logs, watch, open, reproduce, diff."""

import time
import webbrowser
from pathlib import Path

import click

from verl_e2e.cli.command import FOLDER
from verl_e2e.core.model.errors import UserError

_EVERY_S, _SILENCE_S = 1.0, 120.0


def _run_in(place: Path) -> Path:
    """The run folder that is meant: the only one of the folder of a `check`, else the place as it was given."""
    runs = [path for path in place.glob("jobs/*") if path.is_dir()]
    if len(runs) > 1:
        raise UserError(f"{place}: it holds {len(runs)} runs; name one of them, such as {min(runs)}")
    return runs[0] if runs else place


def _log_of(run: Path) -> Path:
    from verl_e2e.adapters.files.run_folder import find_log

    log = run if run.is_file() else find_log(_run_in(run))
    if log is None:
        raise UserError(f"{run}: no log in it; give a run folder, or the log itself")
    return log


@click.command("logs")
@click.argument("run", type=FOLDER)
@click.option("--first-error", is_flag=True, help="Only the line that explains the end, with the lines around it.")
def logs_verb(run: Path, *, first_error: bool) -> int:
    """Print the log of a run folder, unpacked. RUN may be a log too: plain, .gz, .xz or .zst.

    Where no line explains the end, --first-error prints the last lines.

    Example: verl-e2e logs out/jobs/0-lora-ddp --first-error
    """
    from verl_e2e.adapters.files.logs import log_facts, log_lines, open_log
    from verl_e2e.core.report.run_text import log_row, rows_around
    from verl_e2e.core.text.escape import with_addresses
    from verl_e2e.core.triage.explain import triage_text
    from verl_e2e.core.triage.triage import TriageVerdict, triage

    log = _log_of(run)
    if not first_error:
        for line in log_lines(open_log(log)):
            click.echo(log_row(line))
        return 0
    answer = triage(log_facts(str(log)))
    number = answer.line if answer.verdict is not TriageVerdict.PASS else None
    click.echo("\n".join(rows_around(log_lines(open_log(log)), number)))
    click.echo(f"\n{with_addresses(triage_text(str(log), answer))}")
    return 0


@click.command("watch")
@click.argument("run", type=FOLDER)
def watch_verb(run: Path) -> int:
    """Follow a run while it runs: its phases, stages and training steps, until it has ended.

    Example: verl-e2e watch out/jobs/0-lora-ddp
    """
    from pydantic import ValidationError

    from verl_e2e.adapters.files.run_folder import find_log
    from verl_e2e.core.model.record import EVENTS_FILE, Event
    from verl_e2e.core.report.run_text import event_row

    file = run if run.name == EVENTS_FILE else _run_in(run) / EVENTS_FILE
    if not file.is_file():
        raise UserError(f"{file}: not there; give a run folder, such as jobs/0-lora-ddp below --out of `check`")
    rest, told = b"", False
    with file.open("rb") as stream:
        while True:
            piece = stream.read()
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                try:
                    event = Event.model_validate_json(line)
                except ValidationError:
                    continue
                if row := event_row(event):
                    click.echo(row)
                if event.kind == "ended":
                    click.echo(f"`verl-e2e judge {file.parent}` judges it, and `verl-e2e open {file.parent}` shows it.")
                    return 0
            written = (path.stat().st_mtime for path in (file, find_log(file.parent)) if path)
            silent_s = time.time() - max(written)
            silent = silent_s > _SILENCE_S and not piece
            if silent and not told:
                click.echo(f"nothing was recorded for {silent_s:,.0f} s: its runner may have been killed", err=True)
            told = silent
            time.sleep(0 if piece else _EVERY_S)


@click.command("open")
@click.argument("folder", type=FOLDER)
def open_verb(folder: Path) -> int:
    """Open the report of a run folder in the browser, and print its path.

    Example: verl-e2e open out/jobs/0-lora-ddp
    """
    from verl_e2e.pages.report import REPORT_FILE

    report = (_run_in(folder) / REPORT_FILE if folder.is_dir() else folder).absolute()
    if not report.is_file() or report.suffix != ".html":
        found = "not a report" if report.is_file() else "not there"
        raise UserError(f"{report}: {found}; give a run folder, into which `verl-e2e judge DIR` writes {REPORT_FILE}")
    click.echo(str(report))
    if not webbrowser.open(report.as_uri()):
        click.echo("no browser was found on this machine; copy the file to one that has a browser", err=True)
    return 0


@click.command("reproduce")
@click.argument("place", type=FOLDER, metavar="CARD|DIR")
def reproduce_verb(place: Path) -> int:
    """Print the commands that repeat a run: of a run folder, of the folder of a `check`, or of a card in a file.

    Example: verl-e2e reproduce out/jobs/0-lora-ddp > repeat.sh
    """
    from verl_e2e.adapters.files.folders import read_job, run_folders
    from verl_e2e.core.judge.verdict import command_row
    from verl_e2e.core.model.jobs import Job
    from verl_e2e.core.model.record import JOB_FILE
    from verl_e2e.core.report.run_text import commands_of_card, repeating_commands

    if place.is_file():
        rows = commands_of_card(place.read_text(errors="replace"))
        if not rows:
            raise UserError(f"{place}: no command in it; give a card (card.txt, card.md) or a run folder")
        click.echo("\n".join(rows))
        return 0
    folders = sorted(
        path.parent for path in (place, *(place / "jobs").glob("*")) for path in [path / JOB_FILE] if path.is_file()
    )
    if not folders:
        raise UserError(f"{place}: no {JOB_FILE} in it; give a run folder, the folder of a `check`, or a card")
    for folder in folders:
        job = read_job(folder / JOB_FILE)
        if not isinstance(job, Job):
            raise UserError(f"{folder}: it is of a rehearsal; `verl-e2e rehearse --base {job.base}` repeats it")
        command = command_row(run_folders().record(folder), started=True)
        click.echo("\n".join(repeating_commands(job, str((folder / JOB_FILE).absolute()), command)))
    return 0


@click.command("diff")
@click.argument("run", type=FOLDER, metavar="DIR")
@click.argument("other", type=FOLDER, metavar="DIR")
def diff_verb(run: Path, other: Path) -> int:
    """Print by what two run folders differ: verdict, job, commits, packages, GPUs. `parity` compares their metrics.

    Example: verl-e2e diff first/jobs/2-dense second/jobs/2-dense
    """
    from verl_e2e.adapters.files.folders import run_folders
    from verl_e2e.app.judge_folder import told_apart

    rows = told_apart(run_folders(), run, other)
    click.echo("\n".join(rows) or "They differ in nothing that is compared: verdict, job, commits, packages, GPUs.")
    return 0

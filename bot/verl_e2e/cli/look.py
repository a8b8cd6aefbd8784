"""The verbs that show what a run folder holds: logs, watch, open, reproduce."""

import time
import webbrowser
from pathlib import Path

import click

from verl_e2e.cli.command import FOLDER
from verl_e2e.core.model.errors import UserError

_EVERY_S, _SILENCE_S = 1.0, 120.0


def _log_of(run: Path) -> Path:
    from verl_e2e.adapters.files.run_folder import find_log

    log = run if run.is_file() else find_log(run)
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
    from verl_e2e.core.text.addresses import with_addresses
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

    from verl_e2e.core.model.record import EVENTS_FILE, Event
    from verl_e2e.core.report.run_text import event_row

    file = run / EVENTS_FILE
    if not file.is_file():
        raise UserError(f"{file}: not there; give a run folder, such as jobs/0-lora-ddp below --out of `check`")
    rest, heard = b"", time.monotonic()
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
                    click.echo(f"`verl-e2e judge {run}` judges it, and `verl-e2e open {run}` shows its report.")
                    return 0
            if piece:
                heard = time.monotonic()
            elif heard and time.monotonic() - heard > _SILENCE_S:
                click.echo(f"nothing was recorded for {_SILENCE_S:.0f} s: its runner may have been killed", err=True)
                heard = 0.0
            time.sleep(0 if piece else _EVERY_S)


@click.command("open")
@click.argument("folder", type=FOLDER)
def open_verb(folder: Path) -> int:
    """Open the report of a run folder in the browser, and print its path.

    Example: verl-e2e open out/jobs/0-lora-ddp
    """
    from verl_e2e.pages.report import REPORT_FILE

    report = (folder / REPORT_FILE if folder.is_dir() else folder).absolute()
    if not report.is_file():
        raise UserError(f"{report}: not there; `verl-e2e judge {folder}` writes it into a run folder")
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

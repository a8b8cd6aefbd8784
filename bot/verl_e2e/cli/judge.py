"""The verbs that judge a run or a log: judge, triage, card."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from verl_e2e.cli.command import BANDS_OPTION, FOLDER, JSON_OPTION, exit_code, print_card, report_fault

if TYPE_CHECKING:
    from verl_e2e.core.judge.verdict_document import Verdict
    from verl_e2e.core.report.run_card import NotRun


@click.command()
@click.argument("folder", type=FOLDER)
@BANDS_OPTION
@JSON_OPTION
def judge(folder: Path, bands: Path | None, *, as_json: bool) -> int:
    """Judge a run folder. The verdict and its evidence are also written into the folder.

    Example: verl-e2e judge out/jobs/0-lora-ddp
    """
    from verl_e2e.adapters.files.folders import run_folders
    from verl_e2e.app import judge_folder as judging
    from verl_e2e.app.judge_folder import card_of

    folders = run_folders(bands)
    verdicts = judging.judge_folders(folders, folder)
    judging.write_judgement(folders, folder, verdicts)
    shown = card_of(folders, folder, verdicts)
    if as_json:
        print_card(shown, as_json=True)
    else:
        click.echo("\n".join([*map(_verdict_text, shown.verdicts), *map(_not_run_text, shown.not_run)]))
    return exit_code(shown)


def _verdict_text(verdict: "Verdict") -> str:
    rows = [f"{verdict.job_id}: {verdict.result} - {verdict.sentence}"]
    for item in verdict.evidence:
        where = f" [{item.file}{f':{item.line}' if item.line else ''}]" if item.file else ""
        rows.append(f"  {item.state:<8} {item.criterion:<18} {item.summary}{where}")
    return "\n".join(rows)


def _not_run_text(job: "NotRun") -> str:
    return f"{job.job_id}: Skipped - {job.reason}"


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--explain", is_flag=True, help="Show the phase timeline, the candidates and the rule that decided.")
@click.option(
    "--json/--text",
    "as_json",
    default=None,
    help="Print JSON lines or text. Default: text on a terminal or with --explain, else JSON lines.",
)
def triage(logs: tuple[str, ...], *, explain: bool, as_json: bool | None) -> int:
    """Say where and why the run of each log ended. `-` reads standard input.

    A log may be plain text, .gz, .xz or .zst. With --explain you can also give a run folder. On a terminal the answer
    is text, otherwise one JSON line for each log. `pass` only means that the requested steps completed without an
    unexplained error; it is not a verdict.

    A log that cannot be read is reported on standard error. The other logs are still judged, and the exit code is 2.

    Example: verl-e2e triage --explain run1.log run2.log.zst
    """
    code = 0
    wants_json = as_json if as_json is not None else not (explain or (sys.stdout is not None and sys.stdout.isatty()))
    for name in logs:
        try:
            _triage(name, explain=explain, as_json=wants_json)
        except BrokenPipeError:
            raise
        except Exception as error:
            code = max(code, report_fault(error))
    return code


def _triage(name: str, *, explain: bool, as_json: bool) -> None:
    from verl_e2e.adapters.files.log_facts import log_facts
    from verl_e2e.core.report.run_card import triage_line
    from verl_e2e.core.triage.explain import triage_text
    from verl_e2e.core.triage.triage import triage as triage_facts

    if explain:
        _explain(name, as_json=as_json)
    else:
        answer = triage_facts(log_facts(name))
        click.echo(triage_line(name, answer) if as_json else triage_text(name, answer) + "\n")


def _explain(name: str, *, as_json: bool) -> None:
    from verl_e2e.adapters.files.log_facts import log_with_times
    from verl_e2e.core.report.run_card import explained_line
    from verl_e2e.core.triage.explain import explain, explain_text

    message = explain(*log_with_times(name))
    click.echo(explained_line(name, message) if as_json else explain_text(name, message) + "\n")


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@JSON_OPTION
def card(folder: Path, form: str, *, as_json: bool) -> int:
    """Judge a run folder, or the whole folder of a `check`, again and show its card.

    Example: verl-e2e card out --format markdown
    """
    from verl_e2e.adapters.files.folders import run_folders
    from verl_e2e.app.judge_folder import card_of
    from verl_e2e.core.report.run_card import render_markdown

    shown = card_of(run_folders(), folder)
    if form == "markdown" and not as_json:
        click.echo(render_markdown(shown), nl=False)
    else:
        print_card(shown, as_json=as_json)
    return 0

"""The verbs that judge and compare runs and logs: judge, triage, card, parity, bands, maps, signal, flaky."""

import sys
from pathlib import Path

import click

from verl_e2e.cli.command import (
    BANDS_OPTION,
    FILE,
    FOLDER,
    JSON_OPTION,
    MAPS_OPTION,
    Verbs,
    colored,
    exit_code,
    indented_json,
    print_card,
    report_fault,
)
from verl_e2e.core.text.escape import with_addresses


@click.command("judge")
@click.argument("folder", type=FOLDER)
@BANDS_OPTION
@JSON_OPTION
def judge_verb(folder: Path, bands: Path | None, *, as_json: bool) -> int:
    """Judge a run folder. The verdict and its evidence are also written into the folder.

    Example: verl-e2e judge out/jobs/0-lora-ddp
    """
    from verl_e2e.adapters.files.folders import run_folders
    from verl_e2e.app import judge_folder as judging
    from verl_e2e.app.judge_folder import card_of
    from verl_e2e.core.report.run_card import result_of, sentence_of

    folders = run_folders(bands)
    verdicts = judging.judge_folders(folders, folder)
    judging.write_judgement(folders, folder, verdicts)
    shown = card_of(folders, folder, verdicts)
    if as_json:
        print_card(shown, as_json=True)
    else:
        rows: list[str] = []
        for verdict in shown.verdicts:
            rows.append(f"{verdict.job_id}: {verdict.result} - {verdict.sentence}")
            for item in verdict.evidence:
                where = f" [{item.file}{f':{item.line}' if item.line else ''}]" if item.file else ""
                rows.append(f"  {item.state:<8} {item.criterion:<18} {item.summary}{where}")
        rows += [f"{job.job_id}: Skipped - {job.reason}" for job in shown.not_run]
        nothing = f"{result_of(shown)} - {sentence_of(shown)}"
        click.echo(colored(with_addresses("\n".join(rows) or nothing)))
    return exit_code(shown)


@click.command("triage")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--explain", is_flag=True, help="Show the phase timeline, the candidates and the rule that decided.")
@click.option(
    "--json/--text",
    "as_json",
    default=None,
    help="Print JSON lines or text. Default: text on a terminal or with --explain, else JSON lines.",
)
def triage_verb(logs: tuple[str, ...], *, explain: bool, as_json: bool | None) -> int:
    """Say where and why the run of each log ended. `-` reads standard input.

    A log may be plain text, .gz, .xz or .zst, or a run folder with --explain. `pass` is not a verdict: the requested
    steps completed without an unexplained error. Where a log cannot be read, the exit code is 2 in the end.

    Example: verl-e2e triage --explain run1.log run2.log.zst
    """
    code = 0
    wants_json = as_json if as_json is not None else not (explain or (sys.stdout is not None and sys.stdout.isatty()))
    for name in logs:
        try:
            click.echo(_triaged(name, explain=explain, as_json=wants_json))
        except BrokenPipeError:
            raise
        except Exception as error:
            code = max(code, report_fault(error))
    return code


def _triaged(name: str, *, explain: bool, as_json: bool) -> str:
    from verl_e2e.adapters.files.logs import log_facts, log_with_times
    from verl_e2e.core.report.run_card import explained_line, triage_line
    from verl_e2e.core.triage.explain import explain_log, explain_text, triage_text
    from verl_e2e.core.triage.triage import triage

    if explain:
        found = explain_log(*log_with_times(name))
        return explained_line(name, found) if as_json else with_addresses(f"{explain_text(name, found)}\n")
    answer = triage(log_facts(name))
    return triage_line(name, answer) if as_json else with_addresses(f"{triage_text(name, answer)}\n")


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


_KEPT = click.option(
    "--bands", required=True, type=FILE, help="The bands file to write; it is created when it does not exist."
)


@click.command("parity")
@click.argument("run", type=FOLDER)
@click.argument("reference", type=FOLDER)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@BANDS_OPTION
@JSON_OPTION
def parity_verb(run: Path, reference: Path, form: str, bands: Path | None, *, as_json: bool) -> int:
    """Compare two runs of the same training step by step, with a tolerance and a verdict for each metric.

    The runs should be equal, or differ only in their parallel sizes. Any other difference is reported.

    Example: verl-e2e parity out/jobs/2-dense out/jobs/2-dense/related/unsharded
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.judge_folder import compare_folders
    from verl_e2e.core.report.comparison_text import render_report, render_report_markdown, report_json

    report = compare_folders(stored.run_folders(bands), run, reference)
    if as_json:
        click.echo(report_json((report,)), nl=False)
    else:
        click.echo(render_report_markdown((report,)) if form == "markdown" else render_report(report), nl=False)
    return 0


@click.group(cls=Verbs)
def bands() -> None:
    """Record what healthy runs measured. Later runs are judged by the bands and tolerances that follow from it."""


@bands.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="FOLDER...")
@_KEPT
def add(folders: tuple[Path, ...], bands: Path) -> int:
    """Add healthy runs to a bands file. Each folder must be judged Pass; a run is added only once.

    Example: verl-e2e bands add out/jobs/0-lora-ddp --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.judge_folder import add_healthy, described

    found = add_healthy(stored.run_folders(), stored.own_bands(bands), folders)
    stored.keep_bands(found, bands)
    click.echo("\n".join(described(found)))
    return 0


@bands.command()
@click.argument("path", type=FOLDER, metavar="RUN")
@click.argument("other", type=FOLDER, metavar="OTHER")
@_KEPT
def pair(path: Path, other: Path, bands: Path) -> int:
    """Add two runs of the same training to a bands file: every difference between them is noise.

    Example: verl-e2e bands pair first/jobs/2-dense second/jobs/2-dense --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.judge_folder import add_pair, described

    found = add_pair(stored.run_folders(), stored.own_bands(bands), path, other)
    stored.keep_bands(found, bands)
    click.echo("\n".join(described(found)))
    return 0


@bands.command()
@BANDS_OPTION
@JSON_OPTION
def show(bands: Path | None, *, as_json: bool) -> int:
    """List the measured workloads and the bounds that follow from them.

    Example: verl-e2e bands show --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.judge_folder import described

    found = stored.run_folders(bands).bands
    click.echo(indented_json(found.model_dump(mode="json", by_alias=True)) if as_json else "\n".join(described(found)))
    return 0


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--baseline", "baselines", multiple=True, type=FOLDER, help="A run without the change; repeatable.")
@click.option(
    "--cap-share",
    type=click.FloatRange(0, 1),
    help="The largest share of responses that the length limit may cut, 0 to 1.",
)
@click.option("--plots", type=FOLDER, help="Write the curves into this folder, as SVG and PNG, light and dark.")
@JSON_OPTION
def signal(
    run: Path, baselines: tuple[Path, ...], cap_share: float | None, plots: Path | None, *, as_json: bool
) -> int:
    """Say whether a run learned: passed, flat, unstable, or not enough steps. It never says "converged".

    RUN and the baselines are run folders or bare logs. Without --baseline, the merge base runs that the folder
    names are used.

    Example: verl-e2e signal out/jobs/5-signal --baseline base/jobs/5-signal --plots plots
    """
    from verl_e2e.adapters.files.folders import draw_plots, run_folders
    from verl_e2e.adapters.files.logs import log_facts
    from verl_e2e.app.judge_folder import Source, signal_of, source_of
    from verl_e2e.core.report.comparison_text import render_signal, signal_json

    def source(path: Path) -> Source:
        return Source(path, log_facts(str(path))) if path.is_file() else source_of(run_folders(), path)

    found = signal_of(source(run), baselines=[source(baseline) for baseline in baselines], max_cap_share=cap_share)
    files = draw_plots(found.figure, plots) if plots else ()
    show = signal_json if as_json else render_signal
    click.echo(show(found.report, found.steps), nl=False)
    click.echo("".join(f"{path}\n" for path in files), nl=False, err=as_json)
    return 0


@click.command()
@click.argument("repository", metavar="OWNER/REPO")
@click.option(
    "--data",
    type=FOLDER,
    envvar="VERL_E2E_DATA",
    default="verl-e2e-data",
    show_default=True,
    help="The folder of the service, as in VERL_E2E_DATA; its database is used unless DATABASE_URL names another one.",
)
@click.option("--database", envvar="DATABASE_URL", default="", hidden=True)
@JSON_OPTION
def flaky(repository: str, data: str, database: str, *, as_json: bool) -> int:
    """List the causes that come and go in a repository, from the database of the service.

    Example: verl-e2e flaky NVIDIA-NeMo/Megatron-Bridge --json
    """
    from verl_e2e.cli.serve import be_private
    from verl_e2e.core.report.attempts_text import flaky_json, flaky_text
    from verl_e2e.wiring.engines import flaky_of

    be_private()
    found = flaky_of(database or f"sqlite:///{data}/verl-e2e.sqlite3", repository)
    click.echo(indented_json(flaky_json(found)) if as_json else flaky_text(found))
    return 0


@click.group(cls=Verbs)
def maps() -> None:
    """Record which functions real runs of the jobs entered. `explain` names the jobs that entered a function."""


@maps.command("add")
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="RUN...")
@click.option("--maps", required=True, type=FILE, help="The maps file to write; it is created when it does not exist.")
def add_maps_of(folders: tuple[Path, ...], maps: Path) -> int:
    """Add the execution record of whole runs to a maps file. A job that has a map gets the new one.

    A file whose name ends in .gz is packed.

    Example: verl-e2e maps add out/jobs/0-lora-ddp --maps .github/verl-e2e-maps.json
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.judge_folder import add_maps, described_maps

    found = add_maps(stored.run_folders(), stored.own_maps(maps), folders)
    stored.keep_maps(found, maps)
    click.echo("\n".join(described_maps(found)))
    return 0


@maps.command("list")
@MAPS_OPTION
@JSON_OPTION
def list_maps(maps: Path | None, *, as_json: bool) -> int:
    """List the measured jobs, with the number of functions that each entered and the commits.

    Example: verl-e2e maps list --maps .github/verl-e2e-maps.json
    """
    from verl_e2e.app.judge_folder import described_maps
    from verl_e2e.config.maps import known_maps

    found = known_maps(maps)
    click.echo(
        indented_json(found.model_dump(mode="json", by_alias=True)) if as_json else "\n".join(described_maps(found))
    )
    return 0

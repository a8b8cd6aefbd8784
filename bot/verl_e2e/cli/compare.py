"""The verbs that compare runs: parity, bands."""

from pathlib import Path

import click

from verl_e2e.cli.command import BANDS_OPTION, FOLDER, JSON_OPTION, Verbs, json_text

_FILE = click.Path(dir_okay=False, path_type=Path)
_KEPT = click.option(
    "--bands", required=True, type=_FILE, help="The bands file to write; it is created when it does not exist."
)


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("reference", type=FOLDER)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@BANDS_OPTION
@JSON_OPTION
def parity(run: Path, reference: Path, form: str, bands: Path | None, *, as_json: bool) -> int:
    """Compare two runs of the same training step by step, with a tolerance and a verdict for each metric.

    The runs should be equal, or differ only in their parallel sizes. Any other difference is reported. This command
    does not judge a level; `judge` does, with the runs that `check --parity` makes.

    Example: verl-e2e parity out/jobs/2-dense out/jobs/2-dense/related/unsharded
    """
    from verl_e2e.adapters.files import folders as stored
    from verl_e2e.app.compare_runs import compare_folders
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
    from verl_e2e.app.compare_runs import add_healthy, described

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
    from verl_e2e.app.compare_runs import add_pair, described

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
    from verl_e2e.app.compare_runs import described

    found = stored.run_folders(bands).bands
    click.echo(json_text(found.model_dump(mode="json", by_alias=True)) if as_json else "\n".join(described(found)))
    return 0

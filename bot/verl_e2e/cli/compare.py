"""The verbs that hold runs against each other: parity, bands."""

from pathlib import Path

import click

from verl_e2e.cli.command import BANDS_OPTION, FOLDER, JSON_OPTION, Verbs, json_text

_FILE = click.Path(dir_okay=False, path_type=Path)
_KEPT = click.option("--bands", required=True, type=_FILE, help="The bands file to write; made when it is not there.")


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("reference", type=FOLDER)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@BANDS_OPTION
@JSON_OPTION
def parity(run: Path, reference: Path, form: str, bands: Path | None, *, as_json: bool) -> int:
    """Show two runs of the same training step by step, with tolerances and a verdict for each metric.

    The runs should differ in their parallel sizes alone, or in nothing; what else differs is said. No level is
    judged here: `judge` does that, from the runs that `check --parity` makes.

    Example: verl-e2e parity out/jobs/2-dense out/jobs/2-dense/related/trivial_sizes
    """
    from verl_e2e.app.compare_runs import compare_folders
    from verl_e2e.core.report.comparison_text import render_report, render_report_markdown, report_json
    from verl_e2e.wiring import folders as wiring

    report = compare_folders(wiring.run_folders(bands), run, reference)
    if as_json:
        click.echo(report_json((report,)), nl=False)
    else:
        click.echo(render_report_markdown((report,)) if form == "markdown" else render_report(report), nl=False)
    return 0


@click.group(cls=Verbs)
def bands() -> None:
    """Keep what healthy runs measured: the bands and tolerances that later runs are judged by."""


@bands.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="FOLDER...")
@_KEPT
def add(folders: tuple[Path, ...], bands: Path) -> int:
    """Take healthy runs into a bands file; only folders that are judged Pass, and each run once.

    Example: verl-e2e bands add out/jobs/0-lora-ddp --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.app.compare_runs import add_healthy, described
    from verl_e2e.wiring import folders as wiring

    found = add_healthy(wiring.run_folders(), wiring.own_bands(bands), folders)
    wiring.keep_bands(found, bands)
    click.echo("\n".join(described(found)))
    return 0


@bands.command()
@click.argument("one", type=FOLDER)
@click.argument("other", type=FOLDER)
@_KEPT
def pair(path: Path, other: Path, bands: Path) -> int:
    """Take two runs of the same training into a bands file: all that differs between them is noise.

    Example: verl-e2e bands pair first/jobs/2-dense second/jobs/2-dense --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.app.compare_runs import add_pair, described
    from verl_e2e.wiring import folders as wiring

    found = add_pair(wiring.run_folders(), wiring.own_bands(bands), path, other)
    wiring.keep_bands(found, bands)
    click.echo("\n".join(described(found)))
    return 0


@bands.command()
@BANDS_OPTION
@JSON_OPTION
def show(bands: Path | None, *, as_json: bool) -> int:
    """List the probes that were measured, and the bounds that follow.

    Example: verl-e2e bands show --bands .github/verl-e2e-bands.yml
    """
    from verl_e2e.app.compare_runs import described
    from verl_e2e.wiring import folders as wiring

    found = wiring.run_folders(bands).bands
    click.echo(json_text(found.model_dump(mode="json", by_alias=True)) if as_json else "\n".join(described(found)))
    return 0

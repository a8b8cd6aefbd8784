"""The verbs about execution maps: what real runs of the jobs entered."""

from pathlib import Path

import click

from verl_e2e.cli.command import FOLDER, JSON_OPTION, MAPS_OPTION, Verbs, json_text

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Verbs)
def maps() -> None:
    """Record which functions real runs of the jobs entered. `explain` names the jobs that entered a function."""


@maps.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="RUN...")
@click.option("--maps", required=True, type=_FILE, help="The maps file to write; it is created when it does not exist.")
def add(folders: tuple[Path, ...], maps: Path) -> int:
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
    click.echo(json_text(found.model_dump(mode="json", by_alias=True)) if as_json else "\n".join(described_maps(found)))
    return 0

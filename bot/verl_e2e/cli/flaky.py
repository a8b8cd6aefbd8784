"""The verb that lists causes that come and go: flaky."""

import click

from verl_e2e.cli.command import FOLDER, JSON_OPTION, json_text


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

    A cause is listed when another attempt of the same job on the same head passed, or when several pull requests or a
    merge base had the same failure. Each has what an entry under `quarantine` of the policy file needs.

    Example: verl-e2e flaky NVIDIA-NeMo/Megatron-Bridge --json
    """
    from verl_e2e.cli.privacy import be_private
    from verl_e2e.core.report.attempts_text import flaky_json, flaky_text
    from verl_e2e.wiring.flaky import flaky_of

    be_private()
    found = flaky_of(database or f"sqlite:///{data}/verl-e2e.sqlite3", repository)
    click.echo(json_text(flaky_json(found)) if as_json else flaky_text(found))
    return 0

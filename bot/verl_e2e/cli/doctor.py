"""The verb that checks an installation: doctor."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from verl_e2e.cli.command import JSON_OPTION, json_text

if TYPE_CHECKING:
    from verl_e2e.core.pulls.checkup import Finding

EXIT_FINDINGS = 1
_MARKS = {"ok": "ok", "note": "note", "error": "FIX"}


@click.command()
@click.argument("repositories", nargs=-1, metavar="[OWNER/REPO]...")
@click.option(
    "--branch", default="", metavar="NAME", help="The branch to check; default: the repository's default branch."
)
@click.option(
    "--redeliver", is_flag=True, help="Ask GitHub to send the webhooks again that this service did not accept."
)
@JSON_OPTION
def doctor(repositories: tuple[str, ...], branch: str, *, redeliver: bool, as_json: bool) -> int:
    """Check the setup of the App, its repositories and this service. Each problem is shown with its fix.

    doctor reads the same settings as serve. Without OWNER/REPO it checks the repositories of VERL_E2E_REPOSITORIES.
    The exit code is 0 when everything is fine, 1 when you must fix something, and 2 for a mistake in the settings or
    arguments.

    Example: verl-e2e doctor NVIDIA-NeMo/Megatron-Bridge --redeliver
    """
    from verl_e2e.app.doctor import NETWORK
    from verl_e2e.cli.privacy import be_private, forget
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.core.pulls.checkup import State
    from verl_e2e.wiring.doctor import check_up

    be_private()
    settings, environ = load_settings(os.environ), dict(os.environ)
    forget(SECRETS)
    chosen = repositories or settings.repositories
    if not chosen:
        raise click.UsageError("name a repository, OWNER/REPO, or set VERL_E2E_REPOSITORIES")
    now = datetime.now(UTC)
    found: dict[str, tuple[Finding, ...]] = {}
    for name in chosen:
        found[name] = check_up(settings, name, branch, now, redeliver=redeliver, environ=environ)
        if any(finding.about == NETWORK for finding in found[name]):
            # Each other repository would wait for the same answer.
            break
    if as_json:
        click.echo(
            json_text({"schema": 2, "repositories": {name: list(map(_json, each)) for name, each in found.items()}})
        )
    else:
        click.echo("\n\n".join(_findings_text(name, findings) for name, findings in found.items()))
    return EXIT_FINDINGS if any(item.state is State.ERROR for findings in found.values() for item in findings) else 0


def _json(finding: "Finding") -> dict[str, str]:
    return {"about": finding.about, "state": finding.state, "sentence": finding.sentence, "fix": finding.fix}


def _findings_text(name: str, found: "Iterable[Finding]") -> str:
    lines = [name]
    for finding in found:
        lines.append(f"  {_MARKS[finding.state]:4}  {finding.about}: {finding.sentence}")
        if finding.fix:
            lines.append(f"        -> {finding.fix}")
    return "\n".join(lines)

"""The verb that looks at an installation: doctor."""

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
@click.option("--branch", default="", metavar="NAME", help="The branch to look at; default: the repository's own.")
@click.option("--redeliver", is_flag=True, help="Ask GitHub again for the webhooks that were not taken.")
@JSON_OPTION
def doctor(repositories: tuple[str, ...], branch: str, *, redeliver: bool, as_json: bool) -> int:
    """Check how the App, its repositories and this service are set up, each finding with its fix.

    Reads the same settings as serve. Without a repository it looks at those of VERL_E2E_REPOSITORIES.
    Exits with 0 when all is well, 1 when something is to be fixed, 2 for a mistake in what it was given.

    Example: verl-e2e doctor NVIDIA-NeMo/Megatron-Bridge --redeliver
    """
    from verl_e2e.app.doctor import NETWORK
    from verl_e2e.cli.privacy import be_private, forget
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.core.pulls.checkup import State
    from verl_e2e.wiring.doctor import check_up

    be_private()
    settings = load_settings(os.environ)
    forget(SECRETS)
    chosen = repositories or settings.repositories
    if not chosen:
        raise click.UsageError("name a repository, OWNER/REPO, or set VERL_E2E_REPOSITORIES")
    now = datetime.now(UTC)
    found: dict[str, tuple[Finding, ...]] = {}
    for name in chosen:
        found[name] = check_up(settings, name, branch, now, redeliver=redeliver)
        if any(finding.about == NETWORK for finding in found[name]):
            # It would be the same for each repository, after a wait for each.
            break
    if as_json:
        click.echo(
            json_text({"schema": 2, "repositories": {name: list(map(_json, each)) for name, each in found.items()}})
        )
    else:
        click.echo("\n\n".join(_text(name, ones) for name, ones in found.items()))
    return EXIT_FINDINGS if any(item.state is State.ERROR for ones in found.values() for item in ones) else 0


def _json(finding: "Finding") -> dict[str, str]:
    return {"about": finding.about, "state": finding.state, "sentence": finding.sentence, "fix": finding.fix}


def _text(name: str, found: "Iterable[Finding]") -> str:
    lines = [name]
    for finding in found:
        lines.append(f"  {_MARKS[finding.state]:4}  {finding.about}: {finding.sentence}")
        if finding.fix:
            lines.append(f"        -> {finding.fix}")
    return "\n".join(lines)

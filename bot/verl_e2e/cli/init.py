"""The verb that installs verl-e2e in a clone of Megatron-Bridge: init."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from verl_e2e import __version__
from verl_e2e.cli.command import FOLDER, this_checkout
from verl_e2e.cli.registering import code_of_app
from verl_e2e.core.text.escape import with_addresses

if TYPE_CHECKING:
    from verl_e2e.config.installation import InitAnswers
    from verl_e2e.wiring.installation import BridgeClone

_TOOL = f"verl-project/verl-e2e@v{__version__}"
_USUAL = "usual"
_PORT = click.IntRange(0, 65535)
_MODES = click.Choice(["action", "app"])


@click.command("init")
@click.option("--repo", type=FOLDER, default=this_checkout, show_default="this one", help="A clone of Megatron-Bridge.")
@click.option("--mode", type=_MODES, help="Workflows alone, or the service of a GitHub App; default: action.")
@click.option("--tool", metavar="OWNER/NAME@VERSION", help=f"Which verl-e2e runs; default: {_TOOL}.")
@click.option("--runners", metavar="LABELS", help="Runner labels: `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`.")
@click.option("--image", metavar="NAME:TAG", help="The container image of jobs; default: the packaged policy's.")
@click.option("--queue/--no-queue", default=None, help="Whether there is a merge queue, for action; default: none.")
@click.option("--address", metavar="URL", help="Where GitHub reaches the service, for app.")
@click.option("--service", type=FOLDER, help="Where the service's settings go, for app; default: ~/.config/verl-e2e.")
@click.option("--personal", is_flag=True, help="The App is of your own account, not of the repository's organisation.")
@click.option("--port", type=_PORT, default=0, help="The port of the App's page; default: a free one.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the default of what no option says.")
@click.option("--force", is_flag=True, help="Replace files that hold something else, and register another App.")
def init_verb(repo: Path, *, yes: bool, force: bool, personal: bool, port: int, **answers: Any) -> int:
    """Install verl-e2e in a clone of Megatron-Bridge: workflows, policy, and the branch that jobs run on.

    Asks at most five questions. Writes files and one local branch, pushes nothing, and replaces no file that holds
    something else. For the App it also serves a page on this machine that registers it.

    Example: verl-e2e init --yes
    """
    from verl_e2e.config.installation import JOB_WORKFLOW, InitAnswers, read_answers, read_image, service_address
    from verl_e2e.config.policy import packaged_policy
    from verl_e2e.core.pulls.forge import api_of
    from verl_e2e.ports import ForgeError
    from verl_e2e.wiring.installation import JOB_BRANCH, BridgeClone, commit_of, install_files

    clone = BridgeClone.at(repo)
    api_url = os.environ.get("GITHUB_API_URL") or api_of(clone.web)

    def ask(name: str, question: str, default: Any, **options: Any) -> Any:
        if answers[name] is not None:
            return answers[name]
        if yes and default is not None:
            return default
        try:
            return click.prompt(question, default=default, **options)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise click.UsageError(
                f"no answer to: {question}; give --{name}{'' if default is None else ', or --yes for the defaults'}"
            ) from None

    is_app = ask("mode", "Workflows alone, or a service with an App", "action", type=_MODES) == "app"
    tool = ask("tool", "Which verl-e2e, OWNER/NAME@VERSION", _TOOL)
    runners = ask("runners", "Labels of the GPU runners by number of GPUs", _USUAL)
    runners = "" if runners == _USUAL else runners
    image = read_image(ask("image", "Container image of jobs", str(packaged_policy().image)))
    if is_app:
        address = service_address(ask("address", "Where GitHub reaches the service, https://HOST", None))
        service = (answers["service"] or Path.home() / ".config/verl-e2e").absolute()
        if service.resolve().is_relative_to(repo.resolve()):
            fix = "where secrets could be committed; name another"
            raise click.UsageError(f"--service {service} is in the clone, {fix}")
    queue = not is_app and ask("queue", "Has the repository a merge queue", False, type=bool)  # noqa: FBT003
    name, revision = read_answers(tool, runners)
    try:
        commit = commit_of(name, revision, api_url)
    except ForgeError as error:
        if is_app:
            raise click.UsageError(f"{error}; give --tool {name}@SHA with all 40 digits") from None
        commit = revision
        click.echo(f"note: {error}; the workflows name the tag", err=True)
    made = InitAnswers(name, commit, revision if revision != commit else "", runners, image, queue)
    texts = made.app_files() if is_app else made.action_files()
    written = install_files(repo, texts, force=force)
    written[f"branch {JOB_BRANCH}"] = clone.write_branch(JOB_WORKFLOW, texts[JOB_WORKFLOW], force=force)
    if is_app:
        secrets, registered = _serve_app(
            made, clone, address, service, api_url, personal=personal, port=port, force=force
        )
        written |= registered
    for path, is_new in written.items():
        click.echo(f"{'wrote' if is_new else 'same '} {path}")
    there = f" -C {shlex.quote(str(repo))}" if repo != Path() else ""
    click.echo(
        f"\nNext, on a branch of your own or the default one:\n"
        f"  git{there} add {shlex.join(texts)}\n"
        f'  git{there} commit -m "Plan and test with verl-e2e"\n'
        f"  git{there} push origin HEAD {JOB_BRANCH}"
    )
    if is_app:
        click.echo(
            f"Then check it, and start the service:\n  set -a; . {shlex.quote(str(secrets))}; set +a\n"
            f"  verl-e2e doctor {clone.name}\n  verl-e2e serve"
        )
    last = "each pull request gets a plan. docs/install.md has the runners and the required check."
    click.echo(with_addresses(f"When that is on the default branch, {last}"))
    return 0


def _serve_app(
    made: "InitAnswers", clone: "BridgeClone", address: str, folder: Path, api_url: str, *, force: bool, **of_page: Any
) -> tuple[Path, dict[str, bool]]:
    """Write the service's settings, with an App that someone registers meanwhile; the file of its secrets, and which
    files are new.
    """
    from verl_e2e.config.installation import app_manifest
    from verl_e2e.wiring.installation import convert_manifest, install_files

    site, secrets = folder / "site.yml", folder / "verl-e2e.env"
    found = install_files(folder, {site.name: made.site_profile("here")}, force=force)
    found[secrets.name] = force or not secrets.exists()
    if found[secrets.name]:
        account = "" if of_page["personal"] else f"/organizations/{clone.name.partition('/')[0]}"
        code = code_of_app(
            f"{clone.web}{account}/settings/apps/new",
            lambda redirect: app_manifest(address, redirect),
            of_page["port"],
            lambda page: click.echo(f"Open {page} in a browser on this machine and register the App ..."),
        )
        app, page = convert_manifest(code, api_url)
        text = made.service_settings(app, clone.name, address, str(site))
        install_files(folder, {secrets.name: text}, force=True, private=True)
        click.echo(f"Install it: {page}/installations/new")
    return secrets, {str(folder / file): is_new for file, is_new in found.items()}

"""The verb that installs verl-e2e in a clone of Megatron-Bridge: init."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from verl_e2e import __version__
from verl_e2e.cli.command import FOLDER
from verl_e2e.core.text.addresses import with_addresses

_TOOL = f"verl-project/verl-e2e@v{__version__}"
_USUAL = "usual"


@click.command("init")
@click.option("--repo", type=FOLDER, default=".", show_default=True, help="A clone of Megatron-Bridge.")
@click.option("--mode", type=click.Choice(["action"]), help="How it runs.")
@click.option("--tool", metavar="OWNER/NAME@VERSION", help=f"Which verl-e2e runs; default: {_TOOL}.")
@click.option("--runners", metavar="LABELS", help="Runner labels: `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`.")
@click.option("--image", metavar="NAME:TAG", help="The container image of jobs; default: the packaged policy's.")
@click.option("--queue/--no-queue", default=None, help="Whether the repository has a merge queue; default: none.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the default of what no option says.")
@click.option("--force", is_flag=True, help="Replace files that hold something else.")
def init_verb(repo: Path, *, yes: bool, force: bool, **answers: Any) -> int:
    """Install verl-e2e in a clone of Megatron-Bridge: workflows, policy, and the branch that jobs run on.

    Asks at most five questions. Writes files and one local branch, pushes nothing, and replaces no file that holds
    something else. The last lines say what to type next.

    Example: verl-e2e init --yes
    """
    from verl_e2e.config.installation import JOB_WORKFLOW, InitAnswers, read_answers, read_image
    from verl_e2e.config.policy import packaged_policy
    from verl_e2e.core.pulls.forge import api_of
    from verl_e2e.ports import ForgeError
    from verl_e2e.wiring.installation import JOB_BRANCH, BridgeClone, commit_of, install_files

    clone = BridgeClone.at(repo)

    def ask(name: str, question: str, default: Any, **options: Any) -> Any:
        given = answers[name]
        try:
            return (
                given if given is not None else default if yes else click.prompt(question, default=default, **options)
            )
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise click.UsageError(f"no answer to: {question}; give --{name}, or --yes for the defaults") from None

    ask("mode", "Run it as workflows alone (action)", "action", type=click.Choice(["action"]))
    tool = ask("tool", "Which verl-e2e, OWNER/NAME@VERSION", _TOOL)
    runners = ask("runners", "Labels of the GPU runners by number of GPUs", _USUAL)
    runners = "" if runners == _USUAL else runners
    image = read_image(ask("image", "Container image of jobs", str(packaged_policy().image)))
    queue = ask("queue", "Has the repository a merge queue", False, type=bool)  # noqa: FBT003
    name, revision = read_answers(tool, runners)
    try:
        commit = commit_of(name, revision, os.environ.get("GITHUB_API_URL") or api_of(clone.web))
    except ForgeError as error:
        commit = revision
        click.echo(f"note: {error}; the workflows name the tag", err=True)
    made = InitAnswers(name, commit, revision if revision != commit else "", runners, image, queue)
    texts = made.action_files()
    written = install_files(repo, texts, force=force)
    branch = clone.write_branch(JOB_WORKFLOW, texts[JOB_WORKFLOW], force=force)
    for path, is_new in {**written, f"branch {JOB_BRANCH}": branch}.items():
        click.echo(f"{'wrote' if is_new else 'same '} {path}")
    there = f" -C {shlex.quote(str(repo))}" if repo != Path() else ""
    paths = shlex.join(texts)
    next_steps = (
        f"\nNext, on a branch of your own or the default one:\n"
        f"  git{there} add {paths}\n"
        f'  git{there} commit -m "Plan and test with verl-e2e"\n'
        f"  git{there} push origin HEAD {JOB_BRANCH}\n"
        "When that is on the default branch, each pull request gets a plan. docs/workflows/README.md has the runners"
        " and the required check."
    )
    click.echo(with_addresses(next_steps))
    return 0

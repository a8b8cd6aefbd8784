"""The verb of workflows: action."""

import os

import click

COMMANDS = ("event", "sweep", "order", "digest", "check-digest")


@click.command()
@click.argument("command", type=click.Choice(COMMANDS))
def action(command: str) -> int:
    """Run one step of a workflow. action.yml calls this; all settings are environment variables.

    `event` handles the event that started the workflow. `sweep` updates every open pull request with running jobs.
    `order` prepares a job on a GPU host, after it has checked that the head is still the same. `digest` prints the
    digest of the run folder. `check-digest` compares that digest on a machine that never ran the job.

    Example: verl-e2e action event
    """
    from verl_e2e.action import act
    from verl_e2e.cli.serve import be_private

    be_private()
    return act(command, os.environ, lambda sentence: click.echo(sentence, err=True))

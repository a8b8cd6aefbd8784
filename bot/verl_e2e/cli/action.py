"""The verb of workflows: action."""

import os

import click

COMMANDS = ("event", "sweep", "order", "digest", "check-digest")


@click.command()
@click.argument("command", type=click.Choice(COMMANDS))
def action(command: str) -> int:
    """Do what a step of a workflow asks for; action.yml calls this, with everything in the environment.

    `event` hears the event of the workflow run and reconciles what it is about, `sweep` looks at every open pull
    request with runs under way, `order` takes a job on a GPU host after reading its head again, `digest` gives the
    digest of its run folder, and `check-digest` compares it on a machine that never ran the job.

    Example: verl-e2e action event
    """
    from verl_e2e.action import act
    from verl_e2e.cli.privacy import be_private

    be_private()
    return act(command, os.environ, lambda sentence: click.echo(sentence, err=True))

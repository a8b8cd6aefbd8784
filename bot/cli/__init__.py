"""The command `verl-e2e`: the entry point that reads argv, environment and clock, and maps outcomes to exit codes."""

from bot.cli.acting import action
from bot.cli.command import cli, main
from bot.cli.comparing import bands, parity
from bot.cli.doctoring import doctor
from bot.cli.judging import card, judge, triage
from bot.cli.learning import signal
from bot.cli.planning import backtest, explain, plan, policy
from bot.cli.running import check, demo, run
from bot.cli.serving import serve

# In the order of a pull request's life.
for verb in (
    plan,
    explain,
    check,
    run,
    judge,
    card,
    parity,
    bands,
    signal,
    triage,
    policy,
    backtest,
    demo,
    serve,
    doctor,
    action,
):
    cli.add_command(verb)

__all__ = ["cli", "main"]

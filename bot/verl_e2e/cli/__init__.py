"""The command `verl-e2e`: the entry point that reads argv, environment and clock, and maps outcomes to exit codes."""

from verl_e2e.cli.command import cli, main
from verl_e2e.cli.judge import bands, card, flaky, judge, maps, parity, signal, triage
from verl_e2e.cli.plan import backtest, explain, plan, policy
from verl_e2e.cli.rehearse import rehearse
from verl_e2e.cli.run import check, demo, run
from verl_e2e.cli.serve import action, doctor, serve

# In the order of a pull request's life.
for verb in (
    plan,
    explain,
    rehearse,
    check,
    run,
    judge,
    card,
    parity,
    bands,
    maps,
    signal,
    triage,
    policy,
    backtest,
    demo,
    serve,
    doctor,
    flaky,
    action,
):
    cli.add_command(verb)

__all__ = ["cli", "main"]

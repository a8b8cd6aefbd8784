"""The command `verl-e2e`: the entry point that reads argv, environment and clock, and maps outcomes to exit codes."""

from verl_e2e.cli import init, judge, look, plan, rehearse, run, serve
from verl_e2e.cli.command import cli, main

# In the order of a pull request's life.
for verb in (
    init.init_verb,
    plan.plan_verb,
    plan.explain_verb,
    rehearse.rehearse_verb,
    run.check_verb,
    run.run_verb,
    look.watch_verb,
    look.logs_verb,
    judge.judge_verb,
    judge.card,
    look.open_verb,
    look.reproduce_verb,
    look.diff_verb,
    judge.parity_verb,
    judge.bands,
    judge.maps,
    judge.signal,
    judge.triage_verb,
    plan.policy,
    plan.backtest_verb,
    run.demo,
    serve.serve,
    serve.doctor,
    judge.flaky,
    serve.action,
):
    cli.add_command(verb)

__all__ = ["cli", "main"]

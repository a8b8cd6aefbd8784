"""The runbook of `docs/triage.md`: one short section for every rule, so that a card can link to it."""

from collections.abc import Sequence

from verl_e2e.core.triage.rules import Rule
from verl_e2e.core.triage.table import NOISE

_UNDECIDED = (
    "Where code of Bridge or Megatron-LM ran, the same job on the merge base decides whether the change caused it."
)


def runbook(rules: Sequence[Rule]) -> str:
    """Markdown: a heading with the rule's id as its anchor, what it means, what to do, and a real example."""
    return "\n".join(_section(rule) for rule in rules)


def noise_table() -> str:
    """Markdown: what is explained away after completion."""
    rows = [f"| `{rule.name}` | `{rule.example}` | {rule.source} |" for rule in NOISE]
    return "\n".join(["| name | example | from |", "| --- | --- | --- |", *rows]) + "\n"


def _section(rule: Rule) -> str:
    stage = f"`{rule.stage}`" if rule.stage is not None else "where the frames say, else where the run stood"
    undecided = f" {_UNDECIDED}" if rule.undecided else ""
    steps = "".join(f"{number}. {step}\n" for number, step in enumerate(rule.steps, 1))
    example = rule.example.strip("\n")
    return (
        f"### {rule.id}\n\n"
        f"{rule.cause[0].upper()}{rule.cause[1:]}. {rule.outcome}; stage: {stage}.{undecided}\n\n"
        f"What to do: {rule.fix}\n\n"
        + (f"{steps}\n" if steps else "")
        + f"```text\n{example}\n```\n\nFrom {rule.source}.\n"
    )

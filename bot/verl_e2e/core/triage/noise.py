"""Residual noise: what a run may print while it shuts down, after the requested steps completed."""

import re

from verl_e2e.core.model.facts import LogFacts, LoggedError, Noise
from verl_e2e.core.triage.survived import CAUGHT, survived_errors
from verl_e2e.core.triage.table import NOISE


def explain(facts: LogFacts) -> tuple[frozenset[LoggedError], tuple[Noise, ...]]:
    """The errors that are only noise, and all residual noise of the log."""
    explained: dict[LoggedError, str] = {}
    for error in facts.errors:
        name = noise_name(error)
        if name:
            explained[error] = name
    for error in survived_errors(facts):
        explained.setdefault(error, CAUGHT)
    noise = {note.name: note for note in facts.noise}
    for error, name in explained.items():
        known = noise.get(name)
        count = error.count + (known.count if known else 0)
        noise[name] = Noise(name, error.at if known is None else known.at, count)
    return frozenset(explained), tuple(sorted(noise.values(), key=lambda note: note.at.line))


def noise_name(error: LoggedError) -> str:
    """The name of the noise rule that explains an error, or empty."""
    if not error.after_completion:
        return ""
    text = f"{error.kind}: {error.message}"
    return next((rule.name for rule in NOISE if re.search(rule.pattern, text)), "")

"""Residual noise: what a run may print while it shuts down, after the requested steps completed."""

import re
from dataclasses import dataclass

from bot.core.facts import LogFacts, LoggedError, Noise


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """A known harmless error; `always` ones are harmless at any time, the others only after completion."""

    name: str
    pattern: str
    example: str
    always: bool = False


NOISE_RULES: tuple[NoiseRule, ...] = (
    NoiseRule(
        "dataloader-worker-killed",
        r"DataLoader worker .*(?:killed by signal|exited unexpectedly)",
        "RuntimeError: DataLoader worker (pid 8000) is killed by signal: Killed.",
    ),
    NoiseRule(
        "ray-worker-died",
        r"died or was killed while executing|ActorDied|ActorUnavailable|WorkerCrashed|Owner(?:'s|Died)|LocalRayletDied",
        "A worker died or was killed while executing a task by an unexpected system error.",
    ),
    NoiseRule(
        "engine-died",
        r"EngineDead|[Ee]ngine ?[Cc]ore .*(?:died|issue)|proc \w+ died unexpectedly",
        "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    ),
    NoiseRule(
        "terminated",
        r"^(?:Terminated|Killed|Signal|KeyboardInterrupt|SystemExit|CancelledError|asyncio\.exceptions\.CancelledError)",
        "*** SIGTERM received at time=1763648696 on cpu 3 ***",
    ),
    NoiseRule(
        "connection-closed",
        r"BrokenPipe|ConnectionReset|Connection(?:Refused|Aborted)|EOFError|Connection (?:closed|reset) by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ),
    NoiseRule(
        "late-shutdown",
        r"cannot schedule new futures after|Event loop is closed|can't create new thread at interpreter shutdown"
        r"|sys\.meta_path is None|leaked \w+ objects|atexit",
        "RuntimeError: cannot schedule new futures after interpreter shutdown",
    ),
)


def explain(facts: LogFacts) -> tuple[frozenset[LoggedError], tuple[Noise, ...]]:
    """The errors that are only noise, and all residual noise of the log."""
    explained: dict[LoggedError, str] = {}
    for error in facts.errors:
        name = noise_name(error)
        if name:
            explained[error] = name
    noise = {note.name: note for note in facts.noise}
    for error, name in explained.items():
        known = noise.get(name)
        count = error.count + (known.count if known else 0)
        noise[name] = Noise(name, error.at if known is None else known.at, count)
    return frozenset(explained), tuple(sorted(noise.values(), key=lambda note: note.at.line))


def noise_name(error: LoggedError) -> str:
    """The name of the noise rule that explains an error, or empty."""
    text = f"{error.kind}: {error.message}"
    for rule in NOISE_RULES:
        if (error.after_completion or rule.always) and re.search(rule.pattern, text):
            return rule.name
    return ""

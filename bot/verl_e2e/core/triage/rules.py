"""What a rule of triage is. The rules themselves are the rows of `verl_e2e.core.triage.table`, and nothing else is.

A rule recognises an error by where it comes from (`origin`), by its words (`message`, `kind`) or by the functions that
its traceback goes through (`calls`), or a fault that raises nothing by a fact of the log (`fact`). The first row that
matches decides; `docs/triage.md` has a section for every row.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from verl_e2e.core.model.facts import LogFacts, LoggedError
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.origin import Origin, others
from verl_e2e.core.triage.silent import FoundFault


class Fault(Enum):
    """Whose fault an error is.

    `OUTSIDE`: the host, the image, a package, the configuration of the run, the data, a signal - Blocked wherever
    it happens. `CODE`: the stage decides - Fail once construction of the model began, Blocked before. `TREES`: the
    source of Megatron-Bridge or Megatron-LM - Fail wherever it happens.
    """

    OUTSIDE = auto()
    CODE = auto()
    TREES = auto()


# Stages that a run may have been in, for the rows that ask for them.
AFTER_CONSTRUCTION = frozenset(
    stage for stage in Stage if Stage.BRIDGE_PROVIDER.order <= stage.order < Stage.SHUTDOWN.order
)
BEFORE_SYNC = frozenset(stage for stage in Stage if stage.order < Stage.EXPORT_WEIGHT_SYNC.order)
# Whatever runs on the GPU next to a worker that builds its model belongs to another run.
BEFORE_ENGINE = BEFORE_SYNC - {Stage.ROLLOUT_ENGINE}
BEFORE_PEFT = frozenset({Stage.ENVIRONMENT, Stage.RAY, Stage.DATA, Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.PEFT})


# What each comes to, in words: the one source of runbook and `--explain`.
OUTCOME: Mapping[Fault, str] = {
    Fault.OUTSIDE: "Blocked wherever it happens",
    Fault.CODE: "Fail once construction of the model began, Blocked before",
    Fault.TREES: "Fail wherever it happens",
}
SILENT_OUTCOME: Mapping[Fault, str] = {Fault.OUTSIDE: "Blocked", Fault.CODE: "Fail", Fault.TREES: "Fail"}


@dataclass(frozen=True, slots=True)
class TriageRule:
    """How one kind of fault is recognised, and what it means.

    All conditions that are given must match, but `origin` or `message` alone is enough. In a rule about the host, words
    of an error that the program itself raised do not count. A rule with `fact` matches no error.
    """

    # Its name, as users see it.
    id: str
    # Whether the program or something outside of it is at fault.
    fault: Fault
    # What happened, as a clause for the card.
    cause: str
    # What to do, one sentence for the card.
    fix: str
    # A fragment of a real log, or of the message in the source, that only this rule explains correctly.
    example: str
    # Project, file and function that print it, or the public log that it was taken from.
    source: str
    # The stage of the fault; None: where the frames say, else the stage that the run was in.
    stage: Stage | None = None
    # Where the error comes from.
    origin: Origin | None = None
    # A pattern that is searched in `Kind: message` of every exception of the chain.
    message: str = ""
    # A pattern of the root exception's name.
    kind: str = ""
    # A pattern of the `path:function` lines of the frames.
    calls: str = ""
    # The stages that the run may have been in.
    stood: frozenset[Stage] | None = None
    # Whether the frames say where an error happened, whichever rule explains it.
    places: bool = False
    # What finds a fault that raises nothing in the facts of a log, None for an error.
    fact: Callable[[LogFacts], FoundFault | None] | None = None
    # Of a fault outside: whether a change of Megatron-Bridge or Megatron-LM may cause it too, where their code ran.
    undecided: bool = False
    # What the runbook adds, one step each.
    steps: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """What the rule comes to, in words."""
        if self.fact is not None:
            return f"Raises nothing: found in the facts of the log, {SILENT_OUTCOME[self.fault]}"
        return OUTCOME[self.fault]

    def matches(self, error: LoggedError, origin: Origin | None) -> bool:
        """Whether this rule explains `error`, which comes from `origin`."""
        if self.fact is not None or not self.may_stand(error):
            return False
        if self.kind and not _compiled(self.kind).search(error.kind):
            return False
        if self.calls and not self.locates(error.calls):
            return False
        if self.origin is not None and self.origin is origin:
            return True
        if not self.message:
            return self.origin is None
        texts = [f"{error.kind}: {error.message}", *error.chain]
        if origin is Origin.PROGRAM and self.fault is Fault.OUTSIDE:
            texts = [f"{kind}: {message}" for kind, message in others(error)]
        return any(_compiled(self.message).search(text) for text in texts)

    def may_stand(self, error: LoggedError) -> bool:
        """Whether the run was in a stage that the rule is for."""
        return self.stood is None or error.stage in self.stood

    def locates(self, calls: tuple[str, ...]) -> bool:
        """Whether frames are those of this rule; False for a rule without `calls`."""
        return bool(self.calls) and _compiled(self.calls).search("\n".join(calls)) is not None


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """An error that a run may print while it shuts down, after the requested steps completed."""

    name: str
    pattern: str
    example: str
    source: str


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)

"""The rules of triage: ordered, frozen data. The first rule that matches an error decides.

`bot.core.triage_causes` lists what is recognised by its words, whatever the stage; `bot.core.triage_phases` what is
recognised by the functions that the traceback goes through. `docs/triage.md` has a section for every rule.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from bot.core.facts import LoggedError
from bot.core.stages import Stage


class Fault(Enum):
    """Whose fault an error is.

    `OUTSIDE`: the host, the image, a package, the configuration of the run, the data, a signal - Blocked wherever
    it happens. `CODE`: the stage decides - Fail once Bridge-managed construction began, Blocked before.
    """

    OUTSIDE = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of error is recognised, and what it means.

    `message`, `kind` and `calls` are regular expressions, `stood` the stages that the run may have been in; what
    is given must all match. `message` is searched in `Kind: message` of every exception of the chain, `kind` in
    the root's name, `calls` in the `path:function` lines of the frames. `stage` None means: where the frames say,
    else where the run stood. `example` is a fragment of a real log (or of the message in the named source) that
    only this rule explains rightly; `source` says where it is from.
    """

    id: str
    fault: Fault
    cause: str
    mend: str
    example: str
    source: str
    stage: Stage | None = None
    message: str = ""
    kind: str = ""
    calls: str = ""
    stood: frozenset[Stage] | None = None
    context: str = ""

    def matches(self, error: LoggedError) -> bool:
        """Whether this rule explains `error`."""
        if self.stood is not None and error.stage not in self.stood:
            return False
        if self.kind and not _compiled(self.kind).search(error.kind):
            return False
        if self.calls and not _compiled(self.calls).search("\n".join(error.calls)):
            return False
        if not self.message:
            return True
        texts = (f"{error.kind}: {error.message}", *error.chain)
        return any(_compiled(self.message).search(text) for text in texts)


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)

"""The errors of a log, folded: the same exception from many workers or many times is one error with a count."""

import re
from collections.abc import Sequence
from dataclasses import replace

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.messages import MAX_TEXT
from verl_e2e.core.log.records import goes_on, record_of
from verl_e2e.core.log.traceback import MAX_FRAMES, Chain
from verl_e2e.core.model.facts import LoggedError, Record
from verl_e2e.core.model.stages import Stage

MAX_ERRORS = 200
MAX_CALLS = 80
RETRY_LINES = 8

# Messages of a process that only noticed that another one died: never the root.
_SECONDARY = re.compile(
    r"[Ss]ee (?:root cause|stack trace)|initialization failed due to an exception in a background process"
    r"|[Ee]ngine ?[Cc]ore .*(?:died|issue|initialization failed)|died unexpectedly|The actor (?:died|is dead|is "
    r"unavailable)"
    r"|[Cc]onnection (?:closed|reset) by peer|worker process .*died|process .* terminated with|cancelled by "
    r"another rank"
    r"|The node .* marked dead|Owner's node has crashed|remote process exited|communicator was aborted"
    r"|store->get\(|recv(?:Value|Bytes) failed|[Bb]roken pipe|check the stack trace above"
    # verl's replay buffer, when every sample of the step has failed and was logged as such.
    r"|no materializable trajectories"
)
_SECONDARY_KINDS = re.compile(
    r"(?:ActorDied|ActorUnavailable|RayActor|EngineDead|WorkerCrashed|ChildFailed|ProcessRaised|ProcessExited"
    r"|Cancelled|ConnectionReset|BrokenPipe|OwnerDied|TaskUnschedulable|LocalRayletDied|NodeDied|CollectiveTimeout)\w*$"
    r"|RayTaskError\("
)
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']{0,200}'")


# An engine that died serves no request any more, and its caller may wait for the answer without an end.
_DEADLY = frozenset({"EngineDeadError", "CollectiveTimeout"})
# The files that an error of the driver goes through: verl's entry point, and our look at what it waits for in Ray.
_OF_DRIVER = ("main_ppo.py", "verl_e2e_demands.py")


class ErrorBook:
    """Collects errors in the order of their first lines; bounded."""

    def __init__(self) -> None:
        self._errors: list[LoggedError] = []
        self._index: dict[tuple[str, str, str], int] = {}
        self.driver: LoggedError | None = None
        # The first death after which the run cannot go on, whatever its driver waits for.
        self.deadly: LoggedError | None = None

    def copy(self) -> "ErrorBook":
        """A book with the same errors that may be added to."""
        other = ErrorBook()
        other._errors, other._index = list(self._errors), dict(self._index)
        other.driver, other.deadly = self.driver, self.deadly
        return other

    def all(self) -> tuple[LoggedError, ...]:
        """Every error kept, by line."""
        return tuple(sorted(self._errors, key=lambda error: error.at.line))

    def add_line(
        self, kind: str, line: Line, stood: Stage, *, message: str = "", completed: bool = False, soft: bool = False
    ) -> None:
        """An error line without a traceback; its message is the whole line unless it is given."""
        message = message or line.text.strip()
        excerpt = line.excerpt()
        self.add(
            LoggedError(
                at=excerpt,
                kind=kind,
                message=message[: MAX_FRAMES * 25],
                frames=(),
                actor=line.actor,
                pid=line.pid,
                stage=stood,
                after_completion=completed,
                secondary=_is_secondary(kind, line.text),
                soft=soft,
                record=_of_lone(line.text),
                full_message=message[:MAX_TEXT],
            )
        )

    def explain(self, line: int, message: str) -> None:
        """The error at `line` has a longer message."""
        for index, error in enumerate(self._errors):
            if error.at.line == line:
                self._errors[index] = replace(error, full_message=message)

    def caught(self, line: Line) -> None:
        """The process of `line` says that it tries again: it had caught what it printed last."""
        for index in range(len(self._errors) - 1, -1, -1):
            error = self._errors[index]
            near = 0 <= line.number - max(error.at.line, error.last) <= RETRY_LINES
            if near and (error.actor, error.pid) == (line.actor, line.pid) and not error.driver:
                self._errors[index] = replace(error, record=max(error.record, Record.ERROR, key=list(Record).index))
                return

    def add(self, error: LoggedError) -> None:
        """An error that was read whole; one that is known already is counted."""
        key = folding_key(error)
        known = self._index.get(key)
        if known is not None:
            error = fold(self._errors[known], error)
            self._errors[known] = error
        elif len(self._errors) < MAX_ERRORS:
            self._index[key] = len(self._errors)
            self._errors.append(error)
        if error.driver:
            self.driver = error
        if self.deadly is None and not error.after_completion and error.kind.rpartition(".")[2] in _DEADLY:
            self.deadly = error


def settled(errors: Sequence[LoggedError], tail: Sequence[Line]) -> tuple[LoggedError, ...]:
    """The errors; those below which the same process printed something else are marked as over."""
    return tuple(replace(error, over=True) if _goes_on_below(error, tail) else error for error in errors)


def _goes_on_below(error: LoggedError, tail: Sequence[Line]) -> bool:
    last = max(error.at.line, error.last)
    own = (line for line in tail if line.number > last and (line.actor, line.pid) == (error.actor, error.pid))
    return any(goes_on(line.text) for line in own)


def _of_lone(text: str) -> Record:
    """A line that states that it is only a warning."""
    return Record.WARNING if record_of(text) is Record.WARNING else Record.RAISED


def folding_key(error: LoggedError) -> tuple[str, str, str]:
    """Equal for errors of one run that are one error."""
    phase = "after" if error.after_completion else "before"
    return (error.kind, unvaried(error.message), phase)


def unvaried(text: str) -> str:
    """The beginning of a message without what varies from one time to the next."""
    return _VARYING.sub("#", text.strip()[:200])


def error_of(chain: Chain, line: Line, stood: Stage, *, completed: bool, driver: bool) -> LoggedError | None:
    """The chain as one error, or None when it holds nothing but blank frames."""
    root = chain.root()
    if root is None:
        return None
    calls = chain.calls()[:MAX_CALLS]
    others = chain.others()
    remote = any("RayTaskError" in other for other in others) or "RayTaskError" in root.kind
    return LoggedError(
        at=root.at,
        kind=root.kind,
        message=root.message,
        frames=_files(calls),
        actor=line.actor,
        pid=line.pid,
        stage=stood,
        after_completion=completed,
        calls=calls,
        chain=others[:MAX_FRAMES],
        driver=driver or (line.driver and (remote or any(file in call for call in calls for file in _OF_DRIVER))),
        secondary=_is_secondary(root.kind, root.message),
        repeated=line.source.endswith(FOLDED),
        frame=chain.frame(),
        full_message=str(root.text),
    )


def _files(calls: tuple[str, ...]) -> tuple[str, ...]:
    files = (call.rsplit(":", 1)[0] for call in calls if not call.startswith("ray::"))
    return tuple(dict.fromkeys(files))[:MAX_FRAMES]


def fold(known: LoggedError, again: LoggedError) -> LoggedError:
    """The one that was printed first, with what the other adds: a count, the driver's frames, a longer chain."""
    first = min(known, again, key=lambda error: (error.repeated, error.at.line))
    longer = again if len(again.calls) > len(known.calls) else known
    return replace(
        first,
        count=known.count + 1,
        last=max(known.at.line, again.at.line, known.last, again.last),
        driver=known.driver or again.driver,
        soft=known.soft and again.soft,
        calls=longer.calls,
        frames=longer.frames,
        chain=longer.chain or known.chain,
        record=min(known.record, again.record, key=list(Record).index),
        frame=longer.frame or known.frame or again.frame,
        full_message=max(known.full_message, again.full_message, key=len),
    )


def _is_secondary(kind: str, message: str) -> bool:
    return bool(_SECONDARY.search(message) or _SECONDARY_KINDS.search(kind))

"""The errors of a log, folded, and what its last lines say of the end of the run.

The same exception from many workers or many times is one error with a count.

Schedulers, container runtimes, CI systems, kernels and native libraries all print their last word in a form of their
own. What is common to them is looked for: something that holds the run (a job, a step, a pod, a node), and its fate or
the limit that it passed; a process with the signal or the status that it ended by; a line at a native library's level
of error. Only the end of a log is read like this, for anywhere else such words may be about anything.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.traceback import BARE_SHAPE, MAX_FRAMES, MAX_TEXT, Chain, goes_on, record_of
from verl_e2e.core.model.facts import LoggedError, TracebackRecord
from verl_e2e.core.model.outcome import Stage

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


def is_deadly(error: LoggedError) -> bool:
    """Whether the run cannot go on after it, whatever its driver waits for."""
    return not error.after_completion and error.kind.rpartition(".")[2] in _DEADLY


def lone_error(kind: str, line: Line, message: str, *, stood: Stage, completed: bool, soft: bool) -> LoggedError:
    """An error line without a traceback; its message is the whole line unless it is given."""
    message = message or line.text.strip()
    return LoggedError(
        at=line.excerpt(),
        kind=kind,
        message=message[: MAX_FRAMES * 25],
        actor=line.actor,
        pid=line.pid,
        stage=stood,
        after_completion=completed,
        secondary=_is_secondary(kind, line.text),
        soft=soft,
        # A line may state that it is only a warning.
        record=TracebackRecord.WARNING if record_of(line.text) is TracebackRecord.WARNING else TracebackRecord.RAISED,
        full_message=message[:MAX_TEXT],
    )


def was_caught(error: LoggedError, line: Line) -> bool:
    """Whether an error is what the process of `line`, which says that it tries again, printed last."""
    near = 0 <= line.number - max(error.at.line, error.last) <= RETRY_LINES
    return near and (error.actor, error.pid) == (line.actor, line.pid) and not error.driver


def as_caught(error: LoggedError) -> LoggedError:
    """The error as one that its program had caught, unless it is known better."""
    return replace(error, record=max(error.record, TracebackRecord.ERROR, key=list(TracebackRecord).index))


def settled(error: LoggedError, tail: Sequence[Line]) -> LoggedError:
    """The error, marked as over where the same process printed something else below it."""
    last = max(error.at.line, error.last)
    own = (line for line in tail if line.number > last and (line.actor, line.pid) == (error.actor, error.pid))
    return replace(error, over=True) if any(goes_on(line.text) for line in own) else error


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


def fold(known: LoggedError, again: LoggedError) -> LoggedError:
    """The one that was printed first, with what the other adds: a count, the driver's frames, a longer chain."""
    first = min(known, again, key=lambda error: (error.repeated, error.at.line))
    longer = again if len(again.calls) > len(known.calls) else known
    return replace(
        first,
        count=known.count + again.count,
        last=max(known.at.line, again.at.line, known.last, again.last),
        driver=known.driver or again.driver,
        soft=known.soft and again.soft,
        calls=longer.calls,
        chain=longer.chain or known.chain,
        record=min(known.record, again.record, key=list(TracebackRecord).index),
        frame=longer.frame or known.frame or again.frame,
        full_message=max(known.full_message, again.full_message, key=len),
    )


def _is_secondary(kind: str, message: str) -> bool:
    return bool(_SECONDARY.search(message) or _SECONDARY_KINDS.search(kind))


TAIL_LINES = 48
EXIT_STATUS = "ExitStatus"
_HARD = frozenset(
    {"Cancelled", "HostMemory", "NoSpace", "WorkerDied", "WatchdogTimeout", "Killed", "Terminated", "Signal"}
)
# An exception without a message.
_BARE = re.compile(BARE_SHAPE.replace("(?:: |$)", r"\s*$"))

_HOLDER = (
    r"(?:job|task ?run|task|step|pod|node|run|runner|operation|build|workflow|pipeline|instance|container|allocation"
    r"|workspace|vm|virtual machine|reservation|machine|host|agent|cluster|executor|stage)s?"
)
_FATE = (
    r"(?:cancel?led|preempted|evicted|revoked|terminated(?! normally| with exc)|killed|aborted|stopped|deleted"
    r"|reclaimed|interrupted|drained|requeued|shut ?down|timed out|expired|removed|lost)"
)
_LIMIT = (
    r"(?:time[- ]?limit|wall ?(?:time|clock)(?: limit)?|wclimit|deadline|run ?(?:time )?limit"
    r"|max(?:imum)? (?:allowed )?"
    r"(?:execution |run |job )?(?:time|duration|runtime)|activeDeadlineSeconds|grace period|time ?out|h_rt|s_rt)"
)
_PASSED = r"(?:exceed\w*|reach\w*|expired?|hit|passed|over|ran out|longer than|elapsed)"
_OUTSIDE = re.compile(
    rf"\b{_HOLDER}\b.{{0,80}}?\b(?:was|is|been|being|got|has|have|be|will be|:)?\s*{_FATE}\b"
    rf"|\b(?:{_FATE}|cancel?ling|aborting|killing|terminating|stopping)\b.{{0,60}}\b(?:by|due to|because|on|for"
    rf"|at)\b.{{0,60}}\b(?:user|admin\w*|scheduler|signal|system|limit|"
    rf"preempt\w+|maintenance|timeout|deadline|{_LIMIT})"
    rf"|\b(?:ran|took|running|active|execution|job|step|build|task|pod|has)\b.{{0,60}}\b(?:longer than"
    rf"|{_PASSED})\b.{{0,60}}"
    rf"(?:{_LIMIT}|\b\d+ ?[smh])"
    rf"|\b{_LIMIT}\b.{{0,60}}\b{_PASSED}\b|\b{_PASSED}\b.{{0,60}}\b{_LIMIT}\b"
    r"|\b(?:shutdown|cancel\w*|interrupt\w*|preempt\w*|terminat\w*|evict\w*) (?:signal|notice|request|event)"
    r"|\b(?:spot|preemptible)\b.{0,60}\b(?:interrupt|reclaim|terminat|preempt)"
    r"|\bsending (?:signal )?(?:SIG)?(?:TERM|KILL|INT)\b|\breceived (?:a )?(?:SIGTERM|SIGINT|SIGUSR\d|signal (?:2"
    r"|10|12|15)\b|"
    r"(?:2|10|12|15) death signal)|\bforc(?:ed?|ing)\b.{0,20}\bterminat|\bTERM_(?!MEM)\w+|\b(?:DeadlineExceeded"
    r"|Evicted|Preempt(?:ed|ing)|"
    r"NodeLost|NODE[_ ]FAIL\w*|JobCancell?ed|RunCancell?ed)\b"
    r"|\b(?:caught|got|received|handling) (?:a )?(?:signal )?(?:SIG(?:TERM|INT|HUP|USR\d)|(?<=signal )(?:1|2|10"
    r"|12|15)\b)"
    r"|\bSIG(?:TERM|INT|HUP)\b.{0,20}\b(?:received|caught|sent)|\b(?:job|step|task|build|run"
    r"|action)\b.{0,30}\btime(?:d |-)?out\b"
    r"|^(?:make\S*: \*\*\* \[.{1,80}\] |.{0,60}: line \d+: +\d+ )?(?:Terminated|Hangup)\b",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"\boom[- _]?kill|\bOut of memory: Kill|memory cgroup out of memory|\b(?:TERM_MEMLIMIT|OutOfMemory(?:Killed)?)\b"
    r"|\b(?:memory|mem|rss|vmem|RAM)\b.{0,40}\b(?:limit|quota|request)\b.{0,40}\b(?:exceed|reach|hit|over|pass)"
    r"|\b(?:memory|mem|rss|vmem)\b.{0,30}\bexceed\w*.{0,20}\blimit|\b(?:exceed\w*|beyond|over|reached|hit"
    r"|above)\b.{0,60}\b(?:physical |virtual |job |host |container |cgroup )?(?:memory|mem|rss|vmem)\b"
    r"|\blow on (?:resource: )?memory|\bran out of (?:host |system )?memory|\bmemory pressure\b.{0,40}\bkill",
    re.IGNORECASE,
)
_SPACE = re.compile(
    r"\bephemeral[- ]?(?:local )?storage\b.{0,60}(?:limit|exceed)|(?:exceed"
    r"|limit).{0,60}\bephemeral[- ]?(?:local )?storage"
    r"|low on resource: (?:ephemeral-storage|disk|inodes)|\bdisk pressure\b",
    re.IGNORECASE,
)
POSSIBLE = re.compile(
    r"(?i)\b(?:some|common|likely|potential|possible|probable) (?:\w+ ){0,2}causes?\b|\b(?:may|might|could) be\b"
)
"""What reports add when they do not know the reason: nothing behind it is one."""
_HANG = re.compile(
    r"(?i)\bwatchdog\b(?![-_=]).{0,160}(?:\bstuck|\bhang|\bhung|\btime[d ]?-? ?out|\bexpired|\bno progress|\btriggered"
    r"|\bfired|lockup)|\bheartbeat(?: monitor)?\b.{0,80}(?:timed? ?out|expired|not received)|\bdid not (?:get"
    r"|receive)\b.{0,30}\bheartbeat|\bhang (?:was )?detected|\bno progress (?:for|in|since)\b|\bsoft lockup"
    r"|\b(?:blocked|stuck|hung) for (?:more than )?\d+ ?s|\bmade no progress\b"
)
_GPU = re.compile(r"(?i)\b(?:cuda|gpu|device|hip|xpu|npu|hbm|accelerator)\b")
_STATUS = re.compile(
    r"(?i)\b(?:exit(?:ed)?|return(?:ed)?|status|failed|died)\b.{0,40}?\b(?:code|status|value)?[ :=]{1,3}-?(\d{1,3})\b"
)
_SIGNAL = re.compile(
    r"(?i)\b(?:(?:on|by|with|signal|received) (?:signal )?|(?=status=\d))(?:(\d{1,2}) \(|SIG"
    r"|status=(?=\d+/)\d+/)(KILL|TERM|SEGV|ABRT|BUS|ILL|FPE|INT)?"
)
_BY_STATUS = {137: "Killed", 9: "Killed", 143: "Terminated", 15: "Terminated"} | dict.fromkeys(
    (132, 134, 135, 136, 139, 4, 6, 7, 8, 11), "Signal"
)
_BY_NAME = {"KILL": "Killed", "TERM": "Terminated", "INT": "Terminated"}
_PROCESS = re.compile(
    r"(?i)\bMPI_ABORT was invoked|\bmpi(?:run|exec)\b.{0,40}\bnoticed|\bnon-zero (?:exit|return)"
    r"|\btask \d+: Exited with exit code|\bpr(?:te|un)\w*\b.{0,40}\bnoticed|\bORTE has lost communication"
    r"|\bPMIX? ?(?:ERROR|abort)|\b(?:child|worker|rank) .{0,40}\bexited (?:with|unexpectedly)"
)
# The level of an error as absl, glog and PyTorch print it, as other libraries do, and words that only a failure has.
_NATIVE = re.compile(
    r"^\[?[EFC]\d{0,4} ?(?:\d\d:\d\d:\d\d[.\d]* |\S+\.(?:cpp|cc|cu|c|hpp|h|rs|go):\d+)|^\[[EFC] "
    r"|^\[[^\]]{10,40} [EFC] \d+ \d+\]|\b(?:FATAL|CRITICAL|PANIC|ERROR)\b|^\W{0,3}(?i:fatal|error|panic|abort\w*)\b"
    r"|(?i:\b(?:fatal error|panicked|assertion\b.{0,200}\bfailed|check failed|aborted|aborting|unrecoverable"
    r"|hang detected|fail(?:ed|ure|s)?|received signal|fault)\b|\bhung\b|\bstuck (?:for|at|in)\b|NCCL WARN"
    r"|\berror(?: code)?\W{1,3}-?\d|\b(?:terminating|killing|exiting)\b)|\b[A-Z]{2,}(?:_[A-Z]+)*_(?:ERROR|FAILED"
    r"|LOST)\w*"
)
# The status of what held the run, in the words of schedulers, CI systems, containers, make, MPI and Ray.
_FAILED = re.compile(
    r"(?i)\b(?:exit(?:ed)? ?(?:with )?(?:exit )?(?:code|status)|non-zero (?:exit )?(?:code|status))"
    r"\W{0,8}(?<!-)\d*[1-9]\d*\b"
    r"|\b(?:with|returned|returned a) non-zero (?:exit )?(?:code|status|return)|\bjob \S{1,80} failed$|\bjob failed\b"
    r"|^make\S*: \*\*\* .{1,200}\bError \d|\bOOM[- _]?Kill|\btask \d+: .{1,60}\(core dumped\)"
)
_NONE = re.compile(r"(?i)\b(?:0|no) (?:workers?|tasks?|jobs?|pods?|process(?:es)?|errors?)\b")
_RAY_WARNS = re.compile(r"\[[^\]]{10,40} [WID] \d+ \d+\]")
_HARMLESS = re.compile(
    r"(?i)(?<!NCCL )\b(?:warn(?:ing)?|info|debug)\b|\bno errors?\b|\b0 errors?\b|HYDRA_FULL_ERROR"
    r"|^Error executing job|error_if|errors?[=:] ?0\b"
)


def last_words(tail: Sequence[Line]) -> Iterator[tuple[str, Line]]:
    """Kind and line of every statement on the end in the last lines of a log; of native errors only the last."""
    native: Line | None = None
    for line in tail:
        text = line.text
        if not text.strip() or text[0].isspace():
            continue
        bare = _BARE.match(text)
        kind = _kind_of(line) if bare is None else bare[0].strip()
        if kind:
            yield kind, line
        elif _NATIVE.search(text) and not _HARMLESS.search(text[:80]):
            native = line
    if native is not None:
        yield "NativeError", native


def failed_exit(tail: Sequence[Line], after: int) -> Line | None:
    """The first line below line `after` that gives the run a status other than zero; no process of the run can."""
    rows = (line for line in tail if line.number > after and line.pid is None and not _RAY_WARNS.match(line.text))
    return next((line for line in rows if _FAILED.search(line.text[:500])), None)


def is_soft(kind: str) -> bool:
    """Whether a run may survive what is printed like this."""
    return kind not in _HARD


def _kind_of(line: Line) -> str:
    """What states the end: only what holds a run can, and not one of its own workers."""
    text = POSSIBLE.split(line.text[:500])[0]
    if _NONE.search(text):
        return ""
    if _HANG.search(text):
        return "WatchdogTimeout"
    if line.pid is not None or _RAY_WARNS.match(text):
        return ""
    if _SPACE.search(text):
        return "NoSpace"
    if _MEMORY.search(text) and not _GPU.search(text):
        return "HostMemory"
    signal, status, by = _SIGNAL.search(text), _STATUS.search(text), ""
    if signal is not None and (signal[1] or signal[2]):
        by = _BY_NAME.get((signal[2] or "").upper()) or _BY_STATUS.get(int(signal[1] or 6), "")
    elif status is not None and int(status[1]) >= 128:
        by = _BY_STATUS.get(int(status[1]), "")
    return by or ("WorkerDied" if _PROCESS.search(text) else "Cancelled" if _OUTSIDE.search(text) else "")

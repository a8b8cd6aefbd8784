"""How the last lines of a log say that a run ended, where no Python exception says it.

Schedulers, container runtimes, CI systems, kernels and native libraries all print their last word in a form of their
own. What is common to them is looked for: something that holds the run (a job, a step, a pod, a node), and its fate or
the limit that it passed; a process with the signal or the status that it ended by; a line at a native library's level
of error. Only the end of a log is read like this, for anywhere else such words may be about anything.
"""

import re
from collections.abc import Iterator, Sequence

from verl_e2e.core.log.lines import Line
from verl_e2e.core.log.traceback import BARE_SHAPE

TAIL_LINES = 48
CANCELLED, MEMORY, SPACE, DIED, NATIVE = "Cancelled", "HostMemory", "NoSpace", "WorkerDied", "NativeError"
HANG = "WatchdogTimeout"
EXIT_STATUS = "ExitStatus"
_HARD = frozenset({CANCELLED, MEMORY, SPACE, DIED, HANG, "Killed", "Terminated", "Signal"})
# An exception without a message.
_BARE = re.compile(BARE_SHAPE.replace("(?:: |$)", r"\s*$"))

_HOLDER = (
    r"(?:job|task ?run|task|step|pod|node|run|runner|operation|build|workflow|pipeline|instance|container|allocation"
    r"|workspace|vm|virtual machine|reservation|machine|host|agent|cluster|executor|stage)s?"
)
_FATE = (
    r"(?:cancel?led|preempted|evicted|revoked|terminated(?! normally| with exc)|killed|aborted|stopped|deleted"
    r"|reclaimed"
    r"|interrupted|drained"
    r"|requeued|shut ?down|timed out|expired|removed|lost)"
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
    r"|\b(?:memory|mem|rss|vmem)\b.{0,30}\bexceed\w*.{0,20}\blimit"
    r"|\b(?:exceed\w*|beyond|over|reached|hit|above)\b.{0,60}\b(?:physical |virtual |job |host |container "
    r"|cgroup )?(?:memory|mem|rss|vmem)\b"
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
    r"(?i)\bwatchdog\b(?![-_=]).{0,160}(?:\bstuck|\bhang|\bhung|\btime[d ]?-? ?out|\bexpired|\bno progress"
    r"|\btriggered|\bfired|lockup)"
    r"|\bheartbeat(?: monitor)?\b.{0,80}(?:timed? ?out|expired|not received)|\bdid not (?:get"
    r"|receive)\b.{0,30}\bheartbeat"
    r"|\bhang (?:was )?detected|\bno progress (?:for|in|since)\b|\bsoft lockup|\b(?:blocked|stuck"
    r"|hung) for (?:more than )?\d+ ?s"
    r"|\bmade no progress\b"
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
    r"|\btask \d+: Exited with exit code"
    r"|\bpr(?:te|un)\w*\b.{0,40}\bnoticed|\bORTE has lost communication|\bPMIX? ?(?:ERROR|abort)|\b(?:child"
    r"|worker|rank) .{0,40}\bexited (?:with|unexpectedly)"
)
# The level of an error as absl, glog and PyTorch print it, as other libraries do, and words that only a failure has.
_NATIVE = re.compile(
    r"^\[?[EFC]\d{0,4} ?(?:\d\d:\d\d:\d\d[.\d]* |\S+\.(?:cpp|cc|cu|c|hpp|h|rs|go):\d+)|^\[[EFC] "
    r"|^\[[^\]]{10,40} [EFC] \d+ \d+\]|\b(?:FATAL|CRITICAL|PANIC|ERROR)\b"
    r"|^\W{0,3}(?i:fatal|error|panic|abort\w*)\b|(?i:\b(?:fatal error|panicked|assertion\b.{0,200}\bfailed|check failed"
    r"|aborted|aborting|unrecoverable|hang detected|fail(?:ed|ure|s)?|received signal|fault)\b|\bhung\b"
    r"|\bstuck (?:for|at"
    r"|in)\b|NCCL WARN"
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
        yield NATIVE, native


def failed_exit(tail: Sequence[Line], after: int) -> Line | None:
    """The first line below line `after` that gives the run a status other than zero; no process of the run can."""
    rows = (line for line in tail if line.number > after and line.pid is None and not _RAY_WARNS.match(line.text))
    return next((line for line in rows if _FAILED.search(line.text[:500])), None)


def is_soft(kind: str) -> bool:
    """Whether a run may survive what is printed like this."""
    return kind == NATIVE or kind not in _HARD


def _kind_of(line: Line) -> str:
    """What states the end: only what holds a run can, and not one of its own workers."""
    text = POSSIBLE.split(line.text[:500])[0]
    if _NONE.search(text):
        return ""
    if _HANG.search(text):
        return HANG
    if line.pid is not None or _RAY_WARNS.match(text):
        return ""
    if _SPACE.search(text):
        return SPACE
    if _MEMORY.search(text) and not _GPU.search(text):
        return MEMORY
    by = _ended_by(text)
    if by:
        return by
    if _PROCESS.search(text):
        return DIED
    return CANCELLED if _OUTSIDE.search(text) else ""


def _ended_by(text: str) -> str:
    signal = _SIGNAL.search(text)
    if signal is not None and (signal[1] or signal[2]):
        return _BY_NAME.get((signal[2] or "").upper()) or _BY_STATUS.get(int(signal[1] or 6), "")
    status = _STATUS.search(text)
    return "" if status is None or int(status[1]) < 128 else _BY_STATUS.get(int(status[1]), "")

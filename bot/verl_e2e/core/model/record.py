"""What a run leaves behind in addition to its log: the documents of a run folder that the judge reads.

The runner writes them, `verl_e2e.core.judge.verdict` reads them, `docs/run-folder.md` describes every file. All text
in them is redacted before it is written (`verl_e2e.core.text.redact`).
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import FailFast, Field

from verl_e2e.core.model.access import ExecutionRules
from verl_e2e.core.model.bands import Bands
from verl_e2e.core.model.checkpoint_files import Checkpoints
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.executed import EXECUTED_FILE, Executed
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Fingerprints
from verl_e2e.core.model.jobs import Job, Network
from verl_e2e.core.model.kernel_caches import KernelCaches
from verl_e2e.core.model.manifest import Mode, Seal
from verl_e2e.core.model.outcome import Attribution
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.stages import Stage

JOB_FILE = "job.json"
EVENTS_FILE = "events.jsonl"
LOG_FILE = "log.txt.zst"
METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.json"
ENVIRONMENT_FILE = "environment.json"
IMPORTS_FILE = "imports.jsonl"
EVIDENCE_FILE = "evidence.json"
VERDICT_FILE = "verdict.json"
CARD_MARKDOWN_FILE = "card.md"
CARD_TEXT_FILE = "card.txt"
JUNIT_FILE = "junit.xml"
# What the code under test prints or writes: these files hold its word, the person who wrote them down.
SUSPECTS_WORD = (
    LOG_FILE, METRICS_FILE, CONFIG_FILE, IMPORTS_FILE, JUNIT_FILE, "checkpoints.json", EXECUTED_FILE, FINGERPRINTS_FILE,
    f"{ENVIRONMENT_FILE}#imports", f"{ENVIRONMENT_FILE}#packages",
)  # fmt: skip
# Next to the run folders of a whole check.
PLAN_FILE = "plan.json"
CHECK_FILE = "check.json"
# What is taken home of one run folder, all its files together.
MOST_FOLDER_BYTES = 512 * 1024 * 1024


class Check(StrEnum):
    """Every preflight check; each failed one blocks the run before a GPU hour is spent."""

    REPOSITORIES = "repositories"
    PATCHES = "patches"
    IMPORT_DRIVER = "import_driver"
    IMPORT_WORKER = "import_worker"
    PACKAGES = "packages"
    GPUS = "gpus"
    GPU_VARIABLES = "gpu_variables"
    DATA = "data"
    MODEL = "model"
    REWARD_MODEL = "reward_model"
    DISK = "disk"
    IMAGE = "image"
    STALE_CHECKPOINTS = "stale_checkpoints"
    WRAPPER = "wrapper"
    HYDRA = "hydra"
    BRIDGE_TESTS = "bridge_tests"
    OTHER_RUNS = "other_runs"
    NEIGHBOURS = "neighbours"
    HOST_MEMORY = "host_memory"
    ISOLATION = "isolation"
    KERNEL_CACHES = "kernel_caches"
    RAY_CPUS = "ray_cpus"
    READABLE = "readable"


class Finding(Document):
    """One preflight fact."""

    # Which check found it.
    check: Check
    # Whether all is well.
    ok: bool
    # Whether a fault stops the run; a fault that does not is a warning on the card.
    blocking: bool = True
    # The stage that the fault belongs to.
    stage: Stage = Stage.ENVIRONMENT
    # What was found, with its key and value.
    summary: str
    # What to do about it, empty when all is well.
    fix: str = ""
    # Where the fault lies.
    attribution: Attribution = Attribution.HOST
    # What identifies the fault in another run of the same job; empty where the fault lies on the host.
    fingerprint: str = ""


class ImportLine(Document):
    """Where one process got a module from."""

    # Its name.
    module: str
    # The module's file, empty when the import failed.
    file: str = ""
    # `driver` and `ray_worker` in preflight, `run` for a process of the run itself.
    role: Literal["driver", "ray_worker", "run"]
    # The process.
    pid: int
    # The name of the process.
    process: str = ""
    # Why the import failed, empty when it did not.
    error: str = ""


class RepositoryState(Document):
    """A repository under test: `root` is the tree that the run imports from, at `commit`, with `dirty` files.

    `patches` are the names of the declared patches applied to it.
    """

    name: Literal["bridge", "megatron_lm", "verl"]
    root: str
    commit: str
    dirty: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()


class Gpu(Document):
    """One GPU as the driver reports it."""

    index: int
    name: str
    memory_total_mib: int
    memory_used_mib: int


class Container(Document):
    """The container that the recorder ran in, as far as it can be known from inside; what is not known is empty."""

    # What runs it: docker, podman, kubernetes, enroot ...
    engine: str = ""
    # Its id, as its engine gives it.
    id: str = ""
    # Where the id was read.
    id_from: str = ""
    # The image that the engine itself names for it.
    image: str = ""
    # The digests by which that image can be named, `sha256:` and 64 digits.
    digests: tuple[str, ...] = ()
    # Where the image was read.
    image_from: str = ""
    # The image that the job was ordered in, which proves nothing.
    asked: str = ""


class IsolationState(Document):
    """How code under test was kept apart from the recorder in this run."""

    # `other_user` in namespaces of its own, the recorder's user in a `user_namespace`, or `none`.
    mode: Mode
    # The user number of the code under test as the recorder sees it, 0 for `none`.
    user: int = 0
    # The network that it saw.
    network: Network = Network.HOST
    # Why the run was not isolated, empty when it was.
    problem: str = ""


class Environment(Document):
    """`environment.json`: what the run ran in. Written after preflight, so that a later crash keeps it."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    # The repositories under test.
    repositories: Annotated[tuple[RepositoryState, ...], FailFast()] = ()
    # By module (`megatron.bridge`, `megatron.core`, `verl`): the folder that its file must lie in.
    import_roots: dict[str, str] = Field(default_factory=dict)
    # Where the processes of preflight got these modules from.
    imports: Annotated[tuple[ImportLine, ...], FailFast()] = ()
    # What preflight found.
    findings: Annotated[tuple[Finding, ...], FailFast()] = ()
    # The interpreter's version.
    python: str = ""
    # Versions by distribution name.
    packages: dict[str, str] = Field(default_factory=dict)
    # Distributions that the image did not bring.
    hand_installed: tuple[str, ...] = ()
    # The GPUs that the driver reports.
    gpus: Annotated[tuple[Gpu, ...], FailFast()] = ()
    # The GPU driver's version.
    driver: str = ""
    # CPUs of the host.
    cpu_count: int = 0
    # None where nothing was recorded of it.
    container: Container | None = None
    # The command of the run, as arguments.
    command: tuple[str, ...] = ()
    # Variables of the process.
    process: dict[str, str] = Field(default_factory=dict)
    # The name of the site.
    site: str = ""
    # Listed Bridge tests that do not exist at the commit.
    absent_tests: tuple[str, ...] = ()
    # Why the focused Bridge tests were not run, empty where they were.
    tests_not_run: str = ""
    # None where it is not recorded.
    isolation: IsolationState | None = None
    # The compiled kernels that the run began with, None where it began with empty caches.
    kernel_caches: KernelCaches | None = None
    # Names of the folder's files, and keys of this one as `environment.json#KEY`, whose content the code under test
    # could choose; everything else was written by the recorder, out of its reach.
    suspects_word: tuple[str, ...] = ()

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class EndReason(StrEnum):
    """Why the wrapper's process ended, or why it never started."""

    EXITED = "exited"
    NOT_STARTED = "not_started"
    FATAL_ERROR_HANG = "fatal_error_hang"
    UNRECOVERABLE = "unrecoverable"
    WRONG_IMPORT = "wrong_import"
    STALLED = "stalled"
    HOST_MEMORY = "host_memory"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    RUNNER_FAULT = "runner_fault"


STOPPED = frozenset({EndReason.TIME_LIMIT, EndReason.INTERRUPTED})
"""The ends that no fault of the run caused: nothing that the run had survived until then is the reason."""


class Event(Document):
    """One line of `events.jsonl`. `t_s` is seconds since the run began, `kind` names what happened.

    Kinds: `started`, `phase` (name, state begin|end), `finding`, `command`, `stage`, `step`, `gpu` and `memory`
    (samples), `ended` (reason, exit_code, note, nonce of the order) and `left_running` (processes that survived the
    clean-up); also `fatal` (line, kind, excerpt) when a fatal error was read, `ending` (reason, note) when the runner
    ends the run, `probe` (lines, unreadable) and `durations` (seconds by stage). The other keys of the line are in
    `data`.
    """

    t_s: float
    kind: str
    data: dict[str, object] = Field(default_factory=dict)


class TestCase(Document):
    """One test of the focused Bridge tests, from the JUnit file; an `unfinished` one has no result."""

    name: str
    outcome: Literal["passed", "failed", "skipped", "unfinished"]
    message: str = ""


class Record(Document):
    """A run folder, parsed. Whatever is missing is None or empty and listed in `missing` with the reason."""

    # `job.json`.
    job: Job | None = None
    # `environment.json`.
    environment: Environment | None = None
    # `events.jsonl`, in order.
    events: tuple[Event, ...] = ()
    # Where processes of the run got modules from.
    imports: tuple[ImportLine, ...] = ()
    # The results of the focused Bridge tests, None without a JUnit file.
    tests: tuple[TestCase, ...] | None = None
    # The Bridge commit that the JUnit file states, empty when it states none.
    tests_commit: str = ""
    # The related runs.
    related: tuple[RelatedRun, ...] = ()
    # By role: why a related run is not there.
    related_not_run: dict[Role, str] = Field(default_factory=dict)
    # The files of the checkpoints that the run wrote.
    checkpoints: Checkpoints | None = None
    # The measurements that the folder is judged by.
    bands: Bands | None = None
    # Which functions ran in which process; None where the folder holds no such record.
    executed: Executed | None = None
    # The same of its run on the merge base; None where there is no such run, or it left no such record.
    base_executed: Executed | None = None
    # What the weights and the optimizer's state were at defined points; None where the folder holds no such record.
    fingerprints: Fingerprints | None = None
    # What is missing, each with the reason.
    missing: tuple[str, ...] = ()
    # The name of the log file in the folder.
    log: str = LOG_FILE
    # What the reader found out about the recorder's seal; None where no one looked.
    seal: Seal | None = None


class CheckNotes(Document):
    """`check.json`: what a check knows in addition to its run folders.

    `not_run` maps a planned job to the reason why it did not run, `uncoverable` are those of them that no host can run,
    `notes` are sentences for the card's limitations, `contract` the uses in verl that the change breaks, `execution`
    what the policy asks of the execution of the change.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    not_run: dict[str, str] = Field(default_factory=dict)
    uncoverable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()
    execution: ExecutionRules | None = None

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}

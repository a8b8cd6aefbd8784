"""What a run leaves behind in addition to its log: the documents of a run folder that the judge reads.

The runner writes them, `verl_e2e.core.judge.verdict` reads them, `docs/run-folder.md` describes every file. All text
in them is redacted before it is written (`verl_e2e.core.text.redact`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from verl_e2e.core.model.access import ExecutionRules
from verl_e2e.core.model.document import Document, NumberedDocument
from verl_e2e.core.model.execution import EXECUTED_FILE, Executed
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Fingerprints
from verl_e2e.core.model.jobs import ConsumerName, Digest, Job, Network
from verl_e2e.core.model.outcome import Attribution, Stage
from verl_e2e.core.model.related import Bands, RelatedRun, Role

# In the folder that `kernel_caches` of a site profile names.
ORIGIN_FILE = "kernel-caches.json"


class CachesOrigin(NumberedDocument):
    """`kernel-caches.json`: the run that filled a folder of kernel caches."""

    # When the run ended, as ISO 8601 in UTC.
    filled: str
    job: str
    # The commits that it ran, by repository.
    commits: dict[str, str]
    # Those of the repositories that had changes beyond the commit: dirty files, or declared patches.
    changed: tuple[str, ...] = ()
    # Versions of the packages on which compiled kernels depend, by distribution name.
    packages: dict[str, str]
    gpus: tuple[str, ...]
    # The GPU driver's version.
    driver: str = ""
    # The image of its container, as far as known.
    image: str = ""


class KernelCaches(Document):
    """What one run took of the operator's kernel caches."""

    # The caches, by the names of their folders.
    folders: tuple[str, ...]
    # How many files they have.
    files: Annotated[int, Field(ge=0)]
    # The size of these files together.
    size_bytes: Annotated[int, Field(ge=0)]
    # SHA-256 of the names and contents of these files.
    digest: Digest
    # None where the folder does not say who filled it.
    origin: CachesOrigin | None = None

    @property
    def text(self) -> str:
        """`triton, vllm: 812 files, 34.1 MiB, sha256 0123456789ab`, and which commit of Bridge filled them."""
        size = f"{self.files} files, {self.size_bytes / (1 << 20):.1f} MiB, sha256 {self.digest[:12]}"
        bridge = self.origin.commits.get("bridge") if self.origin else None
        filled = f"filled by a run of Bridge {bridge[:12]}" if bridge else "not known which run filled them"
        return f"{', '.join(self.folders)}: {size}; {filled}"


CHECKPOINTS_FILE = "checkpoints.json"


class CheckpointFile(Document):
    """One file: `path` relative to the listed folder, `size` in bytes, time of the last change in nanoseconds.

    `sha256` is that of a small file, empty for a larger one.
    """

    path: str
    size: Annotated[int, Field(ge=0)]
    modified_ns: int
    sha256: str = ""


class CheckpointListing(Document):
    """What lay there after the phase `after` (empty: before the first one).

    `trackers` maps the path of each tracker file to its text. `cut` is true when there were more files than are
    listed.
    """

    after: str
    files: Annotated[tuple[CheckpointFile, ...], FailFast()] = ()
    trackers: dict[str, str] = Field(default_factory=dict)
    cut: bool = False


class Checkpoints(NumberedDocument):
    """`checkpoints.json`; `folder` is what was listed, as the run's configuration names it."""

    folder: str
    listings: Annotated[tuple[CheckpointListing, ...], FailFast()] = ()


MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig.json"

Word = Literal["recorder", "suspect"]
# Another user in namespaces of its own, the recorder's own user in a user namespace, or no isolation.
Mode = Literal["other_user", "user_namespace", "none"]

_JUDGEMENT = frozenset(
    {
        "evidence.json",
        "verdict.json",
        "card.txt",
        "card.md",
        "bands.json",
        "parity.md",
        "parity.json",
        "check.json",
        "report.html",
        "log.html",
    }
)
_JUDGEMENT_FOLDER = "plots"
_SHOWN = 3


class SealedFile(Document):
    """One file of a run folder."""

    # Its path in the folder, with forward slashes.
    path: str
    # In bytes.
    size: int
    # SHA-256 of its content.
    sha256: Digest
    # Whose word it is: the recorder's own observation, or what the code under test printed or wrote.
    word: Word


class Manifest(NumberedDocument):
    """`manifest.json`: what the recorder left, written after every process of the run had ended."""

    job: str
    # The digest of the job as it was given, before its paths were redacted.
    job_digest: Digest
    # What the sender of the order asked to be repeated, empty when nothing.
    order: str = ""
    # The recorder's wall clock in UTC when the folder was opened and when it was sealed, ISO 8601.
    began: str
    ended: str
    # Seconds between the two on a clock that no one can set.
    seconds: float
    # How code under test was kept apart, as in `environment.json`; `none` when it could reach the recorder.
    isolation: Mode
    files: tuple[SealedFile, ...]


class ManifestSignature(NumberedDocument):
    """`manifest.sig.json`: the recorder's signature over the bytes of `manifest.json`."""

    algorithm: Literal["ed25519"] = "ed25519"
    # The public key, 32 bytes in hexadecimal.
    key: Digest
    # 64 bytes in hexadecimal.
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Seal(Document):
    """What a reader of the folder found out about its seal.

    `none`: the folder has none. `whole`: every file is as sealed, and no one that the
    reader knows has signed. `signed`: by a key that the reader knows. `broken`: the record is not the recorder's.
    """

    state: Literal["none", "whole", "signed", "broken"]
    # What is wrong with it, empty unless broken.
    problem: str = ""
    # The public key that signed, empty without a signature.
    key: str = ""


def is_sealed(path: str) -> bool:
    """Whether a file of the folder belongs into its manifest."""
    parts = path.split("/")
    if parts[-1] in (MANIFEST_FILE, SIGNATURE_FILE) or parts[-1] in _JUDGEMENT or parts[-1].startswith("."):
        return False
    return _JUDGEMENT_FOLDER not in parts[:-1]


def seal_differences(manifest: Manifest, found: Mapping[str, tuple[int, str]]) -> str:
    """How the files that are there (path to size and digest) differ from the sealed ones; empty when they do not."""
    sealed = {entry.path: (entry.size, entry.sha256) for entry in manifest.files}
    changed = sorted(path for path in sealed.keys() & found.keys() if sealed[path] != found[path])
    text = [f"{path} was changed" for path in changed]
    text += [f"{path} is gone" for path in sorted(sealed.keys() - found.keys())]
    text += [f"{path} was added" for path in sorted(found.keys() - sealed.keys())]
    more = f" and {len(text) - _SHOWN} more" if len(text) > _SHOWN else ""
    return ", ".join(text[:_SHOWN]) + more


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
    # The line of code at which it shows, `file:line`; empty where it shows at none.
    place: str = ""


class ImportLine(Document):
    """Where one process got a module from."""

    module: str
    # The module's file, empty when the import failed.
    file: str = ""
    # `driver` and `ray_worker` in preflight, `run` for a process of the run itself.
    role: Literal["driver", "ray_worker", "run"]
    pid: int
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


class RunContainer(Document):
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
    network: Network = Network.HOST
    # Why the run was not isolated, empty when it was.
    problem: str = ""


class Environment(NumberedDocument):
    """`environment.json`: what the run ran in. Written after preflight, so that a later crash keeps it."""

    # The repositories under test.
    repositories: Annotated[tuple[RepositoryState, ...], FailFast()] = ()
    # By module (`megatron.bridge`, `megatron.core`, `verl`): the folder that its file must lie in.
    import_roots: dict[str, str] = Field(default_factory=dict)
    # Where the processes of preflight got these modules from.
    imports: Annotated[tuple[ImportLine, ...], FailFast()] = ()
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
    cpu_count: int = 0
    # None where nothing was recorded of it.
    container: RunContainer | None = None
    # The command of the run, as arguments.
    command: tuple[str, ...] = ()
    # Variables of the process.
    process: dict[str, str] = Field(default_factory=dict)
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
    ends the run, and `probe` (lines, unreadable). The other keys of the line are in `data`.
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


class CheckNotes(NumberedDocument):
    """`check.json`: what a check knows in addition to its run folders.

    `not_run` maps a planned job to the reason why it did not run, `uncoverable` are those of them that no host can run,
    `notes` are sentences for the card's limitations, `contract` the uses in the trainer that the change breaks,
    `execution` what the policy asks of the execution of the change, `consumer` the trainer by its name.
    """

    not_run: dict[str, str] = Field(default_factory=dict)
    uncoverable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()
    execution: ExecutionRules | None = None
    consumer: ConsumerName = "verl"


# The name of the phase that is one start of the wrapper, and of the one that is the focused Bridge tests.
RUN_PHASE, TESTS_PHASE = "run", "bridge tests"
# The states of a phase.
BEGIN, END = "begin", "end"


def _known(word: object) -> object:
    """The reason as a member, a word that is none is left out."""
    if not isinstance(word, str):
        return word
    try:
        return EndReason(word)
    except ValueError:
        return None


class EventData(BaseModel):
    """The data of one kind of event; keys that nothing reads are left out."""

    model_config = ConfigDict(frozen=True, strict=True)


class Started(EventData):
    """`started`: the run began."""

    # The digest of its job, empty where the event has none.
    digest: str = ""
    # The time of day in seconds since 1970, None where the event has none.
    unix_s: float | None = None


class EndedEvent(EventData):
    """`ended`, and the end of a `phase` that started the wrapper."""

    # None for a word that this version does not know.
    end_reason: Annotated[EndReason | None, BeforeValidator(_known), Field(alias="reason")] = None
    # None where the process did not end by itself.
    exit_code: int | None = None
    note: str | None = ""
    # The nonce of the order, empty where it held none.
    nonce: str | None = ""

    @property
    def exited_zero(self) -> bool:
        """Whether the process ended by itself and without an error."""
        return self.end_reason is EndReason.EXITED and self.exit_code == 0


class PhaseEvent(EndedEvent):
    """`phase`: a phase began or ended."""

    name: str = ""
    state: str = ""
    # The planned phase of the job, as in `save` and `resume`.
    step: str = ""
    # The first line that it wrote to the log.
    line: int | None = None
    # How the focused Bridge tests ended.
    outcome: str = ""

    def is_run(self, state: str) -> bool:
        """Whether a start of the wrapper began or ended."""
        return (self.name, self.state) == (RUN_PHASE, state)


class StageEvent(EventData):
    """`stage`: the log shows that the run entered it."""

    stage: str = ""


class StepEvent(EventData):
    """`step`: the metrics of a training step were printed."""

    step: int = 0


class ProbeEvent(EventData):
    """`probe`: how much the import probe wrote."""

    unreadable: int = 0


class FingerprintsEvent(EventData):
    """`fingerprints`: what became of the lines that the instrumentation wrote."""

    # Lines of the processes that could not be read.
    unreadable: int = 0
    # Lines that were not kept because there were too many.
    left_out: int = 0


class GpuPeak(EventData):
    """One GPU of a `gpu` event."""

    index: int = 0
    # What processes of others held of its memory; None where that is not known.
    others_mib: int | None = None


class GpuEvent(EventData):
    """`gpu`: the last one holds the peak of each GPU."""

    peak: list[GpuPeak] = []


class MemoryPeak(EventData):
    """The peak of a `memory` event."""

    held_mib: int = 0
    # The most other runs on the host; None where they were not counted.
    other_runs: int | None = None


class MemoryEvent(EventData):
    """`memory`: the last one of a start of the wrapper holds the peak."""

    peak: MemoryPeak | None = None


class LeftRunning(EventData):
    """`left_running`: the processes of the run that could not be ended."""

    processes: list[object] = []


_EventData = TypeVar("_EventData", bound=EventData)


def read_data(event: Event, kind: type[_EventData]) -> _EventData | None:
    """The data of an event as that kind, None when it is of another shape."""
    try:
        return kind.model_validate(event.data)
    except ValidationError:
        return None

"""A job: everything that the GPU host needs to run one variant of one level, in one versioned document.

A rehearsal is ordered in the same way: tiny models on a CPU, head against base.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from verl_e2e.core.model.access import Demand, Slowdown
from verl_e2e.core.model.document import (
    FEATURES,
    Address,
    DescribedDocument,
    Document,
    ImageText,
    NumberedDocument,
    Text,
    name_among,
)
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, MOST_PURPOSES, ChangedCode, Purpose
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import Needs, SiteNeeds, estimated_needs, node_count, ray_cpus
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.synthetic import Synthetic

Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

# verl's maintained wrapper, which every level drives unless a feature needs another script.
WRAPPER_SCRIPT = "tests/special_e2e/run_ppo_trainer_megatron.sh"


# What a GPU is taken to have where a plan knows no host: that of an H100.
DEFAULT_GPU_MEMORY_GIB = 80.0


class Repository(Document):
    """A git repository on this machine and the commit under test.

    `path` is a checkout or a bare git directory; the runner makes a private worktree of `commit` from it
    and never touches it. With `in_place` true the checkout itself is used as it stands (its dirty files are
    recorded), as for a container that holds exactly the commit under test.
    """

    path: str
    commit: Sha
    in_place: bool = False


class RepositoryOrigin(Document):
    """Where a repository is fetched from, by the runner itself."""

    url: Address
    # A ref that leads to the commit, for a server that gives none by its SHA; empty: no such ref is known.
    ref: str = ""


class Substitution(DescribedDocument):
    """One exact text replacement."""

    old: str
    """The text that is replaced."""
    new: str
    """The text in its place."""
    count: Annotated[int, Field(ge=1)] = 1
    """How often `old` must occur, exactly."""


class Patch(DescribedDocument):
    """A declared change to a private worktree of verl or Bridge, shown on the card.

    A file that matches neither digest is an error, one that already matches `after` needs nothing.
    """

    name: str
    """Shown on the card."""
    repository: Literal["verl", "bridge"]
    """Where the file lies."""
    file: str
    """The file, relative to the repository's top folder."""
    substitutions: tuple[Substitution, ...]
    """The exact replacements, in order."""
    before: Digest
    """SHA-256 of the whole file that the patch was written for."""
    after: Digest
    """SHA-256 of the whole file with the change."""
    reason: str
    """Why it is needed, shown on the card."""
    upstream: str = ""
    """The address of the fix upstream."""


class NotRestored(DescribedDocument):
    """Parameters that the pinned verl and Bridge leave as they are when a checkpoint is loaded, shown on the card.

    The change is not to blame for it, as long as such a parameter has the bits that it had before the load.
    """

    name: Text
    """Shown on the card."""
    model: Literal["actor", "critic"]
    """The model that holds them."""
    parameters: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Their names in Megatron's model."""
    reason: Text
    """Why nothing restores them, shown on the card."""
    upstream: str = ""
    """The address of the report or fix upstream."""


class ErrorSign(DescribedDocument):
    """The one error by which a known defect shows itself; a run that ends in any other way is judged as usual."""

    stage: Stage
    """Where such a run ends."""
    error: Annotated[str, StringConstraints(pattern=r"^[^\s:]+: .+ @ \S+$")]
    """Kind, message and place, as `fingerprint` of `verdict.json` has them after `no_exception: `."""


class JobDefect(Document):
    """A defect that the code under test is known to have, in a run with the job's settings."""

    # The policy's name of it.
    name: str
    # What fails and why, a clause.
    reason: str
    shows: ErrorSign


class Checkpoint(DescribedDocument):
    """The model of the run: a hub id, optionally at a local path; a dummy config; or one that the runner makes."""

    model_id: str
    """The id of the model on the hub, or the name of a synthetic one."""
    model_path: str | None = None
    """A local folder; null: the snapshot of `model_id`."""
    dummy_config: str | None = None
    """A config.json, relative to verl or absolute: random weights in that shape."""
    random_weights: bool = False
    """Whether the weights at `model_path` are random: a limitation of every verdict on it."""
    synthetic: Synthetic | None = None
    """How the runner makes the model on the host, small and with random weights; null: there is one already."""

    @property
    def is_random(self) -> bool:
        """Whether its weights are random, wherever they come from."""
        return self.random_weights or self.dummy_config is not None or self.synthetic is not None

    @model_validator(mode="after")
    def _one_source(self) -> "Checkpoint":
        if self.synthetic is not None and (self.model_path is not None or self.dummy_config is not None):
            raise ValueError("a synthetic model has neither a model_path nor a dummy_config")
        return self


class Data(DescribedDocument):
    """Parquet files of the task."""

    train_files: str
    """The file for training."""
    val_files: str
    """The file for validation."""
    local_dataset: str | None = None
    """A folder with the raw GSM8K on this host, which verl's script then reads; null: the script downloads it."""
    prepare: Literal["gsm8k", "images", "none"] = "gsm8k"
    """What the runner makes: a missing file by verl's script for GSM8K, or both files, with pictures of its own."""


# Exercises about small pictures. The runner makes them on the host and decides where they lie; these are their names.
PICTURES = Data(
    train_files="synthetic/images/train.parquet", val_files="synthetic/images/test.parquet", prepare="images"
)


class DeselectedTest(DescribedDocument):
    """A focused Bridge test that cannot pass on a site whatever Bridge does."""

    test: str
    """A node id as pytest's `--deselect` takes it."""
    reason: str
    """Why it cannot pass, for the card."""


class WhyChosen(StrEnum):
    """Why a Bridge test is run: the policy lists it, or what the change does made it be chosen."""

    POLICY = "policy"
    CHANGED = "changed"
    CONVERSION = "conversion"
    IMPORTS = "imports"


class ChosenTest(Document):
    """A Bridge test that is run for one change."""

    # Its node id or file.
    test: str
    # What made it be chosen.
    why: WhyChosen
    # The same as a clause for people.
    reason: str
    # How many GPUs it needs to say anything; 0 when some of its tests run without one.
    gpu_count: Annotated[int, Field(ge=0)] = 0


# Runs that share a host have user numbers of their own, because the limits of a user are shared.
MOST_RUNS_ON_A_HOST = 64


class Network(StrEnum):
    """The network of code under test: the host's, or none but the loopback device."""

    HOST = "host"
    NONE = "none"


class Isolation(StrEnum):
    """Whether a job may run where the host cannot keep the code under test apart from the recorder."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class SiteIsolation(DescribedDocument):
    """How a site keeps code under test apart from the recorder and from the host."""

    network: Network = Network.HOST
    """The network that the code sees."""
    user: Annotated[int, Field(ge=1, le=2**31 - 1)] = 64990
    """The user number of the code where the recorder is root, of the first of several runs; it and the 63 after it
    are for nothing else on the host."""
    shm_gib: Annotated[float, Field(gt=0)] = 16.0
    """Size of its /dev/shm, in GiB of memory."""
    tmp_gib: Annotated[float, Field(gt=0)] = 16.0
    """Size of its /tmp, in GiB of memory."""
    processes: Annotated[int, Field(ge=64)] = 32768
    """Processes and threads that it may have."""
    read: tuple[str, ...] = ()
    """Folders and files that it may read, in addition to the system and what the job names."""


_StageName = Annotated[str, name_among([*(stage.value for stage in Stage), "default"], "a stage")]


class SiteProfile(DescribedDocument):
    """What is particular to a GPU host, by name; resolved into the job so that the job needs nothing else."""

    name: str
    """The site's name, shown on the card."""
    description: str = ""
    """What it is, for people."""
    python: str = "python3"
    """The interpreter of the run."""
    image: ImageText = ""
    """The image of its jobs, where the policy pins none by digest; empty: the policy's."""
    wrapper: dict[Variable, str] = Field(default_factory=dict)
    """Variables that verl's wrapper must read, added to those of the level."""
    process: dict[Variable, str] = Field(default_factory=dict)
    """Variables of the libraries: recorded, not checked."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides, in order, before those of the level."""
    python_path: tuple[str, ...] = ()
    """Folders that follow the checkouts on PYTHONPATH."""
    required_packages: tuple[str, ...] = ("modelopt",)
    """Import names that must be there before a GPU hour is spent."""
    ray_cpus: Annotated[int, Field(ge=1)] | None = None
    """Logical CPUs of each node of the run's own Ray cluster; null: as many as the job needs."""
    ray_address: str | None = None
    """An existing cluster; null: the run's own."""
    stall_s: dict[_StageName, Annotated[int, Field(ge=1)]] = Field(default_factory=lambda: {"default": 600})
    """Seconds that a stage may show no progress, by its name; `default` for the others."""
    hang_grace_s: Annotated[float, Field(gt=0)] = 8.0
    """Seconds between a fatal error and the end of the processes."""
    min_free_gib: Annotated[float, Field(ge=0)] = 20.0
    """GiB of disk that must be free."""
    scratch: str | None = None
    """The folder for caches and temporary files."""
    limitations: tuple[str, ...] = ()
    """Sentences for the card."""
    checkpoints: dict[str, Checkpoint] = Field(default_factory=dict)
    """By the id of a model that a plan may ask for: what this host has in its place."""
    reward_model: Checkpoint | None = None
    """What this host has in place of the policy's reward model; null: nothing."""
    data: Data | None = None
    """The host's own task data."""
    deselected_tests: tuple[DeselectedTest, ...] = ()
    """Focused Bridge tests that are left out, each a limitation."""
    bridge_python: str = ""
    """The interpreter of a separate CPU environment for those tests; empty: they run in the run's own."""
    bridge_python_path: tuple[str, ...] = ()
    """Folders that follow the checkouts on PYTHONPATH there."""
    rehearsal_python: Annotated[str, Field(exclude=True)] = ""
    """The interpreter that `make rehearsal-env` made on this host, for rehearsals on a CPU; empty: there is none."""
    gpu_memory_gib: Annotated[float, Field(gt=0)] = DEFAULT_GPU_MEMORY_GIB
    """GiB of memory of one GPU; with the model's size it says how many GPUs a job needs."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """GPUs of one node of a cluster whose jobs may have several nodes; null: a job has one."""
    isolation: SiteIsolation = Field(default_factory=SiteIsolation)
    """How code under test is kept apart on this host."""
    needs: SiteNeeds = SiteNeeds()
    """What a job takes of this host, where the usual values do not fit."""
    known_good: bool = False
    """Whether parity jobs are trained once more through verl's older bridge, `mbridge`; that run decides nothing."""
    kernel_caches: str | None = None
    """A folder of compiled kernels that the operator filled; each run begins with a copy. Null: with empty caches."""
    cannot_run: dict[Annotated[str, name_among(FEATURES, "a feature")], Text] = Field(default_factory=dict)
    """Features of a model that no run on this host gets through, and why; a job whose model has one is not run."""

    def needs_of(self, gpu_count: int) -> Needs:
        """What a job on so many GPUs takes of each of its hosts."""
        files_gib = self.isolation.shm_gib + self.isolation.tmp_gib
        of_one_host = min(gpu_count, self.gpus_per_node or gpu_count)
        return estimated_needs(of_one_host, self.needs, gpu_memory_gib=self.gpu_memory_gib, files_gib=files_gib)

    @property
    def engine_cache_bytes(self) -> int:
        """Bytes of a rollout engine's cache on a shared GPU, a fifth of the run's part of it.

        With its size given, vLLM does not measure the free memory, which other runs change meanwhile.
        """
        return int(0.2 * self.needs.gpu_share * self.gpu_memory_gib * (1 << 30))

    def ray_cpus_of(self, gpus_of_node: int, nodes: int = 1) -> int:
        """The logical CPUs of each node of a job's own Ray cluster."""
        return self.ray_cpus or ray_cpus(gpus_of_node, nodes=nodes)


# Keys of verl that follow from whether a job has a reward model.
_REWARD_KEY = "reward.reward_model.enable"
WITHOUT_REWARD_MODEL = f"{_REWARD_KEY}=False"


class JobFeature(Document):
    """A feature that a run of level 4 must show; `active_when` maps configuration keys to the values that tell it."""

    name: str
    active_when: dict[str, bool | int | float | str | None] = Field(default_factory=dict)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, entry in value.items():
                yield from (*_texts(key), *_texts(entry))
        case tuple():
            for entry in value:
                yield from _texts(entry)
        case _:
            return


# Of a program that trains, in `core/consumer`.
ConsumerName = Annotated[str, StringConstraints(pattern="^(verl|skyrl|nemo-rl)$")]


class Job(NumberedDocument):
    """One run of one level, complete: give it to `verl-e2e run` on any host that has the repositories."""

    # Level and variant, as `0-lora-ddp`.
    id: Annotated[str, StringConstraints(pattern=r"^[0-9]-[a-z0-9][a-z0-9-]*$")]
    level: Level
    variant: str
    # Megatron-Bridge at the commit under test.
    bridge: Repository
    # Megatron-LM in place of Bridge's submodule; None: the submodule.
    megatron_lm: Repository | None = None
    # The program that trains, by its name in `core/consumer`; left out of the document where it is verl.
    consumer: ConsumerName = "verl"
    # The consumer at the commit to test with.
    verl: Repository
    # Where the runner fetches the repositories from; without an address it takes the one at `path`, as it is.
    origins: dict[Literal["bridge", "megatron_lm", "verl"], RepositoryOrigin] = Field(default_factory=dict)
    # What starts the run, in the consumer's checkout.
    script: str = WRAPPER_SCRIPT
    gpu_count: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    # Variables of verl's wrapper at that commit, which must read each of them.
    wrapper: dict[Variable, str]
    # Variables of the libraries: recorded, not checked.
    process: dict[Variable, str] = Field(default_factory=dict)
    # Hydra overrides, in order.
    overrides: tuple[str, ...] = ()
    checkpoint: Checkpoint
    data: Data
    # The model that gives the scores; False: the answers in the data decide.
    reward_model: Checkpoint | Literal[False] = False
    # Declared patches of the repositories.
    patches: tuple[Patch, ...] = ()
    # What a load of a checkpoint is known to leave as it was; for a job that saves and resumes.
    not_restored: tuple[NotRestored, ...] = ()
    # What it is known to fail for, whatever the change does.
    defects: tuple[JobDefect, ...] = ()
    # Node ids of the focused Bridge tests, nearest first.
    bridge_tests: tuple[str, ...] = ()
    # Those of them that the policy does not list, each with the reason.
    chosen_tests: tuple[ChosenTest, ...] = ()
    # Seconds that the Bridge tests may take together.
    bridge_tests_limit_s: Annotated[int, Field(ge=1)] = 300
    # Whether a Pass needs a result of the Bridge tests.
    require_bridge_checks: bool = False
    # What it makes of time or memory beyond the noise of healthy runs.
    performance: Slowdown = Slowdown.WARN
    # Dotted keys of the resolved configuration, with the values that the run itself must print.
    expected: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    # What a run of level 4 must show.
    features: tuple[JobFeature, ...] = ()
    # The model family that it is for, or empty.
    family: str = ""
    # Seconds that the wrapper may take, without preflight and preparation.
    time_limit_s: Annotated[int, Field(ge=1)] = 1800
    # Whether the job is refused where the host cannot isolate it; always required for a fork's code.
    isolation: Isolation = Isolation.PREFERRED
    # What the run must execute; empty for a job that is for no change.
    changed: ChangedCode = ChangedCode()
    # The places of the change that a derived job was made for; empty for a job of the table of levels.
    purposes: Annotated[tuple[Purpose, ...], Field(max_length=MOST_PURPOSES)] = ()
    # The settings of a derived job that differ from those of level 0, by axis; empty for a job of the table.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    site: SiteProfile
    # What it takes of each of its hosts; None where it does not say; see `required_of_host`.
    needs: Needs | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows_its_reward_model(cls, data: object) -> object:
        """A job that someone edited to have a reward model keeps nothing of what made it have none."""
        if not isinstance(data, Mapping) or not data.get("reward_model"):
            return data
        overrides = [item for item in data.get("overrides") or () if item != WITHOUT_REWARD_MODEL]
        stated = (data.get("expected") or {}).items()
        expected = {key: value for key, value in stated if key != _REWARD_KEY or value is not False}
        return {**data, "overrides": overrides, "expected": expected}

    @model_validator(mode="after")
    def _no_nul(self) -> "Job":
        if any("\0" in text for text in _texts(self.model_dump())):
            raise ValueError("a text in it holds a NUL character, which no path, variable or argument can")
        return self

    @model_serializer(mode="wrap")
    def _without_usual_consumer(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = dump(self)
        if self.consumer == Job.model_fields["consumer"].default:
            fields.pop("consumer", None)
        return fields

    @property
    def required_of_host(self) -> Needs:
        """What it takes of a host: what it says, or what its site's numbers give."""
        return self.needs or self.site.needs_of(self.gpus_of_node)

    @property
    def node_count(self) -> int:
        """Over how many nodes its GPUs are spread, as many on each."""
        return node_count(self.gpu_count, self.site.gpus_per_node)

    @property
    def gpus_of_node(self) -> int:
        """How many GPUs it takes of each node."""
        return self.gpu_count // self.node_count

    @property
    def has_core_of_bridge(self) -> bool:
        """Whether Megatron-LM is looked for where Bridge's own repository keeps its submodule, whatever the commit."""
        core = self.megatron_lm
        return core is None or core.path.rstrip("/") == f"{self.bridge.path.rstrip('/')}/{MEGATRON_LM_FOLDER}"

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal jobs, equal digests. What it takes of a host follows from the rest.

        A commit is the same wherever it is fetched from.
        """
        text = json.dumps(
            self.model_dump(mode="json", exclude={"needs", "origins"}), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()


# The id of every rehearsal, where a job has its level and variant.
REHEARSAL = "rehearsal"
# What it takes of a host: a process for each core, and at most 6 GiB for the code of one tree.
REHEARSAL_CORES, REHEARSAL_MEMORY_GIB = 2, 8
# Where its run folder has the records of the cells of each side, and which were to run.
BASE_RECORDS, HEAD_RECORDS, ASKED_FILE = "base", "head", "cells.json"

_Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class RehearsalRules(DescribedDocument):
    """Whether a change is rehearsed on a CPU before its jobs start, and what follows from that."""

    run: bool = False
    """Whether the heads of pull requests and merge groups are rehearsed."""
    fail: Demand = Demand.BLOCK
    """What a Fail does: with `block` the gate is closed and no job starts, with `allow` it is only shown."""
    approval: bool = False
    """Whether the head of a fork or of a first contribution needs an approval for its rehearsal too."""
    runner: _Label = "ubuntu-latest"
    """The label of the runner of GitHub that it runs on; other back ends do not read it."""
    limit_s: Annotated[int, Field(strict=True, ge=60, le=21_600)] = 1_800
    """Seconds that jobs wait for its answer; then they start without one."""
    cells: tuple[Text, ...] = ()
    """The cells that run, as patterns of `verl-e2e rehearse --only`; empty: all."""


class RehearsalJob(Document):
    """Everything that a machine without a GPU needs to run the cells over two commits of Bridge."""

    kind: Literal["rehearsal"]
    # Megatron-Bridge at the commit under test.
    bridge: Repository
    # The commit that it is compared with.
    base: Sha
    # Where the runner fetches the repositories from; without an address it takes the one at `bridge.path`.
    origins: dict[str, RepositoryOrigin] = Field(default_factory=dict)
    # How the model of each family is made, by its name.
    recipes: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    # Patterns of cells; empty: all of them.
    cells: tuple[str, ...] = ()
    # The label of the runner of GitHub.
    runner: str = "ubuntu-latest"
    # The interpreter on the host that has what a rehearsal imports; empty: the one that the host names.
    python: str = ""
    # Whether it is refused where the host cannot keep the code under test apart.
    isolation: Isolation = Isolation.PREFERRED
    # Seconds that it may take.
    time_limit_s: Annotated[int, Field(ge=1)] = 1_800

    @property
    def id(self) -> str:
        """What it is called where a job has its id."""
        return REHEARSAL

    def digest(self) -> str:
        """SHA-256 of what its result follows from: the commits, the recipes and the cells."""
        return _digest([self.bridge.commit, self.base, self.cells_digest()])

    def cells_digest(self) -> str:
        """SHA-256 of what it runs on a commit: the recipes and the cells."""
        return _digest([self.recipes, self.cells])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


RunOrder = Job | RehearsalJob


def read_order(text: bytes | str) -> RunOrder:
    """A job or a rehearsal from its JSON; ValidationError."""
    try:
        kind = json.loads(text).get("kind")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    return RehearsalJob.model_validate_json(text) if kind == REHEARSAL else Job.model_validate_json(text)

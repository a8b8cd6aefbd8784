"""A job: everything that the GPU host needs to run one variant of one level, in one versioned document."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from verl_e2e.core.model.levels import Level

Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

# verl's maintained wrapper, which every level drives unless a feature needs another script.
WRAPPER_SCRIPT = "tests/special_e2e/run_ppo_trainer_megatron.sh"


# What a GPU is taken to have where a plan knows no host: that of an H100.
DEFAULT_GPU_MEMORY_GIB = 80.0


class Document(BaseModel):
    """A strict, frozen document: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Repository(Document):
    """A git repository on this machine and the commit under test.

    `path` is a checkout or a bare git directory; the runner makes a private worktree of `commit` from it
    and never touches it. With `in_place` true the checkout itself is used as it stands (its dirty files are
    recorded), as for a container that holds exactly the commit under test.
    """

    path: str
    commit: Sha
    in_place: bool = False


class Substitution(Document):
    """One exact text replacement; `old` must occur exactly `count` times."""

    old: str
    new: str
    count: Annotated[int, Field(ge=1)] = 1


class Patch(Document):
    """A declared change to a private worktree of verl or Bridge, shown on the card.

    `before` and `after` are the SHA-256 digests of the whole file. A file that matches neither is an error,
    one that already matches `after` needs nothing.
    """

    name: str
    repository: Literal["verl", "bridge"]
    file: str
    substitutions: tuple[Substitution, ...]
    before: Digest
    after: Digest
    reason: str
    upstream: str = ""


class Checkpoint(Document):
    """The model of the run: a hub id, optionally at a local path, or a dummy config with random weights.

    `random_weights` marks a local path whose weights are random: a limitation of every verdict on it.
    """

    model_id: str
    model_path: str | None = None
    dummy_config: str | None = None
    random_weights: bool = False


class Data(Document):
    """Parquet files of the task; with `prepare` the runner makes what is missing by verl's own script."""

    train_files: str
    val_files: str
    prepare: Literal["gsm8k", "none"] = "gsm8k"


class DeselectedTest(Document):
    """A focused Bridge test that cannot pass on a site whatever Bridge does, with the reason for the card.

    `test` is a node id as pytest's `--deselect` takes it.
    """

    test: str
    reason: str


class WhyChosen(StrEnum):
    """Why a Bridge test is run: the policy lists it, or what the change does made it be chosen."""

    POLICY = "policy"
    CHANGED = "changed"
    CONVERSION = "conversion"
    IMPORTS = "imports"


class ChosenTest(Document):
    """A Bridge test that is run for one change, with a clause for people that says why.

    `gpu_count` is how many GPUs it needs to say anything at all; 0 when some of its tests run without one.
    """

    test: str
    why: WhyChosen
    because: str
    gpu_count: Annotated[int, Field(ge=0)] = 0


class Network(StrEnum):
    """The network of code under test: the host's, or none but the loopback device."""

    HOST = "host"
    NONE = "none"


class Isolation(StrEnum):
    """Whether a job may run where the host cannot keep the code under test apart from the recorder."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class SiteIsolation(Document):
    """How a site keeps code under test apart from the recorder and from the host."""

    # The network that the code sees.
    network: Network = Network.HOST
    # The user number of the code where the recorder is root; nothing on the host may belong to it.
    user: Annotated[int, Field(ge=1, le=2**31 - 1)] = 64990
    # Size of its /dev/shm, in GiB of memory.
    shm_gib: Annotated[float, Field(gt=0)] = 16.0
    # Size of its /tmp, in GiB of memory.
    tmp_gib: Annotated[float, Field(gt=0)] = 16.0
    # Processes and threads that it may have.
    processes: Annotated[int, Field(ge=64)] = 32768
    # More folders and files that it may read, beside the system and what the job names.
    read: tuple[str, ...] = ()


class SiteProfile(Document):
    """What is particular to a GPU host, by name; resolved into the job so that the job needs nothing else.

    `wrapper`, `process` and `overrides` are added to those of the level; `python_path` entries follow the
    checkouts on PYTHONPATH; `stall_s` is how long a stage may show no progress (by stage name, `default` for
    the rest); `limitations` are sentences for the card; `required_packages` are import names. `checkpoints` maps
    model ids that a plan may ask for to what this host has in their place; `data` is the host's own task data;
    `deselected_tests` are left out of the focused Bridge tests, each a limitation. `bridge_python` is the interpreter
    of a separate CPU environment for those tests, empty when they run in the run's own; there `bridge_python_path`
    follows the checkouts on PYTHONPATH.
    """

    name: str
    description: str = ""
    python: str = "python3"
    image: str = ""
    wrapper: dict[Variable, str] = Field(default_factory=dict)
    process: dict[Variable, str] = Field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    required_packages: tuple[str, ...] = ("modelopt",)
    ray_cpus: Annotated[int, Field(ge=1)] = 16
    ray_address: str | None = None
    stall_s: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=lambda: {"default": 600})
    hang_grace_s: Annotated[float, Field(gt=0)] = 8.0
    min_free_gib: Annotated[float, Field(ge=0)] = 20.0
    scratch: str | None = None
    limitations: tuple[str, ...] = ()
    checkpoints: dict[str, Checkpoint] = Field(default_factory=dict)
    data: Data | None = None
    deselected_tests: tuple[DeselectedTest, ...] = ()
    bridge_python: str = ""
    bridge_python_path: tuple[str, ...] = ()
    # Memory of one GPU of the host, in GiB; with the model's size it says how many GPUs a job needs.
    gpu_memory_gib: Annotated[float, Field(gt=0)] = DEFAULT_GPU_MEMORY_GIB
    # How code under test is kept apart on this host.
    isolation: SiteIsolation = Field(default_factory=SiteIsolation)


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


class Job(Document):
    """One run of one level, complete: give it to `verl-e2e run` on any host that has the repositories.

    `wrapper` names must each be read by verl's wrapper at the commit; `process` variables are only recorded.
    `expected` maps dotted keys of the resolved configuration to the values that the run itself must print, `features`
    are what a run of level 4 must show, `family` the model family that it is for.
    `time_limit_s` bounds the wrapper, not preflight and prepare. `bridge_tests` are run nearest first, within
    `bridge_tests_limit_s`; `chosen_tests` says of those that the policy does not list why they are among them.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    id: Annotated[str, StringConstraints(pattern=r"^[0-9]-[a-z0-9][a-z0-9-]*$")]
    level: Level
    variant: str
    bridge: Repository
    megatron_lm: Repository | None = None
    verl: Repository
    script: str = WRAPPER_SCRIPT
    gpu_count: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    wrapper: dict[Variable, str]
    process: dict[Variable, str] = Field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    checkpoint: Checkpoint
    data: Data
    reward_model: bool = False
    patches: tuple[Patch, ...] = ()
    bridge_tests: tuple[str, ...] = ()
    chosen_tests: tuple[ChosenTest, ...] = ()
    bridge_tests_limit_s: Annotated[int, Field(ge=1)] = 300
    require_bridge_checks: bool = False
    expected: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    features: tuple[JobFeature, ...] = ()
    family: str = ""
    time_limit_s: Annotated[int, Field(ge=1)] = 1800
    # Whether the job is refused where the host cannot isolate it; always required for a fork's code.
    isolation: Isolation = Isolation.PREFERRED
    site: SiteProfile

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="after")
    def _no_nul(self) -> "Job":
        if any("\0" in text for text in _texts(self.model_dump())):
            raise ValueError("a text in it holds a NUL character, which no path, variable or argument can")
        return self

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal jobs, equal digests."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

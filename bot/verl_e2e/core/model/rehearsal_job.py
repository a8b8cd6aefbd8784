"""A rehearsal as it is ordered, and the policy's keys about it: tiny models on a CPU, head against base."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.document import DescribedDocument, Document, Text
from verl_e2e.core.model.jobs import Isolation, Job, Origin, Repository, Sha

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
    origins: dict[str, Origin] = Field(default_factory=dict)
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


Order = Job | RehearsalJob


def read_order(text: bytes | str) -> Order:
    """A job or a rehearsal from its JSON; ValidationError."""
    try:
        kind = json.loads(text).get("kind")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    return RehearsalJob.model_validate_json(text) if kind == REHEARSAL else Job.model_validate_json(text)

"""What a run is compared with: runs related to it, and what healthy runs of its workload measured.

`related.json` in a run folder lists its related runs (its reference run, its merge base, its retry) and what each of
them said. The runner never writes it: the program that ran the other jobs does, from their own run folders, so that
the folder alone says what caused a failure. `verl_e2e.core.compare.bands` draws bounds and tolerances from a bands
file.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, FailFast, Field

from verl_e2e.core.model.document import Document, NumberedDocument
from verl_e2e.core.model.jobs import Digest, Sha
from verl_e2e.core.model.outcome import Result, Stage

RELATED_FILE = "related.json"
# Below a run folder: the folders of its related runs, each by its role.
RELATED_FOLDER = "related"
# Far beyond any real run. What is longer is refused by its first entry too many, before all of it was looked at.
MOST_RUNS, MOST_STEPS, MOST_METRICS, MOST_MARKS = 64, 20_000, 2_000, 1_000


class Role(StrEnum):
    """Why a related run was made."""

    # The same steps without save and resume.
    UNINTERRUPTED = "uninterrupted"
    # The same job, which never saves.
    WITHOUT_SAVE = "without_save"
    # The same job on the merge base.
    MERGE_BASE = "merge_base"
    # The same job once more on the head.
    RETRY = "retry"
    # The same job with every parallel size 1.
    UNSHARDED = "unsharded"
    # The same job through verl's older bridge; it decides nothing.
    KNOWN_GOOD = "known_good"

    @property
    def spoken(self) -> str:
        """The run in a sentence."""
        return _TITLES[self]


_TITLES = {
    Role.UNINTERRUPTED: "uninterrupted reference run",
    Role.WITHOUT_SAVE: "same job without saving",
    Role.MERGE_BASE: "same job on the merge base",
    Role.RETRY: "retry on the head",
    Role.UNSHARDED: "unsharded reference run",
    Role.KNOWN_GOOD: "known-good run through mbridge",
}


class RelatedStep(Document):
    """The metrics of one training step of a related run; values may be NaN or infinite."""

    step: int
    values: Annotated[dict[str, float], Field(max_length=MOST_METRICS)]

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


_Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class Performance(Document):
    """What one run took of time and memory, and what it may be compared by; None for a figure that is not recorded."""

    # What it was asked to do, without the commits under test.
    settings: Digest
    # Interpreter, driver, packages, isolation, and what of ours was recorded in its processes.
    stack: Digest
    # Its GPUs and the processors of its host.
    host: str
    # The most other runs that the host had meanwhile; None where that is not recorded.
    other_runs: Annotated[int, Field(ge=0)] | None = None
    # Seconds of a step: the mean of the faster half of those after the first.
    step_s: _Figure = None
    # Tokens per second and GPU, of the same kind of half.
    tokens_per_s: _Figure = None
    # The most that a trainer allocated on a GPU.
    gpu_gib: _Figure = None
    # The most that the processes of the run held of the host's memory.
    host_gib: _Figure = None


class RelatedRun(Document):
    """One related run: its job, its verdict, and the metrics of its steps."""

    # Why it was made.
    role: Role
    job_id: str
    job_digest: Digest
    # The Bridge commit that it tested.
    bridge_commit: Sha
    # Its run folder, relative to the folder that holds `related.json` or to the cache of baselines, for the card.
    folder: str
    result: Result
    # The stage at which it did not pass; None for a Pass.
    stage: Stage | None = None
    # Why it did not pass, empty for a Pass.
    cause: str = ""
    # The line that shows it.
    excerpt: str = ""
    # Whether it is a kept run that was not made again.
    cached: bool = False
    # What identifies its failure, compared by `verl_e2e.core.judge.related_runs`.
    fingerprint: Annotated[tuple[str, ...], FailFast(), Field(max_length=MOST_MARKS)] = ()
    steps: Annotated[tuple[RelatedStep, ...], FailFast(), Field(max_length=MOST_STEPS)] = ()
    # Its time and memory, None where they say nothing.
    performance: Performance | None = None


class Related(Document):
    """`related.json`. `not_run` gives, for a role that the verdict asks for, the reason why it was not run."""

    schema_: Annotated[Literal[2], Field(alias="schema")] = 2
    runs: Annotated[tuple[RelatedRun, ...], FailFast(), Field(max_length=MOST_RUNS)] = ()
    not_run: dict[Role, str] = Field(default_factory=dict)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)


BANDS_FILE = "bands.json"

Correlation = Annotated[float, Field(ge=-1.0, le=1.000001)]


class Healthy(Document):
    """What one healthy run measured: trainer and rollout's correlation at step 1; `run` is the digest of its events."""

    run: Digest
    job: str
    bridge_commit: Sha
    correlation: Correlation
    # Its time and memory, None where they are not known.
    performance: Performance | None = None


class PairStep(Document):
    """One step of two identical runs; only compared metrics are kept."""

    step: Annotated[int, Field(ge=1)]
    first: dict[str, float]
    second: dict[str, float]


class RunPair(Document):
    """Two healthy runs of the identical job: all that differs between them is noise."""

    runs: tuple[Digest, Digest]
    job: str
    steps: tuple[PairStep, ...]


class Probe(Document):
    """What was measured of one probe; `about` says in words which one it is."""

    about: str = ""
    healthy: tuple[Healthy, ...] = ()
    pairs: tuple[RunPair, ...] = ()


class Bands(NumberedDocument):
    """A bands file: measurements by probe digest."""

    probes: dict[Digest, Probe] = Field(default_factory=dict)

"""A bands file, as documents: what healthy runs of a workload measured.

`verl_e2e.core.compare.bands` draws bounds and tolerances from them.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Digest, Sha

BANDS_FILE = "bands.json"

Correlation = Annotated[float, Field(ge=-1.0, le=1.000001)]


class Healthy(Document):
    """The correlation of trainer and rollout at step 1 of one healthy run; `run` is the digest of its events."""

    run: Digest
    job: str
    bridge_commit: Sha
    correlation: Correlation


class PairStep(Document):
    """One step of two identical runs; only compared metrics are kept."""

    step: Annotated[int, Field(ge=1)]
    first: dict[str, float]
    second: dict[str, float]


class Pair(Document):
    """Two healthy runs of the identical job: all that differs between them is noise."""

    runs: tuple[Digest, Digest]
    job: str
    steps: tuple[PairStep, ...]


class Probe(Document):
    """What was measured of one probe; `about` says in words which one it is."""

    about: str = ""
    healthy: tuple[Healthy, ...] = ()
    pairs: tuple[Pair, ...] = ()


class Bands(Document):
    """A bands file: measurements by probe digest."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    probes: dict[Digest, Probe] = Field(default_factory=dict)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

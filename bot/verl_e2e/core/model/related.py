"""Runs that stand beside a run: its twin, its merge base, its retry, and what each of them said.

`related.json` in a run folder lists them. The runner never writes it: whoever ran the other jobs does, from
their own run folders, so that the folder alone says whom a failure belongs to.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AliasChoices, ConfigDict, FailFast, Field

from verl_e2e.core.model.jobs import Digest, Document, Sha
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.stages import Stage

RELATED_FILE = "related.json"
# Far beyond any real run. What is longer is refused by its first entry too many, before all of it was looked at.
MOST_RUNS, MOST_STEPS, MOST_METRICS, MOST_MARKS = 64, 20_000, 2_000, 1_000


class Role(StrEnum):
    """Why a run stands beside another one.

    `uninterrupted` trains the same steps without save and resume; `without_save` is the same job with
    SAVE_FREQ=-1; `merge_base` the same job on the merge base; `retry` the same job once more on the head;
    `trivial_sizes` the same job with every parallel size 1.
    """

    UNINTERRUPTED = "uninterrupted"
    WITHOUT_SAVE = "without_save"
    MERGE_BASE = "merge_base"
    RETRY = "retry"
    TRIVIAL_SIZES = "trivial_sizes"

    @property
    def spoken(self) -> str:
        """The run in a sentence."""
        return _TITLES[self]


_TITLES = {
    Role.UNINTERRUPTED: "uninterrupted reference run",
    Role.WITHOUT_SAVE: "same job without saving",
    Role.MERGE_BASE: "same job on the merge base",
    Role.RETRY: "retry on the head",
    Role.TRIVIAL_SIZES: "unsharded reference run",
}


class RelatedStep(Document):
    """The metrics of one training step of a related run; values may be NaN or infinite."""

    step: int
    values: Annotated[dict[str, float], Field(max_length=MOST_METRICS)]

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class RelatedRun(Document):
    """One run beside another: its job, its verdict, and the metrics of its steps.

    `folder` is where its run folder lies, relative to the folder that holds `related.json` or to the cache of
    baselines, for the card. `stage`, `cause` and `excerpt` say where and why it did not pass (stage None for a
    Pass). `cached` is true when it was not run again. `fingerprint` identifies its failure, by which
    `verl_e2e.core.judge.same_failure` tells whether another run failed the same way.
    """

    role: Role
    job_id: str
    job_digest: Digest
    bridge_commit: Sha
    folder: str
    result: Result
    stage: Stage | None = None
    cause: str = ""
    excerpt: str = ""
    cached: bool = False
    # Folders of schema 1 call it `signature`.
    fingerprint: Annotated[
        tuple[str, ...],
        FailFast(),
        Field(max_length=MOST_MARKS, validation_alias=AliasChoices("fingerprint", "signature")),
    ] = ()
    steps: Annotated[tuple[RelatedStep, ...], FailFast(), Field(max_length=MOST_STEPS)] = ()


class Related(Document):
    """`related.json`. `not_run` says of a role that the verdict asks for why nothing was run in it."""

    schema_: Annotated[Literal[1, 2], Field(alias="schema")] = 2
    runs: Annotated[tuple[RelatedRun, ...], FailFast(), Field(max_length=MOST_RUNS)] = ()
    not_run: dict[Role, str] = Field(default_factory=dict)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

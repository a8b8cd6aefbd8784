"""`checkpoints.json`: what lay in the folder of checkpoints before the run and after each of its phases.

The log says that a checkpoint was written and loaded; these lists say that there was one. The checkpoints
themselves are gone with the run's own folder.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, FailFast, Field

from verl_e2e.core.model.document import Document

CHECKPOINTS_FILE = "checkpoints.json"
# verl writes the number of the last step whose checkpoint is complete into this file.
TRACKER = "latest_checkpointed_iteration.txt"


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


class Checkpoints(Document):
    """`checkpoints.json`; `folder` is what was listed, as the run's configuration names it."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    folder: str
    listings: Annotated[tuple[CheckpointListing, ...], FailFast()] = ()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

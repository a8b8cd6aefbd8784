"""The packaged list of what verl uses of Megatron-Bridge, for planning without a verl checkout."""

from importlib.resources import files
from typing import Literal

from pydantic import Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.reach.entries import CallSite, Uses
from verl_e2e.core.reach.walk import Entry

_PACKAGED = "policy/verl-imports.json"


class _UsesFile(Document):
    schema_: Literal[1] = Field(default=1, alias="schema")
    commit: Sha
    entries: tuple[Entry, ...]
    calls: tuple[CallSite, ...]


def packaged_uses(reason: str = "no verl checkout was given") -> Uses:
    """The uses of the verl commit that the packaged policy pins; `reason` says why no checkout is used."""
    file = _UsesFile.model_validate_json(files("verl_e2e").joinpath(_PACKAGED).read_bytes())
    source = f"the packaged list of verl {file.commit[:12]}, because {reason}"
    return Uses(file.entries, file.calls, source)


def uses_json(uses: Uses, commit: str) -> str:
    """The uses as text in the format of the packaged file."""
    file = _UsesFile(commit=commit, entries=uses.entries, calls=uses.calls)
    return file.model_dump_json(indent=1, by_alias=True) + "\n"

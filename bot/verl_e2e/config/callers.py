"""verl's uses of Megatron-Bridge, packaged, for planning where no verl checkout is at hand."""

import json
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import Field

from verl_e2e.core.model.jobs import Document, Sha
from verl_e2e.core.reach.entries import CallSite, Uses
from verl_e2e.core.reach.walk import Entry

_PACKAGED = "policy/verl-imports.json"


class _Entry(Document):
    module: str
    attribute: str | None
    file: str
    line: int
    guarded: bool = False


class _Call(Document):
    name: str
    method: bool
    positional: int
    keywords: tuple[str, ...]
    open_ended: bool
    file: str
    line: int


class _Uses(Document):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    commit: Sha
    entries: tuple[_Entry, ...]
    calls: tuple[_Call, ...]


def packaged_uses(because: str = "no verl checkout was given") -> Uses:
    """The uses of the verl commit that the packaged policy pins; `because` says why no checkout is read instead."""
    file = _Uses.model_validate_json(files("verl_e2e").joinpath(_PACKAGED).read_bytes())
    entries = tuple(Entry(one.module, one.attribute, one.file, one.line, one.guarded) for one in file.entries)
    calls = tuple(
        CallSite(one.name, one.method, one.positional, one.keywords, one.open_ended, one.file, one.line)
        for one in file.calls
    )
    return Uses(entries, calls, f"the packaged list of verl {file.commit[:12]}, because {because}")


def uses_json(uses: Uses, commit: str) -> str:
    """The uses as the packaged file holds them."""
    document = {
        "schema": 1,
        "commit": commit,
        "entries": [
            {
                "module": one.module,
                "attribute": one.attribute,
                "file": one.file,
                "line": one.line,
                "guarded": one.guarded,
            }
            for one in uses.entries
        ],
        "calls": [
            {
                "name": one.name,
                "method": one.method,
                "positional": one.positional,
                "keywords": list(one.keywords),
                "open_ended": one.open_ended,
                "file": one.file,
                "line": one.line,
            }
            for one in uses.calls
        ],
    }
    return json.dumps(document, indent=1) + "\n"

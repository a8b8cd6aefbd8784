"""Joins the fingerprints that the processes of a run wrote, each into a file of its own, into one file of the folder.

All of it was written in processes that run code under test, so each line is read with care: bounded in number and in
size, checked against the document, and counted where it is not one.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel, ValidationError

from verl_e2e.core.model.fingerprints import (
    FINGERPRINTS_FILE,
    MOST_SNAPSHOTS,
    HookState,
    ModelInputs,
    Snapshot,
    Tensor,
)
from verl_e2e_runner.folder.collect import plain
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.folder.suspect_files import names_below, read_below

# One process stops writing at 32 MiB; of all of them together this much is kept.
MOST_FILE_BYTES, MOST_BYTES = 33 << 20, 24 << 20
_MOST_HOOKS = 20_000
_LONGEST = 300
_BITS = re.compile(r"[0-9a-f]{16}")
_Line = RootModel[Annotated[Snapshot | HookState | ModelInputs, Field(discriminator="kind")]]


@dataclass(slots=True)
class FingerprintLines:
    """The lines of a run so far; `take` after each of its phases, `write` at its end."""

    # Where the processes write; None: this run takes no fingerprints, and its folder gets no such file.
    folder: Path | None
    # The snapshots as they lay there, with the instant and the phase of each.
    _snapshots: list[tuple[float, str, bytes]] = field(default_factory=list)
    # What models were given besides text, likewise.
    _inputs: list[tuple[float, str, bytes]] = field(default_factory=list)
    # The last state of each hook, by phase, process and method.
    _hooks: dict[tuple[str, int, str], HookState] = field(default_factory=dict)
    # How much of each file was taken.
    _taken: dict[str, int] = field(default_factory=dict)
    _bytes: int = 0
    # Lines that could not be read, and those that were too many.
    unreadable: int = 0
    left_out: int = 0

    def take(self, phase: str) -> None:
        """Read what was written since the last call: lines of this phase, all of whose processes have ended."""
        if self.folder is None:
            return
        for name in names_below(self.folder):
            offset = self._taken.get(name, 0)
            raw = read_below(self.folder, name, limit=MOST_FILE_BYTES, offset=offset) or b""
            self._taken[name] = offset + len(raw)
            for line in raw.split(b"\n"):
                if line.strip():
                    self._take_line(phase, line)

    def write(self, recorder: Recorder) -> None:
        """Write `fingerprints.jsonl`: the hooks, then the snapshots in the order of time; and an event about them."""
        if self.folder is None:
            return
        recorder.redacted_lines(FINGERPRINTS_FILE, map(recorder.redacted_line, self._documents(recorder)))
        recorder.event(
            "fingerprints",
            snapshots=len(self._snapshots),
            hooks=len(self._hooks),
            unreadable=self.unreadable,
            left_out=self.left_out,
        )

    def _take_line(self, phase: str, line: bytes) -> None:
        read = _parsed(line)
        if read is None:
            self.unreadable += 1
        elif isinstance(read, HookState):
            key = (phase, read.pid, read.target)
            if key in self._hooks or len(self._hooks) < _MOST_HOOKS:
                self._hooks[key] = read.model_copy(update={"phase": phase})
            else:
                self.left_out += 1
        else:
            kept = self._snapshots if isinstance(read, Snapshot) else self._inputs
            if len(kept) >= MOST_SNAPSHOTS or self._bytes + len(line) > MOST_BYTES:
                self.left_out += 1
                return
            self._bytes += len(line)
            kept.append((read.t_s, phase, line))

    def _documents(self, recorder: Recorder) -> Iterator[dict[str, object]]:
        for hook in self._hooks.values():
            yield _short(hook)
        for instant, phase, line in sorted((*self._snapshots, *self._inputs), key=lambda entry: entry[0]):
            read = _parsed(line)
            if isinstance(read, Snapshot | ModelInputs):
                yield _short(read.model_copy(update={"phase": phase, "t_s": recorder.since_opened(instant)}))


def _short(line: Snapshot | HookState | ModelInputs) -> dict[str, object]:
    """The document in few characters: what is as the model has it by default is not written."""
    return {"kind": line.kind, **{key: plain(value) for key, value in line.model_dump(exclude_defaults=True).items()}}


def _parsed(line: bytes) -> Snapshot | HookState | ModelInputs | None:
    """The line, None where it is not one that the instrumentation writes."""
    try:
        read = _Line.model_validate_json(line).root
    except ValidationError:
        return None
    if isinstance(read, HookState):
        return read if max(len(read.target), len(read.problem)) <= _LONGEST else None
    if isinstance(read, ModelInputs):
        return read if math.isfinite(read.t_s) and _are_short(read) else None
    whole = math.isfinite(read.t_s) and math.isfinite(read.cost_s) and all(map(_is_whole, read.tensors))
    return read if whole and max(len(read.model), len(read.problem)) <= _LONGEST else None


def _are_short(inputs: ModelInputs) -> bool:
    texts = [inputs.model, *(item.name for item in inputs.inputs)]
    texts += [text for tower in inputs.towers for text in (tower.name, tower.type)]
    return max(map(len, texts)) <= _LONGEST and all(len(item.shape) <= 16 for item in inputs.inputs)


def _is_whole(tensor: Tensor) -> bool:
    texts = max(len(tensor.name), len(tensor.dtype)) <= _LONGEST
    return texts and len(tensor.shape) <= 16 and _BITS.fullmatch(tensor.bits) is not None

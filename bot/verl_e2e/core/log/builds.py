"""What the training workers said about the models that they built: ranks, wrappers, chunks, bridges; and signs.

Bounded: of each kind at most `MAX_BUILDS` are kept, and what one process repeats is kept once.
"""

import re
from dataclasses import replace

from verl_e2e.core.log.lines import Line
from verl_e2e.core.model.facts import BridgeUse, Excerpt, ModelChunks, ModelRank, Sign, WrappedModel

MAX_BUILDS = 512

# The last two numbers of a rank are always its pipeline rank and the parameter count; Megatron-LM puts its
# rematerialization rank between tensor and pipeline, verl's own builder does not.
RANK_SHAPE = r"model parallel rank \((\d{1,6}), (?:\d{1,6}, )?(\d{1,6})\): (\d{1,15})"
WRAPPED_SHAPE = r"^(\w+) contains [\d.]+\w? parameters"
# A backend of verl, as a configuration or an override names it.
STRATEGY_SHAPE = (
    r"\bstrategy['\"]?\s*[:=]\s*[\\'\"]*((?:fsdp|megatron|mindspeed)\w*|torchtitan|veomni|automodel|deepspeed)\b"
)
STRATEGY_SIGN = "strategy "
CHUNKS_SHAPE = r"^module: (\d{1,4})$"
BRIDGE_SHAPE = r"\((\d{1,9})/(\d{1,9})\) (\w+)\s*$"

_RANK, _WRAPPED, _CHUNKS, _BRIDGE = map(re.compile, (RANK_SHAPE, WRAPPED_SHAPE, CHUNKS_SHAPE, BRIDGE_SHAPE))


class BuildBook:
    """Collects what models were built, by which ranks, and through which bridges."""

    def __init__(self) -> None:
        self.ranks: list[ModelRank] = []
        self.wrapped: list[WrappedModel] = []
        self.chunks: list[ModelChunks] = []
        self._bridges: dict[tuple[int | None, str], BridgeUse] = {}
        self._signs: dict[str, Sign] = {}

    @property
    def bridges(self) -> tuple[BridgeUse, ...]:
        """Each bridge once for each process."""
        return tuple(self._bridges.values())

    @property
    def signs(self) -> tuple[Sign, ...]:
        """Each sign once, with its count."""
        return tuple(self._signs.values())

    def rank(self, line: Line) -> None:
        """Take the line on which a rank says how many parameters it holds."""
        found = _RANK.search(line.text)
        if found and len(self.ranks) < MAX_BUILDS:
            tensor, pipeline, parameters = map(int, found.groups())
            self.ranks.append(ModelRank(line.number, line.pid, tensor, pipeline, parameters))

    def wrap(self, line: Line) -> None:
        """Take the line that names the class around a model."""
        found = _WRAPPED.search(line.text)
        if found and len(self.wrapped) < MAX_BUILDS:
            self.wrapped.append(WrappedModel(line.excerpt(), line.pid, found[1]))

    def chunk(self, line: Line) -> None:
        """Take the line on which a rank says of how many chunks its model consists."""
        found = _CHUNKS.search(line.text)
        if found and len(self.chunks) < MAX_BUILDS:
            self.chunks.append(ModelChunks(line.number, line.pid, int(found[1])))

    def bridge(self, line: Line) -> None:
        """Take a progress line of a conversion; one that is not at its end yet says nothing."""
        found = _BRIDGE.search(line.text)
        if found is None or found[1] != found[2] or len(self._bridges) >= MAX_BUILDS:
            return
        self._bridges.setdefault((line.pid, found[3]), BridgeUse(line.excerpt(), line.pid, found[3]))

    def sign(self, name: str, line: Line) -> None:
        """Take a line that shows a feature at work."""
        known = self._signs.get(name)
        excerpt: Excerpt = line.excerpt()
        self._signs[name] = replace(known, count=known.count + 1) if known else Sign(name, excerpt, 1)

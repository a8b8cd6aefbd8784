"""Warnings that the checkpoint has no output layer, where the model needs none: no weight was lost.

The checkpoint of a model with tied embeddings holds no output layer. verl gives a critic a head of its own in that
place, one row that no checkpoint holds, and no longer ties it, so Bridge looks for the output layer, warns
(`build_conversion_tasks` in `model_bridge.py`) and leaves the head as it was made. The words of the warning excuse
nothing: an untied model whose checkpoint is incomplete gets the same ones. The recorded weights tell the two apart.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from verl_e2e.core.compare.tensors import is_constant, same
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.judge.criteria.snapshots import phases, snapshots, tensors
from verl_e2e.core.model.fingerprints import Point, Snapshot, Tensor

_ABSENT = re.compile(r"Can't find (\S{1,200}) in hf_keys$")
# A language model's output layer under the names that Hugging Face gives it.
_OUTPUT_OF_FILES = re.compile(r"(?:^|\.)(?:lm_head|output|output_layer|embed_out)\.weight$")
_EMBEDDING = re.compile(r"(?:^|\.)embedding\.word_embeddings\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)output_layer\.weight$")


def without_needless_warnings(case: Case) -> Case:
    """The case with the warnings set apart that name only an output layer which the recorded weights replace."""
    lost = case.facts.lost_weights
    needless = tuple(line for line in lost if (found := _ABSENT.search(line.text)) and _is_replaced(case, found[1]))
    if not needless:
        return case
    facts = replace(case.facts, lost_weights=tuple(line for line in lost if line not in needless))
    return replace(case, facts=facts, needless_warnings=needless)


def _is_replaced(case: Case, name: str) -> bool:
    """Whether the name is that of an output layer, which in every phase no model takes from the checkpoint."""
    return _OUTPUT_OF_FILES.search(name) is not None and all(_in_phase(case, phase, name) for phase in phases(case))


def _in_phase(case: Case, phase: str, name: str) -> bool:
    files = snapshots(case, Point.CHECKPOINT_FILE, phase=phase)
    if not files or any(snapshot.left_out or snapshot.problem for snapshot in files):
        return False
    if any(tensor.name == name for snapshot in files for tensor in snapshot.tensors):
        return False
    imported = {model: _imported(case, phase, model) for model in trained_models(case)}
    if not all(_is_complete(case, found) for found in imported.values()):
        return False
    heads = _named(imported.get("critic", ()), _OUTPUT)
    there = [*heads, *_named(imported["actor"], _OUTPUT)]
    return bool(there) and _is_tied(imported["actor"]) and all(head.shape[:1] == (1,) for head in heads)


def _imported(case: Case, phase: str, model: str) -> tuple[Snapshot, ...]:
    return snapshots(case, Point.WEIGHTS_IMPORTED, model=model, phase=phase)


def _is_complete(case: Case, found: Iterable[Snapshot]) -> bool:
    """Whether every rank left all its tensors."""
    whole = {snapshot.ranks.rank for snapshot in found if not snapshot.left_out and not snapshot.problem}
    return whole == set(range(case.job.gpu_count))


def _is_tied(found: tuple[Snapshot, ...]) -> bool:
    """Whether each output layer holds the embedding of its tensor rank; a single stage has none of its own then."""
    embeddings = {
        snapshot.ranks.tensor: tensor
        for snapshot in found
        if snapshot.ranks.pipeline == 0
        for tensor in _named((snapshot,), _EMBEDDING)
    }
    outputs = [(snapshot.ranks.tensor, tensor) for snapshot in found for tensor in _named((snapshot,), _OUTPUT)]
    return bool(embeddings) and all(
        place in embeddings and same(embeddings[place], tensor) and not is_constant(tensor) for place, tensor in outputs
    )


def _named(found: Iterable[Snapshot], name: re.Pattern[str]) -> list[Tensor]:
    return [tensor for snapshot in found for tensor in tensors(snapshot).values() if name.search(tensor.name)]

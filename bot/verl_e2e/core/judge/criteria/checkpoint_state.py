"""What the listed files say of a checkpoint: which step is complete, for which models, and whether it stayed so.

verl writes one folder for each step, `global_step_N`, with one for each model that trains. In it `model/dist_ckpt`
holds the shards that a resume loads under PEFT (`model/huggingface` what it loads without), `optimizer/dist_ckpt`
the optimizer; Megatron-FSDP puts both below `model/dist_ckpt`. `ckpt_contents.json` is written last.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.model.checkpoint_files import CheckpointFile, CheckpointListing, Checkpoints

MANIFEST = "ckpt_contents.json"
_SHARD = re.compile(r"model/dist_ckpt/[^/]+\.distcp")
_WEIGHTS = re.compile(r"model/(?:dist_ckpt/[^/]+\.distcp|huggingface/[^/]+\.(?:safetensors|bin))")
_OPTIMIZER = re.compile(r"optimizer/dist_ckpt/[^/]+\.distcp")
_STEP = re.compile(r"(?:^|/)global_step_(\d{1,12})/(.+)$")


@dataclass(frozen=True, slots=True)
class StateAsked:
    """What the checkpoint of a step must hold: the models that train, and how they are trained."""

    roles: tuple[str, ...]
    peft: bool
    fsdp: bool


def listing_after(checkpoints: Checkpoints, phase: str) -> CheckpointListing | None:
    """The list made after a phase (empty: before the first one), None when there is none."""
    return next((listing for listing in checkpoints.listings if listing.after == phase), None)


def tracked_step(listing: CheckpointListing) -> str:
    """The text of the tracker; empty when there is none, or when several disagree."""
    texts = set(listing.trackers.values())
    return texts.pop() if len(texts) == 1 else ""


def files_of_step(listing: CheckpointListing, step: int) -> dict[str, CheckpointFile]:
    """The files of one step by their path below its folder."""
    found = ((_STEP.search(file.path), file) for file in listing.files)
    return {match[2]: file for match, file in found if match and int(match[1]) == step}


def state_gap(listing: CheckpointListing, step: int, asked: StateAsked) -> str:
    """The first thing that is missing from the checkpoint of a step, as a clause; empty when it is complete."""
    return next(_gaps(files_of_step(listing, step), asked), "")


def changed(before: CheckpointListing, after: CheckpointListing, step: int) -> str:
    """The first file of a step that is no longer what it was; empty when all stayed."""
    later = files_of_step(after, step)
    return next((path for path, file in files_of_step(before, step).items() if not _same(file, later.get(path))), "")


def size_of_step(listing: CheckpointListing, step: int) -> int:
    """Bytes of all files of a step."""
    return sum(file.size for file in files_of_step(listing, step).values())


def _gaps(files: dict[str, CheckpointFile], asked: StateAsked) -> Iterator[str]:
    for role in asked.roles:
        own = {path.removeprefix(f"{role}/"): file for path, file in files.items() if path.startswith(f"{role}/")}
        needs = [("model state", _SHARD if asked.peft or asked.fsdp else _WEIGHTS)]
        needs += [] if asked.fsdp else [("optimizer state", _OPTIMIZER)]
        for what, shape in needs:
            if not any(file.size for path, file in own.items() if shape.fullmatch(path)):
                yield f"no {what} of the {role}"
        if MANIFEST not in own:
            yield f"no {MANIFEST} of the {role}, which is written last"


def _same(file: CheckpointFile, later: CheckpointFile | None) -> bool:
    kept = later is not None and (file.size, file.modified_ns) == (later.size, later.modified_ns)
    return kept and later is not None and file.sha256 == later.sha256

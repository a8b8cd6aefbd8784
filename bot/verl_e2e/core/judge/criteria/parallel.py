"""Level 2 and derived jobs with sizes: the requested sizes, at least one above 1, and ranks that really had them.

The configuration says what was asked of Megatron. What it made of it shows in the log: every rank that built a model
says of how many chunks it consists, those of data- and context-parallel rank 0 name their tensor and pipeline rank,
and the token counts of a step divide by the data-parallel size.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from verl_e2e.core.judge.case import ABSENT, Case
from verl_e2e.core.judge.criteria.config import requested
from verl_e2e.core.judge.phases import Phase, started_phases
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.expected import same_value
from verl_e2e.core.model.facts import ResolvedConfig

ROLES: Mapping[str, str] = {
    "actor": "actor_rollout_ref.actor.megatron",
    "ref": "actor_rollout_ref.ref.megatron",
    "critic": "critic.megatron",
}
_SIZES: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_ROLLOUT_TP = "actor_rollout_ref.rollout.tensor_model_parallel_size"
# vLLM names its worker processes after their ranks, where there is more than one.
_ROLLOUT_WORKER = re.compile(r"Worker(?:_[A-Z]+\d+)*?_TP(\d{1,4})(?:_[A-Z]+\d+)*")
_TOKENS, _TOKENS_OF_A_RANK = "perf/total_num_tokens", "global_seqlen/mean"
# Sequences that only fill up a batch are in one of the two counts; a size is a whole number well apart from the next.
_ROUNDING = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The parallel sizes of one model as the run resolved them; `vpp` is 1 without a virtual pipeline."""

    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int

    @property
    def grid(self) -> frozenset[tuple[int, int]]:
        """Every pair of tensor and pipeline rank."""
        return frozenset(product(range(self.tp), range(self.pp)))

    def data_parallel(self, world: int) -> int:
        """How many data-parallel ranks so many processes leave."""
        return world // (self.tp * self.pp * self.cp)

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in _SIZES)


def parallel_sizes(case: Case) -> Evidence:
    """The resolved parallel sizes are those of the variant, at least one is above 1, and the log shows the ranks."""
    configs = [config for config in case.facts.configs if config.values is not None]
    if not configs:
        return _evidence(case, State.MISSING, "no resolved configuration shows the parallel sizes")
    for config in configs:
        wrong = next(_not_asked(case, config), "")
        if wrong:
            return _evidence(case, State.BROKEN, wrong, config.line)
    config = configs[-1]
    sizes, world = _sizes(config), _world(config)
    actor = sizes.get("actor")
    if actor is None or not world:
        return _evidence(case, State.MISSING, "the configuration does not show the actor's sizes", config.line)
    if _trivial(actor) and actor.data_parallel(world) == 1:
        return _evidence(case, State.MISSING, "every parallel size is 1: nothing is shown", config.line)
    gap = next(_gaps(case, sizes, world), "")
    if gap:
        return _evidence(case, State.MISSING, gap, config.line)
    return _met(case, sizes, world, config)


def _met(case: Case, sizes: Mapping[str, Sizes], world: int, config: ResolvedConfig) -> Evidence:
    actor = sizes["actor"]
    rollout = lookup(config.values, _ROLLOUT_TP)
    seen = sorted({(rank.tensor, rank.pipeline) for rank in case.facts.ranks})
    ranks = ", ".join(map(str, seen))
    dp = actor.data_parallel(world)
    workers = _rollout_ranks(case)
    named = f" (workers of rank {_shown(workers)})" if workers else ""
    summary = (
        f"{' and '.join(sizes)} have {actor}, the rollout tp={rollout}{named}; {world} process(es) built the models, "
        f"(tensor, pipeline) ranks {ranks}, data-parallel size {dp}"
    )
    line = case.facts.ranks[0].line if case.facts.ranks else config.line
    return _evidence(case, State.MET, summary, line, f"model parallel ranks {ranks} of {world} process(es)")


def _evidence(case: Case, state: State, summary: str, line: int = 0, excerpt: str = "") -> Evidence:
    return Evidence(Criterion.PARALLEL_SIZES, state, summary, case.log, line, excerpt or (summary if line else ""))


def _not_asked(case: Case, config: ResolvedConfig) -> Iterator[str]:
    """The sizes that differ from what job and variant ask for."""
    for key, wanted in requested(case.job):
        if not key.endswith("parallel_size"):
            continue
        found = lookup(config.values, key, ABSENT)
        if not same_value(found, wanted):
            yield f"{key} is {'absent' if found is ABSENT else repr(found)[:80]}, asked {wanted!r}"


def _sizes(config: ResolvedConfig) -> dict[str, Sizes]:
    """The sizes of each model that the configuration shows whole."""
    found = {}
    for role, root in ROLES.items():
        values = {name: _size(lookup(config.values, f"{root}.{key}", ABSENT)) for name, key in _SIZES.items()}
        if all(values.values()):
            found[role] = Sizes(**values)
    return found


def _size(value: Any) -> int:
    """A size; an unset one (no virtual pipeline, expert tensor size like the dense one) counts as 1, absence as 0."""
    if value is None:
        return 1
    return value if type(value) is int and value > 0 else 0


def _world(config: ResolvedConfig) -> int:
    nodes, gpus = (lookup(config.values, f"trainer.{key}") for key in ("nnodes", "n_gpus_per_node"))
    return nodes * gpus if type(nodes) is int and type(gpus) is int else 0


def _trivial(sizes: Sizes) -> bool:
    return all(getattr(sizes, name) == 1 for name in _SIZES)


def _gaps(case: Case, sizes: Mapping[str, Sizes], world: int) -> Iterator[str]:
    """Where the log does not show what the configuration says."""
    actor = sizes["actor"]
    trained = [sizes[role] for role in ("actor", "critic") if role in sizes]
    phases = started_phases(case)
    for phase in phases:
        named = f"in the {phase.name} phase " if len(phases) > 1 else ""
        yield from (f"{named}{gap}" for gap in _gaps_of_phase(case, phase, trained, world))
    rollout, workers = lookup(case.facts.configs[-1].values, _ROLLOUT_TP), _rollout_ranks(case)
    if workers and type(rollout) is int and workers != set(range(rollout)):
        yield f"the rollout's tensor ranks in the log are {_shown(workers)}, its size is {rollout}"
    logged = _logged_data_parallel(case)
    if logged not in (None, actor.data_parallel(world)):
        yield f"the token counts are of {logged} data-parallel ranks, the sizes leave {actor.data_parallel(world)}"


def _gaps_of_phase(case: Case, phase: Phase, trained: Sequence[Sizes], world: int) -> Iterator[str]:
    """Where the part of the log that one start of the wrapper wrote does not show the sizes of the trained models."""
    facts = case.facts
    chunks = [chunk for chunk in facts.chunks if phase.wrote(chunk.line)]
    workers = [worker for worker in facts.workers if worker.built_model and phase.wrote(worker.line)]
    built = {chunk.pid for chunk in chunks} or {worker.pid for worker in workers}
    if len(built) != world:
        yield f"{len(built)} of {world} processes say that they built a model"
    expected = frozenset[tuple[int, int]]().union(*(size.grid for size in trained))
    seen = {(rank.tensor, rank.pipeline) for rank in facts.ranks if phase.wrote(rank.line)}
    if seen != expected:
        yield f"the (tensor, pipeline) ranks in the log are {_shown(seen)}, the sizes make {_shown(expected)}"
    counts, asked = {chunk.count for chunk in chunks}, {size.vpp for size in trained}
    if counts != asked and (counts or asked != {1}):
        yield f"models of {_shown(counts)} chunk(s) were built, the virtual pipeline asks for {_shown(asked)}"


def _rollout_ranks(case: Case) -> set[int]:
    """The tensor ranks of the rollout's workers by their names; empty where they bear none."""
    found = (_ROLLOUT_WORKER.fullmatch(worker.actor) for worker in case.facts.workers)
    return {int(match[1]) for match in found if match}


def _logged_data_parallel(case: Case) -> int | None:
    """The data-parallel size by the token counts of the last step that has them."""
    for step in reversed(case.train_steps()):
        total, mean = step.values.get(_TOKENS, 0.0), step.values.get(_TOKENS_OF_A_RANK, 0.0)
        ratio = total / mean if mean else 0.0
        if ratio and math.isfinite(ratio) and abs(ratio - round(ratio)) <= _ROUNDING:
            return round(ratio)
    return None


def _shown(values: set[Any] | frozenset[Any]) -> str:
    return ", ".join(map(str, sorted(values))) or "none"

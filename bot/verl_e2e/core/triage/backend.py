"""Which backend trained: what a run of another one than Megatron shows says nothing about Bridge or Megatron-LM.

The frames of an error come first, then the configuration of the actor, then every strategy that the log names. A log
that shows no backend at all is taken for one of Megatron, and no sentence about it names Bridge.
"""

import re
from collections.abc import Iterator

from verl_e2e.core.log.builds import STRATEGY_SIGN
from verl_e2e.core.log.resolved_config import lookup
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.stages import Stage

_ACTOR = "actor_rollout_ref.actor.strategy"
_MEGATRON = re.compile(r"megatron|mindspeed")
_FRAME = re.compile(
    r"(?:^|/)workers/engine/(?!megatron|mindspeed)(\w+)/|(?:^|/)(fsdp|deepspeed|torchtitan|veomni|automodel)_(?:workers|sft_trainer)\.py:"
    r"|(?:^|/)(?:torch/distributed/)?_?(fsdp|deepspeed|torchtitan|veomni)/|(?:^|/)(dp)_(?:actor|critic|rm)\.py:",
    re.MULTILINE,
)
# Work that only Megatron has under this name; another backend wraps its model instead.
_CONSTRUCTION = frozenset({Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.DDP_WRAP})


def other_backend(facts: LogFacts, calls: tuple[str, ...] = ()) -> str:
    """The backend that trained in place of Megatron; empty where none is shown."""
    frames = "\n".join(calls)
    if _MEGATRON.search(frames):
        return ""
    found = _FRAME.search(frames)
    if found is not None:
        name = str(next(group for group in found.groups() if group))
        return "fsdp" if name == "dp" else name
    strategies = list(_of_actor(facts)) or [
        sign.name.removeprefix(STRATEGY_SIGN) for sign in facts.signs if sign.name.startswith(STRATEGY_SIGN)
    ]
    return "" if not strategies or any(map(_MEGATRON.search, strategies)) else strategies[0]


def trained_with(backend: str) -> str:
    """The clause that says which backend trained; empty for Megatron."""
    return f"; the run trains with {backend}, not with Megatron" if backend else ""


def stage_with(stage: Stage, backend: str) -> Stage:
    """The name of a stage for a run of that backend."""
    return Stage.FSDP_WRAP if backend and stage in _CONSTRUCTION else stage


def _of_actor(facts: LogFacts) -> Iterator[str]:
    found = (lookup(config.values, _ACTOR, None) for config in facts.configs)
    return (strategy for strategy in found if isinstance(strategy, str))

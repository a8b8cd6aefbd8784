"""Level 3: Megatron-FSDP wrapped the models, by the configuration and by the class that the first rank names."""

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.evidence import Criterion, Evidence, State

_FLAG = "use_megatron_fsdp"
_FSDP = "FullyShardedDataParallel"
_ROOTS = ("actor_rollout_ref.actor", "critic")


def fsdp_active(case: Case) -> Evidence:
    """Every configuration switches Megatron-FSDP on, and no model has another wrapper."""
    asked = [case.config_value(f"{root}.megatron.{_FLAG}") for root in _ROOTS]
    if asked != [True] * len(_ROOTS):
        words = ", ".join(f"{root}.megatron.{_FLAG}={value}" for root, value in zip(_ROOTS, asked, strict=True))
        return Evidence(Criterion.FSDP_ACTIVE, State.MISSING, f"Megatron-FSDP is not switched on: {words}", case.log)
    wrapped = case.facts.wrapped
    other = next((wrapped_model for wrapped_model in wrapped if not wrapped_model.wrapper.startswith(_FSDP)), None)
    if other:
        summary = f"Megatron-FSDP was asked for, and a model was wrapped by {other.wrapper}"
        return Evidence(Criterion.FSDP_ACTIVE, State.BROKEN, summary, case.log, other.at.line, other.at.text)
    if not wrapped:
        return Evidence(Criterion.FSDP_ACTIVE, State.MISSING, "no line names the wrapper of a model", case.log)
    first = wrapped[0]
    summary = f"{len(wrapped)} model(s) wrapped by {first.wrapper}"
    return Evidence(Criterion.FSDP_ACTIVE, State.MET, summary, case.log, first.at.line, first.at.text)

"""Criterion 3: what the run itself printed as its configuration is what the job and its level asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

from verl_e2e.core.judge.case import ABSENT, Case
from verl_e2e.core.judge.phases import PlannedPhase, planned_phases, started_phases
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.expected import Value, expected_config, expected_of_overrides, parsed, same_value
from verl_e2e.core.model.facts import ResolvedConfig
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Job
from verl_e2e.core.model.levels import Level, variant_named
from verl_e2e.core.model.settings import Setting, invalid_value, setting_of
from verl_e2e.core.model.variant import SHARE_OF_DIGITS, WITHOUT_CRITIC
from verl_e2e.core.model.wants import Axis

ACTOR = "actor_rollout_ref.actor.megatron"
_ROLES = {"actor": "actor_rollout_ref.actor", "ref": "actor_rollout_ref.ref", "critic": "critic"}
LORA_RANK = "actor_rollout_ref.model.lora.rank"
LORA_TARGETS = "actor_rollout_ref.model.lora.target_modules"
_SHOWN_FAULTS = 5
_SHOWN = {
    "adv_estimator": "algorithm.adv_estimator",
    "rollout": "actor_rollout_ref.rollout.name",
    "response_length": "actor_rollout_ref.rollout.response_length",
    "save_freq": "trainer.save_freq",
    "lora_rank": LORA_RANK,
    "tp": f"{ACTOR}.tensor_model_parallel_size",
    "pp": f"{ACTOR}.pipeline_model_parallel_size",
    "cp": f"{ACTOR}.context_parallel_size",
    "ep": f"{ACTOR}.expert_model_parallel_size",
    "megatron_fsdp": f"{ACTOR}.use_megatron_fsdp",
}

# Whatever a job says: without these no level says anything about Megatron-Bridge.
_ALWAYS: Mapping[str, Value] = {
    **{f"{role}.megatron.vanilla_mbridge": False for role in _ROLES.values()},
    **{f"{role}.megatron.use_mbridge": True for role in _ROLES.values()},
}
_FSDP_OF: Mapping[Level, bool] = {Level.SMOKE: False, Level.MEGATRON_FSDP: True}
# The sizes over which a large model is spread further than its job asks for.
_SPREAD = frozenset({"COMMON_TP", "COMMON_EP", "INFER_TP"})
# Runs of two phases print two configurations that differ in these on purpose; each is held to its own phase.
_OF_A_PHASE = ("trainer.total_training_steps", "trainer.resume_mode")


def resolved_config(case: Case) -> Evidence:
    """Every configuration that the run printed shows every requested value."""
    configs = case.facts.configs
    unread = next((config for config in configs if config.values is None), None)
    if unread or not configs:
        problem = f"no resolved configuration: {unread.problem if unread else 'the run printed none'}"
        return Evidence(Criterion.RESOLVED_CONFIG, State.MISSING, problem, case.log, unread.line if unread else 0)
    phases = started_phases(case)
    for config in configs:
        phase = next((item.planned for item in phases if item.wrote(config.line)), None)
        wrong = list(_faults(case.job, phase, config.values or {}))
        if wrong:
            more = f" and {len(wrong) - _SHOWN_FAULTS} more" if len(wrong) > _SHOWN_FAULTS else ""
            shown = "; ".join(wrong[:_SHOWN_FAULTS]) + more
            return Evidence(Criterion.RESOLVED_CONFIG, State.BROKEN, shown, case.log, config.line, wrong[0])
    silent = _silent_phase(case)
    if silent:
        return Evidence(Criterion.RESOLVED_CONFIG, State.MISSING, silent, case.log)
    count = len(requested(case.job))
    each = f", in each of {len(phases)} phases with its own steps and resume mode" if len(phases) > 1 else ""
    summary = f"the run's own configuration shows all {count} requested values{each}"
    return Evidence(Criterion.RESOLVED_CONFIG, State.MET, summary, case.log, configs[-1].line, _shown(configs[-1]))


def _silent_phase(case: Case) -> str:
    """The planned phase that printed no configuration, as a sentence; empty when each of several did."""
    planned, started = planned_phases(case.job), started_phases(case)
    if len(planned) == 1:
        return ""
    spoke = {phase.name for phase in started if any(phase.wrote(config.line) for config in case.facts.configs)}
    silent = next((phase.name for phase in planned if phase.name not in spoke), "")
    return f"no resolved configuration: the {silent} phase printed none" if silent else ""


def requested(job: Job, phase: PlannedPhase | None = None) -> tuple[tuple[str, Value], ...]:
    """Keys and values that the run must print, from `expected`, the wrapper variables, the variant and the rules.

    A key stands twice when two of them disagree: no run can satisfy both. What differs between the phases of a run
    is among them when `phase` says which one is meant, or when there is only one.
    """
    wrapper = {**job.site.wrapper, **job.wrapper}
    overrides = [item for item in job.site.overrides if item not in job.overrides] + list(job.overrides)
    variant = variant_named(f"{int(job.level)}-{job.variant}")
    of_variant = [_without_training(Setting(variant.wrapper, variant.overrides))] if variant else []
    for setting in (*of_variant, *_of_settings(job)):
        # The number of steps of a variant is its default; the job's own is what was asked for.
        asked = {name: value for name, value in setting.wrapper.items() if name != "TOTAL_TRAIN_STEPS"}
        wrapper |= {name: value for name, value in asked.items() if not _is_spread(name, value, wrapper.get(name))}
        overrides += [item for item in setting.overrides if item not in overrides and not _is_set(item, overrides)]
    phases = len(planned_phases(job))
    derived = expected_of_overrides(overrides)
    if job.script == WRAPPER_SCRIPT:
        wrapper |= phase.wrapper if phase else {}
        derived = expected_config(wrapper, overrides, phases=1 if phase else phases)
    expected = {key: value for key, value in job.expected.items() if phases == 1 or key not in _OF_A_PHASE}
    rows = [*expected.items(), *derived.items(), *_ALWAYS.items(), *_of_level(job.level)]
    unique = {(key, type(value), value): (key, value) for key, value in rows}
    return tuple(unique.values())


def _without_training(setting: Setting) -> Setting:
    """The variant without what the job itself says: earlier versions trained with a critic and merged no adapters."""
    wrapper = {name: value for name, value in setting.wrapper.items() if name not in {*WITHOUT_CRITIC, "LORA_MERGE"}}
    return Setting(wrapper, tuple(item for item in setting.overrides if item not in SHARE_OF_DIGITS))


def _of_settings(job: Job) -> Iterator[Setting]:
    """What a derived job was made to set, whatever its variables and overrides say."""
    for axis, value in job.settings.items():
        if not invalid_value(axis, value):
            yield setting_of(axis, value)


def _is_spread(name: str, asked: str, own: str | None) -> bool:
    """Whether a size of the job is larger than was asked for, as a model that needs more GPUs gets (`sizing.fit`)."""
    sizes = parsed(asked), parsed(own or "")
    return name in _SPREAD and all(isinstance(size, int) for size in sizes) and int(own or 0) > int(asked)


def _is_set(override: str, overrides: list[str]) -> bool:
    """Whether the job sets this learning rate itself: a variant's is fit for one probe, the job's for its own."""
    key = override.partition("=")[0].lstrip("+")
    return key.endswith(".optim.lr") and any(item.partition("=")[0].lstrip("+") == key for item in overrides)


def _of_level(level: Level) -> Iterator[tuple[str, Value]]:
    if level in _FSDP_OF:
        yield from ((f"{role}.megatron.use_megatron_fsdp", _FSDP_OF[level]) for role in _ROLES.values())


def _faults(job: Job, phase: PlannedPhase | None, values: Mapping[str, Any]) -> Iterator[str]:
    claimed = f"{int(job.level)}-{job.variant}"
    if not job.id.startswith(claimed):
        yield f"the job is called {job.id}, but it asks for {claimed}"
    for key, wanted in requested(job, phase):
        found = lookup(values, key, ABSENT)
        if not same_value(found, wanted):
            yield f"{key} is {'absent' if found is ABSENT else repr(found)[:80]}, asked {wanted!r}"
    targets = job.settings.get(Axis.ADAPTER_TARGETS)
    if isinstance(targets, str) and lookup(values, LORA_TARGETS, ABSENT) != targets.split(","):
        yield f"{LORA_TARGETS} is {lookup(values, LORA_TARGETS, None)!r:.160}, asked {targets}"
    rank = lookup(values, LORA_RANK, ABSENT)
    if job.level is Level.SMOKE and not (isinstance(rank, int) and rank > 0):
        yield f"{LORA_RANK} is {'absent' if rank is ABSENT else repr(rank)[:80]}, level 0 needs LoRA"


def _shown(config: ResolvedConfig) -> str:
    """The values that a reader of the card looks for, as the run resolved them (vanilla_mbridge is proven by then)."""
    values = config.values or {}
    rest = ", ".join(f"{name}={lookup(values, key, ABSENT)}" for name, key in _SHOWN.items())
    return f"vanilla_mbridge=False ({', '.join(_ROLES)}), {rest}"

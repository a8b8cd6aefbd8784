"""What levels 2 to 4 ask for: sizes, Megatron-FSDP and features at work, each shown by a fact that no dense run has.

A checkpoint's features do not show in verl's configuration. They show in the class of Bridge that converted its
weights, in what verl prints when it prepares a feature, and in metrics that only the feature has. Images and sound
show in none of them, but in what reached the model: the hooks of the fingerprints count arguments of the model's
forward that are neither text nor positions, and calls of the parts whose names are those of towers. Both must have
happened while gradients were recorded, so neither the rollout nor a pass for log-probabilities counts.

Of sizes the configuration says what was asked of Megatron. What it made of it shows in the log: every rank that built
a model says of how many chunks it consists, those of data- and context-parallel rank 0 name their tensor and pipeline
rank, and the token counts of a step divide by the data-parallel size.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from verl_e2e.core.consumer.consumer import ConfigKey, Quantity
from verl_e2e.core.consumer.consumers import consumer_of, measured
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.case import NOT_PRINTED, Case, started_phases, trained_models
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.invariants import hook_problems
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import ResolvedConfig
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE
from verl_e2e.core.model.jobs import JobFeature
from verl_e2e.core.model.record import JOB_FILE
from verl_e2e.core.model.settings import Axis, Value, same_value


@dataclass(frozen=True, slots=True)
class Trace:
    """What a feature leaves in a log; any one of the three is enough."""

    # Bridge's classes for models that always have the feature.
    bridges: re.Pattern[str] | None = None
    # Names of the scan's signs.
    signs: frozenset[str] = frozenset()
    metrics: re.Pattern[str] | None = None


# A class of Bridge is listed only when every model that it converts has the feature.
TRACES: Mapping[str, Trace] = {
    "moe": Trace(
        bridges=re.compile(
            r"\w*M[oO][eE]\w*Bridge|Qwen3NextBridge|DeepSeekV\dBridge|GPTOSSBridge|KimiK\w*Bridge|MiniMaxM\d\w*Bridge"
            r"|GLM4[57]\w*Bridge|GLM5Bridge|HYV3Bridge|MiMoV2FlashBridge|Qwen3OmniBridge|Step3\dBridge|SarvamMLABridge"
            r"|Ernie45(?:VL)?Bridge"
        ),
        signs=frozenset({"router-layers", "rollout-experts"}),
    ),
    "mla": Trace(bridges=re.compile(r"DeepSeekV[234]Bridge|KimiK2\w*Bridge|GLM5Bridge|GLM47FlashBridge|\w*MLABridge")),
    "ssm": Trace(bridges=re.compile(r"NemotronHBridge|FalconH1Bridge|Qwen3NextBridge|Qwen35(?:MoE)?Bridge")),
    "mtp": Trace(signs=frozenset({"mtp-layers-patched"}), metrics=re.compile(r"(?:^|/)mtp_losses/")),
    "fp8": Trace(signs=frozenset({"fp8-weights-loaded"})),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a feature's data must hold, and what shows it in a trainer."""

    name: str
    # Names of arguments of a model's forward.
    inputs: frozenset[str]
    # Words in the names of towers.
    towers: tuple[str, ...]


CONTENTS: Mapping[str, Content] = {
    "vlm": Content(
        "images",
        frozenset({"pixel_values", "pixel_values_videos", "images", "imgs"}),
        ("vision", "visual", "image", "video"),
    ),
    "audio": Content("sound", frozenset({"input_features", "input_audio_features", "sound_clips"}), ("audio", "sound")),
}


def can_be_shown(name: str, active_when: Mapping[str, Value]) -> bool:
    """Whether any run can show the feature, as the criterion asks for it."""
    return name in TRACES or name in CONTENTS or any(not is_dense(key, value) for key, value in active_when.items())


def is_dense(key: str, value: Value) -> bool:
    """Whether the smoke's own configuration has the same value, so that it tells nothing."""
    return key in _DENSE and same_value(_DENSE[key], value)


_DENSE = VERL.expected(VERL.base, ())


def bears_name(bridge: str, family: str) -> bool:
    """Whether a class of Bridge has a family's name in its own, which is how a run shows the family."""
    own, wanted = ("".join(filter(str.isalnum, name.lower())) for name in (bridge, family))
    return wanted in own


def content_active(case: Case, feature: str) -> Evidence:
    """One of CONTENTS, judged by the fingerprints, which are the only evidence of it."""
    content, found = CONTENTS[feature], case.record.fingerprints
    if found is None:
        why = f"so nothing shows whether {content.name} reached the model in training"
        return Evidence(State.MISSING, f"{feature}: no fingerprints are in the folder, {why}", FINGERPRINTS_FILE)
    rows = [line for line in found.inputs if line.model == "actor"]
    inputs = [item for line in rows for item in line.inputs if item.name in content.inputs]
    towers = [tower for line in rows for tower in line.towers]
    towers = [tower for tower in towers if any(word in tower.name.lower() for word in content.towers)]
    # Those that were counted most often in training; lines count from the start of a model, on each rank.
    given = max(inputs, key=lambda item: item.training_calls, default=None)
    ran = max(towers, key=lambda tower: tower.training_calls, default=None)
    if given is None or not given.training_calls:
        why = f"the actor was given no {content.name} in training{hook_problems(found)}"
        return Evidence(State.MISSING, f"{feature}: {why}", FINGERPRINTS_FILE)
    if ran is None or not ran.training_calls:
        which = f"its {ran.name} ({ran.type}) never ran in training" if ran else "it has no tower for them"
        return Evidence(State.MISSING, f"{feature}: the actor was given {given.name}, but {which}", FINGERPRINTS_FILE)
    shape = " x ".join(map(str, given.shape))
    summary = f"{feature}: {given.name} reached the actor in training, and its {ran.name} ({ran.type}) ran"
    excerpt = f"{given.name} [{shape}] in {given.training_calls} forward passes, {ran.name} in {ran.training_calls}"
    return Evidence(State.MET, summary, FINGERPRINTS_FILE, 0, excerpt)


def feature_active(case: Case) -> Evidence:
    """Every feature of the job, and its family, left what a dense run does not have."""
    rows = [judge_feature(case, feature) for feature in case.job.features]
    family, bridges = case.job.family, case.facts.bridges
    if family:
        # The weights of the family's checkpoint were converted by Bridge's class for it.
        own = next((use for use in bridges if bears_name(use.bridge, family)), None)
        classes = ", ".join(dict.fromkeys(use.bridge for use in bridges)) or "none"
        summary = f"the classes of Bridge that converted weights ({classes}) do not name the family {family}"
        row = Evidence(State.MISSING, summary, case.log)
        if own is not None:
            summary = f"{family}: weights converted by {own.bridge}"
            row = Evidence(State.MET, summary, case.log, own.at.line, own.at.text)
        rows.append(row)
    if not rows:
        return Evidence(State.MISSING, "the job names no feature to look for", JOB_FILE)
    gap = next((row for row in rows if row.state is State.MISSING), None)
    if gap:
        return gap
    first = next((row for row in rows if row.excerpt), rows[0])
    return replace(first, summary="; ".join(row.summary for row in rows))


def judge_feature(case: Case, feature: JobFeature) -> Evidence:
    """One feature: all that its configuration must show, and a trace in the log where the feature leaves one."""
    name, trace = feature.name, TRACES.get(feature.name)
    for config in case.facts.configs or (None,):
        wrong = next(_not_asked(config, feature.active_when.items()), "")
        if wrong:
            return Evidence(State.MISSING, f"{name} is not switched on: {wrong}", case.log)
    if name in CONTENTS:
        return content_active(case, name)
    shown = [f"{key}={value}" for key, value in feature.active_when.items() if not is_dense(key, value)]
    if trace is None and not shown:
        return Evidence(State.MISSING, f"nothing that the run prints shows whether {name} was active", case.log)
    if trace is None:
        text = ", ".join(shown)
        return Evidence(State.MET, f"{name}: {text}", case.log, case.facts.configs[-1].line, text)
    found = _first_trace(case, trace)
    if found is None:
        return Evidence(State.MISSING, f"nothing in the log shows {name} at work", case.log)
    return replace(found, summary=f"{name}: {', '.join([*shown, found.summary])}")


def _not_asked(config: ResolvedConfig | None, asked: Iterable[tuple[str, Value]]) -> Iterator[str]:
    """The values of a configuration that differ from those asked for."""
    for key, wanted in asked:
        found: Any = lookup(config.values, key, NOT_PRINTED) if config else NOT_PRINTED
        if not same_value(found, wanted):
            yield f"{key} is {'absent' if found is NOT_PRINTED else repr(found)[:80]}, asked {wanted!r}"


def _first_trace(case: Case, trace: Trace) -> Evidence | None:
    """The first line that shows the feature."""
    facts = case.facts
    for use in facts.bridges:
        if trace.bridges and trace.bridges.fullmatch(use.bridge):
            return Evidence(State.MET, f"weights converted by {use.bridge}", case.log, use.at.line, use.at.text)
    for sign in facts.signs:
        if sign.name in trace.signs:
            return Evidence(State.MET, f"{sign.name} on line {sign.at.line}", case.log, sign.at.line, sign.at.text)
    for step in case.train_steps():
        name = next((name for name in step.values if trace.metrics and trace.metrics.search(name)), "")
        if name:
            excerpt = f"step:{step.step} {name}:{step.values[name]}"
            return Evidence(State.MET, f"metric {name}", case.log, step.line, excerpt)
    return None


# verl times a step's reward apart only where a reward model next to the trainers gives it (trainer_base.py); with
# `reward.custom_reward_function` the same phase calls that function, and the model is served for nothing.


def reward_model_asked(case: Case) -> Evidence:
    """The scores of every step came from the reward model, and it told responses from each other."""
    steps = case.train_steps()
    if not steps:
        return Evidence(State.MISSING, "no step shows whether the reward model was asked", case.log)
    if (own := case.config(ConfigKey.REWARD_FUNCTION)) is not None:
        return Evidence(State.MISSING, f"the scores are those of {own}, not those of the reward model", case.log)
    metrics = consumer_of(case.job).metrics
    (timed, *_), score = metrics[Quantity.REWARD_TIME], metrics[Quantity.SCORE][0].removesuffix("/mean")
    for step in steps:
        low, high = (step.values.get(f"{score}/{name}", math.nan) for name in ("min", "max"))
        text = f"step:{step.step} {timed}:{step.values.get(timed)} {score}:{low:.6g} to {high:.6g}"
        if not step.values.get(timed, 0.0) > 0:
            summary = f"step {step.step} has no {timed}: the reward model was not asked"
            return Evidence(State.MISSING, summary, case.log, step.line, text)
        if not -math.inf < low < high < math.inf:
            summary = f"the scores of step {step.step} are {low:.6g} to {high:.6g}: no sign that responses were read"
            return Evidence(State.MISSING, summary, case.log, step.line, text)
    summary = f"the reward model scored the responses of every step, {low:.4g} to {high:.4g} in the last"
    return Evidence(State.MET, summary, case.log, step.line, text)


_FLAG = "use_megatron_fsdp"
_FSDP = "FullyShardedDataParallel"


def fsdp_active(case: Case) -> Evidence:
    """Every configuration switches Megatron-FSDP on, and no model has another wrapper."""
    roots = [root for model, root in consumer_of(case.job).models.items() if model != "ref"]
    asked = [case.config_value(f"{root}.{_FLAG}") for root in roots]
    if asked != [True] * len(roots):
        words = ", ".join(f"{root}.{_FLAG}={value}" for root, value in zip(roots, asked, strict=True))
        return Evidence(State.MISSING, f"Megatron-FSDP is not switched on: {words}", case.log)
    wrapped = case.facts.wrapped
    other = next((wrapped_model for wrapped_model in wrapped if not wrapped_model.wrapper.startswith(_FSDP)), None)
    if other:
        summary = f"Megatron-FSDP was asked for, and a model was wrapped by {other.wrapper}"
        return Evidence(State.BROKEN, summary, case.log, other.at.line, other.at.text)
    if not wrapped:
        return Evidence(State.MISSING, "no line names the wrapper of a model", case.log)
    first = wrapped[0]
    summary = f"{len(wrapped)} model(s) wrapped by {first.wrapper}"
    return Evidence(State.MET, summary, case.log, first.at.line, first.at.text)


_SIZES: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
# vLLM names its worker processes after their ranks, where there is more than one.
_ROLLOUT_WORKER = re.compile(r"Worker(?:_[A-Z]+\d+)*?_TP(\d{1,4})(?:_[A-Z]+\d+)*")
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

    @property
    def are_trivial(self) -> bool:
        """Whether each of them is 1."""
        return all(getattr(self, name) == 1 for name in _SIZES)

    def data_parallel(self, world: int) -> int:
        """How many data-parallel ranks so many processes leave."""
        return world // (self.tp * self.pp * self.cp)

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in _SIZES)


def parallel_sizes(case: Case) -> Evidence:
    """The resolved parallel sizes are those of the variant, at least one is above 1, and the log shows the ranks."""
    configs = [config for config in case.facts.configs if config.values is not None]
    if not configs:
        return _sizes_evidence(case, State.MISSING, "no resolved configuration shows the parallel sizes")
    asked = [(key, wanted) for key, wanted in requested_config(case.job) if key.endswith("parallel_size")]
    for config in configs:
        wrong = next(_not_asked(config, asked), "")
        if wrong:
            return _sizes_evidence(case, State.BROKEN, wrong, config.line)
    config = configs[-1]
    # The sizes of each model that the configuration shows whole.
    sizes: dict[str, Sizes] = {}
    consumer = consumer_of(case.job)
    # A trainer without virtual stages has no key for them.
    sure = {"vpp": 1} if consumer.settings[Axis.VIRTUAL_PIPELINE].elsewhere else {}
    for role, root in consumer.models.items():
        values = {
            name: lookup(config.values, f"{root}.{key}", sure.get(name, NOT_PRINTED)) for name, key in _SIZES.items()
        }
        # An unset one (no virtual pipeline, expert tensor size like the dense one) counts as 1.
        values = {name: 1 if value is None else value for name, value in values.items()}
        if all(type(size) is int and size > 0 for size in values.values()):
            sizes[role] = Sizes(**values)
    nodes, gpus = (lookup(config.values, consumer.keys[key]) for key in (ConfigKey.NODES, ConfigKey.GPUS_PER_NODE))
    world = nodes * gpus if type(nodes) is int and type(gpus) is int else 0
    actor = sizes.get("actor")
    if actor is None or not world:
        return _sizes_evidence(case, State.MISSING, "the configuration does not show the actor's sizes", config.line)
    if actor.are_trivial and actor.data_parallel(world) == 1:
        return _sizes_evidence(case, State.MISSING, "every parallel size is 1: nothing is shown", config.line)
    gap = next(_sizes_gaps(case, sizes, world), "")
    if gap:
        return _sizes_evidence(case, State.MISSING, gap, config.line)
    rollout, workers = lookup(config.values, consumer.keys[ConfigKey.ROLLOUT_TENSOR]), _rollout_ranks(case)
    named = f" (workers of rank {_in_order(workers)})" if workers else ""
    ranks = ", ".join(map(str, sorted({(rank.tensor, rank.pipeline) for rank in case.facts.ranks})))
    summary = (
        f"{' and '.join(sizes)} have {actor}, the rollout tp={rollout}{named}; "
        f"{world * consumer.builders} process(es) built the models, "
        f"(tensor, pipeline) ranks {ranks}, data-parallel size {actor.data_parallel(world)}"
    )
    line = case.facts.ranks[0].line if case.facts.ranks else config.line
    return _sizes_evidence(case, State.MET, summary, line, f"model parallel ranks {ranks} of {world} process(es)")


def _sizes_evidence(case: Case, state: State, summary: str, line: int = 0, excerpt: str = "") -> Evidence:
    return Evidence(state, summary, case.log, line, excerpt or (summary if line else ""))


def _sizes_gaps(case: Case, sizes: Mapping[str, Sizes], world: int) -> Iterator[str]:
    """Where the log does not show what the configuration says."""
    facts, phases = case.facts, started_phases(case)
    trained = [sizes[role] for role in ("actor", "critic") if role in sizes]
    for phase in phases:
        # The part of the log that one start of the wrapper wrote.
        where = f"in the {phase.name} phase " if len(phases) > 1 else ""
        chunks = [chunk for chunk in facts.chunks if phase.wrote(chunk.line)]
        workers = [worker for worker in facts.workers if worker.built_model and phase.wrote(worker.line)]
        built = {chunk.pid for chunk in chunks} or {worker.pid for worker in workers}
        builders = world * consumer_of(case.job).builders
        if len(built) != builders:
            yield f"{where}{len(built)} of {builders} processes say that they built a model"
        expected = frozenset[tuple[int, int]]().union(*(size.grid for size in trained))
        seen = {(rank.tensor, rank.pipeline) for rank in facts.ranks if phase.wrote(rank.line)}
        if seen != expected:
            ranks = f"the (tensor, pipeline) ranks in the log are {_in_order(seen)}"
            yield f"{where}{ranks}, the sizes make {_in_order(expected)}"
        counts, asked = {chunk.count for chunk in chunks}, {size.vpp for size in trained}
        if counts != asked and (counts or asked != {1}):
            models = f"models of {_in_order(counts)} chunk(s) were built"
            yield f"{where}{models}, the virtual pipeline asks for {_in_order(asked)}"
    size_of_rollout = consumer_of(case.job).keys[ConfigKey.ROLLOUT_TENSOR]
    rollout, workers_seen = lookup(facts.configs[-1].values, size_of_rollout), _rollout_ranks(case)
    if workers_seen and type(rollout) is int and workers_seen != set(range(rollout)):
        yield f"the rollout's tensor ranks in the log are {_in_order(workers_seen)}, its size is {rollout}"
    left = sizes["actor"].data_parallel(world)
    # The token counts of the last step that has them divide by the data-parallel size.
    for step in reversed(case.train_steps()):
        total, mean = (measured(step.values, item) or 0.0 for item in (Quantity.TOKENS, Quantity.TOKENS_OF_A_RANK))
        ratio = total / mean if mean else 0.0
        if ratio and math.isfinite(ratio) and abs(ratio - round(ratio)) <= _ROUNDING:
            if round(ratio) != left:
                yield f"the token counts are of {round(ratio)} data-parallel ranks, the sizes leave {left}"
            return


_SCHEDULE_MODULE = "megatron.core.pipeline_parallel.schedules:"


def pipeline_schedule(case: Case) -> Evidence:
    """Every model trained under a schedule for pipelines, with a micro-batch or more for each stage."""
    found = case.record.fingerprints
    if found is None or not any(hook.target.startswith(_SCHEDULE_MODULE) for hook in found.hooks):
        text = "with which schedule and how many micro-batches a pipeline trained was not recorded"
        return Evidence(State.WAIVED, text, FINGERPRINTS_FILE)
    consumer, axes = consumer_of(case.job), (Axis.PIPELINE, Axis.VIRTUAL_PIPELINE)
    stages, chunks = (consumer.text(axis, case.wrapper, "1") for axis in axes)
    wanted = f"forward_backward_pipelining_with{'out' if chunks in ('1', 'null') else ''}_interleaving"
    shown = []
    for phase in consumer_of(case.job).phases(case.job):
        for model in trained_models(case):
            lines = [line for line in found.inputs if (line.phase, line.model) == (phase.name, model)]
            uses = [use for line in lines for use in line.schedules if use.training]
            of = f"of the {model} in the {phase.name} phase"
            if not uses:
                why = f"no schedule {of} was seen to train{hook_problems(found)}"
                return Evidence(State.MISSING, why, FINGERPRINTS_FILE)
            other = next((use.name for use in uses if use.name != wanted), "")
            least, most = min(use.least for use in uses), max(use.most for use in uses)
            if other or least < (int(stages) if stages.isdecimal() else 0):
                few = f"a training pass {of} had {least} micro-batch(es) for {stages} stages: the pipeline was not full"
                what = f"the schedule {of} was {other[:80]}, not {wanted}" if other else few
                return Evidence(State.MISSING, what, FINGERPRINTS_FILE)
            shown.append(f"{phase.name}: {model} {least if least == most else f'{least} to {most}'} micro-batches")
    text = f"{wanted} over {stages} stages ({', '.join(shown)})"
    return Evidence(State.MET, text, FINGERPRINTS_FILE, 0, text)


def _rollout_ranks(case: Case) -> set[int]:
    """The tensor ranks of the rollout's workers by their names; empty where they bear none."""
    found = (_ROLLOUT_WORKER.fullmatch(worker.actor) for worker in case.facts.workers)
    return {int(match[1]) for match in found if match}


def _in_order(values: set[Any] | frozenset[Any]) -> str:
    return ", ".join(map(str, sorted(values))) or "none"

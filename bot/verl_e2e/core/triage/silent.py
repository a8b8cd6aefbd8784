"""Faults that raise nothing: a run that is not the one asked for, an empty adapter, dropped weights, odd metrics.

Among them are runs that came to their end and prove nothing: no samples, no update, nothing to learn from. Each row of
the table with a `fact` names one of these functions; whose fault it is says the row. What is not printed says nothing:
neither a setting that was not echoed nor a metric. A single odd step of many proves nothing either way: what is asked
for is that no step shows the thing.
"""

import ast
import math
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain

from verl_e2e.core.consumer.consumer import ROLLOUT_FROM_FILE, ConfigKey, Quantity
from verl_e2e.core.consumer.consumers import CONSUMERS, FIRST_NAMES, METRICS, measured
from verl_e2e.core.consumer.verl import COMMON_NAMES, SET_BY_VERL, VARIABLES_OF_KEYS, VERL
from verl_e2e.core.consumer.verl_log import ADAPTER_LINE
from verl_e2e.core.log.printed import lookup, lora_rank, not_finite
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER
from verl_e2e.core.model.facts import AskedSetting, Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.settings import parsed

# The stage of a fault, the line that shows it, and the cause in words; empty where the row of the table says it.
FoundFault = tuple[Stage, Excerpt, str]

(AGREEMENT,) = METRICS[Quantity.AGREEMENT]
# A band needs five healthy measurements of a workload; our healthy runs gave 0.99924 to 0.99996.
AGREEMENT_FAIL_BELOW = 0.995
# A correlation of two equal vectors may exceed one by rounding, never by more.
ROUNDING = 1e-6
# From so many steps on a reward that never moves is not an accident; a random model may earn nothing at first.
CONSTANT_FROM = 3
# A warm-up begins at a learning rate of zero.
NO_RATE_FROM = 2
GRADIENTS = (*METRICS[Quantity.GRADIENT_NORM], *METRICS[Quantity.CRITIC_GRADIENT_NORM])
_REWARDS = METRICS[Quantity.SCORE]
_RATES = METRICS[Quantity.LEARNING_RATE]
# Of each consumer.
_ADVANTAGES = tuple(
    names
    for metrics in (consumer.metrics for consumer in CONSUMERS.values())
    for names in ((*metrics[Quantity.ADVANTAGE_MAX], *metrics[Quantity.ADVANTAGE_MIN]), metrics[Quantity.ADVANTAGE])
    if names
)
_GENERATED = (
    *METRICS[Quantity.GENERATION_TIME],
    *METRICS[Quantity.RESPONSE_LENGTH],
    *FIRST_NAMES[Quantity.SCORE],
)
_TRAINERS = frozenset({Stage.PEFT, Stage.DDP_WRAP, Stage.FSDP_WRAP, Stage.OPTIMIZER})


def every_step(facts: LogFacts) -> tuple[StepMetrics, ...]:
    """The metric lines with the last one, which may lie beyond those that are kept."""
    last = facts.last_step
    if last is None or any(step.line == last.line for step in facts.steps[-1:]):
        return facts.steps
    return (*facts.steps, last)


def trained(facts: LogFacts, metric: str = "") -> tuple[StepMetrics, ...]:
    """The metric lines of training steps, those with a metric; step 0 is the validation before training."""
    return tuple(step for step in every_step(facts) if step.step > 0 and (not metric or metric in step.values))


def is_correlation(value: float) -> bool:
    """Whether a number can be a correlation; NaN cannot."""
    return abs(value) <= 1 + ROUNDING


def shown_metric(step: StepMetrics, metric: str) -> Excerpt:
    """A metric of a step as evidence."""
    return Excerpt(step.line, f"step:{step.step} - {metric}:{step.values[metric]}")


def completed(find: Callable[[LogFacts], FoundFault | None]) -> Callable[[LogFacts], FoundFault | None]:
    """The same check for runs that came to their end: of others nothing follows from what is not there."""

    @wraps(find)
    def of_completed(facts: LogFacts) -> FoundFault | None:
        return None if facts.completed_at is None else find(facts)

    return of_completed


@completed
def no_samples(facts: LogFacts) -> FoundFault | None:
    """No response of any step reached the loss."""
    for metric, value, sentence in (row for consumer in CONSUMERS.values() for row in consumer.no_samples):
        steps = trained(facts, metric)
        if steps and all(step.values[metric] == value for step in steps):
            return Stage.TRAIN_STEP, shown_metric(steps[0], metric), f"{sentence}, so no step shows anything"
    return None


@completed
def rollout_from_file(facts: LogFacts) -> FoundFault | None:
    """The rollouts were read from a file, and the engine generated nothing."""
    sign = next((sign for sign in facts.signs if sign.name == ROLLOUT_FROM_FILE), None)
    return None if sign is None else (Stage.ROLLOUT_ENGINE, sign.at, "")


@completed
def not_updated(facts: LogFacts) -> FoundFault | None:
    """Steps that generated responses and never updated the actor, as under a critic warm-up longer than the run."""
    updates = [name for consumer in CONSUMERS.values() for name in consumer.of_updates]
    training = [name for consumer in CONSUMERS.values() for name in consumer.of_training]
    steps = [step for step in trained(facts) if any(name in step.values for name in _GENERATED)]
    if not steps or any(name in step.values for step in steps for name in updates):
        return None
    built = any(mark.stage in _TRAINERS for mark in facts.stages)
    if not built and not any(name in step.values for step in steps for name in training):
        return None
    metric = next(name for name in _GENERATED if name in steps[0].values)
    return Stage.TRAIN_STEP, shown_metric(steps[0], metric), ""


@completed
def no_advantage(facts: LogFacts) -> FoundFault | None:
    """Every advantage of every step is exactly zero: whatever was generated, the policy had nothing to learn."""
    for names in _ADVANTAGES:
        steps = [step for step in trained(facts) if all(name in step.values for name in names)]
        if steps and not any(step.values[name] for step in steps for name in names):
            return Stage.LEARNING_SIGNAL, shown_metric(steps[0], names[0]), ""
    return None


@completed
def constant_reward(facts: LogFacts) -> FoundFault | None:
    """The mean reward is the very same number at every one of several steps."""
    for metric in _REWARDS:
        steps = trained(facts, metric)
        values = {step.values[metric] for step in steps}
        if len(steps) >= CONSTANT_FROM and len(values) == 1 and math.isfinite(steps[0].values[metric]):
            cause = f"{metric} is exactly {steps[0].values[metric]:g} at every one of {len(steps)} steps"
            return Stage.LEARNING_SIGNAL, shown_metric(steps[-1], metric), cause
    return None


@completed
def no_rate(facts: LogFacts) -> FoundFault | None:
    """The learning rate is zero at every one of several steps: the updates moved nothing."""
    found = _always_zero(facts, _RATES, NO_RATE_FROM)
    return None if found is None else (*found[:2], "")


@completed
def no_gradient(facts: LogFacts) -> FoundFault | None:
    """A gradient norm that is exactly zero at every step."""
    return _always_zero(facts, GRADIENTS, 1)


def _always_zero(facts: LogFacts, metrics: Sequence[str], least: int) -> FoundFault | None:
    for metric in metrics:
        steps = trained(facts, metric)
        if len(steps) >= least and all(step.values[metric] == 0 for step in steps):
            return Stage.LEARNING_SIGNAL, shown_metric(steps[0], metric), f"{metric} is exactly zero at every step"
    return None


def agreement_unknown(facts: LogFacts) -> FoundFault | None:
    """The correlation of trainer and rollout is not a correlation: NaN, infinite, or beyond one."""
    for step in trained(facts, AGREEMENT):
        value = step.values[AGREEMENT]
        if not is_correlation(value):
            cause = f"the correlation of trainer and rollout is {value}, which is not a correlation"
            return Stage.EXPORT_WEIGHT_SYNC, shown_metric(step, AGREEMENT), cause
    return None


def agreement_low(facts: LogFacts) -> FoundFault | None:
    """Trainer and rollout do not hold the same weights."""
    for step in trained(facts, AGREEMENT):
        value = step.values[AGREEMENT]
        if not value >= AGREEMENT_FAIL_BELOW:
            cause = f"trainer and rollout do not hold the same weights: {value:.5f}"
            return Stage.EXPORT_WEIGHT_SYNC, shown_metric(step, AGREEMENT), cause
    return None


def metrics_not_finite(facts: LogFacts) -> FoundFault | None:
    """A watched metric that is not finite, in any step or validation."""
    for step in every_step(facts):
        for name in not_finite(step.values):
            return Stage.LEARNING_SIGNAL, shown_metric(step, name), f"{name} is not finite"
    return None


# What Bridge prints while it writes a checkpoint, in contrast to a parameter that has no mapping.
_EXPORT = re.compile(r"not written|were yielded but not saved|from generator not found|Missing \d+ tensors for keys")
# The lines of `build_conversion_tasks`, with what each means for the weight that it names.
_LOSSES = {
    r"No mapping found for (?:megatron_param|global_name): (\S{1,120})": "Bridge has no mapping for",
    r"Can't find (\S{1,120}) in hf_keys": "the checkpoint does not hold what Bridge maps to",
}


def adapter_empty(facts: LogFacts) -> FoundFault | None:
    """LoRA was asked for, and its adapter has no parameters."""
    empty = next((report for report in facts.adapters if report.adapter == 0), None)
    asked = facts.lora_at is not None or any(lora_rank(config) > 0 for config in facts.configs)
    return None if empty is None or not asked else (Stage.PEFT, Excerpt(empty.line, f"{ADAPTER_LINE} 0"), "")


def weights_unmapped(facts: LogFacts) -> FoundFault | None:
    """Bridge dropped weights that have no mapping."""
    at = next((line for line in facts.lost_weights if not _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, lost_weights_text(facts.lost_weights))


def export_incomplete(facts: LogFacts) -> FoundFault | None:
    """Bridge wrote a checkpoint without every key of its source."""
    at = next((line for line in facts.lost_weights if _EXPORT.search(line.text)), None)
    return None if at is None else (_import_or_export(facts, at), at, "")


def lost_weights_text(lost: Sequence[Excerpt]) -> str:
    """What Bridge says that it lost, by the first line about it."""
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    for pattern, text in _LOSSES.items():
        found = re.search(pattern, lost[0].text)
        if found:
            return f"{text} {found[1]}{more}"
    return f"{len(lost)} warning(s) of lost weights"


def _import_or_export(facts: LogFacts, at: Excerpt) -> Stage:
    synced = any(mark.stage is Stage.EXPORT_WEIGHT_SYNC and mark.at.line < at.line for mark in facts.stages)
    saved = any(event.at.line < at.line for event in facts.checkpoints)
    return Stage.EXPORT_WEIGHT_SYNC if saved or synced else Stage.HF_IMPORT


def weights_refused(facts: LogFacts) -> FoundFault | None:
    """The rollout engine says that it did not take a weight."""
    at = next(iter(facts.refused_weights), None)
    return None if at is None else (Stage.EXPORT_WEIGHT_SYNC, at, "")


# Values as Hydra and the operating system read them.
UNREADABLE = object()

_WORKED_OUT = re.compile(
    r"\$[({\w]|^\s*(?:choice|range|interval|glob|sort|shuffle|tag|extend_list|cast|int|float|str)\("
)
# An address may hold colons.
_ITEM = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\w+://[^\[\]{},'"]*|[^\[\]{},:'"\s][^\[\]{},:'"]*""")
_ESCAPED = re.compile(r"\\([\\'\"(){}\[\],:=\s])")
_UNKNOWN = re.compile(r"~[\w.-]*(?=/|$)|\.\.?(?=/)")


def read_value(text: str) -> object:
    """What an override or a variable says, as Hydra reads it: a text, a list or a mapping, or `UNREADABLE`."""
    bare = text.strip()
    if _WORKED_OUT.search(bare):
        return UNREADABLE
    if bare.startswith(("[", "{")):
        try:
            return ast.literal_eval(_ITEM.sub(lambda item: repr(_text(item[0].strip())), bare))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNREADABLE
    return _text(bare)


def _text(bare: str) -> str:
    """A text without Hydra's own quotes and backslashes."""
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        return bare[1:-1].replace(f"\\{bare[0]}", bare[0]).replace("\\\\", "\\")
    return _ESCAPED.sub(r"\1", bare)


def is_as_wanted(found: object, wanted: object) -> bool:
    """Whether a printed value is the one that was wanted; a mapping that was asked for is merged into the whole.

    What is not printed contradicts nothing.
    """
    if UNREADABLE in (found, wanted):
        return True
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(key not in found or is_as_wanted(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list | tuple):
        return len(found) == len(wanted) and all(map(is_as_wanted, found, wanted))
    if isinstance(found, str) and isinstance(wanted, str) and same_text(found, wanted):
        return True
    left, right = _read(found), _read(wanted)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right) or (isinstance(left, str) and isinstance(right, str) and same_text(left, right))


def same_text(left: str, right: str) -> bool:
    """Equality of two texts, or of two paths or lists of paths as the operating system reads them.

    A home folder is that of a user who is not known here, and `./` stands for a folder that is not known.
    """

    def normal(path: str) -> str:
        return re.sub("^//", "/", posixpath.normpath(path)) if "/" in path else path

    def same_path(left: str, right: str) -> bool:
        for one, other in ((left, right), (right, left)):
            unknown = _UNKNOWN.match(one)
            if unknown is not None and other.startswith("/"):
                return normal(other).endswith(normal(one[unknown.end() :]).removesuffix("/"))
        return normal(left) == normal(right)

    parts = left.split(":"), right.split(":")
    return len(parts[0]) == len(parts[1]) and all(map(same_path, *parts))


def _read(value: object) -> object:
    """A text as the number, truth value or nothing that it spells; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip("'\" ")
    return None if text.lower() == "none" else parsed(text)


# Whether the packages under test were imported from the checkout that PYTHONPATH names.
_PYTHONPATH = re.compile(r"(?:.*\.)?PYTHONPATH")
_CHECKOUT = re.compile(r"(?:[A-Z]+_)?BRIDGE(?:_\w+)?")
_INSTALLED = re.compile(r"/(?:site|dist)-packages(?:/|$)")
_OF_BRIDGE = re.compile(r"(?i)bridge")
_NAMES = {"megatron.bridge": "Megatron-Bridge", "megatron.core": "Megatron-LM"}


def other_checkout(facts: LogFacts) -> FoundFault | None:
    """A package under test from a folder that is on no PYTHONPATH of the run.

    A PYTHONPATH without a checkout of the package asks for whatever is installed. A process that shows the package in
    the checkout, too, imported it from there. A frame of a traceback counts when it is of an installed package: an
    exception may carry the traceback of another machine.
    """
    entries = [(entry, setting) for setting in facts.asked for entry in _entries(setting)]
    local = {
        (item.package, item.actor) for item in facts.packages if any(_holds(entry, item.root) for entry, _ in entries)
    }
    names = {entry for entry, _ in entries}
    for found in facts.packages:
        # The first entry that is a checkout of the package.
        of_core = found.package == "megatron.core"
        checkouts = (
            row for row in entries if (row[0].endswith(MEGATRON_LM_FOLDER) if of_core else _is_bridge(row[0], names))
        )
        asked = next(checkouts, None)
        known = (found.package, found.actor) in local or (found.traced and not _INSTALLED.search(found.root))
        if asked is not None and not known:
            entry, setting = asked
            wanted = f"asked for {_NAMES[found.package]} from {entry[:200]} (line {setting.at.line})"
            got = f"{found.package} was imported from {found.root[:200]} (line {found.at.line})"
            return Stage.IMPORT, found.at, f"{wanted}, but {got}"
    return None


def _entries(setting: AskedSetting) -> Iterator[str]:
    """The folders that a setting puts on the path; those of a variable that names a checkout count with all below."""
    read = read_value(setting.value)
    value = (read if isinstance(read, str) else setting.value).strip("'\"")
    if _PYTHONPATH.fullmatch(setting.name):
        yield from (posixpath.normpath(entry) for entry in value.split(":") if entry)
    elif _CHECKOUT.fullmatch(setting.name) and not setting.override and value.startswith(("/", "~", "$")):
        root = posixpath.normpath(value)
        yield from (root, f"{root}/src", f"{root}/{MEGATRON_LM_FOLDER}")


def _is_bridge(entry: str, others: set[str]) -> bool:
    if _INSTALLED.search(entry) or entry.endswith(MEGATRON_LM_FOLDER):
        return False
    parent, _, last = entry.rpartition("/")
    if last == "src" and f"{parent}/{MEGATRON_LM_FOLDER}" in others:
        return True
    return bool(_OF_BRIDGE.search(last) or (last == "src" and _OF_BRIDGE.search(parent.rpartition("/")[2])))


def _holds(entry: str, root: str) -> bool:
    """Whether an entry of the path is the folder; a relative one is known by its end only."""
    place = posixpath.normpath(root)
    return place == entry or (not entry.startswith(("/", "~", "$")) and place.endswith(f"/{entry.removeprefix('./')}"))


_ROLES: Mapping[str, str] = {model.upper(): root for model, root in VERL.models.items()}
_ADAPTER, _CRITIC_ADAPTER = VERL.keys[ConfigKey.ADAPTER_RANK], VERL.keys[ConfigKey.CRITIC_ADAPTER_RANK]
MODEL_PATH = VERL.keys[ConfigKey.MODEL_PATH]
STEPS, SAVES, RESUMES = (VERL.keys[key] for key in (ConfigKey.STEPS, ConfigKey.SAVE_EVERY, ConfigKey.RESUMES))


def not_as_asked(facts: LogFacts) -> FoundFault | None:
    """The first thing that one run did otherwise than it was asked, whatever became of it."""
    wanted = _Wanted(facts.asked)
    checks = (_dropped, _configured, _adapters, _wrappers, _ranks, _steps, _saves, _resumes)
    return next(chain.from_iterable(check(wanted, facts) for check in checks), None)


class _Wanted:
    """The settings in effect by dotted key, as Hydra and the wrapper resolve them: the last one counts."""

    def __init__(self, settings: Iterable[AskedSetting]) -> None:
        self._variables = {item.name: item for item in settings if not item.override}
        self.overrides: dict[str, list[AskedSetting]] = {}
        for setting in settings:
            if setting.override:
                self.overrides.setdefault(setting.name, []).append(setting)

    def of_variable(self, key: str) -> AskedSetting | None:
        """The wrapper's variable that decides a key."""
        names = VARIABLES_OF_KEYS.get(key, ())
        dummy = self._variables.get("USE_DUMMY_MODEL")
        if key == MODEL_PATH and dummy is not None and dummy.value == "True":
            names = ("DUMMY_MODEL_PATH",)
        return next((self._variables[name] for name in names if name in self._variables), None)

    def get(self, key: str) -> AskedSetting | None:
        """What was asked for under a key: the last override, else the variable."""
        overrides = self.overrides.get(key)
        return overrides[-1] if overrides else self.of_variable(key)

    def number(self, key: str) -> int | None:
        """The whole number asked for under a key."""
        setting = self.get(key)
        value = None if setting is None else read_value(setting.value)
        return int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,12}", value) else None


def _dropped(wanted: _Wanted, _facts: LogFacts) -> Iterator[FoundFault]:
    """A variable that the command line, which was made from it, does not pass on."""
    for key in VARIABLES_OF_KEYS:
        variable, passed = wanted.of_variable(key), wanted.overrides.get(key, [])
        # A second override of the key is someone's own, and the last one counts.
        if variable is None or len(passed) != 1 or variable.name in COMMON_NAMES:
            continue
        if not is_as_wanted(read_value(passed[0].value), read_value(variable.value)):
            yield _against(variable, f"the command passes {key}={passed[0].value}", passed[0].at.line)


def _configured(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """A value of the printed configuration that is not the one asked for."""
    for key in dict.fromkeys((*VARIABLES_OF_KEYS, *wanted.overrides)):
        setting = wanted.get(key)
        if setting is None or "." not in key or key in SET_BY_VERL:
            continue
        for config in facts.configs:
            found = lookup(config.values, key, UNREADABLE)
            if not is_as_wanted(found, read_value(setting.value)):
                yield _against(setting, f"the configuration printed says {key} {found!r}"[:200], config.line)


def _adapters(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """An adapter of a rank that no model was asked to have."""
    setting, ranks = wanted.get(_ADAPTER), [wanted.number(key) for key in (_ADAPTER, _CRITIC_ADAPTER)]
    if setting is None or ranks[0] is None:
        return
    printed = (lookup(config.values, _CRITIC_ADAPTER) for config in facts.configs)
    known = set(ranks) if ranks[1] is not None else {ranks[0], *printed}
    for enabled in facts.lora_ranks:
        if enabled.value not in known:
            yield _against(setting, f"an adapter of rank {enabled.value} was enabled", enabled.at.line)


def _wrappers(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """Models wrapped for Megatron-FSDP although DDP was asked for, or the other way round."""
    keys = [f"{root}.use_megatron_fsdp" for root in _ROLES.values()]
    settings = [setting for setting in map(wanted.get, keys) if setting is not None]
    values = [read_value(setting.value) for setting in settings]
    asked = [switch for switch in (True, False) if values and all(is_as_wanted(switch, value) for value in values)]
    sharded = [model for model in facts.wrapped if model.wrapper.startswith("FullySharded")]
    other = sharded if asked == [False] else facts.wrapped if asked == [True] and not sharded else ()
    for model in other:
        yield _against(settings[0], f"a model was wrapped as {model.wrapper} ({keys[0]})", model.at.line)


def _ranks(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """A rank beyond the parallel sizes that were asked for."""
    for size, name in (("tensor_model_parallel_size", "tensor"), ("pipeline_model_parallel_size", "pipeline")):
        keys = [f"{root}.{size}" for root in _ROLES.values()]
        settings = [setting for setting in map(wanted.get, keys) if setting is not None]
        sizes = [wanted.number(key) for key in keys]
        known = [value for value in sizes if value is not None]
        if len(known) != len(keys):
            continue
        for rank in facts.ranks:
            index = rank.tensor if name == "tensor" else rank.pipeline
            if index >= max(known):
                yield _against(settings[0], f"{name} rank {index} built a model ({size})", rank.line)


def _steps(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """Another number of steps than was asked for."""
    setting, asked = wanted.get(STEPS), wanted.number(STEPS)
    if setting is None or asked is None:
        return
    planned, bar = facts.planned_steps, facts.progress
    if planned is not None and planned.value != asked:
        yield _against(setting, f"{planned.value} steps were planned", planned.at.line)
    if bar is not None and bar.total != asked:
        yield _against(setting, f"the progress bar counts {bar.total} steps", bar.at.line)


def _saves(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """Checkpoints that were asked for, of a finished run that wrote none."""
    setting, every = wanted.get(SAVES), wanted.number(SAVES)
    if setting is None or every is None or every <= 0 or facts.completed_at is None:
        return
    written = any(event.action in ("saving", "saved") for event in facts.checkpoints)
    if not written and not any(measured(step.values, Quantity.SAVE_TIME) is not None for step in facts.steps):
        cause = f"asked for {_shown(setting)}, but the run ended without a checkpoint"
        yield Stage.CHECKPOINT_SAVE, setting.at, cause


def _resumes(wanted: _Wanted, facts: LogFacts) -> Iterator[FoundFault]:
    """A resume that was asked for, of a run that began from scratch, or that did not go on after its checkpoint."""
    setting = wanted.get(RESUMES)
    if setting is None or read_value(setting.value) not in ("auto", "resume_path"):
        return
    back = next((event for event in facts.checkpoints if event.action == "resumed"), None)
    scratch = next((event for event in facts.checkpoints if event.action == "scratch"), None)
    first = next((step for step in facts.steps if step.step > 0), None)
    got = ""
    if back is None and scratch is not None:
        got = f"training began from scratch (line {scratch.at.line})"
    elif back is not None and back.step is not None and first is not None and first.step <= back.step:
        got = f"the run resumed from step {back.step} and trained step {first.step} (line {first.line})"
    if got:
        cause = f"asked to resume by {_shown(setting)}, but {got}"
        yield Stage.CHECKPOINT_LOAD, setting.at, cause


def _against(setting: AskedSetting, got: str, line: int) -> FoundFault:
    return Stage.ENVIRONMENT, setting.at, f"asked for {_shown(setting)}, but {got} (line {line})"


def _shown(setting: AskedSetting) -> str:
    return f"{setting.at.text[:120]} (line {setting.at.line})"

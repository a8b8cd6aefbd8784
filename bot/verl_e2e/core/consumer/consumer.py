"""What this project has to know of a training program that drives Megatron-Bridge: a consumer.

Everything else plans, judges and reports by `Axis`, `Quantity`, `ProcessRole` and `HookPoint`, and asks the job's
consumer for its words. Nothing here reads a file, a clock or the environment.
"""

import ast
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, Final, Protocol

from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import Job, Patch, SiteProfile
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.settings import Axis, Setting, Takes, Value
from verl_e2e.core.model.space import JobPoint


class Quantity(StrEnum):
    """What a metric measures, whatever the consumer calls it. Losses, norms and KL are means over a step."""

    POLICY_LOSS = auto()
    VALUE_LOSS = auto()
    # Of the policy, and of the critic where one trains: before clipping, over all ranks.
    GRADIENT_NORM = auto()
    CRITIC_GRADIENT_NORM = auto()
    ENTROPY = auto()
    # To the reference policy, and between the policy that sampled and the one that is updated.
    KL = auto()
    STEP_KL = auto()
    # What the reward function gave, and the same less any penalty.
    SCORE = auto()
    REWARD = auto()
    VALUE = auto()
    # The mean size of the advantages: 0 when nothing is to be learned.
    ADVANTAGE = auto()
    # The largest and the smallest advantage of a step.
    ADVANTAGE_MAX = auto()
    ADVANTAGE_MIN = auto()
    # Pearson's correlation of the probabilities of trainer and rollout, at most 1.
    AGREEMENT = auto()
    # The mean absolute difference of their log-probabilities, 0 or more; for a consumer without a correlation.
    LOG_PROBABILITY_DIFFERENCE = auto()
    # The mean of the larger of the two probabilities over the smaller, 1 or more; their KL, 0 or more.
    PROBABILITY_RATIO = auto()
    ROLLOUT_KL = auto()
    # The mean negative log-probability of a sampled token, by the trainer and by the rollout engine.
    TRAINER_LOG_PPL = auto()
    ROLLOUT_LOG_PPL = auto()
    LEARNING_RATE = auto()
    CRITIC_LEARNING_RATE = auto()
    # Tokens of a response, and the share of responses that the limit cut.
    RESPONSE_LENGTH = auto()
    CAP_SHARE = auto()
    # Tokens of a prompt. Equal prompts are how two runs are known to have read the same data.
    PROMPT_LENGTH = auto()
    PROMPT_LENGTH_MAX = auto()
    PROMPT_LENGTH_MIN = auto()
    # Counters from 0 or 1.
    GLOBAL_STEP = auto()
    EPOCH = auto()
    # Seconds of a step, and of its parts.
    STEP_TIME = auto()
    SAVE_TIME = auto()
    REWARD_TIME = auto()
    GENERATION_TIME = auto()
    # Tokens per second and GPU; GiB at the highest moment.
    THROUGHPUT = auto()
    MEMORY = auto()
    # Tokens of a step in all, and of one data-parallel rank on average.
    TOKENS = auto()
    TOKENS_OF_A_RANK = auto()


class ConfigKey(StrEnum):
    """What a key of a consumer's resolved configuration says, beside Megatron's own names below `Consumer.models`."""

    # Of the policy's adapter, and the rank of the critic's.
    ADAPTER_RANK = auto()
    CRITIC_ADAPTER_RANK = auto()
    ADAPTER_ALPHA = auto()
    ADAPTER_TARGETS = auto()
    ADAPTER_MERGE = auto()
    # The estimator of advantages; under `gae` a critic trains.
    ADVANTAGES = auto()
    ROLLOUT_ENGINE = auto()
    ROLLOUT_TENSOR = auto()
    # Whether the engine runs without CUDA graphs, and goes on where a model ends its answer.
    ROLLOUT_EAGER = auto()
    IGNORE_END = auto()
    # The most tokens of a response.
    RESPONSE_LENGTH = auto()
    # Every so many steps a checkpoint is written; the folder of the checkpoints.
    SAVE_EVERY = auto()
    CHECKPOINTS = auto()
    STEPS = auto()
    RESUMES = auto()
    NODES = auto()
    GPUS_PER_NODE = auto()
    # Whether weights come from a checkpoint of Megatron's instead of Bridge's import.
    DIST_CHECKPOINT = auto()
    # The file of a reward function of the job's own.
    REWARD_FUNCTION = auto()
    # Whether a reward model gives the scores, and where it lies.
    REWARD_MODEL = auto()
    REWARD_MODEL_PATH = auto()
    MODEL_PATH = auto()
    # What trains the policy; `megatron` in every job.
    STRATEGY = auto()
    # Whether the policy's tensor ranks divide sequences.
    SEQUENCE_PARALLEL = auto()
    # Whether the policy's parameters are gathered after its step.
    GATHERS_LATER = auto()


class HookPoint(StrEnum):
    """What the instrumentation reads when a method of the consumer, of Bridge or of Megatron-LM runs."""

    # After it: the model with its weights and adapters.
    MODEL_BUILT = "initialize"
    # After it: the weights that Bridge imported, and what the files hold.
    WEIGHTS_IMPORTED = "load_hf_weights"
    # After it: parameters and optimizer state.
    OPTIMIZER_STEP = "optimizer_step"
    SAVED = "save_checkpoint"
    LOADED = "load_checkpoint"
    # Its result: the weights that leave for the rollout, one by one, and which method of Bridge made them.
    EXPORTED = "get_per_tensor_param"
    EXPORT_METHOD = "export"
    # In the rollout engine: around an update, and each bucket of it.
    RECEIVED = "update_weights_from_ipc"
    RECEIVED_BUCKET = "update_weights"
    # Which schedule of Megatron-LM ran, with how many micro-batches.
    SCHEDULE = "schedule"
    # Before the first bucket, where an update is no single call.
    UPDATE_BEGINS = "begin_update"


@dataclass(frozen=True, slots=True)
class Hook:
    """The methods of one class, or the functions of one module, that the instrumentation wraps."""

    # Its full name; the methods are wrapped as soon as it has been imported.
    module: str
    # The class that defines the methods, empty for functions of the module itself.
    owner: str
    # Plain functions by name; a coroutine is refused and said so in the record.
    methods: Mapping[str, HookPoint]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a level, or a value of a setting, is not run: its job is Skipped with this reason and never a Pass."""

    # The consumer's own words, a clause without a full stop.
    reason: str
    # Where the consumer says so: file and function, or the text of its own error.
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSetting:
    """What the values of one axis are; a value is its own text in all variables and keys, a list for modules."""

    # The variables and the keys of overrides that take a value.
    variables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    # The values for which that is not so.
    values: Mapping[Value, Setting] = field(default_factory=dict)
    # What carries it out where no variable and no override does, for the table of settings.
    elsewhere: str = ""


def joined_settings(parts: Iterable[Setting]) -> Setting:
    """Several as one: of a variable the last value, and each override once."""
    made = tuple(parts)
    wrapper = {variable: text for part in made for variable, text in part.wrapper.items()}
    return Setting(wrapper, tuple(dict.fromkeys(override for part in made for override in part.overrides)))


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """One start of the consumer: it trains the steps from `first_step` to `last_step`."""

    name: str
    first_step: int
    last_step: int
    # Variables in which it differs from the job.
    wrapper: Mapping[str, str] = field(default_factory=dict)
    # Overrides that it adds to the job's; one of a key that the job sets takes its place.
    overrides: tuple[str, ...] = ()


class Spread(Protocol):
    """What puts a model on more ranks."""

    def __call__(self, wrapper: Mapping[str, str], *, parts: int, factor: int, experts: bool) -> Mapping[str, str]:
        """Variables in place of those of the job: trainers on `factor` times as many ranks, the rollout on `parts`."""
        ...


class HostOverrides(Protocol):
    """What every job on a host is told of it."""

    def __call__(self, site: SiteProfile, *, reward_model: bool, gpus_of_node: int, nodes: int = 1) -> tuple[str, ...]:
        """No reward model unless it is asked for, and the share of CPUs and GPU memory that it may use."""
        ...


class ExpectedConfig(Protocol):
    """What the resolved configuration of a run must show."""

    def __call__(self, wrapper: Mapping[str, str], overrides: Iterable[str], *, phases: int = 1) -> dict[str, Value]:
        """Dotted keys and values that follow from variables, overrides and defaults that a run must show.

        With several `phases`, what differs between them (steps, resume mode) is left out. An override counts when its
        value is one plain word or number, which the consumer reads as `parsed` does.
        """
        ...


class LogMark(Enum):
    """What kind of fact a literal announces, in the order in which the literals of a line are read."""

    TRACEBACK = auto()
    DRIVER = auto()
    CONFIG = auto()
    OPENING = auto()
    LORA = auto()
    TOTAL = auto()
    ADAPTER = auto()
    STEP = auto()
    PROGRESS = auto()
    EPOCHS = auto()
    SAMPLE = auto()
    FINAL = auto()
    STAGE = auto()
    RANK = auto()
    CHUNKS = auto()
    BRIDGE = auto()
    WRAPPED = auto()
    SIGN = auto()
    STRATEGY = auto()
    CHECKPOINT = auto()
    LOST = auto()
    REFUSED = auto()
    VARIABLE = auto()
    COMMAND = auto()
    PACKAGE = auto()
    PLANNED = auto()
    NOISE = auto()
    LONE = auto()
    RETRY = auto()
    BARE = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    """A text to look for; one line may hold several.

    `shape` is a regular expression searched in the line's text (empty: the literal alone is enough); its groups are
    what the fact is made of. `stage` is the stage that the line proves, `builds` says that only a process that builds
    the model prints it. `name` is the checkpoint action, the noise's or the sign's name, or the kind of a lone error;
    a `soft` one may be survived. `opens` says that a run prints the line once, while it starts.
    """

    text: str
    mark: LogMark
    stage: Stage | None = None
    shape: str = ""
    name: str = ""
    builds: bool = False
    soft: bool = False
    opens: bool = False


_CONSTRUCTION = frozenset({Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.PEFT, Stage.DDP_WRAP, Stage.FSDP_WRAP})


def stage_literal(text: str, stage: Stage, shape: str = "") -> Literal:
    """A line that proves a stage."""
    return Literal(text, LogMark.STAGE, stage, shape, builds=stage in _CONSTRUCTION)


def opening_literal(text: str, stage: Stage) -> Literal:
    """One that a run prints once, while it starts."""
    return Literal(text, LogMark.STAGE, stage, opens=True)


def lone_literal(text: str, name: str, shape: str = "") -> Literal:
    """An error without a traceback, with its kind."""
    return Literal(text, LogMark.LONE, shape=shape, name=name)


def soft_literal(text: str, name: str, shape: str = "") -> Literal:
    """One that the run may survive."""
    return Literal(text, LogMark.LONE, shape=shape, name=name, soft=True)


def noise_literal(text: str, name: str, shape: str = "") -> Literal:
    """What looks like an error and is none."""
    return Literal(text, LogMark.NOISE, shape=shape, name=name)


def checkpoint_literal(text: str, name: str, stage: Stage, shape: str = "") -> Literal:
    """What became of a checkpoint: saving, saved, loaded, resumed, or scratch where there was none."""
    return Literal(text, LogMark.CHECKPOINT, stage, shape, name)


def sign_literal(text: str, name: str, shape: str = "") -> Literal:
    """What is printed only with a feature at work, under a name of ours."""
    return Literal(text, LogMark.SIGN, shape=shape, name=name)


# A name of ours: rollouts were read from a file, and no engine generated anything.
ROLLOUT_FROM_FILE = "rollout-from-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigForm:
    """How the resolved configuration is printed: lines of one process, from one whose literal has `LogMark.CONFIG`."""

    # Whether a later line of the same process is a part of it.
    belongs: Callable[[str], bool]
    # Whether it ends with its last bracket, and lines of others may be in between; else the first line that is not a
    # part ends it.
    in_brackets: bool
    # The whole text as nested mappings; ValueError with a reason where it is cut or broken.
    read: Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForms:
    """What the consumer prints on its console. What Megatron, vLLM, Ray and the shell print is in `core/log`."""

    # Its lines, each with what it means. One has `LogMark.CONFIG`, one `STEP` and one `PROGRESS` (groups: percent,
    # steps done, steps in all); one with `FINAL` is printed once, when the training is over.
    literals: tuple[Literal, ...]
    # The names of its variables and of those of the shell that say what is run and from where, whole names; each has a
    # literal with `LogMark.VARIABLE`.
    variables: re.Pattern[str]
    config: ConfigForm
    # The metrics of a line with `LogMark.STEP`: the number of the step, 0 for a validation before training, and every
    # number by its name; None for another line.
    read_step: Callable[[str], tuple[int, dict[str, float]] | None]
    # How its loud lines begin, as alternatives of one pattern: a record's field that begins so holds the line.
    begins: str

    @property
    def bar(self) -> str:
        """The words of its progress bar."""
        return next(literal.text for literal in self.literals if literal.mark is LogMark.PROGRESS)


# A pattern of variables, whole names, and one of overrides, from their start.
NamePatterns = tuple[re.Pattern[str], re.Pattern[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """What of a job decides the numbers of its training, so that two jobs can be compared."""

    # The overrides by which a job is known as one that is compared with its unsharded run.
    parity: frozenset[str]
    # Variables that hold parallel sizes, whole names, each with what it is on one GPU; and the one of a node's GPUs.
    sizes: tuple[tuple[re.Pattern[str], str], ...]
    gpus: str
    # Keys of overrides that hold sizes, and those that only fill the stages of a pipeline: whole keys.
    size_keys: re.Pattern[str]
    filling: re.Pattern[str]
    # What changes no number of a training: watching, saving, paths, and how many steps it takes.
    places: NamePatterns
    # What the first rollout and the weights behind it do not depend on: sizes, how a batch is divided, and rates that
    # only later steps feel.
    scales: NamePatterns
    # What changes neither time nor memory: paths alone.
    paths: NamePatterns
    # The variables of the longest prompt and response.
    lengths: tuple[str, str]
    # What makes it train through an older bridge of its own; None where it has none.
    older_bridge: Setting | None = None


def on_more_ranks(
    base: Mapping[str, str], wrapper: Mapping[str, str], *, parts: int, factor: int, experts: bool
) -> Mapping[str, str]:
    """`Spread` for a consumer whose variables of sizes are named as Megatron's own, with `base` for what is not set."""
    sizes = {**base, **wrapper}
    wider = ["TENSOR_MODEL_PARALLEL_SIZE", *(["EXPERT_MODEL_PARALLEL_SIZE"] if experts else [])]
    engine = {"ENGINE_TENSOR_PARALLEL_SIZE": str(max(int(sizes["ENGINE_TENSOR_PARALLEL_SIZE"]), parts))}
    return {**engine, **{name: str(int(sizes[name]) * factor) for name in wider}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForm:
    """What a checkpoint consists of, and how the log says that it was loaded. Paths are below the model's folder."""

    # The folder of each trained model below `global_step_N`.
    folders: Mapping[str, str]
    # The files of the weights, with adapters and without, and of the optimizer: whole paths.
    adapters: re.Pattern[str]
    weights: re.Pattern[str]
    optimizer: re.Pattern[str]
    # What is written last: relative to the model's folder, as the weights are.
    last: str
    # The file beside the steps that names the latest one.
    tracker: str
    # Which of `weights` and `optimizer state` of a model a line says were loaded, at a step.
    loaded: Callable[[str, int, str], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One training program. A second one is one more value, and one `Launcher` in the runner."""

    # In job documents (`consumer`), policies (`consumers:`) and options.
    name: str
    # As people write it.
    title: str
    # `owner/name` on GitHub.
    repository: str
    # Its Python package, whose import is proved in every process of `ROLES_PROVED`.
    package: str
    # The folders of its checkout in which imports are looked for, relative to its top; empty for the top itself.
    import_folders: tuple[str, ...] = ("",)
    # The folder of the files from which Bridge's code is reached, with its slash.
    callers: str
    # The module that its processes are started with, by `-m`, or the file.
    entry_point: str
    # What starts a run, relative to its checkout; `Job.script` has it unless a feature needs another one.
    script: str

    # The commit that its jobs test with where no other is asked for; empty: the policy names one.
    pin: str = ""
    # What that commit needs to run with today's Bridge; the policy has those of verl.
    patches: tuple[Patch, ...] = ()
    # Jobs that only it has, by level and name: they join the level's default job.
    own_jobs: Mapping[tuple[Level, str], Mapping[Axis, Value]] = field(default_factory=dict)

    # What Level 0 sets, by variable; every other job overrides some of these.
    base: Mapping[str, str]
    # What each axis is. Every axis has a row, also one whose values are refused.
    settings: Mapping[Axis, AxisSetting]
    # What a job of a level sets beside its axes, so that the level's own evidence can show.
    level_setting: Callable[[JobPoint, Level], Setting]
    # How many GPUs a job takes of each node, and how many steps it trains.
    counts: Callable[[int, int], Setting]
    # What puts a model on more ranks than its job asks for.
    spread: Spread
    # Whether a job with these variables trains a critic.
    trains_critic: Callable[[Mapping[str, str]], bool] = lambda _wrapper: False
    # Overrides that fill the stages of a pipeline, by the job's variables; empty without one.
    filling: Callable[[Mapping[str, str]], tuple[str, ...]] = lambda _wrapper: ()
    # Overrides of every job on a host.
    host: HostOverrides
    # What makes a job train on a model that can have no critic and answers no question right, by the job's overrides.
    any_model: Callable[[Collection[str]], Setting] = lambda _overrides: Setting()
    # Variables and whole overrides that a job itself chooses, whatever its named variant has.
    own_choices: frozenset[str]
    # Levels that it cannot run, and why a value of an axis is not run.
    refused_levels: Mapping[Level, Refusal]
    refused: Callable[[Axis, Value], Refusal | None]

    # The variable that says up to which step a start trains, and what the start that resumes has beside it.
    last_step: str
    resumed: Mapping[str, str] = field(default_factory=dict)
    # Whether a job writes checkpoints.
    saves: Callable[[Job], bool]
    expected: ExpectedConfig
    checkpoint: CheckpointForm
    # Its trained and frozen models, each with the dotted key below which Megatron's own names stand, as
    # `tensor_model_parallel_size`. The policy is first.
    models: Mapping[str, str]
    # How many groups of processes, each as large as the policy's, build them: a trainer may have one for its reference.
    builders: int
    # Whether the policy's tensor ranks divide sequences where its configuration does not say.
    divides_sequences: bool

    # Its keys by what they say; a key that it does not have is left out.
    keys: Mapping[ConfigKey, str]
    # What every job of a level must print, whatever it says: without these it says nothing of Megatron-Bridge; and the
    # same as the card names it.
    always: Callable[[Level], Mapping[str, Value]]
    proves: str
    # What a reader of the card looks for beside the adapter's rank and the parallel sizes, by a short name.
    shown: tuple[tuple[str, ConfigKey], ...]
    comparing: Comparing
    # What makes a job that saves train in one go.
    never_saves: Setting

    log: LogForms
    # Its names for a quantity: the first one that a step has counts. Every quantity has a row, empty where it prints
    # none.
    metrics: Mapping[Quantity, tuple[str, ...]]

    # What a name of a metric of reinforcement learning begins with, whatever the estimator.
    of_rl: tuple[str, ...]
    # Metrics that only an update of the policy prints, and those of a run that set out to train at all.
    of_updates: tuple[str, ...]
    of_training: tuple[str, ...]
    # Where every step shows one of these values, nothing that was generated reached the loss: the metric, the value and
    # a clause. A log of any run is searched for them.
    no_samples: tuple[tuple[str, float, str], ...]

    # The name of the reward function of ours that a job's overrides, by key, choose; empty where they choose another.
    own_reward: Callable[[Mapping[str, str]], str]

    # What the title of a process matches from its start, the first row that fits counts. Ray names an actor's process
    # `ray::Class` and vLLM's are `VLLM::...`.
    roles: tuple[tuple[ProcessRole, re.Pattern[str]], ...]
    hooks: tuple[Hook, ...]

    # Whether none of its runs was seen: plans say so, and nothing starts its jobs.
    never_run: bool = False

    @property
    def address(self) -> str:
        """Where its repository is fetched from."""
        return f"https://github.com/{self.repository}"

    def setting(self, axis: Axis, value: Value) -> Setting:
        """What a valid value is; nothing where other parts of a job carry it out."""
        row = self.settings[axis]
        if value in row.values:
            return row.values[value]
        text = str(value)
        if axis.row.takes is Takes.MODULES:
            text = "[" + ",".join(f"'{name}'" for name in text.split(",")) + "]"
        return Setting(dict.fromkeys(row.variables, text), tuple(f"{key}={text}" for key in row.keys))

    def phases(self, job: Job) -> tuple[PlannedPhase, ...]:
        """The starts of a job in order; together they train every step from 1 to `Job.steps` once.

        Level 1 has two starts, unless the job never saves, as its reference run.
        """
        if job.level is not Level.SAVE_RESUME or job.steps <= 1 or not self.saves(job):
            return (PlannedPhase("train", 1, job.steps),)
        saved, last = job.steps - 1, job.steps
        return (
            PlannedPhase("save", 1, saved, {self.last_step: str(saved)}),
            PlannedPhase("resume", last, last, {**self.resumed, self.last_step: str(last)}),
        )

    def shards(self, variant: Variant) -> int:
        """Over how many ranks the trainers of a job divide a model's weights."""
        sizes, over_all = {**self.base, **variant.wrapper}, self.setting(Axis.FSDP, value=True).wrapper
        if over_all and over_all.items() <= sizes.items():
            return variant.gpu_count
        return math.prod(int(self.text(axis, sizes, "1")) for axis in (Axis.TENSOR, Axis.PIPELINE))

    def gradient_norms(self, models: Iterable[str]) -> tuple[str, ...]:
        """The metrics of the gradient norms of trained models: of the policy, and of the critic for any other."""
        policy, *_ = self.models
        norms = (Quantity.GRADIENT_NORM if model == policy else Quantity.CRITIC_GRADIENT_NORM for model in models)
        return tuple(self.metrics[quantity][0] for quantity in norms if self.metrics[quantity])

    def text(self, axis: Axis, wrapper: Mapping[str, str], default: str) -> str:
        """What the first variable of an axis says, the default where there is none."""
        return next((wrapper[name] for name in self.settings[axis].variables[:1] if name in wrapper), default)

    @property
    def policy(self) -> str:
        """The dotted key below which Megatron's names stand for the policy."""
        return next(iter(self.models.values()))

    def size(self, axis: Axis, wrapper: Mapping[str, str]) -> int:
        """The largest number among the variables of a size; what is absent or not above zero is 1."""
        texts = [wrapper.get(name, "") for name in self.settings[axis].variables]
        return max(1, *(int(text) for text in texts if text.isdecimal()), 1)


# How plans, cards and errors say `Consumer.never_run`.
NEVER_RUN = "never run here"

# A run is proved in each of these: its driver, its training loop, its trainers and its rollout engine. Where the driver
# holds the loop there is no controller.
ROLES_PROVED = (ProcessRole.DRIVER, ProcessRole.CONTROLLER, ProcessRole.TRAINER, ProcessRole.ROLLOUT)


# Values as Python prints them; nothing is evaluated. Metrics of one step that are kept:
MAX_KEYS = 2000

# One number in the constructor that numpy or torch shows around it, in brackets when it is an array of one element.
_WRAPPED_NUMBER = re.compile(
    r"^[A-Za-z_][\w.]{0,60}\(\s*(?:(\[{1,4})\s*)?'?(?P<number>[^\s,()\[\]']{1,60})'?(?(1)\s*\]{1,4})\s*(?:,[^()\[\]]{0,200})?\)$"
)
_STRING_OR_WORD = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?:np|numpy)\.\w+\((?P<inner>[^()'"]{1,64})\)"""
    r"""|(?P<call>[A-Za-z_][\w.]*\((?P<argument>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\))"""
    r"""|(?P<angle><[^<>'"]{1,200}(?:'[^']{0,200}')?[^<>'"]{0,200}>)"""
    r"""|(?P<word>(?<![\w.])[A-Za-z_][\w.]*)"""
)
_KEPT_WORDS = frozenset({"None", "True", "False"})
_NAN: Final = "\x00nan"


def parse_number(shown: str) -> float | None:
    """A float from `1.5`, `nan`, `inf`, `np.float64(2.0)`, `np.int64(2)` or `tensor(0.1)`; None otherwise."""
    try:
        return float(shown)
    except ValueError:
        wrapped = _WRAPPED_NUMBER.match(shown.strip())
        if wrapped is None:
            return None
    try:
        return float(wrapped["number"])
    except ValueError:
        return None


def read_dict(text: str) -> Mapping[str, Any]:
    """The mapping that a pretty-printed dict shows; raises ValueError with a reason when it is none."""
    try:
        value = ast.literal_eval(_STRING_OR_WORD.sub(_literal, text).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"the printed configuration is not a readable dict: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ValueError("the printed configuration is not a dict")
    restored = _restore(value)
    assert isinstance(restored, dict)
    return restored


def _literal(match: re.Match[str]) -> str:
    kept = match["string"] or match["inner"] or match["argument"]
    word = match[0]
    if kept or word in _KEPT_WORDS:
        return kept or word
    return {"inf": "1e999", "nan": repr(_NAN)}.get(word, repr(word))


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restore(item) for item in value]
    return math.nan if value == _NAN else value

"""What a run prints of itself, as values: what it was asked for, its metrics, its configuration, refused weights.

Nothing is judged here, and nothing evaluated: a value that the shell or Hydra would still have to work out is left out,
and the configuration goes through `ast.literal_eval` after names that are not literals (`torch.bfloat16`, `nan`,
`<Enum: 1>`) became strings or numbers. Its pretty-printed dict may be cut into lines anywhere between two tokens, and
lines of other streams of the same process may be in between.

A refused weight is not known by one wording. A line counts when it names weights and says that some were not taken,
and when it comes from the engine, or from any worker while weights are on their way to it. What the trainer says while
it builds and imports its own model is a matter of `verl_e2e.core.log.literals`, and so is what a model says.
"""

import ast
import math
import re
import shlex
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from verl_e2e.core.consumer.consumer import MAX_KEYS, ConfigForm, ConfigKey
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.log.lines import EXCERPT_CAP, Line
from verl_e2e.core.model.facts import AskedSetting, Excerpt, PackagePath, ResolvedConfig
from verl_e2e.core.model.outcome import Stage

MAX_SETTINGS = 2000
MAX_COMMAND_LINES = 400
MAX_ECHO = 4096
# A line of the driver by its number.
Echo = tuple[int, str]

_VARIABLES = tuple(consumer.log.variables for consumer in CONSUMERS.values())
_TRACE = re.compile(r"\++ ")
_DECLARES = re.compile(r"(?:export|declare -x|env|readonly) ")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w@]*(?:[./][\w@-]+)*)=(.*)", re.DOTALL)
_QUOTES = re.compile(r"[\\'\"]")
_LISTED = re.compile(r"overrides: (\[.*\])\s*$")


class Asked:
    """What one run was asked for. Variables that are echoed after its command belong to the run after it."""

    def __init__(self, waiting: Iterable[Echo] = ()) -> None:
        self._variables = list(waiting)
        self._later: list[Echo] = []
        self._command: list[Echo] = []
        self.is_open = False
        """Whether the next line goes on with the command."""

    def following(self) -> "Asked":
        """What is known of the run after this one."""
        return Asked(self._later)

    def settings(self) -> tuple[AskedSetting, ...]:
        """Everything that was asked for, in the order in which it was printed."""
        variables = (
            AskedSetting(name, value, _at(number, f"{name}={value}"))
            for number, text in self._variables
            for name, value in _assigned(text)
        )
        # A command over one line or several, or the list that Hydra prints.
        text = " ".join(text for _, text in self._command)
        listed = _LISTED.search(text)
        try:
            given = ast.literal_eval(listed[1]) if listed else _words(text)
            words = tuple(item for item in given if isinstance(item, str))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            words = ()
        overrides = []
        for found in islice(filter(None, map(_OVERRIDE.fullmatch, words)), MAX_SETTINGS):
            number = next((number for number, row in self._command if found[0] in row), self._command[0][0])
            overrides.append(AskedSetting(found[1], found[2], _at(number, found[0]), override=True))
        return (*islice(variables, MAX_SETTINGS), *overrides)

    def echoed(self, number: int, text: str, *, ended: bool) -> None:
        """Take what the driver's shell printed on a line; `ended` when the run has ended before it."""
        rows = self._later if self._command or ended else self._variables
        if len(rows) < MAX_SETTINGS and (not rows or rows[-1][0] != number):
            rows.append((number, text[:MAX_ECHO]))

    def command(self, line: Line) -> None:
        """Take the line that starts the program, and go on with the next one when it ends in a backslash."""
        if line.driver and not self._command:
            self.is_open = True
            self.go_on(line)

    def go_on(self, line: Line) -> None:
        """Take the next line of the driver while the command is open."""
        if not line.driver or (self._command and self._command[-1][0] == line.number):
            return
        text = line.text.rstrip()
        self._command.append((line.number, text.removesuffix("\\")))
        self.is_open = text.endswith("\\") and len(self._command) < MAX_COMMAND_LINES

    def listed(self, line: Line) -> None:
        """Take Hydra's list of overrides, which it prints when the program failed, where no command was echoed."""
        if not self._command and _LISTED.search(line.text):
            self._command.append((line.number, line.text))


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """The variables that a line assigns: all behind the shell's `+`, else only a line that is one assignment."""
    traced = _TRACE.match(text)
    if traced is None:
        found = _ASSIGNMENT.fullmatch(text.strip())
        if found is not None and _says_what(found[1]) and not re.search(r"\s", found[2]):
            yield found[1], found[2]
        return
    rest = text[traced.end() :]
    declares = _DECLARES.match(rest)
    for word in _words(rest[declares.end() :] if declares else rest):
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return
        if _says_what(found[1]):
            yield found[1], found[2]


def _says_what(name: str) -> bool:
    """Whether a variable says what is run, or from where."""
    return any(variables.fullmatch(name) for variables in _VARIABLES)


@lru_cache(maxsize=16)
def _words(text: str) -> tuple[str, ...]:
    """The words of a shell command; none when its quotes are not closed."""
    try:
        return tuple(shlex.split(text) if _QUOTES.search(text) else text.split())
    except ValueError:
        return ()


def _at(number: int, text: str) -> Excerpt:
    return Excerpt(number, text[:EXCERPT_CAP])


# Families of metrics whose value must be a number, by the words of the name; `std` of one sample may be none.
_FAMILIES = frozenset(
    (
        *("loss", "losses", "reward", "rewards", "score", "scores", "kl", "entropy", "advantage", "advantages"),
        *("return", "returns", "value", "values", "vpred", "logprob", "logprobs", "logp", "ppl", "ratio", "clipfrac"),
        "lr",
    )
)
_PAIRS = re.compile(r"grad_norm|log_probs?|probs_diff|reward_kl")
_STEM = re.compile(r"[a-z]+")
# What is measured besides the training: clocks, memory, lengths, counts; validation is watched by its means only.
_BESIDE = re.compile(r"(?:timing|perf|memory|mfu|global_seqlen|response|prompt|num_turns|tool)[\w-]*/|.*/perf/")
_VALIDATION = re.compile(r"val(?:idation)?(?:-\w+)?/")
_VALIDATED = re.compile(r".+/(?:reward|acc|score)/mean@\d+|val(?:idation)?/(?:\w+_)?(?:loss|score|reward)(?:/.+)?")
_SPREAD = re.compile(r"(?:^|[/_])std(?:@\d+)?(?:/\w+)?$|explained_var")
# A perplexity is an exponential: it may overflow to infinity although its logarithm, which is watched, is fine.
_MAY_OVERFLOW = re.compile(r"(?:^|[/_])(?<!log_)ppl$")


class MetricValues(Mapping[str, float]):
    """An immutable mapping from metric name to value, small enough to keep many thousands of steps.

    `names` is shared between steps that print the same metrics; eight bytes a value.
    """

    __slots__ = ("_names", "_values")

    def __init__(self, names: tuple[str, ...], values: "array[float]") -> None:
        self._names = names
        self._values = values

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def pairs(self) -> Iterable[tuple[str, float]]:
        """Names and values in the order in which they were printed."""
        return zip(self._names, self._values, strict=True)

    def __repr__(self) -> str:
        return f"MetricValues({dict(self)!r})"


def packed_metrics(values: Mapping[str, float], shared: dict[tuple[str, ...], tuple[str, ...]]) -> MetricValues:
    """`values` in their compact form; `shared` interns the names of earlier steps (bounded by its caller)."""
    names = tuple(values)
    return MetricValues(shared.setdefault(names, names), array("d", values.values()))


@lru_cache(maxsize=MAX_KEYS)
def watched(name: str) -> bool:
    """Whether a metric must be a number: losses, gradient norms, rewards, KL, entropy, advantages, returns, values,
    log-probabilities and their differences, importance ratios, learning rates."""
    if _SPREAD.search(name):
        return False
    if _VALIDATION.match(name):
        return _VALIDATED.fullmatch(name) is not None
    if _BESIDE.match(name):
        return False
    return name.startswith("rollout_corr/") or bool(
        _PAIRS.search(name) or not _FAMILIES.isdisjoint(_STEM.findall(name))
    )


def not_finite(values: Mapping[str, float]) -> tuple[str, ...]:
    """The watched metrics that are NaN or infinite, in the order in which they were printed."""
    odd = ((name, value) for name, value in pairs(values) if not math.isfinite(value) and watched(name))
    return tuple(name for name, value in odd if not (math.isinf(value) and _MAY_OVERFLOW.search(name)))


def pairs(values: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Names and values, without a search for each name."""
    return values.pairs() if isinstance(values, MetricValues) else values.items()


MAX_CHARACTERS = 2 * 1024 * 1024
_MAX_LINES = 20_000
_MAX_DEPTH = 80
MAX_FOREIGN_LINES = 200

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[][(){}]""")


class ConfigCollector:
    """Gathers one dump, line by line, from the source that began it.

    `done` turns true when it is whole or can no longer be completed.
    """

    def __init__(self, first: Line, form: ConfigForm) -> None:
        self._form = form
        self.line = first.number
        self.last = first.number
        self.source = first.source
        self.done = False
        self._parts: list[str] = []
        self._size = 0
        self._depth = 0
        self._deepest = 0
        self._foreign = 0
        self._problem = ""
        self.add(first)

    def add(self, line: Line) -> None:
        """Take the next line of the same source; lines that are not a part of it are passed over."""
        self.last = line.number
        if self._parts and not self._form.belongs(line.text):
            self._foreign += 1
            if not self._form.in_brackets:
                self.done = True
                return
            if self._foreign > MAX_FOREIGN_LINES:
                self._give_up("the printed configuration is cut before its last bracket")
            return
        self._parts.append(line.text)
        self._size += len(line.text)
        for token in _TOKEN.finditer(line.text):
            self._depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(token[0], 0)
            self._deepest = max(self._deepest, self._depth)
        if self._depth <= 0 and self._form.in_brackets:
            self.done = True
        elif self._size > MAX_CHARACTERS or len(self._parts) > _MAX_LINES or self._deepest > _MAX_DEPTH:
            self._give_up("the printed configuration is larger or deeper than any real one")

    def result(self) -> ResolvedConfig:
        """What was gathered so far, read; `values` is None with the reason when it is cut or broken."""
        if self._problem:
            return ResolvedConfig(self.line, None, self._problem)
        if not self.done and self._form.in_brackets:
            return ResolvedConfig(self.line, None, "the printed configuration is cut before its last bracket")
        try:
            return ResolvedConfig(self.line, self._form.read("\n".join(self._parts)))
        except ValueError as error:
            return ResolvedConfig(self.line, None, str(error))

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self.done = True
        self._parts.clear()


def lookup(values: Mapping[str, Any] | None, key: str, default: Any = None) -> Any:
    """The value under a dotted key, `default` where the mapping has no such key."""
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def lora_rank(config: ResolvedConfig) -> float:
    """The LoRA rank that the policy was asked for; 0 when none, or when the configuration cannot be read."""
    keys = (consumer.keys[ConfigKey.ADAPTER_RANK] for consumer in CONSUMERS.values())
    ranks = (lookup(config.values, key) for key in keys)
    return next((rank for rank in ranks if isinstance(rank, int | float)), 0)


# Ray's copy of a working directory says nothing of where it was copied from.
_COPIED = re.compile(r"/(?:working_dir_files|py_modules_files)/")
_PATH = re.compile(
    r"(?<![\w./$~-])(?P<root>(?:/|~/|\$\w+/)[^\s:'\"(),]{0,400}?)/megatron/(?P<package>bridge|core)/[\w/.-]{1,200}\.py\b"
)


def package_paths(line: Line) -> Iterator[PackagePath]:
    """The packages under test whose place a line shows."""
    traced = line.text.lstrip().startswith('File "')
    for match in _PATH.finditer(line.text[:4096]):
        if not _COPIED.search(match[0]):
            yield PackagePath(f"megatron.{match['package']}", match["root"], line.excerpt(), line.actor, traced)


_ENGINE = re.compile(r"(?i)vllm|sglang|trtllm|enginecore|scheduler")
# A logger's prefix of an engine: `WARNING 11-20 14:34:20 [utils.py:301]` or `[2026-11-20 14:34:20 TP0]`.
_LOGGER = re.compile(r"\[[\w.]+:\d+\]|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\]")
_ON_THE_WAY = frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.TRAIN_STEP})
# The process that prints samples of what the model says.
_DRIVER = re.compile(r"(?i)task_?runner|main_task")

_WEIGHT = re.compile(
    r"(?i)\b(?:weights?|tensors?|params?_dict|param(?:eter)?s?)\b|state[_ ]dict|(?:missing|unexpected)[_ ]keys?"
    r"|\blora modules?|\badapter modules?|[\w\]}]\.(?:bias|lora_[AB])\b"
)
# Parameters of a request or of the program, and the memory that weights take; neither is a weight.
_REQUEST = re.compile(
    r"(?i)\b(?:sampling|generation|request|server|engine|config\w*|environment|init|cli)[ -](?:param(?:eter)?s?"
    r"|arg(?:ument)?s?)\b|\b(?:argument|flag|variable|option)s?\b|\b(?:memory|cache|sleep|offload\w*|[GM]iB)\b"
)
_REFUSED = re.compile(
    r"(?i)(?:\bnot|n't) (?:\w+ )?(?:found|loaded|initialized|used|in|present|match\w*|updated?|copied|supported"
    r"|accepted|recogni[sz]ed|applied|exist|known|taken|assigned|registered)\b|\bun(?:expected|loaded|known|used"
    r"|matched|initiali[sz]ed|recogni[sz]ed|supported|assigned)\b|\bmissing(?![a-z])|\bskip(?:s|ped|ping)?\b"
    r"|\bignor(?:es?|ed|ing)\b|\bmismatch\w*|\bfail(?:s|ed|ing)? to\b|\breject(?:s|ed|ing)?\b|\bunable to\b"
    r"|\brefus(?:es?|ed|ing)\b|\bdrop(?:s|ped|ping)\b|\bdiscard(?:s|ed|ing)?\b|\bno (?:module|parameter|weight|such)\b"
    r"|\bcould not be\b|\bcannot be\b|\bkeeping the old\b|\bleft (?:as|un)\w*"
)
_NONE_LOADED = re.compile(r"loaded_params: 0\b")
# What a model does not store although a checkpoint may, and shapes that the program was set to let differ.
_HARMLESS = re.compile(
    r"(?i)rotary_emb\.(?:inv_freq|(?:cos|sin)_cached)|attn\.(?:masked_)?bias\b|[kvq]_scale\b|allowed by"
    r"|missing_keys=\[\],? ?unexpected_keys=\[\]|\b(?:no|0|without) (?:missing|unexpected|mismatched|skipped)\b"
)


def refuses(line: Line, stood: Stage | None) -> bool:
    """Whether the line says that the engine did not take a weight; `stood` is the stage that the run is in."""
    if _NONE_LOADED.search(line.text):
        return True
    from_engine = bool(_ENGINE.search(line.process))
    on_the_way = stood in _ON_THE_WAY and not _DRIVER.search(line.process) and bool(_LOGGER.search(line.printed))
    if not (from_engine or on_the_way):
        return False
    text = line.text[:4096]
    refused = _REFUSED.search(text) is not None and _WEIGHT.search(text) is not None
    return refused and not _HARMLESS.search(text) and not _REQUEST.search(text)

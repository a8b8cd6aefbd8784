"""What a run was asked for, compared with what it shows.

Values as Hydra and the operating system read them, and whether two of them are the same.

Hydra takes its own quotes off an override, reads lists, mappings, numbers, truth values and `null`, and leaves
interpolations to be worked out later: such a value is unreadable here, and contradicts nothing.

Whether Megatron-Bridge and its Megatron-LM were imported from the checkout that PYTHONPATH names.

Asked against got: what the log says the run was asked for, against what the same log shows of the run.

A contradiction makes the run evidence of something else than what was asked, whatever became of it. What is not
printed contradicts nothing: neither a setting that was not echoed, nor one that the run does not show.
"""

import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.facts import Excerpt, LogFacts, PackagePath, Setting
from verl_e2e.core.model.outcome import Stage

_MAX_DEPTH = 16
UNREADABLE = object()

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<sign>[\[\]{},:])|(?P<plain>[^\[\]{},:]+))"""
)
_WORKED_OUT = re.compile(
    r"\$[({\w]|^\s*(?:choice|range|interval|glob|sort|shuffle|tag|extend_list|cast|int|float|str)\("
)
_ESCAPED = re.compile(r"\\([\\'\"(){}\[\],:=\s])")
_UNKNOWN = re.compile(r"~[\w.-]*(?=/|$)|\.\.?(?=/)")
_WORDS = {"null": None, "none": None, "true": True, "false": False}


def read_value(text: str) -> object:
    """What an override or a variable says: a plain value, a list or a mapping, or `UNREADABLE`."""
    if _WORKED_OUT.search(text):
        return UNREADABLE
    bare = text.strip()
    if not bare.startswith(("[", "{")):
        return _plain(bare)
    tokens = _TOKEN.finditer(bare)
    try:
        value = _container(tokens, next(tokens)["sign"], 0)
    except (StopIteration, ValueError, RecursionError):
        return UNREADABLE
    return UNREADABLE if next(tokens, None) is not None else value


def same_value(found: object, wanted: object) -> bool:
    """Whether a printed value is the one that was wanted; a mapping that was asked for is merged into the whole."""
    if wanted is UNREADABLE:
        return True
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(key not in found or same_value(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list | tuple):
        return len(found) == len(wanted) and all(map(same_value, found, wanted))
    if isinstance(found, str) and isinstance(wanted, str) and same_text(found, wanted):
        return True
    left, right = _read(found), _read(wanted)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right) or (isinstance(left, str) and isinstance(right, str) and same_text(left, right))


def same_text(left: str, right: str) -> bool:
    """Equality of two texts, or of two paths or lists of paths as the operating system reads them."""
    parts = left.split(":"), right.split(":")
    return len(parts[0]) == len(parts[1]) and all(map(_same_path, *parts))


def _same_path(left: str, right: str) -> bool:
    """A home folder is that of a user who is not known here, and `./` stands for a folder that is not known."""
    for one, other in ((left, right), (right, left)):
        unknown = _UNKNOWN.match(one)
        if unknown is not None and other.startswith("/"):
            return _normal(other).endswith(_normal(one[unknown.end() :]).removesuffix("/"))
    return _normal(left) == _normal(right)


def _normal(path: str) -> str:
    return re.sub("^//", "/", posixpath.normpath(path)) if "/" in path else path


def _container(tokens: Iterator[re.Match[str]], opened: str | None, depth: int) -> object:
    """The list or mapping that `opened` begins; ValueError for what is none."""
    if opened not in ("[", "{") or depth > _MAX_DEPTH:
        raise ValueError
    closing, rows, row = {"[": "]", "{": "}"}[opened], list[list[object]](), list[object]()
    for token in tokens:
        match token["sign"]:
            case "[" | "{":
                row.append(_container(tokens, token["sign"], depth + 1))
            case "]" | "}" | ",":
                rows += [row] if row else []
                row = []
                if token["sign"] == closing:
                    return _mapping(rows) if opened == "{" else [_one(items) for items in rows]
                if token["sign"] != ",":
                    raise ValueError
            case ":":
                row.append(":")
            case _:
                row.append(_plain(token[0].strip()))
    raise ValueError


def _mapping(rows: list[list[object]]) -> dict[str, object]:
    if any(len(row) < 3 or row[1] != ":" for row in rows):
        raise ValueError
    return {str(row[0]): _one(row[2:]) for row in rows}


def _one(items: list[object]) -> object:
    """The item of a list; a text may hold colons."""
    if len(items) == 1:
        return items[0]
    if not all(isinstance(item, str) for item in items):
        raise ValueError
    return "".join(str(item) for item in items)


def _plain(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace(f"\\{text[0]}", text[0]).replace("\\\\", "\\")
    return _ESCAPED.sub(r"\1", text)


def _read(value: object) -> object:
    """A text as the number, truth value or nothing that it spells; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip("'\" ")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_PYTHONPATH = re.compile(r"(?:.*\.)?PYTHONPATH")
_CHECKOUT = re.compile(r"(?:[A-Z]+_)?BRIDGE(?:_\w+)?")
_INSTALLED = re.compile(r"/(?:site|dist)-packages(?:/|$)")
_OF_BRIDGE = re.compile(r"(?i)bridge")
_NAMES = {"megatron.bridge": "Megatron-Bridge", "megatron.core": "Megatron-LM"}
_SUBMODULE = "3rdparty/Megatron-LM"


def imported_elsewhere(facts: LogFacts) -> tuple[PackagePath, str] | None:
    """A package from a folder that is on no PYTHONPATH of the run, with a sentence; None where none is shown.

    A PYTHONPATH without a checkout of the package asks for whatever is installed. A process that shows the package in
    the checkout, too, imported it from there. A frame of a traceback counts when it is of an installed package: an
    exception may carry the traceback of another machine.
    """
    entries = [(entry, setting) for setting in facts.asked for entry in _entries(setting)]
    local = {(item.package, item.actor) for item in facts.packages if _on_path(item, entries)}
    for found in facts.packages:
        asked = _asked(found.package, entries)
        known = (found.package, found.actor) in local or (found.traced and not _INSTALLED.search(found.root))
        if asked is not None and not known:
            entry, setting = asked
            wanted = f"asked for {_NAMES[found.package]} from {entry[:200]} (line {setting.at.line})"
            got = f"{found.package} was imported from {found.root[:200]} (line {found.at.line})"
            return found, f"{wanted}, but {got}"
    return None


def _on_path(found: PackagePath, entries: list[tuple[str, Setting]]) -> bool:
    return any(_holds(entry, found.root) for entry, _ in entries)


def _entries(setting: Setting) -> Iterator[str]:
    """The folders that a setting puts on the path; those of a variable that names a checkout count with all below."""
    read = read_value(setting.value)
    value = (read if isinstance(read, str) else setting.value).strip("'\"")
    if _PYTHONPATH.fullmatch(setting.name):
        yield from (posixpath.normpath(entry) for entry in value.split(":") if entry)
    elif _CHECKOUT.fullmatch(setting.name) and not setting.override and value.startswith(("/", "~", "$")):
        root = posixpath.normpath(value)
        yield from (root, f"{root}/src", f"{root}/{_SUBMODULE}")


def _asked(package: str, entries: list[tuple[str, Setting]]) -> tuple[str, Setting] | None:
    """The first entry that is a checkout of the package."""
    if package == "megatron.core":
        return next((row for row in entries if row[0].endswith(_SUBMODULE)), None)
    names = {entry for entry, _ in entries}
    return next((row for row in entries if _is_bridge(row[0], names)), None)


def _is_bridge(entry: str, others: set[str]) -> bool:
    if _INSTALLED.search(entry) or entry.endswith(_SUBMODULE):
        return False
    parent, _, last = entry.rpartition("/")
    if last == "src" and f"{parent}/{_SUBMODULE}" in others:
        return True
    return bool(_OF_BRIDGE.search(last) or (last == "src" and _OF_BRIDGE.search(parent.rpartition("/")[2])))


def _holds(entry: str, root: str) -> bool:
    """Whether an entry of the path is the folder; a relative one is known by its end only."""
    place = posixpath.normpath(root)
    return place == entry or (not entry.startswith(("/", "~", "$")) and place.endswith(f"/{entry.removeprefix('./')}"))


_ACTOR, _REF, _CRITIC = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron", "critic.megatron"
_ROLES: Mapping[str, str] = {"ACTOR": _ACTOR, "REF": _REF, "CRITIC": _CRITIC}
LORA_RANK, CRITIC_LORA_RANK = "actor_rollout_ref.model.lora.rank", "critic.model.lora.rank"
MODEL_PATH = "actor_rollout_ref.model.path"
STEPS, SAVES, RESUMES = "trainer.total_training_steps", "trainer.save_freq", "trainer.resume_mode"
_SAVED_METRIC = "timing_s/save_checkpoint"
_SIZES = {
    "TP": "tensor_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "CP": "context_parallel_size",
    "EP": "expert_model_parallel_size",
    "ETP": "expert_tensor_parallel_size",
}
# verl sets these itself before it prints its configuration.
_SET_BY_VERL = frozenset({"trainer.device", "transfer_queue.enable"})


def _by_variable() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each key of the configuration with the variables of the wrapper that decide it, the most particular one first."""
    for role, root in _ROLES.items():
        for size, key in _SIZES.items():
            common = ("TRAIN_TP", "COMMON_TP") if size == "TP" else (f"COMMON_{size}",)
            yield f"{root}.{key}", (f"{role}_{size}", *common)
        yield f"{root}.use_mbridge", ("USE_MBRIDGE",)
        yield f"{root}.use_megatron_fsdp", ("USE_MEGATRON_FSDP",)
        yield f"{root}.vanilla_mbridge", ("VALUE_VANILLA_MBRIDGE" if role == "CRITIC" else "VANILLA_MBRIDGE",)
    yield "actor_rollout_ref.rollout.tensor_model_parallel_size", ("ROLLOUT_TP", "INFER_TP")
    yield from (
        (LORA_RANK, ("LORA_RANK",)),
        (CRITIC_LORA_RANK, ("CRITIC_LORA_RANK",)),
        (MODEL_PATH, ("MODEL_PATH",)),
        ("actor_rollout_ref.rollout.name", ("ENGINE",)),
        ("algorithm.adv_estimator", ("ADV_ESTIMATOR",)),
        ("data.max_prompt_length", ("MAX_PROMPT_LENGTH",)),
        ("data.max_response_length", ("MAX_RESPONSE_LENGTH",)),
        ("trainer.n_gpus_per_node", ("NUM_GPUS",)),
        ("trainer.val_before_train", ("VAL_BEFORE_TRAIN",)),
        ("trainer.test_freq", ("TEST_FREQ",)),
        (STEPS, ("TOTAL_TRAIN_STEPS",)),
        (SAVES, ("SAVE_FREQ",)),
        (RESUMES, ("RESUME_MODE",)),
    )


VARIABLES: Mapping[str, tuple[str, ...]] = dict(_by_variable())
# Scripts other than the wrapper use these names for something else: an override on the command line outranks them.
_COMMON_NAMES = frozenset({"NUM_GPUS", "TEST_FREQ", "VAL_BEFORE_TRAIN"})


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What was asked for and what the run shows instead: the stage, the line to look at, and both sides in words."""

    stage: Stage
    at: Excerpt
    cause: str


def contradiction(facts: LogFacts) -> Contradiction | None:
    """The first thing that one run did otherwise than it was asked."""
    wanted = _Wanted(facts.asked)
    found = chain(
        _dropped(wanted),
        _configured(wanted, facts),
        _adapters(wanted, facts),
        _wrappers(wanted, facts),
        _ranks(wanted, facts),
        _steps(wanted, facts),
        _saves(wanted, facts),
        _resumes(wanted, facts),
    )
    return next(found, None)


def other_checkout(facts: LogFacts) -> Contradiction | None:
    """A package under test that was imported from elsewhere than PYTHONPATH says."""
    found = imported_elsewhere(facts)
    return None if found is None else Contradiction(Stage.IMPORT, found[0].at, found[1])


class _Wanted:
    """The settings in effect by dotted key, as Hydra and the wrapper resolve them: the last one counts."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._variables = {item.name: item for item in settings if not item.override}
        self.overrides: dict[str, list[Setting]] = {}
        for setting in settings:
            if setting.override:
                self.overrides.setdefault(setting.name, []).append(setting)

    def of_variable(self, key: str) -> Setting | None:
        """The wrapper's variable that decides a key."""
        names = VARIABLES.get(key, ())
        if key == MODEL_PATH and self._says("USE_DUMMY_MODEL") == "True":
            names = ("DUMMY_MODEL_PATH",)
        return next((self._variables[name] for name in names if name in self._variables), None)

    def get(self, key: str) -> Setting | None:
        """What was asked for under a key: the last override, else the variable."""
        overrides = self.overrides.get(key)
        return overrides[-1] if overrides else self.of_variable(key)

    def every_key(self) -> Iterator[str]:
        """Every key that something was asked for."""
        return iter(dict.fromkeys((*VARIABLES, *self.overrides)))

    def number(self, key: str) -> int | None:
        """The whole number asked for under a key."""
        setting = self.get(key)
        return None if setting is None else _whole(setting)

    def _says(self, variable: str) -> str:
        setting = self._variables.get(variable)
        return setting.value if setting is not None else ""


def _dropped(wanted: _Wanted) -> Iterator[Contradiction]:
    """A variable that the command line, which was made from it, does not pass on."""
    for key in VARIABLES:
        variable, passed = wanted.of_variable(key), wanted.overrides.get(key, [])
        # A second override of the key is someone's own, and the last one counts.
        if variable is None or len(passed) != 1 or variable.name in _COMMON_NAMES:
            continue
        if not _same(read_value(passed[0].value), variable):
            yield _against(variable, f"the command passes {key}={passed[0].value}", passed[0].at.line)


def _configured(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
    """A value of the printed configuration that is not the one asked for."""
    for key in wanted.every_key():
        setting = wanted.get(key)
        if setting is None or "." not in key or key in _SET_BY_VERL:
            continue
        for config in facts.configs:
            found = lookup(config.values, key, UNREADABLE)
            if not _same(found, setting):
                yield _against(setting, f"the configuration printed says {key} {found!r}"[:200], config.line)


def _adapters(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
    """An adapter of a rank that no model was asked to have."""
    setting, ranks = wanted.get(LORA_RANK), [wanted.number(key) for key in (LORA_RANK, CRITIC_LORA_RANK)]
    if setting is None or ranks[0] is None:
        return
    known = set(ranks) if ranks[1] is not None else {ranks[0], *_printed(facts, CRITIC_LORA_RANK)}
    for enabled in facts.lora_ranks:
        if enabled.value not in known:
            yield _against(setting, f"an adapter of rank {enabled.value} was enabled", enabled.at.line)


def _printed(facts: LogFacts, key: str) -> Iterator[object]:
    return (lookup(config.values, key) for config in facts.configs)


def _wrappers(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
    """Models wrapped for Megatron-FSDP although DDP was asked for, or the other way round."""
    keys = [f"{root}.use_megatron_fsdp" for root in _ROLES.values()]
    settings = [setting for setting in map(wanted.get, keys) if setting is not None]
    asked = [value for value in (True, False) if settings and all(_same(value, setting) for setting in settings)]
    sharded = [model for model in facts.wrapped if model.wrapper.startswith("FullySharded")]
    other = sharded if asked == [False] else facts.wrapped if asked == [True] and not sharded else ()
    for model in other:
        yield _against(settings[0], f"a model was wrapped as {model.wrapper} ({keys[0]})", model.at.line)


def _ranks(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
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


def _steps(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
    """Another number of steps than was asked for."""
    setting, asked = wanted.get(STEPS), wanted.number(STEPS)
    if setting is None or asked is None:
        return
    planned, bar = facts.planned_steps, facts.progress
    if planned is not None and planned.value != asked:
        yield _against(setting, f"{planned.value} steps were planned", planned.at.line)
    if bar is not None and bar.total != asked:
        yield _against(setting, f"the progress bar counts {bar.total} steps", bar.at.line)


def _saves(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
    """Checkpoints that were asked for, of a finished run that wrote none."""
    setting, every = wanted.get(SAVES), wanted.number(SAVES)
    if setting is None or every is None or every <= 0 or facts.completed_at is None:
        return
    written = any(event.action in ("saving", "saved") for event in facts.checkpoints)
    if not written and not any(_SAVED_METRIC in step.values for step in facts.steps):
        cause = f"asked for {_shown(setting)}, but the run ended without a checkpoint"
        yield Contradiction(Stage.CHECKPOINT_SAVE, setting.at, cause)


def _resumes(wanted: _Wanted, facts: LogFacts) -> Iterator[Contradiction]:
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
        yield Contradiction(Stage.CHECKPOINT_LOAD, setting.at, cause)


def _against(setting: Setting, got: str, line: int) -> Contradiction:
    cause = f"asked for {_shown(setting)}, but {got} (line {line})"
    return Contradiction(Stage.ENVIRONMENT, setting.at, cause)


def _shown(setting: Setting) -> str:
    return f"{setting.at.text[:120]} (line {setting.at.line})"


def _whole(setting: Setting) -> int | None:
    """The whole number that a setting asks for."""
    value = read_value(setting.value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,12}", value) else None


def _same(found: object, setting: Setting) -> bool:
    """Whether a value is the one that was asked for; one that is not printed contradicts nothing."""
    return found is UNREADABLE or same_value(found, read_value(setting.value))

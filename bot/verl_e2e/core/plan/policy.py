"""The policy as values, and what its path rules say of one changed path."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.access import (
    DEFAULT_ACCESS,
    DEFAULT_GATE,
    DEFAULT_OVERRIDE_RULES,
    Access,
    GateSettings,
    OverrideRules,
)
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Checkpoint, Isolation, Patch
from verl_e2e.core.model.levels import Level
from verl_e2e.core.reach.changes import IMPORT_TIME
from verl_e2e.core.reach.effects import IMPORT_ONLY, IMPORT_ONLY_BECAUSE, Effect, Effects, Inside


@dataclass(frozen=True, slots=True)
class PathPatterns:
    """Compiled patterns in gitignore's language; of those that match, the last decides.

    Each step is an expression and whether it takes the path in (a pattern that begins with `!` takes it out).
    """

    steps: tuple[tuple[re.Pattern[str], bool], ...]

    def match(self, path: str) -> bool:
        """Whether the path, relative to the repository's top folder, is taken in."""
        name = path.replace("\n", " ")
        return next((takes_in for regex, takes_in in reversed(self.steps) if regex.match(name)), False)


@dataclass(frozen=True, slots=True)
class Rule:
    """Paths that ask for levels. `variants` are job ids asked for beside each level's default variant."""

    name: str
    patterns: PathPatterns
    levels: tuple[Level, ...]
    because: str
    features: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SymbolRule:
    """Reached code that asks for levels; every condition that is set must hold, None holds always.

    `symbols` are held against `Class.method`; `through` holds as well where a symbol on the chain from verl matches, or
    a caller up to three steps back.
    `words` and `unless` are held against the identifiers of each statement
    that differs: one statement must have one of `words` and none of `unless`. A rule with `imports` judges the
    names that a module newly imports, and nothing else.
    """

    name: str
    levels: tuple[Level, ...]
    because: str
    paths: PathPatterns | None = None
    symbols: PathPatterns | None = None
    through: PathPatterns | None = None
    words: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    imports: re.Pattern[str] | None = None
    kinds: frozenset[str] = frozenset()
    features: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReachPolicy:
    """How reach is found and what reached code asks for.

    `package` is the import package under test, below the `roots`; `callers` is the folder of the other program
    whose imports are the entry points. `dependencies` are requirements that a run of it imports.
    """

    package: str
    roots: tuple[str, ...]
    callers: str
    rules: tuple[SymbolRule, ...]
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exemption:
    """Paths that no verl run executes: they ask for nothing, whatever a rule says, and the plan counts them.

    With `unless_reached` this is only what the path suggests: where reach is known, reach decides.
    """

    name: str
    patterns: PathPatterns
    because: str
    unless_reached: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the policy declares of a checkpoint; nothing of it is read from the model itself."""

    # The features of level 4 that a run of it activates; None where nothing is declared.
    features: tuple[str, ...] | None = None
    # GiB of its weights at two bytes a parameter; None where nothing is declared.
    weights_gib: float | None = None
    # The GPUs that its weights are to be spread over whatever their size; None: as many as the size asks for.
    gpus: int | None = None

    def shows(self, feature: str) -> bool:
        """Whether a run of the checkpoint may activate a feature: what is not declared may be there."""
        return self.features is None or feature in self.features


UNDECLARED = ModelFacts()


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: its paths, what it activates, and the smallest checkpoint that exercises it, if known."""

    name: str
    patterns: PathPatterns
    features: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """What switches a feature of level 4 on at the pinned verl commit.

    `script` is the script of verl to run, None when no maintained one shows the feature; `because` says why it is
    this one, or none. `wrapper` are the script's variables and `overrides` Hydra overrides; `checkpoint` is used
    where no family brings one. `active_when` maps dotted keys of the resolved configuration to the values that prove
    the feature active; empty when the configuration does not tell. `shown_by` are verl's own files that run it so.
    `limitation` is what a run leaves open, for the card.
    """

    name: str
    because: str
    script: str | None = WRAPPER_SCRIPT
    wrapper: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    active_when: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    shown_by: tuple[str, ...] = ()
    limitation: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceOfTests:
    """How Bridge tests are chosen for a change beside those that the policy lists.

    `paths` are where tests may be chosen from (None: nowhere). For a change of import or export, one of
    `conversion_changes`, those of `conversion_tests` come first. At most `files` are run, the policy's own among them,
    for at most `limit_s` seconds. `gpu_marks` are the pytest marks that ask for a GPU.
    """

    paths: PathPatterns | None = None
    conversion_changes: PathPatterns | None = None
    conversion_tests: PathPatterns | None = None
    files: int = 12
    limit_s: int = 300
    gpu_marks: tuple[str, ...] = ("gpu",)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds that the wrapper may take, by level; `default_s` for a level not named."""

    default_s: int
    by_level: Mapping[Level, int] = field(default_factory=dict)

    def of(self, level: Level) -> int:
        """The limit of one level in seconds."""
        return self.by_level.get(level, self.default_s)


@dataclass(frozen=True, slots=True)
class Image:
    """The container image that every run is meant to use; `digest` is empty when only the tag is pinned."""

    name: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a repository asks of its pull requests, checked and compiled; `source` says where it was read.

    `unknown_level` is the level that a path asks for that neither a rule nor an exemption names.
    `family_jobs` bounds the jobs of level 4: one for each family touched, the first ones of the table. `bands` is the
    path of a bands file in the repository, empty for none. `access` says who may ask for what, `gate` how it is
    reported. `verl_repository` is where `verl_commit` is looked for.
    """

    source: str
    verl_commit: str
    image: Image
    checkpoint: Checkpoint
    rules: tuple[Rule, ...]
    exemptions: tuple[Exemption, ...]
    families: tuple[Family, ...] = ()
    unknown_level: Level = Level.SMOKE
    unknown_because: str = "unknown path"
    patches: tuple[Patch, ...] = ()
    bridge_tests: tuple[str, ...] = ()
    test_choice: ChoiceOfTests = ChoiceOfTests()
    require_bridge_checks: bool = True
    time_limits: TimeLimits = TimeLimits(1800)
    family_jobs: int = 4
    reach: ReachPolicy | None = None
    features: tuple[Feature, ...] = ()
    bands: str = ""
    access: Access = DEFAULT_ACCESS
    gate: GateSettings = DEFAULT_GATE
    # What may be overridden, by how many people and for how long.
    overrides: OverrideRules = DEFAULT_OVERRIDE_RULES
    verl_repository: str = ""
    # Whether jobs may run where the code under test cannot be kept apart from the recorder.
    isolation: Isolation = Isolation.PREFERRED
    # What is declared of checkpoints.
    models: Mapping[Checkpoint, ModelFacts] = field(default_factory=dict)
    # SHA-256 of the file's text, empty where it is not known: the same digest, the same policy.
    text_digest: str = ""

    def facts_of(self, checkpoint: Checkpoint | None) -> ModelFacts:
        """What is declared of a checkpoint."""
        return self.models.get(checkpoint, UNDECLARED) if checkpoint is not None else UNDECLARED


@dataclass(frozen=True, slots=True)
class JudgedEffect:
    """One effect of a change and the rules that it meets."""

    effect: Effect
    rules: tuple[SymbolRule, ...]


@dataclass(frozen=True, slots=True)
class Classified:
    """What the policy says of one path."""

    path: str
    # What sets the path aside, None when it counts.
    exemption: Exemption | None
    # The rules that it meets; none means that nothing names it.
    rules: tuple[Rule, ...]
    families: tuple[Family, ...]
    # What runs of the path, each with the rules that it meets; None where its inside was not judged.
    effects: tuple[JudgedEffect, ...] | None = None
    # Why nothing is known of a path that may be imported, empty for any other.
    unknown: str = ""


def classify(path: str, policy: Policy, effects: Effects | None = None) -> Classified:
    """Hold one path against the whole policy; the first exemption that matches ends it.

    `effects` say what was found inside; a path that they do not speak of is judged by its name alone.
    """
    exemption = next((one for one in policy.exemptions if one.patterns.match(path)), None)
    inside = effects.inside(path) if effects is not None else None
    unknown = effects.unknown.get(path, "") if effects is not None else ""
    if unknown:
        rules = () if exemption is not None else _rules(path, policy)
        return Classified(path, None, rules, _families(path, policy), unknown=unknown)
    if exemption is not None and not (exemption.unless_reached and inside is not None):
        if inside is None or not inside.at_import:
            return Classified(path, exemption, (), ())
        return Classified(path, None, (), (), _held(inside.at_import, policy))
    if inside is not None:
        return _judged(path, inside, policy)
    return Classified(path, None, _rules(path, policy), _families(path, policy))


def _rules(path: str, policy: Policy) -> tuple[Rule, ...]:
    return tuple(rule for rule in policy.rules if rule.patterns.match(path))


def _families(path: str, policy: Policy) -> tuple[Family, ...]:
    return tuple(family for family in policy.families if family.patterns.match(path))


def _judged(path: str, inside: Inside, policy: Policy) -> Classified:
    asking = _held((*inside.effects, *inside.at_import), policy)
    if asking:
        return Classified(path, None, (), _families(path, policy), asking)
    name, because = (inside.because, inside.detail) if inside.because else (IMPORT_ONLY, IMPORT_ONLY_BECAUSE)
    return Classified(path, Exemption(name, PathPatterns(()), because), (), (), ())


def _held(effects: tuple[Effect, ...], policy: Policy) -> tuple[JudgedEffect, ...]:
    """The effects that ask for something: those that meet a rule, and those that no rule names."""
    rules = policy.reach.rules if policy.reach else ()
    judged = tuple(JudgedEffect(effect, tuple(rule for rule in rules if meets(effect, rule))) for effect in effects)
    return tuple(one for one in judged if one.rules or one.effect.kind != "imports")


def meets(effect: Effect, rule: SymbolRule) -> bool:
    """Whether an effect fulfils every condition of a rule."""
    if rule.paths is not None and not rule.paths.match(effect.path):
        return False
    if rule.imports is not None or effect.kind == "imports":
        names = effect.statements[0] if effect.statements else frozenset[str]()
        return effect.kind == "imports" and rule.imports is not None and any(map(rule.imports.match, names))
    if (rule.kinds or effect.kind == IMPORT_TIME) and effect.kind not in rule.kinds:
        return False
    if not _symbol_meets(effect, rule):
        return False
    if rule.words is None and rule.unless is None:
        return True
    return any(_statement_meets(words, rule) for words in effect.statements)


def _symbol_meets(effect: Effect, rule: SymbolRule) -> bool:
    if rule.symbols is None and rule.through is None:
        return True
    if rule.symbols is not None and rule.symbols.match(effect.symbol):
        return True
    return rule.through is not None and any(map(rule.through.match, effect.through))


def _statement_meets(words: frozenset[str], rule: SymbolRule) -> bool:
    if rule.unless is not None and any(map(rule.unless.match, words)):
        return False
    return rule.words is None or any(map(rule.words.match, words))

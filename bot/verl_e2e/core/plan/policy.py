"""The policy: the file `.github/verl-e2e.yml` as one frozen document, each key described where it is declared."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, model_validator

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import OPTIONAL, VARIANTS
from verl_e2e.core.model.access import Access, GateSettings, OverrideRules, Slowdown
from verl_e2e.core.model.document import (
    FEATURES,
    Address,
    DescribedDocument,
    ImageText,
    InnerPath,
    LevelNumber,
    Levels,
    PathPatterns,
    Patterns,
    Seconds,
    Text,
    UnfitError,
    Words,
    name_among,
)
from verl_e2e.core.model.jobs import (
    WRAPPER_SCRIPT,
    Checkpoint,
    Isolation,
    NotRestored,
    Patch,
    RehearsalRules,
    Sha,
    Variable,
)
from verl_e2e.core.model.known_defects import KnownDefect, QuarantinedCause, RetryRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import MOST_GPUS
from verl_e2e.core.model.settings import Axis, FieldValue, Value
from verl_e2e.core.model.space import JobPoint, ModelShape
from verl_e2e.core.model.synthetic import FieldName, Recipe
from verl_e2e.core.plan.synthetic_models import NO_FIELDS, WEIGHTS_GIB, synthetic_checkpoint, synthetic_id
from verl_e2e.core.text.escape import suggest

_Variants = tuple[Annotated[str, name_among({variant.job_id for variant in VARIANTS}, "a variant")], ...]


class Verl(DescribedDocument):
    """A commit of verl."""

    repository: Address = "https://github.com/verl-project/verl"
    """Where `commit` is fetched from, and where `doctor` looks for it."""
    commit: Sha
    """The full SHA that every pull request is tested with."""


class Image(DescribedDocument):
    """The container image that every run is meant to use."""

    name: Annotated[ImageText, Field(min_length=1)]
    """The image's name without tag and digest."""
    tag: Annotated[ImageText, Field(min_length=1)]
    """Its tag."""
    digest: Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """`sha256:` and 64 hex digits: wins over site and settings. Empty when only the tag is pinned."""

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


class ModelFacts(DescribedDocument):
    """What the policy declares of a checkpoint; nothing of it is read from the model itself."""

    features: tuple[Text, ...] | None = None
    """The features of level 4 that a run of it activates; null when nothing is declared."""
    weights_gib: Annotated[float, Field(gt=0)] | None = None
    """GiB of its weights at two bytes a parameter; null when nothing is declared."""
    gpus: Literal[1, 2, 4, 8, 16, 32, 64] | None = None
    """The GPUs to spread its weights over, whatever their size; null: as many as the size asks for."""
    shape: ModelShape | None = None
    """The counts that parallel sizes divide; null: not known, and any sizes are taken to fit."""

    def shows(self, feature: str) -> bool:
        """Whether a run of the checkpoint may activate a feature: what is not declared may be there."""
        return self.features is None or feature in self.features


UNDECLARED = ModelFacts()


class Model(Checkpoint, ModelFacts):
    """A checkpoint with what the policy declares of it."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint alone, as jobs have it."""
        return Checkpoint(**{name: getattr(self, name) for name in Checkpoint.model_fields})

    @property
    def facts(self) -> ModelFacts:
        """What is declared alone."""
        return ModelFacts(**{name: getattr(self, name) for name in ModelFacts.model_fields})


class SyntheticModel(Recipe):
    """The recipe of a family's synthetic model, with what it does not have."""

    without: tuple[Text, ...] = ()
    """Features of the family that a run of it does not activate."""
    switched: dict[Text, dict[FieldName, FieldValue]] = Field(default_factory=dict)
    """Features of the family that it has with these fields alone; they are given where the feature is asked for."""

    def fields_for(self, features: Collection[str]) -> dict[str, FieldValue]:
        """The fields by which it has these features."""
        return {name: value for key, given in self.switched.items() if key in features for name, value in given.items()}

    @property
    def recipe(self) -> Recipe:
        """The recipe alone."""
        return Recipe(**{name: getattr(self, name) for name in Recipe.model_fields})


class Exemption(DescribedDocument):
    """Paths that no verl run executes: they ask for nothing, whatever a rule says, and the plan counts them."""

    name: Text
    """Shown with the count of paths."""
    paths: Patterns
    """The paths that it sets aside."""
    reason: Text
    """Why no run executes them."""
    unless_reached: bool = False
    """Whether this is only what the path suggests: where reach is known, reach decides."""


class Rule(DescribedDocument):
    """Paths that ask for levels."""

    name: Text
    """Shown as the way that led to the level."""
    paths: Patterns
    """The paths that it is about."""
    levels: Levels
    """The levels that they ask for."""
    reason: Text
    """Why, shown for every path."""
    features: tuple[Text, ...] = ()
    """Tags of level 4 that the paths touch."""
    variants: _Variants = ()
    """Ids of jobs asked for in addition to each level's default one."""


class SymbolRule(DescribedDocument):
    """Reached code that asks for levels; every condition that is set must hold, null holds always."""

    name: Text
    """Shown at the end of the chain from verl."""
    levels: Levels
    """The levels that the code asks for."""
    reason: Text
    """Why, shown for every symbol."""
    paths: Patterns | None = None
    """The files that it is about."""
    symbols: Patterns | None = None
    """Patterns of `Class.method`."""
    through: Patterns | None = None
    """Holds as well where a symbol on the chain from verl matches, or a caller up to three steps back."""
    words: Words | None = None
    """Shell patterns; a statement that differs must have an identifier that matches one."""
    unless: Words | None = None
    """Shell patterns; that statement must have no identifier that matches one."""
    imports: Words | None = None
    """Shell patterns of names that a module newly imports; a rule with this key judges nothing else."""
    kinds: tuple[Literal["added", "removed", "changed", "renamed", "import time"], ...] = ()
    """What became of the symbol; empty: any but `import time`, which must be named."""
    features: tuple[Text, ...] = ()
    """Tags of level 4 that the code touches."""
    variants: _Variants = ()
    """Ids of jobs asked for in addition to each level's default one."""
    measured: bool = False
    """Holds only for code that a job entered when it was measured."""


class MegatronLm(DescribedDocument):
    """Megatron-LM, at the commit of Bridge's submodule; the address in a pull request's `.gitmodules` is never used."""

    repository: Address = "https://github.com/NVIDIA/Megatron-LM"
    """Where it is fetched from."""
    rules: tuple[SymbolRule, ...] = ()
    """What its code asks for when the submodule moves; paths are those of Bridge's tree. Other code asks for nothing
    but level 0, which the submodule itself asks for."""


class ReachPolicy(DescribedDocument):
    """How reach is found and what reached code asks for."""

    package: Text
    """The import package under test, whose use by verl is followed."""
    roots: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The folders that its imports start from."""
    callers: Text = "verl/"
    """The folder of verl whose imports are the entry points."""
    dependencies: tuple[Text, ...] = ()
    """Requirements of pyproject.toml that a run of verl imports."""
    rules: tuple[SymbolRule, ...]
    """Reached code that asks for levels."""


class Unknown(DescribedDocument):
    """What a path asks for that neither a rule nor an exemption names; never skipped."""

    level: LevelNumber = Level.SMOKE
    """The level."""
    reason: Text = "unknown path: neither a rule nor an exemption of the policy names it"
    """The reason that the plan shows."""


class Family(DescribedDocument):
    """A model family: its paths, what it activates, and the smallest checkpoint that exercises it, if known."""

    name: Text = Field(alias="family")
    """The family's name."""
    paths: Patterns
    """Its files."""
    features: tuple[Text, ...] = ()
    """What a run of the family activates."""
    named: Model | None = Field(default=None, alias="checkpoint")
    """The smallest checkpoint of it; null: the synthetic one."""
    synthetic: SyntheticModel | None = None
    """How a host makes a small model of it with random weights; null: none can be made, for the reason below."""
    no_synthetic: Text | None = None
    """Why no host can make one."""

    @model_validator(mode="after")
    def _has_one_answer(self) -> "Family":
        if self.synthetic is None:
            return self
        if self.no_synthetic:
            raise UnfitError("synthetic: and no_synthetic: are both given", "keep one of them")
        for key in ("without", "switched"):
            unlisted = sorted({*getattr(self.synthetic, key)} - {*self.features})
            if unlisted:
                what = f"synthetic.{key}: the family's features: do not list {' and '.join(unlisted)}"
                raise UnfitError(what, "remove it, or add it to features")
        return self

    @property
    def model(self) -> Model | None:
        """The checkpoint that the policy names, else the synthetic one; None where there is neither."""
        return self.named or self.made

    @property
    def made(self) -> Model | None:
        """The synthetic model; None where none can be made."""
        return self.made_for(())

    def made_for(self, asked: Collection[str], wanted: Mapping[str, FieldValue] = NO_FIELDS) -> Model | None:
        """The synthetic model with the fields of the features asked for, and others; None where none can be made."""
        if self.synthetic is None:
            return None
        made = synthetic_checkpoint(self.synthetic.recipe, self.name, {**self.synthetic.fields_for(asked), **wanted})
        return Model(**dict(made), features=self.features_of(made), weights_gib=WEIGHTS_GIB)

    def features_of(self, made: Checkpoint) -> tuple[str, ...]:
        """The family's features that its synthetic model has, by the fields that are wanted of it."""
        model = self.synthetic
        if model is None or made.synthetic is None:
            return ()
        wanted = made.synthetic.wanted
        off = {name for name, given in model.switched.items() if not given.items() <= wanted.items()}
        return tuple(name for name in self.features if name not in model.without and name not in off)

    def has_model(self, model_id: str) -> bool:
        """Whether its own checkpoint or its synthetic one is of this name."""
        named = self.named is not None and self.named.model_id == model_id
        return named or (self.synthetic is not None and synthetic_id(self.name) == model_id)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint alone, as jobs have it."""
        return self.model.checkpoint if self.model else None

    @property
    def uncoverable(self) -> str:
        """Why no host can run a model of it, empty where one can and where the policy does not say."""
        return self.no_synthetic or "" if self.named is None and self.synthetic is None else ""


class Feature(DescribedDocument):
    """What switches a feature of level 4 on at the pinned verl commit."""

    name: Text = Field(alias="feature")
    """The tag that rules and families name."""
    reason: Text
    """Why it is this script, or why there is none."""
    script: InnerPath | None = WRAPPER_SCRIPT
    """The script of verl to run; null when no maintained one shows the feature."""
    wrapper: dict[Variable, str] = Field(default_factory=dict)
    """Variables of the script."""
    overrides: tuple[Text, ...] = ()
    """Hydra overrides."""
    model: Model | None = Field(default=None, alias="checkpoint")
    """The checkpoint where no family brings one; null: the policy's own."""
    active_when: dict[Text, bool | int | float | str | None] = Field(default_factory=dict)
    """Dotted keys of the resolved configuration with the values that prove it active; empty: it does not tell."""
    shown_by: tuple[InnerPath, ...] = ()
    """verl's own files that run it so."""
    limitation: str = ""
    """What a run leaves open, for the card."""
    data: Literal["images", "audio"] | None = None
    """What the data must hold; a job with `images` gets the runner's own pictures. Null: text is enough."""
    read_of: tuple[Text, ...] | None = None
    """The families of which verl reads such data; a job of another one runs without. Null: all of them."""
    unread: Text = "verl reads no such data"
    """Why verl reads none of the other families, for plan and card."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint alone, as jobs have it."""
        return self.model.checkpoint if self.model else None

    def is_read_of(self, family: str) -> bool:
        """Whether a run of the family can have what the feature needs in its data; true where no family is named."""
        return self.read_of is None or not family or family in self.read_of


class StandIn(DescribedDocument):
    """A job that stands for a level's default one where a job may not have that many GPUs."""

    level: LevelNumber
    """The level."""
    settings: Annotated[dict[Axis, Value], Field(min_length=1)]
    """Its settings, by the names of docs/space.md."""

    @model_validator(mode="after")
    def _is_of_the_level(self) -> "StandIn":
        for axis, value in self.settings.items():
            if problem := axis.invalid(value):
                raise UnfitError(problem, "see docs/space.md for the values of each setting")
        if self.point.conflict or self.level not in self.point.levels:
            raise UnfitError(f"no job of level {int(self.level)} can have these settings", "see docs/space.md")
        return self

    @property
    def point(self) -> JobPoint:
        """The job as a point of the space of settings."""
        return JobPoint.of_level(self.level).with_axes(self.settings)


class SwitchedOff(DescribedDocument):
    """A level that no change gets."""

    level: LevelNumber
    """The level; 0 cannot be, because all others start after it."""
    reason: Text
    """Why, for plan and card of each change that asks for it."""

    @model_validator(mode="after")
    def _leaves_the_first(self) -> "SwitchedOff":
        if self.level is Level.SMOKE:
            raise UnfitError("level 0 cannot be switched off", "all others start after it passed; exempt paths instead")
        return self


class TimeLimits(DescribedDocument):
    """Seconds that the wrapper may take."""

    default: Seconds = 1800
    """For a level that is not named."""
    levels: dict[Literal["0", "1", "2", "3", "4", "5"], Seconds] = Field(default_factory=dict)
    """By level."""

    def of(self, level: Level) -> int:
        """The limit of one level in seconds."""
        return {int(name): limit for name, limit in self.levels.items()}.get(level, self.default)


class Budget(DescribedDocument):
    """What the jobs of one plan may take together."""

    gpu_minutes: Annotated[int, Field(strict=True, ge=0)] = 100
    """GPU minutes up to which jobs get settings, and new jobs are planned, for conditions in the changed code."""


class ConsumerRules(DescribedDocument):
    """What is asked of another trainer than verl, whose jobs are planned beside verl's."""

    level: Literal["show", "require"]
    """`show`: the card has its jobs, and the gate does not ask for them; `require`: the gate needs them, too."""
    pin: Sha | None = None
    """The commit that is tested with; null: the one that this version was made for, with its declared patches."""
    when: Literal["differs", "reached"] = "differs"
    """`differs`: where it reaches changed code by an import or attribute that verl does not use; `reached`: wherever it
    reaches changed code."""


class Schedule(DescribedDocument):
    """What is run on the tip of a branch that is watched, and how what broke there is searched."""

    every_h: Annotated[int, Field(strict=True, ge=1, le=168)] = 24
    """Hours between two rounds. In Action mode the workflow's own cron starts them, never more often than this."""
    levels: Levels
    """The levels whose default jobs are run; not 4, whose jobs follow from what a change touches."""
    variants: _Variants = ()
    """Ids of jobs that are run in addition."""
    gpu_minutes: Annotated[int, Field(strict=True, ge=1)] = 600
    """GPU minutes that one round may take, the search for a commit among them."""
    confirm: bool = True
    """Whether a commit is named only after it failed twice and the one before it passed."""
    labels: tuple[Annotated[Text, StringConstraints(max_length=50)], ...] = ()
    """The labels of the issues that are opened."""
    follow_verl: bool = False
    """Whether newer commits of verl are run too, with what passed as a proposal for `verl.commit`."""

    @model_validator(mode="after")
    def _has_jobs(self) -> "Schedule":
        if Level.FEATURE in self.levels or any(name.startswith("4-") for name in self.variants):
            what = "a schedule has no job of level 4, which is run for the features of a change"
            raise UnfitError(what, "leave it out, and name jobs of other levels in variants")
        return self


class ConversionTests(DescribedDocument):
    """Tests that come first for a change of import or export."""

    changes: Patterns
    """The paths that are about import and export."""
    tests: Patterns
    """The tests that come first for them."""


class ChoiceOfTests(DescribedDocument):
    """How Bridge tests are chosen for a change, in addition to those that the policy lists."""

    paths: Patterns
    """Where tests may be chosen from."""
    files: Annotated[int, Field(strict=True, ge=1)] | None = None
    """At most so many files are run, those that the policy lists among them; null: as many as the time allows."""
    seconds: Seconds = 300
    """How long all of them together may take."""
    durations: dict[Text, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Seconds that test files are known to take, by path; others are estimated from the number of their tests."""
    gpu_marks: tuple[Text, ...] = ("gpu",)
    """The pytest marks that ask for a GPU."""
    conversion: ConversionTests | None = None
    """Tests that come first for a change of import or export."""

    def is_conversion(self, path: str) -> bool:
        """Whether a path is about import and export."""
        return self.conversion is not None and self.conversion.changes.match(path)

    def is_conversion_test(self, path: str) -> bool:
        """Whether a test comes first for such a path."""
        return self.conversion is not None and self.conversion.tests.match(path)


NO_CHOSEN_TESTS = ChoiceOfTests.model_construct(paths=PathPatterns())


_OFF_HINT = "to switch a level off, write `switched_off: [{level: N, reason: TEXT}]`"
_OFF_WORDS = ("level", "levels", "off", "disable", "disabled", "disabled_levels", "skip", "skip_levels", "switch_off")


# The one value of `extends`.
EXTENDED = "default"


class PolicyFile(DescribedDocument):
    """The keys of the policy file; `docs/policy.md` shows each in an example."""

    hints: ClassVar[Mapping[str, str]] = dict.fromkeys(_OFF_WORDS, _OFF_HINT)

    schema_: Literal[1] = Field(alias="schema")
    """The version of this format."""
    extends: Literal["default"] | None = None
    """`default`: every key that the file leaves out is the packaged policy's, not its own default."""
    verl: Verl
    """The verl that a run starts."""
    megatron_lm: MegatronLm = MegatronLm()
    """Where the commit of Megatron-LM is found that a commit of Bridge names."""
    image: Image
    """The container image that jobs are ordered in."""
    model: Model = Field(alias="checkpoint")
    """The checkpoint of every job that no single family explains."""
    reward_model: Checkpoint | None = None
    """The model that scores responses in a job that has one; null: none is named."""
    exempt: tuple[Exemption, ...] = ()
    """Paths that no verl run executes."""
    rules: tuple[Rule, ...]
    """Paths that ask for levels."""
    reach: ReachPolicy | None = None
    """How the inside of a change is judged; null: names alone count."""
    unknown: Unknown = Unknown()
    """What a path asks for that nothing names."""
    families: tuple[Family, ...] = ()
    """Model families, in the order in which checkpoints are chosen."""
    features: tuple[Feature, ...] = ()
    """What switches each feature of level 4 on."""
    patches: tuple[Patch, ...] = ()
    """Declared patches of verl or Bridge."""
    not_restored: tuple[NotRestored, ...] = ()
    """Parameters that the pinned commits leave as they are when a checkpoint is loaded."""
    defects: tuple[KnownDefect, ...] = ()
    """Jobs that are known to fail on unchanged code at certain commits; they are not run."""
    require_bridge_checks: bool = True
    """Whether a gate needs the focused Bridge tests on this very commit."""
    performance: Slowdown = Slowdown.WARN
    """What a job makes of time or memory beyond the noise of healthy runs; see docs/parity.md."""
    isolation: Isolation = Isolation.PREFERRED
    """Whether a job may run where the code under test cannot be kept apart from the recorder; a fork's never may."""
    bridge_tests: tuple[Text, ...] = ()
    """Paths of the focused Bridge tests."""
    bridge_test_choice: ChoiceOfTests | None = None
    """Which tests join them for a change; null: none."""
    time_limit_s: TimeLimits = TimeLimits()
    """How long the wrapper may take, in seconds."""
    most_gpus: Annotated[int, Field(ge=1, le=512)] = MOST_GPUS
    """The most GPUs that one job may have; more than a host has need a site with `gpus_per_node`."""
    stand_ins: tuple[StandIn, ...] = ()
    """Smaller jobs for levels whose default job has more GPUs than `most_gpus`; the first that fits is taken."""
    switched_off: tuple[SwitchedOff, ...] = ()
    """Levels that no change gets, each with the reason; plan and card of a change that asks for one say so."""
    family_jobs: Annotated[int, Field(ge=1)] = 4
    """At most so many jobs of level 4: one for each family touched, the first ones of the table."""
    budget: Budget = Budget()
    """What the jobs of one plan may take together; those of the table of levels always stay."""
    bands: InnerPath | None = None
    """The path of a bands file in the repository: what healthy runs measured."""
    maps: InnerPath | None = None
    """The path of a maps file in the repository: which functions runs of its jobs entered."""
    capabilities: Access = Access()
    """Who may ask for what; a capability left out keeps its default."""
    gate: GateSettings = GateSettings()
    """How the bot reports and waits."""
    rehearsal: RehearsalRules = RehearsalRules()
    """Whether a change is rehearsed on a CPU before its jobs start."""
    consumers: dict[Annotated[str, name_among(OPTIONAL, "a trainer whose jobs can be planned")], ConsumerRules] = Field(
        default_factory=dict, json_schema_extra={"propertyNames": {"enum": [*OPTIONAL]}}
    )
    """Trainers other than verl whose jobs are planned too, by name."""
    schedule: Schedule | None = None
    """How the branch is watched that holds this file; null: it is not."""
    overrides: OverrideRules = OverrideRules()
    """What may be overridden; an overridden level counts as satisfied for one exact head."""
    retry: RetryRules = RetryRules()
    """How often a job is run again that the infrastructure blocked; nothing that failed ever is."""
    quarantine: tuple[QuarantinedCause, ...] = ()
    """Causes that are known to come and go, set aside until a day; see `gate.quarantined`."""

    @model_validator(mode="after")
    def _names_what_there_is(self) -> "PolicyFile":
        """Features and families are named in several places: each name has to be one of another place."""
        declared = {*FEATURES, *(feature.name for feature in self.features)}
        of_families = {name for family in self.families for name in family.features}
        rules: list[tuple[tuple[str | int, ...], tuple[Rule | SymbolRule, ...]]] = [(("rules",), self.rules)]
        rules += [(("reach", "rules"), self.reach.rules)] if self.reach is not None else []
        of_rules = {name for _, found in rules for rule in found for name in rule.features}
        for place, found in rules:
            for number, rule in enumerate(found):
                _require_known(rule.features, declared | of_families, "feature", (*place, number, "features"))
        _require_known(self.model.features or (), declared | of_families, "feature", ("checkpoint", "features"))
        for number, family in enumerate(self.families):
            _require_known(family.features, declared | of_rules, "feature", ("families", number, "features"))
            facts = family.named.features if family.named is not None else None
            place = ("families", number, "checkpoint", "features")
            _require_known(facts or (), declared | of_families, "feature", place)
        families = {family.name for family in self.families}
        for number, feature in enumerate(self.features):
            _require_known(feature.read_of or (), families, "family", ("features", number, "read_of"))
        return self


def _require_known(names: Iterable[str], known: Collection[str], kind: str, at: tuple[str | int, ...]) -> None:
    """UnfitError for the first name that is not known."""
    for number, name in enumerate(names):
        if name not in known:
            raise UnfitError(f"{name!r} is not a {kind} that is known here", suggest(name, known), (*at, number))


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A top-level key of the policy in force."""

    key: str
    # Its value in JSON.
    value: str
    # Where it comes from: the file's name, the packaged policy, or the key's own default.
    origin: str


class Policy(PolicyFile):
    """What a repository asks of its pull requests, with where it was read."""

    model_config = ConfigDict(populate_by_name=True)

    source: str
    """The file's name in messages."""
    text_digest: str = ""
    """SHA-256 of the file's text, empty where it is not known: the same digest, the same policy."""

    def pin_of(self, consumer: Consumer) -> str:
        """The commit of a consumer that its jobs are for: the policy's, else the one that its list is of."""
        rules = self.consumers.get(consumer.name)
        return (rules.pin if rules else None) or consumer.pin or self.verl.commit

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of every job that no single family explains, as jobs have it."""
        return self.model.checkpoint

    @property
    def test_choice(self) -> ChoiceOfTests:
        """How tests are chosen for a change; where the policy does not say, none are."""
        return self.bridge_test_choice or NO_CHOSEN_TESTS

    @property
    def recipes(self) -> dict[str, dict[str, JsonValue]]:
        """How a rehearsal makes the model of each family that has a recipe, by the family's name."""
        made = ((family.name, family.synthetic) for family in self.families)
        return {
            name: synthetic.model_dump(mode="json", exclude={"without"})
            for name, synthetic in made
            if synthetic is not None
        }

    @property
    def models(self) -> tuple[Model, ...]:
        """Every checkpoint that the file names."""
        return self._models(self.families)

    def _models(self, families: Iterable[Family]) -> tuple[Model, ...]:
        named = (self.model, *(family.model for family in families), *(feature.model for feature in self.features))
        return tuple(model for model in named if model is not None)

    def facts_of(self, checkpoint: Checkpoint | None) -> ModelFacts:
        """What is declared of a checkpoint; one that the file names twice may be declared once."""
        if checkpoint is None:
            return UNDECLARED
        # Most families cannot be meant, and making a synthetic model costs more than asking for its name.
        families = [family for family in self.families if family.has_model(checkpoint.model_id)]
        if checkpoint.synthetic is not None:
            wanted = checkpoint.synthetic.wanted
            return next((made.facts for family in families if (made := family.made_for((), wanted))), UNDECLARED)
        named = (model for model in self._models(families) if model.model_id == checkpoint.model_id)
        declared = (model.facts for model in named if model.checkpoint == checkpoint)
        return next((facts for facts in declared if facts != UNDECLARED), UNDECLARED)

    def checkpoint_for(self, family: Family, asked: Collection[str]) -> Checkpoint | None:
        """The checkpoint of a family for features that are asked for; None where the family has no model.

        A named checkpoint shows pretrained weights, so it stays unless the synthetic model has all that it has of these
        features, and more.
        """
        named = family.named.checkpoint if family.named else None
        made = family.made_for(asked)
        if named is None or made is None:
            return made.checkpoint if made else named
        missing = self._missing(named, asked)
        return made.checkpoint if self._missing(made.checkpoint, asked) < missing else named

    def _missing(self, checkpoint: Checkpoint | None, asked: Collection[str]) -> frozenset[str]:
        """The features that a checkpoint is known not to have."""
        facts = self.facts_of(checkpoint)
        return frozenset(feature for feature in asked if not facts.shows(feature))

    def families_without_hosts(self, path: str) -> tuple[str, ...]:
        """The families that a path belongs to, where no host can run any of them; empty where one can."""
        # Few families have no host, so most paths are held against the patterns of these alone.
        without = tuple(family.name for family in self.families if family.uncoverable and family.paths.match(path))
        if without and any(not family.uncoverable and family.paths.match(path) for family in self.families):
            return ()
        return without

"""The repository's policy file: `.github/verl-e2e.yml`, read from the base commit, never from the pull request."""

import fnmatch
import re
from importlib.resources import files
from typing import Annotated, Literal

import pathspec
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from verl_e2e.config.access import CapabilityGrants, GateKeys, OverrideKeys
from verl_e2e.config.problems import UnfitError, closest
from verl_e2e.config.validation import validate
from verl_e2e.config.yaml_text import load_yaml
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Checkpoint, Document, Isolation, Patch, Sha, Variable
from verl_e2e.core.model.levels import VARIANTS, Level
from verl_e2e.core.plan.policy import (
    UNDECLARED,
    ChoiceOfTests,
    Exemption,
    Family,
    Feature,
    Image,
    ModelFacts,
    PathPatterns,
    Policy,
    ReachPolicy,
    Rule,
    SymbolRule,
    TimeLimits,
)
from verl_e2e.ports import ChangeSource

POLICY_PATH = ".github/verl-e2e.yml"
_PACKAGED = "policy/megatron-bridge.yml"


def _pattern(text: str) -> str:
    _compile((text,))
    return text


def _level(number: int) -> int:
    if number not in set(Level):
        raise UnfitError(f"{number} is no level", f"use {int(min(Level))} to {int(max(Level))}")
    return number


def _variant(name: str) -> str:
    known = {variant.job_id for variant in VARIANTS}
    if name not in known:
        raise UnfitError(f"{name!r} is no variant", closest(name, known))
    return name


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise UnfitError(f"{path!r} leads out of the repository", "write a path relative to its top folder")
    return path


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Words = Annotated[tuple[Text, ...], Field(min_length=1)]
Patterns = Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(min_length=1)]
LevelNumber = Annotated[int, Field(strict=True), AfterValidator(_level)]
LevelName = Literal["0", "1", "2", "3", "4", "5"]
Seconds = Annotated[int, Field(strict=True, ge=1)]


class _Verl(Document):
    repository: Text = "https://github.com/verl-project/verl"
    commit: Sha


class _Image(Document):
    name: Text
    tag: Text
    digest: Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""


class _Model(Checkpoint):
    """A checkpoint with what the policy declares of it."""

    features: tuple[Text, ...] | None = None
    weights_gib: Annotated[float, Field(gt=0)] | None = None
    gpus: Literal[1, 2, 4, 8] | None = None

    def checkpoint(self) -> Checkpoint:
        """The checkpoint alone, as jobs have it."""
        return Checkpoint(**{name: getattr(self, name) for name in Checkpoint.model_fields})


class _Rule(Document):
    name: Text
    paths: Patterns
    levels: Annotated[tuple[LevelNumber, ...], Field(min_length=1)]
    because: Text
    features: tuple[Text, ...] = ()
    variants: tuple[Annotated[str, AfterValidator(_variant)], ...] = ()


class _Exempt(Document):
    name: Text
    paths: Patterns
    because: Text
    unless_reached: bool = False


class _SymbolRule(Document):
    name: Text
    levels: Annotated[tuple[LevelNumber, ...], Field(min_length=1)]
    because: Text
    paths: Patterns | None = None
    symbols: Patterns | None = None
    through: Patterns | None = None
    words: Words | None = None
    unless: Words | None = None
    imports: Words | None = None
    kinds: tuple[Literal["added", "removed", "changed", "renamed", "import time"], ...] = ()
    features: tuple[Text, ...] = ()
    variants: tuple[Annotated[str, AfterValidator(_variant)], ...] = ()


class _Reach(Document):
    package: Text
    roots: Annotated[tuple[Text, ...], Field(min_length=1)]
    callers: Text = "verl/"
    dependencies: tuple[Text, ...] = ()
    rules: tuple[_SymbolRule, ...]


class _Unknown(Document):
    level: LevelNumber = 0
    because: Text = "unknown path: neither a rule nor an exemption of the policy names it"


class _Family(Document):
    family: Text
    paths: Patterns
    features: tuple[Text, ...] = ()
    checkpoint: _Model | None = None


class _Feature(Document):
    feature: Text
    because: Text
    script: Annotated[Text, AfterValidator(_inside)] | None = WRAPPER_SCRIPT
    wrapper: dict[Variable, str] = Field(default_factory=dict)
    overrides: tuple[Text, ...] = ()
    checkpoint: _Model | None = None
    active_when: dict[Text, bool | int | float | str | None] = Field(default_factory=dict)
    shown_by: tuple[Annotated[Text, AfterValidator(_inside)], ...] = ()
    limitation: str = ""


class _Limits(Document):
    default: Seconds = 1800
    levels: dict[LevelName, Seconds] = Field(default_factory=dict)


class _Conversion(Document):
    changes: Patterns
    tests: Patterns


class _TestChoice(Document):
    paths: Patterns
    files: Annotated[int, Field(strict=True, ge=1)] = 12
    seconds: Seconds = 300
    gpu_marks: tuple[Text, ...] = ("gpu",)
    conversion: _Conversion | None = None


class PolicyFile(Document):
    """The policy file as written; `docs/policy.md` describes every key."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    verl: _Verl
    image: _Image
    checkpoint: _Model
    exempt: tuple[_Exempt, ...] = ()
    rules: tuple[_Rule, ...]
    reach: _Reach | None = None
    unknown: _Unknown = _Unknown()
    families: tuple[_Family, ...] = ()
    features: tuple[_Feature, ...] = ()
    patches: tuple[Patch, ...] = ()
    require_bridge_checks: bool = True
    # Whether a job may run where the code under test cannot be kept apart from the recorder; a fork's never may.
    isolation: Isolation = Isolation.PREFERRED
    bridge_tests: tuple[Text, ...] = ()
    bridge_test_choice: _TestChoice | None = None
    time_limit_s: _Limits = _Limits()
    family_jobs: Annotated[int, Field(ge=1)] = 4
    bands: Annotated[Text, AfterValidator(_inside)] | None = None
    capabilities: CapabilityGrants = CapabilityGrants()
    gate: GateKeys = GateKeys()
    overrides: OverrideKeys = OverrideKeys()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False, serialize_by_alias=True)


def load_policy(text: str | bytes, source: str) -> Policy:
    """A policy file's text as a Policy; `source` names it in errors. Raises ConfigError."""
    return _compiled(validate(load_yaml(text, source), PolicyFile), source)


def packaged_policy() -> Policy:
    """The policy for a repository that has none: Megatron-Bridge's tree, today's pins."""
    text = files("verl_e2e").joinpath(_PACKAGED).read_bytes()
    return load_policy(text, f"packaged default ({_PACKAGED})")


def policy_schema() -> dict[str, object]:
    """The JSON schema of the policy file, for editors and checkers."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{POLICY_PATH}: which changes need which coverage",
        **PolicyFile.model_json_schema(),
    }


def policy_at(repository: ChangeSource, commit: str) -> Policy:
    """The policy at a commit (the base, never the head), or the packaged one when the repository has none there."""
    text = repository.read_blob(commit, POLICY_PATH)
    return packaged_policy() if text is None else load_policy(text, f"{commit[:12]}:{POLICY_PATH}")


def _compiled(file: PolicyFile, source: str) -> Policy:
    return Policy(
        source=source,
        verl_commit=file.verl.commit,
        verl_repository=file.verl.repository,
        image=Image(file.image.name, file.image.tag, file.image.digest),
        checkpoint=file.checkpoint.checkpoint(),
        models=_models(file),
        rules=tuple(_rule(entry) for entry in file.rules),
        exemptions=tuple(_exemption(entry) for entry in file.exempt),
        families=tuple(_family(entry) for entry in file.families),
        unknown_level=Level(file.unknown.level),
        unknown_because=file.unknown.because,
        patches=file.patches,
        bridge_tests=file.bridge_tests,
        test_choice=_test_choice(file.bridge_test_choice) if file.bridge_test_choice else ChoiceOfTests(),
        require_bridge_checks=file.require_bridge_checks,
        isolation=file.isolation,
        time_limits=TimeLimits(
            file.time_limit_s.default, {Level(int(name)): limit for name, limit in file.time_limit_s.levels.items()}
        ),
        family_jobs=file.family_jobs,
        bands=file.bands or "",
        reach=_reach(file.reach) if file.reach else None,
        features=tuple(_feature(entry) for entry in file.features),
        access=file.capabilities.access(),
        gate=file.gate.settings(),
        overrides=file.overrides.rules(),
    )


def _test_choice(entry: _TestChoice) -> ChoiceOfTests:
    return ChoiceOfTests(
        paths=_compile(entry.paths),
        conversion_changes=_compile(entry.conversion.changes) if entry.conversion else None,
        conversion_tests=_compile(entry.conversion.tests) if entry.conversion else None,
        files=entry.files,
        limit_s=entry.seconds,
        gpu_marks=entry.gpu_marks,
    )


def _exemption(entry: _Exempt) -> Exemption:
    return Exemption(entry.name, _compile(entry.paths), entry.because, entry.unless_reached)


def _reach(entry: _Reach) -> ReachPolicy:
    rules = tuple(_symbol_rule(rule) for rule in entry.rules)
    return ReachPolicy(entry.package, entry.roots, entry.callers, rules, entry.dependencies)


def _symbol_rule(entry: _SymbolRule) -> SymbolRule:
    return SymbolRule(
        name=entry.name,
        levels=tuple(Level(number) for number in sorted(set(entry.levels))),
        because=entry.because,
        paths=_compile(entry.paths) if entry.paths else None,
        symbols=_compile(entry.symbols) if entry.symbols else None,
        through=_compile(entry.through) if entry.through else None,
        words=_word_pattern(entry.words),
        unless=_word_pattern(entry.unless),
        imports=_word_pattern(entry.imports),
        kinds=frozenset(entry.kinds),
        features=entry.features,
        variants=entry.variants,
    )


def _word_pattern(words: tuple[str, ...] | None) -> re.Pattern[str] | None:
    """Shell patterns as one expression that matches whole identifiers."""
    return re.compile("|".join(fnmatch.translate(word) for word in words)) if words else None


def _rule(entry: _Rule) -> Rule:
    levels = tuple(Level(number) for number in sorted(set(entry.levels)))
    return Rule(entry.name, _compile(entry.paths), levels, entry.because, entry.features, entry.variants)


def _family(entry: _Family) -> Family:
    checkpoint = entry.checkpoint.checkpoint() if entry.checkpoint else None
    return Family(entry.family, _compile(entry.paths), entry.features, checkpoint)


def _models(file: PolicyFile) -> dict[Checkpoint, ModelFacts]:
    """What is declared of each checkpoint; one that is named twice may be declared once."""
    found: dict[Checkpoint, ModelFacts] = {}
    of_families = (entry.checkpoint for entry in file.families)
    for model in (file.checkpoint, *of_families, *(entry.checkpoint for entry in file.features)):
        if model is not None:
            known = found.get(model.checkpoint(), UNDECLARED)
            facts = ModelFacts(model.features, model.weights_gib, model.gpus)
            found[model.checkpoint()] = facts if known == UNDECLARED else known
    return found


def _feature(entry: _Feature) -> Feature:
    return Feature(
        name=entry.feature,
        because=entry.because,
        script=entry.script,
        wrapper=entry.wrapper,
        overrides=entry.overrides,
        checkpoint=entry.checkpoint.checkpoint() if entry.checkpoint else None,
        active_when=entry.active_when,
        shown_by=entry.shown_by,
        limitation=entry.limitation,
    )


def _compile(lines: tuple[str, ...]) -> PathPatterns:
    """Patterns in gitignore's language, compiled; raises ValueError for one that can match nothing."""
    steps: list[tuple[re.Pattern[str], bool]] = []
    for line in lines:
        found = _one_pattern(line)
        if found is None:
            raise UnfitError(f"{line!r} is no path pattern", "write it as in a .gitignore file")
        steps.append(found)
    return PathPatterns(tuple(steps))


def _one_pattern(line: str) -> tuple[re.Pattern[str], bool] | None:
    try:
        pattern = next(iter(pathspec.PathSpec.from_lines("gitignore", [line]).patterns), None)
    except ValueError:
        return None
    if not isinstance(pattern, pathspec.RegexPattern) or pattern.regex is None or pattern.include is None:
        return None
    return (pattern.regex, pattern.include) if line.strip("/! ") else None

"""The policy as values, and what its path rules say of one changed path."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bot.core.jobs import Checkpoint, Patch
from bot.core.levels import Level


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
class Exemption:
    """Paths that no verl run executes: they ask for nothing, whatever a rule says, and the plan counts them."""

    name: str
    patterns: PathPatterns
    because: str


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: its paths, what it activates, and the smallest checkpoint that exercises it, if known."""

    name: str
    patterns: PathPatterns
    features: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None


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
    `family_jobs` bounds the jobs of level 4: one for each family touched, the first ones of the table.
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
    require_bridge_checks: bool = True
    time_limits: TimeLimits = TimeLimits(1800)
    family_jobs: int = 4


@dataclass(frozen=True, slots=True)
class Classified:
    """What the policy says of one path: the exemption, or the rules that it meets (none: unknown), and its families."""

    path: str
    exemption: Exemption | None
    rules: tuple[Rule, ...]
    families: tuple[Family, ...]


def classify(path: str, policy: Policy) -> Classified:
    """Hold one path against the whole policy; the first exemption that matches ends it."""
    exemption = next((one for one in policy.exemptions if one.patterns.match(path)), None)
    if exemption is not None:
        return Classified(path, exemption, (), ())
    rules = tuple(rule for rule in policy.rules if rule.patterns.match(path))
    families = tuple(family for family in policy.families if family.patterns.match(path))
    return Classified(path, None, rules, families)

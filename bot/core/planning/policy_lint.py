"""What of a policy says nothing about a tree: idle rules, unjudged source files, and files that verl lacks."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bot.core.jobs import Checkpoint
from bot.core.planning.outline import JobOutline
from bot.core.rules import Feature, PathPatterns, Policy, SymbolRule

Symbols = Mapping[str, Collection[str]]


def lint_policy(policy: Policy, paths: Collection[str], symbols: Symbols, words: Collection[str]) -> tuple[str, ...]:
    """One sentence for each finding.

    `paths` are all files of the tree, `symbols` the symbols of each source file that is looked into, `words` the
    identifiers of those files.
    """
    return (
        *lint_alone(policy),
        *_idle_paths(policy, paths),
        *_idle_symbol_rules(policy, symbols, words),
        *_unjudged(policy, paths, symbols),
    )


def lint_alone(policy: Policy) -> tuple[str, ...]:
    """One sentence for each finding that the policy shows by itself."""
    return tuple(f"{finding.what}; {finding.fix}" for finding in lint_image(policy))


@dataclass(frozen=True, slots=True)
class ToFix:
    """What of a policy should be changed, and how."""

    what: str
    fix: str


def lint_image(policy: Policy) -> tuple[ToFix, ...]:
    """A finding where the image is named by its tag alone."""
    if policy.image.digest:
        return ()
    what = f"image: {policy.image} is pinned by its tag alone, so whoever may push that tag chooses what the hosts run"
    return (ToFix(f"{policy.source}: {what}", "set image.digest to what `docker buildx imagetools inspect` shows"),)


def lint_features(policy: Policy, verl_paths: Collection[str], verl: str) -> tuple[str, ...]:
    """One sentence for each file that the policy takes from verl and that is not there.

    `verl_paths` are all files of verl at a commit, which `verl` names.
    """
    named = [(f"feature {one.name}: {kind}", path) for one in policy.features for kind, path in _files_of(one)]
    named += [(f"family {one.name}: dummy_config", path) for one in policy.families for path in _dummy(one.checkpoint)]
    named += [("checkpoint: dummy_config", path) for path in _dummy(policy.checkpoint)]
    return tuple(f"{policy.source}: {what}: {verl} has no {path}" for what, path in named if path not in verl_paths)


def lint_jobs(jobs: Iterable[JobOutline], verl_paths: Collection[str], verl: str) -> tuple[str, ...]:
    """One sentence for each script or dummy config that planned jobs need and verl lacks: they would be Blocked."""
    lacking: dict[str, list[str]] = {}
    for job in jobs:
        for path in (job.script, *_dummy(job.checkpoint)):
            if not job.blocked and path not in verl_paths:
                lacking.setdefault(path, []).append(job.id)
    return tuple(f"{verl} has no {path}, so these jobs cannot run: {', '.join(ids)}." for path, ids in lacking.items())


def _files_of(feature: Feature) -> Iterator[tuple[str, str]]:
    if feature.script:
        yield "script", feature.script
    yield from (("dummy_config", path) for path in _dummy(feature.checkpoint))
    yield from (("shown_by", path) for path in feature.shown_by)


def _dummy(checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """The dummy config, where it is a file of verl: an absolute path is the site's own."""
    path = checkpoint.dummy_config if checkpoint else None
    return (path,) if path and not path.startswith("/") else ()


def _named(policy: Policy) -> Iterator[tuple[str, PathPatterns]]:
    yield from ((one.name, one.patterns) for one in policy.exemptions)
    yield from ((one.name, one.patterns) for one in policy.rules)


def _idle_paths(policy: Policy, paths: Collection[str]) -> Iterator[str]:
    for name, patterns in _named(policy):
        if not _meets_any(patterns, paths):
            yield f"{policy.source}: {name}: its paths meet no file of this commit"
    for family in policy.families:
        if not _meets_any(family.patterns, paths):
            yield f"{policy.source}: family {family.name}: its paths meet no file of this commit"


def _idle_symbol_rules(policy: Policy, symbols: Symbols, words: Collection[str]) -> Iterator[str]:
    for rule in policy.reach.rules if policy.reach else ():
        paths = [path for path in symbols if rule.paths is None or rule.paths.match(path)]
        if not paths:
            yield f"{policy.source}: {rule.name}: its paths meet no source file that is looked into"
        elif not _names_any(rule, paths, symbols):
            yield f"{policy.source}: {rule.name}: its symbols meet none below its paths"
        elif not _says_any(rule.words, words):
            yield f"{policy.source}: {rule.name}: its words stand nowhere in the sources"


def _names_any(rule: SymbolRule, paths: list[str], symbols: Symbols) -> bool:
    if rule.symbols is None or rule.through is not None or rule.imports is not None:
        return True
    return any(rule.symbols.match(name) for path in paths for name in symbols[path])


def _says_any(pattern: re.Pattern[str] | None, words: Collection[str]) -> bool:
    return pattern is None or any(map(pattern.match, words))


def _meets_any(patterns: PathPatterns, paths: Collection[str]) -> bool:
    return any(map(patterns.match, paths))


def _unjudged(policy: Policy, paths: Collection[str], symbols: Symbols) -> Iterator[str]:
    level = int(policy.unknown_level)
    for path in sorted(paths):
        if path not in symbols and not any(patterns.match(path) for _, patterns in _named(policy)):
            yield f"{policy.source}: {path}: nothing judges it, so a change of it asks for level {level}"

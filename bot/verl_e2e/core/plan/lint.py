"""Where a policy does not fit a tree: rules without effect, files without a rule, files that verl does not have."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.criteria.features import bears_name
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.known_defects import MOST_DAYS, Validity
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy

Symbols = Mapping[str, Collection[str]]


def lint_policy(
    policy: Policy,
    paths: Collection[str],
    symbols: Symbols,
    words: Collection[str],
) -> tuple[str, ...]:
    """One sentence for each finding.

    `paths` are all files of the tree, `symbols` the symbols of each source file that is looked into, `words` the
    identifiers of those files.
    """
    named = [(exemption.name, exemption.paths) for exemption in policy.exempt]
    named += [(rule.name, rule.paths) for rule in policy.rules]
    families = [(f"family {family.name}", family.paths) for family in policy.families]
    found = [
        f"{policy.source}: {name}: its paths meet no file of this commit"
        for name, patterns in (*named, *families)
        if not any(map(patterns.match, paths))
    ]
    # A Bridge test that the tree does not have is a limitation of every card.
    for test in policy.bridge_tests:
        file = test.partition("::")[0].rstrip("/")
        if file not in paths and not any(path.startswith(f"{file}/") for path in paths):
            found.append(f"{policy.source}: bridge_tests: this commit has no {file}; correct or remove it")
    level = int(policy.unknown.level)
    unjudged = (
        f"{policy.source}: {path}: nothing judges it, so a change of it asks for level {level}"
        for path in sorted(paths)
        if path not in symbols and not any(patterns.match(path) for _, patterns in named)
    )
    return (*lint_alone(policy), *found, *_lint_symbols(policy, symbols, words), *unjudged)


def lint_alone(policy: Policy) -> tuple[str, ...]:
    """One sentence for each finding that the policy shows by itself."""
    found = [f"{finding.what}; {finding.fix}" for finding in lint_image(policy)]
    # Features of families that no model of theirs has, and features of models that their families do not list.
    for family in policy.families:
        facts, model = policy.facts_of(family.checkpoint), family.checkpoint.model_id if family.checkpoint else ""
        where = f"{policy.source}: family {family.name}"
        found += [
            f"{where}: {model} has no {name}, so a change of the family's {name} cannot be shown"
            for name in family.features
            if not policy.facts_of(policy.checkpoint_for(family, (name,))).shows(name)
        ]
        found += [
            f"{where}: {model} declares {name}, which the family does not list under `features:`"
            for name in facts.features or ()
            if name not in family.features
        ]
    # Checkpoints for which the policy does not say how many GPUs they need, or what a run of them shows.
    for checkpoint in dict.fromkeys(model.checkpoint for model in policy.models):
        facts = policy.facts_of(checkpoint)
        where = f"{policy.source}: checkpoint {checkpoint.model_id}"
        if facts.weights_gib is None and facts.gpus is None:
            what = "neither `weights_gib:` nor `gpus:` is declared"
            found.append(f"{where}: {what}, so its jobs get the GPUs of a small model")
        if facts.features is None:
            found.append(f"{where}: no `features:` are declared, so whatever its family lists is taken to be there")
    return tuple(found)


def lint_quarantine(policy: Policy, today: date) -> tuple["ToFix", ...]:
    """Entries of `quarantine:` that do not count on a day, and why."""
    found: list[ToFix] = []
    for entry in policy.quarantine:
        what = f"{policy.source}: quarantine of {entry.cause_id} until {entry.until.isoformat()}"
        match entry.counts(today):
            case Validity.EXPIRED:
                found.append(ToFix(f"{what} has expired and no longer counts", f"remove it, see {entry.link}"))
            case Validity.TOO_FAR:
                fix = f"give a day until {(today + timedelta(days=MOST_DAYS)).isoformat()}"
                far = f"{what} does not count yet, for its last day is more than {MOST_DAYS} days away"
                found.append(ToFix(far, fix))
            case Validity.YES:
                continue
    return tuple(found)


def lint_defects(policy: Policy, objects: Mapping[str, str], today: date) -> tuple["ToFix", ...]:
    """Entries of `defects:` that do not count on a day, at the code with these objects, and why."""
    return tuple(
        ToFix(
            f"{policy.source}: the known defect {entry.name} no longer counts, for {why}",
            "run one of its jobs: remove the entry where it passes, else give it the new values and a later day",
        )
        for entry in policy.defects
        if (why := entry.ended(policy.verl.commit, objects, today))
    )


@dataclass(frozen=True, slots=True)
class ToFix:
    """What of a policy should be changed, and how."""

    what: str
    fix: str


def lint_image(policy: Policy) -> tuple[ToFix, ...]:
    """A finding where the image is named by its tag alone."""
    if policy.image.digest:
        return ()
    what = (
        f"image: {policy.image} is pinned by its tag alone, so anyone who may push that tag chooses what runs, and no "
        "verdict of another pull request is reused"
    )
    return (ToFix(f"{policy.source}: {what}", "set image.digest to what `docker buildx imagetools inspect` shows"),)


def lint_features(policy: Policy, verl_paths: Collection[str], verl: str) -> tuple[str, ...]:
    """One sentence for each file that the policy takes from verl and that is not there.

    `verl_paths` are all files of verl at a commit, which `verl` names.
    """
    named: list[tuple[str, str]] = []
    for feature in policy.features:
        where = f"feature {feature.name}"
        named += [(f"{where}: script", feature.script)] if feature.script else []
        named += [(f"{where}: dummy_config", path) for path in _dummy(feature.checkpoint)]
        named += [(f"{where}: shown_by", path) for path in feature.shown_by]
    named += [
        (f"family {family.name}: dummy_config", path)
        for family in policy.families
        for path in _dummy(family.checkpoint)
    ]
    named += [("checkpoint: dummy_config", path) for path in _dummy(policy.checkpoint)]
    return tuple(f"{policy.source}: {what}: {verl} has no {path}" for what, path in named if path not in verl_paths)


def lint_jobs(jobs: Iterable[JobOutline], verl_paths: Collection[str], verl: str) -> tuple[str, ...]:
    """One sentence for each script or dummy config that planned jobs need and verl does not have: they are Blocked."""
    missing: dict[str, list[str]] = {}
    for job in (job for job in jobs if job.consumer == VERL.name):
        for path in (job.script, *_dummy(job.checkpoint)):
            if not job.blocked and path not in verl_paths:
                missing.setdefault(path, []).append(job.id)
    return tuple(f"{verl} has no {path}, so these jobs cannot run: {', '.join(ids)}." for path, ids in missing.items())


def _dummy(checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """The dummy config, where it is a file of verl: an absolute path is the site's own."""
    path = checkpoint.dummy_config if checkpoint else None
    return (path,) if path and not path.startswith("/") else ()


def _lint_symbols(policy: Policy, symbols: Symbols, words: Collection[str]) -> Iterator[str]:
    """Rules that meet no symbol, and families with a checkpoint whose runs show no class that bears their name."""
    for rule in policy.reach.rules if policy.reach else ():
        paths = [path for path in symbols if rule.paths is None or rule.paths.match(path)]
        if not paths:
            yield f"{policy.source}: {rule.name}: its paths meet no source file that is looked into"
        elif (
            rule.symbols is not None
            and rule.through is None
            and rule.imports is None
            and not any(rule.symbols.match(name) for path in paths for name in symbols[path])
        ):
            yield f"{policy.source}: {rule.name}: its symbols meet none below its paths"
        elif rule.words is not None and not any(map(rule.words.match, words)):
            yield f"{policy.source}: {rule.name}: its words stand nowhere in the sources"
    for family in policy.families:
        inside = [name for path, names in symbols.items() if family.paths.match(path) for name in names]
        classes = [name for name in inside if name.endswith("Bridge") and "." not in name]
        # Level 4 cannot pass without one.
        if family.checkpoint and classes and not any(bears_name(name, family.name) for name in classes):
            shown = ", ".join(sorted(classes)[:3])
            what = f"none of its classes ({shown}) bears its name, so no run shows it"
            yield f"{policy.source}: family {family.name}: {what}"

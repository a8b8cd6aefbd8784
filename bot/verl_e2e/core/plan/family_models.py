"""The model of a family for a job: the named checkpoint, or the synthetic one where that has what is asked for."""

from collections.abc import Collection

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.plan.policy import Family, Policy


def checkpoint_for(family: Family, asked: Collection[str], policy: Policy) -> Checkpoint | None:
    """The checkpoint of a family for features that are asked for; None where the family has no model.

    A named checkpoint shows pretrained weights, so it stays unless the synthetic model has all that it has of these
    features, and more.
    """
    named = family.checkpoint
    missing = _missing(named, asked, policy)
    if family.named is None or not missing or family.made is None:
        return named
    made = family.made.checkpoint
    return made if _missing(made, asked, policy) < missing else named


def _missing(checkpoint: Checkpoint | None, asked: Collection[str], policy: Policy) -> frozenset[str]:
    """The features that a checkpoint is known not to have."""
    facts = policy.facts_of(checkpoint)
    return frozenset(feature for feature in asked if not facts.shows(feature))


def families_without_hosts(path: str, policy: Policy) -> tuple[str, ...]:
    """The families that a path belongs to, where no host can run any of them; empty where one can."""
    # Few families have no host, so most paths are held against the patterns of these alone.
    without = tuple(family.name for family in policy.families if family.uncoverable and family.paths.match(path))
    if without and any(not family.uncoverable and family.paths.match(path) for family in policy.families):
        return ()
    return without

"""A campaign of mutants against the planner: what changes reached or imported code is never planned as nothing.

    python -m tests.mutation.campaign --repo BRIDGE --base REV [--verl VERL --verl-ref REV] [--count N] [--seed N]

plans in this process on the objects of a git repository, prints the figures, and exits with 1 when a mutant survives.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.files import file_mutants
from tests.mutation.harmless import harmless_edits
from tests.mutation.mutants import Source
from tests.mutation.overlay import Edit, Overlay
from verl_e2e.app.plan_change import Planner
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.program import Node


@dataclass(slots=True)
class Figures:
    """How many edits of each kind were planned, and those that were planned as they should not be."""

    tried: Counter[str] = field(default_factory=Counter)
    survivors: list[tuple[str, str, str]] = field(default_factory=list)

    def count(self, kind: str, path: str, symbol: str, *, survived: bool) -> None:
        """Take one planned edit into account."""
        self.tried[kind] += 1
        if survived:
            self.survivors.append((kind, path, symbol))


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is mutated: the base commit of a repository, planned by a policy; `planner` reads through `overlay`."""

    overlay: Overlay
    planner: Planner
    policy: Policy

    def mutants(self, choose: random.Random) -> Iterator[tuple[str, str, str, Edit]]:
        """Mutants without end: kind, path, symbol and the files that differ."""
        reach = self.policy.reach
        assert reach is not None
        tree = self.planner.tree("base", self.policy)
        modules = sorted(name for name in tree.reach.imported if name in tree.program.paths)
        reached = sorted(node for node in tree.reach.steps if node.symbol and _is_function(tree.program.symbol(node)))
        aside = {
            node
            for node in reached
            if any(
                not exemption.unless_reached and exemption.paths.match(tree.program.paths[node.module])
                for exemption in self.policy.exempt
            )
        }
        reached = [node for node in reached if node not in aside]
        while True:
            node = choose.choice(reached)
            path = tree.program.paths[node.module]
            yield from self._of_function(node, path, choose)
            path = tree.program.paths[choose.choice(modules)]
            yield from self._of_import(path, choose)
            yield from file_mutants(path, self.overlay.text(path), choose)

    def _of_function(self, node: Node, path: str, choose: random.Random) -> Iterator[tuple[str, str, str, Edit]]:
        source = Source(self.overlay.text(path).decode())
        for mutant in source.of_function(node.symbol, choose, 4):
            yield mutant.operator, path, mutant.symbol, {path: mutant.text.encode()}

    def _of_import(self, path: str, choose: random.Random) -> Iterator[tuple[str, str, str, Edit]]:
        source = Source(self.overlay.text(path).decode())
        for mutant in source.of_import(choose, 3):
            yield f"import: {mutant.operator}", path, mutant.symbol, {path: mutant.text.encode()}

    def levels(self, edit: Edit) -> tuple[int, ...]:
        """The levels that an edit of the base is planned with."""
        self.overlay.edit = edit
        head = self.overlay.head
        return tuple(int(level) for level in self.planner.plan("base", head, self.policy).plan.levels)


def _is_function(symbol: object) -> bool:
    return getattr(symbol, "kind", "") in {"function", "method"}


def run(campaign: Campaign, *, count: int, seconds: float, seed: int, harmless: int = 0) -> tuple[Figures, Figures]:
    """Plan so many mutants, and so many edits that change nothing, or as many as the time allows."""
    choose = random.Random(seed)
    started = time.monotonic()
    found, quiet = Figures(), Figures()
    for kind, path, symbol, edit in campaign.mutants(choose):
        if sum(found.tried.values()) >= count or time.monotonic() - started > seconds:
            break
        found.count(kind, path, symbol, survived=not campaign.levels(edit))
    tree = campaign.planner.tree("base", campaign.policy)
    paths = sorted(tree.program.paths[name] for name in tree.reach.imported if name in tree.program.paths)
    while sum(quiet.tried.values()) < harmless and time.monotonic() - started <= 1.5 * seconds:
        path = choose.choice(paths)
        for kind, text in harmless_edits(campaign.overlay.text(path).decode(), choose):
            quiet.count(kind, path, "", survived=bool(campaign.levels({path: text.encode()})))
    return found, quiet


def _tell(found: Figures, quiet: Figures) -> str:
    rows = [f"{kind:45} {number}" for kind, number in sorted(found.tried.items())]
    rows.append(f"mutants {sum(found.tried.values())}, planned as nothing {len(found.survivors)}")
    rows += [f"  survived: {kind}: {path} {symbol}" for kind, path, symbol in found.survivors]
    rows.append(f"edits without effect {sum(quiet.tried.values())}, asked for a level {len(quiet.survivors)}")
    rows += [f"  asked: {kind}: {path}" for kind, path, _ in quiet.survivors]
    return "\n".join(rows)


def main() -> int:
    from verl_e2e.adapters.files.caches import SummaryCache
    from verl_e2e.config.policy import packaged_policy
    from verl_e2e.git.repository import GitRepository
    from verl_e2e.wiring.planning import PlanRequest, uses_for

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--verl", type=Path)
    parser.add_argument("--verl-ref")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--harmless", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    policy = packaged_policy()
    overlay = Overlay(GitRepository(given.repo), given.base)
    uses = uses_for(PlanRequest(given.repo, given.verl, given.verl_ref), policy)
    # Choosing Bridge tests changes no level, and takes most of a plan's time.
    policy = policy.model_copy(update={"bridge_test_choice": None})
    campaign = Campaign(overlay, Planner(overlay, uses, SummaryCache(None)), policy)
    found, quiet = run(campaign, count=given.count, seconds=given.seconds, seed=given.seed, harmless=given.harmless)
    sys.stdout.write(f"{_tell(found, quiet)}\n")
    return 1 if found.survivors else 0


if __name__ == "__main__":
    sys.exit(main())

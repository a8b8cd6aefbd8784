"""Carry a pass forward to a merge group where nothing that the job can reach differs: no GPU learns anything new."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bot.core.jobs import Job
from bot.core.judging.outcome import Result
from bot.core.pulls.job_order import portable
from bot.core.pulls.ledger import Run, RunState, run_key
from bot.core.pulls.pull import MergeGroup, Target
from bot.core.pulls.wanted import WantedJob, runs_of
from bot.core.reach.program import module_name
from bot.core.rules import Policy
from bot.handlers.app_rooms import AppRooms
from bot.handlers.planning import Planner
from bot.ports import SourceTrees


def carry_forward(
    target: Target, policy: Policy, wanted: tuple[WantedJob, ...], runs: tuple[Run, ...], rooms: AppRooms
) -> tuple[Run, ...]:
    """The runs with those that a merge group takes over from the pull requests inside it."""
    if not isinstance(target, MergeGroup) or target.destroyed:
        return runs
    passed = [one for number in target.pulls for one in rooms.ledger.runs(target.repository, number=number)]
    passed = [one for one in passed if one.required and _passed(one)]
    lacking = [one for one in wanted if one.required and not runs_of(one, target.head_sha, runs)]
    found = list(runs)
    reaches: dict[str, _Reaches] = {}
    for one in lacking:
        origin = next((run for run in reversed(passed) if _is_like(run, one)), None)
        if origin is None:
            continue
        there = reaches.setdefault(origin.head_sha, _Reaches(target, origin.head_sha, policy, rooms))
        if there.equal(one.job):
            found.append(rooms.ledger.put_run(_carried(origin, one, target, rooms)))
    return tuple(found)


def _passed(run: Run) -> bool:
    return run.state is RunState.FINISHED and run.result is Result.PASS and not run.carried_from


def _is_like(run: Run, wanted: WantedJob) -> bool:
    """Whether a run's job differs from the wanted one in the commit of Bridge alone."""
    if run.job is None or wanted.job is None or run.job_id != wanted.id:
        return False
    old, new = portable(run.job), portable(wanted.job)
    return old.model_copy(update={"bridge": new.bridge}) == new


def _carried(origin: Run, wanted: WantedJob, target: MergeGroup, rooms: AppRooms) -> Run:
    now = rooms.clock.now()
    return origin.model_copy(
        update={
            "key": run_key(target.repository, target.head_sha, wanted.digest, 1),
            "number": None,
            "head_sha": target.head_sha,
            "job_digest": wanted.digest,
            "attempt": 1,
            "carried_from": origin.head_sha,
            "handle": "",
            "asked_by": "",
            "gpu_minutes": 0.0,
            "created": now,
            "updated": now,
            "job": wanted.job,
        }
    )


@dataclass(slots=True)
class _Reaches:
    """Holds what a run can reach at a head against the same at the merge group's."""

    target: MergeGroup
    origin_sha: str
    policy: Policy
    rooms: AppRooms
    _digests: dict[tuple[str, tuple[str, ...]], str] | None = None

    def equal(self, job: Job | None) -> bool:
        """Whether nothing that a run of this job can reach differs; false where that is not known."""
        if job is None:
            return False
        here = self.rooms.changes(self.target)
        there = self.rooms.changes(replace(self.target, head_sha=self.origin_sha))
        if self._submodules_differ(there):
            return False
        digest = reach_digest(here, self.target.head_sha, self.policy, job, self.rooms)
        return bool(digest) and digest == reach_digest(there, self.origin_sha, self.policy, job, self.rooms)

    def _submodules_differ(self, trees: SourceTrees) -> bool:
        """Whether one side moved a submodule since both were one; then it may lie elsewhere now."""
        ways = ((self.origin_sha, self.target.head_sha), (self.target.head_sha, self.origin_sha))
        return any(one.submodule is not None for old, new in ways for one in trees.change(old, new).paths)


def reach_digest(trees: SourceTrees, revision: str, policy: Policy, job: Job, rooms: AppRooms) -> str:
    """SHA-256 over every file, with its content's id, that a run of the job can reach at a revision.

    Of source files those that verl's entries import, of others all that the policy does not set aside, and the tests
    that the job runs. Empty where an imported file could not be read: then reach is not known.
    """
    files = trees.tree(revision)
    imported = _imported(trees, revision, policy, rooms)
    if imported is None:
        return ""
    reached = sorted(_reached(files, policy, job, imported))
    return hashlib.sha256(
        "\0".join(f"{path}\0{files[path]}" for path in reached).encode("utf-8", "replace")
    ).hexdigest()


def _imported(trees: SourceTrees, revision: str, policy: Policy, rooms: AppRooms) -> frozenset[str] | None:
    if policy.reach is None:
        return frozenset()
    tree = Planner(trees, rooms.uses, rooms.summaries).tree(revision, policy)
    return None if tree.unread else frozenset(tree.reach.imported)


def _reached(files: Iterable[str], policy: Policy, job: Job, imported: frozenset[str]) -> Iterator[str]:
    roots = policy.reach.roots if policy.reach is not None else ()
    tests = {test.partition("::")[0] for test in job.bridge_tests}
    for path in files:
        name = module_name(path, roots) if roots else None
        if name is not None:
            counts = name in imported
        else:
            aside = any(not one.unless_reached and one.patterns.match(path) for one in policy.exemptions)
            counts = not aside or path in tests or path.endswith("/conftest.py")
        if counts:
            yield path

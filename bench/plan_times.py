"""Time the plans of the last commits of a repository in one running process, and compare the plans of two versions.

python bench/plan_times.py --bridge BARE_DIR --head SHA --verl BARE_DIR --verl-ref SHA [--cache DIR] [--out DIR]

Each commit is planned against its first parent, oldest first, so that a plan never finds what a later commit brought.
With `--out` each plan is written as JSON with its notes and findings: `diff -r` of two such folders compares two
versions of the program. With `--profile` the functions that took longest are printed.
"""

import argparse
import cProfile
import json
import pstats
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.app.plan_change import Planned
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.report.plan_text import render_contract, render_plan_text
from verl_e2e.git.program import Git
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import PlanRequest, collect_seldom, planner_of, with_details


@dataclass(frozen=True)
class Row:
    """What one plan took: wall seconds, processor seconds of this process, git processes."""

    commit: str
    wall_s: float
    cpu_s: float
    git_processes: int
    levels: tuple[int, ...]


def main() -> None:
    """Plan the commits and print the times."""
    options = _options()
    order = PlanRequest(options.bridge, options.verl, options.verl_ref, cache=options.cache)
    repository, policy, started = GitRepository(options.bridge), packaged_policy(), []
    _count_git(started)
    planner = planner_of(repository, order, policy, options.head)
    collect_seldom()
    commits = repository.first_parents(options.head, options.count + options.warm_up)[::-1]
    profile = cProfile.Profile() if options.profile else None
    rows = []
    for position, commit in enumerate(commits):
        measured = position >= options.warm_up
        if profile is not None and measured:
            profile.enable()
        before = len(started), time.perf_counter(), time.process_time()
        planned = planner.plan(commit.parent, commit.sha, policy)
        wall_s, cpu_s = time.perf_counter() - before[1], time.process_time() - before[2]
        if profile is not None:
            profile.disable()
        git_processes = len(started) - before[0]
        if measured:
            levels = tuple(int(level) for level in planned.plan.levels)
            rows.append(Row(commit.sha, wall_s, cpu_s, git_processes, levels))
        if options.out is not None:
            _write(with_details(planned, order), options.out / f"{commit.sha}.txt")
    _show("all", rows)
    _show("that need a level", [row for row in rows if row.levels])
    for row in sorted(rows, key=lambda row: -row.wall_s)[: options.slowest]:
        print(f"  {row.commit[:12]} {row.wall_s:.3f} s, cpu {row.cpu_s:.3f} s, git {row.git_processes}, {row.levels}")
    if profile is not None:
        pstats.Stats(profile, stream=sys.stdout).sort_stats(options.profile).print_stats(60)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--verl", type=Path)
    parser.add_argument("--verl-ref")
    parser.add_argument("--cache", type=Path, help="the folder of what is kept; default: nothing is")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=1, help="commits before those, planned and not measured")
    parser.add_argument("--out", type=Path, help="a folder for the plans")
    parser.add_argument("--slowest", type=int, default=8, help="how many of the slowest to list")
    parser.add_argument("--profile", choices=("tottime", "cumtime"), help="print a profile, sorted so")
    return parser.parse_args()


def _count_git(started: list[tuple[str, ...]]) -> None:
    """Note each git process that is started."""
    run = Git.run

    def counted(self: Git, *arguments: str, **others: object) -> object:
        started.append(arguments)
        return run(self, *arguments, **others)  # type: ignore[arg-type]

    Git.run = counted  # type: ignore[method-assign, assignment]


def _write(planned: Planned, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = (plan_json(planned.plan), json.dumps(planned.plan.notes, indent=1), render_contract(planned.contract))
    file.write_text("\n".join((*parts, render_plan_text(planned.plan))), encoding="utf-8")


def _show(name: str, rows: Iterable[Row]) -> None:
    rows = list(rows)
    if not rows:
        return
    wall, cpu = sorted(row.wall_s for row in rows), sorted(row.cpu_s for row in rows)
    git = sorted(row.git_processes for row in rows)
    print(f"{name}: {len(rows)} plans")
    for kind, values in (("wall", wall), ("cpu", cpu)):
        ninety = values[int(0.9 * (len(values) - 1))]
        print(f"  {kind} median {statistics.median(values):.3f} s, 90 % {ninety:.3f} s, worst {values[-1]:.3f} s")
    print(f"  git processes median {statistics.median(git):g}, worst {git[-1]}")


if __name__ == "__main__":
    main()

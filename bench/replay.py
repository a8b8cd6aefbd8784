"""Replay the last merged pull requests of a repository push by push, and add up the GPU minutes of ways to test them.

    python bench/replay.py --bridge BARE_DIR --verl BARE_DIR --out FILE [--count 300] [--cache DIR] [--part 1/2]
    python bench/replay.py --show FILE...

Each commit of the main line is one squash-merged pull request. Its pushes are simulated, backwards from the merge:

    72 h  opened on main as it was then
    60 h  a comment at the end of the first file that it changes
    48 h  one at the end of a test file that it changes, or of a new one
    36 h  a line at the end of README.md
    24 h  these three taken back, rebased on main as it was then
     1 h  rebased on main as it was then
     0 h  the group of the merge queue: another commit of the tree that was merged

A rebase applies the pull request's own difference to the other base; where that conflicts, the base stays the one of
the merge. Which jobs run, and which verdicts are reused, is decided by the program itself: jobs and keys by
`RequiredJobs`, verdicts by `VerdictReuse`. Every run passes, as the change was merged. Verdicts of other pull requests,
and those that would have to be judged again for another change, are not counted.
A pull request that needs no job at its merge is planned once, and stands with that for all of its pushes.
Nothing here depends on the clock or on chance: the same repository gives the same figures.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from verl_e2e.adapters.store import SqlLedger
from verl_e2e.adapters.store.database import open_store
from verl_e2e.app.analysis import DirectAnalysis
from verl_e2e.app.plan_change import Planned, Planner
from verl_e2e.app.required_jobs import JobSources, RequiredJobs, VerdictReuse
from verl_e2e.config.policy import packaged_policy
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.forge import MergeGroup, Pull, PullRef, PullState, Target
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.core.pulls.wanted_jobs import WantedJob, runs_of, same_work
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import PlanRequest, collect_seldom, planner_of

REPOSITORY = "NVIDIA-NeMo/Megatron-Bridge"
SOURCES = ("src/", "3rdparty/")
NOTE = b"\n# reviewed\n"
# With `--near`: how many commits of the main line lie between the base and the merge.
COMMITS = {"open": 4, "own file": 4, "tests": 4, "docs": 4, "rebase": 2, "rebase again": 1}
HOURS = {"open": 72, "own file": 60, "tests": 48, "docs": 36, "rebase": 24, "rebase again": 1, "merge group": 0}


@dataclass(frozen=True)
class Push:
    """A head of a pull request on its base."""

    kind: str
    base: str
    head: str


@dataclass
class Row:
    """One pull request: GPU minutes of all its pushes."""

    commit: str
    number: int
    everything: int = 0
    level_0: int = 0
    planned: int = 0
    reused: int = 0
    rebased: bool = True
    # GPU minutes of what ran on the head that only changes the pull request's own source.
    own_file: int = 0
    # GPU minutes of what ran, by why no verdict counted.
    causes: dict[str, int] = field(default_factory=dict)
    # Jobs that were wanted, and those of them that ran, by kind of push.
    wanted: dict[str, int] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)


class Workshop:
    """A repository that borrows the objects of another one, in which heads are made."""

    def __init__(self, bridge: Path, folder: Path) -> None:
        self.path = folder / "replay.git"
        self._index = folder / "index"
        subprocess.run(["git", "init", "--quiet", "--bare", str(self.path)], check=True)
        (self.path / "objects/info/alternates").write_text(f"{bridge.resolve() / 'objects'}\n")

    def git(self, *arguments: str, data: bytes = b"") -> str:
        """The output of a command; CalledProcessError."""
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _IDENTITY.items()}
        environment = {**os.environ, **who, "GIT_INDEX_FILE": str(self._index)}
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, check=True, env=environment)
        return done.stdout.decode().strip()

    def commit(self, tree: str, *parents: str, message: str = "replay") -> str:
        """A commit of a tree."""
        named = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", tree, *named, "-m", message)

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        return self.git("rev-parse", f"{commit}^{{tree}}")

    def moved(self, parent: str, commit: str, base: str) -> str | None:
        """The tree of a commit's own difference on another base, None where it conflicts."""
        if parent == base:
            return self.tree_of(commit)
        root = self.commit(self.tree_of(parent))
        sides = [self.commit(self.tree_of(side), root) for side in (base, commit)]
        try:
            return self.git("merge-tree", "--write-tree", *sides).splitlines()[0]
        except subprocess.CalledProcessError:
            return None

    def with_note(self, tree: str, path: str) -> str:
        """The tree with a comment at the end of a file, which need not be there."""
        self.git("read-tree", tree)
        known = self.git("ls-tree", tree, "--", path)
        mode = known.split()[0] if known else "100644"
        before = self.git("cat-file", "blob", known.split()[2]).encode() if known else b""
        blob = self.git("hash-object", "-w", "--stdin", data=before + NOTE)
        self.git("update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}")
        return self.git("write-tree")


_IDENTITY = {"NAME": "replay", "EMAIL": "replay@example.invalid", "DATE": "2026-01-01T00:00:00Z"}


class Main:
    """The main line, by time."""

    def __init__(self, workshop: Workshop, head: str, count: int) -> None:
        # Enough before them for the bases of the oldest.
        output = workshop.git("log", "--first-parent", f"-{count + 200}", "--format=%H %P %ct %s", head)
        rows = [re.fullmatch(r"(\w{40}) (\w{40})[ \w]* (\d{9,10}) (.*)", line) for line in output.splitlines()]
        self.rows = [(row[1], row[2], int(row[3]), row[4]) for row in rows if row is not None]

    def before(self, commit: str, count: int) -> str:
        """The commit so many places before another one."""
        shas = [row[0] for row in self.rows]
        return shas[shas.index(commit) + count] if commit in shas else commit

    def at(self, before: str, seconds: int) -> str:
        """The newest commit before another one that is at least as old as a time."""
        shas = [row[0] for row in self.rows]
        later = self.rows[shas.index(before) :] if before in shas else []
        return next((sha for sha, _, when, _ in later if when <= seconds), before)


def pushes(
    workshop: Workshop, main: Main, row: tuple[str, str, int, str], *, near: bool = False
) -> tuple[list[Push], bool]:
    """The heads of a pull request, and whether it could be moved to the older bases."""
    commit, parent, when, _ = row
    bases = {kind: main.at(parent, when - hours * 3_600) for kind, hours in HOURS.items()}
    if near:
        bases = {kind: main.before(parent, COMMITS.get(kind, 0)) for kind in HOURS}
    trees = {kind: workshop.moved(parent, commit, bases[kind]) for kind in ("open", "rebase", "rebase again")}
    movable = all(trees.values())
    if not movable:
        bases, trees = dict.fromkeys(HOURS, parent), dict.fromkeys(trees, workshop.tree_of(commit))
    changed = workshop.git("diff-tree", "-r", "--name-only", "--diff-filter=AM", parent, commit).splitlines()
    own = next((path for path in changed if path.startswith("src/") and path.endswith(".py")), None)
    test = next((path for path in changed if path.startswith("tests/") and path.endswith(".py")), None)
    tree = trees["open"] or ""
    found = [("open", bases["open"], tree)]
    for kind, path in (
        ("own file", own or next(iter(changed), "NOTE")),
        ("tests", test or "tests/unit_tests/test_replay.py"),
        ("docs", "README.md"),
    ):
        tree = workshop.with_note(tree, path)
        found.append((kind, bases["open"], tree))
    found += [(kind, bases[kind], trees[kind] or "") for kind in ("rebase", "rebase again")]
    heads = [Push(kind, base, workshop.commit(made, base, message=kind)) for kind, base, made in found]
    group = workshop.commit(workshop.tree_of(commit), parent, message="merge group")
    return [*heads, Push("merge group", parent, group)], movable


class Clock:
    """The time of the push that is looked at."""

    def __init__(self) -> None:
        self.at = datetime.fromisoformat("2026-01-01T00:00:00+00:00")

    def now(self) -> datetime:
        """That time."""
        return self.at

    def monotonic(self) -> float:
        """The same in seconds."""
        return self.at.timestamp()


class PlannedOnce(DirectAnalysis):
    """Plans each pair of trees once: the plan of a merge group is that of the rebase before it, at another commit."""

    __slots__ = ()

    def plan(self, target: Target, policy: Policy) -> Planned:
        """The plan of a target."""
        key = tuple(WORKSHOP[0].tree_of(commit) for commit in (target.base_sha, target.head_sha))
        if key not in PLANS:
            PLANS.clear()
            PLANS[key] = PLANNER[0].plan(target.base_sha, target.head_sha, policy)
        found = PLANS[key]
        head = target.head_sha
        return replace(found, plan=replace(found.plan, head=head), change=replace(found.change, head=head))

    def judge_again(self, run: Run, job: Job, folder: Path) -> None:
        """Nothing: no run left a folder."""
        del run, job, folder


WORKSHOP: list[Workshop] = []
PLANNER: list[Planner] = []
PLANS: dict[tuple[str, ...], Planned] = {}


def main() -> None:
    """Replay, and print the figures."""
    given = _options()
    if given.show:
        _show(_read(given.show))
        return
    part, parts = map(int, given.part.split("/"))
    collect_seldom()
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(given.bridge, Path(folder))
        repository, policy = GitRepository(workshop.path), packaged_policy()
        request = PlanRequest(workshop.path, given.verl, policy.verl.commit, cache=given.cache)
        head = GitRepository(given.bridge).resolve(given.head)
        line = Main(workshop, head, given.count)
        WORKSHOP.append(workshop)
        PLANNER.append(planner_of(repository, request, policy))
        verl = GitRepository(given.verl)
        site = load_profile("default", {"home": "/home/runner"})
        sources = JobSources(lambda _: verl, site, program="replay")
        rows, store = [], open_store(f"sqlite:///{folder}/ledger.sqlite")
        known = {row.commit: row for row in _read([given.out] if given.out.exists() else [])}
        for row in line.rows[: given.count][part - 1 :: parts]:
            rows.append(
                known.get(row[0])
                or _replayed(row, line, policy, sources, SqlLedger(store), Path(folder), near=given.near)
            )
            given.out.write_text("".join(f"{json.dumps(asdict(made))}\n" for made in rows))
        store.close()
    _show(rows)


def _read(files: list[Path]) -> list[Row]:
    lines = (line for file in files for line in file.read_text().splitlines())
    return [Row(**json.loads(line)) for line in lines]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bridge", type=Path)
    parser.add_argument("--verl", type=Path)
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--cache", type=Path, help="the folder of what planning keeps")
    parser.add_argument("--near", action="store_true", help="bases 4, 2 and 1 commits before the merge, not by time")
    parser.add_argument("--part", default="1/1", help="the first of two parts is 1/2")
    parser.add_argument(
        "--out", type=Path, help="a file for one line of JSON for each pull request; lines that it has are kept"
    )
    parser.add_argument("--show", type=Path, nargs="*", help="add up such files, and replay nothing")
    return parser.parse_args()


def _replayed(
    row: tuple[str, str, int, str],
    line: Main,
    policy: Policy,
    sources: JobSources,
    ledger: SqlLedger,
    folder: Path,
    *,
    near: bool,
) -> Row:
    """One pull request."""
    workshop = WORKSHOP[0]
    named = re.search(r"\(#(\d+)\)$", row[3])
    made = Row(row[0], int(named[1]) if named else 1)
    repository = GitRepository(workshop.path)
    analysis: Any = PlannedOnce(lambda _: repository, PLANNER[0]._uses, PLANNER[0]._summaries, folders=None)  # type: ignore[arg-type]
    clock = Clock()
    jobs = RequiredJobs(analysis, lambda _: repository, sources, ledger)
    reuse = VerdictReuse(analysis, folder / "runs", clock, ledger)
    base, head = row[1], row[0]
    if not jobs.prepare(_target(Push("open", base, head), made.number), policy, ()).wanted:
        _add_baselines(made, policy, len(HOURS))
        return made
    heads, made.rebased = pushes(workshop, line, row, near=near)
    merged = datetime.fromtimestamp(row[2], clock.at.tzinfo)
    wanted: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    for push in heads:
        clock.at = merged - timedelta(hours=HOURS[push.kind])
        target = _target(push, made.number)
        prepared = jobs.prepare(target, policy, ())
        _add_baselines(made, policy, 1)
        complete = [job for job in prepared.wanted if job.job is not None]
        missing: list[WantedJob] = []
        # Jobs that rely on the Bridge tests of another one take verdicts over once those passed.
        for due in ([job for job in complete if not job.tested_by], [job for job in complete if job.tested_by]):
            known = ledger.runs(REPOSITORY, number=made.number)
            known = (*known, *ledger.runs(REPOSITORY, head_sha=target.head_sha))
            runs = reuse.with_reused(target, policy, prepared, (), known)
            for job in due:
                if not runs_of(job, target.head_sha, runs):
                    missing.append(job)
                    cause = _cause(job, ledger.runs(REPOSITORY, number=made.number))
                    made.causes[cause] = made.causes.get(cause, 0) + job.gpu_minutes
                    ledger.put_run(_passed(job, target.head_sha, made.number, clock.at))
        wanted[push.kind], ran[push.kind] = len(complete), len(missing)
        made.planned += sum(job.gpu_minutes for job in complete)
        made.reused += sum(job.gpu_minutes for job in missing)
        if push.kind == "own file":
            made.own_file += sum(job.gpu_minutes for job in complete)
    made.wanted, made.ran = dict(wanted), dict(ran)
    return made


def _add_baselines(made: Row, policy: Policy, count: int) -> None:
    """What the two other ways take for so many pushes of the plan that was made last."""
    found = next(iter(PLANS.values()))
    every = plan(found.change, policy, tuple(Level), found.effects)
    made.everything += count * sum(job.gpu_minutes for job in every.jobs)
    if any(name.startswith(SOURCES) for name in found.change.names()):
        made.level_0 += count * sum(job.gpu_minutes for job in every.jobs if job.id == "0-lora-ddp")


def _target(push: Push, number: int) -> Target:
    if push.kind == "merge group":
        return MergeGroup(REPOSITORY, "main", push.base, push.head, (number,))
    ref = PullRef(REPOSITORY, number)
    return Pull(ref, "main", push.base, push.head, REPOSITORY, "ann", "MEMBER", draft=False, state=PullState.OPEN)


def _cause(job: WantedJob, runs: tuple[Run, ...]) -> str:
    """Why no verdict counted for a job."""
    before = [run.job for run in runs if run.job_id == job.id and run.job is not None]
    if not before or job.job is None:
        return "no run before"
    if not any(same_work(job.job, known) for known in before):
        return "another job"
    return "what it can read differs"


def _passed(job: WantedJob, head: str, number: int, at: datetime) -> Run:
    return Run(
        key=run_key(REPOSITORY, head, job.digest, 1),
        repository=REPOSITORY,
        number=number,
        head_sha=head,
        job_id=job.id,
        job_digest=job.digest,
        state=RunState.FINISHED,
        result=Result.PASS,
        reuse_key=job.reuse_key,
        created=at,
        updated=at,
        job=job.job,
    )


def _show(rows: list[Row]) -> None:
    totals: Mapping[str, int] = {name: sum(getattr(row, name) for row in rows) for name in _TOTALS}
    print(f"{len(rows)} pull requests, {sum(len(HOURS) for row in rows)} heads")
    print(f"  not moved to an older base, because that conflicts: {sum(not row.rebased for row in rows)}")
    print(f"  with a required job: {sum(any(row.wanted.values()) for row in rows)}")
    for name, text in _TOTALS.items():
        print(f"  {text}: {totals[name]:,} GPU minutes")
    for name in ("everything", "level_0"):
        print(f"  of {_TOTALS[name]}: {totals['reused'] / max(totals[name], 1):.3f}")
    for kind in HOURS:
        wanted, ran = (sum(part.get(kind, 0) for part in parts) for parts in _parts(rows))
        print(f"  {kind}: {wanted} jobs wanted, {ran} ran")
    own = sum(row.own_file for row in rows)
    print(f"  planned jobs on the heads that change their own file: {own:,} GPU minutes")
    causes: Counter[str] = sum((Counter(row.causes) for row in rows), Counter())
    for cause, minutes in causes.most_common():
        print(f"  ran because {cause}: {minutes:,} GPU minutes")


_TOTALS = {
    "everything": "every job of every level on every push",
    "level_0": "level 0 on every push that changes sources",
    "planned": "planned jobs on every push",
    "reused": "planned jobs that have no verdict yet",
}


def _parts(rows: list[Row]) -> Iterator[list[dict[str, int]]]:
    yield [row.wanted for row in rows]
    yield [row.ran for row in rows]


if __name__ == "__main__":
    main()

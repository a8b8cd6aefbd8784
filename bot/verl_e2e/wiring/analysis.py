"""What strangers wrote is read in child processes: the service's end, and the child's."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.adapters.files.run_folder import public_keys
from verl_e2e.adapters.github.workflows import unpack_archive
from verl_e2e.adapters.limited import LimitedProcesses, StepError, StepRefusedError, WorkLimits
from verl_e2e.adapters.markdown import SHORT_COMMENT, command_lines
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.analysis import Analysis, DirectAnalysis, Judged
from verl_e2e.app.plan_change import Planned
from verl_e2e.config.maps import packaged_uses
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.related import Bands
from verl_e2e.core.plan.explain import Explanation
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import PREFIX, CommandLine
from verl_e2e.core.pulls.forge import Annotation, Pull, Target
from verl_e2e.core.pulls.job_order import megatron_lm_of
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.ports import ForgeError
from verl_e2e.wiring.planning import collect_seldom

_NO_CHECKOUT = "the service plans without a verl checkout"
_ENTRY = "verl_e2e.wiring.analysis:child"
_PLANNING = WorkLimits(memory_bytes=1 << 30, cpu_s=30, wall_s=90.0)
# How long a fork's plan waits for another fork's before its look is put off.
_FORK_PATIENCE_S = 2.0
# A log may be long: what is read of it has limits of its own, see `verl_e2e.adapters.files.logs`.
_JUDGING = WorkLimits(memory_bytes=2 << 30, cpu_s=300, wall_s=600.0)
_UNPACKING = WorkLimits(memory_bytes=512 << 20, cpu_s=120, wall_s=300.0)
_HEARING = WorkLimits(memory_bytes=512 << 20, cpu_s=10, wall_s=20.0)


class ServiceAnalysis(Analysis, Protocol):
    """All that the service asks of text and archives that strangers made."""

    def unpack(self, archive: Path, into: Path, *, limit: int) -> None:
        """Unpack an archive into the new folder `into`; ForgeError."""
        ...

    def commands(self, body: str) -> tuple[CommandLine, ...]:
        """The command lines of a comment."""
        ...


@dataclass(frozen=True, slots=True)
class KeptFolders:
    """Where the service keeps what children read; it is sent to each of them."""

    mirrors: Path
    """The folder of the clones."""
    web_url: str
    """Where repositories are cloned from."""
    summaries: Path
    """The folder of the kept summaries."""
    recorders: Path | None = None
    """The public keys of the recorders that must have signed a run folder; None where GitHub attests it instead."""


class LimitedAnalysis:
    """An `Analysis` in child processes: planning, judging and unpacking two at a time, comments in addition.

    Of forks one is planned at a time, and where others wait their looks are put off: so a place and the workers are
    left for the repository's own branches, however many strangers push what takes long.
    """

    def __init__(
        self, place: Path, web_url: str, summaries: Path, mirrors: Mirrors, *, recorders: Path | None = None
    ) -> None:
        self._place = KeptFolders(place, web_url, summaries, recorders)
        self._mirrors = mirrors
        self._processes = LimitedProcesses(_ENTRY, at_once=2)
        self._forks = threading.BoundedSemaphore(1)
        # What people say never waits behind a plan.
        self._comments = LimitedProcesses(_ENTRY, at_once=1)

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None, megatron_lm: str = "") -> Planned:
        """The plan of a target; a passing ForgeError while the plan of another fork takes its time."""
        fork = isinstance(target, Pull) and target.from_fork
        if fork and not self._forks.acquire(timeout=_FORK_PATIENCE_S):
            raise ForgeError("Other pull requests of forks are being planned", passing=True, wait_s=_FORK_PATIENCE_S)
        try:
            found: Planned = self._asked("plan", target, (target, policy, cells, megatron_lm), policy)
            return found
        finally:
            if fork:
                self._forks.release()

    def explain(self, target: Target, policy: Policy, path: str, symbol: str) -> tuple[Explanation, ...]:
        found: tuple[Explanation, ...] = self._asked("explain", target, (target, policy, path, symbol), policy)
        return found

    def annotate(self, target: Target, plan: Plan, verdict: Verdict) -> tuple[Annotation, ...]:
        found: tuple[Annotation, ...] = self._asked("annotate", target, (target, plan, verdict))
        return found

    def judge(self, run: Run, folder: Path) -> Judged:
        found: Judged = self._processes.run("judge", (self._place, (run, folder.absolute())), _JUDGING, _nothing)
        return found

    def judge_rehearsal(self, target: Target, run: Run, folder: Path) -> Judged:
        argument = (self._place, (target, run, folder.absolute()))
        answers = self._mirrors.answers([target], megatron_lm_of(run.rehearsal) if run.rehearsal else "")
        found: Judged = self._processes.run("judge_rehearsal", argument, _JUDGING, answers)
        return found

    def judge_again(self, run: Run, job: Job, folder: Path) -> Judged | None:
        argument = (self._place, (run, job, folder.absolute()))
        found: Judged | None = self._processes.run("judge_again", argument, _JUDGING, _nothing)
        return found

    def unpack(self, archive: Path, into: Path, *, limit: int) -> None:
        argument = (archive.absolute(), into.absolute(), limit)
        try:
            self._processes.run("unpack", (self._place, argument), _UNPACKING, _nothing)
        except LimitError as error:
            raise ForgeError(f"The archive cannot be unpacked: {error}") from None
        except (StepError, StepRefusedError) as error:
            raise ForgeError(str(error)) from error
        finally:
            # What a process left that was ended in the middle.
            for part in into.parent.glob(f".{into.name}.*"):
                shutil.rmtree(part, ignore_errors=True)

    def commands(self, body: str) -> tuple[CommandLine, ...]:
        """The command lines of a comment; none in one that takes too much to be understood."""
        if PREFIX not in body.lower() or len(body) <= SHORT_COMMENT:
            return command_lines(body)
        try:
            found: tuple[CommandLine, ...] = self._comments.run("commands", (self._place, (body,)), _HEARING, _nothing)
        except LimitError:
            return ()
        return found

    def _asked(self, name: str, target: Target, argument: tuple[object, ...], policy: Policy | None = None) -> Any:
        answers = self._mirrors.answers([target], policy.megatron_lm.repository if policy is not None else "")
        return self._processes.run(name, (self._place, argument), _PLANNING, answers)


def child(name: str, argument: tuple[KeptFolders, tuple[Any, ...]], ask: Callable[[object], Any]) -> object:
    """What a child process does: one question of `LimitedAnalysis`, by its name."""
    collect_seldom()
    place, values = argument
    match name:
        case "unpack":
            archive, into, limit = values
            unpack_archive(archive, into, limit=limit)
            return None
        case "commands":
            return command_lines(*values)
        case "plan" | "explain" | "annotate" | "judge" | "judge_rehearsal" | "judge_again":
            mirrors = Mirrors(place.mirrors, place.web_url, ask=ask)
            # Bands of our own, so that those which a run folder brings along are never believed.
            keys = public_keys(place.recorders) if place.recorders else None
            folders = run_folders(Bands(), keys=keys)
            summaries, today = SummaryCache(place.summaries), SystemClock().now().date()
            uses = packaged_uses(_NO_CHECKOUT)
            analysis = DirectAnalysis(mirrors.changes, uses, summaries, folders, today, mirrors.commits)
            return getattr(analysis, name)(*values)
        case _:
            raise ValueError(f"no work is called {name}")


def _nothing(_: object) -> object:
    raise ValueError("this work asks for nothing")

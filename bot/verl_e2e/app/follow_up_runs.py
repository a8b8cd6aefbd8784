"""Make the follow-up runs of a judged job: its reference run, its merge base, its retry; then judge it again.

The runs lie below the job's own run folder, in `related/<role>`, and `related.json` there says how they ended. It is
written after each of them, so an interruption keeps what was learnt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.app.judge_folder import judge_run, write_judgement
from verl_e2e.core.judge import related_runs
from verl_e2e.core.judge.related_runs import Allowed, Followup, asks_whose, ended, followups, gpu_minutes
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.related import RELATED_FILE, RELATED_FOLDER, Related, RelatedRun, Role
from verl_e2e.ports import Baselines, Dispatcher, DispatchError, RunFolders

INTERRUPTED = "interrupted"
_NOT_BEGUN = "its run could not begin"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FollowUpServices:
    """The ports that follow-up runs use."""

    dispatcher: Dispatcher
    folders: RunFolders
    baselines: Baselines | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A run folder, and the related one that a run is made in; `number` counts the runs of its role from 1."""

    main: Path
    role: Role
    number: int

    @property
    def name(self) -> str:
        return f"{RELATED_FOLDER}/{self.role}{f'-{self.number}' if self.number > 1 else ''}"

    @property
    def folder(self) -> Path:
        return self.main / self.name


def follow_up(job: Job, folder: Path, allowed: Allowed, services: FollowUpServices, say: Say) -> Verdict:
    """Make the runs that the judged job in `folder` asks for, one after the other; the verdict with all of them."""
    return _follow_up(job, folder, allowed, services, say)[0]


def _follow_up(
    job: Job, folder: Path, allowed: Allowed, services: FollowUpServices, say: Say
) -> tuple[Verdict, LogFacts | None]:
    """The verdict, and what the job's own log says."""
    history = services.folders.record(folder).related
    verdict, facts = judge_run(services.folders, folder)
    while asked := followups(job, verdict, history, allowed):
        try:
            history = (*history, _run(job, asked[0], folder, history, services, say))
        except KeyboardInterrupt:
            _write(services, folder, history, {asked[0].role: INTERRUPTED})
            raise
        except DispatchError as error:
            say(f"{job.id}: {error}")
            allowed = _given_up(allowed, asked[0].role)
        _write(services, folder, history, _reasons(job, verdict, history, allowed))
        verdict, facts = judge_run(services.folders, folder, facts)
    reasons = _reasons(job, verdict, history, allowed)
    if reasons:
        _write(services, folder, history, reasons)
        verdict, facts = judge_run(services.folders, folder, facts)
    write_judgement(services.folders, folder, (verdict,))
    return verdict, facts


def _given_up(allowed: Allowed, role: Role) -> Allowed:
    """Without a role whose run could not begin."""
    return replace(allowed, roles=allowed.roles - {role}, not_run={**allowed.not_run, role: _NOT_BEGUN})


def _reasons(job: Job, verdict: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed) -> Mapping[Role, str]:
    """Why runs that the verdict asks for are not there."""
    made = {run.role for run in history}
    reasons = dict(allowed.not_run)
    if asks_whose(verdict) and allowed.no_base_for(job):
        reasons.setdefault(Role.MERGE_BASE, allowed.no_base_for(job))
    return {role: reason for role, reason in reasons.items() if role not in made}


def _run(
    main: Job, asked: Followup, folder: Path, history: tuple[RelatedRun, ...], services: FollowUpServices, say: Say
) -> RelatedRun:
    """Make one run, or take a kept one, with the follow-up runs that it needs itself."""
    number = 1 + sum(run.role is asked.role for run in history)
    place = _Place(folder, asked.role, number)
    kept = _take_kept(asked, place, services)
    if kept:
        say(f"{main.id}: {asked.role.spoken}, Bridge {asked.job.bridge.commit[:12]}, is kept from an earlier run")
    else:
        say(_starting(main, asked))
        services.dispatcher.run(asked.job, place.folder)
    if asked.inherits:
        _write(services, place.folder, tuple(_seen_from(run) for run in asked.inherits))
    verdict, facts = _follow_up(asked.job, place.folder, asked.allowed, services, say)
    if asked.role is Role.MERGE_BASE and not kept:
        _keep(asked.job, place, verdict, services)
    run = related_runs.summary(asked.role, asked.job, verdict, facts, folder=place.name, cached=kept)
    say(f"{main.id}: {asked.role.spoken} ended as {ended(run)}")
    return run


def _starting(main: Job, asked: Followup) -> str:
    job = asked.job
    where = f"Bridge {job.bridge.commit[:12]}, {job.gpu_count} GPU(s), about {gpu_minutes(job)} GPU minutes"
    return f"{main.id}: starting {asked.role.spoken} ({job.id} on {where})"


def _take_kept(asked: Followup, place: _Place, services: FollowUpServices) -> bool:
    """Whether a baseline was kept, is whole, and still says what it said; then it lies in its place."""
    if asked.role is not Role.MERGE_BASE or services.baselines is None:
        return False
    host = services.folders.record(place.main).environment
    digest = asked.job.digest()

    def accept(kept: Path) -> bool:
        verdict, _ = judge_run(services.folders, kept)
        return related_runs.may_stand_again(services.folders.record(kept), verdict, digest, host)

    return services.baselines.fetch(_key(asked.job, place), place.folder, accept)


def _keep(job: Job, place: _Place, verdict: Verdict, services: FollowUpServices) -> None:
    if services.baselines is not None and related_runs.may_be_kept(services.folders.record(place.folder), verdict):
        services.baselines.keep(_key(job, place), place.folder)


def _key(job: Job, place: _Place) -> str:
    """The digest of the job; further baselines of one job, which measure its noise, have keys of their own."""
    return job.digest() if place.number == 1 else f"{job.digest()}-{place.number}"


def _seen_from(run: RelatedRun) -> RelatedRun:
    """A related run of the first job, named from the folder of another related run."""
    return run.model_copy(update={"folder": f"../{run.folder.rpartition('/')[2]}"})


def _write(
    services: FollowUpServices, folder: Path, history: tuple[RelatedRun, ...], not_run: Mapping[Role, str] | None = None
) -> None:
    document = Related(runs=history, not_run=dict(not_run or {}))
    services.folders.write(folder, {RELATED_FILE: document.model_dump_json(indent=2) + "\n"})

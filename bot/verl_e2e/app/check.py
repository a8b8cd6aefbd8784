"""Check a change on this machine: plan it, run every level that it asks for, judge, and make one card.

A judged job is followed by the runs that it asks for: its reference run, its merge base, its retry. They lie below the
job's own run folder, in `related/<role>`, and `related.json` there says how they ended. It is written after each of
them, so an interruption keeps what was learnt.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.app.judge_folder import coverage, judge_folders, judge_run, make_card, write_judgement
from verl_e2e.app.plan_change import Planner
from verl_e2e.app.required_jobs import fit_patches
from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge import related_runs
from verl_e2e.core.judge.related_runs import (
    AS_ASKED,
    Allowed,
    Followup,
    MergeBase,
    asks_whose,
    ended,
    followups,
    gpu_minutes,
    possible_followups,
    without_base,
)
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Checkpoint, Job, Patch, Repository, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import CARD_MARKDOWN_FILE, CARD_TEXT_FILE, CHECK_FILE, PLAN_FILE, CheckNotes, Record
from verl_e2e.core.model.related import RELATED_FILE, RELATED_FOLDER, Related, RelatedRun, Role
from verl_e2e.core.plan.beside_verl import for_consumer
from verl_e2e.core.plan.build import BuildError, PatchChoice, Sources, build_job
from verl_e2e.core.plan.contract import Kind
from verl_e2e.core.plan.outline import Missing, as_asked, in_order, site_in_image
from verl_e2e.core.plan.plan import JobOutline, Plan, plan, with_parity
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import status_of_verdict, turn_of
from verl_e2e.core.pulls.target_state import BROKEN_CONTRACT
from verl_e2e.core.report.plan_text import PLANNING, render_plan_text, render_short_plan
from verl_e2e.core.report.run_card import Card, NotRun, render_markdown, render_text
from verl_e2e.core.report.verdict_rows import frame_path
from verl_e2e.core.text.escape import count_of
from verl_e2e.ports import Baselines, ChangeSource, Checkout, Dispatcher, DispatchError, RunFolders


@dataclass(frozen=True, slots=True)
class Checkouts:
    """The repositories on this machine that jobs are run from."""

    bridge: Checkout
    verl: Checkout
    megatron_lm: Checkout | None = None

    def megatron_lm_at(self, commit: str) -> Repository | None:
        """Megatron-LM at the commit that a commit of Bridge names, None where Bridge's own submodule is used."""
        if self.megatron_lm is None:
            return None
        found = self.bridge.submodule_commit(commit, MEGATRON_LM_FOLDER)
        if found is None:
            missing = f"{self.bridge.path}: {commit[:12]} has no submodule {MEGATRON_LM_FOLDER}"
            raise UserError(f"{missing}; leave --megatron-lm out")
        return Repository(path=str(self.megatron_lm.path.resolve()), commit=found)

    def merge_base(self, commit: str, verl_commit: str, patches: Iterable[Patch]) -> MergeBase:
        """A commit of Bridge as a merge base, with the patches that fit it."""
        fitting = fit_patches(patches, {"bridge": (self.bridge, commit), "verl": (self.verl, verl_commit)}).chosen
        return MergeBase(commit, self.megatron_lm_at(commit), fitting)


def patches_of(consumer: Consumer, policy: Policy) -> tuple[Patch, ...]:
    """The declared patches of a consumer's jobs; those of the policy are for verl."""
    return policy.patches if consumer is VERL else consumer.patches


def commit_of_consumer(
    checkout: Checkout, asked: str | None, policy: Policy, consumer: Consumer = VERL
) -> tuple[str, tuple[str, ...]]:
    """The consumer's commit to test with: the one asked for, else its pin, else the checkout's HEAD, said so."""
    if asked:
        return checkout.resolve(asked), ()
    pin = policy.pin_of(consumer)
    pinned = checkout.find(pin)
    if pinned:
        return pinned, ()
    head = checkout.resolve("HEAD")
    whose = "the pin" if consumer.pin else "the policy's pin"
    return head, (f"{consumer.title} {head[:12]} was used: {whose} {pin[:12]} is not in {checkout.path}.",)


def check_follow_ups(
    places: Checkouts,
    commits: tuple[str, str, str],
    patches: Iterable[Patch],
    *,
    repeats: int,
    baseline: bool,
) -> Allowed:
    """The runs that may follow a job of a check of `commits`: base and head of Bridge, and verl's."""
    base, head, verl_commit = commits
    allowed = Allowed(baselines=repeats)
    if not baseline:
        return without_base(allowed, "--no-baseline was given")
    commit = places.bridge.merge_base(base, head)
    if commit is None:
        return without_base(allowed, "base and head do not have exactly one merge base in this repository")
    return replace(allowed, merge_base=places.merge_base(commit, verl_commit, patches))


def follow_ups_of_job(job: Job, baseline: str, places: Checkouts, *, lenient: bool) -> Allowed:
    """The runs that may follow a single job, with a commit of its Bridge repository as its merge base.

    Of the patches that the job declares those are taken that fit the commit. A `lenient` caller, a machine that was
    sent here with the commit, goes on without one that the repository does not have, and the card says so.
    """
    commit = places.bridge.find(baseline) if lenient else places.bridge.resolve(baseline)
    if commit is None:
        return without_base(AS_ASKED, f"{baseline[:12]} is not in the repository of the job")
    return replace(AS_ASKED, merge_base=places.merge_base(commit, job.verl.commit, job.patches))


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to check: the repositories, the change, the host and where the result goes.

    `verl_commit` is the commit to test with; `asked` are levels wanted in addition to the plan, `notes` sentences
    for the card. `checkpoint` and `steps`, where given, are those of every job in place of its own. `related` says
    which runs may follow a judged job.
    """

    bridge: Path
    verl: Path
    verl_commit: str
    base: str
    head: str
    out: Path
    policy: Policy
    site: SiteProfile
    megatron_lm: Repository | None = None
    checkpoint: Checkpoint | None = None
    steps: int = 0
    # Patterns of the ids of the jobs to run, as of a shell; empty: all.
    only: tuple[str, ...] = ()
    asked: tuple[Level, ...] = ()
    # Whether the jobs of parity are wanted in addition to the plan.
    parity: bool = False
    # The program that trains; `verl` is its checkout.
    consumer: Consumer = VERL
    notes: tuple[str, ...] = ()
    related: Allowed = AS_ASKED
    # Why this machine can run no job; empty where it can.
    unable: str = ""
    # Whether nothing is said once the plan is made.
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class CheckServices:
    """The ports that a check uses; `blobs` reads a file of `bridge` or `verl` at a commit.

    Without a `planner` the change is planned by its names alone, without `baselines` none is kept.
    """

    changes: ChangeSource
    dispatcher: Dispatcher
    folders: RunFolders
    blobs: Mapping[str, ChangeSource]
    planner: Planner | None = None
    baselines: Baselines | None = None


def _say_nothing(sentence: str) -> None:
    """What a check says in place of its progress, where none is wanted."""


def check_change(request: CheckRequest, services: CheckServices, say: Say) -> Card:
    """Plan, run, judge: level 0 first and alone, the rest only after it passed, the cheapest first.

    Writes plan, notes and card. Each judged job is followed by the follow-up runs that it needs. A job that
    policy or site cannot complete is not run, and the card says what is missing. A change that breaks what verl uses of
    Bridge costs no GPU: no job is started.
    """
    say(PLANNING)
    contract: tuple[str, ...] = ()
    asked = (*request.asked, *([Level.SMOKE] if request.parity else []))
    if services.planner is None:
        planned = plan(services.changes.change(request.base, request.head), request.policy, asked)
    else:
        found = services.planner.plan(request.base, request.head, request.policy, asked)
        planned = found.plan
        contract = tuple(str(item) for item in found.contract if item.kind is Kind.BREAK)
    planned = with_parity(planned, request.policy) if request.parity else planned
    if request.consumer is not VERL:
        planned = for_consumer(planned, request.consumer, request.policy)
    planned, skipped, narrowed = _narrowed(planned, request)
    request.out.mkdir(parents=True, exist_ok=True)
    services.folders.write(request.out, {PLAN_FILE: plan_json(planned)})
    shown = render_plan_text(planned)
    levels = ", ".join(str(int(level)) for level in planned.levels) or "none"
    say(f"plan: levels {levels}; {len(planned.jobs)} job(s), about {planned.gpu_minutes} GPU minutes")
    if request.quiet:
        say = _say_nothing
    say(render_short_plan(planned, contract, request.consumer.title))
    verdicts: list[Verdict] = []
    not_run: list[NotRun] = []
    places = {"bridge": (services.blobs["bridge"], request.head), "verl": (services.blobs["verl"], request.verl_commit)}
    patches = fit_patches(patches_of(request.consumer, request.policy), places)
    notes = tuple(f"Declared {sentence}." for sentence in patches.left_out)
    broken = BROKEN_CONTRACT.format(request.consumer.title) if contract else ""
    for outline in in_order(planned.jobs):
        # What can never pass is said whatever passed before.
        blocked = f"it cannot pass as planned: {outline.blocked}" if outline.blocked else ""
        blocked = outline.uncoverable or skipped.get(outline.id) or blocked or request.unable
        statuses = {verdict.job_id: status_of_verdict(verdict) for verdict in verdicts}
        requires = [required for required in outline.requires if required not in skipped]
        reason = broken or blocked or turn_of(requires, statuses).skipped
        job = reason or _job(outline, request, patches)
        if isinstance(job, str):
            uncoverable = bool(outline.uncoverable) and not contract
            not_run.append(NotRun(outline.id, coverage(outline.id, outline.variant.level), job, uncoverable))
            continue
        say(f"{outline.id}: starting on {job.gpu_count} GPU(s), about {gpu_minutes(job)} GPU minutes")
        folder = request.out / "jobs" / job.id
        for sentence in possible_followups(job, request.related):
            say(sentence)
        services.dispatcher.run(job, folder)
        own = FollowUpServices(services.dispatcher, services.folders, services.baselines)
        verdicts.append(follow_up(job, folder, request.related, own, say))
    document = CheckNotes(
        not_run={job.job_id: job.reason for job in not_run},
        uncoverable=tuple(job.job_id for job in not_run if job.uncoverable),
        notes=(*planned.switched_off, *narrowed, *request.notes, *notes),
        contract=contract,
        execution=request.policy.gate.execution,
        consumer=request.consumer.name,
    )
    card = replace(make_card(tuple(verdicts), tuple(not_run), document), plan=shown)
    files = {CHECK_FILE: document.model_dump_json(indent=2) + "\n"}
    files |= {CARD_TEXT_FILE: render_text(card), CARD_MARKDOWN_FILE: render_markdown(card)}
    services.folders.write(request.out, files)
    return card


def _narrowed(planned: Plan, request: CheckRequest) -> tuple[Plan, Mapping[str, str], tuple[str, ...]]:
    """The plan with the checkpoint and the steps that were asked for, what is left out, by id, and a limitation.

    A known defect stays one on another model. UserError for a pattern that no job of the plan has.
    """
    notes: tuple[str, ...] = ()
    if planned.jobs and (request.checkpoint or request.steps):
        model = request.checkpoint.model_id if request.checkpoint else "the plan's models"
        steps = count_of(request.steps, "training step") if request.steps else "the plan's steps"
        notes = (f"The runs were asked for with {model} and {steps}: the verdicts speak for these, not for the plan.",)
        jobs = (
            job
            if Missing.DEFECT in {item.missing for item in job.obstacles}
            else as_asked(job, request.policy, request.checkpoint, request.steps)
            for job in planned.jobs
        )
        planned = replace(planned, jobs=tuple(jobs))
    ids = [job.id for job in planned.jobs]
    found = {pattern: fnmatch.filter(ids, pattern) for pattern in request.only}
    for pattern in (pattern for pattern in found if not found[pattern]):
        raise UserError(f"--only {pattern}: no job of the plan has this id; its jobs: {', '.join(ids) or 'none'}")
    left = {*ids}.difference(*found.values()) if found else ()
    return planned, dict.fromkeys(left, f"it was left out by --only {' '.join(found)}"), notes


def _job(outline: JobOutline, request: CheckRequest, patches: PatchChoice) -> Job | str:
    """The complete job, or what is missing for it in policy or site."""
    sources = Sources(
        bridge=Repository(path=str(request.bridge.resolve()), commit=request.head),
        verl=Repository(path=str(request.verl.resolve()), commit=request.verl_commit),
        megatron_lm=request.megatron_lm,
    )
    try:
        return build_job(
            outline,
            policy=request.policy,
            site=site_in_image(request.site, request.policy.image),
            sources=sources,
            patches=patches,
        )
    except BuildError as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the demo showed: the plan of the change, and the card of the recorded run."""

    plan: Plan
    card: Card


def demonstrate(
    folders: RunFolders, folder: Path, *, changes: ChangeSource, base: str, head: str, policy: Policy
) -> Demonstration:
    """Plan base..head and judge the recorded run folders that lie below `folder`'s `jobs`."""
    planned = plan(changes.change(base, head), policy)
    folders.write(folder, {PLAN_FILE: plan_json(planned)})
    verdicts = judge_folders(folders, folder)
    write_judgement(folders, folder, verdicts)
    notes = tuple(recording_note(folders.record(path)) for path in folders.find(folder))
    return Demonstration(planned, make_card(verdicts, (), CheckNotes(notes=notes)))


def tell_story(first: Demonstration, fixed: Demonstration, folder: str) -> str:
    """A pull request from its plan to green, in the order in which its author meets it; `folder` keeps the runs."""
    (failed,), (passed,) = first.card.verdicts, fixed.card.verdicts
    where = ""
    if frame := failed.frame:
        where = f"  where:  {frame_path(frame)}:{frame.line} in {frame.function}\n            {frame.source}\n"
    return (
        "1. A pull request: Need transformers 5.12\n\n"
        f"{render_short_plan(first.plan)}\n"
        f"2. Its job runs. {first.card.notes[0]}\n\n"
        f"Result: {failed.result} - {failed.sentence}\n{where}"
        f"  report: {folder}/failed/jobs/{failed.job_id}/report.html\n\n"
        f"3. The fix is pushed: Need transformers 5.12.1. The plan is made again: {len(fixed.plan.jobs)} job. "
        "This run is a recording too.\n\n"
        f"Result: {passed.result} - {passed.sentence}\n"
        f"  report: {folder}/fixed/jobs/{passed.job_id}/report.html\n"
    )


def next_steps(command: str, folder: str) -> str:
    """What to try after the demonstration: three commands that work as they stand, anywhere and without a network.

    `command` is how `verl-e2e` is called, `folder` what the demonstration wrote, both quoted for a shell.
    """
    steps = (
        (f"triage --explain {folder}/failed/jobs/*/log.txt.zst", "how the log of the failure is read, phase by phase"),
        (f"card {folder}/fixed", "the whole card of the run that passed"),
        (f"plan --repo {folder}/bridge --base HEAD~1 --full", "the plan with every reason"),
    )
    lines = (f"  {command} {words}\n      {purpose}\n" for words, purpose in steps)
    return "\nTry next:\n" + "".join(lines)


def recording_note(record: Record) -> str:
    """Says plainly that a run is a recording, of what and on what."""
    environment = record.environment
    name = ", ".join(sorted({gpu.name for gpu in environment.gpus})) if environment else ""
    commit = (
        next((repository.commit for repository in environment.repositories if repository.name == "bridge"), "")
        if environment
        else ""
    )
    return (
        f"This run is a recording, made on {name or 'another machine'} with Megatron-Bridge {commit[:12] or '?'}; "
        f"nothing was run here, and the planned change is the demonstration's own."
    )


INTERRUPTED = "interrupted"
# The roles whose runs serve later jobs as well.
_KEPT = (Role.MERGE_BASE, Role.UNSHARDED)
_MBRIDGE = "mbridge"
_NO_MBRIDGE = f"this host does not have the package {_MBRIDGE}"
_NOT_BEGUN = "its run could not begin"


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
    record = services.folders.record(folder)
    history = record.related
    has_mbridge = record.environment is not None and _MBRIDGE in record.environment.packages
    if not has_mbridge and related_runs.job_of(Role.KNOWN_GOOD, job) is not None:
        roles, not_run = allowed.roles - {Role.KNOWN_GOOD}, {**allowed.not_run, Role.KNOWN_GOOD: _NO_MBRIDGE}
        allowed = replace(allowed, roles=roles, not_run=not_run)
    verdict, facts = judge_run(services.folders, folder)
    while asked := followups(job, verdict, history, allowed):
        try:
            history = (*history, _run_followup(job, asked[0], folder, history, services, say))
        except KeyboardInterrupt:
            _write(services, folder, history, {asked[0].role: INTERRUPTED})
            raise
        except DispatchError as error:
            say(f"{job.id}: {error}")
            role = asked[0].role
            allowed = replace(allowed, roles=allowed.roles - {role}, not_run={**allowed.not_run, role: _NOT_BEGUN})
        _write(services, folder, history, _reasons(job, verdict, history, allowed))
        verdict, facts = judge_run(services.folders, folder, facts)
    reasons = _reasons(job, verdict, history, allowed)
    if reasons:
        _write(services, folder, history, reasons)
        verdict, facts = judge_run(services.folders, folder, facts)
    write_judgement(services.folders, folder, (verdict,))
    return verdict, facts


def _reasons(job: Job, verdict: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed) -> Mapping[Role, str]:
    """Why runs that the verdict asks for are not there."""
    made = {run.role for run in history}
    reasons = dict(allowed.not_run)
    if asks_whose(verdict) and allowed.no_base_for(job):
        reasons.setdefault(Role.MERGE_BASE, allowed.no_base_for(job))
    return {role: reason for role, reason in reasons.items() if role not in made}


def _run_followup(
    main: Job, asked: Followup, folder: Path, history: tuple[RelatedRun, ...], services: FollowUpServices, say: Say
) -> RelatedRun:
    """Make one run, or take a kept one, with the follow-up runs that it needs itself."""
    number = 1 + sum(run.role is asked.role for run in history)
    place = _Place(folder, asked.role, number)
    kept = _take_kept(asked, place, services)
    if kept:
        say(f"{main.id}: {asked.role.spoken}, Bridge {asked.job.bridge.commit[:12]}, is kept from an earlier run")
    else:
        job = asked.job
        where = f"Bridge {job.bridge.commit[:12]}, {job.gpu_count} GPU(s), about {gpu_minutes(job)} GPU minutes"
        say(f"{main.id}: starting {asked.role.spoken} ({job.id} on {where})")
        services.dispatcher.run(asked.job, place.folder)
    if asked.inherits:
        _write(
            services,
            place.folder,
            tuple(
                # Named from the folder of another related run.
                run.model_copy(update={"folder": f"../{run.folder.rpartition('/')[2]}"})
                for run in asked.inherits
            ),
        )
    verdict, facts = _follow_up(asked.job, place.folder, asked.allowed, services, say)
    baselines, is_new = services.baselines, asked.role in _KEPT and not kept
    record = services.folders.record(place.folder)
    if baselines is not None and is_new and related_runs.may_be_kept(record, verdict):
        baselines.keep(_key(asked.job, place), place.folder)
    run = related_runs.related_run_of(asked.role, asked.job, verdict, record, facts, folder=place.name, cached=kept)
    say(f"{main.id}: {asked.role.spoken} ended as {ended(run)}")
    return run


def _take_kept(asked: Followup, place: _Place, services: FollowUpServices) -> bool:
    """Whether a baseline was kept, is whole, and still says what it said; then it lies in its place."""
    if asked.role not in _KEPT or services.baselines is None:
        return False
    host = services.folders.record(place.main).environment
    digest = asked.job.digest()

    def accept(kept: Path) -> bool:
        verdict, _ = judge_run(services.folders, kept)
        return related_runs.may_stand_again(services.folders.record(kept), verdict, digest, host)

    return services.baselines.fetch(_key(asked.job, place), place.folder, accept)


def _key(job: Job, place: _Place) -> str:
    """The digest of the job; further baselines of one job, which measure its noise, have keys of their own."""
    return job.digest() if place.number == 1 else f"{job.digest()}-{place.number}"


def _write(
    services: FollowUpServices, folder: Path, history: tuple[RelatedRun, ...], not_run: Mapping[Role, str] | None = None
) -> None:
    document = Related(runs=history, not_run=dict(not_run or {}))
    services.folders.write(folder, {RELATED_FILE: document.model_dump_json(indent=2) + "\n"})

"""Check a change on this machine: plan it, run every level that it asks for, judge, and make one card."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.app.fit_patches import fit_patches
from verl_e2e.app.follow_up_runs import FollowUpServices, follow_up
from verl_e2e.app.judge_folder import coverage, make_card
from verl_e2e.app.plan_change import Planner
from verl_e2e.core.compare.jobs import for_parity
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, gpu_minutes, may_follow
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.jobs import Checkpoint, Data, Job, Repository, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import CARD_MARKDOWN_FILE, CARD_TEXT_FILE, CHECK_FILE, PLAN_FILE, CheckNotes
from verl_e2e.core.model.related import Role
from verl_e2e.core.plan.build import BuildError, PatchChoice, Sources, build_job
from verl_e2e.core.plan.contract import Kind
from verl_e2e.core.plan.images import site_in_image
from verl_e2e.core.plan.outline import in_order
from verl_e2e.core.plan.plan import JobOutline, Plan, plan, with_data_parallel
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.hold_reason import BROKEN_CONTRACT
from verl_e2e.core.pulls.job_status import status_of_verdict, turn_of
from verl_e2e.core.report.plan_text import PLANNING, render_plan_text
from verl_e2e.core.report.run_card import Card, NotRun, render_markdown, render_text
from verl_e2e.ports import Baselines, ChangeSource, Dispatcher, RunFolders

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to check: the repositories, the change, the host and where the result goes.

    `verl_commit` is the commit to test with; `asked` are levels wanted in addition to the plan, `notes` sentences
    for the card. `checkpoint` and `data`, where given, win over plan and site. `related` says which runs may
    follow a judged job; with the unsharded run among them level 2 runs as parity compares it.
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
    data: Data | None = None
    require_bridge_checks: bool = False
    asked: tuple[Level, ...] = ()
    notes: tuple[str, ...] = ()
    related: Allowed = AS_ASKED
    # Why this machine can run no job; empty where it can.
    unable: str = ""


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


def check_change(request: CheckRequest, services: CheckServices, say: Say) -> Card:
    """Plan, run, judge: level 0 first and alone, the rest only after it passed, the cheapest first.

    Writes plan, notes and card. Each judged job is followed by the follow-up runs that it needs. A job that
    policy or site cannot complete is not run, and the card says what is missing. A change that breaks what verl uses of
    Bridge costs no GPU: no job is started.
    """
    say(PLANNING)
    planned, contract = _planned(request, services)
    planned = with_data_parallel(planned) if Role.UNSHARDED in request.related.roles else planned
    request.out.mkdir(parents=True, exist_ok=True)
    services.folders.write(request.out, {PLAN_FILE: plan_json(planned)})
    shown = render_plan_text(planned)
    say(_planned_sentence(planned))
    say(shown)
    verdicts: list[Verdict] = []
    not_run: list[NotRun] = []
    patches, notes = _patches(request, services)
    for outline in in_order(planned.jobs):
        # What can never pass is said whatever passed before.
        blocked = f"it cannot pass as planned: {outline.blocked}" if outline.blocked else ""
        blocked = outline.uncoverable or blocked or request.unable
        statuses = {verdict.job_id: status_of_verdict(verdict) for verdict in verdicts}
        reason = BROKEN_CONTRACT if contract else blocked or turn_of(outline.requires, statuses).skipped
        job = reason or _job(outline, request, patches)
        if isinstance(job, str):
            uncoverable = bool(outline.uncoverable) and not contract
            not_run.append(NotRun(outline.id, coverage(outline.id, outline.variant.level), job, uncoverable))
            say(f"{outline.id}: not run, {job}")
            continue
        say(f"{outline.id}: starting on {job.gpu_count} GPU(s), about {gpu_minutes(job)} GPU minutes")
        verdicts.append(_run(job, request, services, say))
    reasons = {job.job_id: job.reason for job in not_run}
    rules = request.policy.gate.execution
    document = CheckNotes(
        not_run=reasons,
        uncoverable=tuple(job.job_id for job in not_run if job.uncoverable),
        notes=(*planned.switched_off, *request.notes, *notes),
        contract=contract,
        execution=rules,
    )
    card = replace(make_card(tuple(verdicts), tuple(not_run), document.notes, contract, rules), plan=shown)
    files = {CHECK_FILE: document.model_dump_json(indent=2) + "\n"}
    files |= {CARD_TEXT_FILE: render_text(card), CARD_MARKDOWN_FILE: render_markdown(card)}
    services.folders.write(request.out, files)
    return card


def _planned(request: CheckRequest, services: CheckServices) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and a sentence for each use in verl that the head breaks."""
    if services.planner is None:
        return plan(services.changes.change(request.base, request.head), request.policy, request.asked), ()
    found = services.planner.plan(request.base, request.head, request.policy, request.asked)
    broken = (item for item in found.contract if item.kind is Kind.BREAK)
    return found.plan, tuple(str(item) for item in broken)


def _planned_sentence(planned: Plan) -> str:
    levels = ", ".join(str(int(level)) for level in planned.levels) or "none"
    return f"plan: levels {levels}; {len(planned.jobs)} job(s), about {planned.gpu_minutes} GPU minutes"


def _patches(request: CheckRequest, services: CheckServices) -> tuple[PatchChoice, tuple[str, ...]]:
    places = {"bridge": (services.blobs["bridge"], request.head), "verl": (services.blobs["verl"], request.verl_commit)}
    choice = fit_patches(request.policy.patches, places)
    return choice, tuple(f"Declared {sentence}." for sentence in choice.left_out)


def _job(outline: JobOutline, request: CheckRequest, patches: PatchChoice) -> Job | str:
    """The complete job, or what is missing for it in policy or site."""
    sources = Sources(
        bridge=Repository(path=str(request.bridge.resolve()), commit=request.head),
        verl=Repository(path=str(request.verl.resolve()), commit=request.verl_commit),
        megatron_lm=request.megatron_lm,
    )
    try:
        job = build_job(
            outline,
            policy=request.policy,
            site=site_in_image(request.site, request.policy.image),
            sources=sources,
            checkpoint=request.checkpoint,
            data=request.data,
            patches=patches,
            require_bridge_checks=request.require_bridge_checks,
        )
    except BuildError as error:
        return str(error)
    parity = Role.UNSHARDED in request.related.roles and job.level is Level.PARALLELISM
    return for_parity(job) if parity else job


def _run(job: Job, request: CheckRequest, services: CheckServices, say: Say) -> Verdict:
    folder = request.out / "jobs" / job.id
    for sentence in may_follow(job, request.related):
        say(sentence)
    services.dispatcher.run(job, folder)
    own = FollowUpServices(services.dispatcher, services.folders, services.baselines)
    return follow_up(job, folder, request.related, own, say)

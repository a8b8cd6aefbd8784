"""Which related runs a judged job asks for, in which order, and the job of each of them.

Two kinds. Some are evidence that the job itself cannot give: the uninterrupted reference run of a resume, the
unsharded reference run, the baseline of a learning signal; they are asked for once the run by itself is fine. The
others say whose a failure is: the merge base, one retry on the head, and the same job without saving. A run that is
blocked by what the change may have caused gets the first two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from verl_e2e.core.compare.jobs import unsharded
from verl_e2e.core.judge.blame import CandidateRank, most_telling
from verl_e2e.core.judge.phases import wants_save
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.changed_code import NO_CODE
from verl_e2e.core.model.evidence import Criterion, State
from verl_e2e.core.model.expected import expected_config
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Job, Patch, Repository
from verl_e2e.core.model.levels import Level, variant_named, variants_of
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.purposes import NO_PURPOSES
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.stages import Stage

# A failure in these stages: the same job without saving shows whether the save or the model is at fault.
CHECKPOINTING = frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD})
# The criteria that compare a run with another one, and the role of that one.
_COMPARED = {Criterion.RESUMED_STEP: Role.UNINTERRUPTED, Criterion.PARITY: Role.UNSHARDED}
WHEN_IT_FAILS = "when it fails, or is blocked by what the change may have caused"
REFERENCE_ROLES = frozenset(_COMPARED.values())


@dataclass(frozen=True, slots=True)
class MergeBase:
    """The other side of a comparison: a Bridge commit, the Megatron-LM that it names, and the patches that fit it.

    Without `megatron_lm` the submodule of the Bridge commit is used.
    """

    commit: str
    megatron_lm: Repository | None = None
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which related runs a job may have."""

    # The roles that may be run.
    roles: frozenset[Role] = frozenset(Role) - {Role.UNSHARDED}
    # The commit to compare with, None where there is none.
    merge_base: MergeBase | None = None
    # Why `merge_base` is None, for the card.
    why_no_base: str = ""
    # How many runs on the merge base a learning signal gets, for its noise band.
    baselines: int = 1
    # Roles that are not run any more, each with the reason.
    not_run: Mapping[Role, str] = field(default_factory=dict)

    def has_base(self, job: Job) -> bool:
        """Whether a run on the merge base may be made, and would not be the job itself."""
        return self.merge_base is not None and Role.MERGE_BASE in self.roles and not self.no_base_for(job)

    def no_base_for(self, job: Job) -> str:
        """Why the job gets no run on the merge base, empty when nothing speaks against it."""
        if self.merge_base is not None and self.merge_base.commit == job.bridge.commit:
            return "the merge base is the commit under test itself"
        return self.why_no_base


NOTHING = Allowed(roles=frozenset())
AS_ASKED = Allowed()


@dataclass(frozen=True, slots=True)
class Followup:
    """A related run to make."""

    # Why it is made.
    role: Role
    # What it runs.
    job: Job
    # Which related runs it may have itself.
    allowed: Allowed = NOTHING
    # Related runs of the first job that serve this one too, because they would be the same.
    inherits: tuple[RelatedRun, ...] = ()


def followups(job: Job, verdict: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed) -> tuple[Followup, ...]:
    """The runs that a judged job still asks for, the most telling first; `history` are those that were made.

    At most one of each role, but for the baselines of a learning signal. Run the first, judge again, and ask again.
    """
    made = [run.role for run in history]
    evidence = tuple(_of_evidence(job, verdict, made, allowed))
    asked = {followup.role for followup in evidence}
    blame = (followup for followup in _of_blame(job, verdict, history, allowed) if followup.role not in asked)
    return tuple(followup for followup in (*evidence, *blame) if followup.role in allowed.roles)


def _possible(job: Job, allowed: Allowed) -> tuple[tuple[Role, str], ...]:
    rows = []
    if job.level is Level.SAVE_RESUME:
        rows.append((Role.UNINTERRUPTED, "when both phases are fine"))
    if job.level is Level.PARALLELISM:
        rows.append((Role.UNSHARDED, "when the run is fine"))
    if allowed.has_base(job):
        signal = job.level is Level.LEARNING_SIGNAL
        when = f"{allowed.baselines} time(s), whether it passes or fails" if signal else WHEN_IT_FAILS
        rows += [(Role.MERGE_BASE, when), (Role.RETRY, "when the merge base does not end so")]
    if wants_save(job):
        rows.append((Role.WITHOUT_SAVE, "when it fails in export, save or load"))
    return tuple(row for row in rows if row[0] in allowed.roles)


def may_follow(job: Job, allowed: Allowed) -> tuple[str, ...]:
    """A sentence for each run that a job may ask for, with its cost."""
    jobs = [(role, when, job_of(role, job, allowed.merge_base)) for role, when in _possible(job, allowed)]
    return tuple(
        f"{job.id}: may be followed by the {role.spoken} {when}, about {gpu_minutes(made)} GPU minutes"
        for role, when, made in jobs
        if made is not None
    )


def job_of(role: Role, job: Job, base: MergeBase | None = None) -> Job | None:
    """The job of a run in that role, None where this job has no such run."""
    match role:
        case Role.MERGE_BASE:
            return None if base is None else on_merge_base(job, base)
        case Role.RETRY:
            return without_change(job)
        case Role.UNINTERRUPTED:
            return without_saving(job, "uninterrupted")
        case Role.WITHOUT_SAVE:
            return without_saving(job, "without-save")
        case Role.UNSHARDED:
            return unsharded(job)


def on_merge_base(job: Job, base: MergeBase) -> Job:
    """The identical job on another Bridge commit, in trees of its own, planned for what the change replaced."""
    bridge = job.bridge.model_copy(update={"commit": base.commit, "in_place": False})
    core = base.megatron_lm if job.megatron_lm is not None else None
    # What the change takes the place of is recorded there; what it adds is not there.
    changed = job.changed.on_merge_base()
    return job.model_copy(update={"bridge": bridge, "megatron_lm": core, "patches": base.patches, "changed": changed})


def without_change(job: Job) -> Job:
    """The same job as a run to compare with: whether it enters the changed code is asked of the first one alone."""
    return job.model_copy(update={"changed": NO_CODE, "purposes": ()})


def without_saving(job: Job, variant: str) -> Job | None:
    """The same training from step 1 to the end in one go, with no checkpoint; None when the job has none to leave out.

    A save/resume job without checkpoints is what level 0 runs (level 3 under FSDP), only longer, and is judged as that:
    it could not show what level 1 is for. The focused Bridge tests are those of the first run.
    """
    if not wants_save(job) or job.script != WRAPPER_SCRIPT:
        return None
    wrapper = {**job.wrapper, "SAVE_FREQ": "-1", "RESUME_MODE": "disable", "TOTAL_TRAIN_STEPS": str(job.steps)}
    whole = {**job.site.wrapper, **wrapper}
    update: dict[str, object] = {
        "wrapper": wrapper,
        "bridge_tests": (),
        "require_bridge_checks": False,
        # What the change must execute is for the first run to show; this one is compared with it.
        "changed": NO_CODE,
        **NO_PURPOSES,
        "expected": {**job.expected, **expected_config(whole, (*job.site.overrides, *job.overrides))},
    }
    if job.level is Level.SAVE_RESUME:
        level = Level.MEGATRON_FSDP if whole.get("USE_MEGATRON_FSDP") == "True" else Level.SMOKE
        update |= {"level": level, "variant": variant, "id": f"{int(level)}-{variant}"}
    return job.model_copy(update=update)


def gpu_minutes(job: Job) -> int:
    """GPUs times minutes that one run of the job is expected to take, by its variant or its level's default one."""
    variant = variant_named(f"{int(job.level)}-{job.variant}") or variants_of(job.level)[0]
    return variant.cost.run_gpu_minutes(job.gpu_count)


def asks_whose(verdict: Verdict) -> bool:
    """Whether a run by itself ended in a way that the change may have caused."""
    return verdict.own_result is Result.FAIL or verdict.undecided


def _of_evidence(job: Job, verdict: Verdict, made: list[Role], allowed: Allowed) -> Iterator[Followup]:
    """What is asked for when the run by itself is fine."""
    for criterion, role in _COMPARED.items():
        if _judges(verdict, criterion) and role not in made and _fine_but_for(verdict, criterion):
            yield from _followup(role, job, allowed)
    more = job.level is Level.LEARNING_SIGNAL and made.count(Role.MERGE_BASE) < allowed.baselines
    if more and allowed.has_base(job) and _fine_but_for(verdict, Criterion.LEARNING_SIGNAL):
        yield from _followup(Role.MERGE_BASE, job, allowed)


def _of_blame(job: Job, verdict: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed) -> Iterator[Followup]:
    """What is asked for when the run by itself is a Fail, or is blocked by what the change may have caused."""
    if not asks_whose(verdict):
        return
    made = [run.role for run in history]
    compared = verdict.decided_by in _COMPARED
    then = Allowed(roles=REFERENCE_ROLES & allowed.roles) if compared else NOTHING
    bases = tuple(run for run in history if run.role is Role.MERGE_BASE)
    found, _ = most_telling(verdict.fingerprint, verdict.stage, bases)
    if not bases and allowed.has_base(job):
        yield from _followup(Role.MERGE_BASE, job, allowed, then)
    if found in (CandidateRank.PASSES, CandidateRank.BEYOND) and Role.RETRY not in made:
        evidence = REFERENCE_ROLES | ({Role.MERGE_BASE} if job.level is Level.LEARNING_SIGNAL else set())
        inherits = tuple(run for run in history if run.role in evidence)
        yield Followup(Role.RETRY, without_change(job), NOTHING, inherits)
    if verdict.stage in CHECKPOINTING and not verdict.undecided and Role.WITHOUT_SAVE not in made and not compared:
        yield from _followup(Role.WITHOUT_SAVE, job, allowed)


def _followup(role: Role, job: Job, allowed: Allowed, then: Allowed = NOTHING) -> Iterator[Followup]:
    derived = job_of(role, job, allowed.merge_base)
    if derived is not None:
        yield Followup(role, derived, then)


def _judges(verdict: Verdict, criterion: Criterion) -> bool:
    return any(item.criterion is criterion for item in verdict.evidence)


def _fine_but_for(verdict: Verdict, criterion: Criterion) -> bool:
    """Whether nothing but that criterion keeps the run from a Pass."""
    found = {item.criterion for item in verdict.evidence if item.state in (State.MISSING, State.BROKEN)}
    # Another job may enter the changed code; whether this run was good otherwise is then to be known.
    gaps = found - {Criterion.CHANGE_EXECUTED}
    return verdict.own_result is Result.PASS or gaps == {criterion}


def without_base(allowed: Allowed, reason: str) -> Allowed:
    """The same without a merge base, and why, for the card."""
    return replace(allowed, roles=allowed.roles - {Role.MERGE_BASE, Role.RETRY}, merge_base=None, why_no_base=reason)

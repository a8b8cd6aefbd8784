"""Related runs: what they say about whose a failure is, and which of them a judged job asks for.

A Fail stays a Fail unless the merge base fails too. If the merge base fails the same way, the fault is older than the
change. If it fails in another way at the same stage or before it, the cause is not known. If a retry passes, the
result is not a Pass, because the first failure is not explained, and not a Fail, because nothing blames the change.
A run that was blocked by what the change may have caused stays Blocked, unless the merge base gets past that point and
the retry does not: then it is a Fail.

Some related runs are evidence that the job itself cannot give: the uninterrupted reference run of a resume, the
unsharded reference run, the baseline of a learning signal; they are asked for once the run by itself is fine. The
others say whose a failure is: the merge base, one retry on the head, and the same job without saving. A run that is
blocked by what the change may have caused gets the first two.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto

from verl_e2e.core.compare.jobs import AS_REFERENCE, is_parity, through_mbridge, unsharded
from verl_e2e.core.compare.performance import performance_of
from verl_e2e.core.consumer.consumers import consumer_of, variant_named, variants_of
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.table import CRITERIA, Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.access import Slowdown
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import NO_CODE
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Digest, Job, Patch, Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import DEFECT_CAUSE, Decision, Recurrence, Result, Stage
from verl_e2e.core.model.record import Environment, Record, Started, read_data
from verl_e2e.core.model.related import RelatedRun, RelatedStep, Role
from verl_e2e.core.model.settings import Axis

_MAX_MARKS = 200
_MAX_MARK = 300
_OF_THE_STACK = ("megatron/", "verl/")

# What differs between two runs of one job. Marks err on the side of difference, because a failure that is wrongly taken
# for an old one would excuse a new fault.
_VARYING = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    # Where a folder lies differs; a metric's name or a path within a tree has no root.
    (re.compile(r"(?<![\w./-])(?:~|\$\w+)?/(?:[\w.@+-]+/)*(?=[\w.@])"), ""),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,}\b"), "#"),
    (re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "#"),
    (re.compile(r"\s+"), " "),
)


def fingerprint_of(case: Case, decision: Decision) -> tuple[str, ...]:
    """The marks of a Fail, and of what blocked a run and may be the change's, sorted; empty where nothing shows it."""
    if not may_change(decision):
        return ()
    found = {f"preflight: {normal(mark)}"[:_MAX_MARK] for mark in decision.marks}
    if decision.at is not None:
        found |= {f"{decision.at.criterion}: {mark}"[:_MAX_MARK] for mark in _marks(case, decision.at)}
    return tuple(sorted(found)[:_MAX_MARKS])


def as_known(case: Case, decision: Decision) -> Decision:
    """The decision, or Blocked where the run failed as a declared defect of unchanged code does, in each respect."""
    marks = fingerprint_of(case, decision)
    for known in case.job.defects:
        if decision.stage is known.shows.stage and marks == (f"{Criterion.NO_EXCEPTION}: {known.shows.error}",):
            cause = f"known defect {known.name}: {known.reason}"
            blame = "the policy lists this failure as one of unchanged code"
            causes = (DEFECT_CAUSE,)
            return Decision(Result.BLOCKED, decision.stage, cause, FIX_KNOWN, decision.at, blame, causes=causes)
    return decision


def may_change(decision: Decision) -> bool:
    """Whether a run on the merge base may change the decision."""
    return decision.result is Result.FAIL or decision.undecided


def same_failure(marks: tuple[str, ...], stage: Stage | None, other: RelatedRun) -> bool:
    """Whether the other run ended at that stage and shows every one of the marks; it may show more."""
    ended_there = other.result is not Result.PASS and other.stage is stage
    return bool(marks) and ended_there and set(marks) <= set(other.fingerprint)


def normal(text: str) -> str:
    """A message without what differs from run to run."""
    for pattern, stand_in in _VARYING:
        text = pattern.sub(stand_in, text)
    return text.strip()


def _marks(case: Case, at: Evidence) -> list[str]:
    if at.criterion == Criterion.BRIDGE_TESTS:
        return [test.name for test in case.record.tests or () if test.outcome == "failed"]
    if at.criterion == Criterion.WEIGHTS_KEPT:
        return [normal(lost.text) for lost in case.facts.lost_weights]
    error = next((error for error in case.facts.errors if error.at.line == at.line), None)
    if error is None:
        return [normal(at.summary)]
    # Where it was raised, and where the code of the stack went there.
    ours = [call for call in error.calls if any(part in call for part in _OF_THE_STACK)]
    places = dict.fromkeys(normal(calls[-1]) for calls in (ours, error.calls) if calls)
    return [f"{error.kind}: {normal(error.message)} @ {' < '.join(places)}"]


FIX_KNOWN = (
    "Judge the change by the jobs that avoid the defect. The entry in `defects:` of the policy ends when the code that "
    "has it changes, or with its last day."
)
FIX_BASE = (
    "Change nothing here: tell a maintainer that the base branch fails, and rebase once it is fixed; until then "
    "nothing tests this change."
)
FIX_OTHERWISE = "Compare the two failures: fix what fails on the merge base, then run this change again."
FIX_FLAKY = "Only several more runs of this head and of the merge base can decide it."


class CandidateRank(IntEnum):
    """What a run on the merge base says about a failure on the head; of several runs the highest counts."""

    NOT_RUN = auto()
    NOT_CONCLUSIVE = auto()
    BEYOND = auto()
    PASSES = auto()
    FAILS_OTHERWISE = auto()
    FAILS_TOO = auto()


def most_telling(
    marks: tuple[str, ...], stage: Stage | None, bases: tuple[RelatedRun, ...]
) -> tuple[CandidateRank, RelatedRun | None]:
    """The run on the merge base that decides on a failure with this fingerprint at that stage, and what it says.

    A merge base that failed later, or that trained a step before it was stopped later, got beyond the failure.
    """
    ranked: list[tuple[CandidateRank, RelatedRun]] = []
    for base in bases:
        later = stage is not None and base.stage is not None and base.stage.order > stage.order
        if base.result is Result.PASS:
            rank = CandidateRank.PASSES
        elif same_failure(marks, stage, base):
            rank = CandidateRank.FAILS_TOO
        elif later and (base.result is Result.FAIL or base.steps):
            rank = CandidateRank.BEYOND
        else:
            rank = CandidateRank.FAILS_OTHERWISE if base.result is Result.FAIL else CandidateRank.NOT_CONCLUSIVE
        ranked.append((rank, base))
    return max(ranked, key=lambda item: item[0], default=(CandidateRank.NOT_RUN, None))


def weigh_related(case: Case, alone: Decision) -> Decision:
    """The decision on a run in the light of its related runs; a Fail can change, and a Blocked that is undecided."""
    if not may_change(alone):
        return alone
    found, base = most_telling(fingerprint_of(case, alone), alone.stage, case.related(Role.MERGE_BASE))
    if base is None:
        text = _not_run(case, Role.MERGE_BASE, wording.MERGE_BASE_NOT_RUN)
        return replace(alone, blame=_and_without_save(case, text))
    commit = base.bridge_commit[:12]
    match found:
        case CandidateRank.FAILS_TOO:
            went, older = "was blocked" if alone.undecided else "failed", Recurrence.PRE_EXISTING
            known = replace(alone, blame=f"the merge base {commit} {went} the same way")
            return replace(known, result=Result.BLOCKED, fix=FIX_BASE, undecided=False, recurrence=older)
        case CandidateRank.FAILS_OTHERWISE:
            blame = f"the merge base {commit} failed in another way ({ended(base)})"
            return replace(alone, result=Result.BLOCKED, blame=blame, fix=FIX_OTHERWISE, undecided=False)
        case CandidateRank.NOT_CONCLUSIVE | CandidateRank.NOT_RUN:
            text = f"the merge base {commit} showed nothing ({ended(base)})"
            return replace(alone, blame=_and_without_save(case, text))
        case CandidateRank.PASSES | CandidateRank.BEYOND:
            return _weigh_retry(case, alone, base)


def asks_for_base(case: Case, decision: Decision) -> bool:
    """Whether a decision still needs a conclusive run on the merge base."""
    if not may_change(decision):
        return False
    found, _ = most_telling(fingerprint_of(case, decision), decision.stage, case.related(Role.MERGE_BASE))
    return found in (CandidateRank.NOT_RUN, CandidateRank.NOT_CONCLUSIVE)


def related_rows(case: Case) -> tuple[str, ...]:
    """A sentence for each related run, and for one that no criterion asks for and that was not made, for the card."""
    not_made = case.record.related_not_run.get(Role.KNOWN_GOOD)
    absent = (f"{Role.KNOWN_GOOD.spoken}: not made, {not_made}",) if not_made else ()
    return absent + tuple(
        f"{run.role.spoken} ({run.job_id}, Bridge {run.bridge_commit[:12]}"
        f"{', kept from an earlier run' if run.cached else ''}): {ended(run)}, in {run.folder}"
        for run in case.record.related
    )


def ended(run: RelatedRun) -> str:
    """How a related run ended, for a sentence."""
    where = f" at {run.stage}" if run.stage else ""
    return f"{run.result}{where}{f': {wording.strip_full_stop(run.cause)}' if run.cause else ''}"


def _weigh_retry(case: Case, alone: Decision, base: RelatedRun) -> Decision:
    """The decision where the merge base is not at fault: the change caused a failure that a retry repeats."""
    marks, retries = fingerprint_of(case, alone), case.related(Role.RETRY)
    repeated = next(
        (run for run in retries if run.result is Result.FAIL or same_failure(marks, alone.stage, run)), None
    )
    went = "failed" if alone.result is Result.FAIL else "was blocked"
    base_said = "passed" if base.result is Result.PASS else f"got beyond {alone.stage} ({ended(base)})"
    said = f"the merge base {base.bridge_commit[:12]} {base_said}, this head {went}"
    if any(run.result is Result.PASS for run in retries):
        blame, once_only = f"{said} once and passed on a retry", Recurrence.NOT_REPRODUCED
        return replace(alone, result=Result.BLOCKED, blame=blame, fix=FIX_FLAKY, undecided=False, recurrence=once_only)
    if repeated is not None:
        same = same_failure(marks, alone.stage, repeated)
        said += f" twice{'' if same else f', on the retry in another way ({ended(repeated)})'}"
    elif retries:
        said += f" once, and a retry showed nothing ({ended(retries[-1])})"
        if alone.undecided:
            return replace(alone, blame=said, fix=FIX_FLAKY, undecided=False)
    else:
        said += f" once, {_not_run(case, Role.RETRY, 'not retried')}"
    blame, shown = _and_without_save(case, said), Recurrence.REGRESSION
    return replace(alone, result=Result.FAIL, blame=blame, undecided=False, recurrence=shown)


def _and_without_save(case: Case, text: str) -> str:
    """The text, with what the same job without saving says about construction."""
    for run in case.related(Role.WITHOUT_SAVE):
        if run.result is Result.PASS:
            return f"{text}; without saving it passes, so construction is fine and the fault is in checkpointing"
        return f"{text}; without saving it ends as {ended(run)}"
    return text


def _not_run(case: Case, role: Role, text: str) -> str:
    reason = case.record.related_not_run.get(role)
    return f"{text} ({reason})" if reason else text


_CONCLUSIVE = frozenset({Result.PASS, Result.FAIL})


def related_run_of(
    role: Role, job: Job, verdict: Verdict, record: Record, facts: LogFacts | None, *, folder: str, cached: bool = False
) -> RelatedRun:
    """What `related.json` says of a run: its verdict, the marks of its failure, its steps, and what it took."""
    steps = [step for step in facts.steps if step.step > 0] if facts else []
    # The line that decided; a Pass has none.
    shown = [item.excerpt for item in verdict.key_lines if item.criterion != Criterion.RESOLVED_CONFIG]
    excerpt = shown[0] if shown and verdict.result is not Result.PASS else ""
    return RelatedRun(
        role=role,
        job_id=job.id,
        job_digest=job.digest(),
        bridge_commit=job.bridge.commit,
        folder=folder,
        result=verdict.result,
        stage=verdict.stage,
        cause=verdict.cause,
        excerpt=excerpt,
        cached=cached,
        fingerprint=verdict.fingerprint,
        steps=tuple(RelatedStep(step=step.step, values=dict(step.values)) for step in steps),
        performance=performance_of(record, steps),
    )


def may_be_kept(record: Record, verdict: Verdict) -> bool:
    """Whether a run may stand for a later one of the same job: conclusive, and of nothing but commits."""
    trees = record.environment.repositories if record.environment else ()
    return verdict.result in _CONCLUSIVE and bool(trees) and not any(tree.dirty for tree in trees)


def may_stand_again(record: Record, verdict: Verdict, digest: Digest, host: Environment | None) -> bool:
    """Whether a kept run is that of this very job, still judged as conclusive, on what `host` has today."""
    started = [read_data(event, Started) for event in record.events if event.kind == "started"]
    same_job = bool(started) and started[-1] is not None and started[-1].digest == digest
    environment = record.environment
    same_host = environment is not None and host is not None and _host_marks(environment) == _host_marks(host)
    return same_job and may_be_kept(record, verdict) and same_host


def _host_marks(host: Environment) -> tuple[object, ...]:
    """Packages, interpreter, image, driver and kinds of GPU: what a result may depend on besides the job."""
    container = host.container
    image = (container.image, container.digests, container.asked) if container else None
    return host.packages, host.python, image, host.driver, {gpu.name for gpu in host.gpus}


# A failure in these stages: the same job without saving shows whether the save or the model is at fault.
_CHECKPOINTING = frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD})
# The criteria that compare a run with another one, and the role of that one.
_COMPARED = {row.criterion: row.compared_with for row in CRITERIA if row.compared_with is not None}
_WHEN_IT_FAILS = "when it fails, or is blocked by what the change may have caused"
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

    roles: frozenset[Role] = frozenset(Role)
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

    role: Role
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
    asked: dict[Role, Followup] = {}

    def ask(role: Role, then: Allowed = NOTHING, inherits: tuple[RelatedRun, ...] = ()) -> None:
        derived = job_of(role, job, allowed.merge_base)
        if derived is not None and role in allowed.roles:
            asked.setdefault(role, Followup(role, derived, then, inherits))

    # When the run by itself is fine.
    for criterion, role in _COMPARED.items():
        judged = any(item.criterion == criterion for item in verdict.evidence)
        if judged and role not in made and _fine_but_for(verdict, criterion):
            ask(role)
    signal = job.level is Level.LEARNING_SIGNAL
    more = signal and made.count(Role.MERGE_BASE) < allowed.baselines and allowed.has_base(job)
    if more and _fine_but_for(verdict, Criterion.LEARNING_SIGNAL):
        ask(Role.MERGE_BASE)
    if asks_whose(verdict):
        compared = verdict.decided_by in _COMPARED
        # A parity job cannot pass without its reference run, whatever ended the first one.
        references = Allowed(roles=REFERENCE_ROLES & allowed.roles) if compared or is_parity(job) else NOTHING
        bases = tuple(run for run in history if run.role is Role.MERGE_BASE)
        found, _ = most_telling(verdict.fingerprint, verdict.stage, bases)
        if not bases and allowed.has_base(job):
            ask(Role.MERGE_BASE, references)
        if found in (CandidateRank.PASSES, CandidateRank.BEYOND) and Role.RETRY not in made:
            evidence = REFERENCE_ROLES | ({Role.MERGE_BASE} if signal else set())
            own = references if is_parity(job) else NOTHING
            ask(Role.RETRY, own, inherits=tuple(run for run in history if run.role in evidence))
        checkpointing = verdict.stage in _CHECKPOINTING and not verdict.undecided and not compared
        if checkpointing and Role.WITHOUT_SAVE not in made:
            ask(Role.WITHOUT_SAVE)
    # Last, for it decides nothing.
    if Role.UNSHARDED in made and Role.KNOWN_GOOD not in made:
        ask(Role.KNOWN_GOOD)
    return tuple(asked.values())


def possible_followups(job: Job, allowed: Allowed) -> tuple[str, ...]:
    """A sentence for each run that a job may ask for, with its cost."""
    rows = []
    if job.level is Level.SAVE_RESUME:
        rows.append((Role.UNINTERRUPTED, "when both phases are fine"))
    if job.level is Level.PARALLELISM:
        rows += [(Role.UNSHARDED, "when the run is fine"), (Role.KNOWN_GOOD, "when it was compared with that one")]
    if allowed.has_base(job):
        signal = job.level is Level.LEARNING_SIGNAL
        when = f"{allowed.baselines} time(s), whether it passes or fails" if signal else _WHEN_IT_FAILS
        rows += [(Role.MERGE_BASE, when), (Role.RETRY, "when the merge base does not end so")]
    if consumer_of(job).saves(job):
        rows.append((Role.WITHOUT_SAVE, "when it fails in export, save or load"))
    jobs = [(role, when, job_of(role, job, allowed.merge_base)) for role, when in rows if role in allowed.roles]
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
            return unsharded(job) if is_parity(job) else None
        case Role.KNOWN_GOOD:
            return through_mbridge(job)


def on_merge_base(job: Job, base: MergeBase) -> Job:
    """The identical job on another Bridge commit, in trees of its own, planned for what the change replaced."""
    bridge = job.bridge.model_copy(update={"commit": base.commit, "in_place": False})
    core = base.megatron_lm if job.megatron_lm is not None else None
    # What the change takes the place of is recorded there; what it adds is not there.
    changed = job.changed.on_merge_base()
    update = {"bridge": bridge, "megatron_lm": core, "patches": base.patches, "changed": changed}
    # Its time is what that of the head is compared with, however slow.
    return job.model_copy(update={**update, "performance": Slowdown.SHOW})


def without_change(job: Job) -> Job:
    """The same job as a run to compare with: whether it enters the changed code is asked of the first one alone."""
    return job.model_copy(update={"changed": NO_CODE, "purposes": ()})


def without_saving(job: Job, variant: str) -> Job | None:
    """The same training from step 1 to the end in one go, with no checkpoint; None when the job has none to leave out.

    A save/resume job without checkpoints is what level 0 runs (level 3 under FSDP), only longer, and is judged as that:
    it could not show what level 1 is for. The focused Bridge tests are those of the first run.
    """
    if not consumer_of(job).saves(job) or job.script != consumer_of(job).script:
        return None
    consumer = consumer_of(job)
    wrapper = {**job.wrapper, **consumer.never_saves.wrapper, **consumer.counts(job.gpus_of_node, job.steps).wrapper}
    whole = {**job.site.wrapper, **wrapper}
    update: dict[str, object] = {
        "wrapper": wrapper,
        **AS_REFERENCE,
        "expected": {**job.expected, **consumer.expected(whole, (*job.site.overrides, *job.overrides))},
    }
    if job.level is Level.SAVE_RESUME:
        level = Level.MEGATRON_FSDP if consumer.text(Axis.FSDP, whole, "False") == "True" else Level.SMOKE
        update |= {"level": level, "variant": variant, "id": f"{int(level)}-{variant}"}
    return job.model_copy(update=update)


def gpu_minutes(job: Job) -> int:
    """GPUs times minutes that one run of the job is expected to take, by its variant or its level's default one."""
    variant = variant_named(f"{int(job.level)}-{job.variant}") or variants_of(job.level)[0]
    return variant.cost.run_gpu_minutes(job.gpu_count)


def asks_whose(verdict: Verdict) -> bool:
    """Whether a run by itself ended in a way that the change may have caused."""
    return verdict.own_result is Result.FAIL or verdict.undecided


def _fine_but_for(verdict: Verdict, criterion: Criterion) -> bool:
    """Whether nothing but that criterion keeps the run from a Pass."""
    found = {item.criterion for item in verdict.evidence if item.state in (State.MISSING, State.BROKEN)}
    # Another job may enter the changed code; whether this run was good otherwise is then to be known.
    return verdict.own_result is Result.PASS or found - {Criterion.CHANGE_EXECUTED} == {criterion}


def without_base(allowed: Allowed, reason: str) -> Allowed:
    """The same without a merge base, and why, for the card."""
    return replace(allowed, roles=allowed.roles - {Role.MERGE_BASE, Role.RETRY}, merge_base=None, why_no_base=reason)

"""From a target to the jobs that are wanted for it: policy and plan of the base, requests of people, complete jobs.

Where a job has no run yet, a verdict on the same code is taken over: no GPU learns anything new.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_e2e.app.analysis import Analysis, Judged
from verl_e2e.app.known_targets import RecentValues
from verl_e2e.app.plan_change import Planned
from verl_e2e.core.compare.cell_map import unpack_cells
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.change import Change
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER
from verl_e2e.core.model.jobs import Checkpoint, Isolation, Patch, RehearsalJob, Repository, SiteProfile
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.build import NO_PATCHES, BuildError, PatchChoice, build_job, select_patches
from verl_e2e.core.plan.code_plan import replaced_lines
from verl_e2e.core.plan.contract import Kind
from verl_e2e.core.plan.job_models import variant_model
from verl_e2e.core.plan.outline import as_asked, in_order, refused_image, site_in_image
from verl_e2e.core.plan.plan import JobOutline, Plan, plan, with_tests
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import NOT_KNOWN, ReachedFiles
from verl_e2e.core.pulls.commands import GivenEntry, level_requests, variants_asked
from verl_e2e.core.pulls.forge import MergeGroup, Pull, PullState, Target, repository_of
from verl_e2e.core.pulls.job_order import BRIDGE_FOLDER, origins_of, portable_sources
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.target_state import rehearsed_before_jobs
from verl_e2e.core.pulls.wanted_jobs import (
    PastCost,
    WantedJob,
    expected_cost,
    is_same_change,
    may_take_over,
    past_costs,
    reuse_key,
    run_to_reuse,
    taken_over,
    to_judge_again,
)
from verl_e2e.core.text import packed
from verl_e2e.log_context import log_context
from verl_e2e.ports import ChangeSource, Clock, Ledger, Revisions, SourceTrees


def fit_patches(patches: Iterable[Patch], at: Mapping[str, tuple[ChangeSource, str]]) -> PatchChoice:
    """Which patches fit; `at` gives the source and the commit of each repository by its name."""

    contents: dict[Patch, bytes] = {}

    def digest_of(patch: Patch) -> str | None:
        source, commit = at[patch.repository]
        blob = source.read_blob(commit, patch.file)
        if blob is None:
            return None
        contents[patch] = blob
        return hashlib.sha256(blob).hexdigest()

    choice = select_patches(patches, digest_of)
    return replace(choice, lines={patch: replaced_lines(patch, contents[patch]) for patch in choice.chosen})


# Below these a rehearsal imports what it runs: Bridge's sources, and the commit of Megatron-LM that they pin.
_REHEARSED = ("src/", MEGATRON_LM_FOLDER)
# A plan that lacks what a server did not give is made again after these seconds.
REPLAN_S = 300.0
# Runs are kept for ever: no more of them than these newest are read to tell what a job costs.
_TELLING_RUNS = 500

log = logging.getLogger(__name__)


class UnplannableError(UserError):
    """Planning this head takes more than it may."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is wanted for a target: `plan` is None where `problem` says why there is none."""

    plan: Plan | None = None
    problem: str = ""
    broken: tuple[str, ...] = ()
    wanted: tuple[WantedJob, ...] = ()
    merge_base: str = ""
    reached: ReachedFiles = NOT_KNOWN
    # The same of the jobs of other consumers, by their names.
    reached_by: Mapping[str, ReachedFiles] = field(default_factory=dict)
    rehearsal: RehearsalJob | None = None
    rehearsal_missing: str = ""


@dataclass(frozen=True, slots=True)
class JobSources:
    """Where the jobs of this installation find what they run."""

    verl: Callable[[str], Revisions]
    """The verl repository in which a revision can be found."""
    site: SiteProfile
    """The host profile of the jobs."""
    fetched_from: str = ""
    """The site that runners fetch the repository under test from; empty: the back end checks everything out."""
    program: str = ""
    """The version of what runs and judges the jobs: a verdict of another one is not reused."""


@dataclass(frozen=True, slots=True)
class RequiredJobs:
    """Plans targets and completes their jobs."""

    analysis: Analysis
    changes: Callable[[Target], SourceTrees]
    job_sources: JobSources
    ledger: Ledger
    clock: Clock
    past_costs: RecentValues[tuple[PastCost, ...]] = field(default_factory=lambda: RecentValues(64))
    plans: RecentValues[Planned] = field(default_factory=lambda: RecentValues(64))
    unplannable: RecentValues[str] = field(default_factory=lambda: RecentValues(256))
    # When a plan that may be better the next time was made.
    tried: RecentValues[float] = field(default_factory=lambda: RecentValues(64))

    def prepare(self, target: Target, policy: Policy, entries: tuple[GivenEntry, ...]) -> Prepared:
        """The plan of the target and every wanted job, complete or with what is missing."""
        today = self.clock.now().date()
        # A plan ends with the entries of the policy that it rests on.
        over = (defect.name for defect in policy.defects if today > defect.until)
        key = (repository_of(target), target.base_sha, target.head_sha, policy.source, policy.text_digest, *over)
        try:
            trees = self.changes(target)
            found = self._recent(key, target, policy)
        except UserError as error:
            return Prepared(problem=str(error))
        broken = tuple(str(item) for item in found.contract if item.kind is Kind.BREAK)
        # A fork's code runs only where the recorder is out of its reach, whatever the policy prefers.
        stranger = isinstance(target, Pull) and target.from_fork
        strict = policy.model_copy(update={"isolation": Isolation.REQUIRED}) if stranger else policy
        repository = repository_of(target)
        past = self.past_costs.get(
            (repository, target.head_sha), lambda: past_costs(self.ledger.runs(repository, newest=_TELLING_RUNS))
        )
        builder = _Builder(strict, target, found.plan.head, trees, self.job_sources, past)
        rehearsal = builder.rehearsal(found.change)
        # What cells write is the word of the code under test: that of a stranger takes no job away.
        run = None
        if rehearsal is not None and not stranger:
            run = rehearsed_before_jobs(rehearsal, self.ledger.runs(repository, head_sha=target.head_sha))
        if run is not None and run.rehearsed is not None:
            own, cells = (*key, run.key), run.rehearsed.cells
            try:
                found = self._recent(own, target, policy, cells)
            except UnplannableError:
                log.warning("%s is planned without the cells of its rehearsal, which take too much", target.head_sha)
            except UserError as error:
                return Prepared(problem=str(error))

        def with_core(commit: str) -> Planned:
            """The plan of the head with another Megatron-LM."""
            try:
                return self._recent((*key, "megatron-lm", commit), target, policy, megatron_lm=commit)
            except UserError:
                log.warning("%s is not compared with Megatron-LM %s", target.head_sha, commit)
                return found

        wanted = [*_of_plan(found, policy, builder), *_extras(found, policy, entries, builder, with_core)]
        unique = {job.id: job for job in reversed(wanted)}
        jobs = tuple(job for job in wanted if unique.get(job.id) is job)
        missing, site = "", self.job_sources.site
        if rehearsal is not None and self.job_sources.fetched_from and not site.rehearsal_python:
            # The workflow makes the environment itself, other hosts have it.
            fix = "run `make rehearsal-env` on the host and name its Python in `rehearsal_python`"
            missing = f"the site profile {site.name} names no Python for rehearsals; {fix}"
        merge_base = found.change.merge_base or ""
        reached = found.reached, found.reached_by
        return Prepared(found.plan, "", broken, jobs, merge_base, *reached, rehearsal, missing)

    def _recent(
        self, key: tuple[str, ...], target: Target, policy: Policy, cells: str = "", megatron_lm: str = ""
    ) -> Planned:
        """The plan from memory, made again in a while where that may show more."""
        found = self.plans.get(key, lambda: self._planned(key, target, policy, cells, megatron_lm))
        now_s = self.clock.monotonic()
        if found.plan.passing and now_s - self.tried.get(key, lambda: now_s) >= REPLAN_S:
            self.tried.put(key, now_s)
            found = self.plans.put(key, self._planned(key, target, policy, cells, megatron_lm))
        return found

    def _planned(self, key: tuple[str, ...], target: Target, policy: Policy, cells: str, megatron_lm: str) -> Planned:
        """The plan by packed cells; what took too much once is not tried again on the same head by this process."""
        known = self.unplannable.find(key)
        if known is not None:
            raise UnplannableError(known)
        try:
            return self.analysis.plan(target, policy, unpack_cells(cells) if cells else None, megatron_lm)
        except LimitError as error:
            raise UnplannableError(self.unplannable.put(key, unplannable(error))) from None


def unplannable(error: LimitError) -> str:
    """Why there is no plan, and what its author can do."""
    return f"it cannot be planned: {error}; split the change, or leave out the file that takes so much"


def _of_plan(found: Planned, policy: Policy, builder: "_Builder") -> Iterator[WantedJob]:
    tests: dict[str, tuple[str, ...]] = {}
    for outline in in_order(found.plan.jobs):
        rules = policy.consumers.get(outline.consumer)
        made = builder.wanted(outline, required=rules is None or rules.level == "require")
        job = made.job
        if job is None:
            yield made
            continue
        tests[made.id] = job.bridge_tests
        same = (required for required in made.requires if tests.get(required) == job.bridge_tests)
        tested_by = next(same, "") if job.bridge_tests else ""
        reached = found.reached if rules is None else found.reached_by.get(outline.consumer, NOT_KNOWN)
        key = reuse_key(job, reached, builder.program, tested_by=tested_by)
        yield replace(made, reuse_key=key, tested_by=tested_by)


def _extras(
    found: Planned,
    policy: Policy,
    entries: Iterable[GivenEntry],
    builder: "_Builder",
    with_core: Callable[[str], Planned],
) -> Iterator[WantedJob]:
    """The jobs that people asked for beyond the plan; `with_core` plans with a commit of Megatron-LM."""
    for request in level_requests(entries, found.plan.head):
        core = request.options.get("mcore_ref", "")
        of_core = with_core(core) if core else found
        asked = with_tests(plan(of_core.change, policy, request.levels, of_core.effects), found.plan.tests)
        levels = {*request.levels, *({Level.SMOKE} - set(found.plan.levels))}
        outlines = [item for item in in_order(asked.jobs) if item.variant.level in levels]
        options = dict(sorted(request.options.items()))
        narrowed = [item for item in outlines if options and item.variant.level in request.levels]
        for outline in outlines:
            if outline not in narrowed:
                yield builder.wanted(outline, required=False, asked_by=request.source)
        mark = f"-x{hashlib.sha256(repr(list(options.items())).encode()).hexdigest()[:6]}"
        chosen = _with_variant(narrowed, options.get("variant", ""), policy)
        # What a variant takes the place of need not pass before others any more; the variant must.
        by_level = {item.variant.level: item for item in chosen}
        renamed = {item.id: (item if item in chosen else by_level[item.variant.level]).id + mark for item in narrowed}
        for outline in chosen:
            checkpoint = Checkpoint(model_id=options["model"]) if "model" in options else None
            changed = as_asked(outline, policy, checkpoint, int(options.get("steps", 0)))
            ref, image = options.get("verl_ref", policy.verl.commit), options.get("image", "")
            known = of_core.effects.defects if of_core.effects else ()
            made = builder.wanted(
                changed, ref, image, mark, core, required=False, asked_by=request.source, defects=known
            )
            requires = tuple(renamed.get(require, require) for require in made.requires)
            shown = " ".join(f"{name}={value}" for name, value in options.items())
            yield replace(made, options=shown, requires=requires)


def _with_variant(outlines: list[JobOutline], name: str, policy: Policy) -> list[JobOutline]:
    """The named variant, or every one of parity, in the place of all others of its level."""
    variants = variants_asked(name)
    same = next((outline for outline in outlines for item in variants if outline.variant.level is item.level), None)
    if same is None:
        return outlines
    plain = replace(same, purposes=(), settings={}, replaces="")
    made = [replace(plain, variant=item, checkpoint=variant_model(item, policy, same.checkpoint)) for item in variants]
    return list(
        in_order(item for item in (*outlines, *made) if item in made or item.variant.level is not same.variant.level)
    )


class _Builder:
    """Completes jobs of one target."""

    def __init__(
        self,
        policy: Policy,
        target: Target,
        head: str,
        trees: SourceTrees,
        sources: JobSources,
        past: tuple[PastCost, ...],
    ) -> None:
        self._policy, self._head, self._trees, self._sources, self._past = policy, head, trees, sources, past
        ref = f"refs/pull/{target.ref.number}/head" if isinstance(target, Pull) else ""
        self._origins = {
            consumer.name: origins_of(repository_of(target), ref, policy, sources.fetched_from, consumer)
            for consumer in CONSUMERS.values()
        }
        self._patches: dict[str, PatchChoice] = {}
        # The version of what runs and judges.
        self.program = sources.program

    def wanted(
        self,
        outline: JobOutline,
        verl_ref: str = "",
        image: str = "",
        mark: str = "",
        megatron_lm: str = "",
        *,
        required: bool = True,
        asked_by: str = "",
        defects: Iterable[KnownDefect] = (),
    ) -> WantedJob:
        """The job of an outline, or what is missing; with what is given in place of the policy's, and a marked id.

        `defects` are known of the head's code; a planned job has none of them, one that a person names may.
        """
        made = WantedJob(
            id=f"{outline.id}{mark}",
            level=outline.variant.level,
            requires=outline.requires,
            required=required,
            consumer=outline.consumer,
            asked_by=asked_by,
            uncoverable=outline.uncoverable,
        )
        policy, sources = self._policy, self._sources
        try:
            consumer = CONSUMERS[outline.consumer]
            verl_commit = policy.pin_of(consumer)
            if verl_ref and verl_ref != verl_commit:
                verl_commit = sources.verl(verl_ref).resolve(verl_ref)
            if image and (refused := refused_image(image, policy)):
                raise BuildError(refused)
            if consumer.pin:
                # Its patches were written for one commit, and the runner holds each file against its digest.
                own = consumer.patches if verl_commit == consumer.pin else ()
                self._patches[verl_commit] = PatchChoice(own, ())
            elif policy.patches and verl_commit not in self._patches:
                # Those that fit both commits.
                verl = sources.verl(verl_commit)
                places = {"bridge": (self._trees, self._head), "verl": (verl, verl_commit)}
                self._patches[verl_commit] = fit_patches(policy.patches, places)
            job = build_job(
                outline,
                policy=policy,
                site=site_in_image(sources.site, policy.image, image),
                sources=portable_sources(self._head, verl_commit, megatron_lm),
                patches=self._patches.get(verl_commit, NO_PATCHES),
                require_bridge_checks=policy.require_bridge_checks,
                defects=defects,
            )
        except (BuildError, UserError) as error:
            return replace(made, missing=str(error))
        job = job.model_copy(update={"id": made.id, "origins": self._origins[outline.consumer]})
        minutes, basis = expected_cost(outline, job, self._past)
        return replace(made, job=job, gpu_minutes=minutes, cost_basis=basis)

    def rehearsal(self, change: Change) -> RehearsalJob | None:
        """The rehearsal of a change, None where the policy has none or nothing changes that a rehearsal runs."""
        rules = self._policy.rehearsal
        if not rules.run or not any(name.startswith(_REHEARSED) for name in change.names()):
            return None
        return RehearsalJob(
            kind="rehearsal",
            bridge=Repository(path=BRIDGE_FOLDER, commit=change.head),
            base=change.merge_base or change.base,
            origins=self._origins[VERL.name],
            recipes=self._policy.recipes,
            cells=rules.cells,
            runner=rules.runner,
            python=self._sources.site.rehearsal_python,
            isolation=self._policy.isolation,
        )


_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerdictReuse:
    """Takes verdicts over, from any head of the repository with the same code in reach."""

    analysis: Analysis
    artifacts: Path
    clock: Clock
    ledger: Ledger
    refused: RecentValues[str] = field(default_factory=lambda: RecentValues(1024))

    def with_reused(
        self,
        target: Target,
        policy: Policy,
        prepared: Prepared,
        entries: tuple[GivenEntry, ...],
        runs: tuple[Run, ...],
    ) -> tuple[Run, ...]:
        """The runs with those that stand by the verdict of another one."""
        if target.destroyed if isinstance(target, MergeGroup) else target.state is PullState.CLOSED:
            return runs
        found = list(runs)
        for wanted in prepared.wanted:
            made = self._of_this_head(target, wanted, tuple(found))
            if policy.gate.reuse_h and may_take_over(wanted, target.head_sha, tuple(found), entries):
                reached = prepared.reached_by.get(wanted.consumer, prepared.reached)
                made = made or self._taken_over(target, policy, wanted, reached, runs)
            found.extend([made] if made is not None else [])
        return tuple(found)

    def _of_this_head(self, target: Target, wanted: WantedJob, runs: tuple[Run, ...]) -> Run | None:
        """A good run of this very job, judged again for what is asked of it now; None where that does not help."""
        run = to_judge_again(wanted, target.head_sha, runs)
        if run is None or self.refused.find((run.key, wanted.digest)) is not None:
            return None
        judged = self._judged_again(wanted, run)
        if judged is None or not (judged.result is Result.PASS or judged.never_entered):
            self.refused.put((run.key, wanted.digest), run.key)
            return None
        made = taken_over(run, wanted, target, runs, self.clock.now())
        return self.ledger.add_run(made.model_copy(update=judged.of_run))

    def _taken_over(
        self,
        target: Target,
        policy: Policy,
        wanted: WantedJob,
        reached: ReachedFiles,
        runs: tuple[Run, ...],
    ) -> Run | None:
        """A run on the same code as it is judged for a job, None where none speaks for it."""
        now, repository = self.clock.now(), repository_of(target)
        numbers = target.pulls if isinstance(target, MergeGroup) else ()
        inside = (run for number in numbers for run in self.ledger.runs(repository, number=number))
        listed = self.ledger.runs(repository, reuse_key=wanted.reuse_key)
        # A ledger that cannot list them has those at hand.
        known = {run.key: run for run in (*runs, *inside, *listed)}.values()
        origin = run_to_reuse(wanted, target, known, now, policy.gate.reuse_h)
        if origin is None or self.refused.find((origin.key, wanted.digest)) is not None:
            return None
        spoken: Run | None = None
        if not _ran_outside(origin, reached):
            if is_same_change(origin, wanted):
                spoken = origin
            elif (judged := self._judged_again(wanted, origin)) is not None and judged.result is Result.PASS:
                new = {"sentence": judged.sentence, "verdict": judged.verdict, "never_entered": False}
                spoken = origin.model_copy(update=new)
        if spoken is None:
            self.refused.put((origin.key, wanted.digest), origin.key)
            return None
        here = self.ledger.runs(repository, head_sha=target.head_sha)
        # Another bot may have started the job meanwhile: its run stays, and what comes of it counts.
        return self.ledger.add_run(taken_over(spoken, wanted, target, here, now))

    def _judged_again(self, wanted: WantedJob, origin: Run) -> Judged | None:
        if wanted.job is None:
            return None
        try:
            with log_context(run=origin.key, head=origin.head_sha, job=origin.job_id):
                return self.analysis.judge_again(origin, wanted.job, self.artifacts / origin.key)
        except LimitError:
            return None


def _ran_outside(run: Run, reached: ReachedFiles) -> bool:
    """Whether a run executed a source that the digest does not cover, so that the same digest says too little."""
    if not run.executed_files:
        return False
    try:
        executed = packed.unpack_text(run.executed_files, _MOST_BYTES).decode("utf-8", "replace").split("\n")
    except packed.UnpackError:
        return True
    return bool(reached.outside(executed))

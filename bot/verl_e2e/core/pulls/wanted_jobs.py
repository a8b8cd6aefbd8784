"""The jobs that are wanted for a head, and which runs and verdicts count for them.

A verdict depends on what its key says: two jobs with one key run the same code in the same way. Left out is what says
why a job was planned and not what it does: the commit, whose files have a digest of their own, the changed functions,
the purposes, and why a Bridge test was chosen. A verdict is judged again where these differ.

A Pass is taken over, and a run that was good and never entered the change where it is the same change. A Fail is not: a
red answer comes from a run of this head, with its own comparison with the merge base. Blocked says nothing.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.execution import NO_CODE
from verl_e2e.core.model.jobs import ChosenTest, Job, WhyChosen
from verl_e2e.core.model.levels import CostBasis, Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.pulls.commands import GivenEntry, asked_for
from verl_e2e.core.pulls.forge import MergeGroup, Pull, Target, repository_of
from verl_e2e.core.pulls.job_order import portable
from verl_e2e.core.pulls.ledger import Run, RunState, run_key

# Raise it whenever the same key could stand for something else.
_KEY_VERSION = 1
_ANY_COMMIT = "0" * 40
# What a job has of the change that it is for.
_FOR_CHANGE = frozenset({"changed", "purposes", "chosen_tests"})
# What only judging reads of a job: it changes nothing that a run does.
ASKED_OF_RESULT = _FOR_CHANGE | {"settings", "expected", "features", "not_restored", "defects", "performance"}
# What only planning reads of a site, or people: the job itself has what follows from it.
_OF_PLANNING = frozenset({"description", "limitations", "checkpoints", "reward_model", "data", "cannot_run"})
# What is said for people, wherever it stands in a job.
_TEXTS = frozenset({"reason", "upstream", "condition"})


def reuse_key(job: Job, reached: ReachedFiles, program: str, *, tested_by: str = "") -> str:
    """SHA-256 of everything that a verdict on the job depends on; empty where that is not known.

    `program` names the version that runs and judges. `tested_by` is the job that must pass the same Bridge tests on the
    same head before a verdict counts for this one, empty for none: what these read is then left out of this key.
    """
    files = reached.digest_for(tests=bool(job.bridge_tests) and not tested_by)
    if not files:
        return ""
    tests = tuple(
        ChosenTest(test=chosen.test, why=WhyChosen.POLICY, reason="", gpu_count=chosen.gpu_count)
        for chosen in job.chosen_tests
    )
    of_no_change = {"changed": NO_CODE, "purposes": (), "chosen_tests": tests}
    without_change = _at_any_commit(portable(job)).model_copy(update=of_no_change)
    document = without_change.model_dump(mode="json", exclude={"origins"})
    text = json.dumps([_KEY_VERSION, program, files, document], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def same_but_commit(job: Job, other: Job) -> bool:
    """Whether two jobs differ in the commit of Bridge alone: they are for the same change as well."""
    return _at_any_commit(portable(job)) == _at_any_commit(portable(other))


def same_work(job: Job, other: Job) -> bool:
    """Whether two jobs do the same, whatever the change that they are for and whatever is asked of their results."""
    return differing_keys(job, other) <= ASKED_OF_RESULT


def differing_keys(job: Job, other: Job) -> frozenset[str]:
    """The keys by which two jobs differ as this version reads them, as `overrides` or `site.python`.

    Without any they mean the same: a text for people and the commit of Bridge do not count, nor does a key that another
    version did not write and this one has a default for.
    """
    found, wanted = _meaning(job), _meaning(other)
    return frozenset(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))


def is_image_pinned(job: Job) -> bool:
    """Whether the image of a job is named by its digest: what it holds is then known."""
    return "@sha256:" in job.site.image


def _meaning(job: Job) -> dict[str, object]:
    # What a job takes of a host follows from the rest; where commits come from changes nothing of what they are.
    document = _at_any_commit(portable(job)).model_dump(mode="json", exclude={"needs", "origins"})
    of_site = {f"site.{key}": value for key, value in document.pop("site").items() if key not in _OF_PLANNING}
    return {key: _without_texts(value) for key, value in {**document, **of_site}.items()}


def _without_texts(value: object) -> object:
    match value:
        case dict():
            return {key: _without_texts(entry) for key, entry in value.items() if key not in _TEXTS}
        case list():
            return [_without_texts(entry) for entry in value]
        case _:
            return value


def _at_any_commit(job: Job) -> Job:
    return job.model_copy(update={"bridge": job.bridge.model_copy(update={"commit": _ANY_COMMIT})})


@dataclass(frozen=True, slots=True)
class WantedJob:
    """A job for one head, complete or with what is missing."""

    # Its id in the plan, as `0-lora-ddp`.
    id: str
    level: Level
    # The ids of wanted jobs that must pass first.
    requires: tuple[str, ...] = ()
    # The complete job; None when policy or site cannot complete it.
    job: Job | None = None
    # Why it cannot be completed, empty when it is complete.
    missing: str = ""
    # Why no host can ever run it, empty where one can.
    uncoverable: str = ""
    # Whether it decides the gate; false for what a person requested, and for what the policy only shows.
    required: bool = True
    # The program that trains, by its name in `core/consumer`.
    consumer: str = "verl"
    # The source of the entry that requested it, empty for a job of the plan.
    asked_by: str = ""
    # What a verdict on it depends on as a digest, empty where that is not known.
    reuse_key: str = ""
    # The job on whose Bridge tests it relies, so that `reuse_key` leaves out what they read; empty for none.
    tested_by: str = ""
    # What it is expected to cost.
    gpu_minutes: int = 0
    # Where `gpu_minutes` comes from.
    cost_basis: CostBasis = CostBasis.ESTIMATE
    # The options that it was asked for with, `name=value` with spaces between; empty for none.
    options: str = ""

    @property
    def shown(self) -> bool:
        """Whether the plan asks for it only to be shown, as the policy may have it for another trainer."""
        return not (self.required or self.asked_by) and self.consumer != VERL.name

    @property
    def of_plan(self) -> bool:
        """Whether the plan asks for it, be it only to be shown."""
        return self.required or self.shown

    @property
    def digest(self) -> str:
        """The digest of the complete job wherever it lies, empty when there is none."""
        return portable(self.job).digest() if self.job is not None else ""


def does(run: Run, wanted: WantedJob) -> bool:
    """Whether a run of the wanted job's head does its work, though another version may have written or judged it."""
    if run.job_id != wanted.id or wanted.job is None:
        return False
    return run.job_digest == wanted.digest or (run.job is not None and same_work(run.job, wanted.job))


def must_be_judged_again(run: Run, wanted: WantedJob) -> bool:
    """Whether a run that does a job's work was good for what another version, or another base, asked of the result."""
    if not (run.result is Result.PASS or run.never_entered) or run.job_digest == wanted.digest:
        return False
    return run.job is not None and wanted.job is not None and bool(differing_keys(run.job, wanted.job))


def replaced_run(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> Run | None:
    """The last run that ended under the name of a job of a head and does not speak for it, None for none."""
    named = (run for run in runs if (run.head_sha, run.job_id) == (head_sha, wanted.id) and run.result is not None)
    others = (run for run in named if not does(run, wanted) or must_be_judged_again(run, wanted))
    return max(others, key=lambda run: run.updated, default=None) if wanted.job is not None else None


def changed_since(run: Run, wanted: WantedJob) -> str:
    """Why a run does not count for the job of its name, as a clause."""
    if run.job is None or wanted.job is None:
        return "its job is not known any more"
    keys = differing_keys(run.job, wanted.job)
    named = ", ".join(sorted(keys - ASKED_OF_RESULT or keys))
    left = "" if keys - ASKED_OF_RESULT else ", of which its run folder does not tell"
    return f"the job changed since then: {named}{left}"


def runs_of(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs that speak for a wanted job: of this very head and this very job, by attempt.

    Nothing else is evidence for a required job: no run of another head, none that does other work, none made as an
    extra, and none that was good for something else.
    """
    found = (run for run in runs if run.head_sha == head_sha and does(run, wanted))
    same = (run for run in found if not must_be_judged_again(run, wanted))
    return tuple(sorted((run for run in same if run.of_plan or not wanted.required), key=lambda run: run.attempt))


def may_take_over(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...], entries: Iterable[GivenEntry]) -> bool:
    """Whether another verdict may stand for a job of this head: nothing of its own does, and no one asked for a run.

    Where the key leaves Bridge tests to another job, those must have passed on this head: an override or a tolerated
    failure of that job says nothing of them.
    """
    if not wanted.of_plan or wanted.job is None or not wanted.reuse_key:
        return False
    if wanted.tested_by:
        made_here = [run for run in runs if (run.head_sha, run.job_id) == (head_sha, wanted.tested_by) and run.of_plan]
        last = max(made_here, key=lambda run: (run.attempt, run.created), default=None)
        if last is None or last.job is None or last.job.bridge_tests != wanted.job.bridge_tests:
            return False
        if last.result is not Result.PASS and not last.never_entered:
            return False
    if any(asked.verb == "rerun" for asked in asked_for(entries, head_sha)):
        return False
    made = runs_of(wanted, head_sha, runs)
    return not made or (made[-1].state is RunState.CANCELLED and made[-1].may_start_again)


def to_judge_again(wanted: WantedJob, head_sha: str, runs: tuple[Run, ...]) -> Run | None:
    """The run behind the last verdict of a job of this head, where that was good for what was asked then; else None."""
    known = [run for run in runs if does(run, wanted) and (run.of_plan or not wanted.required)]
    last = max((run for run in known if run.head_sha == head_sha), key=lambda run: run.attempt, default=None)
    if last is None or not must_be_judged_again(last, wanted):
        return None
    ran = (run for run in known if run.head_sha == (last.carried_from or head_sha) and not run.carried_from)
    good = (run for run in ran if run.state is RunState.FINISHED and run.result is last.result)
    return max(good, key=lambda run: run.attempt, default=None)


def run_to_reuse(wanted: WantedJob, target: Target, found: Iterable[Run], now: datetime, most_h: int) -> Run | None:
    """The run whose verdict may count for a job, None where there is none.

    The newest verdict on the code decides, but a Pass that any other run contradicts does not count: where attempts
    disagree, a head shows its own.
    """
    age, own = timedelta(hours=most_h), target.pulls if isinstance(target, MergeGroup) else (target.ref.number,)
    telling = [
        run
        for run in found
        if run.state is RunState.FINISHED and (run.result in (Result.PASS, Result.FAIL) or run.never_entered)
        if run.of_plan and not run.carried_from and run.job is not None and run.reuse_key == wanted.reuse_key
        if now - run.updated <= age
    ]
    # Any failed run speaks against a Pass but that of a stranger's other pull request. It need not have recorded
    # anything, for what crashed early did not, and no other result becomes green by it.
    if any(run.result is Result.FAIL and (not run.from_fork or run.number in own) for run in telling):
        return None
    passed = (run for run in telling if run.result is not Result.FAIL and _may_speak(run, own))
    newest = max(passed, key=lambda run: (run.updated, run.key), default=None)
    if newest is None:
        return None
    return newest if newest.result is Result.PASS or is_same_change(newest, wanted) else None


def is_same_change(run: Run, wanted: WantedJob) -> bool:
    """Whether a run was for the very change that a job is for, so that its verdict holds as it is."""
    return run.job is not None and wanted.job is not None and same_but_commit(run.job, wanted.job)


def _may_speak(run: Run, own: tuple[int, ...]) -> bool:
    """Whether a run may speak for a target with these pull requests.

    One of the same pull request may. One of another may if nothing about it was left to chance or to a stranger: its
    image is pinned, it recorded which files it ran, and its head did not lie in a fork.
    """
    pinned = run.job is not None and is_image_pinned(run.job)
    return run.number in own or (pinned and bool(run.executed_files) and not run.from_fork)


def taken_over(origin: Run, wanted: WantedJob, target: Target, made: Iterable[Run], now: datetime) -> Run:
    """The run that stands for a job by the verdict of another one, at no cost; `made` are all runs of the head."""
    attempt = 1 + max((run.attempt for run in made if does(run, wanted)), default=0)
    key = run_key(repository_of(target), target.head_sha, wanted.digest, attempt)
    return origin.model_copy(
        update={
            "key": key,
            "number": None if isinstance(target, MergeGroup) else target.ref.number,
            "head_sha": target.head_sha,
            "job_id": wanted.id,
            "job_digest": wanted.digest,
            "attempt": attempt,
            "required": wanted.required,
            "shown": wanted.shown,
            "carried_from": origin.head_sha,
            "origin_number": origin.number,
            "origin_at": origin.updated,
            "handle": "",
            "asked_by": "",
            "nonce": "",
            "retry_of": "",
            "gpu_minutes": 0.0,
            "created": now,
            "updated": now,
            "job": wanted.job,
            "from_fork": isinstance(target, Pull) and target.from_fork,
        }
    )


def origin_text(run: Run) -> str:
    """Where a verdict was taken from, empty for a run's own: head, pull request and day."""
    if not run.carried_from:
        return ""
    if run.carried_from == run.head_sha and run.origin_at is not None:
        return f"judged again for this job, from the run that ended on {run.origin_at:%Y-%m-%d}"
    whose = f" of #{run.origin_number}" if run.origin_number is not None else ""
    when = f", {run.origin_at:%Y-%m-%d}" if run.origin_at is not None else ""
    return f"reused from {run.carried_from[:12]}{whose}{when}"


def job_of_continued(run: Run, head_sha: str, wanted: Iterable[WantedJob], here: tuple[Run, ...]) -> WantedJob | None:
    """The job of this head that a live run of an earlier one does, None where it does none.

    What this head has a run of its own for needs no other one. A run that no machine has, which waits in our own queue
    for example, does nothing that could go on.
    """
    if run.state is RunState.QUEUED:
        return None
    if run.head_sha == head_sha or run.state.final or run.state is RunState.CANCELLING or not run.reuse_key:
        return None
    same = (job for job in wanted if job.of_plan and run.of_plan and job.reuse_key == run.reuse_key)
    return next((job for job in same if is_same_change(run, job) and not runs_of(job, head_sha, here)), None)


def continued(
    runs: Iterable[Run], head_sha: str, wanted: tuple[WantedJob, ...], here: tuple[Run, ...]
) -> Iterator[Run]:
    """The runs that go on, each as a run of this head."""
    for run in runs:
        job = job_of_continued(run, head_sha, wanted, here)
        if job is not None:
            yield run.model_copy(update={"head_sha": head_sha, "job_id": job.id, "job_digest": job.digest})


# Older runs say less about today's host, image and verl.
_LATEST = 5


@dataclass(frozen=True, slots=True)
class PastCost:
    """One run that passed: which job it was, on how many GPUs, with which model, and its GPU minutes."""

    job_id: str
    gpu_count: int
    model_id: str
    gpu_minutes: float


def past_costs(runs: Iterable[Run]) -> tuple[PastCost, ...]:
    """What the runs cost that passed and really ran, oldest first; one carried forward cost nothing."""
    return tuple(
        PastCost(run.job_id, run.job.gpu_count, run.job.checkpoint.model_id, run.gpu_minutes)
        for run in runs
        if run.state is RunState.FINISHED and run.result is Result.PASS and run.job is not None
        if run.gpu_minutes > 0 and not run.carried_from
    )


def expected_cost(outline: JobOutline, job: Job | None, past: Iterable[PastCost]) -> tuple[int, CostBasis]:
    """GPU minutes of all runs of a planned job, and where the number comes from; nothing for one that is not run.

    `job` is the complete job, with the model and the GPUs of its host. A past run tells its own time; the runs that
    always follow are counted in the proportion of the measured table.
    """
    if job is None:
        return 0, outline.cost_basis
    table = outline.variant.cost
    wanted = (outline.id, job.gpu_count, job.checkpoint.model_id)
    found = [cost.gpu_minutes for cost in past if (cost.job_id, cost.gpu_count, cost.model_id) == wanted]
    if found:
        runs = (table.run_s + table.reference_s) / table.run_s
        return math.ceil(median(found[-_LATEST:]) * runs), CostBasis.PAST_RUNS
    basis = table.basis if job.gpu_count == outline.variant.gpu_count else CostBasis.ESTIMATE
    return table.gpu_minutes(job.gpu_count), basis

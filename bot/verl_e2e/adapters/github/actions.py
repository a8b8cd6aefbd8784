"""Run jobs on GitHub Actions runners: one `workflow_dispatch` for each run, found again by the run's key.

The handle is the number of the workflow run. `submit` first searches for a run with the key, so a lost answer
never starts a job twice. What runs is `.github/workflows/verl-e2e.yml`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.jobs import Job, RunOrder
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.model.record import MOST_FOLDER_BYTES
from verl_e2e.core.pulls.forge import (
    Artifact,
    Attestation,
    Attested,
    Handover,
    UnprovenError,
    WorkflowJob,
    WorkflowRun,
    why_not,
)
from verl_e2e.core.pulls.job_order import OrderError, check_inputs, minutes_of, pack_order
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import BackendError, Clock, ForgeError, Progress, UncertainError

_AGAIN = "then comment `/verl-e2e rerun blocked`"
_APP_PAGE = (
    "set it on the App's page under `Permissions & events`, accept it where the App is installed under `Review request`"
)


class Doing(StrEnum):
    """What we asked of GitHub."""

    START = "start the job"
    LOOK = "give the state of the job"
    BRING = "give the results of the job"


@contextmanager
def refusals(doing: Doing, workflow: str, branch: str) -> Iterator[None]:
    """Turn ForgeError into BackendError: a temporary one is retried, any other must be fixed by a person."""
    try:
        yield
    except ForgeError as error:
        message = str(error) if error.passing else refusal_text(error, doing, workflow, branch)
        uncertain = isinstance(error, UncertainError)
        raise BackendError(message, final=not error.passing, uncertain=uncertain, wait_s=error.wait_s) from error


def refusal_text(error: ForgeError, doing: Doing, workflow: str, branch: str) -> str:
    """What was refused for good, and what to do about it."""
    path = f".github/workflows/{workflow}"
    if error.permission:
        return f"our App may not {doing}: it does not have the permission `{error.permission}`; {_APP_PAGE}, {_AGAIN}"
    # GitHub's message for a missing branch.
    if doing is Doing.START and (error.absent or "No ref found" in error.answer):
        where = f"`{path}` is not on the branch {branch}, so no job can start"
        return f"{where}; add this version's file there, and on the default branch, {_AGAIN}"
    if doing is Doing.START:
        what = f"GitHub did not accept the dispatch of `{path}`: {error.answer}"
        return (
            f"{what}; run `verl-e2e doctor` to compare the file with this version's, put that one on {branch}, {_AGAIN}"
        )
    if doing is Doing.BRING:
        what = f"the upload of the job cannot be used: {error.answer}"
        return f"{what}; `/verl-e2e rerun blocked` runs the job on the GPUs again"
    return f"GitHub does not {doing}: {error.answer}; `/verl-e2e rerun blocked` runs the job on the GPUs again"


WORKFLOW = "verl-e2e.yml"
# The job that checks, uploads and attests the run folder; it runs none of the code under test.
ATTEST = "attest"
# The step that runs the code under test, and the one before it that takes the change itself.
RUN_STEP, CHECKOUT_STEP = "Run the job", "Check the exact commit out"
_TITLES: Mapping[str, str] = {
    "startup_failure": "the workflow could not start",
    "stale": "GitHub marked the run as stale",
}


def runners_by_size(sizes: tuple[int, ...] = (1, 2, 4, 8)) -> dict[int, tuple[str, ...]]:
    """Labels of self-hosted runners by the number of their GPUs, as `[self-hosted, linux, gpu-x8]`."""
    return {size: ("self-hosted", "linux", f"gpu-x{size}") for size in sizes}


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How jobs are started on GitHub, and how long we wait for them."""

    # The branch that holds the workflow file.
    branch: str
    # The repository and commit of the verl-e2e that runs the job.
    tool_repository: str
    tool_sha: str
    # Verifies an attestation and gives its content; UnprovenError.
    verify: Callable[[str], Attested]
    # The name of the workflow file.
    workflow: str = WORKFLOW
    # Labels of self-hosted runners by number of GPUs.
    runners: Mapping[int, tuple[str, ...]] = field(default_factory=runners_by_size)
    # Runners for the jobs of forks; empty when they use the same ones.
    fork_runners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    # A run that was cancelled and has not ended after this time is ended by force.
    force_after_s: float = 300.0
    # The tag of a release by which workflows name that commit; empty for none.
    tool_tag: str = ""
    # Whether other jobs of the workflow run, such as a report, follow the one that was started.
    followed: bool = False
    # Whether a folder counts without proof that the workflow's second job handed it over.
    attestation: Attestation = Attestation.PREFERRED


class GitHubActionsBackend:
    """The self-hosted runners of the repository under test."""

    def __init__(self, workflows: GithubWorkflows, settings: DispatchSettings, clock: Clock) -> None:
        self._workflows = workflows
        self._settings = settings
        self._clock = clock
        # When each run was first cancelled; after a restart, when its state was last written.
        self._asked: dict[int, datetime] = {}
        self._given_up: set[int] = set()
        # Why nothing proves who handed a folder over, by the run's key.
        self._doubts: dict[str, str] = {}

    def _refusals(self, doing: Doing) -> AbstractContextManager[None]:
        return refusals(doing, self._settings.workflow, self._settings.branch)

    def submit(self, run: Run) -> str:
        """Dispatch the workflow once; the handle is the number of its run."""
        inputs = order_inputs(run, self._settings)
        with self._refusals(Doing.START):
            known = self._workflows.find(run.repository, self._settings.workflow, run.key, self._settings.branch)
            settings = self._settings
            started = known or self._workflows.dispatch(
                run.repository, settings.workflow, settings.branch, inputs, run.key
            )
        return str(started.id)

    def find(self, run: Run) -> str:
        """The number of the workflow run that shows the key, empty when none is listed."""
        with self._refusals(Doing.LOOK):
            found = self._workflows.find(run.repository, self._settings.workflow, run.key, self._settings.branch)
        return str(found.id) if found is not None else ""

    def end_doubles(self, run: Run) -> None:
        """Cancel every other workflow run that shows the key, and take nothing from it."""
        with self._refusals(Doing.LOOK):
            found = self._workflows.found(run.repository, self._settings.workflow, run.key, self._settings.branch)
            for item in found:
                if str(item.id) != run.handle and not item.ended:
                    self._workflows.cancel(run.repository, item.id)

    def poll(self, run: Run) -> Progress:
        """The state of the run on GitHub. A run that no runner takes before the deadline is cancelled."""
        with self._refusals(Doing.LOOK):
            found = self._found(run)
            if found is None and run.state is RunState.CANCELLING:
                return Progress(RunState.CANCELLED, "GitHub no longer has this run")
            if found is None:
                what = f"GitHub no longer has the run of {self._settings.workflow} for it; run the job again"
                return Progress(RunState.LOST, what, end=EngineEnd.FORGOTTEN)
            # When the requested job has ended, later jobs may still run or be cancelled.
            open_or_dropped = found.conclusion == "cancelled" if found.ended else self._settings.followed
            rows = self._workflows.jobs(run.repository, found.id) if open_or_dropped else ()
            own = _of_order(rows, run)
            if own and all(job.status == "completed" for job in (*own, *_named(rows, ATTEST))):
                found = replace(found, status="completed", conclusion=own[-1].conclusion)
            if found.ended:
                return self._ended(run, found)
            now = self._clock.now()
            if run.state is RunState.CANCELLING:
                self._asked.setdefault(found.id, run.updated)
            elif found.status != "in_progress" and self._overdue(run, found) and found.id not in self._asked:
                self._asked[found.id] = now
                self._given_up.add(found.id)
                self._workflows.cancel(run.repository, found.id)
            asked = self._asked.get(found.id)
            if asked is not None and now - asked >= timedelta(seconds=self._settings.force_after_s):
                self._workflows.cancel(run.repository, found.id, force=True)
            return self._going(run, found)

    def cancel(self, run: Run) -> None:
        """Cancel the workflow run; a later `poll` ends it by force if it does not end."""
        with self._refusals(Doing.LOOK):
            found = self._found(run)
            if found is not None and not found.ended:
                self._asked.setdefault(found.id, self._clock.now())
                self._workflows.cancel(run.repository, found.id)

    def where(self, run: Run) -> str:  # noqa: ARG002  (the port's signature)
        """Empty: GitHub's page of the run shows it."""
        return ""

    def log(self, run: Run) -> Iterator[bytes]:  # noqa: ARG002
        """Nothing: GitHub shows the log of a job under way on its own page alone."""
        return iter(())

    def artifacts(self, run: Run, into: Path) -> bool:
        """Unpack the run folder that the workflow uploaded into the new folder `into`; false when there is none."""
        if into.exists():
            return True
        with self._refusals(Doing.BRING):
            artifact = self._artifact(run)
            if artifact is None:
                return False
            if artifact.size > MOST_FOLDER_BYTES:
                what = f"the artifact {artifact.name} has {artifact.size:,} bytes; the limit is {MOST_FOLDER_BYTES:,}"
                raise BackendError(f"{what}; look at it on GitHub and run the job again", final=True)
            doubt = self._doubts[run.key] = self._doubt(run, artifact)
            if doubt and self._settings.attestation is Attestation.REQUIRED:
                raise BackendError(doubt, final=True)
            self._workflows.fetch(run.repository, artifact, into, limit=MOST_FOLDER_BYTES)
        return True

    def unattested(self, run: Run) -> str:
        """Why nothing proves that the workflow's second job handed the folder over, empty when an attestation does."""
        if run.key not in self._doubts:
            with self._refusals(Doing.BRING):
                artifact = self._artifact(run)
                self._doubts[run.key] = self._doubt(run, artifact) if artifact else ""
        return self._doubts[run.key]

    def _artifact(self, run: Run) -> Artifact | None:
        """The newest run folder that the workflow run left, None when it left none."""
        found = None if run.handle.isdigit() else self._found(run)
        number = int(run.handle) if run.handle.isdigit() else found.id if found else 0
        left = self._workflows.artifacts(run.repository, number) if number else ()
        ours = [artifact for artifact in left if artifact.name == artifact_name(run.key) and not artifact.expired]
        return max(ours, key=lambda artifact: artifact.id, default=None)

    def _doubt(self, run: Run, artifact: Artifact) -> str:
        found, settings, reason = self._found(run), self._settings, "GitHub has no attestation of it"
        if not artifact.sha256 or found is None:
            reason = "GitHub does not give its digest"
        else:
            repository = found.url.partition("/actions/runs/")[0]
            web = found.url.partition(f"/{run.repository}/")[0]
            place = f"{web}/{settings.tool_repository}/.github/workflows/{WORKFLOW}"
            called = (settings.tool_sha, *((f"refs/tags/{settings.tool_tag}",) if settings.tool_tag else ()))
            ours = f"{repository}/.github/workflows/{settings.workflow}@refs/heads/{settings.branch}"
            asked = Handover(
                digest=artifact.sha256,
                repository=repository,
                workflow=ours,
                # The job may lie in the dispatched workflow itself, or in ours that it calls at the commit or tag.
                signers=(ours, *(f"{place}@{revision}" for revision in called)),
                commit=found.head_sha,
                run=f"{found.url}/attempts/{found.attempt}",
            )
            bundles: tuple[str, ...] = ()
            try:
                bundles = self._workflows.attestations(run.repository, artifact.sha256)
            except ForgeError as error:
                if error.passing:
                    raise
                reason = str(error)
            for bundle in bundles:
                try:
                    reason = why_not(settings.verify(bundle), asked)
                except UnprovenError as error:
                    reason = f"its attestation cannot be verified: {error}"
                if not reason:
                    return ""
        what = f"nothing proves that the job {ATTEST} of {settings.workflow} handed over the run folder: {reason}"
        return f"{what}; copy this version's workflow, whose job {ATTEST} uploads and attests it"

    def _found(self, run: Run) -> WorkflowRun | None:
        if run.handle.isdigit():
            return self._workflows.run(run.repository, int(run.handle))
        return self._workflows.find(run.repository, self._settings.workflow, run.key, self._settings.branch)

    def _ended(self, run: Run, found: WorkflowRun) -> Progress:
        if found.conclusion in _TITLES:
            fix = "look at its page, fix the workflow with `verl-e2e doctor`, and run the job again"
            what = f"{_TITLES[found.conclusion]}; {fix}"
            return Progress(RunState.LOST, what, found.url, end=EngineEnd.NOT_STARTED)
        cancelled, given_up = found.conclusion == "cancelled", found.id in self._given_up
        if cancelled and run.state is RunState.CANCELLING and not given_up:
            return Progress(RunState.CANCELLED, "it was cancelled", found.url)
        overdue = cancelled and not given_up and self._overdue(run, found)
        rows = self._workflows.jobs(run.repository, found.id) if overdue or not cancelled else ()
        own = _of_order(rows, run)
        if (given_up and cancelled) or (overdue and not any(job.runner for job in own or rows)):
            return Progress(RunState.LOST, self._no_runner(run), found.url, end=EngineEnd.NO_MACHINE)
        if cancelled:
            return Progress(RunState.CANCELLED, "someone cancelled it on GitHub", found.url)
        # Where it leaves no folder: did its machine fail, and before anything of the change ran?
        end = None
        if any(job.never_reached(RUN_STEP, CHECKOUT_STEP) for job in own):
            end = EngineEnd.NODE_NOT_READY
        elif any(job.lost_its_machine for job in own):
            end = EngineEnd.NODE_FAILED
        # A success needs all our jobs and the whole run; the jobs that follow still run when one of them reads this.
        ends = [job.conclusion for job in (*(own or rows), *_named(rows, ATTEST))]
        ends += [found.conclusion] if not self._settings.followed else []
        took = BackendTimes(
            who=f"GitHub's job {run.job_id}",
            started=min((job.started for job in own or rows if job.started), default=None),
            ended=max((job.ended for job in own or rows if job.ended), default=None),
            succeeded=all(end == "success" for end in ends),
            conclusion=next((end for end in ends if end != "success"), "success"),
        )
        return Progress(RunState.FINISHED, "", found.url, took, end)

    def _going(self, run: Run, found: WorkflowRun) -> Progress:
        if run.state is RunState.CANCELLING:
            return Progress(RunState.CANCELLING, "GitHub is ending it", found.url)
        if found.id in self._given_up:
            return Progress(RunState.CANCELLING, self._no_runner(run), found.url)
        if found.status == "in_progress":
            where = "on a runner without a GPU" if run.rehearsal is not None else "on a GPU host"
            return Progress(RunState.RUNNING, f"it runs {where}", found.url)
        if found.status == "waiting":
            return Progress(RunState.SUBMITTED, "it waits for an approval on GitHub", found.url)
        return Progress(RunState.SUBMITTED, f"it waits for a runner with {_words(self._labels(run))}", found.url)

    def _overdue(self, run: Run, found: WorkflowRun) -> bool:
        since = found.created or run.ordered
        return self._clock.now() - since >= timedelta(seconds=run.queue_deadline_s)

    def _no_runner(self, run: Run) -> str:
        labels = _words(self._labels(run))
        what = f"no runner with {labels} took the job within {run.queue_deadline_s // 60} minutes"
        return f"{what}; start one with these labels (`verl-e2e doctor` lists those that answer), and run the job again"

    def _labels(self, run: Run) -> tuple[str, ...]:
        return _labels(run.order, run, self._settings) if run.order else ()


def _of_order(rows: tuple[WorkflowJob, ...], run: Run) -> tuple[WorkflowJob, ...]:
    """The jobs of a workflow run with the name of the requested job, also when a calling workflow adds a prefix."""
    return _named(rows, run.job_id)


def _named(rows: tuple[WorkflowJob, ...], name: str) -> tuple[WorkflowJob, ...]:
    """The jobs with a name; one that was skipped is that of the other kind of order."""
    named = (job for job in rows if job.name == name or job.name.endswith(f" / {name}"))
    return tuple(job for job in named if job.conclusion != "skipped")


def artifact_name(key: str) -> str:
    """The name under which the workflow uploads the folder of a run."""
    return f"verl-e2e-{key}"


def labels_for(gpu_count: int, runners: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """The labels of the smallest runner with enough GPUs; BackendError when none is large enough."""
    sizes = sorted(size for size in runners if size >= gpu_count)
    if not sizes:
        most = max(runners, default=0)
        what = f"the job needs {gpu_count} GPUs, and the largest runner that is named has {most}"
        raise BackendError(f"{what}; name the labels of a larger one", final=True)
    return runners[sizes[0]]


def _labels(job: RunOrder, run: Run, settings: DispatchSettings) -> tuple[str, ...]:
    """The labels of the runner of a run; a fork's has a pool of its own where one is named."""
    pool = settings.fork_runners if run.from_fork and settings.fork_runners else settings.runners
    return labels_for(job.gpu_count, pool) if isinstance(job, Job) else (job.runner,)


def order_inputs(run: Run, settings: DispatchSettings) -> dict[str, str]:
    """The inputs of the workflow for a run; BackendError, final, for an order that GitHub or a runner cannot take."""
    job = run.order
    if job is None:
        raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
    # Without an image the workflow runs it as a rehearsal, on a machine without a GPU.
    image = job.site.image if isinstance(job, Job) else ""
    if not image and isinstance(job, Job):
        fix = "set `image` in the policy or in the site profile"
        raise BackendError(f"no container image is named for {job.id}; {fix}", final=True)
    inputs = {
        "key": run.key,
        "job_id": run.job_id,
        "job": pack_order(job, run.merge_base, run.nonce),
        "pull": "" if run.number is None else str(run.number),
        "head_sha": run.head_sha,
        "labels": "[" + ",".join(f'"{label}"' for label in _labels(job, run, settings)) + "]",
        "image": image,
        "timeout_minutes": str(minutes_of(job)),
        "tool_repository": settings.tool_repository,
        "tool_sha": settings.tool_sha,
    }
    try:
        check_inputs(inputs)
    except OrderError as error:
        raise BackendError(str(error), final=True) from None
    return inputs


def _words(labels: tuple[str, ...]) -> str:
    return "the labels " + ", ".join(labels) if labels else "the labels of the job"

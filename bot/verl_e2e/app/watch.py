"""Watch a branch: run the policy's levels on its tip, find what broke a job there, and say so in one issue.

A look reads everything again, as that at a pull request: the note of the last round on the branch, the runs of its
commit and of those that were run to find a culprit. What is asked of the back end, and how runs are started and judged,
is the same as for a merge group.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.known_targets import KnownTargets, NoPolicyError, RecentValues
from verl_e2e.app.required_jobs import RequiredJobs
from verl_e2e.app.runs import BackendRuns, RunQueue, Troubles
from verl_e2e.core.model.change import HistoryCommit
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.plan.policy import Policy, Schedule
from verl_e2e.core.pulls.commands import LEVEL, Trusted
from verl_e2e.core.pulls.decide import decide_actions, run_of_job
from verl_e2e.core.pulls.forge import Branch, BranchCommit, PullRef
from verl_e2e.core.pulls.gate import JobStanding
from verl_e2e.core.pulls.ledger import SCHEDULED, UNDERWAY, JobStatus, RecordedCommand, Run, Watched, WatchedJob
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.wanted_jobs import WantedJob, runs_of
from verl_e2e.core.pulls.watch import NextRun, SearchEnd, SearchResult, Seen, after_round, next_run, seen_in
from verl_e2e.core.report.watch_text import (
    Break,
    Message,
    bump_message,
    dropped_text,
    fixed_text,
    issue_of,
    marker_of,
    pinned_text,
)
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import Clock, Conversation, History, Issue, Issues, Ledger, Revisions

# How far back the last round is looked for, and a commit that was good.
_HISTORY, _VERL_HISTORY = 250, 1000
# A policy that cannot be used, or a plan that cannot be made, is looked at again then.
_LATER_S = 3_600.0
# The option of a command that names another verl.
_VERL_REF = "verl_ref"
_ON_BRANCH = Trusted("the commit is on the branch already")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Looks at watched branches."""

    analysis: Analysis
    clock: Clock
    conversation: Conversation
    history: Callable[[BranchCommit], History]
    issues: Issues
    known: KnownTargets
    ledger: Ledger
    queue: RunQueue
    required_jobs: RequiredJobs
    runs: BackendRuns
    verl: Callable[[str], Revisions]
    poll_s: float = 30.0
    mattering: RecentValues[tuple[bool]] = field(default_factory=lambda: RecentValues(4096))

    def look(self, branch: Branch) -> float | None:
        """Do all that is due; gives in how many seconds to look again, None where the branch is not watched.

        Raises ForgeError or BackendError as a look at a pull request does.
        """
        tip = self.known.pulls.tip(branch.repository, branch.name)
        if tip is None:
            return None
        at_tip = _commit(branch, tip)
        try:
            policy = self.known.policy_of(at_tip)
        except NoPolicyError as error:
            log.warning("the branch is not watched: %s", error, extra={"repository": branch.repository})
            return _LATER_S
        if policy.schedule is None:
            return None
        add_to_log_context(head=tip)
        line = self.history(at_tip).first_parents(tip, _HISTORY)
        # The last round on the branch; None where none is known, as after its history was written again.
        notes = (self.ledger.note(Watched, branch.repository, _subject(branch, commit.sha)) for commit in line)
        last = next((note for note in notes if note is not None), None)
        every = timedelta(hours=policy.schedule.every_h)
        if last is None or last.over:
            wait_s = (last.at + every - self.clock.now()).total_seconds() if last is not None else 0.0
            if last is not None and wait_s > 0:
                if last.subject != _subject(branch, tip):
                    # The next look finds it at once: without a database each commit is a question to GitHub.
                    self.ledger.put_note(last.model_copy(update={"subject": _subject(branch, tip)}))
                return wait_s
            last = self._begun(branch, tip, last)
        troubles: Troubles = []
        look = _Look(self, branch, policy, policy.schedule, line, troubles)
        now = look.advanced(last)
        self.ledger.put_note(now)
        if troubles:
            raise troubles[0]
        return max((now.at + every - self.clock.now()).total_seconds(), 1.0) if now.over else self.poll_s

    def _begun(self, branch: Branch, tip: str, last: Watched | None) -> Watched:
        """A new round; one on the commit of the last has its answers already, but for a newer verl."""
        subject, now = _subject(branch, tip), self.clock.now()
        same = last is not None and last.head == tip
        jobs, verl = (last.jobs, last.verl) if last is not None else ((), "")
        return Watched(
            repository=branch.repository, subject=subject, at=now, head=tip, jobs=jobs, verl=verl, answered=same
        )


def _subject(branch: Branch, sha: str) -> str:
    return f"{sha}:watch:{branch.name}"


def _commit(branch: Branch, sha: str, parent: str = "") -> BranchCommit:
    return BranchCommit(branch.repository, branch.name, parent or sha, sha)


@dataclass(frozen=True, slots=True)
class _Ran:
    """Jobs of one commit: where they stand, and the runs that speak for each of them."""

    standings: tuple[JobStanding, ...]
    runs: tuple[Run, ...]

    @property
    def answered(self) -> bool:
        """Whether nothing more comes of any of them by itself."""
        return not any(item.state in UNDERWAY for item in self.standings)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a branch."""

    own: Watcher
    branch: Branch
    policy: Policy
    rules: Schedule
    line: tuple[HistoryCommit, ...]
    troubles: Troubles

    def advanced(self, now: Watched) -> Watched:
        """The round with all that is known by now; what is missing was started."""
        if not now.answered:
            found = self._run(now.head)
            if found is None or not found.answered:
                return now
            jobs = self._after(now.jobs, now.head, found.standings)
            now = now.model_copy(update={"answered": True, "jobs": jobs})
        rows = [self._searched(row, now) for row in now.jobs]
        now = now.model_copy(update={"jobs": tuple(rows)})
        if any(row.bad and not row.told for row in rows):
            return now
        if self.rules.follow_verl and not any(row.bad for row in rows if not row.of_verl):
            return self._with_verl(now)
        return now.model_copy(update={"over": True})

    def _after(
        self, rows: tuple[WatchedJob, ...], commit: str, found: tuple[JobStanding, ...], *, verl: bool = False
    ) -> tuple[WatchedJob, ...]:
        """The rows of the jobs after a round on a commit of the branch, or of verl; what passes again is told.

        A job that the policy does not ask for any more has no row; a commit that cannot be planned changes none.
        """
        if not found:
            return rows
        known = {row.job_id: row for row in rows if row.of_verl is verl}
        made: list[WatchedJob] = []
        for standing in found:
            job_id, good = _plain_id(standing.wanted.id), self.policy.verl.commit if verl else ""
            before = known.get(job_id) or WatchedJob(job_id=job_id, of_verl=verl, good=good)
            # What the policy sets aside as known to come and go is no news, and a search would find no one.
            last = standing.run if standing.quarantine is None else None
            made.append(after_round(before, commit, last))
            # Of a job that is new here, a branch that was written again may have left an issue.
            if (before.bad or job_id not in known) and made[-1].streak > 0:
                self._close(marker_of(self.branch, before), fixed_text(before, commit))
        for dropped in known.keys() - {row.job_id for row in made}:
            self._close(marker_of(self.branch, known[dropped]), dropped_text(dropped))
        return (*(row for row in rows if row.of_verl is not verl), *made)

    def _with_verl(self, now: Watched) -> Watched:
        """The round with the newest commit of verl, where that is neither the policy's nor known."""
        source, pin = self.own.verl("HEAD"), self.policy.verl.commit
        newest = source.resolve("HEAD")
        if pin == now.verl:
            self._close(marker_of(self.branch), pinned_text(pin))
        if newest in (pin, now.verl):
            return now.model_copy(update={"over": True})
        found = self._run(now.head, newest)
        if found is None or not found.answered:
            return now
        with_it = tuple(item for item in found.standings if _has_own_verl(item.wanted))
        if not with_it:
            return now.model_copy(update={"over": True})
        now = now.model_copy(update={"verl": newest, "jobs": self._after(now.jobs, newest, with_it, verl=True)})
        if all(item.state is JobStatus.PASSED for item in with_it):
            jobs = [_plain_id(item.wanted.id) for item in with_it]
            self._tell(bump_message(self.branch, self.policy, newest, now.head, jobs))
        return now

    def _searched(self, row: WatchedJob, now: Watched) -> WatchedJob:
        """A job that fails after the next step of the search for what broke it."""
        if not row.bad or row.told:
            return row
        step, runs = self._step(row, now)
        if step is None:
            return row
        spent = self._spent(now)
        if isinstance(step, NextRun) and spent >= self.rules.gpu_minutes:
            step = replace(step.so_far, ending=SearchEnd.SPENT)
        if isinstance(step, NextRun):
            known = bool(runs.get(step.sha))
            self._run(*self._place(row, step.sha, now), only=row.job_id, again=known)
            probed = tuple(dict.fromkeys((*row.probed, step.sha)))
            return row.model_copy(update={"probed": probed})
        # The commit that is named may not have been run itself; then the tip shows what fails.
        at_hand = (run for sha in (step.bad, row.bad) for run in reversed(runs.get(sha, ())))
        shown = next((run for run in at_hand if _seen(run, row) is Seen.BAD), None)
        broken = Break(self.branch, row, step, self.policy, now.head, shown, spent)
        self._tell(issue_of(broken))
        return row.model_copy(update={"told": True})

    def _step(self, row: WatchedJob, now: Watched) -> tuple[NextRun | SearchResult | None, dict[str, tuple[Run, ...]]]:
        """What the runs so far say, None while one of them is under way; and the runs of each commit."""
        line = self.own.verl("HEAD").first_parents(row.bad, _VERL_HISTORY) if row.of_verl else self.line
        places = {commit.sha: place for place, commit in enumerate(line)}
        runs: dict[str, tuple[Run, ...]] = {}
        for sha in dict.fromkeys(sha for sha in (row.good, row.bad, *row.probed) if sha):
            was_asked = sha in row.probed
            found = self._run(*self._place(row, sha, now), only=row.job_id, starts=was_asked)
            if found is None or (was_asked and not found.answered):
                return None, runs
            runs[sha] = tuple(run for run in found.runs if run.state.final)
        first = places.get(row.bad)
        if not row.good or first is None or (row.good not in places and line[-1].parent != row.good):
            return SearchResult(SearchEnd.NO_GOOD, bad=row.bad), runs
        commits = line[first : places.get(row.good, len(line))][::-1]
        mattering = {commit.sha for commit in commits if row.of_verl or self._matters(commit)}
        seen = {
            # Of a commit on which the job cannot be run at all, nothing is ever known.
            sha: [_seen(run, row) for run in made] or [Seen.NOTHING] * (sha in row.probed)
            for sha, made in runs.items()
        }
        return next_run(row.good, commits, mattering, seen, confirm=self.rules.confirm), runs

    def _place(self, row: WatchedJob, sha: str, now: Watched) -> tuple[str, str]:
        """The commit of the branch, and that of verl where it is another one, in which a commit is run."""
        return (now.head, sha if sha != self.policy.verl.commit else "") if row.of_verl else (sha, "")

    def _matters(self, commit: HistoryCommit) -> bool:
        """Whether the planner asks for a run of the commit; one that cannot be planned may always matter."""
        key = (self.branch.repository, commit.sha, self.policy.source, self.policy.text_digest)

        def asks() -> tuple[bool]:
            try:
                target = _commit(self.branch, commit.sha, commit.parent)
                plan = self.own.analysis.plan(target, self.policy).plan
            except (UserError, LimitError):
                return (True,)
            return (bool(plan.levels or plan.incomplete),)

        return self.own.mattering.get(key, asks)[0]

    def _spent(self, now: Watched) -> float:
        """GPU minutes of the runs since the round began."""
        commits = {now.head, *(self._place(row, sha, now)[0] for row in now.jobs for sha in row.probed)}
        listed = (run for sha in commits for run in self.own.ledger.runs(self.branch.repository, head_sha=sha))
        return sum(run.gpu_minutes for run in listed if run.branch == self.branch.name and run.created >= now.at)

    def _run(
        self, sha: str, verl: str = "", only: str = "", *, starts: bool = True, again: bool = False
    ) -> _Ran | None:
        """Where the jobs of a commit stand, `only` that of one id; None where nothing may run now.

        A commit that cannot be planned has no standings.

        With `starts` those are started that have no run, with `again` the job once more.
        """
        own, target = self.own, _commit(self.branch, sha)
        source, now = f"{SCHEDULED}{self.branch.name}", own.clock.now()
        with_verl = {_VERL_REF: verl} if verl else {}
        wished = [(tuple(str(int(level)) for level in self.rules.levels), with_verl)]
        wished += [((name[:1],), {"variant": name, **with_verl}) for name in self.rules.variants]
        asked = tuple(
            RecordedCommand(
                source=source,
                repository=target.repository,
                number=0,
                actor=source,
                verb=LEVEL,
                arguments=arguments,
                options=options,
                head_sha=sha,
                at=now,
            )
            for arguments, options in wished
        )
        made = own.required_jobs.prepare(target, self.policy, asked)
        if made.plan is None:
            # Waiting brings no plan of the same commit: its runs say nothing.
            log.warning("a commit of the branch cannot be run: %s", made.problem)
            return _Ran((), ())
        if own.queue.pause_of(target.repository) is not None:
            return None
        asked_for = made.wanted
        for job in asked_for:
            if job.job is None:
                log.warning("a job of the schedule cannot be run: %s", job.missing, extra={"job": job.id})
        if only:
            same = (job for job in made.wanted if _plain_id(job.id) == only and _has_own_verl(job) is bool(verl))
            asked_for = tuple(replace(job, requires=()) for job in same)
        runs = own.runs.of_target(target, self.troubles)
        state = TargetState(
            target=target,
            now=now,
            policy=self.policy,
            trust=_ON_BRANCH,
            plan=made.plan,
            wanted=asked_for,
            entries=asked,
            runs=runs,
        )
        state = replace(state, queue=own.queue.view(state))
        due = decide_actions(state)
        if starts:
            # What else runs on this commit is for another job, or was asked for by others.
            ours = [run for run in due.cancel if run.branch and run.job_id in {job.id for job in asked_for}]
            ended = {run.key: own.runs.cancel(run, self.troubles) for run in ours}
            state = replace(state, runs=tuple(ended.get(run.key, run) for run in state.runs))
            if again and _Ran(due.standings, ()).answered:
                more = tuple(run_of_job(job, state, source) for job in asked_for if job.job is not None)
                due = replace(due, dispatch=(*due.dispatch, *more))
            runs = own.runs.start(due, state, own.queue, self.troubles)
            due = decide_actions(replace(state, runs=runs))
        return _Ran(due.standings, tuple(run for job in asked_for for run in runs_of(job, sha, runs)))

    def _tell(self, message: Message) -> None:
        """Open the issue of a message, or add to the open one what does not stand there yet."""
        own, repository = self.own, self.branch.repository
        issue = own.issues.find(repository, message.marker)
        if issue is None:
            own.issues.open(repository, message.title, message.body, self.rules.labels)
        else:
            self._add(issue, message.body)

    def _close(self, marker: str, text: str) -> None:
        """Say that what open issues are about is over, and close them; without one nothing is said.

        There are two where two processes opened one at the same time.
        """
        issues, repository, closed = self.own.issues, self.branch.repository, set[int]()
        while (issue := issues.find(repository, marker)) is not None and issue.number not in closed:
            self._add(issue, text)
            issues.close(repository, issue.number)
            closed.add(issue.number)

    def _add(self, issue: Issue, text: str) -> None:
        """Comment on an issue, unless it was said there before; the answer to that may have been lost."""
        ref = PullRef(self.branch.repository, issue.number)
        said = (issue.body, *(comment.body for comment in self.own.conversation.comments(ref)))
        if text.split() not in (before.split() for before in said):
            self.own.conversation.comment(ref, text)


def _seen(run: Run, row: WatchedJob) -> Seen:
    """What a run says of the failure of a watched job."""
    return seen_in(run, row.fingerprint, any_repository=row.of_verl)


def _has_own_verl(job: WantedJob) -> bool:
    """Whether a job runs another verl than the policy's."""
    return any(option.startswith(f"{_VERL_REF}=") for option in job.options.split())


def _plain_id(job_id: str) -> str:
    """The id of a job without the mark of the options that it was asked for with."""
    return job_id.rpartition("-x")[0] or job_id

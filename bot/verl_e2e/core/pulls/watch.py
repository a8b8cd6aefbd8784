"""Which commit of a watched branch broke a job: what is run next, or what the runs so far say.

A function of the history, of what the planner says of each commit, and of the runs so far. A run that says nothing is
neither good nor bad, and a commit on which a job both passed and failed is evidence against no one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.change import HistoryCommit
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import Run, RunState, WatchedJob

# What ended a run of the code itself: an error in the log, or a criterion.
_OF_THE_CODE = ("log:", "criterion:")


class Seen(StrEnum):
    """What one run of a job says of the commit that it ran."""

    GOOD = "good"
    BAD = "bad"
    NOTHING = "nothing"


def seen_in(run: Run, fingerprint: str = "", *, any_repository: bool = False) -> Seen:
    """What an ended run says of a failure with this fingerprint, empty for any; another failure says nothing of it.

    A run that was blocked by what the change may have caused is bad: whether it did is what the other commits show.
    With `any_repository` so is one that ended in code that is not Bridge's.
    """
    if run.state is not RunState.FINISHED or run.result is None:
        return Seen.NOTHING
    if run.result is Result.PASS:
        return Seen.GOOD
    elsewhere = any_repository and any(identifier.startswith(_OF_THE_CODE) for identifier in run.causes)
    if run.result is not Result.FAIL and not run.undecided and not elsewhere:
        return Seen.NOTHING
    return Seen.NOTHING if fingerprint and run.fingerprint not in ("", fingerprint) else Seen.BAD


class SearchEnd(StrEnum):
    """What a search for the commit that broke a job came to."""

    # One commit broke it.
    CULPRIT = "culprit"
    # One of several commits did, and the runs between them say nothing.
    UNSEPARATED = "unseparated"
    # The commit that was good is bad now: what else the run needs has changed, and no commit is to blame.
    OTHERWISE = "otherwise"
    # A commit was both good and bad.
    FLAKY = "flaky"
    # No commit is known to be good, so that nothing can be searched.
    NO_GOOD = "no good commit"
    # The search took what it may.
    SPENT = "spent"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search."""

    ending: SearchEnd
    # The commits that are to blame, or one of which is; of FLAKY and OTHERWISE none.
    commits: tuple[HistoryCommit, ...] = ()
    # The last commit that is known to be good, empty for none.
    good: str = ""
    # The first commit that is known to be bad, of FLAKY the one that was both.
    bad: str = ""
    # How many commits lie between the good one and the one that was found bad first, this one included.
    searched: int = 0
    # How many of them can matter to the job.
    mattering: int = 0
    # Whether the commit to blame was bad twice, and the one before it good.
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class NextRun:
    """The commit to run the job on next."""

    sha: str
    # What is known without that run.
    so_far: SearchResult
    # Whether the commit that is to blame is known, and is only to be confirmed.
    confirms: bool = False


Runs = Mapping[str, Sequence[Seen]]


def next_run(
    good: str, commits: Sequence[HistoryCommit], mattering: Collection[str], runs: Runs, *, confirm: bool
) -> NextRun | SearchResult:
    """The commit to run next, or what broke the job; `commits` follow on `good`, oldest first, and the last is bad.

    `mattering` are those that the planner says a run of verl can notice, `runs` what was seen on each, in order. Takes
    1 + log2 of the mattering commits at most, where every run says something; with `confirm` up to two more, which also
    show a commit that the planner wrongly left out.
    """
    line = [good, *(commit.sha for commit in commits)]
    count = sum(sha in mattering for sha in line[1:])
    says = {sha: frozenset(runs.get(sha, ())) - {Seen.NOTHING} for sha in line}

    def found(
        ending: SearchEnd, blamed: Sequence[HistoryCommit] = (), bad: str = "", *, confirmed: bool = False
    ) -> SearchResult:
        return SearchResult(ending, tuple(blamed), line[low], bad or line[high], len(commits), count, confirmed)

    low, high = 0, len(line) - 1
    for sha in line:
        if len(says[sha]) > 1:
            return found(SearchEnd.FLAKY, bad=sha)
    if Seen.BAD in says[good]:
        return found(SearchEnd.OTHERWISE)
    if Seen.GOOD not in says[good] and not runs.get(good):
        return NextRun(good, found(SearchEnd.UNSEPARATED, commits))
    low = max((place for place, sha in enumerate(line) if Seen.GOOD in says[sha]), default=0)
    high = min((place for place in range(low + 1, len(line)) if Seen.BAD in says[line[place]]), default=high)
    between = commits[low:high]
    suspects = [commit for commit in between if commit.sha in mattering] or list(between)
    # That no run can notice the others is the planner's word, which is not taken where a commit is to be confirmed.
    either = between if confirm else suspects
    untried = [place for place, commit in enumerate(suspects[:-1]) if not runs.get(commit.sha)]
    if untried:
        middle = (len(suspects) - 1) // 2
        nearest = min(untried, key=lambda place: (abs(place - middle), place))
        return NextRun(suspects[nearest].sha, found(SearchEnd.UNSEPARATED, either))
    if len(suspects) > 1 or Seen.GOOD not in says[line[low]]:
        return found(SearchEnd.UNSEPARATED, either)
    (blamed,) = suspects
    place = line.index(blamed.sha)
    # What lies between two commits that matter is the same to the job, but for what the planner missed.
    since = max((at for at in range(place) if line[at] in mattering), default=0)
    until = min((at for at in range(place + 1, len(line)) if line[at] in mattering), default=len(line))
    border = ((place, range(place, until), Seen.BAD), (place - 1, range(since, place), Seen.GOOD))
    shown = [_shown(line[at], [line[same] for same in alike], runs, seen) for at, alike, seen in border]
    for (at, _, _), enough in zip(border, shown, strict=True):
        if confirm and not enough and Seen.NOTHING not in runs.get(line[at], ()):
            return NextRun(line[at], found(SearchEnd.UNSEPARATED, either), confirms=True)
    if confirm and len(between) > 1:
        # A run of the commit itself, or of the one right before it, says nothing.
        return found(SearchEnd.UNSEPARATED, either)
    return found(SearchEnd.CULPRIT, suspects, blamed.sha, confirmed=all(shown))


def _shown(sha: str, alike: Sequence[str], runs: Runs, seen: Seen) -> bool:
    """Whether a commit was seen so itself, and twice together with those that are the same to the job."""
    times = sum(list(runs.get(same, ())).count(seen) for same in alike)
    return times > 1 and seen in runs.get(sha, ())


def after_round(job: WatchedJob, commit: str, last: Run | None) -> WatchedJob:
    """How a job stands after its last run in a round on a commit; what says nothing leaves it as it was."""
    if last is None:
        return job
    match seen_in(last, any_repository=job.of_verl):
        case Seen.NOTHING:
            return job
        case Seen.GOOD:
            good = {"good": commit, "bad": "", "fingerprint": "", "probed": (), "told": False}
            return job.model_copy(update={**good, "streak": max(job.streak, 0) + 1})
        case Seen.BAD:
            still = job.model_copy(update={"streak": min(job.streak, 0) - 1})
            if job.bad and (last.fingerprint == job.fingerprint or not (last.fingerprint and job.fingerprint)):
                return still
            new = {"bad": commit, "fingerprint": last.fingerprint, "probed": (), "told": False}
            return still.model_copy(update=new)

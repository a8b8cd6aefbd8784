"""What a watched branch says to people: the issue on what broke a job, its end, and the proposal of a newer verl.

The text is the same for the same facts. What a commit or a log says goes through `verl_e2e.core.text.escape`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.change import HistoryCommit
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.forge import Branch
from verl_e2e.core.pulls.ledger import Run, WatchedJob
from verl_e2e.core.pulls.watch import SearchEnd, SearchResult
from verl_e2e.core.report.verdict_rows import key_lines, links, verdict_sentence
from verl_e2e.core.text.escape import code, count_of, fence_for, fenced_row, markdown, one_line

_MOST_LISTED = 30
_BY_ITSELF = "verl-e2e adds to this issue what changes, and closes it when the job passes again."


@dataclass(frozen=True, slots=True)
class Message:
    """An issue, or a comment on it where it is open already."""

    # The first line of its text, by which it is found again.
    marker: str
    title: str
    # In Markdown, the marker first.
    body: str


@dataclass(frozen=True, slots=True)
class Break:
    """A job that fails on a watched branch, and what the search came to."""

    branch: Branch
    job: WatchedJob
    found: SearchResult
    # The policy of the branch.
    policy: Policy
    # The commit of the branch that was run.
    head: str
    # A run that failed, None where none left a verdict.
    run: Run | None
    # GPU minutes of the runs since the round began.
    gpu_minutes: float


def marker_of(branch: Branch, job: WatchedJob | None = None) -> str:
    """The first line of the issue on a job, or of the proposal of a verl."""
    subject = "verl" if job is None else f"{job.job_id}\0{job.of_verl}"
    digest = hashlib.sha256(f"{branch.name}\0{subject}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"<!-- verl-e2e:watch:{digest[:16]} -->"


def issue_of(broken: Break) -> Message:
    """The issue on what broke a job."""
    marker, job = marker_of(broken.branch, broken.job), broken.job.job_id
    place, newer = broken.branch.name, "with newer commits of verl"
    where, heading = (newer, newer) if broken.job.of_verl else (f"on {one_line(place, 100)}", f"on {code(place)}")
    rows = [f"| {title} | {text} |" for title, text in _facts(broken)]
    parts = [marker, f"### ❌ {code(job)} fails {heading}", _answer(broken), "\n".join(["| | |", "|---|---|", *rows])]
    listed = broken.found.commits[:_MOST_LISTED] if len(broken.found.commits) > 1 else ()
    if listed:
        more = len(broken.found.commits) - len(listed)
        left = [f"- and {count_of(more, 'more commit')}"] if more else []
        parts.append("\n".join(["Oldest first:", "", *(f"- {_named(commit)}" for commit in listed), *left]))
    verdict = read_verdict(broken.run.verdict) if broken.run is not None else None
    lines = tuple(fenced_row(line) for line in key_lines(verdict)) if verdict is not None else ()
    if lines:
        parts.append("\n".join(["Evidence:", "", fence_for(lines), *lines, fence_for(lines)]))
    parts.append("\n".join(["To repeat it on a host with GPUs:", "", "```sh", _command(broken), "```"]))
    if broken.policy.schedule is not None and job in broken.policy.schedule.variants:
        asked = f"/verl-e2e level{job[0]} variant={job}"
        parts.append(f"That is the level's default job; in a pull request {code(asked)} asks for this one.")
    return Message(marker, f"verl-e2e: {job} fails {where}", "\n\n".join([*parts, _BY_ITSELF]) + "\n")


def _answer(broken: Break) -> str:
    found, count = broken.found, len(broken.found.commits)
    one_of = f"One of {count_of(count, 'commit')} broke it"
    if count == 1:
        one_of = f"It is not shown whether {_named(found.commits[0])} broke it"
    match found.ending:
        case SearchEnd.CULPRIT:
            whose = "A commit of verl" if broken.job.of_verl else "A commit"
            answer = f"{whose} broke it: {_named(found.commits[0])}."
        case SearchEnd.UNSEPARATED:
            answer = f"{one_of}; the runs {'before' if count == 1 else 'between them'} say nothing of this failure."
        case SearchEnd.SPENT:
            limit = "the GPU minutes that the policy gives a round (`schedule.gpu_minutes`) are used up"
            answer = f"{one_of}; {limit}."
        case SearchEnd.OTHERWISE:
            needs = "host, image, packages or the settings of the job"
            answer = f"No commit broke it: {code(found.good)} passed before and fails now, so {needs} changed."
        case SearchEnd.FLAKY:
            changed = "It comes and goes, or host, image or packages changed in between, so no commit is blamed."
            answer = f"On {code(found.bad)} it passed and failed. {changed}"
        case SearchEnd.NO_GOOD:
            answer = "No commit is known on which it passed, so none is blamed."
    return f"{answer} No commit of this repository is blamed." if broken.job.of_verl else answer


def _named(commit: HistoryCommit) -> str:
    return f"{code(commit.sha)} by {markdown(commit.author, 100)}: {markdown(commit.subject, 200)}"


def _facts(broken: Break) -> Iterator[tuple[str, str]]:
    found, job, run = broken.found, broken.job, broken.run
    if run is not None:
        yield "What fails", f"{verdict_sentence(run.sentence, 600)}{links(run.url)}"
    if found.good and found.ending is not SearchEnd.OTHERWISE:
        yield "Last good commit", code(found.good)
    if found.ending is not SearchEnd.FLAKY:
        yield "First bad commit", code(found.bad or job.bad)
    if found.ending is SearchEnd.CULPRIT:
        twice = "two runs failed and two passed, among them one of this commit and one of the commit before it"
        yield "Shown by", twice if found.confirmed else "the runs of the search alone; none was repeated"
    if found.searched:
        noticed = f", {found.mattering} of which the plan asks to run" if not job.of_verl else ""
        ran = f"{count_of(len(job.probed), 'commit')} run, {broken.gpu_minutes:.1f} GPU minutes in this round"
        yield "Searched", f"{count_of(found.searched, 'commit')}{noticed}; {ran}"
    yield "Rounds", f"failed in {count_of(max(-job.streak, 1), 'round')} in a row"
    yield "verl", code(job.bad if job.of_verl else broken.policy.verl.commit)
    if job.of_verl:
        yield "Commit of this repository", code(broken.head)


def _command(broken: Break) -> str:
    found, job = broken.found, broken.job
    bad = found.bad or job.bad
    base, head, verl = (found.good or f"{bad}^", bad, broken.policy.verl.commit)
    if job.of_verl:
        base, head, verl = f"{broken.head}^", broken.head, bad
    level, of_verl = job.job_id.partition("-")[0], f"--verl verl --verl-ref {verl}"
    return f"verl-e2e check --repo Megatron-Bridge --base {base} --head {head} --level {level} {of_verl} --out out"


def fixed_text(job: WatchedJob, commit: str) -> str:
    """The last comment on an issue: a job passes on a commit that failed until now, or of which nothing is known."""
    whose, rounds = "verl's commit " if job.of_verl else "", count_of(max(-job.streak, 1), "round")
    again, before = (" again", f", after it failed in {rounds} in a row") if job.bad else ("", "")
    return f"✅ {code(job.job_id)} passes{again} on {whose}{code(commit)}{before}.\n"


def dropped_text(job_id: str) -> str:
    """The last comment on an issue: the policy does not ask for the job any more."""
    return f"The policy's schedule does not ask for {code(job_id)} any more.\n"


def pinned_text(commit: str) -> str:
    """The last comment on a proposal: the policy names the commit."""
    return f"✅ The policy names {code(commit)} now.\n"


def bump_message(branch: Branch, policy: Policy, newest: str, head: str, jobs: Sequence[str]) -> Message:
    """The proposal of a commit of verl with which every job of the schedule passed."""
    marker, passed, pin = marker_of(branch), ", ".join(map(code, jobs)), policy.verl.commit
    take = "To take the newer one, change `.github/verl-e2e.yml` in a pull request:"
    body = f"""{marker}

### verl {code(newest)} passes on {code(branch.name)}

{passed} passed with it on {code(head)}. The policy names {code(pin)}. {take}

```diff
 verl:
-  commit: {pin}
+  commit: {newest}
```

verl-e2e pushes nothing. It adds newer commits that passed to this issue, and closes it once the policy names the last.
"""
    return Message(marker, f"verl-e2e: verl {newest[:12]} passes on {one_line(branch.name, 100)}", body)

"""The sentences that a person reads on a verdict and a card, in one place to be reviewed as prose."""

import shlex
from collections.abc import Iterable, Mapping
from itertools import chain, repeat

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import Purpose
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Decision, Result, Stage, Whose, whose_of
from verl_e2e.core.model.record import LOG_FILE, EndedEvent, EndReason, RepositoryState
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.triage.triage import Triage, TriageVerdict

_SHOWN_PLACES = 2


def purpose_rows(purposes: Iterable[Purpose], most: int = 3) -> tuple[str, ...]:
    """One clause for each condition, `for <places>: <condition>`; the first ones, and how many more there are."""
    found: dict[str, dict[str, None]] = {}
    for purpose in purposes:
        found.setdefault(purpose.condition, {})[purpose.place] = None
    rows = []
    for condition, places in found.items():
        more = len(places) - _SHOWN_PLACES
        named = ", ".join(list(places)[:_SHOWN_PLACES]) + (f" and {more} more" if more > 0 else "")
        rows.append(f"for {named}: {condition}")
    left = len(rows) - most
    more_rows = [f"for {left} more condition{'' if left == 1 else 's'}"] if left > 0 else []
    return (*rows[:most], *more_rows)


_SHOWN_CHOSEN = 3
BRIDGE_CHECKS = "Bridge-side checks"
# Of a consumer, by its title.
IMPORT_IN, RUN_OF = "Local Bridge import in {}", "{} Megatron backend run"
NOTHING_REQUIRED = "no {} coverage is required by this change"
REQUESTED_VARIANTS = "Requested variants"
LOG_CAPTURE = "Log capture"

NO_LOG = f"no log: {LOG_FILE} is not in the folder"
NOTHING_PROVES_IT = "nothing in the folder proves it"
UNKNOWN_JOB = "unknown (the folder names no job)"
NEVER_STARTED = "the wrapper was never started"
NO_VARIANT = "this job is the default Level 0"
FOCUSED_TESTS = "the focused Bridge tests"
MERGE_BASE_NOT_RUN = "the merge base was not run"
# What a title says of whose a failure is.
CAUSED_BY: Mapping[Whose, str] = {
    Whose.THIS_CHANGE: "caused by this change",
    Whose.NOT_THIS_CHANGE: "not caused by this change",
    Whose.NOT_KNOWN: "not known whether this change caused it",
}
NOT_EVIDENCE = "not evidence against the Bridge change"

RUN_MERGE_BASE = "Run the same job on the merge base: if it fails there too, the change did not cause it."
FIX_LOST = "Push a fix if the end of the log shows your change, else tell the owner of the host."
FIX_HOST_MEMORY = (
    "Raise `needs.memory_gib` of the site profile if runs take that much, run fewer jobs on the host at a time, or "
    "find out what in this run takes the memory; then run again."
)
FIX_NEIGHBOUR = "Run the job again on a GPU that no one else uses."
FIX_RECORD = "Look at the page of the run and at the files on its host, then run the job again."
FIX_EVIDENCE = "Run the job again with `verl-e2e run`, which records every item that is missing here."
FIX_SIGNAL = (
    "Run the same job on the merge base. If it learns there, this flat run is a failure. If it does not learn there "
    "either, choose a workload that learns (learning rate, reward, steps, response length)."
)
FIX_UNEXECUTED = (
    "Ask someone with write access for a job that runs the changed lines: another level, such as by the comment "
    "`/verl-e2e level2`, or a variant in the policy, `.github/verl-e2e.yml`. "
    "If no run of verl can reach them, cover them by a Bridge test."
)


def requested_coverage(job: Job) -> str:
    """`Requested coverage:` of one job."""
    made_for = "".join(f", {row}" for row in purpose_rows(job.purposes, 1))
    return f"Level {int(job.level)}: {job.level.title} ({job.variant}{made_for})"


def checkpoint(job: Job) -> str:
    """`Checkpoint/config:` of one job."""
    chosen = job.checkpoint
    if chosen.synthetic:
        return chosen.synthetic.what
    if chosen.dummy_config:
        return f"dummy config {chosen.dummy_config} (MODEL_ID {chosen.model_id})"
    kind = ", random weights" if chosen.random_weights else ""
    return (
        f"MODEL_PATH {chosen.model_path} (MODEL_ID {chosen.model_id}{kind})"
        if chosen.model_path
        else (f"MODEL_ID {chosen.model_id}")
    )


def requested_work(job: Job) -> str:
    """The coverage of a job that has no verdict yet, with its model by its public name."""
    chosen = job.checkpoint
    if chosen.synthetic:
        return f"{requested_coverage(job)}, {chosen.synthetic.what}"
    random = ", random weights" if chosen.is_random else ""
    config = f"dummy config {chosen.dummy_config}, " if chosen.dummy_config else ""
    return f"{requested_coverage(job)}, {config}MODEL_ID {chosen.model_id}{random}"


def passed_sentence(job: Job, bridge: RepositoryState) -> str:
    """The sentence of a Pass: what was validated, and no more."""
    steps = "one training step" if job.steps == 1 else f"{job.steps} training steps"
    dirty = f" plus {len(bridge.dirty)} uncommitted file(s)" if bridge.dirty else ""
    patched = f" plus {len(bridge.patches)} declared patch(es)" if bridge.patches else ""
    learned = "learning-signal passed: " if job.level is Level.LEARNING_SIGNAL else ""
    return (
        f"{learned}{consumer_of(job).title} finished {steps} on Bridge {bridge.commit[:12]}{dirty}{patched} with "
        f"{_features(job)}{_beyond(job)} (Level {int(job.level)}, {job.variant})"
    )


def failed_sentence(job: Job, where: str, decision: Decision) -> str:
    """The sentence of a Fail, with what caused it by the related runs."""
    return f"Level {int(job.level)} failed at {where}{_blamed(decision)}"


def blocked_sentence(job: Job, stage: Stage, decision: Decision, construction: Stage | None) -> str:
    """The sentence of a Blocked; says how far construction got, if it began."""
    beyond = f"; construction had reached {construction}" if construction else ""
    return f"Level {int(job.level)} blocked at {stage}{_blamed(decision)}{beyond}; {NOT_EVIDENCE}"


def _blamed(decision: Decision) -> str:
    """Whose it is before what it is: a title is cut at its end."""
    said = f", {CAUSED_BY[whose_of(decision.recurrence, decision.causes)]}" if decision.blame else ""
    return f"{said}: {strip_full_stop(decision.cause)}{f'; {decision.blame}' if decision.blame else ''}"


def unexecuted_sentence(job: Job, cause: str) -> str:
    """The sentence of a run that is good in everything else and never entered the changed code."""
    return f"Level {int(job.level)} blocked: {strip_full_stop(cause)}; the run was good otherwise; {NOT_EVIDENCE}"


def log_only(cause: str, answer: Triage | None) -> str:
    """The sentence of a folder that names no job."""
    shown = ""
    if answer is not None and answer.verdict is TriageVerdict.PASS:
        shown = "; the log itself shows the requested steps completed, which alone proves no level"
    elif answer is not None:
        what = "shows a failure" if answer.verdict is TriageVerdict.FAIL else "stops"
        shown = f"; the log itself {what} at {answer.stage}: {answer.cause}"
    return f"{strip_full_stop(cause)}{shown}; {NOT_EVIDENCE}"


def strip_full_stop(text: str) -> str:
    """The text, to go on after it."""
    return text.rstrip(" .")


def _beyond(job: Job) -> str:
    """What a job of levels 1, 2 and 4 shows besides its steps."""
    wrapper = {**job.site.wrapper, **job.wrapper}
    match job.level:
        case Level.SAVE_RESUME:
            return f", saved after step {job.steps - 1} and resumed from there"
        case Level.PARALLELISM:
            named = (Axis.TENSOR, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.CONTEXT, Axis.EXPERT)
            sizes = ((axis.row.short, consumer_of(job).text(axis, wrapper, "1")) for axis in named)
            above = [f"{name}={size}" for name, size in sizes if size not in ("1", "null")]
            return f", {' '.join(above) or 'data parallel'}"
        case Level.FEATURE:
            names = [*(feature.name for feature in job.features), *([f"family {job.family}"] if job.family else [])]
            return f", {', '.join(names)} active" if names else ""
        case _:
            return ""


def _features(job: Job) -> str:
    wrapper = {**job.site.wrapper, **job.wrapper}
    consumer = consumer_of(job)
    lora = consumer.text(Axis.ADAPTER_RANK, wrapper, "0")
    adapter = f"LoRA rank {lora} and " if lora != "0" else ""
    wrap = "Megatron-FSDP" if consumer.text(Axis.FSDP, wrapper, "False") == "True" else "Megatron DDP"
    return f"{adapter}{wrap}, rollout by {wrapper.get('ENGINE', 'vllm')}"


def bridge_detail(job: Job, item: Evidence) -> str:
    """Which focused tests were run, or why none were."""
    if item.state in (State.MISSING, State.WAIVED) or not job.bridge_tests:
        return item.summary
    left_out = len(job.site.deselected_tests)
    text = f", {left_out} left out on this site" if left_out else ""
    return f"{item.summary}{text}: {_pytest(job)}"


def run_tests_by_hand(job: Job) -> str:
    """What to do about Bridge checks that were not run."""
    command = f" ({_pytest(job)})" if job.bridge_tests else ""
    return f"Run the focused Bridge tests on {job.bridge.commit[:12]}{command}."


def _pytest(job: Job) -> str:
    """The pytest command, with the first few of the tests that were chosen for the change."""
    chosen = [item.test for item in job.chosen_tests]
    listed = [test for test in job.bridge_tests if test not in set(chosen)]
    left = len(chosen) - _SHOWN_CHOSEN
    more = f" and {left} more chosen for this change" if left > 0 else ""
    return f"pytest -q {shlex.join([*listed, *chosen[:_SHOWN_CHOSEN]])}{more}"


def backend_detail(job: Job, cause: str) -> str:
    """LoRA + DDP or the requested variant; the cause when it did not pass."""
    return f"{_features(job)}{f' - {cause}' if cause else ''}"


def not_the_recorders(problem: str) -> str:
    """The cause for a run folder whose seal is not valid."""
    return f"the record is not the recorder's: {problem}"


FIX_SEAL = "run the job again; a folder is sealed when its run ends, and you must not change anything in it after that"


# Why a process ended early, by the reason that the runner wrote.
END_WORDS: Mapping[EndReason, str] = {
    EndReason.STALLED: "no progress within the limit of its stage",
    EndReason.HOST_MEMORY: "the host ran out of memory, and the run was ended so that others go on",
    EndReason.TIME_LIMIT: "the time limit was reached",
    EndReason.INTERRUPTED: "the run was interrupted",
    EndReason.FATAL_ERROR_HANG: "the processes hung after a fatal error",
    EndReason.WRONG_IMPORT: "a process imported another checkout",
    EndReason.UNRECOVERABLE: "the run could no longer succeed",
    EndReason.NOT_STARTED: NEVER_STARTED,
    EndReason.RUNNER_FAULT: "the runner itself failed",
}


def ended_early(ended: EndedEvent) -> str:
    """Why the process ended without an error of its own."""
    exited = f"the process exited with code {ended.exit_code} and no explained error"
    reason = exited if ended.end_reason is None else END_WORDS.get(ended.end_reason, exited)
    return f"{reason} ({ended.note})" if ended.note else reason


def missing_evidence(items: Iterable[str]) -> str:
    """The items that a Pass needs and that are not there."""
    return f"evidence is missing: {'; '.join(strip_full_stop(item) for item in items)}"


def contract_broken(broken: tuple[str, ...], title: str) -> str:
    """Uses in a consumer that the change breaks: they work at the base, so the change is the cause."""
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    return f"{title}'s use of Bridge breaks at the head and works at the base: {strip_full_stop(broken[0])}{more}"


def merged_limitations(jobs: Iterable[tuple[str, Verdict]], *, named: bool = True) -> tuple[str, ...]:
    """Each limitation of these jobs once, with its jobs if `named`; left out if jobs that passed show all of it.

    If they show a part of it, the sentence says which part.
    """
    holders: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    shows: list[tuple[str, tuple[str, ...]]] = []
    for job_id, verdict in jobs:
        shows.append((job_id, verdict.shows if verdict.result is Result.PASS else ()))
        # What was added to a verdict later has no aspects.
        left_open = chain(verdict.left_open, repeat(()))
        for limitation in zip(verdict.limitations, left_open, strict=False):
            holders.setdefault(limitation, []).append(job_id)
    shown = {aspect for _, aspects in shows for aspect in aspects}
    rows = []
    for (text, aspects), ids in holders.items():
        if aspects and shown.issuperset(aspects):
            continue
        parts = [(job_id, [aspect for aspect in aspects if aspect in seen]) for job_id, seen in shows]
        said = [f"{job_id} shows {', '.join(found)}" for job_id, found in parts if found]
        told = f"{text.rstrip('.')}; {'; '.join(said)}." if said else text
        every = len(shows) > 1 and {*ids} == {job_id for job_id, _ in shows}
        who = "all jobs" if every else ", ".join(dict.fromkeys(ids))
        rows.append(f"{who}: {told}" if named else told)
    return tuple(dict.fromkeys(rows))

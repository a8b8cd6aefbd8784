"""Level 1: the second phase really went on from the first one's checkpoint, by the log and by the files.

The log tells what verl says it did, phase by phase; the files, listed before, between and after the phases, that the
checkpoint was there. A run that finds no checkpoint trains from scratch and exits 0, so neither alone is enough.

A folder for each step, `global_step_N`, holds one for each model that trains; the consumer says what lies in it.
"""

import re
from collections.abc import Iterator

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import consumer_of, measured
from verl_e2e.core.judge.case import Case, StartedPhase, started_phases, trained_models, wants_adapter
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import CheckpointEvent
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import CHECKPOINTS_FILE, CheckpointFile, CheckpointListing

_STEP = re.compile(r"(?:^|/)global_step_(\d{1,12})/(.+)$")
_SET_TO = re.compile(r"setting global step to (\d{1,12})")
# What a resume loads of a model.
_PARTS = ("weights", "optimizer state")
# A step that saved says so: the metric is there only when the save returned.


def resumed(case: Case) -> Evidence:
    """A checkpoint of the first phase was written, loaded by the second, which trained on from it."""
    planned, started = consumer_of(case.job).phases(case.job), started_phases(case)
    if len(planned) < 2:
        return Evidence(State.MISSING, "the job saves nothing, so nothing is resumed", case.log)
    if len(started) < 2:
        return Evidence(State.MISSING, f"the {planned[len(started)].name} phase never began", case.log)
    save, resume = started
    wrong = next(_misfits(case, save, resume), None)
    if wrong is not None:
        return wrong
    step = save.planned.last_step
    after = _listing_after(case, save.name)
    size = f", {sum(file.size for file in _files_of_step(after, step).values()):,} bytes" if after else ""
    roles = " and ".join(trained_models(case))
    first = f"whose first step is {resume.planned.first_step}"
    summary = f"checkpoint of step {step} written ({roles}{size}), loaded by the {resume.name} phase, {first}"
    return _evidence(case, State.MET, summary, _event(case, resume, "resumed"))


def resume_stage(case: Case) -> Stage | None:
    """The stage that a broken resume belongs to; None where nothing shows that the first phase saved anything.

    Without a checkpoint to load, training from scratch is what was asked for, and nobody's fault is shown.
    """
    started = started_phases(case)
    if len(started) < 2:
        return None
    if _incomplete(case, started[0]):
        return Stage.CHECKPOINT_SAVE
    return Stage.CHECKPOINT_LOAD if _wrote(case, started[0]) or not _save_not_listed(case, started[0]) else None


def _misfits(case: Case, save: StartedPhase, resume: StartedPhase) -> Iterator[Evidence]:
    """What shows that the second phase did not go on from the first one, then what is missing of the proof."""
    step = save.planned.last_step
    scratch, back = _event(case, resume, "scratch"), _event(case, resume, "resumed")
    if scratch:
        after = f", although the {save.name} phase left a checkpoint of step {step}"
        text = "" if _save_not_listed(case, save) else after
        yield _evidence(case, State.BROKEN, f"the {resume.name} phase trained from scratch{text}", scratch)
    if back:
        words = _SET_TO.search(back.at.text)
        steps = {str(back.step), words[1] if words else str(back.step)} - {str(step)}
        if steps:
            wrong = " and ".join(sorted(steps))
            yield _evidence(case, State.BROKEN, f"the {resume.name} phase resumed from step {wrong}, not {step}", back)
    first = next((item for item in case.train_steps() if resume.wrote(item.line)), None)
    if first and first.step != resume.planned.first_step:
        summary = f"the first step of the {resume.name} phase is {first.step}, not {resume.planned.first_step}"
        yield Evidence(State.BROKEN, summary, case.log, first.line, f"step:{first.step}")
    incomplete = _incomplete(case, save)
    if incomplete:
        yield Evidence(State.BROKEN, incomplete, CHECKPOINTS_FILE, 0, incomplete)
    if not _wrote(case, save):
        yield _evidence(case, State.MISSING, f"no line says that the {save.name} phase saved step {step}")
    if back is None:
        yield _evidence(case, State.MISSING, f"no line says that the {resume.name} phase resumed")
    loads = [event.at.text for event in _events(case, resume, "loaded")]
    loaded = consumer_of(case.job).checkpoint.loaded
    for role in trained_models(case):
        own = frozenset().union(*(loaded(text, step, role) for text in loads))
        for what in _PARTS:
            if what not in own:
                summary = f"no line says that the {resume.name} phase loaded the {role}'s {what} of step {step}"
                yield _evidence(case, State.MISSING, summary)
    if first is None:
        yield _evidence(case, State.MISSING, f"the {resume.name} phase printed no step")
    unlisted = _save_not_listed(case, save) or _resume_not_listed(case, save, resume)
    if unlisted:
        yield Evidence(State.MISSING, unlisted, CHECKPOINTS_FILE)


def _evidence(case: Case, state: State, summary: str, event: CheckpointEvent | None = None) -> Evidence:
    line, excerpt = (event.at.line, event.at.text) if event else (0, "")
    return Evidence(state, summary, case.log, line, excerpt)


def _events(case: Case, phase: StartedPhase, *actions: str) -> list[CheckpointEvent]:
    return [event for event in case.facts.checkpoints if event.action in actions and phase.wrote(event.at.line)]


def _event(case: Case, phase: StartedPhase, action: str) -> CheckpointEvent | None:
    return next(iter(_events(case, phase, action)), None)


def _wrote(case: Case, save: StartedPhase) -> bool:
    """Whether the log says that the save of the last step was announced and came to its end.

    verl's own line that a save is complete goes through a logger that the save itself may silence, so its step says
    how long it took.
    """
    step = save.planned.last_step
    announced = any(event.step == step for event in _events(case, save, "saving", "saved"))
    steps = (item for item in case.train_steps() if item.step == step and save.wrote(item.line))
    return announced and any(measured(item.values, Quantity.SAVE_TIME) is not None for item in steps)


def _listing_after(case: Case, phase: str) -> CheckpointListing | None:
    """The list made after a phase (empty: before the first one), None when there is none."""
    listings = case.record.checkpoints.listings if case.record.checkpoints else ()
    return next((listing for listing in listings if listing.after == phase), None)


def _files_of_step(listing: CheckpointListing, step: int) -> dict[str, CheckpointFile]:
    """The files of one step by their path below its folder."""
    found = ((_STEP.search(file.path), file) for file in listing.files)
    return {match[2]: file for match, file in found if match and int(match[1]) == step}


def _tracked_step(listing: CheckpointListing) -> str:
    """The text of the tracker; `nothing` when there is none, or when several disagree."""
    texts = set(listing.trackers.values())
    return (texts.pop() if len(texts) == 1 else "") or "nothing"


def _state_gap(case: Case, listing: CheckpointListing, step: int) -> str:
    """The first thing that is missing from the checkpoint of a step, as a clause; empty when it is complete."""
    fsdp = case.config_value(f"{consumer_of(case.job).policy}.use_megatron_fsdp") is True
    form = consumer_of(case.job).checkpoint
    needs = {"model state": form.adapters if wants_adapter(case) or fsdp else form.weights}
    if not fsdp:
        needs["optimizer state"] = form.optimizer
    files = _files_of_step(listing, step)
    for role in trained_models(case):
        below = f"{form.folders[role]}/"
        own = {path.removeprefix(below): file for path, file in files.items() if path.startswith(below)}
        for what, shape in needs.items():
            if not any(file.size for path, file in own.items() if shape.fullmatch(path)):
                return f"no {what} of the {role}"
        if form.last not in own:
            return f"no {form.last} of the {role}, which is written last"
    return ""


def _incomplete(case: Case, save: StartedPhase) -> str:
    """What is missing from a checkpoint that is there; a folder without any file of the step says nothing."""
    listing, step = _listing_after(case, save.name), save.planned.last_step
    if listing is None or listing.cut or not _files_of_step(listing, step):
        return ""
    gap = _state_gap(case, listing, step)
    return f"the checkpoint of step {step} is not whole: {gap}" if gap else ""


def _save_not_listed(case: Case, save: StartedPhase) -> str:
    """What the lists do not have of a checkpoint that only the first phase can have written."""
    if case.record.checkpoints is None:
        return f"{CHECKPOINTS_FILE}: not there"
    before, after = _listing_after(case, ""), _listing_after(case, save.name)
    if before is None or after is None:
        return f"{CHECKPOINTS_FILE} has no list from {'before the run' if before is None else f'after {save.name}'}"
    if before.files or before.cut:
        return f"{before.files[0].path if before.files else 'something'} lay among the checkpoints before the run"
    if after.cut:
        return "there were more checkpoint files than are listed"
    step = save.planned.last_step
    gap = _state_gap(case, after, step)
    if gap:
        return f"the {save.name} phase left no whole checkpoint of step {step}: {gap}"
    tracked = _tracked_step(after)
    return "" if tracked == str(step) else f"the tracker says {tracked} after step {step} was saved"


def _resume_not_listed(case: Case, save: StartedPhase, resume: StartedPhase) -> str:
    """What the list made after the second phase says against the checkpoint that it should have loaded."""
    step = save.planned.last_step
    before, after = _listing_after(case, save.name), _listing_after(case, resume.name)
    if before is None or after is None or after.cut:
        return f"{CHECKPOINTS_FILE} has no whole list from after the {resume.name} phase"
    later = _files_of_step(after, step)
    for path, file in _files_of_step(before, step).items():
        kept = later.get(path)
        if kept is None or (file.size, file.modified_ns, file.sha256) != (kept.size, kept.modified_ns, kept.sha256):
            return f"{path} of step {step} did not stay as it was saved"
    tracked = _tracked_step(after)
    known = tracked in (str(step), str(resume.planned.last_step))
    return "" if known else f"the tracker says {tracked} after the {resume.name} phase"

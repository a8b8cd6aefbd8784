"""Level 1: a checkpoint was written, loaded, trained on from, and holds the state that was saved.

What the listed files say of a checkpoint: which step is complete, for which models, and whether it stayed so.

verl writes one folder for each step, `global_step_N`, with one for each model that trains. In it `model/dist_ckpt`
holds the shards that a resume loads under PEFT (`model/huggingface` what it loads without), `optimizer/dist_ckpt`
the optimizer; Megatron-FSDP puts both below `model/dist_ckpt`. `ckpt_contents.json` is written last.

Level 1: the second phase really went on from the first one's checkpoint, by the log and by the files.

The log tells what verl says it did, phase by phase; the files, listed before, between and after the phases, that the
checkpoint was there. A run that finds no checkpoint trains from scratch and exits 0, so neither alone is enough.

Level 1: what the second phase loaded is what the first one had saved, tensor by tensor, moments included.

The state is taken on each rank after the save and after the load. On the same rank the bits must be equal; where
ranks hold other parts of tensors than before, the sums over all ranks must be. A parameter that has after the load
what it had before was not restored; where the policy declares that the pinned commits never do, it is a limitation.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.judge.case import Case, Phase, planned_phases, started_phases, trained_models, wants_adapter
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import CheckpointEvent
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import CHECKPOINTS_FILE, CheckpointFile, CheckpointListing, Checkpoints

MANIFEST = "ckpt_contents.json"
_SHARD = re.compile(r"model/dist_ckpt/[^/]+\.distcp")
_WEIGHT_FILES = re.compile(r"model/(?:dist_ckpt/[^/]+\.distcp|huggingface/[^/]+\.(?:safetensors|bin))")
_OPTIMIZER_FILES = re.compile(r"optimizer/dist_ckpt/[^/]+\.distcp")
_STEP = re.compile(r"(?:^|/)global_step_(\d{1,12})/(.+)$")


@dataclass(frozen=True, slots=True)
class StateAsked:
    """What the checkpoint of a step must hold: the models that train, and how they are trained."""

    roles: tuple[str, ...]
    peft: bool
    fsdp: bool


def listing_after(checkpoints: Checkpoints, phase: str) -> CheckpointListing | None:
    """The list made after a phase (empty: before the first one), None when there is none."""
    return next((listing for listing in checkpoints.listings if listing.after == phase), None)


def tracked_step(listing: CheckpointListing) -> str:
    """The text of the tracker; empty when there is none, or when several disagree."""
    texts = set(listing.trackers.values())
    return texts.pop() if len(texts) == 1 else ""


def files_of_step(listing: CheckpointListing, step: int) -> dict[str, CheckpointFile]:
    """The files of one step by their path below its folder."""
    found = ((_STEP.search(file.path), file) for file in listing.files)
    return {match[2]: file for match, file in found if match and int(match[1]) == step}


def state_gap(listing: CheckpointListing, step: int, asked: StateAsked) -> str:
    """The first thing that is missing from the checkpoint of a step, as a clause; empty when it is complete."""
    return next(_state_gaps(files_of_step(listing, step), asked), "")


def changed_file(before: CheckpointListing, after: CheckpointListing, step: int) -> str:
    """The first file of a step that is no longer what it was; empty when all stayed."""
    later = files_of_step(after, step)
    return next((path for path, file in files_of_step(before, step).items() if not _same(file, later.get(path))), "")


def size_of_step(listing: CheckpointListing, step: int) -> int:
    """Bytes of all files of a step."""
    return sum(file.size for file in files_of_step(listing, step).values())


def _state_gaps(files: dict[str, CheckpointFile], asked: StateAsked) -> Iterator[str]:
    for role in asked.roles:
        own = {path.removeprefix(f"{role}/"): file for path, file in files.items() if path.startswith(f"{role}/")}
        needs = [("model state", _SHARD if asked.peft or asked.fsdp else _WEIGHT_FILES)]
        needs += [] if asked.fsdp else [("optimizer state", _OPTIMIZER_FILES)]
        for what, shape in needs:
            if not any(file.size for path, file in own.items() if shape.fullmatch(path)):
                yield f"no {what} of the {role}"
        if MANIFEST not in own:
            yield f"no {MANIFEST} of the {role}, which is written last"


def _same(file: CheckpointFile, later: CheckpointFile | None) -> bool:
    kept = later is not None and (file.size, file.modified_ns) == (later.size, later.modified_ns)
    return kept and later is not None and file.sha256 == later.sha256


_LOADED = re.compile(r"Loaded (?P<what>.{1,60}?) checkpoint from (?P<path>\S+)")
_SET_TO = re.compile(r"setting global step to (\d{1,12})")
_WEIGHTS = re.compile(r"adapter|model|fsdp", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optimizer|fsdp", re.IGNORECASE)
# A step that saved says so: the metric is there only when the save returned.
_SAVE_SECONDS = "timing_s/save_checkpoint"


def resumed(case: Case) -> Evidence:
    """A checkpoint of the first phase was written, loaded by the second, which trained on from it."""
    planned = planned_phases(case.job)
    if len(planned) < 2:
        return _resume_evidence(case, State.MISSING, "the job saves nothing, so nothing is resumed")
    started = started_phases(case)
    if len(started) < 2:
        return _resume_evidence(case, State.MISSING, f"the {planned[len(started)].name} phase never began")
    save, resume = started[0], started[1]
    wrong = next(_resume_fault(case, save, resume), None) or next(_resume_gap(case, save, resume), None)
    return wrong or _resume_met(case, save, resume)


def resume_stage(case: Case) -> Stage | None:
    """The stage that a broken resume belongs to; None where nothing shows that the first phase saved anything.

    Without a checkpoint to load, training from scratch is what was asked for, and nobody's fault is shown.
    """
    started = started_phases(case)
    if len(started) < 2:
        return None
    if _incomplete(case, started[0]):
        return Stage.CHECKPOINT_SAVE
    return Stage.CHECKPOINT_LOAD if _wrote(case, started[0]) or _left_checkpoint(case, started[0]) else None


def _resume_fault(case: Case, save: Phase, resume: Phase) -> Iterator[Evidence]:
    """What shows that the second phase did not go on from the first one's checkpoint."""
    step = save.planned.last_step
    scratch = _event(case, resume, "scratch")
    if scratch:
        after = f", although the {save.name} phase left a checkpoint of step {step}"
        text = after if _left_checkpoint(case, save) else ""
        yield _resume_evidence(case, State.BROKEN, f"the {resume.name} phase trained from scratch{text}", scratch)
    back = _event(case, resume, "resumed")
    wrong = _wrong_step(back, step)
    if back and wrong:
        yield _resume_evidence(
            case, State.BROKEN, f"the {resume.name} phase resumed from step {wrong}, not {step}", back
        )
    first = next((item for item in case.train_steps() if resume.wrote(item.line)), None)
    if first and first.step != resume.planned.first_step:
        summary = f"the first step of the {resume.name} phase is {first.step}, not {resume.planned.first_step}"
        yield Evidence(State.BROKEN, summary, case.log, first.line, f"step:{first.step}")
    missing = _incomplete(case, save)
    if missing:
        yield Evidence(State.BROKEN, missing, CHECKPOINTS_FILE, 0, missing)


def _resume_gap(case: Case, save: Phase, resume: Phase) -> Iterator[Evidence]:
    """What is missing of the proof, in the order of the run."""
    step = save.planned.last_step
    if not _wrote(case, save):
        yield _resume_evidence(case, State.MISSING, f"no line says that the {save.name} phase saved step {step}")
    if _event(case, resume, "resumed") is None:
        yield _resume_evidence(case, State.MISSING, f"no line says that the {resume.name} phase resumed")
    for role, what in _not_loaded(case, resume, step):
        summary = f"no line says that the {resume.name} phase loaded the {role}'s {what} of step {step}"
        yield _resume_evidence(case, State.MISSING, summary)
    if not any(resume.wrote(item.line) for item in case.train_steps()):
        yield _resume_evidence(case, State.MISSING, f"the {resume.name} phase printed no step")
    unlisted = _file_gap(case, save, resume)
    if unlisted:
        yield Evidence(State.MISSING, unlisted, CHECKPOINTS_FILE)


def _resume_met(case: Case, save: Phase, resume: Phase) -> Evidence:
    step, first = save.planned.last_step, resume.planned.first_step
    listing = listing_after(case.record.checkpoints, save.name) if case.record.checkpoints else None
    size = f", {size_of_step(listing, step):,} bytes" if listing else ""
    roles = " and ".join(trained_models(case))
    summary = (
        f"checkpoint of step {step} written ({roles}{size}), loaded by the {resume.name} phase, whose first step is "
        f"{first}"
    )
    return _resume_evidence(case, State.MET, summary, _event(case, resume, "resumed"))


def _resume_evidence(case: Case, state: State, summary: str, event: CheckpointEvent | None = None) -> Evidence:
    line, excerpt = (event.at.line, event.at.text) if event else (0, "")
    return Evidence(state, summary, case.log, line, excerpt)


def _event(case: Case, phase: Phase, action: str) -> CheckpointEvent | None:
    events = (
        checkpoint
        for checkpoint in case.facts.checkpoints
        if checkpoint.action == action and phase.wrote(checkpoint.at.line)
    )
    return next(events, None)


def _wrong_step(event: CheckpointEvent | None, step: int) -> str:
    if event is None:
        return ""
    words = _SET_TO.search(event.at.text)
    steps = {str(event.step), *([words[1]] if words else [])}
    return " and ".join(sorted(steps - {str(step)}))


def _announced(case: Case, save: Phase) -> bool:
    """Whether the log announces the save of the last step.

    verl's own line that a save is complete goes through a logger that the save itself may silence.
    """
    events = (
        checkpoint
        for checkpoint in case.facts.checkpoints
        if checkpoint.action in ("saving", "saved") and save.wrote(checkpoint.at.line)
    )
    return any(event.step == save.planned.last_step for event in events)


def _wrote(case: Case, save: Phase) -> bool:
    """Whether the log says that the announced save of the last step came to its end: its step says how long it took."""
    steps = (item for item in case.train_steps() if item.step == save.planned.last_step and save.wrote(item.line))
    return _announced(case, save) and any(_SAVE_SECONDS in item.values for item in steps)


def _not_loaded(case: Case, resume: Phase, step: int) -> Iterator[tuple[str, str]]:
    """Each model and part of its state that no line of the second phase says was loaded from that step."""
    events = [
        checkpoint
        for checkpoint in case.facts.checkpoints
        if checkpoint.action == "loaded" and resume.wrote(checkpoint.at.line)
    ]
    loads = [match for event in events if (match := _LOADED.search(event.at.text))]
    for role in trained_models(case):
        own = [load["what"] for load in loads if f"global_step_{step}/{role}" in load["path"]]
        for what, shape in (("weights", _WEIGHTS), ("optimizer state", _OPTIMIZER)):
            if not any(shape.search(summary) for summary in own):
                yield role, what


def _asked(case: Case) -> StateAsked:
    fsdp = case.config_value("actor_rollout_ref.actor.megatron.use_megatron_fsdp") is True
    return StateAsked(trained_models(case), wants_adapter(case), fsdp)


def _left_checkpoint(case: Case, save: Phase) -> bool:
    """Whether the files show a complete checkpoint of the first phase with its tracker."""
    return case.record.checkpoints is not None and not _file_gap_of_save(case, save)


def _incomplete(case: Case, save: Phase) -> str:
    """What is missing from a checkpoint that is there; a folder without any file of the step says nothing."""
    listing = listing_after(case.record.checkpoints, save.name) if case.record.checkpoints else None
    step = save.planned.last_step
    if listing is None or listing.cut or not files_of_step(listing, step):
        return ""
    gap = state_gap(listing, step, _asked(case))
    return f"the checkpoint of step {step} is not whole: {gap}" if gap else ""


def _file_gap(case: Case, save: Phase, resume: Phase) -> str:
    return _file_gap_of_save(case, save) or _file_gap_of_resume(case, save, resume)


def _file_gap_of_save(case: Case, save: Phase) -> str:
    """What the lists do not have of a checkpoint that only the first phase can have written."""
    if case.record.checkpoints is None:
        return f"{CHECKPOINTS_FILE}: not there"
    before, after = (listing_after(case.record.checkpoints, name) for name in ("", save.name))
    if before is None or after is None:
        return f"{CHECKPOINTS_FILE} has no list from {'before the run' if before is None else f'after {save.name}'}"
    if before.files or before.cut:
        return f"{before.files[0].path if before.files else 'something'} lay among the checkpoints before the run"
    step = save.planned.last_step
    if after.cut:
        return "there were more checkpoint files than are listed"
    gap = state_gap(after, step, _asked(case))
    if gap:
        return f"the {save.name} phase left no whole checkpoint of step {step}: {gap}"
    tracked = tracked_step(after)
    return "" if tracked == str(step) else f"the tracker says {tracked or 'nothing'} after step {step} was saved"


def _file_gap_of_resume(case: Case, save: Phase, resume: Phase) -> str:
    """What the list made after the second phase says against the checkpoint that it should have loaded."""
    assert case.record.checkpoints is not None
    step = save.planned.last_step
    before, after = (listing_after(case.record.checkpoints, item.name) for item in (save, resume))
    if before is None or after is None or after.cut:
        return f"{CHECKPOINTS_FILE} has no whole list from after the {resume.name} phase"
    moved = changed_file(before, after, step)
    if moved:
        return f"{moved} of step {step} did not stay as it was saved"
    tracked = tracked_step(after)
    known = tracked in (str(step), str(resume.planned.last_step))
    return "" if known else f"the tracker says {tracked or 'nothing'} after the {resume.name} phase"

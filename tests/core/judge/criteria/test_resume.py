"""Level 1: a resume that was one passes, and nothing that only looks like one does.

Level 1: what was loaded is what was saved, on each rank and tensor by tensor.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_case, make_record
from tests.core.fingerprints import LORA_A, ONE, Taken, absent, healthy, moved, other, scaled, tensor, zeroed
from tests.core.level_runs import (
    Run,
    checkpoints,
    driver,
    files,
    job_of,
    listing,
    resume_run,
    resuming,
    run_of,
    saving,
    trained,
)
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.case import started_phases
from verl_e2e.core.judge.criteria.basic import exit_zero
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.resume import resume_stage, resumed
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.criteria.transfer import resumed_state
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Point, Ranks, TensorKind
from verl_e2e.core.model.jobs import NotRestored
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Outcome, Result, Stage
from verl_e2e.core.model.record import CheckpointListing, Checkpoints

STEP_ONE = "global_step_1"


def without(*parts: str) -> Callable[[str], str]:
    """An edit that cuts every line that holds one of the parts."""
    return lambda text: "".join(line + "\n" for line in text.splitlines() if not any(part in line for part in parts))


def test_a_resume_that_was_one_passes() -> None:
    run = resume_run()
    verdict = run.verdict()
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    states = {item.criterion: item.state for item in verdict.evidence}
    assert {states[entry] for entry in (Criterion.RESUMED, Criterion.STEPS_COMPLETED, Criterion.GRADIENTS)} == {
        State.MET
    }
    item = resumed(run.case())
    assert "loaded by the resume phase, whose first step is 2" in item.summary
    assert "setting global step to 1" in item.excerpt


def test_the_card_of_a_resume_names_the_variant_and_claims_no_missing_resume() -> None:
    verdict = resume_run().verdict()
    (variants,) = (row for row in verdict.deliverables if row.name == "Requested variants")
    assert variants.outcome is Outcome.PASS
    assert variants.detail.startswith("Save/resume (resume): checkpoint of step 1 written (actor and critic, ")
    assert "saved after step 1 and resumed from there (Level 1, resume)" in verdict.sentence
    assert not [row for row in verdict.limitations if row.startswith("Save and resume")]


def test_each_phase_has_its_own_lines_with_and_without_the_runner_s_word() -> None:
    run = resume_run()
    save, resume = started_phases(run.case())
    assert (save.first_line, save.last_line + 1, resume.last_line) == (1, resume.first_line, run.facts.line_count)
    bare = run.record.model_copy(update={"events": run.record.events[-2:]})
    again = started_phases(make_case(bare, run.facts))
    assert [phase.first_line for phase in again] == [1, run.facts.configs[1].line]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (without("Resuming from"), "no line says that the resume phase resumed"),
        (without("Loaded PEFT adapter"), "no line says that the resume phase loaded the actor's weights of step 1"),
        (without("critic/optimizer/dist_ckpt"), "loaded the critic's optimizer state of step 1"),
        (without("step:2 - "), "the resume phase printed no step"),
    ],
)
def test_a_line_that_is_missing_is_missing_evidence(edit: Callable[[str], str], text: str) -> None:
    run = resume_run(edit)
    item = resumed(run.case())
    assert (item.state, text in item.summary) == (State.MISSING, True)
    assert run.verdict().result is Result.BLOCKED


def test_a_save_that_the_log_does_not_announce_is_missing_evidence() -> None:
    for save in (trained(1), without("Saving checkpoint")(trained(1, after=saving(1)))):
        run = run_of(job_of(Level.SAVE_RESUME, "resume"), save, resumed_phase(), checkpoints=checkpoints())
        item = resumed(run.case())
        assert (item.state, item.summary) == (State.MISSING, "no line says that the save phase saved step 1")


def resumed_phase() -> str:
    return trained(2, before=resuming(1), after=saving(2))


def from_scratch(text: str) -> str:
    """What `RESUME_MODE=auto` does without a checkpoint: it says so, trains from step 1 and exits 0."""
    scratch = driver("Training from scratch")
    text = without("Resuming from", "Loaded ", "Found checkpoint")(text)
    return text.replace("ready to fit\n", f"ready to fit\n{scratch}\n", 1)


def test_training_from_scratch_after_a_save_fails() -> None:
    run = resume_run(from_scratch)
    item = resumed(run.case())
    assert item.state is State.BROKEN
    assert item.summary == (
        "the resume phase trained from scratch, although the save phase left a checkpoint of step 1"
    )
    verdict = run.verdict()
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_LOAD)


def test_training_from_scratch_where_nothing_was_saved_is_nobody_s_fault_yet() -> None:
    run = run_of(
        job_of(Level.SAVE_RESUME, "resume"),
        trained(1),
        from_scratch(resumed_phase()),
        checkpoints=checkpoints(listing(""), listing("save"), listing("resume", 2)),
    )
    assert resumed(run.case()).state is State.BROKEN
    assert resume_stage(run.case()) is None
    assert run.verdict().result is Result.BLOCKED


@pytest.mark.parametrize(
    ("parts", "stage"),
    [((), Stage.CHECKPOINT_LOAD), (("Saving checkpoint",), None), (("save_checkpoint:",), None)],
)
def test_a_log_alone_shows_a_save_that_was_announced_and_came_to_its_end(
    parts: tuple[str, ...], stage: Stage | None
) -> None:
    save = trained(1, after=saving(1))
    for part in parts:
        save = save.replace(part, "something else")
    run = run_of(job_of(Level.SAVE_RESUME, "resume"), save, from_scratch(resumed_phase()))
    assert resume_stage(run.case()) is stage
    assert run.verdict().result is (Result.FAIL if stage else Result.BLOCKED)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("step:2 - ", "step:1 - again:1.0 - ", "the first step of the resume phase is 1, not 2"),
        ("setting global step to 1", "setting global step to 0", "the resume phase resumed from step 0, not 1"),
        ("global_step_1, setting", "global_step_7, setting", "the resume phase resumed from step 7, not 1"),
    ],
)
def test_a_resume_from_another_step_fails(old: str, new: str, words: str) -> None:
    run = resume_run(lambda text: text.replace(old, new))
    assert (resumed(run.case()).state, resumed(run.case()).summary) == (State.BROKEN, words)
    assert run.verdict().result is not Result.PASS


def without_file(path: str, *, after: str = "save") -> Checkpoints:
    """The lists without one file of step 1 after a phase and later."""
    kept = list(checkpoints().listings)
    first = next(index for index, listing in enumerate(kept) if listing.after == after)
    cut = [
        listing.model_copy(update={"files": tuple(file for file in listing.files if file.path != f"{STEP_ONE}/{path}")})
        for listing in kept[first:]
    ]
    return checkpoints(*kept[:first], *cut)


def emptied(path: str) -> Checkpoints:
    listings = [
        listing.model_copy(
            update={
                "files": tuple(
                    file.model_copy(update={"size": 0}) if file.path == f"{STEP_ONE}/{path}" else file
                    for file in listing.files
                )
            }
        )
        for listing in checkpoints().listings
    ]
    return checkpoints(*listings)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("actor/model/dist_ckpt/__0_0.distcp", "no model state of the actor"),
        ("critic/model/dist_ckpt/__0_0.distcp", "no model state of the critic"),
        ("actor/optimizer/dist_ckpt/__0_0.distcp", "no optimizer state of the actor"),
        ("critic/ckpt_contents.json", "no ckpt_contents.json of the critic, which is written last"),
    ],
)
def test_a_checkpoint_without_its_state_fails_at_the_save(path: str, text: str) -> None:
    run = resume_run(checkpoints=without_file(path))
    assert resumed(run.case()).summary == f"the checkpoint of step 1 is not whole: {text}"
    verdict = run.verdict()
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_SAVE)


@pytest.mark.parametrize("path", ["actor/model/dist_ckpt/__0_0.distcp", "critic/optimizer/dist_ckpt/__0_0.distcp"])
def test_an_empty_shard_is_no_state(path: str) -> None:
    assert resume_run(checkpoints=emptied(path)).verdict().result is Result.FAIL


def rewritten(after: str) -> Checkpoints:
    """The lists of a run in which step 1 was written again before the list of that phase."""
    again = tuple(files(1, modified_ns=77).values())
    made = [
        listing.model_copy(update={"files": (*again, *(f for f in listing.files if STEP_ONE not in f.path))})
        if listing.after == after
        else listing
        for listing in checkpoints().listings
    ]
    return checkpoints(*made)


STALE = listing("", 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "checkpoints.json: not there"),
        (checkpoints(listing("save", 1), listing("resume", 1, 2)), "has no list from before the run"),
        (checkpoints(listing(""), listing("resume", 1, 2)), "has no list from after save"),
        (checkpoints(listing(""), listing("save", 1)), "has no whole list from after the resume phase"),
        (checkpoints(STALE, listing("save", 1), listing("resume", 1, 2)), "lay among the checkpoints before the run"),
        (checkpoints(listing(""), listing("save"), listing("resume", 2)), "left no whole checkpoint of step 1"),
        (checkpoints(listing(""), listing("save", 1, tracker=""), listing("resume", 1, 2)), "the tracker says nothing"),
        (checkpoints(listing(""), listing("save", 1, tracker="7"), listing("resume", 1, 2)), "the tracker says 7"),
        (checkpoints(listing(""), listing("save", 1), listing("resume", 1, 2, tracker="9")), "the tracker says 9"),
        (without_file("data.pt", after="resume"), "data.pt of step 1 did not stay as it was saved"),
        (rewritten("resume"), "of step 1 did not stay as it was saved"),
        (
            checkpoints(listing(""), listing("save", 1).model_copy(update={"cut": True}), listing("resume", 1, 2)),
            "more checkpoint files than are listed",
        ),
    ],
)
def test_a_log_without_the_files_is_not_enough(given: Checkpoints | None, text: str) -> None:
    run = resume_run(checkpoints=given)
    item = resumed(run.case())
    assert (item.state, text in item.summary) == (State.MISSING, True), item.summary
    assert run.verdict().result is Result.BLOCKED


def test_two_trackers_that_disagree_say_nothing() -> None:
    both = {"latest_checkpointed_iteration.txt": "1", "b/latest_checkpointed_iteration.txt": "2"}
    twice = CheckpointListing(after="save", files=listing("save", 1).files, trackers=both)
    item = resumed(resume_run(checkpoints=checkpoints(listing(""), twice, listing("resume", 1, 2))).case())
    assert "the tracker says nothing" in item.summary


def test_a_second_phase_that_never_began_is_named() -> None:
    run = run_of(job_of(Level.SAVE_RESUME, "resume"), trained(1, after=saving(1)))
    assert resumed(run.case()).summary == "the resume phase never began"
    assert run.verdict().result is Result.BLOCKED


def test_a_job_that_saves_nothing_resumes_nothing() -> None:
    job = job_of(Level.SAVE_RESUME, "resume", wrapper={"SAVE_FREQ": "-1"})
    assert [phase.name for phase in consumer_of(job).phases(job)] == ["train"]
    assert resumed(make_case(run_of(job, trained(2)).record)).summary == "the job saves nothing, so nothing is resumed"


def test_the_log_of_the_smoke_twice_is_no_resume() -> None:
    again = trained(1).replace("step:1 - ", "step:1 - again:1.0 - ")
    run = run_of(job_of(Level.SAVE_RESUME, "resume"), trained(1), again)
    assert resumed(run.case()).summary == "the first step of the resume phase is 1, not 2"
    assert run.verdict().result is Result.BLOCKED


def test_a_phase_that_ended_otherwise_breaks_the_exit_whatever_the_last_one_did() -> None:
    run = resume_run()
    events = tuple(
        event.model_copy(update={"data": {**event.data, "exit_code": 1}})
        if event.kind == "phase" and event.data["step"] == "save" and event.data["state"] == "end"
        else event
        for event in run.record.events
    )
    assert exit_zero(run.case()).state is State.MET
    spoiled = Run(run.record.model_copy(update={"events": events}), run.facts)
    item = exit_zero(spoiled.case())
    assert (item.state, item.summary) == (State.BROKEN, "the process ended by exited, exit code 1")


LOADED, SAVED = Point.CHECKPOINT_LOADED, Point.CHECKPOINT_SAVED
MOMENT = f"{LORA_A}/exp_avg[0:8]"
TWO = tuple(Ranks(rank=rank, data=rank, data_size=2) for rank in range(2))
RUN = healthy(phases=("save", "resume"), steps=1)
RUN_ON_TWO = healthy(TWO, ("save", "resume"), steps=1)


def found(taken: Taken) -> CriterionFinding:
    return resumed_state(resume_run(fingerprints=taken.document()).case())


def test_a_state_that_came_back_is_met() -> None:
    item = found(RUN)
    assert (item.evidence.state, item.stage, item.notes) == (State.MET, Stage.CHECKPOINT_LOAD, ())
    assert item.evidence.summary == ("20 tensors of actor and critic, optimizer state included, are as they were saved")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (zeroed, "all zero"),
        (absent, "not there on rank 0 after the load"),
        (scaled(2.0), "a scale by 2"),
        (moved, "a permutation or transposition: the same values in another order"),
        (other, "other values"),
    ],
)
@pytest.mark.parametrize("name", [LORA_A, MOMENT, f"{LORA_A}/main[0:8]"])
def test_a_tensor_that_came_back_otherwise_is_named(name: str, change: Any, what: str) -> None:
    item = found(RUN.with_tensor(name, change, LOADED, model="actor")).evidence
    assert item.state is State.BROKEN
    assert item.summary == (
        f"what the resume phase loaded of the actor is not what the save phase saved: {name}: {what}"
    )
    assert item.excerpt.startswith(f"{name}: {what}\n  expected: ")


def test_a_lost_moment_is_a_fail_that_nothing_else_sees() -> None:
    spoiled = RUN.with_tensor(MOMENT, zeroed, LOADED, model="critic")
    verdict = resume_run(fingerprints=spoiled.document()).verdict()
    assert (verdict.result, verdict.stage) == (Result.FAIL, Stage.CHECKPOINT_LOAD)
    assert verdict.decided_by == Criterion.RESUMED_STATE
    broken = [item.criterion for item in verdict.evidence if item.state is State.BROKEN]
    assert broken == [Criterion.RESUMED_STATE]


def test_several_faults_are_counted_and_the_first_ones_shown() -> None:
    spoiled = RUN.with_tensor(MOMENT, zeroed, LOADED, model="actor").with_tensor(LORA_A, other, LOADED, model="actor")
    item = found(spoiled).evidence
    assert f"{LORA_A} (and 1 more): other values" in item.summary
    assert item.excerpt.count("expected:") == 2


@pytest.mark.parametrize("point", [LOADED, SAVED])
@pytest.mark.parametrize("model", ["actor", "critic"])
def test_a_hook_that_never_fired_is_a_gap(point: Point, model: str) -> None:
    item = found(RUN.without(point, model=model)).evidence
    phase = "save" if point is SAVED else "resume"
    expected = f"no fingerprint '{point}' of the {model} in the {phase} phase"
    assert (item.state, item.summary) == (State.MISSING, expected)


def test_a_checkpoint_without_optimizer_state_is_a_gap() -> None:
    def bare(taken: Taken) -> Taken:
        rows = (
            row.model_copy(
                update={"tensors": tuple(item for item in row.tensors if item.kind is not TensorKind.OPTIMIZER)}
            )
            for row in taken.snapshots
        )
        return Taken(tuple(rows))

    item = found(bare(RUN)).evidence
    assert item.state is State.MISSING
    assert item.summary == "the fingerprints of the actor's checkpoint hold no state of the optimizer"


def test_the_snapshot_of_another_step_is_not_the_one_that_was_saved() -> None:
    assert found(RUN.with_snapshots({"step": 7}, SAVED)).evidence.state is State.MISSING
    assert found(RUN.with_snapshots({"step": None}, SAVED)).evidence.state is State.MET


def test_a_moment_that_is_shared_out_at_one_point_alone_is_compared() -> None:
    parts = RUN.with_tensor(MOMENT, lambda held: held.model_copy(update={"sharded": True}), SAVED, model="actor")
    assert found(parts).evidence.state is State.MET
    assert found(parts.with_tensor(MOMENT, zeroed, LOADED, model="actor")).evidence.state is State.BROKEN


def test_a_count_of_steps_may_come_back_as_another_type() -> None:
    def with_step(taken: Taken, point: Point, value: float, dtype: str) -> Taken:
        step = tensor("optimizer0.group0/step", (value,), (), kind=TensorKind.OPTIMIZER, dtype=dtype)
        rows = (
            row.model_copy(update={"tensors": (*row.tensors, step)}) if row.point is point else row
            for row in taken.snapshots
        )
        return Taken(tuple(rows))

    saved = with_step(RUN, SAVED, 1.0, "float64")
    assert found(with_step(saved, LOADED, 1.0, "int64")).evidence.state is State.MET
    item = found(with_step(saved, LOADED, 0.0, "float64")).evidence
    assert "optimizer0.group0/step: all zero" in item.summary
    assert "optimizer0.group0/step: not there on rank 0" in found(saved).evidence.summary


def test_a_sample_of_a_large_model_is_named() -> None:
    partial = RUN.with_snapshots({"left_out": 9}, LOADED, SAVED).with_tensor(MOMENT, absent, LOADED)
    item = found(partial)
    assert item.evidence.state is State.MET
    assert item.notes == tuple(
        f"Fingerprints are of a sample: 9 tensors of the {model} on each rank were not compared"
        for model in ("actor", "critic")
    )


def _swapped(taken: Taken) -> Taken:
    """The loaded state with the parts of the two ranks swapped."""
    parts = {(row.model, row.ranks.rank): row.tensors for row in taken.snapshots if row.point is LOADED}
    rows = (
        row.model_copy(update={"tensors": parts[row.model, 1 - row.ranks.rank]}) if row.point is LOADED else row
        for row in taken.snapshots
    )
    return Taken(tuple(rows))


def test_another_sharding_is_compared_by_sums() -> None:
    swapped = _swapped(RUN_ON_TWO)
    assert found(swapped).evidence.state is State.MET
    lost = swapped.with_tensor(MOMENT, zeroed, LOADED, model="actor", rank=1)
    text = f"{LORA_A}/exp_avg: its parts on all ranks do not add up to what was saved"
    assert text in found(lost).evidence.summary


def test_after_another_sharding_whole_tensors_are_compared_on_each_rank() -> None:
    exchanged = _swapped(RUN_ON_TWO.with_tensor(LORA_A, scaled(2.0), SAVED, model="actor", rank=0)).with_tensor(
        LORA_A, scaled(2.0), LOADED, model="actor", rank=1
    )
    assert f"{LORA_A} (and 1 more): a scale by 0.5" in found(exchanged).evidence.summary
    known = declared(_swapped(stale(RUN_ON_TWO)), HEAD)
    assert (known.evidence.state, len(known.notes)) == (State.MET, 1)


@pytest.mark.parametrize(("change", "what"), [(absent, "not there on any rank after the load"), (zeroed, "all zero")])
def test_a_moment_that_no_rank_has_after_another_sharding(change: Any, what: str) -> None:
    swapped = _swapped(RUN_ON_TWO)
    gone = swapped.with_tensor(MOMENT, change, LOADED, model="actor", rank=1).with_tensor(
        f"{LORA_A}/exp_avg[8:16]", change, LOADED, model="actor", rank=0
    )
    assert f"{LORA_A}/exp_avg: {what}" in found(gone).evidence.summary
    if change is absent:
        assert found(gone.with_snapshots({"left_out": 1}, LOADED)).evidence.state is State.MET


def test_a_job_that_never_saves_resumes_nothing() -> None:
    item = resumed_state(make_case(make_record(fingerprints=healthy(ONE).document()))).evidence
    assert (item.state, item.summary) == (State.MISSING, "the job saves nothing, so nothing is resumed")


HEAD = NotRestored(
    name="head", model="critic", parameters=(LORA_A,), reason="verl does not save it", upstream="https://example.org/1"
)


def stale(run: Taken = RUN, change: Any = None) -> Taken:
    """The run in which a parameter of the critic has after the load what it had before."""
    built = (item for item in run.snapshots if item.point is Point.MODEL_BUILT and item.model == "critic")
    before = next(held for item in built for held in item.tensors if held.name == LORA_A)
    return run.with_tensor(LORA_A, change or (lambda _: before), LOADED, model="critic")


def declared(taken: Taken, *entries: NotRestored) -> CriterionFinding:
    case = resume_run(fingerprints=taken.document()).case()
    return resumed_state(replace(case, job=case.job.model_copy(update={"not_restored": entries})))


def test_a_parameter_that_the_load_left_alone_is_named_as_such() -> None:
    item = found(stale()).evidence
    assert item.state is State.BROKEN
    assert item.summary.endswith(f"{LORA_A}: a stale copy: the values of an earlier point")


def test_a_parameter_that_is_known_not_to_be_restored_is_a_limitation() -> None:
    item = declared(stale(), HEAD)
    assert item.evidence.state is State.MET
    assert item.notes == (
        f"Known defect head: {LORA_A} of the critic has after the load what it had before: verl does not save it "
        "(https://example.org/1)",
    )


@pytest.mark.parametrize("change", [zeroed, absent, scaled(2.0), other])
def test_a_known_defect_excuses_no_other_difference(change: Any) -> None:
    item = declared(stale(change=change), HEAD)
    assert (item.evidence.state, item.notes) == (State.BROKEN, ())


def test_a_known_defect_excuses_no_other_tensor_and_no_other_model() -> None:
    both = stale().with_tensor(MOMENT, zeroed, LOADED, model="critic")
    item = declared(both, HEAD)
    assert item.evidence.state is State.BROKEN
    assert item.evidence.summary.endswith(f"{MOMENT}: all zero")
    assert len(item.notes) == 1
    assert declared(stale(), HEAD.model_copy(update={"model": "actor"})).evidence.state is State.BROKEN


def test_a_known_defect_that_does_not_show_is_not_mentioned() -> None:
    assert declared(RUN, HEAD).notes == ()

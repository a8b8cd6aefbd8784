"""Which related runs a judged job asks for, in which order, and how their jobs differ from its own."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import judged, make_job
from tests.core.executions import REMOVED, TRANSFORM, change
from verl_e2e.core.compare.jobs import job_differences
from verl_e2e.core.consumer.consumers import VARIANTS, consumer_of
from verl_e2e.core.consumer.verl import SETTINGS, expected_config
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import (
    AS_ASKED,
    NOTHING,
    REFERENCE_ROLES,
    Allowed,
    Followup,
    MergeBase,
    followups,
    gpu_minutes,
    job_of,
    on_merge_base,
    possible_followups,
    without_base,
    without_saving,
)
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import ChangedCode
from verl_e2e.core.model.jobs import Job, Patch, Repository, Substitution
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.model.settings import Axis

BASE = MergeBase("d" * 40)
ALLOWED = Allowed(merge_base=BASE)
SIGNAL = make_job(Level.LEARNING_SIGNAL, "signal", steps=20)
RESUME = make_job(
    Level.SAVE_RESUME, "resume", steps=2, wrapper={"SAVE_FREQ": "1", "TOTAL_TRAIN_STEPS": "2"}, expected={}
)
DENSE = make_job(Level.PARALLELISM, "dense", wrapper={"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2"})
PARITY = make_job(
    Level.PARALLELISM,
    "dp2-parity",
    gpu_count=2,
    wrapper={"NUM_GPUS": "2", "LORA_RANK": "0"},
    overrides=SETTINGS[Axis.PARITY].values[True].overrides,
)
BESIDE = PARITY.model_copy(update={"site": PARITY.site.model_copy(update={"known_good": True})})
ADAPTED = BESIDE.model_copy(update={"wrapper": {**PARITY.wrapper, "LORA_RANK": "4"}})
SMOKE = make_job()
MARK = ("no_exception: ValueError: planted",)


def verdict(result: Result, stage: Stage | None = None, **gaps: State) -> Verdict:
    """A verdict by itself, with these criteria in these states and all others met."""
    evidence = tuple(Evidence(state, "said", criterion=name) for name, state in gaps.items())
    marks = MARK if result is Result.FAIL else ()
    return replace(judged(), result=result, own_result=result, stage=stage, fingerprint=marks, evidence=evidence)


def ran(role: Role, result: Result = Result.PASS, stage: Stage | None = None, **given: Any) -> RelatedRun:
    """A related run that was made already."""
    return RelatedRun(
        role=role,
        job_id="0-any",
        job_digest="e" * 64,
        bridge_commit="d" * 40,
        folder=f"related/{role}",
        result=result,
        stage=stage,
        fingerprint=given.get("fingerprint", MARK if result is Result.FAIL else ()),
    )


FAIL = verdict(Result.FAIL, Stage.PEFT)
SAVE_FAIL = verdict(Result.FAIL, Stage.CHECKPOINT_SAVE)
UNDECIDED = replace(verdict(Result.BLOCKED, Stage.IMPORT), fingerprint=MARK, undecided=True)
BLOCKED_BASE = ran(Role.MERGE_BASE, Result.BLOCKED, Stage.IMPORT, fingerprint=MARK)
PASSED_BASE = ran(Role.MERGE_BASE)
BEYOND = ran(Role.MERGE_BASE, Result.FAIL, Stage.TRAIN_STEP, fingerprint=("no_exception: later",))
FINE = verdict(Result.PASS, resumed=State.MET, resumed_step=State.WAIVED)
UNSTEADY = replace(
    verdict(Result.FAIL, Stage.CHECKPOINT_LOAD, resumed=State.MET, resumed_step=State.BROKEN),
    fingerprint=("resumed_step: the resumed step differs",),
    decided_by=Criterion.RESUMED_STEP,
)
UNINTERRUPTED = ran(Role.UNINTERRUPTED)
PARALLEL = verdict(Result.PASS, parallel_sizes=State.MET, parity=State.WAIVED)
COMPARED = verdict(Result.PASS, parallel_sizes=State.MET, parity=State.MET)
COMPARABLE = verdict(Result.BLOCKED, Stage.TRAIN_STEP, parallel_sizes=State.MET, parity=State.MISSING)
UNPROVEN = verdict(Result.BLOCKED, Stage.TRAIN_STEP, parallel_sizes=State.MISSING, parity=State.MISSING)
DIFFERS = replace(
    verdict(Result.FAIL, Stage.TRAIN_STEP, parallel_sizes=State.MET, parity=State.BROKEN),
    fingerprint=("parity: the training differs",),
    decided_by=Criterion.PARITY,
)
FLAT = verdict(Result.BLOCKED, Stage.LEARNING_SIGNAL, learning_signal=State.MISSING)
M, R, U, W = Role.MERGE_BASE, Role.RETRY, Role.UNINTERRUPTED, Role.WITHOUT_SAVE
T, K = Role.UNSHARDED, Role.KNOWN_GOOD

ASKED: tuple[tuple[str, Job, Verdict, tuple[RelatedRun, ...], Allowed, tuple[Role, ...]], ...] = (
    ("a pass of level 0", SMOKE, verdict(Result.PASS), (), ALLOWED, ()),
    ("a run that was blocked", SMOKE, verdict(Result.BLOCKED, Stage.RAY, exit_zero=State.MISSING), (), ALLOWED, ()),
    ("a run that the change may have blocked", SMOKE, UNDECIDED, (), ALLOWED, (M,)),
    ("one whose base passed", SMOKE, UNDECIDED, (PASSED_BASE,), ALLOWED, (R,)),
    ("one whose base was blocked too", SMOKE, UNDECIDED, (BLOCKED_BASE,), ALLOWED, ()),
    ("one whose base was blocked otherwise", SMOKE, UNDECIDED, (ran(M, Result.BLOCKED, Stage.RAY),), ALLOWED, ()),
    ("one that was retried", SMOKE, UNDECIDED, (PASSED_BASE, ran(R, Result.BLOCKED, Stage.IMPORT)), ALLOWED, ()),
    ("one without a base", SMOKE, UNDECIDED, (), without_base(AS_ASKED, "none"), ()),
    ("one in a save", RESUME, replace(UNDECIDED, stage=Stage.CHECKPOINT_SAVE), (), ALLOWED, (M,)),
    ("a fail", SMOKE, FAIL, (), ALLOWED, (M,)),
    ("a fail whose base passed", SMOKE, FAIL, (PASSED_BASE,), ALLOWED, (R,)),
    ("a fail whose base got beyond it", SMOKE, FAIL, (BEYOND,), ALLOWED, (R,)),
    ("a fail whose base fails too", SMOKE, FAIL, (ran(M, Result.FAIL, Stage.PEFT),), ALLOWED, ()),
    ("a fail whose base fails before", SMOKE, FAIL, (ran(M, Result.FAIL, Stage.HF_IMPORT),), ALLOWED, ()),
    ("a fail whose base was stopped", SMOKE, FAIL, (ran(M, Result.BLOCKED, Stage.RAY),), ALLOWED, ()),
    ("a fail that was retried", SMOKE, FAIL, (PASSED_BASE, ran(R, Result.FAIL, Stage.PEFT)), ALLOWED, ()),
    ("a fail without a base", SMOKE, FAIL, (), without_base(AS_ASKED, "none"), ()),
    ("a fail of the base itself", SMOKE, FAIL, (), Allowed(merge_base=MergeBase("a" * 40)), ()),
    ("a fail where nothing may follow", RESUME, SAVE_FAIL, (), NOTHING, ()),
    ("a save that failed", RESUME, SAVE_FAIL, (), ALLOWED, (M, W)),
    ("a save that failed on the base as well", RESUME, SAVE_FAIL, (ran(M, Result.FAIL, Stage.PEFT),), ALLOWED, (W,)),
    ("a save that failed, base passed", RESUME, SAVE_FAIL, (PASSED_BASE,), ALLOWED, (R, W)),
    ("a save that failed, nothing left to ask", RESUME, SAVE_FAIL, (PASSED_BASE, ran(R), ran(W)), ALLOWED, ()),
    ("a save that failed, no base wanted", RESUME, SAVE_FAIL, (), without_base(AS_ASKED, "none"), (W,)),
    ("an export that failed in level 1", RESUME, verdict(Result.FAIL, Stage.EXPORT_WEIGHT_SYNC), (), ALLOWED, (M, W)),
    (
        "an export that failed with nothing saved",
        SMOKE,
        verdict(Result.FAIL, Stage.EXPORT_WEIGHT_SYNC),
        (),
        ALLOWED,
        (M,),
    ),
    ("a resume that is fine by itself", RESUME, FINE, (), ALLOWED, (U,)),
    (
        "a resume that is fine and never entered the change",
        RESUME,
        verdict(Result.BLOCKED, Stage.TRAIN_STEP, resumed_step=State.MISSING, change_executed=State.BROKEN),
        (),
        ALLOWED,
        (U,),
    ),
    ("a resume compared with its reference run", RESUME, FINE, (UNINTERRUPTED,), ALLOWED, ()),
    (
        "a resume whose only gap is the comparison",
        RESUME,
        verdict(Result.BLOCKED, Stage.CHECKPOINT_LOAD, resumed_step=State.MISSING),
        (),
        ALLOWED,
        (U,),
    ),
    (
        "a resume that is not proven",
        RESUME,
        verdict(Result.BLOCKED, Stage.TRAIN_STEP, resumed=State.MISSING, resumed_step=State.WAIVED),
        (),
        ALLOWED,
        (),
    ),
    ("a resumed step that differs", RESUME, UNSTEADY, (UNINTERRUPTED,), ALLOWED, (M,)),
    ("a resumed step that differs, base passed", RESUME, UNSTEADY, (UNINTERRUPTED, PASSED_BASE), ALLOWED, (R,)),
    ("a parity job that is fine by itself", PARITY, COMPARABLE, (), ALLOWED, (T,)),
    ("a parity job that is not proven", PARITY, UNPROVEN, (), ALLOWED, ()),
    ("a parity job that failed by itself", PARITY, FAIL, (), ALLOWED, (M,)),
    ("a parity job whose reference did not pass", PARITY, COMPARABLE, (ran(T, Result.BLOCKED),), ALLOWED, ()),
    ("a parity job that differs", PARITY, DIFFERS, (ran(T),), ALLOWED, (M,)),
    ("a parity job that differs, base passed", PARITY, DIFFERS, (ran(T), PASSED_BASE), ALLOWED, (R,)),
    ("a parity job where mbridge is at hand", BESIDE, COMPARABLE, (), ALLOWED, (T,)),
    ("one that was compared", BESIDE, COMPARED, (ran(T),), ALLOWED, (K,)),
    ("one with both", BESIDE, COMPARED, (ran(T), ran(K, Result.BLOCKED)), ALLOWED, ()),
    ("one that differs", BESIDE, DIFFERS, (ran(T),), ALLOWED, (M, K)),
    ("one with adapters", ADAPTED, COMPARED, (ran(T),), ALLOWED, ()),
    ("one on a site without", PARITY, COMPARED, (ran(T),), ALLOWED, ()),
    ("sizes that are not there for parity", DENSE, PARALLEL, (), ALLOWED, ()),
    ("a signal that passes", SIGNAL, verdict(Result.PASS, learning_signal=State.MET), (), ALLOWED, (M,)),
    ("a signal that is flat", SIGNAL, FLAT, (), ALLOWED, (M,)),
    ("a signal compared with its baseline", SIGNAL, FLAT, (PASSED_BASE,), ALLOWED, ()),
    ("a signal with a noise band", SIGNAL, FLAT, (PASSED_BASE,), replace(ALLOWED, baselines=3), (M,)),
    ("a signal with its whole band", SIGNAL, FLAT, (PASSED_BASE,) * 3, replace(ALLOWED, baselines=3), ()),
    ("a signal run that failed", SIGNAL, FAIL, (), replace(ALLOWED, baselines=3), (M,)),
    ("a signal run that failed, base passed", SIGNAL, FAIL, (PASSED_BASE,), replace(ALLOWED, baselines=3), (R,)),
    (
        "an unstable signal waits for its band before its retry",
        SIGNAL,
        verdict(Result.FAIL, Stage.LEARNING_SIGNAL, learning_signal=State.BROKEN),
        (PASSED_BASE,),
        replace(ALLOWED, baselines=2),
        (M, R),
    ),
    (
        "an unstable signal asks for its baseline once",
        SIGNAL,
        verdict(Result.FAIL, Stage.LEARNING_SIGNAL, learning_signal=State.BROKEN),
        (),
        ALLOWED,
        (M,),
    ),
    (
        "a signal run that was stopped",
        SIGNAL,
        verdict(Result.BLOCKED, Stage.TRAIN_STEP, exit_zero=State.MISSING, learning_signal=State.MISSING),
        (),
        ALLOWED,
        (),
    ),
)


@pytest.mark.parametrize(
    ("job", "judgement", "history", "allowed", "roles"), [row[1:] for row in ASKED], ids=[row[0] for row in ASKED]
)
def test_what_is_asked_for_next(
    job: Job, judgement: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed, roles: tuple[Role, ...]
) -> None:
    assert tuple(followup.role for followup in followups(job, judgement, history, allowed)) == roles


@pytest.mark.parametrize("judgement", [FAIL, SAVE_FAIL, FINE, UNSTEADY, PARALLEL, COMPARABLE, DIFFERS, FLAT])
@pytest.mark.parametrize("job", [SMOKE, RESUME, DENSE, PARITY, SIGNAL], ids=lambda job: job.id)
@pytest.mark.parametrize("ended", [Result.PASS, Result.FAIL, Result.BLOCKED])
def test_it_comes_to_an_end_and_nothing_runs_twice(job: Job, judgement: Verdict, ended: Result) -> None:
    history: tuple[RelatedRun, ...] = ()
    allowed = replace(ALLOWED, baselines=3)
    while asked := followups(job, judgement, history, allowed):
        history = (*history, ran(asked[0].role, ended, Stage.SHUTDOWN, fingerprint=("another",)))
        assert len(history) < 9
    roles = [run.role for run in history]
    assert len([role for role in roles if role is not M]) == len({role for role in roles if role is not M})
    assert roles.count(M) <= (3 if job is SIGNAL else 1)


def _only(job: Job, judgement: Verdict, history: tuple[RelatedRun, ...], allowed: Allowed = ALLOWED) -> Followup:
    return followups(job, judgement, history, allowed)[0]


def test_a_comparison_is_repeated_on_the_base_with_a_reference_run_of_its_own_and_retried_with_ours() -> None:
    base = _only(RESUME, UNSTEADY, (UNINTERRUPTED,))
    assert base.allowed.roles == REFERENCE_ROLES & ALLOWED.roles
    assert base.allowed.merge_base is None
    assert _only(RESUME, UNSTEADY, (UNINTERRUPTED, PASSED_BASE)).inherits == (UNINTERRUPTED,)


def test_a_plain_failure_gets_no_runs_beside_its_baseline() -> None:
    assert _only(RESUME, SAVE_FAIL, ()).allowed == NOTHING
    assert _only(SMOKE, FAIL, (PASSED_BASE,)).inherits == ()


def test_a_parity_job_that_failed_by_itself_is_repeated_with_what_it_needs_to_pass() -> None:
    needed = REFERENCE_ROLES & ALLOWED.roles
    assert _only(PARITY, FAIL, ()).allowed.roles == needed
    retry = _only(PARITY, FAIL, (PASSED_BASE,))
    assert (retry.role, retry.allowed.roles, retry.allowed.merge_base) == (R, needed, None)
    assert _only(PARITY, DIFFERS, (ran(T), PASSED_BASE)).inherits == (ran(T),)


def test_a_retried_signal_is_held_against_the_same_baselines() -> None:
    assert _only(SIGNAL, FAIL, (PASSED_BASE, PASSED_BASE)).inherits == (PASSED_BASE, PASSED_BASE)


PATCH = Patch(
    name="one",
    repository="verl",
    file="verl/a.py",
    substitutions=(Substitution(old="a", new="b"),),
    before="1" * 64,
    after="2" * 64,
    reason="because",
)


def test_the_job_on_the_merge_base_differs_in_its_trees_and_in_what_its_time_is_to_it() -> None:
    core = Repository(path="$HOME/mlm", commit="c" * 40, in_place=True)
    bridge = Repository(path="$HOME/bridge", commit="a" * 40, in_place=True)
    job = make_job(bridge=bridge, megatron_lm=core, patches=(PATCH,))
    there = Repository(path="$HOME/mlm", commit="f" * 40)
    made = on_merge_base(job, MergeBase("d" * 40, there, ()))
    assert made.bridge == Repository(path="$HOME/bridge", commit="d" * 40)
    assert (made.megatron_lm, made.patches) == (there, ())
    same = {key: getattr(job, key) for key in ("bridge", "megatron_lm", "patches", "performance")}
    assert made.model_copy(update=same) == job
    assert made.digest() != job.digest()


def test_a_base_uses_its_own_submodule_where_the_job_does() -> None:
    made = on_merge_base(make_job(), MergeBase("d" * 40, Repository(path="x", commit="f" * 40)))
    assert made.megatron_lm is None


def test_a_retry_is_the_very_same_job() -> None:
    assert job_of(Role.RETRY, SMOKE) == SMOKE


@pytest.mark.parametrize("role", [U, W])
def test_without_saving_a_resume_is_a_longer_smoke_in_one_phase(role: Role) -> None:
    wanted_of_it = {"trainer.save_freq": 1, "a.feature": True}
    job = RESUME.model_copy(update={"expected": wanted_of_it, "require_bridge_checks": True})
    made = job_of(role, job)
    assert made is not None
    assert (made.level, made.steps, made.gpu_count) == (Level.SMOKE, 2, 1)
    assert made.id == f"0-{made.variant}"
    assert (job.bridge_tests != (), made.bridge_tests, made.require_bridge_checks) == (True, (), False)
    assert [phase.name for phase in consumer_of(made).phases(made)] == ["train"]
    wanted = dict(requested_config(made))
    shown = {key: wanted[f"trainer.{key}"] for key in ("save_freq", "resume_mode", "total_training_steps")}
    assert shown == {"save_freq": -1, "resume_mode": "disable", "total_training_steps": 2}
    assert wanted["a.feature"] is True
    assert len(wanted) == len(requested_config(made)), "no key is asked for with two values"
    assert made.expected == {"a.feature": True} | expected_config(made.wrapper, made.overrides)
    assert Job.model_validate_json(made.model_dump_json()) == made


def test_the_two_jobs_without_saving_are_told_apart() -> None:
    reference, without = job_of(U, RESUME), job_of(W, RESUME)
    assert reference is not None
    assert without is not None
    assert reference.id != without.id


def test_without_saving_under_fsdp_is_a_level_3_run_and_another_level_stays_what_it_is() -> None:
    fsdp = RESUME.model_copy(update={"wrapper": {**RESUME.wrapper, "USE_MEGATRON_FSDP": "True"}})
    made = without_saving(fsdp, "uninterrupted")
    assert made is not None
    assert made.level is Level.MEGATRON_FSDP
    dense = make_job(Level.PARALLELISM, "dense", wrapper={"SAVE_FREQ": "1"})
    made = without_saving(dense, "without-save")
    assert made is not None
    assert (made.id, made.level, made.wrapper["SAVE_FREQ"]) == ("2-dense", Level.PARALLELISM, "-1")


def test_what_never_saves_or_is_another_script_has_no_reference_run() -> None:
    assert without_saving(SMOKE, "x") is None
    assert without_saving(RESUME.model_copy(update={"script": "examples/other.sh"}), "x") is None


def test_the_known_good_run_differs_in_the_bridge_alone() -> None:
    made = job_of(K, BESIDE)
    assert made is not None
    assert (made.id, made.level, made.gpu_count, made.overrides) == ("0-known-good", Level.SMOKE, 2, PARITY.overrides)
    differing = {name for name in made.wrapper if made.wrapper[name] != BESIDE.wrapper.get(name)}
    assert differing == {"VANILLA_MBRIDGE"}
    keys = {key for key, value in made.expected.items() if BESIDE.expected.get(key, value) != value}
    assert keys <= {f"actor_rollout_ref.{role}.megatron.vanilla_mbridge" for role in ("actor", "ref")}
    assert job_differences(BESIDE, made) == ("wrapper.VANILLA_MBRIDGE: False -> True",)


def test_the_unsharded_job_takes_one_gpu() -> None:
    made = job_of(T, PARITY)
    assert made is not None
    assert made.gpu_count == 1
    assert job_of(T, DENSE) is None


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.job_id)
def test_the_cost_is_that_of_the_variant_and_grows_with_the_gpus(variant: Any) -> None:
    job = make_job(variant.level, variant.name, gpu_count=variant.gpu_count)
    one_run = variant.cost.run_s * variant.gpu_count / 60
    assert 0 <= gpu_minutes(job) - one_run < 1
    assert 0 <= gpu_minutes(job.model_copy(update={"gpu_count": 2 * variant.gpu_count})) - 2 * one_run < 1
    other = job.model_copy(update={"variant": "mine", "id": f"{int(variant.level)}-mine"})
    assert gpu_minutes(other) > 0


def test_what_may_follow_is_said_with_its_cost() -> None:
    assert possible_followups(SMOKE, NOTHING) == ()
    assert possible_followups(SMOKE, ALLOWED) == (
        "0-lora-ddp: may be followed by the same job on the merge base when it fails, or is blocked by what the change "
        "may have caused, about 7 GPU minutes",
        "0-lora-ddp: may be followed by the retry on the head when the merge base does not end so, about 7 GPU minutes",
    )
    text = "\n".join(possible_followups(RESUME, ALLOWED))
    assert "uninterrupted reference run when both phases are fine, about 7 GPU minutes" in text
    assert "without saving when it fails in export, save or load, about 7 GPU minutes" in text
    assert "2 time(s), whether it passes or fails" in "\n".join(
        possible_followups(SIGNAL, replace(ALLOWED, baselines=2))
    )
    assert "unsharded reference run" in "\n".join(possible_followups(PARITY, ALLOWED))
    assert "unsharded" not in "\n".join(possible_followups(DENSE, ALLOWED))


def test_a_run_to_compare_with_is_not_asked_whether_it_entered_the_change() -> None:
    changed = change(TRANSFORM, REMOVED)
    for role, job in ((R, SMOKE), (U, RESUME), (W, RESUME), (T, PARITY)):
        made = job_of(role, job.model_copy(update={"changed": changed}))
        assert made is not None
        assert made.changed == ChangedCode(), role


def test_the_merge_base_is_planned_for_what_the_change_takes_the_place_of() -> None:
    unread = {"a.cfg": "not Python"}
    both = change(TRANSFORM, REMOVED, unread=unread, earlier=(REMOVED,))
    assert on_merge_base(SMOKE.model_copy(update={"changed": both}), BASE).changed == change(REMOVED, unread=unread)
    added = SMOKE.model_copy(update={"changed": change(TRANSFORM, unread=unread)})
    assert on_merge_base(added, BASE).digest() == on_merge_base(SMOKE, BASE).digest()

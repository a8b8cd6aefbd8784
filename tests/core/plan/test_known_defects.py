"""A job that is known to fail on unchanged code is not planned, and what can stand for it is."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from tests.core.plan.cells import POLICY, TABLE, planned
from verl_e2e.config import load_profile
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.execution import ChangedFunction, purpose_of
from verl_e2e.core.model.jobs import Repository
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import JobPoint, ModelWant, Want
from verl_e2e.core.plan.build import BuildError, Sources, build_job
from verl_e2e.core.plan.defects import with_known_defects
from verl_e2e.core.plan.job_models import job_of_model
from verl_e2e.core.plan.lint import lint_defects
from verl_e2e.core.plan.measured_jobs import Derived, JobMaker
from verl_e2e.core.plan.outline import JobOutline, Missing, with_obstacles
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.reach.effects import Effect, Effects, Inside

VERL, FILE, BLOB = POLICY.verl.commit, "src/a.py", "a" * 40
SOURCES = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))


def defect(**given: Any) -> KnownDefect:
    values = {"name": "d", "verl": VERL, "objects": {FILE: BLOB}, "until": "2027-02-28"}
    return KnownDefect(**{**values, "reason": "it raises", "evidence": "a run", **given})


def derive(names: tuple[str, ...], *wants: Want) -> Derived:
    """Planned jobs, and one for each want, whose condition is the name of a function."""
    maker, jobs = JobMaker(POLICY, POLICY.checkpoint, TABLE), list(planned(*names))
    for want in wants:
        found = maker.made(JobPoint.default(), want)
        assert not isinstance(found, str), found
        function = ChangedFunction(path=FILE, symbol=want.condition, first_line=1, last_line=9)
        jobs.append(replace(found[1], purposes=(purpose_of(function, (), "entered", want.axes),)))
    return Derived(tuple(jobs))


def left(names: tuple[str, ...], *wants: Want, defects: tuple[KnownDefect, ...] = POLICY.defects) -> Derived:
    return with_known_defects(derive(names, *wants), defects, POLICY)


def of_family(family: str) -> Derived:
    return Derived((with_obstacles(job_of_model(ModelWant(family=family), POLICY), POLICY),))


def ids(derived: Derived) -> list[str]:
    return [job.id for job in derived.jobs]


def test_level_three_is_asked_for_without_the_adapters_whose_export_fails() -> None:
    found = left(("0-lora-ddp", "3-fsdp"))
    assert ids(found) == ["0-lora-ddp", "3-fsdp-adapter-none"]
    job = found.jobs[1]
    assert (job.replaces, job.obstacles) == ("3-fsdp", ())
    made = build_job(job, policy=POLICY, site=load_profile("hopper-offline", {"kit": "/kit"}), sources=SOURCES)
    assert (made.wrapper["LORA_RANK"], made.wrapper["USE_MEGATRON_FSDP"]) == ("0", "True")
    assert made.expected["actor_rollout_ref.model.lora.rank"] == 0
    assert any(
        line.startswith("in place of 3-fsdp: known defect fsdp-adapter-export") for line in made.site.limitations
    )


def test_a_change_of_checkpoints_under_megatron_fsdp_is_saved_and_resumed_there() -> None:
    path = "src/megatron/bridge/training/checkpointing.py"
    save = Effect(
        path, "save_fsdp_dtensor_checkpoint", "changed", (frozenset({"str"}),), ("verl:7 imports it",), sure=True
    )
    change = Change("b", "h", "b", (ChangedPath(path, PathStatus.MODIFIED),))
    found = plan(change, POLICY, effects=Effects({path: Inside((save,))}, defects=POLICY.defects))
    resumed = "1-dp2-fsdp-no-fusion-adapter-none-resume"
    assert {job.id: job.gpu_count for job in found.jobs} == {
        "0-lora-ddp": 1, "1-resume": 1, resumed: 2, "3-fsdp-adapter-none": 2,
    }  # fmt: skip
    job = next(job for job in found.jobs if job.id == resumed)
    assert (job.variant.steps, job.settings[Axis.RESUME], job.settings[Axis.FSDP]) == (2, True, True)


def test_what_avoids_one_defect_is_not_run_either_where_it_has_another() -> None:
    resume = defect(name="resume", settings={"megatron fsdp": True, "save and resume": True})
    (export,) = (entry for entry in POLICY.defects if entry.name == "fsdp-adapter-export")
    for defects in ((export, resume), (resume, export)):
        found = left(("0-lora-ddp", "1-resume", "1-fsdp", "3-fsdp"), defects=defects)
        state = {job.id: bool(job.obstacles) for job in found.jobs}
        assert [name for name, stopped in state.items() if not stopped] == [
            "0-lora-ddp",
            "1-resume",
            "3-fsdp-adapter-none",
        ]
        (stopped,) = (job for job in found.jobs if job.obstacles)
        assert "known defect resume" in stopped.blocked
    # With settings that avoid the second one as well, both are said.
    both = (export, defect(name="sizes", settings={"adapter": "none", "data": 2}, avoid={"tensor": 2}))
    (job,) = (job for job in left(("3-fsdp",), defects=both).jobs if not job.obstacles)
    assert (job.id, job.replaces, len(job.notes)) == ("3-tp2-fsdp-adapter-none", "3-fsdp", 2)


def test_a_job_that_a_person_names_knows_what_it_fails_for() -> None:
    """Who asks for level 3 with adapters gets it, and reads of it what is known."""
    site = load_profile("hopper-offline", {"kit": "/kit"})

    def known(outline: JobOutline, verl: str = VERL, entries: tuple[KnownDefect, ...] = POLICY.defects) -> list[str]:
        sources = replace(SOURCES, verl=Repository(path="/verl", commit=verl))
        job = build_job(outline, policy=POLICY, site=site, sources=sources, defects=entries)
        return [item.name for item in job.defects]

    (named,) = planned("3-fsdp")
    (planned_instead,) = with_known_defects(Derived((named,)), POLICY.defects, POLICY).jobs
    # One for each form in which it shows.
    assert {*known(named)} == {"fsdp-adapter-export"}
    assert known(planned_instead) == []
    assert known(named, verl="c" * 40) == []
    assert known(named, entries=()) == []
    # Nothing in a log tells this one from another fault.
    assert known(named, entries=(defect(settings={"megatron fsdp": True}),)) == []


@pytest.mark.parametrize(
    ("wants", "jobs", "lost"),
    [
        # Derived jobs of the level are others of the class, and places that only adapters lead to are named.
        ((Want("f", {Axis.FSDP: True, Axis.TENSOR: 2}),), {"3-tp2-fsdp-adapter-none"}, set()),
        ((Want("g", {Axis.FSDP: True, Axis.ADAPTER: "dora"}),), {"3-fsdp-adapter-none"}, {"g"}),
        ((Want("f", {Axis.FSDP: True, Axis.ADAPTER: "none"}),), {"3-fsdp-adapter-none"}, set()),
        ((Want("f", {Axis.TENSOR: 2}),), {"2-tp2"}, set()),
    ],
)
def test_derived_jobs_have_the_defect_too(wants: tuple[Want, ...], jobs: set[str], lost: set[str]) -> None:
    found = left(("0-lora-ddp",), *wants)
    assert {*ids(found)} - {"0-lora-ddp"} == jobs
    assert {item.purpose.symbol for item in found.not_covered} == lost
    assert all("known defect fsdp-adapter-export" in item.reason for item in found.not_covered)


def test_a_family_whose_export_fails_runs_without_adapters_and_level_zero_on_the_usual_model() -> None:
    (job,) = with_known_defects(of_family("gpt_oss"), POLICY.defects, POLICY).jobs
    assert (job.id, job.checkpoint and job.checkpoint.model_id) == (
        "4-feature-adapter-none-gpt-oss",
        "synthetic/gpt_oss",
    )
    model = of_family("gpt_oss").jobs[0]
    smoke = replace(derive(("0-lora-ddp",)).jobs[0], checkpoint=model.checkpoint, model=model.model)
    (job,) = with_known_defects(Derived((smoke,)), POLICY.defects, POLICY).jobs
    assert (job.id, job.checkpoint, job.obstacles) == ("0-lora-ddp", POLICY.checkpoint, ())
    assert job.notes[0].startswith(f"on {POLICY.checkpoint.model_id} and not on a model of gpt_oss: known defect")


@pytest.mark.parametrize("family", ["ernie_45", "gemma2"])
def test_what_nothing_can_stand_for_is_not_covered_and_costs_nothing(family: str) -> None:
    (job,) = with_known_defects(of_family(family), POLICY.defects, POLICY).jobs
    assert [obstacle.missing for obstacle in job.obstacles] == [Missing.DEFECT]
    assert (job.gpu_minutes, bool(job.uncoverable)) == (0, True)
    with pytest.raises(BuildError, match="known defect"):
        build_job(job, policy=POLICY, site=load_profile("default", {"home": "/h"}), sources=SOURCES)


def test_other_families_and_settings_run_as_before() -> None:
    for family in ("qwen3_moe", "llama", "gemma3"):
        before = of_family(family)
        assert with_known_defects(before, POLICY.defects, POLICY) == before
    before = derive(("0-lora-ddp", "1-resume", "2-dense", "2-vpp", "5-signal"))
    assert with_known_defects(before, POLICY.defects, POLICY) == before


@pytest.mark.parametrize(
    ("verl", "objects", "today", "why"),
    [
        (VERL, {FILE: BLOB}, date(2027, 2, 28), ""),
        (VERL, {FILE: BLOB, "other": "b" * 40}, date.min, ""),
        (VERL, {FILE: BLOB}, date(2027, 3, 1), "2027-02-28 is over"),
        (VERL, {FILE: "b" * 40}, date.min, f"{FILE} is not what it was"),
        (VERL, {}, date.min, f"{FILE} is not what it was"),
        ("c" * 40, {FILE: BLOB}, date.min, "it was seen with verl"),
    ],
)
def test_an_entry_ends_when_code_verl_or_day_is_another(
    verl: str, objects: dict[str, str], today: date, why: str
) -> None:
    found = defect(level=3).ended(verl, objects, today)
    assert found.startswith(why) if why else not found
    policy = POLICY.model_copy(
        update={"defects": (defect(level=3),), "verl": POLICY.verl.model_copy(update={"commit": verl})}
    )
    assert bool(lint_defects(policy, objects, today)) == bool(why)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "is about every job"),
        ({"settings": {"tensor": 0}}, "tensor is a whole number"),
        ({"avoid": {"adapter": "lroa"}, "level": 3}, "adapter is one of"),
        ({"level": 3, "objects": {}}, "objects"),
        ({"level": 3, "objects": {"/etc/passwd": BLOB}}, "leads out of the repository"),
        ({"level": 3, "until": "soon"}, "until"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        defect(**given)

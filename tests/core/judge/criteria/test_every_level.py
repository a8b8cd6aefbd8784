"""Each pass criterion: the healthy run meets it, and every single fault is seen."""

import math
from typing import Any

import pytest

from tests.core.builders import (
    FILES,
    PREFLIGHT,
    ROOTS,
    SECOND,
    TESTS,
    TRAINER,
    bar,
    bridge_error,
    config_with,
    cut_facts,
    ended,
    error,
    import_lines,
    make_case,
    make_environment,
    make_facts,
    make_job,
    make_record,
    passing_tests,
    step_line,
)
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.consumer.verl import FULL_RECOMPUTE, PROBE_LEARNING_RATE
from verl_e2e.core.judge.criteria.basic import (
    RUN_MODULES,
    bridge_tests,
    exit_zero,
    is_below,
    local_import,
    no_exception,
    requested_config,
    resolved_config,
    run_imported_checkout,
    steps_completed,
)
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedProcess, Noise, ResolvedConfig
from verl_e2e.core.model.jobs import DeselectedTest, Repository, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, EndReason, Event, Finding, Record, TestCase
from verl_e2e.core.model.settings import same_value

FAILED = TestCase(name="tests.unit_tests.models.test_param_mapping.test_c", outcome="failed", message="assert 1 == 2")
SKIPPED = TestCase(name="tests.unit_tests.models.test_param_mapping.test_d", outcome="skipped")
ABSENT = Finding(check=Check.BRIDGE_TESTS, ok=False, blocking=False, summary="tests/x.py does not exist at aaaa")
LEFT_OUT = SiteProfile(name="hopper", deselected_tests=(DeselectedTest(test=TESTS[1], reason="modelopt raises"),))


@pytest.mark.parametrize(
    ("given", "state", "text"),
    [
        ({}, State.MET, "4 focused Bridge tests passed"),
        ({"tests": (*passing_tests(), SKIPPED)}, State.MET, "4 focused Bridge tests passed, 1 skipped"),
        (
            {"tests": (*passing_tests(), FAILED)},
            State.BROKEN,
            f"1 of 5 focused Bridge tests failed, first {FAILED.name}",
        ),
        ({"tests": None}, State.WAIVED, "Bridge checks not run: no junit.xml in the folder"),
        ({"tests": ()}, State.WAIVED, "Bridge checks not run: none of the 0 tests in junit.xml ran to its end"),
        ({"tests": (SKIPPED,)}, State.WAIVED, "Bridge checks not run: none of the 1 tests in junit.xml ran to its end"),
        ({"tests": passing_tests()[:2]}, State.WAIVED, f"Bridge checks incomplete: no result of {TESTS[1]}"),
        (
            {"tests": None, "environment": make_environment(findings=(ABSENT,), tests_not_run="modelopt is missing")},
            State.WAIVED,
            "Bridge checks not run: modelopt is missing",
        ),
        (
            {"tests": passing_tests()[:2], "environment": make_environment(absent_tests=(TESTS[1],))},
            State.MET,
            "2 focused Bridge tests passed",
        ),
        ({"tests": passing_tests()[:2], "job": make_job(site=LEFT_OUT)}, State.MET, "2 focused Bridge tests passed"),
        (
            {"tests": None, "events": ended(EndReason.NOT_STARTED, None)},
            State.WAIVED,
            "Bridge checks not run: the run was stopped before them",
        ),
        ({"tests": None, "environment": None}, State.WAIVED, "Bridge checks not run: no junit.xml in the folder"),
        ({"tests": None, "job": make_job(bridge_tests=())}, State.WAIVED, "Bridge checks not run: the job lists none"),
        ({"job": make_job(bridge_tests=()), "environment": None}, State.MET, "4 focused Bridge tests passed"),
    ],
)
def test_bridge_tests(given: dict[str, Any], state: State, text: str) -> None:
    item = bridge_tests(make_case(make_record(**given)))
    assert (item.state, item.summary) == (state, text)


@pytest.mark.parametrize("tests", [None, (), (SKIPPED,), passing_tests()[:2]])
def test_required_bridge_tests_are_never_waived(tests: tuple[TestCase, ...] | None) -> None:
    record = make_record(tests=tests, job=make_job(require_bridge_checks=True))
    assert bridge_tests(make_case(record)).state is State.MISSING


def test_a_failed_test_without_a_message_is_still_quoted() -> None:
    item = bridge_tests(make_case(make_record(tests=(FAILED.model_copy(update={"message": ""}),))))
    assert item.excerpt == f"1 of 1 focused Bridge tests failed, first {FAILED.name}"


def wrong(module: str, file: str, role: str, pid: int = 9) -> Any:
    return import_lines(role, pid, modules=(module,))[0].model_copy(update={"file": file})


SITE = "/usr/lib/python3/site-packages/megatron/bridge/__init__.py"


@pytest.mark.parametrize("role", ["driver", "ray_worker", "run"])
@pytest.mark.parametrize("module", (*RUN_MODULES, "verl"))
def test_one_import_from_elsewhere_breaks_the_proof(role: str, module: str) -> None:
    line = wrong(module, SITE, role)
    healthy = make_record()
    assert healthy.environment is not None
    record = (
        make_record(imports=(*healthy.imports, line))
        if role == "run"
        else make_record(environment=make_environment(imports=(*healthy.environment.imports, line)))
    )
    item = local_import(make_case(record))
    assert item.state is State.BROKEN
    assert item.summary.startswith(f"{module} in ")
    assert item.summary.endswith(f" is {SITE}, not below {ROOTS[module]}")
    assert item.file == ("imports.jsonl" if role == "run" else "environment.json")


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("$BRIDGE/src/megatron/bridge/__init__.py", "$BRIDGE/src", True),
        ("$BRIDGE/src/megatron/bridge/__init__.py", "$BRIDGE/src/", True),
        ("/w/bridge", "/w/bridge", True),
        ("/w/bridge-old/megatron/bridge/__init__.py", "/w/bridge", False),
        ("/w/bridge/../other/megatron/bridge/__init__.py", "/w/bridge", False),
        ("/w/bridge/.venv/lib/site-packages/megatron/bridge/__init__.py", "/w/bridge", False),
        ("/w/dist-packages/bridge/src/x.py", "/w/dist-packages/bridge", True),
        ("/anything", "", False),
    ],
)
def test_below_means_inside_and_not_installed(path: str, root: str, below: bool) -> None:
    assert is_below(path, root) is below


def without(record: Record, **match: object) -> Record:
    """The record without the run's import lines that match."""
    kept = [line for line in record.imports if any(getattr(line, name) != value for name, value in match.items())]
    return record.model_copy(update={"imports": tuple(kept)})


HEALTHY = make_record()
SPLIT_ROOTS = {name: root for name, root in ROOTS.items() if name != "megatron.core"}
MOVED_ROOTS = tuple(
    state.model_copy(update={"root": "$HOME/verl"}) if state.name == "verl" else state
    for state in make_environment().repositories
)
DRIVER_LINES, WORKER_LINES = import_lines("driver", PREFLIGHT), import_lines("ray_worker", PREFLIGHT + 1)
BROKEN_LINE = WORKER_LINES[0].model_copy(update={"file": "", "error": "No module named 'modelopt'"})
PROBE_TORN = Event(t_s=243.5, kind="probe", data={"lines": 3, "unreadable": 1})
PROBE_ODD = Event(t_s=243.5, kind="probe", data={"lines": 3, "unreadable": "many"})


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (make_record(environment=None), "environment.json does not say which checkout ran"),
        (make_record(environment=make_environment(import_roots=SPLIT_ROOTS)), "names no import root of megatron.core"),
        (make_record(environment=make_environment(repositories=())), "names no tree of megatron.bridge"),
        (
            make_record(environment=make_environment(repositories=MOVED_ROOTS)),
            "the import root of verl, $VERL, is not in the tree under test, $HOME/verl",
        ),
        (
            make_record(environment=make_environment(imports=WORKER_LINES)),
            "megatron.bridge, megatron.core, verl proven in the driver",
        ),
        (
            make_record(environment=make_environment(imports=DRIVER_LINES + WORKER_LINES[:2])),
            "no import of verl proven in the Ray worker",
        ),
        (
            make_record(environment=make_environment(imports=(*DRIVER_LINES, BROKEN_LINE))),
            "import of megatron.bridge failed in the Ray worker: No module named 'modelopt'",
        ),
        (make_record(imports=()), f"no import line of megatron.bridge from training worker {TRAINER}"),
        (without(HEALTHY, pid=TRAINER), f"no import line of megatron.bridge from training worker {TRAINER}"),
        (
            without(HEALTHY, pid=TRAINER, module="megatron.core"),
            f"no import line of megatron.core from training worker {TRAINER}",
        ),
        (make_record(imports=import_lines("run", 1, 2, 3)), f"from training worker {TRAINER}"),
        (make_record(imports=import_lines("driver", TRAINER)), f"from training worker {TRAINER}"),
        (make_record(events=(*ended(), PROBE_TORN)), "1 line(s) of the import probe could not be read"),
        (make_record(events=(*ended(), PROBE_ODD)), "1 line(s) of the import probe could not be read"),
    ],
)
def test_a_gap_in_the_import_proof_is_named(record: Record, text: str) -> None:
    item = local_import(make_case(record))
    assert item.state is State.MISSING
    assert text in item.summary


def test_every_training_worker_must_speak_for_itself() -> None:
    two = make_facts(workers=(*make_facts().workers, LoggedProcess(SECOND, "WorkerDict", 1179, built_model=True)))
    silent = local_import(make_case(facts=two))
    assert (silent.state, str(SECOND) in silent.summary) == (State.MISSING, True)
    both = make_record(imports=import_lines("run", TRAINER, SECOND))
    assert local_import(make_case(both, two)).state is State.MET


def test_without_a_training_worker_in_the_log_nothing_is_proven() -> None:
    item = local_import(make_case(facts=make_facts(workers=make_facts().workers[:1])))
    assert (item.state, item.summary) == (State.MISSING, "no training worker is seen in the log")


@pytest.mark.parametrize("name", ["bridge", "verl", "megatron_lm"])
def test_a_tree_at_another_commit_is_a_wrong_import(name: str) -> None:
    environment = make_environment()
    moved = tuple(
        state.model_copy(update={"commit": "f" * 40}) if state.name == name else state
        for state in environment.repositories
    )
    job = make_job(megatron_lm=Repository(path="$HOME/core", commit="c" * 40))
    item = local_import(make_case(make_record(job=job, environment=make_environment(repositories=moved))))
    assert (item.state, f"the tree of {name} is at ffffffffffff" in item.summary) == (State.BROKEN, True)


@pytest.mark.parametrize(("note", "text"), [("It came from /old.", "It came from /old."), ("", "another checkout")])
def test_a_run_ended_for_a_wrong_import_is_one(note: str, text: str) -> None:
    item = local_import(make_case(make_record(events=ended(EndReason.WRONG_IMPORT, None, note))))
    assert (item.state, text in item.summary) == (State.BROKEN, True)


def test_the_import_proof_names_the_file_and_counts_the_processes() -> None:
    item = local_import(make_case())
    assert item.state is State.MET
    assert item.summary.startswith(f"{FILES['megatron.bridge']} in the driver, a Ray worker and 2 process(es)")


@pytest.mark.parametrize(
    ("imports", "shown"),
    [
        (import_lines("run", 5), True),
        (import_lines("run", 5, modules=("megatron.core",)), False),
        (import_lines("driver", 5), False),
        ((), False),
    ],
)
def test_whether_any_process_of_the_run_imported_the_checkout(imports: Any, shown: bool) -> None:
    assert run_imported_checkout(make_case(make_record(imports=imports))) is shown


VANILLA = "actor_rollout_ref.actor.megatron.vanilla_mbridge"
SPOILED = {
    VANILLA: True,
    "actor_rollout_ref.ref.megatron.vanilla_mbridge": True,
    "critic.megatron.vanilla_mbridge": ...,
    "critic.megatron.use_mbridge": False,
    "actor_rollout_ref.actor.strategy": "fsdp",
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.name": "sglang",
    "actor_rollout_ref.rollout.response_length": 65,
    "data.max_response_length": "64",
    "trainer.save_freq": 1,
    "trainer.resume_mode": "auto",
    "trainer.total_training_steps": 2,
    "trainer.n_gpus_per_node": 8,
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 2,
    "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size": 2,
    "critic.megatron.context_parallel_size": 2,
    "actor_rollout_ref.actor.megatron.expert_model_parallel_size": 2,
    "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size": 2,
    "actor_rollout_ref.actor.megatron.use_megatron_fsdp": True,
    "actor_rollout_ref.model.lora.rank": 0,
}


def test_the_real_configuration_is_what_the_recipe_asked_for() -> None:
    item = resolved_config(make_case())
    assert (item.state, item.line) == (State.MET, 143)
    assert item.excerpt.startswith("vanilla_mbridge=False (actor, ref, critic), adv_estimator=gae, rollout=vllm")


@pytest.mark.parametrize("key", SPOILED)
@pytest.mark.parametrize("expected", [None, {}])
def test_one_wrong_value_breaks_it_even_when_the_job_expects_nothing(key: str, expected: dict[str, Any] | None) -> None:
    job = make_job() if expected is None else make_job(expected=expected)
    facts = make_facts(configs=(config_with({key: SPOILED[key]}),))
    item = resolved_config(make_case(make_record(job=job), facts))
    assert item.state is State.BROKEN
    assert key in item.summary


def test_a_second_configuration_that_differs_breaks_it_in_either_order() -> None:
    good, bad = config_with(), config_with({VANILLA: True}, line=400)
    for configs in ((good, bad), (bad, good)):
        item = resolved_config(make_case(facts=make_facts(configs=configs)))
        assert (item.state, item.line) == (State.BROKEN, 400)


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ((), "no resolved configuration: the run printed none"),
        ((ResolvedConfig(143, None, "cut"),), "no resolved configuration: cut"),
        ((config_with(), ResolvedConfig(400, None, "cut")), "no resolved configuration: cut"),
    ],
)
def test_a_configuration_that_cannot_be_read_proves_nothing(configs: tuple[ResolvedConfig, ...], text: str) -> None:
    item = resolved_config(make_case(facts=make_facts(configs=configs)))
    assert (item.state, item.summary) == (State.MISSING, text)


def test_many_wrong_values_are_counted_not_listed() -> None:
    item = resolved_config(make_case(facts=make_facts(configs=(ResolvedConfig(143, {}),))))
    assert item.state is State.BROKEN
    assert item.summary.count("absent") == 5
    assert " more" in item.summary


def test_a_job_that_expects_what_no_level_allows_is_not_as_asked() -> None:
    job = make_job(wrapper={"VANILLA_MBRIDGE": "True"})
    for value in (True, False):
        item = resolved_config(make_case(make_record(job=job), make_facts(configs=(config_with({VANILLA: value}),))))
        assert item.state is State.BROKEN


def test_level_zero_without_lora_is_not_level_zero() -> None:
    job = make_job(wrapper={"LORA_RANK": "0"})
    off = config_with({"actor_rollout_ref.model.lora.rank": 0, "critic.model.lora.rank": 0})
    item = resolved_config(make_case(make_record(job=job), make_facts(configs=(off,))))
    assert item.summary == "actor_rollout_ref.model.lora.rank is 0, level 0 needs LoRA"
    gone = config_with({"actor_rollout_ref.model.lora": {}, "critic.model.lora": {}})
    item = resolved_config(make_case(make_record(job=job), make_facts(configs=(gone,))))
    assert "actor_rollout_ref.model.lora.rank is absent, level 0 needs LoRA" in item.summary


def test_a_job_cannot_run_under_the_name_of_another() -> None:
    item = resolved_config(make_case(make_record(job=make_job(id="2-dense"))))
    assert (item.state, item.summary) == (State.BROKEN, "the job is called 2-dense, but it asks for 0-lora-ddp")
    assert resolved_config(make_case(make_record(job=make_job(id="0-lora-ddp-qwen3")))).state is State.MET


def test_a_variant_is_claimed_only_with_its_own_settings() -> None:
    plain = make_record(job=make_job(variant="recompute"))
    item = resolved_config(make_case(plain))
    assert item.state is State.BROKEN
    assert "recompute_granularity" in item.summary
    assert dict(requested_config(make_job(variant="recompute"))) == dict(
        requested_config(make_job(variant="recompute", overrides=FULL_RECOMPUTE))
    )


def test_a_site_override_counts_like_the_job_s_own() -> None:
    site = SiteProfile(name="s", overrides=("trainer.logger=console", "x.y=1"), wrapper={"COMMON_TP": "2"})
    asked = dict(requested_config(make_job(site=site, overrides=("x.y=1",))))
    assert (asked["trainer.logger"], asked["x.y"]) == ("console", 1)
    assert asked["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] == 1, "the job's own variable wins"


@pytest.mark.parametrize("level", [Level.SMOKE, Level.MEGATRON_FSDP])
def test_what_a_level_asks_beyond_the_job(level: Level) -> None:
    asked = dict(requested_config(make_job(level, {Level.SMOKE: "lora-ddp", Level.MEGATRON_FSDP: "fsdp"}[level])))
    assert asked["actor_rollout_ref.actor.megatron.use_megatron_fsdp"] is (level is Level.MEGATRON_FSDP)


def test_a_run_of_two_phases_is_asked_for_the_steps_and_resume_mode_of_each() -> None:
    job = make_job(Level.SAVE_RESUME, "resume", steps=3, wrapper={"SAVE_FREQ": "1"})
    keys = ("trainer.total_training_steps", "trainer.resume_mode")
    assert not set(keys) & dict(requested_config(job)).keys()
    save, resume = consumer_of(job).phases(job)
    assert [dict(requested_config(job, save))[key] for key in keys] == [2, "disable"]
    assert [dict(requested_config(job, resume))[key] for key in keys] == [3, "auto"]


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [(1, 1.0, True), (1, True, False), (False, 0, False), (False, False, True), (None, None, True), ("1", 1, False)],
)
def test_equality_of_values(found: object, wanted: Any, same: bool) -> None:
    assert same_value(found, wanted) is same


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (make_facts(progress=None), "no training progress in the log"),
        (make_facts(progress=bar(0, 1, 0)), "the bar stands at 0%, 0/1, with 1 requested"),
        (make_facts(progress=bar(1, 1, 99)), "the bar stands at 99%, 1/1, with 1 requested"),
        (make_facts(progress=bar(2, 2)), "the bar stands at 100%, 2/2, with 1 requested"),
        (make_facts(progress=bar(1, 20, 5)), "the bar stands at 5%, 1/20, with 1 requested"),
        (make_facts(completed_at=None), "the bar stands at 100%, 1/1, with 1 requested"),
        (make_facts(steps=()), "no metrics of global step 1"),
        (make_facts(steps=(step_line(0),)), "no metrics of global step 1"),
        (make_facts(steps=(step_line(2),)), "step 2 on line 1334 says global step 2, 1 requested"),
        (make_facts(steps=(step_line(global_step=2.0),)), "step 1 on line 1334 says global step 2, 1 requested"),
        (make_facts(steps=(step_line(global_step=math.nan),)), "step 1 on line 1334 says global step nan, 1 requested"),
    ],
)
def test_completion_is_never_taken_on_trust(facts: LogFacts, text: str) -> None:
    item = steps_completed(make_case(facts=facts))
    assert (item.state, item.summary) == (State.MISSING, text)


@pytest.mark.parametrize("facts", [make_facts(), make_facts(steps=(step_line(0, 1200), step_line(global_step=None)))])
def test_completion_needs_bar_and_metrics_of_the_step(facts: LogFacts) -> None:
    item = steps_completed(make_case(facts=facts))
    assert item.state is State.MET
    assert item.summary == "Training Progress: 100% at 1/1, metrics of global step 1 on line 1334"


def test_an_exception_is_quoted_and_noise_is_named() -> None:
    broken = no_exception(make_case(facts=cut_facts(Stage.PEFT, errors=(bridge_error(),))))
    assert (broken.state, broken.line) == (State.BROKEN, 1250)
    late = error("RuntimeError", "DataLoader worker (pid 8000) is killed by signal: Killed.", stage=Stage.SHUTDOWN)
    noisy = make_facts(errors=(error(late.kind, late.message, stage=Stage.SHUTDOWN, line=1345, after_completion=True),))
    item = no_exception(make_case(facts=noisy))
    assert (item.state, "residual noise: dataloader-worker-killed" in item.summary) == (State.MET, True)
    assert no_exception(make_case()).summary == "no exception"


def test_noise_of_one_name_is_named_once() -> None:
    twice = tuple(Noise("signal-stack", Excerpt(line, "Stack"), 1) for line in (1340, 1341))
    assert no_exception(make_case(facts=make_facts(noise=twice))).summary.count("signal-stack") == 1


def test_an_end_without_any_line_is_missing_evidence() -> None:
    item = no_exception(make_case(facts=LogFacts(0)))
    assert item.state is State.MISSING


@pytest.mark.parametrize(
    ("events", "state", "text"),
    [
        (ended(), State.MET, "the process exited 0"),
        ((), State.MISSING, "no end of the process is recorded"),
        (ended()[:3], State.MISSING, "no end of the process is recorded"),
        (ended(exit_code=1), State.BROKEN, "the process ended by exited, exit code 1"),
        (ended(exit_code=False), State.BROKEN, "the process ended by an unknown cause, exit code None"),
        (ended(exit_code=None), State.BROKEN, "the process ended by exited, exit code None"),
        (
            ended(EndReason.STALLED, None, "No progress."),
            State.BROKEN,
            "ended by stalled, exit code None: No progress.",
        ),
        (ended(EndReason.TIME_LIMIT, 0), State.BROKEN, "the process ended by time_limit, exit code 0"),
        (ended() + ended(exit_code=1), State.BROKEN, "the process ended by exited, exit code 1"),
        (ended(exit_code=1) + ended(), State.MET, "the process exited 0"),
        ((*ended(exit_code=1), *ended()[3:]), State.BROKEN, "the process ended by exited, exit code 1"),
    ],
)
def test_the_exit(events: tuple[Event, ...], state: State, text: str) -> None:
    item = exit_zero(make_case(make_record(events=events)))
    assert item.state is state
    assert text in item.summary


def test_a_learning_rate_of_the_job_s_own_stands_for_that_of_the_variant() -> None:
    key = PROBE_LEARNING_RATE[0].partition("=")[0]
    own = make_job(Level.LEARNING_SIGNAL, "signal", overrides=(f"{key}=0.005",))
    assert [value for name, value in requested_config(own) if name == key] == [0.005]
    silent = make_job(Level.LEARNING_SIGNAL, "signal")
    assert [value for name, value in requested_config(silent) if name == key] == [0.0001]

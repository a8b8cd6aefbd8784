"""Every consumer goes through one list: what a plan, a judgement and a run ask of it is there and fits together."""

import re
from itertools import chain

import pytest
from pydantic import ValidationError

from tests.core.builders import make_job
from verl_e2e.core.consumer.consumer import ROLES_PROVED, Consumer, LogMark, Quantity, Refusal
from verl_e2e.core.consumer.consumers import CONSUMERS, consumer_of
from verl_e2e.core.log.literals import LITERALS
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, Setting
from verl_e2e_runner.instrumentation import verl_e2e_fingerprints, verl_e2e_skyrl

KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
NAME = re.compile(r"[A-Za-z_]\w*")
# What each prints of its configuration, and of a step.
PRINTED = {
    "verl": (
        "{'actor_rollout_ref': {'actor': {'strategy': 'megatron'}},\n 'trainer': {'save_freq': -1}}",
        "step:1 - actor/grad_norm:0.25 - training/global_step:1",
    ),
    "skyrl": (
        "INFO     | skyrl.train.entrypoints.main_base:_setup_trainer:258 - data:\n  train_data:\n  - /t.parquet\n"
        "environment:\n  env_class: gsm8k\ngenerator:\n  batched: true\ntrainer:\n  policy:\n    model:\n"
        "      path: /m\n  seed: 42\n  train_batch_size: 16\n",
        '[verl-e2e] metrics of step 1: {"policy/grad_norm": 0.25, "trainer/global_step": 1}',
    ),
    "nemo-rl": (
        "MasterConfig(policy={'megatron_cfg': {'enabled': True}}, grpo=GRPOConfig(max_num_steps=2,"
        " async_grpo=AsyncGRPOConfig(enabled=False)), cluster={'num_nodes': 1}, checkpointing={'enabled': False})",
        '[verl-e2e] metrics of step 1: {"train/grad_norm": 0.25, "train/loss": 0.5}',
    ),
}
OF_BRIDGE_AND_CORE = ("megatron.bridge.", "megatron.core.")


@pytest.fixture(params=list(CONSUMERS.values()), ids=list(CONSUMERS))
def consumer(request: pytest.FixtureRequest) -> Consumer:
    found: Consumer = request.param
    return found


def job_of(consumer: Consumer, level: Level = Level.SMOKE, steps: int = 1) -> Job:
    wrapper = dict(consumer.base)
    overrides: tuple[str, ...] = ()
    if level is Level.SAVE_RESUME:
        setting = consumer.setting(Axis.RESUME, value=True)
        wrapper, overrides = {**wrapper, **setting.wrapper}, setting.overrides
    return make_job(level, "any", consumer=consumer.name, wrapper=wrapper, overrides=overrides, steps=steps)


def assert_says_why(refusal: Refusal) -> None:
    assert refusal.reason
    assert not refusal.reason.endswith(".")
    assert refusal.source


def test_it_says_who_it_is(consumer: Consumer) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*", consumer.name)
    assert consumer.title.lower() == consumer.name
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", consumer.repository)
    assert NAME.fullmatch(consumer.package)
    assert consumer.callers == f"{consumer.package}/"
    assert consumer.script
    assert CONSUMERS[consumer.name] is consumer
    assert consumer_of(job_of(consumer)) is consumer


def test_every_value_of_every_axis_is_set_or_refused(consumer: Consumer) -> None:
    for axis in Axis:
        for value in axis.tried:
            if (refusal := consumer.refused(axis, value)) is not None:
                assert_says_why(refusal)
            elif value != axis.default and not consumer.settings[axis].elsewhere:
                setting = consumer.setting(axis, value)
                assert setting != Setting(), (axis, value)
                assert all(NAME.fullmatch(name) for name in setting.wrapper), axis
                assert all("=" in override for override in setting.overrides), axis


def test_every_level_has_phases_that_train_each_step_once(consumer: Consumer) -> None:
    for level in Level:
        if (refusal := consumer.refused_levels.get(level)) is not None:
            assert_says_why(refusal)
            continue
        for steps in (1, 2, 5):
            phases = consumer.phases(job_of(consumer, level, steps))
            trained = chain.from_iterable(range(phase.first_step, phase.last_step + 1) for phase in phases)
            assert [*trained] == [*range(1, steps + 1)], level
            assert len({phase.name for phase in phases}) == len(phases)
    # One that saves is started again; one that never saves, as its reference run, is not.
    assert consumer.saves(job_of(consumer, Level.SAVE_RESUME, 2))
    assert len(consumer.phases(job_of(consumer, Level.SAVE_RESUME, 2))) == 2
    assert not consumer.saves(job_of(consumer))


def test_its_configuration_shows_the_sizes_of_its_models(consumer: Consumer) -> None:
    job = job_of(consumer)
    expected = consumer.expected(job.wrapper, job.overrides)
    assert all(KEY.fullmatch(key) for key in (*expected, *consumer.models.values()))
    policy = next(iter(consumer.models.values()))
    assert expected[f"{policy}.tensor_model_parallel_size"] == 1
    sharded = consumer.setting(Axis.TENSOR, 2)
    shown = consumer.expected({**consumer.base, **sharded.wrapper}, (*job.overrides, *sharded.overrides))
    assert shown[f"{policy}.tensor_model_parallel_size"] == 2
    # What phases differ in is left to the evidence of the steps.
    assert consumer.expected(job.wrapper, job.overrides, phases=2).items() <= expected.items()


def test_its_lines_are_read(consumer: Consumer) -> None:
    forms, (shown_config, shown_step) = consumer.log, PRINTED[consumer.name]
    marks = [literal.mark for literal in forms.literals]
    assert {LogMark.CONFIG, LogMark.STEP, LogMark.PROGRESS, LogMark.FINAL} <= {*marks}
    assert {*forms.literals} <= {*LITERALS}
    for literal in forms.literals:
        re.compile(literal.shape)
    step = forms.read_step(shown_step)
    assert step is not None
    number, values = step
    assert number == 1
    assert {*values} & {*consumer.metrics[Quantity.GRADIENT_NORM]}
    assert forms.read_step("nothing of a step") is None
    assert forms.config.read(shown_config)
    with pytest.raises(ValueError, match="configuration"):
        forms.config.read("{cut")
    scanner = LogScanner()
    scanner.feed(f"{shown_config}\n{shown_step}\n".encode())
    facts = scanner.finish()
    assert facts.configs[0].values == forms.config.read(shown_config)
    assert [(item.step, dict(item.values)) for item in facts.steps] == [(number, values)]


def test_every_quantity_has_a_row(consumer: Consumer) -> None:
    assert {*consumer.metrics} == {*Quantity}
    agreement = (Quantity.AGREEMENT, Quantity.LOG_PROBABILITY_DIFFERENCE, Quantity.PROBABILITY_RATIO)
    assert any(consumer.metrics[quantity] for quantity in agreement), "nothing compares trainer and rollout"
    assert consumer.metrics[Quantity.GRADIENT_NORM]
    assert consumer.metrics[Quantity.POLICY_LOSS]


def test_its_processes_have_roles(consumer: Consumer) -> None:
    # The driver of NeMo-RL is its training loop.
    driver_trains = {ProcessRole.CONTROLLER} if consumer.name == "nemo-rl" else set()
    assert {*ROLES_PROVED} - {role for role, _ in consumer.roles} == driver_trains


def test_its_hooks_name_methods_that_the_instrumentation_can_wrap(consumer: Consumer) -> None:
    for hook in consumer.hooks:
        assert hook.module.startswith((f"{consumer.package}.", *OF_BRIDGE_AND_CORE))
        assert all(NAME.fullmatch(name) for name in (*filter(None, [hook.owner]), *hook.methods))
    wrapped = {
        (name, owner.rpartition(":")[2], method)
        for name, rows in {**verl_e2e_fingerprints.TARGETS, **verl_e2e_skyrl.TARGETS}.items()
        for owner, methods in rows
        if name.startswith(f"{consumer.package}.") and ":" not in owner
        for method in methods
    }
    declared = {
        (hook.module, hook.owner, method)
        for hook in consumer.hooks
        for method in hook.methods
        if hook.module.startswith(f"{consumer.package}.")
    }
    # The instrumentation is made with the first run.
    assert wrapped == (set() if consumer.never_run else declared)


def test_a_job_of_the_usual_consumer_does_not_name_it() -> None:
    job = make_job()
    assert "consumer" not in job.model_dump(mode="json")
    other = job.model_copy(update={"consumer": "skyrl"})
    assert other.model_dump(mode="json")["consumer"] == "skyrl"
    assert other.digest() != job.digest()
    assert Job.model_validate(other.model_dump()) == other


def test_a_job_is_for_a_known_consumer() -> None:
    assert {make_job(consumer=name).consumer for name in CONSUMERS} == set(CONSUMERS)
    # As any key of a job with a value that is not allowed.
    with pytest.raises(ValidationError, match="verl"):
        make_job(consumer="other")

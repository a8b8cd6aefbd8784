"""A healthy Level 0 run as plain values, and short ways to spoil one thing at a time."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.fakes.places import FIXTURES
from verl_e2e.core.consumer.verl import BASE_WRAPPER, expected_config
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.facts import (
    AdapterReport,
    Excerpt,
    LogFacts,
    LoggedError,
    LoggedProcess,
    ProgressBar,
    ResolvedConfig,
    StageMark,
    StepMetrics,
)
from verl_e2e.core.model.jobs import Checkpoint, Data, Job, Repository, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import (
    Check,
    EndReason,
    Environment,
    Event,
    Finding,
    Gpu,
    ImportLine,
    Record,
    RepositoryState,
    RunContainer,
    TestCase,
)
from verl_e2e.core.triage.triage import triage

RESOLVED = FIXTURES / "build" / "level0-config.json"
BRIDGE, VERL, CORE = "a" * 40, "b" * 40, "c" * 40
TRAINER, SECOND, DRIVER, PREFLIGHT = 7470, 7471, 6726, 4100
FILES = {
    "megatron.bridge": "$BRIDGE/src/megatron/bridge/__init__.py",
    "megatron.core": "$MEGATRON_LM/megatron/core/__init__.py",
    "verl": "$VERL/verl/__init__.py",
}
ROOTS = {"megatron.bridge": "$BRIDGE/src", "megatron.core": "$MEGATRON_LM", "verl": "$VERL"}
TESTS = ("tests/unit_tests/models/test_param_mapping.py", "tests/unit_tests/training/test_integration.py")


def make_job(level: Level = Level.SMOKE, variant: str = "lora-ddp", **given: Any) -> Job:
    """The Level 0 job of the recipe that passed; `expected` follows from what is asked."""
    wrapper = {**BASE_WRAPPER, "NUM_GPUS": "1", "MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"}
    wrapper |= given.pop("wrapper", {})
    fields: dict[str, Any] = {
        "id": f"{int(level)}-{variant}",
        "level": level,
        "variant": variant,
        "bridge": Repository(path="$HOME/bridge", commit=BRIDGE),
        "verl": Repository(path="$HOME/verl", commit=VERL),
        "gpu_count": 1,
        "steps": 1,
        "wrapper": wrapper,
        "checkpoint": Checkpoint(model_id="local/tiny-qwen2", model_path="/opt/kit/model", random_weights=True),
        "data": Data(train_files="/opt/kit/data/train.parquet", val_files="/opt/kit/data/test.parquet"),
        "bridge_tests": TESTS,
        "expected": expected_config(wrapper, given.get("overrides", ())),
        "site": SiteProfile(name="hopper", limitations=("Gradient accumulation fusion is off.",)),
    }
    return Job(**(fields | given))


def import_lines(role: str, *pids: int, modules: tuple[str, ...] = tuple(FILES)) -> tuple[ImportLine, ...]:
    """Lines of the checkout under test, of every module for every process."""
    rows = [{"module": module, "file": FILES[module], "role": role, "pid": pid} for pid in pids for module in modules]
    return tuple(ImportLine.model_validate(row) for row in rows)


def make_environment(**given: Any) -> Environment:
    """A preflight without a fault on one GPU."""
    states = (("verl", "$VERL", VERL), ("bridge", "$BRIDGE", BRIDGE), ("megatron_lm", "$MEGATRON_LM", CORE))
    fields: dict[str, Any] = {
        "repositories": tuple(
            RepositoryState.model_validate({"name": name, "root": root, "commit": commit})
            for name, root, commit in states
        ),
        "import_roots": ROOTS,
        "imports": import_lines("driver", PREFLIGHT) + import_lines("ray_worker", PREFLIGHT + 1),
        "findings": (Finding(check=Check.GPUS, ok=True, summary="1 GPU"),),
        "gpus": (Gpu(index=0, name="NVIDIA H200", memory_total_mib=143771, memory_used_mib=4),),
        "command": ("bash", "$VERL/tests/special_e2e/run_ppo_trainer_megatron.sh", "trainer.logger=console"),
        "site": "hopper",
        "container": RunContainer(
            engine="docker", id="5c" * 32, id_from="/proc/self/mountinfo", asked="verlai/verl:vllm024.dev2"
        ),
        "packages": {"torch": "2.9.0", "vllm": "0.11.0"},
    }
    return Environment(**(fields | given))


def ended(reason: EndReason = EndReason.EXITED, exit_code: object = 0, note: str = "") -> tuple[Event, ...]:
    """The events of a run that ended so."""
    data = {"reason": reason.value, "exit_code": exit_code, "note": note}
    return (
        Event(t_s=0.0, kind="started"),
        Event(t_s=1.0, kind="command", data={"argv": ["bash"]}),
        Event(t_s=243.0, kind="probe", data={"lines": 4, "unreadable": 0}),
        Event(t_s=244.0, kind="ended", data=data),
        Event(t_s=244.1, kind="left_running", data={"processes": []}),
    )


def passing_tests() -> tuple[TestCase, ...]:
    """Two results for each listed test file."""
    names = [path.removesuffix(".py").replace("/", ".") for path in TESTS]
    return tuple(TestCase(name=f"{name}.{test}", outcome="passed") for name in names for test in ("test_a", "test_b"))


def make_record(**given: Any) -> Record:
    """The folder of the healthy run; `job` or `environment` replace the whole document."""
    fields: dict[str, Any] = {
        "job": make_job(),
        "environment": make_environment(),
        "events": ended(),
        "imports": import_lines("run", DRIVER, TRAINER),
        "tests": passing_tests(),
        "tests_commit": BRIDGE,
    }
    return Record(**(fields | given))


@cache
def _resolved() -> str:
    return RESOLVED.read_text()


def config_with(changes: Mapping[str, Any] | None = None, line: int = 143) -> ResolvedConfig:
    """The configuration of a real Level 0 run with some dotted keys replaced, and removed where the value is `...`."""
    values = json.loads(_resolved())
    for dotted, value in (changes or {}).items():
        *path, last = dotted.split(".")
        place = values
        for part in path:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return ResolvedConfig(line, values)


def step_line(step: int = 1, line: int = 1334, **changes: Any) -> StepMetrics:
    """The metric line of a healthy step; `changes` by the metric's last name, None removes one."""
    values: dict[str, Any] = {
        "actor/grad_norm": 0.0214,
        "critic/grad_norm": 11.5,
        "actor/loss": 0.001,
        "training/rollout_actor_probs_pearson_corr": 0.99996,
        "training/global_step": float(step),
    }
    for name, value in changes.items():
        key = next((key for key in values if key.replace("/", "_").endswith(name)), name)
        values[key] = value
    return StepMetrics(step, line, {key: value for key, value in values.items() if value is not None})


def bar(done: int = 1, total: int = 1, percent: int = 100, line: int = 1336) -> ProgressBar:
    """A progress bar as verl prints it."""
    return ProgressBar(percent, done, total, Excerpt(line, f"Training Progress: {percent}%|### | {done}/{total}"))


_MARKS = (
    (Stage.ENVIRONMENT, 124),
    (Stage.RAY, 126),
    (Stage.DATA, 1133),
    (Stage.BRIDGE_PROVIDER, 1178),
    (Stage.PEFT, 1189),
    (Stage.DDP_WRAP, 1200),
    (Stage.ROLLOUT_ENGINE, 1220),
    (Stage.EXPORT_WEIGHT_SYNC, 1288),
    (Stage.TRAIN_STEP, 1296),
    (Stage.SHUTDOWN, 1335),
)


def marks(until: Stage = Stage.SHUTDOWN) -> tuple[StageMark, ...]:
    """The stages of a run in the order in which they are entered, up to one of them."""
    names = [stage for stage, _ in _MARKS]
    return tuple(StageMark(stage, Excerpt(line, stage)) for stage, line in _MARKS[: names.index(until) + 1])


def make_facts(**given: Any) -> LogFacts:
    """What the log of the healthy run says."""
    fields: dict[str, Any] = {
        "line_count": 1350,
        "stages": marks(),
        "configs": (config_with(),),
        "steps": (step_line(),),
        "progress": bar(),
        "completed_at": Excerpt(1336, "Training Progress: 100%"),
        "adapters": (AdapterReport(1191, TRAINER, 17_940_992, 106_496),),
        "workers": (LoggedProcess(DRIVER, "TaskRunner", 130, False), LoggedProcess(TRAINER, "WorkerDict", 1178, True)),  # noqa: FBT003
        "last": Excerpt(1350, "done"),
        "stood": Stage.SHUTDOWN,
        "lora_at": Excerpt(1186, "Enabling LORA with rank=4, alpha=4, dropout=0.0"),
    }
    fields |= given
    fields.setdefault("last_step", fields["steps"][-1] if fields["steps"] else None)
    return LogFacts(**fields)


def cut_facts(until: Stage, **given: Any) -> LogFacts:
    """A log that stops at a stage before the first step was done."""
    last = marks(until)[-1].at
    fields: dict[str, Any] = {
        "stages": marks(until),
        "steps": (),
        "progress": None,
        "completed_at": None,
        "adapters": make_facts().adapters if until.order >= Stage.PEFT.order else (),
        "stood": until,
        "line_count": last.line,
        "last": last,
    }
    return make_facts(**(fields | given))


def error(kind: str, message: str, *, stage: Stage, line: int = 1250, **given: Any) -> LoggedError:
    """A logged exception of the trainer."""
    fields: dict[str, Any] = {
        "at": Excerpt(line, f"{kind}: {message}"),
        "kind": kind,
        "message": message,
        "actor": "WorkerDict",
        "pid": TRAINER,
        "stage": stage,
        "after_completion": False,
    }
    return LoggedError(**(fields | given))


BRIDGE_CALLS = ("verl/trainer/main_ppo.py:run", "megatron/bridge/peft/lora.py:transform")


def bridge_error(line: int = 1250) -> LoggedError:
    """An exception inside Bridge's LoRA code."""
    return error(
        "ValueError",
        "planted in LoRA",
        stage=Stage.PEFT,
        line=line,
        calls=BRIDGE_CALLS,
        driver=True,
    )


def make_case(record: Record | None = None, facts: LogFacts | None = None) -> Case:
    """A case with the real triage of its log."""
    record, facts = record or make_record(), facts or make_facts()
    assert record.job is not None
    return Case(record.job, record, facts, triage(facts))


def judged(facts: LogFacts | None = None, **given: Any) -> Verdict:
    """The verdict on the healthy run with some fields of its record, or its log, replaced."""
    return judge(make_record(**given), facts or make_facts())

"""Generated logs for the question whose fault an error is: fault x place x shape, put into a recorded run.

The faults are the rows of `triage-blame.jsonl`, written by their class before triage read them. A place is a stage of
a real run: its log is the recorded passing run up to there, and the frames are those of verl, Bridge and Megatron-LM.
The shape is how the traceback reaches the log. A case is named `fault/place/shape`; the faults with an odd number
were kept out of sight while the rules were written.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.core.logs import recorded

FAULTS = Path(__file__).resolve().parents[1] / "fixtures" / "triage-blame.jsonl"
SHAPES = ("plain", "ray", "chained", "logged")
H = "Traceback (most recent call last):"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
WORKER, TRAINER, LOOP = "(WorkerDict pid=7470) ", "(TaskRunnerV1 pid=6726) ", "(AgentLoopWorkerTQ pid=7998) "
IP = "(pid=7470, ip=192.0.2.2)"


@dataclass(frozen=True)
class Fault:
    """What is raised: `tail` are library frames below the project's own, `cause` a library error that it wraps."""

    id: str
    group: str
    outside: bool
    kind: str
    message: str
    places: tuple[str, ...]
    tail: tuple[str, ...]
    cause: tuple[str, str] | None
    stage: str
    seen: bool

    @property
    def raised(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class Place:
    """Where it is raised: `keep` lines of the recorded run, who raises it, through which frames, in which stage."""

    stage: str
    keep: int
    prefix: str
    remote: str
    frames: tuple[str, ...]
    line: str = ""
    managed: bool = True


@dataclass(frozen=True)
class Case:
    """A log with the answer that its class asks for."""

    id: str
    group: str
    seen: bool
    log: bytes
    verdict: str
    stages: frozenset[str]


FIT = ("verl/trainer/main_ppo.py:run", "verl/trainer/ppo/v1/trainer_base.py:fit")
INIT = (
    "verl/trainer/main_ppo.py:run",
    "verl/trainer/ppo/v1/trainer_base.py:init",
    "verl/trainer/ppo/v1/trainer_base.py:_setup",
)
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
BRIDGE = "Bridge/src/megatron/bridge/models"
CORE = "Bridge/3rdparty/Megatron-LM/megatron/core"
INITIALIZE = ("verl/workers/engine_workers.py:reset", f"{ENGINE}:initialize")
MODULE = (
    *INITIALIZE,
    f"{ENGINE}:_build_megatron_module",
    "verl/utils/megatron_utils.py:make_megatron_module",
    f"{BRIDGE}/model_provider.py:provide_distributed_model",
    f"{BRIDGE}/model_provider.py:get_model",
)
IMPORT = (
    *MODULE,
    f"{BRIDGE}/model_provider.py:composed_pre_wrap_hook",
    f"{BRIDGE}/conversion/auto_bridge.py:load_hf_weights",
    f"{BRIDGE}/conversion/model_bridge.py:load_weights_hf_to_megatron",
    f"{BRIDGE}/conversion/model_bridge.py:maybe_modify_loaded_hf_weight",
    f"{BRIDGE}/hf_pretrained/state.py:__getitem__",
)
BATCH = (
    "verl/workers/engine_workers.py:train_mini_batch",
    "verl/workers/engine_workers.py:train_batch",
    f"{ENGINE}:forward_backward_batch",
    f"{CORE}/pipeline_parallel/schedules.py:forward_backward_no_pipelining",
    f"{CORE}/pipeline_parallel/schedules.py:forward_step",
    f"{CORE}/models/gpt/gpt_model.py:forward",
)
MANAGER = "verl/utils/checkpoint/megatron_checkpoint_manager.py"

PLACES = {
    "tokenizer": Place(
        "model_download",
        1135,
        TRAINER,
        "TaskRunnerV1.run",
        (
            "verl/trainer/ppo/v1/trainer_base.py:_init_tokenizer",
            "verl/utils/tokenizer/tokenizer.py:hf_tokenizer",
            "transformers/models/auto/tokenization_auto.py:from_pretrained",
        ),
        managed=False,
    ),
    "from_pretrained": Place(
        "bridge_provider",
        1176,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *INITIALIZE,
            f"{ENGINE}:_build_tf_config",
            f"{BRIDGE}/conversion/auto_bridge.py:from_hf_pretrained",
            "transformers/models/auto/configuration_auto.py:from_pretrained",
        ),
    ),
    "provider": Place(
        "bridge_provider",
        1186,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *MODULE,
            f"{BRIDGE}/model_provider.py:_create_model",
            f"{BRIDGE}/gpt_provider.py:provide",
            f"{CORE}/models/gpt/gpt_model.py:__init__",
        ),
    ),
    "peft": Place(
        "peft",
        1186,
        WORKER,
        "WorkerDict.actor_rollout_reset",
        (
            *MODULE,
            "Bridge/src/megatron/bridge/peft/base.py:__call__",
            "Bridge/src/megatron/bridge/peft/lora.py:transform",
        ),
    ),
    "hf_import": Place(
        "hf_import",
        1196,
        WORKER,
        "WorkerDict.critic_reset",
        (*IMPORT, f"{BRIDGE}/hf_pretrained/state.py:load_tensors"),
    ),
    "hf_download": Place(
        "hf_import",
        1196,
        WORKER,
        "WorkerDict.critic_reset",
        (
            *IMPORT,
            f"{BRIDGE}/hf_pretrained/state.py:_resolve_path",
            "huggingface_hub/_snapshot_download.py:snapshot_download",
        ),
    ),
    "ddp": Place(
        "ddp_wrap",
        1199,
        WORKER,
        "WorkerDict.critic_reset",
        (
            *MODULE,
            f"{BRIDGE}/model_provider.py:_ddp_wrap",
            f"{CORE}/distributed/distributed_data_parallel.py:__init__",
            f"{CORE}/distributed/param_and_grad_buffer.py:__init__",
        ),
    ),
    "optimizer": Place(
        "optimizer",
        1200,
        WORKER,
        "WorkerDict.critic_reset",
        (*INITIALIZE, f"{ENGINE}:_build_optimizer", f"{CORE}/optimizer/__init__.py:get_megatron_optimizer"),
    ),
    "export": Place(
        "export_weight_sync",
        1285,
        WORKER,
        "WorkerDict.actor_rollout_update_weights",
        (
            "verl/workers/engine_workers.py:update_weights",
            f"{BRIDGE}/conversion/auto_bridge.py:export_hf_weights",
            f"{BRIDGE}/conversion/model_bridge.py:stream_weights_megatron_to_hf",
            f"{BRIDGE}/conversion/param_mapping.py:megatron_to_hf",
        ),
    ),
    "logprob": Place(
        "train_step",
        1323,
        WORKER,
        "WorkerDict.ref_compute_ref_log_prob",
        (
            "verl/workers/engine_workers.py:compute_ref_log_prob",
            "verl/workers/engine_workers.py:infer_batch",
            *BATCH[2:],
        ),
    ),
    "train": Place(
        "train_step",
        1325,
        WORKER,
        "WorkerDict.actor_rollout_update_actor",
        ("verl/workers/engine_workers.py:update_actor", *BATCH),
    ),
    "rollout": Place(
        "train_step",
        1316,
        LOOP,
        "AgentLoopWorkerTQ.generate_sequences",
        (
            "verl/experimental/agent_loop/agent_loop.py:generate_sequences",
            "verl/workers/rollout/llm_server.py:generate",
            "verl/workers/rollout/vllm_rollout/vllm_async_server.py:generate",
            "vllm/v1/worker/gpu_model_runner.py:execute_model",
        ),
    ),
    "log_init": Place(
        "environment", 1280, TRAINER, "TaskRunnerV1.run", (*FIT, "verl/utils/tracking.py:__init__"), managed=False
    ),
    "log": Place("train_step", 1334, TRAINER, "TaskRunnerV1.run", (*FIT, "verl/utils/tracking.py:log")),
    "save": Place(
        "checkpoint_save",
        1333,
        WORKER,
        "WorkerDict.actor_rollout_save_checkpoint",
        (
            "verl/workers/engine_workers.py:save_checkpoint",
            f"{MANAGER}:save_checkpoint",
            f"{MANAGER}:_save_dist_checkpoint",
            f"{CORE}/dist_checkpointing/serialization.py:save",
        ),
        "local_global_step_folder: /ckpt/global_step_1",
    ),
    "load": Place(
        "checkpoint_load",
        1281,
        WORKER,
        "WorkerDict.actor_rollout_load_checkpoint",
        (
            "verl/workers/engine_workers.py:load_checkpoint",
            f"{MANAGER}:load_checkpoint",
            f"{CORE}/dist_checkpointing/serialization.py:load",
        ),
        "Resuming from /ckpt/global_step_1",
    ),
}


@cache
def faults() -> tuple[Fault, ...]:
    rows = [json.loads(line) for line in FAULTS.read_text(encoding="utf-8").splitlines()]
    return tuple(_fault(number, row) for number, row in enumerate(rows))


def _fault(number: int, row: dict[str, object]) -> Fault:
    cause = row.get("cause")
    return Fault(
        id=str(row["id"]),
        group=str(row["group"]),
        outside=bool(row["outside"]),
        kind=str(row["kind"]),
        message=str(row["message"]),
        places=_texts(row["places"]),
        tail=_texts(row["tail"]),
        cause=(_texts(cause)[0], _texts(cause)[1]) if cause else None,
        stage=str(row.get("stage", "")),
        seen=number % 2 == 0 and row.get("batch") is None,
    )


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, list)
    return tuple(str(text) for text in value)


def cases() -> Iterator[Case]:
    """Every fault in each of its places, in two of the four shapes."""
    for number, fault in enumerate(faults()):
        for turn, name in enumerate(fault.places):
            for shape in (SHAPES[(number + turn) % 4], SHAPES[(number + turn + 2) % 4]):
                yield _case(fault, name, shape)


def _case(fault: Fault, name: str, shape: str) -> Case:
    place = PLACES[name]
    fails = place.managed and not fault.outside
    return Case(
        id=f"{fault.id}/{name}/{shape}",
        group=fault.group,
        seen=fault.seen,
        log=(_before(place) + "\n".join(_SHAPES[shape](fault, place)) + "\n").encode(),
        verdict="fail" if fails else "blocked",
        stages=frozenset({fault.stage or place.stage}),
    )


@cache
def _before(place: Place) -> str:
    """The recorded run up to the place, without its printed configuration."""
    rows = recorded("level0-pass").decode().split("\n")
    rows = [*rows[119:128], *rows[1132 : place.keep]]
    return "".join(f"{row}\n" for row in [*rows, *([f"{place.prefix}{place.line}"] if place.line else [])])


def _frames(calls: tuple[str, ...]) -> list[str]:
    rows = []
    for number, call in enumerate(calls):
        path, function = call.rsplit(":", 1)
        rows += [f'  File "/opt/kit/{path}", line {number * 31 + 17}, in {function}', "    result = work(value)"]
    return rows


def _raise(fault: Fault, calls: tuple[str, ...]) -> list[str]:
    """The traceback below its header; a library's cause stands before the error that wraps it."""
    if fault.cause is None:
        return [*_frames((*calls, *fault.tail)), fault.raised]
    cause = [*_frames((*fault.tail[:1], "socket.py:create_connection")), f"{fault.cause[0]}: {fault.cause[1]}"]
    return [*cause, CAUSE, H, *_frames((*calls, *fault.tail)), fault.raised]


def _plain(fault: Fault, place: Place) -> list[str]:
    return [H, *_raise(fault, place.frames)]


def _ray(fault: Fault, place: Place) -> list[str]:
    short = fault.kind.rsplit(".", 1)[-1]
    driver = ("verl/trainer/main_ppo.py:main", "ray/_private/worker.py:get_objects")
    if fault.cause is not None:
        return [*(f"{place.prefix}{row}" for row in [H, *_raise(fault, place.frames)]), *_died()]
    return [
        "Error executing job with overrides: ['algorithm.adv_estimator=gae']",
        H,
        *_frames(driver),
        f"ray.exceptions.RayTaskError({short}): ray::TaskRunnerV1.run() (pid=6726, ip=192.0.2.2)",
        *_frames(FIT if place.keep > 1280 else INIT),
        f"ray.exceptions.RayTaskError({short}): ray::{place.remote}() {IP}",
        *_raise(fault, place.frames),
    ]


def _chained(fault: Fault, place: Place) -> list[str]:
    """What the library raised, and an error of the project around it."""
    wrapper = f"RuntimeError: rank 0 failed: {fault.message.split('.', 1)[0]}"
    return [H, *_raise(fault, place.frames), CAUSE, H, *_frames(place.frames[:2]), wrapper]


def _logged(fault: Fault, place: Place) -> list[str]:
    """A worker logs its traceback; the driver only learns that the worker died."""
    rows = ["ERROR:2026-11-20 14:24:50,300:unhandled exception", H, *_raise(fault, place.frames)]
    return [*(f"{place.prefix}{row}" for row in rows), *_died()]


def _died() -> list[str]:
    return [
        "Error executing job with overrides: ['algorithm.adv_estimator=gae']",
        H,
        *_frames(("verl/trainer/main_ppo.py:main", "ray/_private/worker.py:get_objects")),
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ]


_SHAPES = {"plain": _plain, "ray": _ray, "chained": _chained, "logged": _logged}

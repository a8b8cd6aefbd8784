"""Generated logs with an error that decides nothing, or with one that decides among such errors.

Tracebacks are put into recorded runs, as the programs named in `source` print them. The class of a row says what is
right, before anything reads the log: what a run caught and survived is noise, the exception that ended the process
outranks what was logged before it, and what happens inside a save or a resume belongs to the save or the resume.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tests.core.several_runs import rows_of
from tests.core.triage.tables import BLOCKED, FAIL, PASS, Case

H = "Traceback (most recent call last):"
TASK, WORKER, SERVER = "(TaskRunnerV1 pid=6726) ", "(WorkerDict pid=7470) ", "(vLLMHttpServer pid=7715) "
REWARD, LOOP = "(RewardLoopWorker pid=7664) ", "(AgentLoopWorkerTQ pid=7998) "


@dataclass(frozen=True)
class Fault:
    """An exception as a program prints it: which process, its frames as `path:function`, its last line."""

    name: str
    process: str
    frames: tuple[str, ...]
    raised: str
    source: str

    def printed(self, above: str = "", prefix: str = "") -> list[str]:
        process = prefix or self.process
        rows = [H]
        for number, call in enumerate(self.frames):
            path, function = call.rsplit(":", 1)
            rows += [f'  File "/opt/kit/{path}", line {40 + number}, in {function}', "    return work(values)"]
        rows.append(self.raised)
        return [process + row for row in ([above, *rows] if above else rows)]


# What programs catch and print: nothing that a step waits for.
ASIDE = (
    Fault(
        "tracker",
        TASK,
        ("verl/verl/utils/tracking.py:log", "site/wandb/sdk/wandb_run.py:_log"),
        "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
        "wandb, sdk/wandb_run.py",
    ),
    Fault(
        "tracker-disk",
        TASK,
        ("verl/verl/utils/tracking.py:log", "site/mlflow/tracking/client.py:log_batch"),
        "mlflow.exceptions.MlflowException: API request failed with error code 503",
        "mlflow, tracking/client.py",
    ),
    Fault(
        "row",
        TASK,
        ("verl/verl/utils/dataset/rl_dataset.py:doc2len", "site/jinja2/environment.py:render"),
        "jinja2.exceptions.TemplateError: Conversation roles must alternate",
        "verl, rl_dataset.py:doc2len",
    ),
    Fault(
        "sandbox",
        REWARD,
        ("verl/verl/utils/reward_score/sandbox_fusion/utils.py:_process_single_case", "site/requests/api.py:post"),
        "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='sandbox', port=80): Read timed out.",
        "verl, sandbox_fusion/utils.py",
    ),
    Fault(
        "scored",
        REWARD,
        ("verl/verl/utils/reward_score/prime_code/utils.py:_temp_run", "<string>:<module>"),
        "NameError: name 'solve' is not defined",
        "verl, prime_code/utils.py:36",
    ),
    Fault(
        "validation",
        TASK,
        ("verl/verl/trainer/ppo/ray_trainer.py:_validate", "verl/verl/trainer/ppo/ray_trainer.py:_dump_generations"),
        "PermissionError: [Errno 13] Permission denied: '/logs/generations'",
        "verl, ray_trainer.py",
    ),
    Fault(
        "tool",
        LOOP,
        (
            "verl/verl/experimental/agent_loop/tool_parser.py:extract_tool_calls",
            "lib/python3.12/json/decoder.py:decode",
        ),
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "verl, tool_parser.py:373",
    ),
)
# What programs catch in code that a step may wait for: noise only when a log record says that it was caught.
CAUGHT = (
    Fault(
        "sample",
        LOOP,
        (
            "verl/verl/experimental/agent_loop/agent_loop.py:_run_agent_loop",
            "site/vllm/v1/engine/async_llm.py:generate",
        ),
        "ValueError: The decoder prompt (length 4100) is longer than the maximum model length",
        "verl, agent_loop_tq.py:145",
    ),
    Fault(
        "metrics-port",
        SERVER,
        ("site/prometheus_client/exposition.py:start_http_server", "lib/python3.12/socketserver.py:server_bind"),
        "OSError: [Errno 98] Address already in use",
        "prometheus_client, exposition.py",
    ),
    Fault(
        "hub",
        WORKER,
        ("site/transformers/utils/hub.py:cached_files", "site/requests/adapters.py:send"),
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries",
        "transformers, utils/hub.py",
    ),
    Fault(
        "optional-import",
        WORKER,
        ("site/deep_ep/__init__.py:<module>", "lib/python3.12/ctypes/__init__.py:__init__"),
        "OSError: libnvshmem.so.3: cannot open shared object file: No such file or directory",
        "DeepEP, __init__.py",
    ),
    Fault(
        "gpu-monitor",
        WORKER,
        ("verl/verl/utils/profiler/performance.py:_get_current_mem_info", "site/pynvml.py:_nvmlCheckReturn"),
        "pynvml.NVMLError_NotSupported: Not Supported",
        "pynvml, pynvml.py",
    ),
    Fault(
        "autotune",
        SERVER,
        ("site/flashinfer/autotuner.py:choose_one", "site/triton/runtime/autotuner.py:_bench"),
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, Limit: 232448.",
        "Triton, runtime/autotuner.py",
    ),
    Fault(
        "instruments",
        WORKER,
        ("bridge/3rdparty/Megatron-LM/megatron/core/telemetry/training_metrics.py:_create",),
        "AttributeError: 'NoopMeter' object has no attribute 'create_gauge'",
        "Megatron-LM, telemetry/training_metrics.py:96",
    ),
    Fault(
        "statistics",
        WORKER,
        ("verl/verl/workers/engine_workers.py:update_actor",),
        "AttributeError: 'MegatronEngineWithLMHead' object has no attribute 'expert_load_statistics'",
        "a run on a GPU with this planted",
    ),
)
RECORDS = {
    "warning": "WARNING:2026-11-20 14:22:03,674:it failed, going on without it",
    "exception": "ERROR:2026-11-20 14:22:03,674:it failed",
    "dashes": "2026-11-20 14:22:03,674 - verl.utils - ERROR - it failed",
    "hydra": "[2026-11-20 14:22:03,674][verl.utils][WARNING] - it failed",
    "glog": "W1120 14:22:03.674000 7470 torch/utils/x.py:140] [0/0] it failed",
    "loguru": "2026-11-20 14:22:03.674 | ERROR    | verl.utils:log:53 - it failed",
    "thread": "Exception in thread Thread-7 (_loop):",
    "task": "Task exception was never retrieved",
    "printed": "Warning: it failed, going on without it",
    "structlog": "2026-11-20 14:22:03 [warning  ] it failed                      [verl.utils]",
    "logfmt": 'time="2026-11-20T14:22:03Z" level=error msg="it failed"',
    "header": "ERROR:root:it failed: Traceback (most recent call last):",
}
# Where in the passing run of one step: below these lines (1-based, of the recording).
PLACES = {"data": 1151, "built": 1220, "synced": 1294, "stepping": 1326, "before the bar": 1335}
PASSED_AT = 1336

# What a run may survive and must not hide: it goes on with less than it should have.
WEIGHTS = (
    Fault(
        "async-save",
        WORKER,
        (
            "bridge/src/megatron/bridge/training/checkpointing.py:save_checkpoint",
            "bridge/3rdparty/Megatron-LM/megatron/core/dist_checkpointing/serialization.py:save",
        ),
        "RuntimeError: Async checkpoint save failed on rank 0",
        "Megatron-Bridge, training/checkpointing.py:2020",
    ),
    Fault(
        "adapter-left-out",
        WORKER,
        ("bridge/src/megatron/bridge/peft/lora.py:transform",),
        "ValueError: Unsupported class (TELinear)",
        "Megatron-Bridge, peft/lora.py",
    ),
    Fault(
        "sync-refused",
        SERVER,
        (
            "verl/verl/workers/rollout/vllm_rollout/utils.py:update_weights_from_ipc",
            "site/vllm/model_executor/models/qwen2.py:load_weights",
        ),
        "KeyError: 'layers.0.mlp.gate_up_proj.weight'",
        "vLLM, models/qwen2.py",
    ),
    Fault(
        "step-skipped",
        WORKER,
        ("verl/verl/workers/engine_workers.py:update_actor", "verl/verl/workers/engine/base.py:train_batch"),
        "ValueError: micro batches differ between ranks",
        "verl, engine_workers.py",
    ),
    Fault(
        "export-skipped",
        WORKER,
        ("bridge/src/megatron/bridge/models/conversion/model_bridge.py:stream_weights_megatron_to_hf",),
        "ValueError: Object must exist on at least one PP rank",
        "Megatron-Bridge, model_bridge.py",
    ),
)

# The end of a process, and where it belongs.
ENDS = {
    "peft": (
        Fault(
            "lora",
            WORKER,
            ("verl/verl/workers/engine_workers.py:init_model", "bridge/src/megatron/bridge/peft/lora.py:transform"),
            "ValueError: Unsupported class (TELinear)",
            "Megatron-Bridge, peft/lora.py",
        ),
        1192,
        "fail",
        "peft",
    ),
    "step": (
        Fault(
            "step",
            WORKER,
            (
                "verl/verl/workers/engine_workers.py:update_actor",
                "bridge/3rdparty/Megatron-LM/megatron/core/optimizer/distrib_optimizer.py:step",
            ),
            "AssertionError: grad buffer is not reduced",
            "Megatron-LM, distrib_optimizer.py",
        ),
        1326,
        "fail",
        "train_step",
    ),
    "import": (
        Fault(
            "import",
            WORKER,
            (
                "verl/verl/workers/engine_workers.py:init_model",
                "bridge/src/megatron/bridge/models/conversion/model_bridge.py:load_weights_hf_to_megatron",
            ),
            "KeyError: 'model.layers.0.self_attn.q_norm.weight'",
            "Megatron-Bridge, model_bridge.py",
        ),
        1196,
        "fail",
        "hf_import",
    ),
}

BRIDGE = "bridge/src/megatron/bridge/models/conversion/"
MANAGER = "verl/verl/utils/checkpoint/megatron_checkpoint_manager.py"
SAVE_OUTER = {
    "whole": (
        "verl/verl/workers/engine_workers.py:save_checkpoint",
        f"{MANAGER}:save_checkpoint",
        f"{MANAGER}:_save_model_as_hf_via_bridge",
    ),
    "manager": (f"{MANAGER}:_save_model_as_hf_via_bridge",),
    "inner": (),
}
SAVE_INNER = {
    "weights": (f"{BRIDGE}auto_bridge.py:save_hf_weights", f"{BRIDGE}model_bridge.py:stream_weights_megatron_to_hf"),
    "adapter": (
        f"{BRIDGE}auto_bridge.py:save_hf_adapter",
        f"{BRIDGE}peft_bridge.py:stream_adapter_weights_megatron_to_hf",
    ),
    "export": (f"{BRIDGE}auto_bridge.py:export_hf_weights", f"{BRIDGE}param_mapping.py:megatron_to_hf"),
}
LOAD_OUTER = {
    "whole": (
        "verl/verl/workers/engine_workers.py:load_checkpoint",
        f"{MANAGER}:load_checkpoint",
        f"{MANAGER}:_load_model_as_hf_via_bridge",
    ),
    "manager": (f"{MANAGER}:_load_model_as_hf_via_bridge",),
    "inner": (),
}
LOAD_INNER = {
    "weights": (f"{BRIDGE}auto_bridge.py:load_hf_weights", f"{BRIDGE}model_bridge.py:load_weights_hf_to_megatron"),
    "mapping": (f"{BRIDGE}auto_bridge.py:load_hf_weights", f"{BRIDGE}param_mapping.py:hf_to_megatron"),
}
NESTED_RAISED = (
    "ValueError: Object must exist on at least one PP rank",
    "KeyError: 'decoder.layers.0.mlp.linear_fc1.weight'",
)


def several_inserted(rows: Sequence[str], blocks: Sequence[tuple[int, list[str]]]) -> list[str]:
    """The rows with each block below its line (1-based)."""
    result, done = [], 0
    for at, block in sorted(blocks, key=lambda item: item[0]):
        result += [*rows[done:at], *block]
        done = at
    return [*result, *rows[done:]]


def log_of(rows: Sequence[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def _passing(group: str, name: str, blocks: Sequence[tuple[int, list[str]]]) -> Case:
    rows = several_inserted(rows_of("level0-pass"), blocks)
    line = PASSED_AT + sum(len(block) for at, block in blocks if at < PASSED_AT)
    return Case(group, name, log_of(rows), PASS, ("shutdown",), line=line)


def _survived() -> Iterator[Case]:
    styles, places = tuple(RECORDS.items()), tuple(PLACES.items())
    for number, (fault, place) in enumerate(product((*ASIDE, *CAUGHT), places)):
        style, above = styles[(number % len(places) * 3 + number // len(places)) % len(styles)]
        name = f"{fault.name} in {place[0]} after {style}"
        yield _passing("caught and logged", name, [(place[1], fault.printed(above))])
    for number, fault in enumerate(ASIDE):
        where, at = places[number % len(places)]
        yield _passing("printed next to the training", f"{fault.name} in {where}", [(at, fault.printed())])
    for number, fault in enumerate(CAUGHT):
        above = styles[number % len(styles)][1]
        again = [(at, fault.printed(above)) for _, at in places[:3]]
        yield _passing("caught again and again", fault.name, again)
    yield from (
        _passing("a thread after the end", fault.name, [(1336, fault.printed(RECORDS["thread"]))]) for fault in ASIDE
    )


def _hidden() -> Iterator[Case]:
    """A run that ended well and went on with less than it should have is not a pass, whatever logged it."""
    for fault, (style, above) in product(WEIGHTS, RECORDS.items()):
        rows = several_inserted(rows_of("level0-pass"), [(PLACES["stepping"], fault.printed(above))])
        name = f"{fault.name} after {style}"
        yield Case("hides a loss", name, log_of(rows), FAIL + BLOCKED)


def _ended() -> Iterator[Case]:
    for (name, (fault, at, verdict, stage)), other in product(ENDS.items(), (*ASIDE[:3], *CAUGHT[:4])):
        for style in ("warning", "exception"):
            before = several_inserted(rows_of("level0-pass")[:at], [(1151, other.printed(RECORDS[style]))])
            line = len(before) + 2 + 2 * len(fault.frames)
            rows = [*before, *fault.printed(prefix="[rank0]: " if style == "warning" else "")]
            case = f"{name} after a logged {other.name} ({style})"
            yield Case("ended by", case, log_of(rows), (verdict,), (stage,), line=line)
    for other, at in product((*ASIDE[:2], *CAUGHT[:3]), (1280, 1330)):
        rows = several_inserted(rows_of("level0-pass")[:at], [(1151, other.printed(RECORDS["exception"]))])
        stage = "rollout_engine" if at == 1280 else "train_step"
        name = f"{other.name} logged, cut at {at}"
        yield Case("cut later", name, log_of(rows), BLOCKED, (stage,), line=len(rows))


def _nested() -> Iterator[Case]:
    saving, loading = rows_of("level1-resume")[:1360], rows_of("level1-resume")[1506:2708]
    sides = (("checkpoint_save", saving, SAVE_OUTER, SAVE_INNER), ("checkpoint_load", loading, LOAD_OUTER, LOAD_INNER))
    for stage, rows, outer, inner in sides:
        for (around, first), (inside, then), raised in product(outer.items(), inner.items(), NESTED_RAISED):
            fault = Fault(inside, WORKER, (*first, *then), raised, "verl, megatron_checkpoint_manager.py")
            line = len(rows) + 2 + 2 * len(fault.frames)
            name = f"{inside} in {stage}, {around} frames, {raised.split(':')[0]}"
            log = log_of([*rows, *fault.printed()])
            yield Case("nested", name, log, FAIL, (stage,), line=line)


def caught_errors() -> tuple[Case, ...]:
    """Every row, in a fixed order."""
    return (*_survived(), *_hidden(), *_ended(), *_nested())

"""Generated cases of runs that end with exit code 0: what they print shows a fault, or shows that nothing was proven.

Each case is a real log of a passing run with one thing changed. The expected answer follows from the class of the
change and was written before triage read the case. The wordings of the engines are those of their sources, named at
each; half of the variants (`unseen`) were not looked at while the rules were written.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import cycle, product

from tests.core.logs import FOLDER, recorded
from tests.core.triage.tables import BLOCKED, FAIL, PASS, Case
from verl_e2e.adapters.files.logs import open_log

RUNS = FOLDER.parent / "runs"


@cache
def base(name: str) -> bytes:
    """A recorded log of a run that passed: of one step, of two, and of twenty."""
    if name == "one":
        return recorded("level0-pass")
    folder = {"two": "level1-uninterrupted", "twenty": "level5-signal"}[name]
    return b"".join(open_log(RUNS / folder / "log.txt.zst"))


LAST = {"one": 1, "two": 2, "twenty": 20}
_STEP = re.compile(rb"step:(\d+) - ")


def steps_changed(name: str, change: Mapping[str, str | None], at: Iterable[int] | None = None) -> bytes:
    """The log with metrics of its training steps replaced, added, or (None) removed; `at` None: at every step."""
    wanted = set(at) if at is not None else None
    rows = []
    for row in base(name).split(b"\n"):
        found = _STEP.search(row)
        step = int(found[1]) if found else 0
        rows.append(_changed(row, change) if step and (wanted is None or step in wanted) else row)
    return b"\n".join(rows)


def _changed(row: bytes, change: Mapping[str, str | None]) -> bytes:
    head, *pieces = row.split(b" - ")
    values = dict(piece.rsplit(b":", 1) for piece in pieces if b":" in piece)
    for name, shown in change.items():
        if shown is None:
            values = {key: value for key, value in values.items() if not re.fullmatch(name.encode(), key)}
        else:
            values[name.encode()] = shown.encode()
    return b" - ".join([head, *(key + b":" + value for key, value in values.items())])


def with_line(name: str, line: str, before: bytes) -> bytes:
    """The log with a line put before the first line that holds `before`."""
    log = base(name)
    at = log.rindex(b"\n", 0, log.index(before)) + 1
    return log[:at] + line.encode() + b"\n" + log[at:]


# Where a metric must be a number, by family. verl: trainer/ppo/metric_utils.py, trainer/ppo/rollout_corr_helper.py,
# workers/engine_workers.py, workers/utils/losses.py, utils/debug/metrics.py.
FAMILIES = {
    "loss": ("actor/pg_loss", "actor/loss", "critic/vf_loss", "critic/loss", "actor/kl_loss", "actor/mtp_loss"),
    "gradient": ("actor/grad_norm", "critic/grad_norm"),
    "reward": ("critic/score/mean", "critic/score/max", "critic/rewards/mean", "critic/rewards/min"),
    "kl": ("actor/ppo_kl", "rollout_corr/kl", "rollout_corr/k3_kl", "actor/reward_kl_penalty"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "advantage": ("critic/advantages/mean", "critic/advantages/max"),
    "return": ("critic/returns/mean", "critic/returns/min"),
    "value": ("critic/values/mean", "critic/vpred_mean"),
    "log-probability": ("rollout_corr/training_log_ppl", "rollout_corr/log_ppl_diff", "rollout_corr/log_ppl_abs_diff"),
    "ratio": ("rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max", "rollout_corr/ppl_ratio"),
}
# How Python, numpy and torch show them.
SPELLINGS = (
    "nan",
    "np.float64(nan)",
    "inf",
    "NaN",
    "tensor(nan)",
    "-inf",
    "np.float32(inf)",
    "tensor(nan, device='cuda:0')",
    "np.float64(-inf)",
    "tensor([nan])",
    "array(nan, dtype=float32)",
    "Infinity",
)
PLACES = (("one", (1,)), ("twenty", (1,)), ("twenty", (11,)), ("twenty", (20,)), ("two", (2,)))


def not_finite() -> Iterator[Case]:
    spellings, places = cycle(SPELLINGS), cycle(PLACES)
    for family, names in FAMILIES.items():
        for metric in (*names, names[0]):
            shown, (log, at) = next(spellings), next(places)
            changed = steps_changed(log, {metric: shown}, at)
            name = f"{metric}={shown} at {log}/{at[0]}"
            yield Case(f"not finite: {family}", name, changed, FAIL, ("learning_signal",))


AGREEMENT = "training/rollout_actor_probs_pearson_corr"


def agreement() -> Iterator[Case]:
    for (log, at), shown in zip(PLACES, ("nan", "np.float64(nan)", "inf", "tensor(nan)", "2.5"), strict=True):
        changed = steps_changed(log, {AGREEMENT: shown}, at)
        yield Case("agreement is not a number", f"{shown} at {log}/{at[0]}", changed, BLOCKED, ("export_weight_sync",))
    # What verl prints when no token of a batch is valid: utils/debug/metrics.py.
    invalid = {f"training/rollout_probs_diff_{end}": "nan" for end in ("max", "mean", "std")}
    changed = steps_changed("one", {**invalid, "training/rollout_probs_diff_valid": "0", AGREEMENT: "nan"})
    yield Case("agreement is not a number", "no valid token", changed, BLOCKED, ("export_weight_sync", "train_step"))
    for (log, at), shown in zip(PLACES, ("0.93", "0", "-0.5", "np.float64(0.9)", "0.0"), strict=True):
        changed = steps_changed(log, {AGREEMENT: shown}, at)
        yield Case("agreement is low", f"{shown} at {log}/{at[0]}", changed, FAIL, ("export_weight_sync",))


def still() -> Iterator[Case]:
    signal = ("learning_signal",)
    for value in ("0.0", "0.5", "-1.0", "np.float64(3.25)"):
        mean = {"critic/score/mean": value, "critic/rewards/mean": value}
        every = mean | {f"critic/{kind}/{end}": value for kind in ("score", "rewards") for end in ("max", "min")}
        yield Case("constant reward", f"{value}", steps_changed("twenty", every), BLOCKED, signal)
        yield Case("constant reward", f"{value}, the means", steps_changed("twenty", mean), BLOCKED, signal)
    for log in ("one", "two", "twenty"):
        for shown in ("0.0", "np.float64(0.0)", "-0.0"):
            zero = steps_changed(log, {"actor/grad_norm": shown})
            yield Case("zero gradient", f"actor {shown} in {log}", zero, FAIL, signal)
        zero = steps_changed(log, {"critic/grad_norm": "0.0"})
        yield Case("zero gradient", f"critic in {log}", zero, FAIL, signal)
        flat = {f"critic/advantages/{end}": "0.0" for end in ("mean", "max", "min")}
        yield Case("zero advantages", f"in {log}", steps_changed(log, flat), BLOCKED, signal)
        both = flat | {"actor/grad_norm": "0.0", "actor/pg_loss": "0.0"}
        yield Case("zero advantages", f"and gradient in {log}", steps_changed(log, both), BLOCKED, signal)
    for log in ("two", "twenty"):
        yield Case("zero learning rate", f"in {log}", steps_changed(log, {"actor/lr": "0.0"}), BLOCKED, signal)


def no_samples() -> Iterator[Case]:
    empty = {f"response_length/{end}": "0.0" for end in ("mean", "max", "min")}
    nothing = {f"response_length_non_aborted/{end}": "nan" for end in ("mean", "max", "min", "clip_ratio")}
    aborted = {"response/aborted_ratio": "1.0"}
    variants = {
        "empty responses": empty,
        "all aborted": aborted,
        "empty and aborted": {**empty, **aborted, **nothing},
        "no tokens": {"perf/total_num_tokens": "0", "global_seqlen/mean": "0.0", "global_seqlen/max": "0.0"},
        "all rejected": {"rollout_corr/rollout_rs_masked_fraction": "1.0"},
        "all sequences rejected": {"rollout_corr/rollout_rs_seq_masked_fraction": "np.float64(1.0)"},
    }
    for log in ("one", "twenty"):
        for name, change in variants.items():
            yield Case("no samples", f"{name} in {log}", steps_changed(log, change), BLOCKED, ("train_step",))
    update = {r"actor/(?!entropy$).*": None, r"perf/mfu/actor": None, r"timing_s/update_actor": None}
    for log in ("one", "two", "twenty"):
        # trainer.critic_warmup above the steps of the run: verl, trainer/ppo/v1/trainer_base.py.
        yield Case("actor not updated", f"critic only in {log}", steps_changed(log, update), BLOCKED, ("train_step",))


def hollow() -> Iterator[Case]:
    shutdown = ("shutdown", "train_step")
    one = base("one")
    rows = one.split(b"\n")
    metrics = [row for row in rows if _STEP.search(row)]
    bare = b"\n".join(row for row in rows if row not in metrics)
    yield Case("no metrics", "no metric line", bare, BLOCKED, shutdown)
    few = b"\n".join(b" - ".join(row.split(b" - ")[:2]) if row in metrics else row for row in rows)
    yield Case("no metrics", "one metric", few, BLOCKED, shutdown)
    final = bare + b"(TaskRunnerV1 pid=6726) (\"Final validation metrics: {'val-core/x/reward/mean@1': \"\n"
    yield Case("no metrics", "a validation only", final, BLOCKED, shutdown)
    for number in ("2", "3"):
        other = re.sub(rb"step:1 - ", b"step:" + number.encode() + b" - ", one)
        yield Case("metrics of another step", f"step {number} of 1", other, BLOCKED, shutdown)
    for log, number in (("one", "0"), ("two", "7"), ("twenty", "19"), ("one", "2")):
        changed = steps_changed(log, {"training/global_step": number}, (LAST[log],))
        yield Case("metrics of another step", f"global step {number} of {log}", changed, BLOCKED, shutdown)
    cut = b"\n".join(row for row in base("twenty").split(b"\n") if not re.search(rb"step:(19|20) - ", row))
    yield Case("metrics of another step", "the last two lines are not there", cut, BLOCKED, shutdown)
    for name, line in REPLAYED.items():
        changed = with_line("one", f"(TaskRunnerV1 pid=6726) {line}", b"step:1 - ")
        yield Case("no generation", name, changed, BLOCKED, ("rollout_engine", "train_step"))


# verl, utils/skip/rollout_skip.py: rollouts that come from a file, and not from the engine.
REPLAYED = {
    "loaded": "[RolloutSkip()] Load generate result at step 1 from /data/rollouts/genstep_000001",
    "injected": "[RolloutTqSkip()] Injected 64 cached trajectories into partition 'train' at step 1",
}

# An engine that does not take a weight and goes on. Engine, source of the wording, line, unseen.
REFUSALS = (
    ("vllm", "models/qwen3_next.py", "Parameter layers.3.mlp.gate.weight not found in params_dict, skip loading"),
    ("sglang", "srt/models/qwen2.py", "Parameter model.layers.1.mlp.up_proj.weight not found in params_dict"),
    ("sglang", "srt/models/deepseek_v2.py", "model.layers.3.self_attn.q_b_proj.weight not found in params_dict."),
    (
        "sglang",
        "srt/models/deepseek_v2.py",
        "Some weights are not initialized from checkpoints: {'model.layers.7.mlp.down_proj.weight'}",
    ),
    (
        "vllm",
        "model_loader/default_loader.py, as a warning",
        "Following weights were not initialized from checkpoint: {'model.layers.2.self_attn.o_proj.weight'}",
    ),
    ("vllm", "models/utils.py", "There is no module or parameter named 'model.layers.0.router' in Qwen2ForCausalLM"),
    (
        "vllm",
        "lora/model_manager.py",
        "LoRA module model.layers.0.mlp.experts is not in the model's supported LoRA target modules and is ignored",
    ),
    ("vllm", "lora, an adapter of another rank", "Ignoring LoRA weights of base_model.model.lm_head: rank 8 exceeds 4"),
    (
        "torch",
        "nn/modules/module.py, load_state_dict(strict=False)",
        "<_IncompatibleKeys missing_keys=['model.norm.weight'], unexpected_keys=[]>",
    ),
    (
        "torch",
        "nn/modules/module.py, load_state_dict(strict=False)",
        "Unexpected key(s) in state_dict: 'model.layers.0.mlp.gate_proj.lora_A.weight'",
    ),
    (
        "transformers",
        "modeling_utils.py",
        "Some weights of the model checkpoint were not used when initializing Qwen2ForCausalLM: ['lm_head.weight']",
    ),
    (
        "transformers",
        "modeling_utils.py",
        "Some weights of Qwen2ForCausalLM were not initialized from the model checkpoint at /m and are newly "
        "initialized because the shapes did not match: ['model.embed_tokens.weight']",
    ),
    ("sglang", "srt/model_executor/model_runner.py", "Failed to update parameter online: lm_head.weight"),
    ("vllm", "weight transfer", "Shape mismatch for model.embed_tokens.weight: [8192, 512], [8064, 512], skipped"),
    ("vllm", "weight transfer", "Skipped 12 tensors of the bucket: unknown parameter names"),
    ("sglang", "srt/model_loader", "Unloaded parameters: ['model.layers.3.input_layernorm.weight']"),
    (
        "vllm",
        "weight transfer",
        "model.layers.3.mlp.gate_up_proj.weight: size mismatch, keeping the old value of the parameter",
    ),
    ("sglang", "update_weights_from_tensor", "Weight model.norm.weight was rejected by the model runner"),
    ("vllm", "weight transfer", "Unrecognized weight name model.layers.0.attn.qkv.weight, dropping it"),
    ("vllm", "a second batch, blind", "Missing 3 weights in update: model.norm.weight"),
    ("vllm", "a second batch, blind", "2 weights of the bucket do not match any parameter of the model"),
    ("sglang", "a second batch, blind", "Tensor model.norm.weight has an invalid shape and is not copied"),
    ("vllm", "a second batch, blind", "The following weights were left uninitialized: {'lm_head.weight'}"),
    ("vllm", "a second batch, blind", "Refusing to load weight lm_head.weight: dtype differs"),
    ("sglang", "a second batch, blind", "weight_loader: unknown weight name: foo.bar.weight, dropped"),
    ("vllm", "a second batch, blind", "Cannot find any of ['adapter.lora_A'] in the model. Ignoring the tensors."),
    ("vllm", "collective_rpc", "Missing keys in the received state dict: model.layers.2.mlp.down_proj.weight"),
)
ENGINES = {
    "vllm": "(vLLMHttpServer pid=9139) (EngineCore pid=9529) (Worker pid=9600) WARNING 11-20 14:34:20 [utils.py:301] ",
    "sglang": "(SGLangHttpServer pid=9139) [2026-11-20 14:34:20 TP0] ",
    "torch": "(vLLMHttpServer pid=9139) (EngineCore pid=9529) ",
    "transformers": "(SGLangHttpServer pid=9139) ",
}


def refused() -> Iterator[Case]:
    marks = cycle((b"loaded_params:", b"step:1 - "))
    for index, (engine, _source, text) in enumerate(REFUSALS):
        for log in ("one", "two"):
            changed = with_line(log, ENGINES[engine] + text, next(marks))
            name, unseen = f"{text[:50]} in {log}", bool(index % 2)
            yield Case("weights refused", name, changed, FAIL, ("export_weight_sync",), (), unseen)
    for log in ("one", "two"):
        none = re.sub(rb"loaded_params: \d+", b"loaded_params: 0", base(log))
        yield Case("weights refused", f"no parameter loaded in {log}", none, FAIL, ("export_weight_sync",))


# What a healthy run may print; each must stay a pass.
FINE_METRICS: tuple[tuple[str, str, Mapping[str, str | None]], ...] = (
    ("one", "perplexity overflows", {"rollout_corr/rollout_ppl": "inf", "rollout_corr/training_ppl": "inf"}),
    ("twenty", "returns do not vary", {"critic/vf_explained_var": "nan"}),
    ("twenty", "returns do not vary at all", {"critic/vf_explained_var": "-inf"}),
    ("one", "no utilization", {"perf/mfu/actor": "nan", "perf/mfu/critic": "inf"}),
    ("one", "a clock of no tokens", {"timing_per_token_ms/gen": "inf", "timing_s/testing": "nan"}),
    ("one", "a spread of one token", {"training/rollout_probs_diff_std": "nan"}),
    ("twenty", "a spread of one answer", {"val-aux/x/reward/std@1": "nan"}),
    ("one", "all at the length limit", {"response_length/clip_ratio": "1.0"}),
    ("one", "large gradient", {"actor/grad_norm": "1234.5", "critic/grad_norm": "np.float64(99.0)"}),
    ("one", "small gradient", {"actor/grad_norm": "1e-12"}),
    ("one", "negative loss", {"actor/pg_loss": "-3.5", "critic/vf_loss": "tensor(1e-30)"}),
    ("one", "correlation above one by rounding", {AGREEMENT: "1.0000001"}),
    ("one", "correlation of a healthy run", {AGREEMENT: "np.float64(0.9962)"}),
    ("one", "some aborted", {"response/aborted_ratio": "0.25", "response_length/min": "0.0"}),
    ("one", "some rejected", {"rollout_corr/rollout_rs_masked_fraction": "0.5"}),
    ("two", "the same reward at two steps", {"critic/score/mean": "0.25", "critic/rewards/mean": "0.25"}),
    ("one", "no reward of a random model", {"critic/score/mean": "0.0", "critic/score/max": "0.0"}),
    ("one", "no KL yet", {"actor/kl_loss": "0.0", "actor/ppo_kl": "0.0", "rollout_corr/kl": "0.0"}),
    ("one", "the rate of a warm-up", {"actor/lr": "0.0"}),
    ("one", "no critic", {r"critic/(?:vf_.*|vpred_mean|grad_norm|lr|loss|values/.*)": None}),
    ("twenty", "no correlation reported", {AGREEMENT: None}),
    ("twenty", "an unknown metric", {"custom/thing": "nan"}),
    ("one", "old names", {"actor/entropy": None, "actor/entropy_loss": "0.08"}),
)
FINE_STEPS: tuple[tuple[int, str, Mapping[str, str | None]], ...] = (
    (1, "first rate of a warm-up", {"actor/lr": "0.0"}),
    (7, "one step without advantage", {"critic/advantages/max": "0.0", "critic/advantages/min": "0.0"}),
    (9, "one step without gradient", {"actor/grad_norm": "0.0"}),
    (3, "one empty batch", {"response_length/mean": "0.0", "response_length/max": "0.0"}),
    (5, "one step aborted", {"response/aborted_ratio": "1.0"}),
    (2, "one step of the critic alone", {r"actor/(?!entropy$).*": None}),
    (4, "a reward as before", {"critic/score/mean": "5.156251907348633"}),
)
FINE_NUMBERS = ("0.125", "np.float64(2.5)", "tensor(0.5)", "1e-3")
FINE_LINES = (
    "WARNING 11-20 14:31:49 [vllm.py:1110] optimizations settings that are only active during inductor compilation "
    "will be ignored.",
    "WARNING 11-20 14:31:49 [config.py:12] The following sampling parameters are not supported and will be ignored: n",
    "INFO 11-20 14:31:49 [gpu_worker.py:205] Sleep mode freed 20.5 GiB memory, 1.2 GiB memory is still in use.",
    "WARNING 11-20 14:31:49 [arg_utils.py:1] Skipping tokenizer initialization, skip_tokenizer_init is set",
    "Skipping import of cpp extensions due to incompatible torch version",
    "[2026-11-20 14:34:20 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=60.1 GB",
    "[2026-11-20 14:34:20 TP0] Ignore import error when loading sglang.srt.models.glm_ocr",
    "WARNING 11-20 14:31:49 [loader.py:9] Skipping loading of model.layers.0.self_attn.rotary_emb.inv_freq",
    "INFO 11-20 14:31:49 [default_loader.py:268] Loading weights took 1.53 seconds",
    "WARNING 11-20 14:31:49 [utils.py:9] Skipped flushing cache after weight update",
    "INFO 11-20 14:31:49 [utils.py:9] Sleep mode: 12 GiB of weights discarded to free memory",
    "[2026-11-20 14:34:20 TP0] Weight-only compression is used: no native support",
    "WARNING 11-20 14:31:49 [utils.py:9] Unused environment variable VLLM_OLD_FLAG is ignored",
)
FINE_SAID = (
    "[response] The missing weight was not found in the bag, so she ignored it and skipped lunch.",
    "[response] nan - inf - step:3 - actor/grad_norm:nan",
    "[prompt] A parameter is unexpected: the tensor was not loaded on the truck. How heavy is it?",
    "[ground_truth] 18 weights were not used",
)
FINE_WORKER = (
    "WARNING: Shape mismatch for megatron param output_layer.weight allowed by whitelist. Skipping.",
    "/opt/kit/site/torch/nn/modules/module.py:1: UserWarning: unused parameter check is skipped under no_grad",
    "Some weights of Qwen2ForTokenClassification were not initialized from the model checkpoint at /m and are newly "
    "initialized: ['score.weight']",
)


def healthy() -> Iterator[Case]:
    for log in LAST:
        yield Case("healthy", f"as recorded, {log}", base(log), PASS)
    for log, name, change in FINE_METRICS:
        yield Case("healthy metrics", name, steps_changed(log, change), PASS)
    for step, name, change in FINE_STEPS:
        yield Case("one odd step", name, steps_changed("twenty", change, (step,)), PASS)
    for metric, shown in product((names[0] for names in FAMILIES.values()), FINE_NUMBERS):
        yield Case("healthy numbers", f"{metric}={shown}", steps_changed("twenty", {metric: shown}, (6,)), PASS)


def healthy_words() -> Iterator[Case]:
    for line, mark in product(FINE_LINES, (b"ready to fit", b"loaded_params:", b"step:1 - ")):
        changed = with_line("one", f"(vLLMHttpServer pid=9139) (EngineCore pid=9529) {line}", mark)
        yield Case("healthy engine", f"{line[:40]} before {mark.decode()}", changed, PASS)
    for line, log in product(FINE_SAID, ("one", "twenty")):
        changed = with_line(log, f"(TaskRunnerV1 pid=6726) {line}", b"step:1 - ")
        yield Case("said by the model", f"{line[:40]} in {log}", changed, PASS)
    for line in FINE_WORKER:
        changed = with_line("one", f"(WorkerDict pid=7470) {line}", b"DistributedDataParallel contains")
        yield Case("healthy worker", line[:40], changed, PASS)


def cases() -> tuple[Case, ...]:
    """All cases; every second one, and every second wording, belongs to the half that was not looked at."""
    made = (*not_finite(), *agreement(), *still(), *no_samples(), *hollow(), *healthy(), *healthy_words())
    return (*(replace(case, unseen=bool(index % 2)) for index, case in enumerate(made)), *refused())

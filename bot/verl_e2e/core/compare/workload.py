"""Which jobs measure the same thing: by what decides their numbers, and not by where or on which commit they run.

A probe is all of a job that decides its first rollout: the checkpoint, the adapter, the engine, the lengths and the
overrides - not the Bridge commit, whose faults are to show against what healthy commits measured.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypedDict

from verl_e2e.core.model.jobs import Job

# What changes no number of a training: watching, saving, paths, and how many steps it takes.
_PLACE_VARIABLE = re.compile(
    r".*_(PATH|FILES|OFFLOAD)|TOTAL_TRAIN_STEPS|SAVE_FREQ|TEST_FREQ|VAL_BEFORE_TRAIN|RESUME_MODE|PROFILE_.*"
    r"|VERL_USE_UV|MODEL_ID|SKIP_SAVE_HF_MODEL"
)
_PLACE_OVERRIDE = re.compile(
    r"\+{0,2}(trainer\.(?!n_gpus_per_node|nnodes)|ray_kwargs\.|data\.(train|val)_files|global_profiler\."
    r"|[\w.]*(_offload|gpu_memory_utilization|kv_cache_memory_bytes|num_workers|checkpoint\.[\w.]+|_path)(?==))"
)
# What the first rollout and the weights behind it do not depend on: sizes, and rates that only later steps feel.
_SCALE_VARIABLE = re.compile(r".*_(TP|PP|VPP|CP|EP|ETP)|NUM_GPUS")
_SCALE_OVERRIDE = re.compile(r"\+{0,2}[\w.]*(parallel_size|\.optim\.lr|n_gpus_per_node|nnodes)=")


def probe_digest(job: Job) -> str:
    """What decides a probe's measurements, as a SHA-256 digest: the same on every host and at every Bridge commit.

    A local checkpoint counts by its model id and the name of its folder, for its place differs between hosts.
    """
    full = _training(job)
    wrapper = {name: value for name, value in full["wrapper"] if not _SCALE_VARIABLE.fullmatch(name)}
    overrides = [training for training in full["overrides"] if not _SCALE_OVERRIDE.match(training)]
    return _digest({**full, "wrapper": sorted(wrapper.items()), "overrides": overrides})


def training_digest(job: Job) -> str:
    """What decides every number of a training at one Bridge and verl commit: two runs of it differ by noise alone."""
    extra = {"gpus": job.gpu_count, "bridge": job.bridge.commit, "verl": job.verl.commit}
    return _digest({**_training(job), **extra})


class _Training(TypedDict):
    """What a training is made of."""

    script: str
    model: list[object]
    reward_model: bool
    wrapper: list[tuple[str, str]]
    overrides: list[str]


def _training(job: Job) -> _Training:
    chosen = job.checkpoint
    recipe = [chosen.synthetic.model_dump(mode="json")] if chosen.synthetic else []
    model = [chosen.model_id, _name(chosen.model_path), _name(chosen.dummy_config), chosen.random_weights, *recipe]
    wrapper = {**job.site.wrapper, **job.wrapper}
    return {
        "script": job.script,
        "model": model,
        "reward_model": job.reward_model,
        "wrapper": sorted(pair for pair in wrapper.items() if not _PLACE_VARIABLE.fullmatch(pair[0])),
        "overrides": [override for override in sorted(set(job.overrides)) if not _PLACE_OVERRIDE.match(override)],
    }


def _digest(document: Mapping[str, object]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _name(path: str | None) -> str:
    return (path or "").rstrip("/").rpartition("/")[2]


def about(job: Job) -> str:
    """A probe in words, for the person who reads a bands file."""
    wrapper = {**job.site.wrapper, **job.wrapper}
    lengths = "/".join(wrapper.get(name, "default") for name in ("MAX_PROMPT_LENGTH", "MAX_RESPONSE_LENGTH"))
    random = ", random weights" if job.checkpoint.is_random else ""
    return (
        f"{job.checkpoint.model_id}{random}, LoRA rank {wrapper.get('LORA_RANK', '0')}, "
        f"{wrapper.get('ENGINE', 'vllm')}, lengths {lengths}"
    )

"""Which step metrics are compared between two runs of the same training, and how far they may differ.

Two runs of the same job rarely draw the same samples, so a metric has two tolerances: a wide one for steps whose
samples differ, where means over a batch scatter, and a narrow one for steps whose samples are the same, where only
rounding, the order of additions and which sequences share a mini-batch are left. `docs/parity.md` says where each
number comes from.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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


SAMPLED_LOG_PPL = "rollout_corr/rollout_log_ppl"
KL_LOSS = "actor/kl_loss"
ACTOR_NORM = "actor/grad_norm"
CRITIC_NORM = "critic/grad_norm"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two values may differ: `relative` of the larger one, plus `absolute`, plus `spread` of the range.

    The range comes from the metric's own maximum and minimum at the same step (`x/max` and `x/min` for `x/mean`).
    """

    relative: float = 0.0
    absolute: float = 0.0
    spread: float = 0.0

    def shown(self) -> str:
        """The tolerance as people read it."""
        parts = (
            (self.relative, f"{self.relative:.3g} of the larger"),
            (self.absolute, f"{self.absolute:.3g}"),
            (self.spread, f"{self.spread:.3g} of the range"),
        )
        return " + ".join(text for bound, text in parts if bound) or "equal"


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric: its name in verl's metric lines, its title, and its tolerances; None means shown, not judged."""

    metric: str
    title: str
    same: Tolerance | None
    sampled: Tolerance | None


# What both runs must agree on exactly before anything else can be compared: the prompts of the step.
DATA = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")
# Counters that neither samples nor rounding can move.
COUNTERS = ("training/global_step", "training/epoch", "actor/lr", "critic/lr")

COMPARED: tuple[Compared, ...] = (
    Compared("actor/pg_loss", "policy loss", Tolerance(0.25, 6e-3), None),
    Compared("critic/vf_loss", "value loss", Tolerance(0.05, 1e-4), Tolerance(0.4, 1e-3)),
    Compared(ACTOR_NORM, "grad norm, actor", Tolerance(0.08), Tolerance(0.2)),
    Compared(CRITIC_NORM, "grad norm, critic", Tolerance(0.08), Tolerance(0.33)),
    Compared("actor/entropy", "entropy", Tolerance(0.005), Tolerance(0.03)),
    Compared(KL_LOSS, "KL to the reference", Tolerance(0.3, 1e-5), Tolerance(0.6, 1e-5)),
    Compared("actor/ppo_kl", "KL within the step", Tolerance(0.25, 2e-3), None),
    Compared("rollout_corr/training_log_ppl", "log perplexity, trainer", Tolerance(0.005), Tolerance(0.03)),
    Compared(SAMPLED_LOG_PPL, "log perplexity, rollout", Tolerance(0.005), Tolerance(0.03)),
    Compared("critic/score/mean", "score", Tolerance(spread=0.02), None),
    Compared("critic/rewards/mean", "reward", Tolerance(spread=0.02), None),
    Compared("critic/values/mean", "value", Tolerance(spread=0.02), Tolerance(spread=0.1)),
    Compared(
        "training/rollout_actor_probs_pearson_corr",
        "trainer and rollout correlation",
        Tolerance(absolute=0.002),
        Tolerance(absolute=0.005),
    ),
)

# Below this relative difference of the samples' log perplexity, as the rollout engine itself reports it, the samples
# of a step are taken to be the same.
SAME_SAMPLES_WITHIN = 1e-6
DEFAULT_SOURCE = "stated defaults"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerances of one comparison by metric, and where they come from, for the report.

    `same` and `sampled` replace the stated default of a metric for steps with the same and with other samples.
    """

    source: str = DEFAULT_SOURCE
    same: Mapping[str, Tolerance] = field(default_factory=dict)
    sampled: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, compared: Compared, *, same_samples: bool) -> Tolerance | None:
        """The tolerance of one metric at one step, None when it is shown and not judged."""
        if same_samples:
            return self.same.get(compared.metric, compared.same)
        return self.sampled.get(compared.metric, compared.sampled)


STATED_TOLERANCES = Tolerances()

"""The coverage levels, what a variant of one is, and the wrapper environment that all of them start from.

Source: Megatron-Bridge's guide to verl end-to-end testing; `docs/levels.md` explains each level.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from verl_e2e.core.model.costs import Cost, expected_cost


class Level(IntEnum):
    """Ordered depth of testing; level 0 runs first and alone."""

    SMOKE = 0
    SAVE_RESUME = 1
    PARALLELISM = 2
    MEGATRON_FSDP = 3
    FEATURE = 4
    LEARNING_SIGNAL = 5

    @property
    def title(self) -> str:
        """The level's name as the card prints it."""
        return _TITLES[self]


_TITLES = {
    Level.SMOKE: "LoRA + DDP smoke",
    Level.SAVE_RESUME: "Save/resume",
    Level.PARALLELISM: "Parallelism stress",
    Level.MEGATRON_FSDP: "Megatron-FSDP",
    Level.FEATURE: "Feature e2e",
    Level.LEARNING_SIGNAL: "Learning signal",
}

# The Level 0 exports; every other variant overrides some of them.
BASE_WRAPPER: Mapping[str, str] = MappingProxyType(
    {
        "VERL_USE_UV": "0",
        "PROFILE_STEPS": "null",
        "ENGINE": "vllm",
        "USE_MBRIDGE": "True",
        "VANILLA_MBRIDGE": "False",
        "VALUE_VANILLA_MBRIDGE": "False",
        "LORA_RANK": "4",
        "USE_MEGATRON_FSDP": "False",
        "COMMON_PP": "1",
        "COMMON_VPP": "null",
        "COMMON_CP": "1",
        "COMMON_TP": "1",
        "INFER_TP": "1",
        "ALL_OFFLOAD": "False",
        "TOTAL_TRAIN_STEPS": "1",
        "SAVE_FREQ": "-1",
        "VAL_BEFORE_TRAIN": "False",
        "TEST_FREQ": "-1",
    }
)

FUSION_ROOTS = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
NO_GRADIENT_FUSION = tuple(
    f"++{root}.megatron.override_transformer_config.gradient_accumulation_fusion=False" for root in FUSION_ROOTS
)


# levels.md: full recompute is how a lost gradient hook shows, and it is off by default.
FULL_RECOMPUTE = tuple(
    f"++{root}.megatron.override_transformer_config.{key}"
    for root in ("actor_rollout_ref.actor", "critic")
    for key in ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
)

# lora_B starts at zero, so a fault in the adapter's export cannot show in the first step without this.
AMPLIFIED_LORA = ("actor_rollout_ref.model.lora.lora_B_init_method=xavier",)

# The default learning rate, 1e-6, moves no adapter in twenty steps.
PROBE_LEARNING_RATE = ("actor_rollout_ref.actor.optim.lr=0.0001",)

# Every request of the rollout gets the same seed in every run: two runs of the same weights draw the same samples.
DETERMINISTIC = ("actor_rollout_ref.rollout.full_determinism=True",)

# With one seed for all, the responses to a prompt are copies of each other, and verl's balancing gives every rank of
# data parallelism one of each: every rank then has the gradient of the whole batch, and one that is never averaged
# cannot show. So each prompt gets one response, as many in all as before; in one mini-batch, for which sequences share
# one is chance.
DISTINCT_SAMPLES = (
    "actor_rollout_ref.rollout.n=1",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
)

# One step has to move the adapter so far that a lost one shows in the next; the default, 1e-6, does not.
TELLING_LEARNING_RATE = ("actor_rollout_ref.actor.optim.lr=0.001",)

# verl-e2e's own files, as a job and a run folder name them; the runner puts its own folder in place of it.
OWN_FILES = "$VERL_E2E"

# Group-relative advantages need no critic: Bridge has no mapping of a value head for families whose output layer is the
# embedding. They need rewards that differ, and a small or random model answers no question of the data right.
WITHOUT_CRITIC: Mapping[str, str] = MappingProxyType({"ADV_ESTIMATOR": "grpo"})
# Copies of one response have the same reward, so relative to their group all advantages are zero and nothing trains
# (measured). REINFORCE++ has no critic either, and compares a response with the whole batch.
WITHOUT_CRITIC_OF_COPIES: Mapping[str, str] = MappingProxyType({"ADV_ESTIMATOR": "reinforce_plus_plus"})
SHARE_OF_DIGITS = (
    f"reward.custom_reward_function.path={OWN_FILES}/verl_e2e_runner/rewards.py",
    "reward.custom_reward_function.name=digit_share",
)

# The median over fewer steps would be one batch of unlucky samples.
PARITY_STEPS = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a level: its wrapper overrides, Hydra overrides, and the fewest GPUs.

    `steps` is the training step that the run ends at. A variant with a `feature` joins its level's default one
    when the change touches that feature, and needs a checkpoint that has it; other variants join by name.
    """

    level: Level
    name: str
    gpu_count: int
    wrapper: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    steps: int = 1
    feature: str = ""

    @property
    def job_id(self) -> str:
        """`<level>-<name>`, the name of the run's folder under `jobs/`."""
        return f"{int(self.level)}-{self.name}"

    @property
    def cost(self) -> Cost:
        """What it takes on its own GPUs with a small model."""
        return expected_cost(self.job_id)

    @property
    def gpu_minutes(self) -> int:
        """GPUs times minutes of all runs of the job, on its own GPUs with a small model."""
        return self.cost.gpu_minutes(self.gpu_count)

"""The stages of a verl run, in the order in which a run goes through them."""

from enum import StrEnum


class Stage(StrEnum):
    """The stage that a run is in, or ended in.

    The order of the members is the order of a run with verl's Megatron wrapper; `shutdown` means
    that the requested steps completed and only noise is left to explain.
    """

    ENVIRONMENT = "environment"
    IMPORT = "import"
    DATA = "data"
    MODEL_DOWNLOAD = "model_download"
    REWARD_MODEL = "reward_model"
    RAY = "ray"
    ROLLOUT_ENGINE = "rollout_engine"
    BRIDGE_PROVIDER = "bridge_provider"
    HF_IMPORT = "hf_import"
    PEFT = "peft"
    DDP_WRAP = "ddp_wrap"
    FSDP_WRAP = "fsdp_wrap"
    OPTIMIZER = "optimizer"
    EXPORT_WEIGHT_SYNC = "export_weight_sync"
    TRAIN_STEP = "train_step"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"
    LEARNING_SIGNAL = "learning_signal"
    SHUTDOWN = "shutdown"

    @property
    def order(self) -> int:
        """Position in the enum, 0 for the first stage."""
        return _ORDER[self]


_ORDER = {stage: position for position, stage in enumerate(Stage)}

"""A text that a program prints, with what its line means: the rows of which `core/log` makes its table."""

from dataclasses import dataclass
from enum import Enum, auto

from verl_e2e.core.model.outcome import Stage


class LogMark(Enum):
    """What kind of fact a literal announces, in the order in which the literals of a line are read."""

    TRACEBACK = auto()
    DRIVER = auto()
    CONFIG = auto()
    OPENING = auto()
    LORA = auto()
    TOTAL = auto()
    ADAPTER = auto()
    STEP = auto()
    PROGRESS = auto()
    EPOCHS = auto()
    SAMPLE = auto()
    FINAL = auto()
    STAGE = auto()
    RANK = auto()
    CHUNKS = auto()
    BRIDGE = auto()
    WRAPPED = auto()
    SIGN = auto()
    STRATEGY = auto()
    CHECKPOINT = auto()
    LOST = auto()
    REFUSED = auto()
    VARIABLE = auto()
    COMMAND = auto()
    PACKAGE = auto()
    PLANNED = auto()
    NOISE = auto()
    LONE = auto()
    RETRY = auto()
    BARE = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    """A text to look for; one line may hold several.

    `shape` is a regular expression searched in the line's text (empty: the literal alone is enough); its groups are
    what the fact is made of. `stage` is the stage that the line proves, `builds` says that only a process that builds
    the model prints it. `name` is the checkpoint action, the noise's or the sign's name, or the kind of a lone error;
    a `soft` one may be survived. `opens` says that a run prints the line once, while it starts.
    """

    text: str
    mark: LogMark
    stage: Stage | None = None
    shape: str = ""
    name: str = ""
    builds: bool = False
    soft: bool = False
    opens: bool = False


_CONSTRUCTION = frozenset({Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.PEFT, Stage.DDP_WRAP, Stage.FSDP_WRAP})


def stage_literal(text: str, stage: Stage, shape: str = "") -> Literal:
    """A line that proves a stage."""
    return Literal(text, LogMark.STAGE, stage, shape, builds=stage in _CONSTRUCTION)


def opening_literal(text: str, stage: Stage) -> Literal:
    """One that a run prints once, while it starts."""
    return Literal(text, LogMark.STAGE, stage, opens=True)


def lone_literal(text: str, name: str, shape: str = "") -> Literal:
    """An error without a traceback, with its kind."""
    return Literal(text, LogMark.LONE, shape=shape, name=name)


def soft_literal(text: str, name: str, shape: str = "") -> Literal:
    """One that the run may survive."""
    return Literal(text, LogMark.LONE, shape=shape, name=name, soft=True)


def noise_literal(text: str, name: str, shape: str = "") -> Literal:
    """What looks like an error and is none."""
    return Literal(text, LogMark.NOISE, shape=shape, name=name)


def checkpoint_literal(text: str, name: str, stage: Stage, shape: str = "") -> Literal:
    """What became of a checkpoint: saving, saved, loaded, resumed, or scratch where there was none."""
    return Literal(text, LogMark.CHECKPOINT, stage, shape, name)


def sign_literal(text: str, name: str, shape: str = "") -> Literal:
    """What is printed only with a feature at work, under a name of ours."""
    return Literal(text, LogMark.SIGN, shape=shape, name=name)


# A name of ours: rollouts were read from a file, and no engine generated anything.
ROLLOUT_FROM_FILE = "rollout-from-file"

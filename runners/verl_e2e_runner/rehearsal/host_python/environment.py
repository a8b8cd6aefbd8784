"""What a process of a rehearsal needs before PyTorch and transformers are imported."""

import os
import sys
import typing
from pathlib import Path


def set_up():
    """Set the environment, find the table of cells, and supply what an older Python does not have."""
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Megatron-LM's deterministic mode, whose operations a CPU has, asks for it.
    os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
    # transformers imports it where it is, and fails where one of its own dependencies is missing; no cell needs it.
    sys.modules["mistral_common"] = None
    # The table of cells, which the command line reads too, lies next to this folder.
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    if not hasattr(typing, "override"):
        # Python 3.11 has no `typing.override`, which Bridge imports.
        import typing_extensions

        typing.override = typing_extensions.override

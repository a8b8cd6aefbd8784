"""What every process of a rehearsal needs: its environment, before PyTorch is imported, and the documents it leaves."""

import json
import os
import sys
import traceback
import typing
from pathlib import Path

_MOST_LINES = 400


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


def attempted(work):
    """What the work gave, or its error with the last line of the trees before it."""
    try:
        return {"error": None, **work()}
    except Exception as error:
        return {"error": described_error(error)}


def described_error(error):
    """An error as JSON: its type, its words, and the last line of Bridge or Megatron-LM on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if "/megatron/" in frame.filename), frames[-1] if frames else None)
    at = f"megatron/{last.filename.rpartition('/megatron/')[2]}:{last.lineno}" if last else ""
    text = "".join(traceback.format_exception(error)).splitlines()[-_MOST_LINES:]
    return {"type": type(error).__name__, "text": str(error)[:2000], "at": at, "traceback": text}


def put(path, document):
    """Write a JSON file that appears when it is whole."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(document))
    unfinished.rename(path)

"""Documents that a rehearsal leaves: JSON files that appear when they are whole, and errors as JSON."""

import json
import traceback

MOST_LINES = 400


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
    text = "".join(traceback.format_exception(error)).splitlines()[-MOST_LINES:]
    return {"type": type(error).__name__, "text": str(error)[:2000], "at": at, "traceback": text}


def put(path, document):
    """Write a JSON file that appears when it is whole."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(document))
    unfinished.rename(path)

"""Writes the lines of the fingerprints: each at once, into a file of this process, up to a limit.

The folder is the one that VERL_E2E_FINGERPRINTS names. A process that is killed has lost nothing that it wrote.
"""

import json
import math
import os
import threading
import time

# More than this is not written by one process.
MOST_BYTES = 32 << 20

_lock = threading.Lock()
_written = {}


def write(folder, entry):
    """Append one line; false when the limit of this process is reached."""
    pid = os.getpid()
    line = (json.dumps({**_plain(entry), "pid": pid}, allow_nan=False) + "\n").encode()
    with _lock:
        if _written.get(pid, 0) + len(line) > MOST_BYTES:
            return False
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle = os.open(os.path.join(folder, f"{pid}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        _written[pid] = _written.get(pid, 0) + len(line)
    return True


def now():
    """The instant, in seconds of the clock that all processes of a host share."""
    return time.monotonic()


def explained(error):
    """An error as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _plain(value):
    """The value in JSON's terms: NaN and the infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value

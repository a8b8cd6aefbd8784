"""What every process of a rehearsal needs: its environment, before PyTorch is imported, and the documents it leaves.

Which lines of the trees under test it enters, and which functions in which order, is seen by `sys.monitoring` where
Python has it. Before 3.12 a trace function does it, which leaves each function alone as soon as a few calls of it
entered nothing new.
"""

import errno
import json
import os
import re
import sys
import traceback
import typing
from pathlib import Path

_MOST_LINES = 400
# The type of an error that says something of the host alone: it had no process, thread or place for a file left.
EXHAUSTED = "Exhausted"
# What stands in documents for folders of this run: a record is compared with those of other trees, hosts and runs.
PLACES = {}


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
    name, words = type(error).__name__, str(error)
    if name == EXHAUSTED:
        # A class of the code under test.
        name = f"{type(error).__module__}.{name}"
    if is_exhausted(error):
        name, words = EXHAUSTED, f"the host had nothing left for it ({name}: {words})"
    return {"type": name, "text": words[:2000], "at": at, "traceback": text}


def is_exhausted(error):
    """Whether the host had no process, thread or place for a file left."""
    if isinstance(error, OSError):
        return error.errno in (errno.EAGAIN, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
    # Python's words, and those of C++ for a thread that cannot be started.
    return isinstance(error, RuntimeError) and str(error) in ("can't start new thread", os.strerror(errno.EAGAIN))


def put(path, document):
    """Write a JSON file that appears when it is whole."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    text = json.dumps(document)
    for folder in sorted(PLACES, key=len, reverse=True):
        text = re.sub(rf"{re.escape(json.dumps(folder)[1:-1])}(?![\w.-])", lambda _, short=PLACES[folder]: short, text)
    unfinished.write_text(text)
    unfinished.rename(path)


# After so many calls in a row without a new line a function is left alone.
_QUIET_CALLS = 50
# The number by which `sys.monitoring` tells tools apart: the last one, which no profiler or debugger takes.
_TOOL = 5


class Lines:
    """The lines entered since `start`, by path; `roots` are folders, with what stands for each in the record."""

    def __init__(self, roots):
        self.roots = {f"{root}/": short for root, short in roots.items()}
        self.found, self.functions = {}, {}
        self._codes = {}

    def start(self):
        if hasattr(sys, "monitoring"):
            self._start_monitoring()
        else:
            sys.settrace(self._called)

    def stop(self):
        if hasattr(sys, "monitoring"):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)
        else:
            sys.settrace(None)

    def document(self):
        """The lines as ranges by path, and the functions in the order in which they were entered."""
        return {
            "lines": {path: ranges(sorted(found)) for path, found in sorted(self.found.items())},
            "functions": list(self.functions),
        }

    def _lines_of(self, code):
        """The set for the code's lines; None where it is not one of the trees'."""
        root = next((root for root in self.roots if code.co_filename.startswith(root)), None)
        if root is None:
            return None
        path = self.roots[root] + code.co_filename[len(root) :]
        self.functions.setdefault(f"{path}:{code.co_qualname}")
        return self.found.setdefault(path, set())

    def _called(self, frame, _event, _value):
        code = frame.f_code
        state = self._codes.get(code)
        if state is None:
            found = self._lines_of(code)
            state = self._codes[code] = [found, set() if found is not None else None, 0]
        found, own, quiet = state
        if found is None:
            return None
        own.add(code.co_firstlineno)
        found.add(code.co_firstlineno)
        if quiet > _QUIET_CALLS:
            return None
        known = len(own)

        def entered(frame, event, _value):
            if event == "line":
                own.add(frame.f_lineno)
                found.add(frame.f_lineno)
            elif event == "return":
                state[2] = state[2] + 1 if len(own) == known else 0
            return entered

        return entered

    def _start_monitoring(self):
        monitoring, tool = sys.monitoring, _TOOL
        monitoring.use_tool_id(tool, "verl-e2e-rehearsal")
        # What an earlier record in this process, or in the one that it was forked from, has seen counts again.
        monitoring.restart_events()

        def started(code, _offset):
            found = self._lines_of(code)
            if found is not None:
                found.add(code.co_firstlineno)
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
            return monitoring.DISABLE

        def ran(code, line):
            self._lines_of(code).add(line)
            return monitoring.DISABLE

        monitoring.register_callback(tool, monitoring.events.PY_START, started)
        monitoring.register_callback(tool, monitoring.events.LINE, ran)
        monitoring.set_events(tool, monitoring.events.PY_START)


def ranges(numbers):
    """Sorted numbers as pairs of a first and a last one."""
    found = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found

"""Which lines of the trees under test a process enters, and which functions in which order.

`sys.monitoring` does it where Python has it; before 3.12 a trace function that leaves each function alone as soon as
a few calls of it entered nothing new.
"""

import sys

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

"""Execution record: which functions of the trees under test ran in this process, and which lines of changed files.

`sitecustomize` starts it where VERL_E2E_EXECUTED names a file of the runner: the folder for the records, the folders
of the trees, and the files that the change touches. Each process that runs code of the trees writes a file of its
own, one JSON array a line, each written at once, so that a process that is killed keeps what was seen up to then:

    ["process", pid, python, title, rank, problem, seconds]     first
    ["title", title, rank, seconds]                             what it calls itself later
    ["function", path, line, qualified name, seconds]           entered for the first time
    ["module", path, seconds]                                   imported, in the first of the trees only
    ["line", path, line, seconds]                               run for the first time, in changed files only
    ["full", seconds]                                           the last one: nothing more is recorded

The name of a file ends in `.lost` where an entry could not be written. `seconds` are those of the monotonic clock.
The body of a module or of a class is not a function. What torch.compile traces through is not run by Python, but its
operations are: the tracer is watched, and what it goes through counts. An imported module is listed because its body
may be all that a run has of a file, and no one can follow each import by the sources alone.
"""

import _thread
import os
import sys
import time

MOST_BYTES = 8 << 20
# The end of the name of a file that misses entries because they could not be written.
LOST = ".lost"
_BEFORE = "entries before this one could not be written"
TITLE_S = 1.0
# The others are named for a debugger, coverage, a profiler and an optimizer.
TOOLS = (3, 4)
_WATCHED = ("megatron.bridge", "megatron.core")

monitoring = getattr(sys, "monitoring", None)
DISABLE = getattr(monitoring, "DISABLE", None)
# Where torch.compile's tracer says which line it goes through, and how it names the rest of a function that it divides.
_TRACER = "/torch/_dynamo/symbolic_convert.py"
_TRACED_LINE = "starts_line"
_REST = "torch_dynamo_resume_in_"
_MODULE = "<module>"
_FUNCTION = 0x1  # inspect.CO_OPTIMIZED, which the bodies of modules and classes do not have


class _File:
    """The record of this process, made when something is written; a forked child makes one of its own."""

    def __init__(self, folder):
        self._folder = folder
        self.begin_again()

    def begin_again(self):
        self._lock = _thread.allocate_lock()
        self._pid = os.getpid()
        self._handle = -1
        self._written = 0
        self._title = None
        self._titled = 0.0
        self._path = ""
        self._lost = False

    def is_of_this_process(self):
        return self._pid == os.getpid()

    def write(self, *entry, problem=""):
        """Append an entry, and before it what the process is called now, if that is new."""
        now = time.monotonic()
        try:
            with self._lock:
                if self._handle < 0:
                    path = os.path.join(self._folder, f"{time.monotonic_ns():020d}-{self._pid}.jsonl")
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    self._handle = os.open(path, flags, 0o600)
                    self._path = path
                    self._title, self._titled = _title(), now
                    version = ".".join(map(str, sys.version_info[:3]))
                    problem = problem or (_BEFORE if self._lost else "")
                    self._append(["process", self._pid, version, *self._title, problem, now])
                elif now - self._titled >= TITLE_S:
                    self._titled = now
                    title = _title()
                    if title != self._title:
                        self._title = title
                        self._append(["title", *title, now])
            if entry:
                self._append([*entry, now])
        except OSError:
            self._lose()

    def _append(self, entry):
        import json

        # After an entry that was cut short, on a line of its own.
        data = ("\n" * (self._lost and self._written > 0) + json.dumps(entry) + "\n").encode()
        if self._written >= MOST_BYTES:
            return
        self._written += len(data)
        if self._written >= MOST_BYTES:
            data = (json.dumps(["full", entry[-1]]) + "\n").encode()
        if os.write(self._handle, data) < len(data):
            self._lose()

    def _lose(self):
        """Say that entries are missing: a new name of the file needs no space on a disk that is full."""
        self._lost = True
        if self._path and not self._path.endswith(LOST):
            try:
                os.rename(self._path, self._path + LOST)
                self._path += LOST
            except OSError:
                pass


class _Monitor:
    """The callbacks of `sys.monitoring`: each code object and each line calls them once and is then left alone."""

    def __init__(self, file, roots, changed):
        self._file = file
        self._roots = tuple(root.rstrip("/") + "/" for root in roots)
        self._changed = frozenset(changed)
        self._places = {}
        self._starts = {}
        self._seen = set()
        self._tool = None

    def start(self, tool):
        self._tool = tool
        monitoring.use_tool_id(tool, "verl-e2e")
        monitoring.register_callback(tool, monitoring.events.PY_START, self.entered)
        monitoring.register_callback(tool, monitoring.events.LINE, self.line_ran)
        monitoring.set_events(tool, monitoring.events.PY_START)
        os.register_at_fork(after_in_child=self.forked)

    def forked(self):
        """Nothing has run in this process yet, whatever its parent ran."""
        try:
            self._file.begin_again()
            self._seen = set()
            monitoring.restart_events()
        except Exception:
            pass

    def entered(self, code, _offset):
        try:
            if code.co_name == _TRACED_LINE and code.co_filename.endswith(_TRACER):
                names = sys._getframe(1).f_locals
                traced = names["self"].f_code
                place = self._place(traced.co_filename)
                if place:
                    self._write_function(traced, place)
                    if place in self._changed:
                        self._write_line(place, names["lineno"])
                return None
            place = self._place(code.co_filename)
            if place:
                if place in self._changed:
                    monitoring.set_local_events(self._tool, code, monitoring.events.LINE)
                self._write_function(code, place)
        except Exception:
            # Still watched: it is noted when it is entered again.
            return None
        return DISABLE

    def line_ran(self, code, line):
        try:
            self._write_line(self._place(code.co_filename), line)
        except Exception:
            return None
        return DISABLE

    def _write_function(self, code, place):
        # A comprehension or the scope of a type parameter has a code object too, `<genexpr>` and the like.
        named = code.co_name[:1] != "<" or code.co_name == "<lambda>"
        if code.co_flags & _FUNCTION and named and not code.co_name.startswith(_REST):
            self._write("function", place, code.co_firstlineno, code.co_qualname)
        elif code.co_name == _MODULE and place.startswith(self._roots[:1]):
            self._write("module", place)
        else:
            self._write()

    def _write_line(self, place, line):
        if place not in self._starts:
            self._starts[place] = _first_lines(place)
        for number in {line, self._starts[place].get(line, line)}:
            self._write("line", place, number)

    def _write(self, *entry):
        if not self._file.is_of_this_process():
            # A library forked without Python's knowledge.
            self.forked()
        if entry not in self._seen:
            self._file.write(*entry)
            self._seen.add(entry)

    def _place(self, file):
        """The path of a file of the trees under test, or that the change touches; empty for any other."""
        place = self._places.get(file)
        if place is None:
            candidates = [file]
            if file[:1] != "<" and (file[:1] != "/" or "/megatron/" in file):
                candidates.append(os.path.realpath(file))
            ours = (path for path in candidates if path.startswith(self._roots) or path in self._changed)
            place = self._places[file] = next(ours, "")
        return place


class _Unrecorded:
    """A finder that finds nothing: it notes that a process which imports a tree under test is not recorded, and why."""

    def __init__(self, file, problem):
        self._file = file
        self._problem = problem
        self._noted = False

    def find_spec(self, name, _path=None, _target=None):
        # It stays on the list: Python is going through it, and would skip the next finder.
        if name in _WATCHED and not self._noted:
            try:
                self._noted = True
                self._file.write(problem=self._problem)
            except Exception:
                pass


def begin(settings):
    """Record from now on as the runner's file says."""
    import json

    with open(settings, encoding="utf-8") as opened:
        wanted = json.load(opened)
    file = _File(wanted["folder"])
    if monitoring is None:
        sys.meta_path.insert(0, _Unrecorded(file, "it has no sys.monitoring, which came with Python 3.12"))
        return
    tool = next((number for number in TOOLS if monitoring.get_tool(number) is None), None)
    if tool is None:
        sys.meta_path.insert(0, _Unrecorded(file, "other tools use sys.monitoring, and no id of a tool is free"))
        return
    _Monitor(file, wanted["roots"], wanted["changed"]).start(tool)


def _first_lines(path):
    """For each further line of a statement, or of its head, the line that the statement begins in."""
    import ast

    first = {}
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return first
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):
            inner = getattr(node, "body", None) or [case.pattern for case in getattr(node, "cases", ())]
            last = node.end_lineno
            if inner:
                last = min(item.lineno for item in [inner[0], *getattr(inner[0], "decorator_list", ())]) - 1
            first.update(dict.fromkeys(range(node.lineno + 1, last + 1), node.lineno))
    return first


def _title():
    """What the process calls itself, without arguments and names of methods, and its rank where it has one."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
    except OSError:
        words = []
    first, *rest = words or [""]
    if "::" in first:
        # Ray: `ray::NAME:Class.method`, the name of an actor being optional and often random.
        kind, _, name = first.partition("::")
        name = name.partition("(")[0].partition(" ")[0].rpartition(":")[2].partition(".")[0]
        title = f"{kind}::{name}"
    else:
        # The module or the script among the arguments of an interpreter.
        title, words = os.path.basename(first), iter(rest)
        for word in words:
            if word in ("-X", "-W"):
                next(words, "")
            elif word == "-" or word in ("-m", "-c") or not word.startswith("-"):
                title += f" {os.path.basename(word)}" + (f" {next(words, '')}" if word == "-m" else "")
                break
    return title[:200], os.environ.get("RANK", "")[:20]

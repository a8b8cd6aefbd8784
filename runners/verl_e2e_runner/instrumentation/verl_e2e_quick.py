"""Quicker imports: what the packages of a run do again and again at import is done less often, with the same result.

`sitecustomize` starts it where VERL_E2E_QUICK names a file of the run. Three parts; each does nothing where this Python
does not have what it needs:

- The frames of Python's own importer have no module. `inspect` goes through all of `sys.modules` to find that out, and
  PyTorch asks it for each operator that a package registers. `inspect` has a table of known files: they are put there.
- `importlib.metadata.packages_distributions` reads the file list of every installed package. The first process of the
  run writes its answer into the file, and the others with the same `sys.path` take it from there.
- While modules are imported, the garbage collector looks at all objects hundreds of times and finds next to nothing.
  Until the outermost import has ended, it runs less often.
"""

import contextlib
import gc
import os
import sys
from _thread import get_ident

# Not none at all: a module that is a whole program must not fill the memory.
ALLOCATIONS = 200_000
_FROZEN = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
# Named as Python's own importer is, whose frames tracebacks and warnings leave out.
_AROUND = """
def _find_and_load(name, import_):
    if not begin():
        return load(name, import_)
    try:
        return load(name, import_)
    finally:
        end()
"""


def begin(file):
    """Begin with all three; `file` is where the run's answer about installed packages lies."""
    import verl_e2e_finder

    changes = {"inspect": _know_frozen, "importlib.metadata": lambda module: _remember(module, file)}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    late = {name: change for name, change in changes.items() if name not in sys.modules}
    verl_e2e_finder.watch_imports(late, lambda name, spec: _change_when_loaded(spec, late[name]))
    _collect_less()


def _change_when_loaded(spec, change):
    load = getattr(spec.loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module):
        load(module)
        with contextlib.suppress(Exception):
            change(module)

    spec.loader.exec_module = exec_module


def _know_frozen(inspect):
    for name in _FROZEN:
        # The name of no module, as which `inspect.getmodule` takes it.
        inspect.modulesbyfile.setdefault(name, name)


def _remember(metadata, file):
    """Have `packages_distributions` ask the file first."""
    import functools

    original = metadata.packages_distributions

    @functools.wraps(original)
    def packages_distributions():
        found = _read(file)
        if found is None:
            found = original()
            _write(file, found)
        return found

    metadata.packages_distributions = packages_distributions


def _key():
    return [sys.version, *sys.path]


def _read(file):
    import json

    try:
        with open(file, encoding="utf-8") as opened:
            written = json.load(opened)
        return written["found"] if written["key"] == _key() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file, found):
    import json

    part = f"{file}.{os.getpid()}"
    try:
        with open(part, "w", encoding="utf-8") as opened:
            json.dump({"key": _key(), "found": found}, opened)
        os.replace(part, file)
    except (OSError, ValueError, TypeError):
        pass


def _collect_less():
    """Put ours around the function that Python calls for every module that is not there yet."""
    import _frozen_importlib

    window = _Window(_frozen_importlib)
    names = {"load": _frozen_importlib._find_and_load, "begin": window.begin, "end": window.end}
    exec(compile(_AROUND, _FROZEN[0], "exec"), names)
    window.ours = _frozen_importlib._find_and_load = names["_find_and_load"]


class _Window:
    """The outermost import of the main thread, during which the collector runs less often."""

    def __init__(self, importer):
        self.ours = None
        self._importer = importer
        self._original = importer._find_and_load
        self._thread = get_ident()
        self._open = False
        self._usual = ()

    def begin(self):
        """Whether this import is the outermost one; then the window is open."""
        if self._open or get_ident() != self._thread:
            return False
        usual = gc.get_threshold()
        # A program that asks for something else than Python's own setting gets it.
        if not 0 < usual[0] < ALLOCATIONS:
            return False
        self._usual = usual
        self._open = True
        # The imports inside of it need no frame of ours.
        self._importer._find_and_load = self._original
        gc.set_threshold(ALLOCATIONS, *usual[1:])
        return True

    def end(self):
        """Close it; a threshold that a module set meanwhile stays."""
        self._open = False
        self._importer._find_and_load = self.ours
        if gc.get_threshold()[0] == ALLOCATIONS:
            gc.set_threshold(*self._usual)

"""Import instrumentation: says, from inside every Python process of a run, where the modules under test came from.

The runner puts this folder first on PYTHONPATH, so Python imports this file at start-up in the driver, in
every Ray worker and in every spawned engine process. On the first import of a watched module it appends one
JSON line to the file that VERL_E2E_IMPORTS names. It imports nothing heavy, swallows its own faults, and then
hands over to the `sitecustomize` that it hides, the image's own.

VERL_E2E_EXECUTED, where it is set, starts the execution record of `verl_e2e_executed`.

VERL_E2E_PATH holds the PYTHONPATH that the runner asked for. A wrapper may put folders of its own before it
(verl's puts a baked-in Megatron-LM there); the instrumentation moves the asked-for entries back to the front.
"""

import os
import sys

_WATCHED = ("megatron.bridge", "megatron.core", "verl", "skyrl")


# Ray sets one of the first two in the processes that it starts, not in drivers. The last says that the cluster is
# not the run's own: what others hold there they may give back, and what waits may be theirs.
_NOT_WATCHED = ("RAY_RAYLET_PID", "RAY_JOB_ID", "VERL_E2E_SHARED_RAY")


def _watch_imports(names, observe):
    """Call `observe(name, spec)` whenever one of the modules is found; a fault of it never reaches the import."""
    sys.meta_path.insert(0, _Finder(names, observe))


class _Finder:
    """Finds nothing itself: it lets the others find, and shows what they found."""

    def __init__(self, names, observe):
        self._names = names
        self._observe = observe
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self._names or name in self._busy:
            return None
        self._busy.add(name)
        try:
            others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._busy.discard(name)
        try:
            if spec is not None:
                self._observe(name, spec)
        except Exception:
            pass
        return spec


def _witness(record):
    """Has the loader of a module report where it was found."""

    def observe(name, spec):
        load = getattr(spec.loader, "exec_module", None)
        if load is None or spec.origin is None:
            report(name, next(iter(spec.submodule_search_locations or []), ""))
            return

        def exec_module(module):
            report(name, spec.origin)
            return load(module)

        spec.loader.exec_module = exec_module

    def report(name, file):
        try:
            import json

            line = {"module": name, "file": os.path.realpath(file), "role": "run", "pid": os.getpid()}
            line["process"] = _process_name()
            handle = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, (json.dumps(line) + "\n").encode())
            finally:
                os.close(handle)
        except Exception:
            pass

    return observe


def _process_name():
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read(400).split(b"\0")
        return b" ".join(word for word in words if word).decode("utf-8", "replace").strip()[:160]
    except Exception:
        return " ".join(getattr(sys, "argv", [])[:3])[:160]


def _watch_demands(*_):
    import verl_e2e_demands

    verl_e2e_demands.watch()


def _chain():
    """Run the sitecustomize that this file hides, exactly as Python would have without us."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    if os.environ.get("VERL_E2E_PATH"):
        asked = [entry for entry in os.environ["VERL_E2E_PATH"].split(os.pathsep) if entry in sys.path]
        sys.path[:] = dict.fromkeys([*asked, *sys.path])
    if os.environ.get("VERL_E2E_IMPORTS"):
        _watch_imports(_WATCHED, _witness(os.environ["VERL_E2E_IMPORTS"]))
        if not any(os.environ.get(name) for name in _NOT_WATCHED):
            _watch_imports(("ray",), _watch_demands)
except Exception:
    pass

try:
    if os.environ.get("VERL_E2E_EXECUTED"):
        import verl_e2e_executed

        verl_e2e_executed.begin(os.environ["VERL_E2E_EXECUTED"])
except Exception:
    pass

try:
    if os.environ.get("VERL_E2E_FINGERPRINTS"):
        import verl_e2e_fingerprints

        verl_e2e_fingerprints.watch(os.environ["VERL_E2E_FINGERPRINTS"], _watch_imports)
except Exception:
    pass

_chain()

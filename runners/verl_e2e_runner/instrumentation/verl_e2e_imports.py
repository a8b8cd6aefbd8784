"""Imports the modules under proof and writes where each came from: `python3 -m verl_e2e_imports ROLE FILE`.

ROLE is `driver` (this process) or `ray_worker` (a remote function of a private local Ray, or of the cluster at
RAY_ADDRESS, under the runtime environment that VERL_E2E_RUNTIME_ENV holds as JSON). FILE gets one JSON line for
each module, the driver's as soon as it is known: module, file, role, pid, process, and with a failed import the
error, the root error, the name of a missing module, the frame that raised, and what the root error says of the import:
the importing file, the module and the name that are missing, the module's file, and the files of all frames.

`python3 -m verl_e2e_imports ask` answers about this Python without importing anything of the stack. It reads
`{"locate": [...], "packages": [...], "versions": [...], "hand": [...]}` on stdin and prints one JSON object: where each
module would be imported from (null: nowhere), which packages are missing, the versions of the installed distributions,
those that lie below the `hand` folders, and the version of the interpreter.
"""

import json
import os
import sys
from importlib.machinery import PathFinder

ORDER = ("megatron.core", "megatron.bridge", os.environ.get("VERL_E2E_CONSUMER", "verl"))


def prove(role, path, modules):
    """Import the modules one by one, a line for each (appended to `path` at once if given); a failure ends it."""
    import importlib
    import traceback

    def root_of(error):
        seen = set()
        while id(error) not in seen:
            seen.add(id(error))
            deeper = error.__cause__ or error.__context__
            if deeper is None:
                return error
            error = deeper
        return error

    def frames_of(error):
        frames = traceback.extract_tb(error.__traceback__)
        return [frame for frame in frames if "importlib" not in frame.filename]

    def missing(error):
        return error.name if isinstance(error, ModuleNotFoundError) else None

    def failure(error):
        root = root_of(error)
        frames = frames_of(root)
        files = [os.path.realpath(frame.filename) for frame in (*frames_of(error), *frames)]
        asked_module, asked_name, asked_file = asked_for(root)
        return {
            "error": f"{type(error).__name__}: {error}",
            "root": f"{type(root).__name__}: {root}",
            "root_missing": missing(root),
            "missing": missing(error),
            "is_import_error": isinstance(error, (ImportError, OSError)),
            "where": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
            "importer": os.path.realpath(frames[-1].filename) if frames else "",
            "asked_module": asked_module,
            "asked_name": asked_name,
            "asked_file": os.path.realpath(asked_file) if asked_file else "",
            "files": list(dict.fromkeys(files))[-100:],
        }

    lines = []
    for name in modules:
        line = {"module": name, "file": "", "role": role, "pid": os.getpid(), "process": role}
        try:
            module = importlib.import_module(name)
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
            line["file"] = os.path.realpath(file)
        except BaseException as error:
            line.update(failure(error))
        lines.append(line)
        if path:
            write([line], path)
        if "error" in line:
            break
    return lines


def asked_for(root):
    """The missing module, or the one that does not have a name; that name; the module's file. Empty where unknown."""
    import re
    import types

    module = getattr(root, "obj", None)
    if isinstance(root, AttributeError) and isinstance(module, types.ModuleType):
        return module.__name__, root.name, getattr(module, "__file__", None) or ""
    if isinstance(root, ModuleNotFoundError):
        return root.name or "", "", ""
    if isinstance(root, ImportError) and root.path:
        # Python 3.12 has the name as an attribute.
        said = re.match(r"cannot import name '(\w+)'", str(root))
        return root.name or "", getattr(root, "name_from", None) or (said[1] if said else ""), root.path
    return "", "", ""


def write(lines, path):
    """Append the lines as JSON."""
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def locate(name):
    """The file (or the first folder of a namespace package) that `import name` would take, None when nowhere."""
    path = None
    spec = None
    parts = name.split(".")
    finders = [*(finder for finder in sys.meta_path if hasattr(finder, "find_spec")), PathFinder]
    for end in range(1, len(parts) + 1):
        found = (finder.find_spec(".".join(parts[:end]), path) for finder in finders) if end == 1 or path else ()
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return None
        try:
            path = list(spec.submodule_search_locations or [])
        except KeyError:
            # A namespace package below one that was never imported cannot be recalculated, only read as found.
            path = list(getattr(spec.submodule_search_locations, "_path", []))
    file = spec.origin or (path[0] if path else None)
    return file and (os.path.realpath(file) if os.path.exists(file) else file)


def _canonical(name):
    return name.lower().replace("_", "-").replace(".", "-")


def answer_question():
    """Answer the question on stdin."""
    from importlib import metadata

    question = json.load(sys.stdin)
    folders = [os.path.realpath(folder) for folder in question["hand"]]
    wanted = {_canonical(name) for name in question["versions"]}
    versions, by_hand = {}, set()
    for distribution in metadata.distributions():
        name = _canonical(distribution.metadata["Name"] or "")
        if name in wanted and name not in versions:
            versions[name] = distribution.version
            place = os.path.realpath(str(distribution.locate_file("")))
            if any(place == folder or place.startswith(folder + os.sep) for folder in folders):
                by_hand.add(name)
    answer = {
        "located": {name: locate(name) for name in question["locate"]},
        "missing": [name for name in question["packages"] if locate(name) is None],
        "versions": dict(sorted(versions.items())),
        "hand_installed": sorted(by_hand),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    print(json.dumps(answer))


def main():
    """Answer or prove; with a fault of Ray itself leave a line that names no module."""
    if sys.argv[1:] == ["ask"]:
        answer_question()
        return
    role, path = sys.argv[1:3]
    if role == "driver":
        prove(role, path, ORDER)
        return
    try:
        import ray

        settings = json.loads(os.environ.get("VERL_E2E_RUNTIME_ENV", "{}"))
        address = os.environ.get("RAY_ADDRESS", "local")
        extra = {} if address != "local" else {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
        ray.init(address=address, runtime_env=settings, log_to_driver=False, logging_level="ERROR", **extra)
        try:
            # The worker may be on another node of an existing cluster: its lines come back as the result.
            write(ray.get(ray.remote(num_cpus=1, max_retries=0)(prove).remote("ray_worker", None, ORDER)), path)
        finally:
            ray.shutdown()
    except BaseException as error:
        line = {"module": "ray", "file": "", "role": role, "pid": os.getpid(), "process": role}
        line["error"] = line["root"] = f"{type(error).__name__}: {error}"
        line["missing"] = line["root_missing"] = getattr(error, "name", None)
        line["is_import_error"] = isinstance(error, ImportError)
        write([line], path)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Answers about the job's Python without importing anything of the stack: `python3 -m verl_e2e_ask`.

Reads `{"locate": [...], "packages": [...], "versions": [...], "hand": [...]}` on stdin and prints one JSON
object: where each module would be imported from (null: nowhere), which packages are missing, the versions of the
installed distributions, those that lie below the `hand` folders, and the interpreter.
"""

import json
import os
import sys
from importlib import metadata
from importlib.machinery import PathFinder


def locate(name):
    """The file (or the first folder of a namespace package) that `import name` would take, None when nowhere."""
    path = None
    spec = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:end]), path) if end == 1 or path else None
        if spec is None:
            return None
        path = _folders(spec)
    file = spec.origin or (path[0] if path else None)
    return file and (os.path.realpath(file) if os.path.exists(file) else file)


def _folders(spec):
    try:
        return list(spec.submodule_search_locations or [])
    except KeyError:
        # A namespace package below one that was never imported cannot be recalculated, only read as found.
        return list(getattr(spec.submodule_search_locations, "_path", []))


def _find(name, path):
    for finder in sys.meta_path:
        if hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return PathFinder.find_spec(name, path)


def _distributions(names, folders):
    versions = {}
    by_hand = set()
    wanted = {_canonical(name) for name in names}
    for distribution in metadata.distributions():
        name = _canonical(distribution.metadata["Name"] or "")
        if name not in wanted or name in versions:
            continue
        versions[name] = distribution.version
        place = os.path.realpath(str(distribution.locate_file("")))
        if any(place == folder or place.startswith(folder + os.sep) for folder in folders):
            by_hand.add(name)
    return versions, by_hand


def _canonical(name):
    return name.lower().replace("_", "-").replace(".", "-")


def main():
    """Answer the question on stdin."""
    question = json.load(sys.stdin)
    folders = [os.path.realpath(folder) for folder in question["hand"]]
    versions, by_hand = _distributions(question["versions"], folders)
    answer = {
        "located": {name: locate(name) for name in question["locate"]},
        "missing": [name for name in question["packages"] if locate(name) is None],
        "versions": dict(sorted(versions.items())),
        "hand_installed": sorted(by_hand),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

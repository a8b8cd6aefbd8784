"""What the files of a Hugging Face checkpoint hold: the tensors that an import starts from, read without Bridge."""

import json
import os
import sys

from verl_e2e_snapshots import Snapshot
from verl_e2e_state import Held, Sample

_INDEX = "model.safetensors.index.json"
_ENDING = ".safetensors"


def write_files(folder, path, header):
    """Take a snapshot of the tensors in the files of a local folder; why not, where there are none."""
    torch = sys.modules["torch"]
    chosen, problem = _files(path)
    total = sum(os.path.getsize(os.path.join(path, file)) for file in chosen)
    sample = Sample(total)
    snapshot = Snapshot(torch, sample)
    snapshot.note(problem)
    try:
        for file, names in sorted(chosen.items()):
            _add_file(snapshot, sample, os.path.join(path, file), names)
    except Exception as error:
        import verl_e2e_lines

        snapshot.note(verl_e2e_lines.explained(error))
    snapshot.close(folder, header)


def _files(path):
    """By file the names of the tensors that are taken from it, None for all of them; a reason where there are none.

    As Bridge does: those of the index where there is one, and otherwise all files of the folder.
    """
    if "safetensors" not in sys.modules:
        return {}, "the library safetensors is not loaded"
    if path is None or not os.path.isdir(path):
        return {}, "the checkpoint is not a local folder"
    index = os.path.join(path, _INDEX)
    if os.path.isfile(index):
        return _files_of_index(index)
    found = {file: None for file in os.listdir(path) if file.endswith(_ENDING)}
    return found, "" if found else "the checkpoint's folder holds no safetensors files"


def _files_of_index(index):
    with open(index, encoding="utf-8") as opened:
        listed = json.load(opened)["weight_map"]
    chosen = {}
    for name, file in listed.items():
        if os.path.isabs(file) or ".." in file.split("/") or not file.endswith(_ENDING):
            return {}, f"the index {_INDEX} names what is not a file of the folder"
        chosen.setdefault(file, set()).add(name)
    return chosen, ""


def _add_file(snapshot, sample, file, names):
    """Each tensor is mapped from the file when it is read, and released before the next."""
    with sys.modules["safetensors"].safe_open(file, framework="pt", device="cpu") as opened:
        # A file is a context with names, not a mapping that could be iterated over.
        for name in opened.keys():  # noqa: SIM118
            if names is None or name in names:
                snapshot.add(Held(name, "parameter", opened.get_tensor(name) if name in sample else None))

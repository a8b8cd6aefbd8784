"""Makes the cells' models and computes what transformers says of them: `python make_models.py REQUEST`.

It runs without the trees, so that no code under test has a part in what later cells, of other commits too, are held
against. What is there already is not made again. REQUEST is a JSON file: the cells' names, the recipes of their
families, the folder of the models, and how many are made at a time.
"""

import json
import os
import sys
from pathlib import Path

import shared

shared.set_up()

import cells
import models
import stand_in
import torch


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    stand_in.install()
    tried, running = set(), 0
    for name in request["cells"]:
        cell = cells.CELLS[name]
        recipe = request["recipes"].get(cell.family)
        folder = models.folder_of(cell, recipe, request["models"])
        # What failed is tried again each time: the cause may have been this host's.
        problem = folder.parent / f"{folder.name}.problem"
        if (folder / "reference.pt").exists() or folder in tried:
            continue
        tried.add(folder)
        problem.unlink(missing_ok=True)
        if running == request["workers"]:
            os.wait()
            running -= 1
        if not os.fork():
            found = shared.attempted(lambda cell=cell, recipe=recipe: made(cell, recipe, request["models"]))
            if found["error"]:
                shared.put(problem, found)
            os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


def made(cell, recipe, work):
    """The model of a cell and its reference."""
    folder = models.make(cell, recipe, work)
    found = {}
    # Where its checkpoints have other names than its class, transformers cannot load them.
    if not recipe["published"] and cell.family not in cells.NO_REFERENCE:
        model = models.reference_model(folder)
        data = models.batch(model.config.get_text_config().vocab_size)
        found = models.reference(model, data, gradient=True)
    torch.save(found, folder / "reference.unfinished")
    (folder / "reference.unfinished").rename(folder / "reference.pt")
    return {}


if __name__ == "__main__":
    main()

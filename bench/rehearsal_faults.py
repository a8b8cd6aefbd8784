"""Draw random edits of Bridge, rehearse each on a CPU, and write down which of them the cells show.

PYTHON bench/rehearsal_faults.py --request FILE --bridge DIR --megatron-lm DIR --out DIR [--edits 300] [--seed 1]
    [--workers 16] [--seeds 5]

PYTHON is that of `make rehearsal-env`; FILE is `models/request.json` of any rehearsal's `--out`, whose recipes and
models are used; the two folders are what PYTHONPATH names: Bridge's `src`, and Megatron-LM. `--out` keeps what is done,
so that the same command goes on after an interruption. The table is `faults.md`.

One process imports everything. An edit of a function's body is put into a fork of it: every function whose code the
edit changes gets the new code. What runs at import time, or in a module that only cells import, needs a tree and a
process of its own. `--apart` gives each edit one; both ways must find the same. Edit 0 changes nothing.

With `--seeds N` nothing is edited: all cells run with N sets of weights, adapters and data, and the largest deviation
that each oracle found is in `bounds.md`.
"""

import argparse
import gc
import importlib
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import types
from pathlib import Path

import rehearsal_edits

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "runners" / "verl_e2e_runner" / "rehearsal" / "host_python"), str(ROOT / "bot")]

import driver  # noqa: E402  (this checkout)

from verl_e2e.core.compare.rehearsal import CellRecord, judge_rehearsal  # noqa: E402

# Of address space: an edit may ask for any amount.
MOST_BYTES = 24 << 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("request", "bridge", "megatron-lm", "out"):
        parser.add_argument(f"--{name}", type=lambda text: Path(text).resolve(), required=True)
    numbers = {"edits": 300, "seed": 1, "workers": os.cpu_count(), "seeds": 0, "limit": 120, "enough": 6}
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--only", default="", help="the cells whose names contain it")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--edit", type=int, help="the edit that is in this process's tree already")
    options = parser.parse_args()
    sys.path[1:1] = [str(options.bridge), str(options.megatron_lm)]
    place = options.out / ("base" if options.edit is None else f"apart/{options.edit}/import")
    place.mkdir(parents=True, exist_ok=True)
    given = json.loads(options.request.read_text())
    request = {
        "run": True,
        "imports": [],
        "faults": None,
        "cells": [name for name in driver.cells.CELLS if options.only in name],
        "recipes": given["recipes"],
        "roots": {str(options.bridge): rehearsal_edits.SHORT, str(options.megatron_lm): "3rdparty/Megatron-LM/"},
        "models": given["models"],
        "out": str(place),
        "workers": options.workers,
        "limit_s": options.limit,
    }
    sweep = Sweep(options, request)
    # They are called in the process that imported everything, when the models are there.
    driver.run_cells, driver.compare_layouts = sweep.run, lambda *_values: None
    (place / "request").write_text(json.dumps(request))
    sys.argv = [sys.argv[0], str(place / "request")]
    driver.main()
    if options.edit is not None and json.loads((place / "import.json").read_text())["error"]:
        sweep.write(options.edit, {"shown": "exception", "by": "import", "tried": ["import"]})


class Sweep:
    """The edits of one seed, and what became of each."""

    def __init__(self, options, request):
        self.options, self.request, self.out = options, request, options.out
        self.run_cells, self.compare_layouts = driver.run_cells, driver.compare_layouts

    def run(self, _tasks, request):
        place = Path(request["out"])
        if self.options.seeds:
            self.run_seeds()
            return
        if self.options.edit is None:
            self.run_all(place)
        if self.options.edit is not None:
            edits = json.loads((self.out / "edits.json").read_text())
            edit = next(edit for edit in edits if edit["number"] == self.options.edit)
            self.read_base(edit["cells"])
            self.rehearse(edit)
            return
        self.read_base(self.request["cells"])
        if not (self.out / "edits.json").exists():
            imports = CellRecord.model_validate_json((place / "import.json").read_bytes())
            asked = self.options.seed, self.options.edits
            edits = rehearsal_edits.drawn(self.options.bridge, imports, self.base, driver.cells.CELLS, *asked)
            (self.out / "edits.json").write_text(json.dumps(edits, indent=1))
        self.run_edits(json.loads((self.out / "edits.json").read_text()))

    def read_base(self, names):
        """The records of cells without the edits, and of those that they agree with, where these ran."""
        names = dict.fromkeys([*names, *(driver.cells.CELLS[name].agrees_with for name in names)])
        files = [self.out / "base" / f"{name}.json" for name in names if name]
        records = [CellRecord.model_validate_json(file.read_bytes()) for file in files if file.exists()]
        self.base = {record.cell: record for record in records if record.error is None}

    def run_all(self, place):
        missing = [name for name in self.request["cells"] if not (place / f"{name}.json").exists()]
        self.run_named(missing, place, self.options.workers)
        for name in missing:
            self.compare_layouts(driver.cells.CELLS[name], place)

    def run_named(self, names, place, workers):
        """Run cells, so many processes at a time; their records go to `place`."""
        tasks = [driver.Task(name, name, place / f"{name}.json") for name in names]
        self.run_cells(tasks, {**self.request, "out": str(place), "workers": workers})

    def run_seeds(self):
        """All cells with other numbers, and the largest deviations."""
        rows = {}
        for seed in range(1, self.options.seeds + 1):
            driver.models.SEED, place = seed, self.out / f"seed-{seed}"
            place.mkdir(exist_ok=True)
            self.request["models"] = str(place / "models")
            self.make_models(place)
            self.run_all(place)
            for name in self.request["cells"]:
                for found in json.loads((place / f"{name}.json").read_text()).get("oracles", ()):
                    rows.setdefault((found["oracle"], name), []).append(float(found["off"]))
        lines = ["| oracle | cell | smallest | largest |", "|---|---|---|---|"]
        ordered = sorted(rows.items(), key=lambda row: (row[0][0], -max(row[1])))
        lines += [f"| {o} | {name} | {min(v):.1e} | {max(v):.1e} |" for (o, name), v in ordered if max(v)]
        (self.out / "bounds.md").write_text("\n".join(lines) + "\n")

    def make_models(self, place):
        """Make the models of the seed that is set, in a process of its own, as a rehearsal does."""
        file = place / "request.json"
        file.write_text(json.dumps(self.request))
        child = os.fork()
        if not child:
            sys.argv = ["make_models.py", str(file)]
            importlib.import_module("make_models").main()
            os._exit(0)
        os.waitpid(child, 0)

    def run_edits(self, edits):
        """So many edits at a time as there are workers; each has a process."""
        waiting = [edit for edit in edits if not (self.out / f"edits/{edit['number']}.json").exists()]
        self.by_path = {}
        for item in gc.get_objects():
            if type(item) is types.FunctionType and item.__code__.co_filename.startswith(str(self.options.bridge)):
                self.by_path.setdefault(item.__code__.co_filename, []).append(item)
        running = 0
        while waiting or running:
            while waiting and running < self.options.workers:
                edit = waiting.pop(0)
                if not os.fork():
                    self.run_edit(edit)
                    os._exit(0)
                running += 1
            os.wait()
            running -= 1
            self.write_table(edits)
        self.write_table(edits)

    def run_edit(self, edit):
        """Put an edit into this process, or into a process of its own, and rehearse it."""
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            if self.options.apart or edit["apart"] or not self.swapped(edit):
                self.run_apart(edit)
            else:
                self.rehearse(edit)
        except Exception as error:
            self.write(edit["number"], {"shown": "", "by": f"the sweep: {error!r}", "tried": []})

    def swapped(self, edit):
        """Give each function that the edit changes its new code; whether that was possible."""
        if not edit["number"]:
            return True
        path = str(self.options.bridge / edit["path"])
        codes, waiting = (
            {},
            [compile(rehearsal_edits.edited(edit, self.options.bridge), path, "exec", dont_inherit=True)],
        )
        while waiting:
            code = waiting.pop()
            codes[code.co_qualname, code.co_firstlineno] = code
            waiting += [item for item in code.co_consts if isinstance(item, types.CodeType)]
        changed = 0
        for function in self.by_path.get(path, ()):
            code = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]
            if code != function.__code__:
                if code.co_freevars != function.__code__.co_freevars:
                    return False
                function.__code__ = code
                changed += 1
        return changed > 0

    def run_apart(self, edit):
        """Rehearse an edit in a tree and a process of its own."""
        tree = self.out / "apart" / str(edit["number"]) / "src"
        shutil.rmtree(tree.parent, ignore_errors=True)
        shutil.copytree(self.options.bridge, tree, copy_function=os.link)
        if edit["number"]:
            text = rehearsal_edits.edited(edit, self.options.bridge)
            (tree / edit["path"]).unlink()
            (tree / edit["path"]).write_text(text)
        given = {**vars(self.options), "bridge": tree, "edit": edit["number"]}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "apart"]
        with (tree.parent / "log").open("w") as log:
            subprocess.run([sys.executable, __file__, *words], stdout=log, stderr=log, check=True)
        shutil.rmtree(tree)

    def rehearse(self, edit):
        """Run the cells that enter the edit's line, other kinds first, until one shows it."""
        place = self.out / "work" / str(edit["number"])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        # Lines need not be recorded again.
        document = {"lines": {}, "functions": []}
        nothing = types.SimpleNamespace(start=lambda: None, stop=lambda: None, document=lambda: document)
        driver.Lines = lambda _roots: nothing
        tried, found = [], {"shown": "", "by": "", "differs": ""}
        for name in edit["cells"]:
            cell = driver.cells.CELLS[name]
            self.run_named([name], place, 1)
            reference = place / f"{cell.agrees_with}.json"
            if cell.agrees_with in self.base and not reference.exists():
                reference.write_text(self.base[cell.agrees_with].model_dump_json())
            self.compare_layouts(cell, place)
            tried.append(name)
            record = CellRecord.model_validate_json((place / f"{name}.json").read_bytes())
            verdict = judge_rehearsal({name: self.base[name]}, {name: record}, ()).cells[1]
            if error := verdict.head_error:
                found |= {"shown": "exception", "by": f"{name}: {error.type}: {error.text[:100]}"}
            elif verdict.newly:
                found |= {"shown": "oracle", "by": f"{name}: {', '.join(item.oracle for item in verdict.newly)}"}
            elif verdict.differences and not found["differs"]:
                found["differs"] = f"{name}: {verdict.differences[0].quantity} {verdict.differences[0].what}"[:160]
            if found["shown"] or (found["differs"] and len(tried) >= self.options.enough):
                break
        if found["differs"] and not found["shown"]:
            found |= {"shown": "difference", "by": found["differs"]}
        self.write(edit["number"], {**found, "tried": tried})
        shutil.rmtree(place)

    def write(self, number, found):
        (self.out / "edits").mkdir(exist_ok=True)
        driver.put(self.out / "edits" / f"{number}.json", found)

    def write_table(self, edits):
        """The table of all edits that are done, and how many of each kind were shown by what."""
        rows, counts = (
            ["| edit | kind | place | becomes | shown | by | cells tried |", "|---|---|---|---|---|---|---|"],
            {},
        )
        for edit in edits[1:]:
            file = self.out / "edits" / f"{edit['number']}.json"
            if file.exists():
                found = json.loads(file.read_text())
                shown = found["shown"] or "survived"
                counts.setdefault(edit["kind"], []).append(shown)
                place = f"{edit['path']}:{edit['line']} {edit['owner']}"
                tried = f"{len(found['tried'])} of {len(edit['cells'])}"
                columns = (edit["number"], edit["kind"], place, edit["text"], shown, found["by"], tried)
                rows.append("| " + " | ".join(" ".join(str(c).split()).replace("|", "/")[:160] for c in columns) + " |")
        words = ("oracle", "exception", "difference", "survived")
        lines = [f"| kind | edits | {' | '.join(words)} |", "|---|---|---|---|---|---|"]
        counts["all"] = list(itertools.chain(*counts.values()))
        for kind, shown in counts.items():
            lines.append(f"| {kind} | {len(shown)} | {' | '.join(str(shown.count(word)) for word in words)} |")
        (self.out / "faults.md").write_text("\n".join([*lines, "", *rows]) + "\n")


if __name__ == "__main__":
    main()

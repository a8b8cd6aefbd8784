"""Runs the cells over one pair of trees: `python driver.py REQUEST`, with both trees on PYTHONPATH.

REQUEST is a JSON file: the cells' names, the recipes of their families, what a consumer imports, the trees' folders,
where the models lie, where records go, and the faults that are tried. The process imports everything once; each cell
and each rank is a fork of it. A record has a name of its own (`CELL.json`) and appears when it is whole. `import.json`
is the record of the imports, `observed.json` what became of the faults.
"""

import contextlib
import getpass
import hashlib
import importlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import time
import typing
import warnings
from pathlib import Path

import shared

shared.set_up()

import cells
import faults
import models
import stand_in
import torch
import transformers
from shared import EXHAUSTED, PLACES, Lines, attempted, described_error, is_exhausted, put, ranges

# Seconds in which a host may get a process free.
_FORK_S = 60.0


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    out = Path(request["out"])
    PLACES.update({request["models"]: "$MODELS", request["out"]: "$OUT"})
    PLACES.update({root: f"${short.rstrip('/')}" for root, short in request["roots"].items()})
    torch.set_num_threads(1)
    before = process_state()
    entered = Lines(request["roots"])
    stand_in.install()
    began = time.monotonic()
    if request["run"]:
        # Without any record of the imports, the trees' code never ran.
        died = {"type": "Died", "text": "the process ended while it imported", "at": "", "traceback": []}
        put(out / "import.json", {"cell": "import", "error": died})
    entered.start()
    record = {"cell": "import", **attempted(lambda: import_all(request["imports"]))}
    entered.stop()
    record |= {"entered": entered.document(), "seconds": round(time.monotonic() - began, 2)}
    after = process_state()
    record["quantities"] = {
        name: after.get(name) for name in {**before, **after} if after.get(name) != before.get(name)
    }
    verl = "by path" if request.get("verl") else "not given"
    record["python"] = ".".join(map(str, sys.version_info[:3]))
    record["libraries"] = {"torch": torch.__version__, "transformers": transformers.__version__, "verl": verl}
    if request["run"]:
        put(out / "import.json", record)
    if record["error"]:
        return
    stand_in.use_cpu()
    logging.disable(logging.INFO)
    # Once for all processes; where it cannot be imported, each cell says why.
    with contextlib.suppress(Exception):
        importlib.import_module("oracles")
    torch.serialization.set_crc32_options(False)
    if request["run"]:
        run_cells([Task(name, name, out / f"{name}.json") for name in request["cells"]], request)
        for name in request["cells"]:
            compare_layouts(cells.CELLS[name], out)
        records = (json.loads((out / f"{name}.json").read_text()) for name in request["cells"])
        if not any(record["error"] and record["error"]["type"] == EXHAUSTED for record in records):
            put(out / "complete.json", {"cells": request["cells"]})
    if request["faults"]:

        def run(tasks, until):
            run_cells([Task(*task) for task in tasks], request, until)

        put(out / "observed.json", faults.observe(request, out, run))


def import_all(wanted):
    """Import what a consumer imports, each name by itself, and what the cells need; a finding for each name."""
    found = [imported(**item) for item in wanted]
    # What the cells import themselves they cannot do without.
    importlib.import_module("trainer")
    return {"oracles": found}


def imported(module, attribute, guarded):
    """Whether a consumer finds one name; where it does without the name, its absence is not a failure."""
    name = f"import {module}:{attribute}" if attribute else f"import {module}"
    problem = ""
    try:
        found = importlib.import_module(module)
        if attribute and not hasattr(found, attribute):
            importlib.import_module(f"{module}.{attribute}")
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:2000]
    return {"oracle": name, "passed": not problem or guarded, "off": "inf" if problem else 0.0, "where": problem}


def process_state():
    """What an import can leave in a process besides its modules."""
    handlers = (signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD))
    # The folder of this run is another one for each tree, and its user another one in a cage.
    own, user = str(Path(sys.argv[1]).parent), getpass.getuser()
    return {
        **{
            f"environment/{name}": value.replace(own, "$OWN").replace(user, "$USER")[:500]
            for name, value in sorted(os.environ.items())
        },
        "torch/dtype": str(torch.get_default_dtype()),
        "torch/threads": torch.get_num_threads(),
        "torch/deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch/gradients": torch.is_grad_enabled(),
        "torch/precision": torch.get_float32_matmul_precision(),
        "torch/random": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16],
        "logging": [logging.root.level, len(logging.root.handlers)],
        "warnings": [str(item)[:200] for item in warnings.filters],
        "signals": [getattr(handler, "__qualname__", str(handler)) for handler in handlers],
    }


class Task(typing.NamedTuple):
    """A cell that is to run, in a process group of its own."""

    # Its own name, which is also that of the folder of its work.
    label: str
    cell: str
    # Where its record goes.
    put: Path
    # What its process does first.
    prepare: object = None
    # Seconds of processor time that it may take, or of wall time without any; None: as the request says.
    limit_s: float | None = None


def run_cells(tasks, request, until=None):
    """Run cells, so many processes at a time as there are workers, and end each that takes too long.

    After `until`, a time of the monotonic clock, no further one starts.
    """
    waiting, running = list(tasks), {}
    while waiting or running:
        if until is not None and time.monotonic() > until:
            waiting = []
        while waiting:
            busy, ranks = sum(run.ranks for run in running.values()), cells.CELLS[waiting[0].cell].ranks
            if running and busy + ranks > request["workers"]:
                break
            task = waiting.pop(0)
            try:
                child = fork()
            except OSError as error:
                put(task.put, {"cell": task.cell, "error": described_error(error)})
                continue
            if not child:
                os.setsid()
                run_cell(task, request)
                os._exit(0)
            running[child] = Running(task)
        ended = next((child for child in running if os.waitpid(child, os.WNOHANG)[0]), None)
        late = [child for child, run in running.items() if run.is_late(child, request["limit_s"])]
        for child in [ended] if ended else late[:1]:
            run = running.pop(child)
            task, seconds = run.task, round(time.monotonic() - run.began, 1)
            end_group(child, reap=child != ended)
            if not task.put.exists():
                text = "the cell's process ended without a record" if child == ended else f"no end within {seconds} s"
                error = {"type": "Hang" if child != ended else "Died", "text": text, "at": "", "traceback": []}
                put(task.put, {"cell": task.cell, "error": error, "seconds": seconds})
        if not ended:
            time.sleep(0.02)


def fork():
    """Fork; where the host has no process left, try again for a while."""
    until = time.monotonic() + _FORK_S
    while True:
        try:
            return os.fork()
        except OSError as error:
            if not is_exhausted(error) or time.monotonic() > until:
                raise
            time.sleep(0.5)


class Running:
    """A cell that runs, and what it has taken so far.

    Wall time alone does not say that a cell hangs: on a busy machine every one takes long.
    """

    def __init__(self, task):
        self.task, self.ranks = task, cells.CELLS[task.cell].ranks
        self.began = self.looked = self.moved = time.monotonic()
        self.cpu_s = 0.0

    def is_late(self, leader, usual_s):
        """Whether it took more processor time than it may, or none at all for as long."""
        now, limit_s = time.monotonic(), self.task.limit_s or usual_s
        if now - self.looked < min(2.0, limit_s / 4):
            return False
        self.looked, used = now, processor_time(leader)
        if used > self.cpu_s + 0.02:
            self.cpu_s, self.moved = used, now
        return used > limit_s or now - self.moved > limit_s


def processor_time(leader):
    """Seconds that the processes of a group, and those that they waited for, have computed."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program comes first, in brackets, and may hold anything.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == leader:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def compare_layouts(cell, out):
    """Add to a cell's record whether it agrees with the cell on one rank."""
    import oracles

    mine, other = out / f"{cell.name}.json", out / f"{cell.agrees_with}.json"
    if not cell.agrees_with or not other.exists():
        return
    record, reference = (json.loads(path.read_text()) for path in (mine, other))
    if not record["error"] and not reference["error"]:
        record["oracles"].append(oracles.agreement(record["quantities"], reference["quantities"]))
        put(mine, record)


def end_group(leader, *, reap):
    """End all processes of a cell: writers of checkpoints outlive the rank that started them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    if reap:
        os.waitpid(leader, 0)


def run_cell(task, request):
    """Run a cell's ranks, judge what they gave, and leave the record."""
    began = time.monotonic()
    if task.prepare:
        task.prepare()
    cell = cells.CELLS[task.cell]
    work = Path(request["out"], "work", task.label)
    work.mkdir(parents=True)
    folder = models.folder_of(cell, request["recipes"].get(cell.family), request["models"])
    problem = folder.parent / f"{folder.name}.problem"
    record = {"cell": cell.name}
    if problem.exists():
        record |= {"error": json.loads(problem.read_text())["error"], "no_model": True}
    else:
        record |= attempted(lambda: ran_cell(cell, folder, work, request))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    record["seconds"] = round(time.monotonic() - began, 2)
    record["cpu_s"] = round(children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime, 2)
    record["mib"] = max(children.ru_maxrss, own.ru_maxrss) // 1024
    put(task.put, record)
    shutil.rmtree(work, ignore_errors=True)


def ran_cell(cell, folder, work, request):
    """The quantities of a cell, what the oracles found, and the lines that it entered."""
    import oracles

    errors, documents = run_ranks(cell, folder, work, request, again=False)
    if not errors and cell.resumed:
        errors, resumed = run_ranks(cell.loading, folder, work, request, again=True)
        documents += resumed
    paths, functions = {}, {}
    for document in documents:
        functions |= dict.fromkeys(document["functions"])
        for path, found in document["lines"].items():
            paths.setdefault(path, set()).update(line for first, last in found for line in range(first, last + 1))
    entered = {
        "lines": {path: ranges(sorted(found)) for path, found in sorted(paths.items())},
        "functions": list(functions),
    }
    if errors:
        return {"error": errors[0], "entered": entered}
    results = [torch.load(work / f"{rank}.pt") for rank in range(cell.ranks)]
    if cell.resumed:
        for rank, result in enumerate(results[: cell.loading.ranks]):
            again = torch.load(work / f"{rank}-resumed.pt")
            for kind in ("values", "tensors"):
                result[kind] |= {n: v for n, v in again[kind].items() if n.startswith(("loaded/", "resumed/"))}
    reference = torch.load(folder / "reference.pt")
    case = oracles.Case(cell, folder, results, reference, request.get("verl", ""))
    return {"oracles": oracles.judged(case), "quantities": quantities(results), "entered": entered}


def run_ranks(cell, folder, work, request, *, again):
    """Run all ranks to their end; their errors, the likely cause first, and the lines that each entered."""
    children, name = [], "resumed" if again else "ran"
    for rank in range(cell.ranks):
        child = fork()
        if not child:
            rank_process(cell, folder, work, rank, request, again=again)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    files = [work / f"{rank}-{name}.json" for rank in range(cell.ranks)]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    errors = [rank["error"] for rank in found if rank["error"]]
    if len(found) < cell.ranks:
        errors.append({"type": "Died", "text": "a rank ended without a word", "at": "", "traceback": []})
    # When a rank dies its peers say that the connection closed: that is not the cause.
    errors.sort(key=lambda error: "onnection" in error["text"] or "gloo" in error["text"].lower())
    return errors, [rank["entered"] for rank in found]


def rank_process(cell, folder, work, rank, request, *, again):
    """One rank: its result as a file, its lines and its error as another."""
    import trainer

    name = "resumed" if again else "ran"
    sys.stdout = sys.stderr = open(work / f"{rank}-{name}.log", "w")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    entered = Lines(request["roots"])
    entered.start()
    store = torch.distributed.FileStore(str(work / f"store-{name}"), cell.ranks)
    found = attempted(lambda: trainer.run_rank(cell, folder, rank, store, work, again) or {})
    entered.stop()
    put(work / f"{rank}-{name}.json", {"error": found["error"], "entered": entered.document()})


def quantities(results):
    """Every value and every tensor of every rank, tensors as what is enough to compare them; equal exports once."""
    found = {}
    for number, result in enumerate(results):
        for name, value in result["values"].items():
            found[f"{name}@{number}"] = value
        for name, tensor in result["tensors"].items():
            if not number or not any(part in name for part in ("/export/", "/base/", "/adapters/")):
                found[f"{name}@{number}"] = summary(tensor)
    return found


def summary(tensor):
    """A tensor as JSON: its shape, a digest of its bits, its norm, and its products with a few random signs."""
    plain = tensor.detach().contiguous()
    content = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    flat = plain.double().flatten()
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "digest": hashlib.sha256(content).hexdigest()[:16],
        "norm": finite(float(flat.norm())),
        "sketch": [finite(value) for value in (flat @ _signs(flat.numel())).tolist()],
    }


def finite(value):
    """A number that JSON has; None for one that it does not have."""
    return value if abs(value) < float("inf") else None


_SIGNS = torch.empty(0, 6, dtype=torch.float64)


def _signs(count):
    """Random signs for so many numbers: the first of them are the same for every count."""
    global _SIGNS  # noqa: PLW0603
    if count > len(_SIGNS):
        generator = torch.Generator().manual_seed(6)
        drawn = torch.randint(0, 2, (1 << count.bit_length(), 6), generator=generator, dtype=torch.int8)
        _SIGNS = drawn.double() * 2 - 1
    return _SIGNS[:count]


if __name__ == "__main__":
    main()

"""Runs the cells over one pair of trees: `python driver.py REQUEST`, with both trees on PYTHONPATH.

REQUEST is a JSON file: the cells' names, the recipes of their families, the trees' folders, where models are kept and
where records go. The process imports everything once; each cell and each rank is a fork of it. A record has a name of
its own (`CELL.json`) and appears when it is whole. `import.json` is the record of the imports.
"""

import contextlib
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
import traceback
import typing
from pathlib import Path

os.environ |= {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# Megatron-LM's deterministic mode, whose operations a CPU has, asks for it.
os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
# transformers imports it where it is, and fails where one of its own dependencies is missing; no cell needs it.
sys.modules["mistral_common"] = None

# The table of cells, which the command line reads too, lies next to this folder.
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import torch
import typing_extensions

if not hasattr(typing, "override"):
    # Python 3.11 has no `typing.override`, which Bridge imports.
    typing.override = typing_extensions.override

import cells
import lines
import models
import stand_in
import transformers

# What verl imports of Bridge and of Megatron-LM for training with it.
IMPORTED = (
    "megatron.bridge:AutoBridge",
    "megatron.bridge.peft.lora:LoRA",
    "megatron.bridge.peft.canonical_lora:CanonicalLoRA",
    "megatron.bridge.peft.dora:DoRA",
    "megatron.bridge.models.conversion.param_mapping:AutoMapping",
    "megatron.core.distributed:finalize_model_grads",
    "megatron.core.optimizer:get_megatron_optimizer",
    "megatron.core.pipeline_parallel:get_forward_backward_func",
    "megatron.core.dist_checkpointing:save",
)
# Further names that only newer ones have: whether they are there is a quantity.
NEWER = (
    "megatron.bridge.peft.utils:create_peft",
    "megatron.bridge.peft.utils:create_peft_hook",
    "megatron.bridge.peft.utils:load_peft_adapter_checkpoint",
    "megatron.bridge.training.utils.config_utils:create_ddp_config",
    "megatron.bridge.training.utils.train_utils:make_value_model",
    "megatron.bridge.training.checkpointing:apply_peft_adapter_filter_to_state_dict",
    "megatron.bridge.models.gpt_provider:modelopt_transformer_layer_spec",
    "megatron.bridge.models.conversion.model_bridge:_megatron_local_name_to_global",
)
MOST_LINES = 400


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    entered = lines.Lines(request["roots"])
    stand_in.install()
    began = time.monotonic()
    entered.start()
    record = {"cell": "import", **attempted(import_all)}
    entered.stop()
    record |= {"entered": entered.document(), "seconds": round(time.monotonic() - began, 2)}
    record["python"] = ".".join(map(str, sys.version_info[:3]))
    record["libraries"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    record["libraries"]["verl"] = "by path" if request.get("verl") else "not given"
    put(out / "import.json", record)
    if record["error"]:
        return
    stand_in.use_cpu()
    logging.disable(logging.INFO)
    # Once for all processes; where one cannot be imported, each cell says why.
    with contextlib.suppress(Exception):
        importlib.import_module("trainer")
        importlib.import_module("oracles")
    torch.serialization.set_crc32_options(False)
    prepare(request)
    run_cells(request, out)
    for name in request["cells"]:
        compare_layouts(cells.CELLS[name], out)
    put(out / "complete.json", {"cells": request["cells"]})


def import_all():
    """Import what a consumer imports; which of the newer names there are."""
    found = {}
    for name in IMPORTED:
        module, _, attribute = name.partition(":")
        getattr(importlib.import_module(module), attribute)
    for name in NEWER:
        module, _, attribute = name.partition(":")
        try:
            getattr(importlib.import_module(module), attribute)
            found[name] = True
        except (ImportError, AttributeError) as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return {"values": found}


def prepare(request):
    """Make the models that are not there yet and compute what transformers says of them, one after the other."""
    for name in request["cells"]:
        cell = cells.CELLS[name]
        recipe = request["recipes"].get(cell.family)
        folder = models.folder_of(cell, recipe, request["models"])
        if (folder / "reference.pt").exists() or (folder.parent / f"{folder.name}.problem").exists():
            continue
        child = os.fork()
        if not child:
            found = attempted(lambda cell=cell, recipe=recipe: prepared(cell, recipe, request["models"]))
            if found["error"]:
                put(folder.parent / f"{folder.name}.problem", found)
            os._exit(0)
        os.waitpid(child, 0)


def prepared(cell, recipe, work):
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


def attempted(work):
    """What the work gave, or its error with the last line of the trees before it."""
    try:
        return {"error": None, **work()}
    except Exception as error:
        return {"error": described_error(error)}


def described_error(error):
    """An error as JSON: its type, its words, and the last line of Bridge or Megatron-LM on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if "/megatron/" in frame.filename), frames[-1] if frames else None)
    at = f"megatron/{last.filename.rpartition('/megatron/')[2]}:{last.lineno}" if last else ""
    text = "".join(traceback.format_exception(error)).splitlines()[-MOST_LINES:]
    return {"type": type(error).__name__, "text": str(error)[:2000], "at": at, "traceback": text}


def put(path, document):
    """Write a JSON file that appears when it is whole."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(document))
    unfinished.rename(path)


def run_cells(request, out):
    """Run all cells, so many processes at a time as there are workers, and end each that takes too long."""
    waiting, running = list(request["cells"]), {}
    while waiting or running:
        while waiting and room(running, cells.CELLS[waiting[0]].ranks, request["workers"]):
            name = waiting.pop(0)
            child = os.fork()
            if not child:
                os.setsid()
                run_cell(name, request, out)
                os._exit(0)
            running[child] = (name, time.monotonic())
        ended = next((child for child in running if os.waitpid(child, os.WNOHANG)[0]), None)
        late = [child for child, (_name, since) in running.items() if time.monotonic() - since > request["limit_s"]]
        for child in [ended] if ended else late[:1]:
            name, since = running.pop(child)
            end_group(child, reap=child != ended)
            if not (out / f"{name}.json").exists():
                seconds = round(time.monotonic() - since, 1)
                text = "the cell's process ended without a record" if child == ended else f"no end within {seconds} s"
                error = {"type": "Hang" if child != ended else "Died", "text": text, "at": "", "traceback": []}
                put(out / f"{name}.json", {"cell": name, "error": error, "seconds": seconds})
        if not ended:
            time.sleep(0.02)


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


def room(running, ranks, workers):
    """Whether a cell of so many ranks may start."""
    busy = sum(cells.CELLS[name].ranks for name, _since in running.values())
    return not running or busy + ranks <= workers


def end_group(leader, *, reap):
    """End all processes of a cell: writers of checkpoints outlive the rank that started them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    if reap:
        os.waitpid(leader, 0)


def run_cell(name, request, out):
    """Run a cell's ranks, judge what they gave, and leave the record."""
    began = time.monotonic()
    cell = cells.CELLS[name]
    work = out / "work" / name
    work.mkdir(parents=True)
    folder = models.folder_of(cell, request["recipes"].get(cell.family), request["models"])
    problem = folder.parent / f"{folder.name}.problem"
    record = {"cell": name}
    if problem.exists():
        record |= {"error": json.loads(problem.read_text())["error"], "no_model": True}
    else:
        record |= attempted(lambda: ran_cell(cell, folder, work, request))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    record["seconds"] = round(time.monotonic() - began, 2)
    record["cpu_s"] = round(children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime, 2)
    record["mib"] = max(children.ru_maxrss, own.ru_maxrss) // 1024
    put(out / f"{name}.json", record)
    shutil.rmtree(work, ignore_errors=True)


def ran_cell(cell, folder, work, request):
    """The quantities of a cell, what the oracles found, and the lines that it entered."""
    import oracles

    errors, documents = run_ranks(cell, folder, work, request, again=False)
    if not errors and cell.resumed:
        errors, resumed = run_ranks(cell.loading, folder, work, request, again=True)
        documents += resumed
    entered = merged_lines(documents)
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
        child = os.fork()
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
    errors.sort(key=lambda error: _is_of_a_peer(error["text"]))
    return errors, [rank["entered"] for rank in found]


def _is_of_a_peer(text):
    return "onnection" in text or "gloo" in text.lower()


def rank_process(cell, folder, work, rank, request, *, again):
    """One rank: its result as a file, its lines and its error as another."""
    import trainer

    name = "resumed" if again else "ran"
    sys.stdout = sys.stderr = open(work / f"{rank}-{name}.log", "w")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    entered = lines.Lines(request["roots"])
    entered.start()
    store = torch.distributed.FileStore(str(work / f"store-{name}"), cell.ranks)
    found = attempted(lambda: trainer.run_rank(cell, folder, rank, store, work, again) or {})
    entered.stop()
    put(work / f"{rank}-{name}.json", {"error": found["error"], "entered": entered.document()})


def merged_lines(documents):
    """The lines of several ranks together, and the functions in the order of the first that has them."""
    paths, functions = {}, {}
    for document in documents:
        functions |= dict.fromkeys(document["functions"])
        for path, found in document["lines"].items():
            paths.setdefault(path, set()).update(line for first, last in found for line in range(first, last + 1))
    return {
        "lines": {path: lines.ranges(sorted(found)) for path, found in sorted(paths.items())},
        "functions": list(functions),
    }


def quantities(results):
    """Every value and every tensor of every rank, tensors as what is enough to compare them; equal exports once."""
    found = {}
    for number, result in enumerate(results):
        for name, value in result["values"].items():
            found[f"{name}@{number}"] = value
        for name, tensor in result["tensors"].items():
            shared = any(part in name for part in ("/export/", "/base/", "/adapters/"))
            if not (shared and number):
                found[f"{name}@{number}"] = summary(tensor)
    return found


def summary(tensor):
    """A tensor as JSON: its shape, a digest of its bits, its norm, and its products with a few random signs."""
    plain = tensor.detach().contiguous()
    digest = hashlib.sha256(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"").hexdigest()[:16]
    flat = plain.double().flatten()
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "digest": digest,
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

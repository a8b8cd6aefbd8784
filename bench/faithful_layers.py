"""How far the rehearsal's stand-in layers are from Transformer Engine's: forward pass and gradients, side by side.

    python bench/faithful_layers.py --layers runners/verl_e2e_runner/rehearsal/host_python --out result.json

Needs a GPU for each rank, Transformer Engine and, for two ranks, megatron.core on PYTHONPATH. Each case builds both
layers with the same arguments, gives them the same weights and inputs, and reports |stand-in - reference| / |reference|
of the norms. Transformer Engine multiplies float32 in TF32, off by about 1e-3; NVIDIA_TF32_OVERRIDE=0 makes cuBLAS
multiply exactly, and is set here unless --tf32 is given. In bfloat16 expect about 4e-3, the rounding of one number.
"""

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import queue
import signal
import socket
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

import torch
from torch import distributed

# For one case, and for all of one number of ranks with what they import.
CASE_S, RANKS_S = 20, 85
# What Megatron-LM reads of a parameter.
ATTRIBUTES = ("dtype", "sequence_parallel", "tensor_model_parallel", "partition_dim", "partition_stride")
ROWS, BATCH, INTO, OUT_OF, HEADS, KEYS, SEEN, SPLITS = 24, 3, 48, 80, 6, 32, 40, (7, 0, 24, 9)
SIZES = {"in_features": INTO, "out_features": OUT_OF}
BIASES = [("", {"bias": False}), (", bias", {}), (", bias returned", {"return_bias": True})]


class Case(NamedTuple):
    """A layer by its class, what it is built with, the shapes of its inputs on one rank, and what follows them."""

    layer: str
    words: str
    options: dict
    inputs: tuple = ((ROWS, BATCH, INTO),)
    then: MappingProxyType | dict = MappingProxyType({})

    def part(self, rank, mode, name=""):
        """Whose numbers a rank draws: its own where the layer cuts them in this mode, else those of the first."""
        cut = name == "weight" or self.options.get("parallel_mode") == mode
        return rank if cut or (not name and self.options.get("sequence_parallel")) else 0


def planned(ranks):
    return [(case, dtype) for case in (alone if ranks == 1 else parallel)(ranks) for dtype in ("float32", "bfloat16")]


def alone(_ranks):
    norms = [(kind, zero) for kind in ("RMSNorm", "LayerNorm") for zero in (False, True)]
    for kind, zero in norms:
        centered, words = {"zero_centered_gamma": zero}, ", zero-centered" * zero
        yield Case(kind, words, {"normalized_shape": INTO, "eps": 1e-5, **centered})
        built = SIZES | centered | {"parallel_mode": "column", "normalization": kind}
        for more, returned in (("", {}), (", bias returned", {"return_bias": True})):
            yield Case("LayerNormLinear", f" {kind}{words}{more}", built | returned)
            output = {"return_layernorm_output": True}
            yield Case("LayerNormLinear", f" {kind}{words}, norm returned{more}", built | returned | output)
    for words, bias in BIASES:
        for mode in ("column", "row", None):
            yield Case("Linear", f" {mode or 'duplicated'}{words}", SIZES | bias | {"parallel_mode": mode})
        built = SIZES | bias | {"num_gemms": len(SPLITS)}
        yield Case("GroupedLinear", words, built, ((sum(SPLITS), INTO),), {"m_splits": list(SPLITS)})
    window = {"window_size": (7, 0)}
    for words, groups, more in (
        ("causal", HEADS, {}),
        ("causal, own scale", HEADS, {"softmax_scale": 0.3}),
        ("causal, grouped heads", HEADS // 3, {}),
        ("causal, window of 7", HEADS, window),
        ("no mask", HEADS, {"attn_mask_type": "no_mask"}),
        ("no mask, window of 7", HEADS, {"attn_mask_type": "no_mask", **window}),
        ("causal, off-by-one softmax", HEADS, {"softmax_type": "off-by-one"}),
        ("causal, learnable softmax", HEADS, {"softmax_type": "learnable"}),
        ("causal, all of these", HEADS // 3, {"softmax_type": "learnable", **window}),
    ):
        built = {"num_attention_heads": HEADS, "kv_channels": KEYS, "num_gqa_groups": groups, "attention_dropout": 0.0}
        shapes = [(SEEN, BATCH, heads, KEYS) for heads in (HEADS, groups, groups)]
        yield Case("DotProductAttention", f" {words}", built | {"attn_mask_type": "causal"} | more, tuple(shapes))


def parallel(ranks):
    for sequence in (False, True):
        shared = SIZES | {"tp_size": ranks, "sequence_parallel": sequence}
        end, column = ", sequence parallel" * sequence, ((ROWS // ranks if sequence else ROWS, BATCH, INTO),)
        for words, bias in BIASES:
            for mode, shapes in (("column", column), ("row", ((ROWS, BATCH, INTO // ranks),))):
                yield Case("Linear", f" {mode}{words}{end}", shared | bias | {"parallel_mode": mode}, shapes)
        for kind in ("RMSNorm", "LayerNorm"):
            built = shared | {"parallel_mode": "column", "normalization": kind}
            yield Case("LayerNormLinear", f" {kind} column{end}", built, column)
            built |= {"return_layernorm_output": True, "return_layernorm_output_gathered": sequence}
            yield Case("LayerNormLinear", f" {kind} column, norm returned{end}", built, column)


def drawn(shape, dtype, *words):
    """Random numbers which depend on the words alone."""
    source = torch.Generator().manual_seed(zlib.crc32(repr(words).encode()))
    return torch.randn(tuple(shape), generator=source).to(dtype)


def computed(layer, case, dtype, rank, device):
    """What a layer gives for a case, the gradients of its inputs, and those of its parameters by name."""
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            mode = "column" if name == "bias" else "none"
            # Drawn flat, so that a difference in shape, which is reported, hides none in numbers.
            values = drawn((weight.numel(),), torch.float32, case.words, name, case.part(rank, mode, name)) / 3
            weight.copy_(values.reshape(weight.shape))
    words = (case.words, case.part(rank, "row"))
    inputs = [drawn(shape, dtype, at, words).to(device).requires_grad_() for at, shape in enumerate(case.inputs)]
    given = [tensor for tensor in flat(layer(*inputs, **case.then)) if tensor.numel()]
    words = (case.words, "given", case.part(rank, "column"))
    probes = [drawn(part.shape, part.dtype, at, words).to(device) for at, part in enumerate(given)]
    torch.autograd.backward(given, probes)
    gradients = {n: torch.zeros_like(w) if w.grad is None else w.grad for n, w in layer.named_parameters()}
    return given, [tensor.grad for tensor in inputs], gradients


def flat(given):
    if given is None or torch.is_tensor(given):
        return [] if given is None else [given]
    return [tensor for part in given for tensor in flat(part)]


def error(ours, theirs):
    """The difference of two tensors by the size of the reference; infinite where only the reference is zero."""
    ours, theirs = (tensor.detach().double().cpu().flatten() for tensor in (ours, theirs))
    apart, size = (ours - theirs).norm().item(), theirs.norm().item()
    return apart / size if size else apart and math.inf


def worst(numbers):
    # What is not a number is worse than every number.
    return max((number for number in numbers if number is not None), key=lambda n: (n != n, n), default=None)


def differences(ours, theirs):
    """How the parameters differ in name and shape, and how in what else Megatron-LM reads of them."""
    ours, theirs = (dict(layer.named_parameters()) for layer in (ours, theirs))
    shapes, marks = [f"one side alone has {name}" for name in sorted(ours.keys() ^ theirs.keys())], []
    for name in sorted(ours.keys() & theirs.keys()):
        for mark in ("shape", *ATTRIBUTES):
            mine, other = (getattr(owner[name], mark, None) for owner in (ours, theirs))
            if mine != other:
                (shapes if mark == "shape" else marks).append(f"{name}.{mark}: {mine} instead of {other}")
    return "; ".join(shapes), "; ".join(marks)


def compare(row, case, rank, groups, packages, device):
    """Fill in the row of a case, as far as it gets."""
    dtype, options, built = getattr(torch, row["dtype"]), dict(case.options), []
    if case.layer != "DotProductAttention":
        options["params_dtype"] = dtype
    for package, group in zip(packages, groups, strict=True):
        built.append(getattr(package, case.layer)(**options, **({"tp_group": group} if "tp_size" in options else {})))
    row["error"], row["attributes"] = differences(*built)
    answers = []
    for layer, place in zip(built, ("cpu", device), strict=True):
        # Megatron-LM's operations put what they receive on the current GPU, which for the stand-in is the CPU.
        on_cpu = mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu"))
        with on_cpu if place == "cpu" else contextlib.nullcontext():
            answers.append(computed(layer, case, dtype, rank, place))
    ours, theirs = answers
    row["weight_gradients"] = {name: error(ours[2][name], theirs[2][name]) for name in ours[2] if name in theirs[2]}
    row["input_gradient"] = worst(map(error, ours[1], theirs[1]))
    if len(ours[0]) != len(theirs[0]):
        raise ValueError(f"the stand-in gives {len(ours[0])} tensors, the reference {len(theirs[0])}")
    row["forward"] = worst(map(error, ours[0], theirs[0]))


def work(rank, ranks, asked, port, answers):
    """One rank: every case in every dtype, an answer each."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    sys.path.insert(0, str(asked.layers))
    ours = theirs = importlib.import_module("layers")
    device, groups, kinds, both = "cpu", (None, None), ("gloo", "gloo"), "gloo"
    if not asked.against_itself:
        torch.cuda.set_device(rank)
        theirs, device = importlib.import_module("transformer_engine.pytorch"), f"cuda:{rank}"
        kinds, both = ("gloo", "nccl"), "cpu:gloo,cuda:nccl"
    if ranks > 1:
        distributed.init_process_group(both, rank=rank, world_size=ranks, timeout=timedelta(seconds=CASE_S))
        groups = [distributed.new_group(list(range(ranks)), backend=kind) for kind in kinds]
        with contextlib.suppress(Exception):
            ours.mappings()  # Imported before a case is timed; a case that needs it says what failed.
    signal.signal(signal.SIGALRM, late)
    for at, (case, dtype) in enumerate(planned(ranks)):
        row = empty(case, dtype, ranks)
        signal.alarm(CASE_S)
        try:
            compare(row, case, rank, groups, (ours, theirs), device)
        except Exception as fault:
            row["error"] = "; ".join(filter(None, [row["error"], f"{type(fault).__name__}: {fault}"[:600]]))
        signal.alarm(0)
        answers.put((at, row))


def late(_number, _frame):
    raise TimeoutError(f"not done in {CASE_S} s")


def empty(case, dtype, ranks):
    row = {"case": case.layer + case.words, "dtype": dtype, "ranks": ranks, "forward": None, "input_gradient": None}
    return row | {"weight_gradients": {}, "error": "", "attributes": ""}


def rows(ranks, asked):
    """The rows of all cases for so many ranks; of each number, that of the worst rank."""
    own, plan = multiprocessing.get_context("spawn"), planned(ranks)
    answers, found = own.Queue(), [[] for _ in plan]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [own.Process(target=work, args=(rank, ranks, asked, port, answers)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    deadline, alive = time.monotonic() + RANKS_S, True
    while alive and min(map(len, found)) < ranks and time.monotonic() < deadline:
        alive = any(worker.is_alive() for worker in workers)
        with contextlib.suppress(queue.Empty):
            while True:
                at, row = answers.get(timeout=1)
                found[at].append(row)
    for worker in workers:
        worker.join(3)
        worker.kill()
    return [merged(empty(*planned_case, ranks), rows_of) for planned_case, rows_of in zip(plan, found, strict=True)]


def merged(row, answers):
    names = sorted({name for answer in answers for name in answer["weight_gradients"]})
    row |= {key: worst(answer[key] for answer in answers) for key in ("forward", "input_gradient")}
    gradients = [answer["weight_gradients"] for answer in answers]
    row["weight_gradients"] = {name: worst(found.get(name) for found in gradients) for name in names}
    for key in ("error", "attributes"):
        row[key] = " / ".join(sorted({answer[key] for answer in answers if answer[key]}))
    if len(answers) < row["ranks"]:
        row["error"] = f"{len(answers)} of {row['ranks']} ranks answered; {row['error']}"
    return row


def table(found):
    print("| case | dtype | ranks | forward | input gradient | weight gradients | error |")
    print("|---|---|---:|---:|---:|---:|---|")
    for row in found:
        numbers = (row["forward"], row["input_gradient"], worst(row["weight_gradients"].values()))
        cells = " | ".join("" if number is None else f"{number:.1e}" for number in numbers)
        fault = " ".join(row["error"].replace("|", "/").split())[:200]
        print(f"| {row['case']} | {row['dtype']} | {row['ranks']} | {cells} | {fault} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=Path, required=True, help="the folder of the stand-in's layers.py")
    parser.add_argument("--out", type=Path, required=True, help="where the rows go, as JSON")
    parser.add_argument("--ranks", type=int, default=2, help="1 leaves out tensor parallelism")
    parser.add_argument("--tf32", action="store_true", help="let cuBLAS multiply float32 in TF32")
    parser.add_argument("--against-itself", action="store_true", help="stand-in against stand-in, on a CPU: zeros")
    asked = parser.parse_args()
    if not asked.tf32:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    found = [row for ranks in sorted({1, asked.ranks}) for row in rows(ranks, asked)]
    # JSON has no word for what is not finite.
    document = json.loads(json.dumps(found), parse_constant=str)
    asked.out.write_text(json.dumps(document, indent=1) + "\n")
    table(found)


if __name__ == "__main__":
    main()

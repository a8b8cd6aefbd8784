"""State fingerprints of small runs, made from values, and short ways to spoil one tensor at one point.

The arithmetic stands in for that of the instrumentation: the same sums, with weights and a hash of its own.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.core.builders import TRAINER
from verl_e2e.core.model.fingerprints import (
    Adapter,
    Adapters,
    Fingerprints,
    HookState,
    Point,
    Ranks,
    Snapshot,
    Tensor,
    TensorKind,
)

Values = tuple[float, ...]
QKV = "decoder.layers.0.self_attention.linear_qkv"
BASE, NORM = f"{QKV}.to_wrap.weight", f"{QKV}.to_wrap.layer_norm_weight"
LORA_A, LORA_B = f"{QKV}.adapter.linear_in.weight", f"{QKV}.adapter.linear_out.weight"
RANK, WIDTH = 4, 6
HF = "model.layers.0.self_attn"
PARTS = ("q_proj", "k_proj", "v_proj")
FUSED, HF_NORM = f"{HF}.qkv_proj.base_layer.weight", "model.layers.0.input_layernorm.weight"
WORKER = 7829


def weights(count: int, seed: str = "places") -> Values:
    """Numbers in [-0.5, 0.5) that a seed alone decides."""
    chosen = Random(seed)
    return tuple(chosen.random() - 0.5 for _ in range(count))


def tensor(name: str, values: Iterable[float], shape: tuple[int, ...] = (), **given: Any) -> Tensor:
    """The fingerprint of these values."""
    held = tuple(values)
    fields: dict[str, Any] = {
        "name": name,
        "shape": shape or (len(held),),
        "dtype": "bfloat16",
        "sum": sum(held),
        "square": sum(value * value for value in held),
        "position": sum(value * weight for value, weight in zip(held, weights(len(held)), strict=True)),
        "bits": hashlib.sha256(struct.pack(f"{len(held)}d", *held)).hexdigest()[:16],
    }
    return Tensor(**(fields | given))


def model(ranks: Ranks = Ranks(), steps: int = 0, role: str = "actor") -> tuple[Tensor, ...]:
    """The parameters of a rank after so many optimizer steps; ranks of one tensor rank hold the same."""
    own = f"{role} {ranks.tensor} {ranks.pipeline}"
    moved = f" after {steps}" if steps else ""
    zero = (0.0,) * (3 * WIDTH * RANK)
    out = weights(len(zero), f"B {own}{moved}") if steps else zero
    split: dict[str, Any] = {"tensor_parallel_dim": 0}
    return (
        tensor(BASE, weights(3 * WIDTH * WIDTH, f"base {own}"), (3 * WIDTH, WIDTH), requires_grad=False, **split),
        tensor(NORM, weights(WIDTH, f"norm {role} {ranks.pipeline}"), requires_grad=False),
        tensor(LORA_A, weights(RANK * WIDTH, f"A {own}{moved}"), (RANK, WIDTH), requires_grad=True, **split),
        tensor(LORA_B, out, (3 * WIDTH, RANK), requires_grad=True, **split),
    )


def optimizer(ranks: Ranks, steps: int, role: str = "actor") -> tuple[Tensor, ...]:
    """Main copies and moments of the adapter after so many steps; a data-parallel rank holds its range."""
    rows = []
    for parameter in model(ranks, steps, role):
        if parameter.requires_grad:
            place = f"[{ranks.data * 8}:{ranks.data * 8 + 8}]"
            for state in ("main", "exp_avg", "exp_avg_sq"):
                values = weights(8, f"{parameter.name} {state} {steps} {ranks} {role}")
                name = f"{parameter.name}/{state}{place}"
                rows.append(tensor(name, values, kind=TensorKind.OPTIMIZER, dtype="float32"))
    return tuple(rows)


def adapters(**changes: Any) -> Adapters:
    """The one adapter of the model as it should be."""
    module: dict[str, Any] = {
        "name": QKV,
        "features_in": WIDTH,
        "features_out": 3 * WIDTH,
        "rank": RANK,
        "parameters": 4 * WIDTH * RANK,
    }
    fields: dict[str, Any] = {"type": "LoRA", "rank": RANK, "targets": ("linear_qkv",), "modules": (Adapter(**module),)}
    return Adapters(**(fields | changes))


def exported(steps: int = 0, *, adapter_only: bool) -> tuple[Tensor, ...]:
    """What an export yields under Hugging Face's names: the parts of the fused projection, or of its adapter."""
    rows = []
    size, shapes = WIDTH * RANK, {"lora_A": (RANK, WIDTH), "lora_B": (WIDTH, RANK)}
    moved = f" after {steps}" if steps else ""
    first = weights(size, f"A actor 0 0{moved}")
    second = weights(3 * size, f"B actor 0 0{moved}") if steps else (0.0,) * (3 * size)
    for index, part in enumerate(PARTS):
        if adapter_only:
            for key, values in (("lora_A", first), ("lora_B", second[index * size : (index + 1) * size])):
                rows.append(tensor(f"base_model.model.{HF}.{part}.{key}.weight", values, shapes[key]))
        else:
            rows.append(tensor(f"{HF}.{part}.weight", weights(WIDTH * WIDTH, f"hf {part}"), (WIDTH, WIDTH)))
    norm = () if adapter_only else (tensor(HF_NORM, weights(WIDTH, "hf norm")),)
    return (*rows, *norm)


def loaded(steps: int = 0, *, adapter_only: bool) -> tuple[Tensor, ...]:
    """What the engine's model holds then: the projections fused, and the adapters that it registered."""
    joined = tuple(value for part in PARTS for value in weights(WIDTH * WIDTH, f"hf {part}"))
    base = (tensor(FUSED, joined, (3 * WIDTH, WIDTH)), tensor(HF_NORM, weights(WIDTH, "hf norm")))
    if not adapter_only:
        return base
    rows = exported(steps, adapter_only=True)
    names = (f"{HF}.qkv_proj.{part}[{index}]" for index in range(len(PARTS)) for part in ("lora_a", "lora_b"))
    return (*base, *(held.model_copy(update={"name": name}) for held, name in zip(rows, names, strict=True)))


@dataclass(frozen=True)
class Taken:
    """The snapshots of a run, with ways to change one thing."""

    snapshots: tuple[Snapshot, ...]

    def document(self, **given: Any) -> Fingerprints:
        """The file of these snapshots."""
        return Fingerprints(snapshots=self.snapshots, **given)

    def with_tensor(
        self, name: str, change: Callable[[Tensor], Tensor | None], *points: Point, **where: Any
    ) -> "Taken":
        """The same with one tensor changed, or taken out, at these points."""

        def changed(snapshot: Snapshot) -> Snapshot:
            if snapshot.point not in points or not _fits(snapshot, where):
                return snapshot
            rows = [change(held) if held.name == name else held for held in snapshot.tensors]
            assert any(held.name == name for held in snapshot.tensors), (name, snapshot.point)
            return snapshot.model_copy(update={"tensors": tuple(row for row in rows if row is not None)})

        made = tuple(map(changed, self.snapshots))
        assert made != self.snapshots, "nothing was changed"
        return replace(self, snapshots=made)

    def with_snapshots(self, change: dict[str, Any], *points: Point, **where: Any) -> "Taken":
        """The same with these fields at these points."""
        made = tuple(
            item.model_copy(update=change) if item.point in points and _fits(item, where) else item
            for item in self.snapshots
        )
        assert made != self.snapshots, "nothing was changed"
        return replace(self, snapshots=made)

    def without(self, *points: Point, **where: Any) -> "Taken":
        """The same without the snapshots at these points."""
        kept = tuple(item for item in self.snapshots if item.point not in points or not _fits(item, where))
        assert kept != self.snapshots, "nothing was left out"
        return replace(self, snapshots=kept)

    def shuffled(self, seed: int) -> "Taken":
        """The same in another order of the ranks' lines at each point."""
        order = list(self.snapshots)
        Random(seed).shuffle(order)
        return replace(self, snapshots=tuple(sorted(order, key=lambda item: item.t_s)))


def _fits(snapshot: Snapshot, where: dict[str, Any]) -> bool:
    own = snapshot.ranks.model_dump() | {name: getattr(snapshot, name) for name in ("phase", "model", "number", "pid")}
    return all(own[key] == value for key, value in where.items())


ONE = (Ranks(),)


def healthy(places: tuple[Ranks, ...] = ONE, phases: tuple[str, ...] = ("train",), steps: int = 2) -> Taken:
    """A run in which every rank took every snapshot and nothing is wrong."""
    rows: list[Snapshot] = []
    done = 0
    for phase in phases:
        rows += _phase(places, phase, done, steps, resumed=done > 0, saves=len(phases) > 1)
        done += steps
    return Taken(tuple(row.model_copy(update={"t_s": float(index)}) for index, row in enumerate(rows)))


def _phase(
    places: tuple[Ranks, ...], phase: str, done: int, steps: int, *, resumed: bool, saves: bool
) -> Iterator[Snapshot]:
    roles = ("actor", "critic")
    for role in roles:
        yield from (
            _at(Point.MODEL_BUILT, phase, place, role, 0, model(place, 0, role), adapters=_shared(place))
            for place in places
        )
        if resumed:
            state: dict[str, Any] = {"step": 1}
            yield from (
                _at(Point.CHECKPOINT_LOADED, phase, place, role, 0, _whole(place, done, role), **state)
                for place in places
            )
    files = exported(adapter_only=False)
    yield _at(Point.CHECKPOINT_FILE, phase, places[0], "actor", 0, files)
    yield from _sync(places, phase, done, 0, adapter_only=False)
    yield from _sync(places, phase, done, 1, adapter_only=True)
    for step in range(steps):
        for role in roles:
            yield from (
                _at(Point.OPTIMIZER_STEP, phase, place, role, step, _whole(place, done + step + 1, role))
                for place in places
            )
    if saves:
        number = 2 if resumed else 1
        for role in roles:
            yield from (
                _at(Point.CHECKPOINT_SAVED, phase, place, role, 0, _whole(place, done + steps, role), step=number)
                for place in places
            )
    yield from _sync(places, phase, done + steps, 2, adapter_only=True)


def _shared(ranks: Ranks) -> Adapters:
    """The adapters with this rank's share of the parameters."""
    whole = adapters()
    features = 3 * WIDTH * ranks.tensor_size
    share = {"features_out": features, "parameters": RANK * (WIDTH + features) // ranks.tensor_size}
    return whole.model_copy(update={"modules": (whole.modules[0].model_copy(update=share),)})


def _whole(ranks: Ranks, steps: int, role: str) -> tuple[Tensor, ...]:
    return (*model(ranks, steps, role), *optimizer(ranks, steps, role))


def _at(
    point: Point, phase: str, ranks: Ranks, role: str, number: int, held: tuple[Tensor, ...], **given: Any
) -> Snapshot:
    fields: dict[str, Any] = {
        "point": point,
        "phase": phase,
        "model": role,
        "pid": TRAINER + ranks.rank,
        "ranks": ranks,
        "number": number,
    }
    return Snapshot(**fields, t_s=0.0, tensors=held, **given)


def _sync(places: tuple[Ranks, ...], phase: str, steps: int, number: int, *, adapter_only: bool) -> Iterator[Snapshot]:
    kind: dict[str, Any] = {"adapter_only": adapter_only}
    sent = exported(steps, **kind)
    for place in places:
        yield _at(Point.BEFORE_EXPORT, phase, place, "actor", number, model(place, steps), **kind)
        yield _at(Point.EXPORTED, phase, place, "actor", number, sent, **kind)
        yield _at(Point.AFTER_EXPORT, phase, place, "actor", number, model(place, steps), **kind)
    for replica in range(len(places)):
        at = Ranks(data=replica)
        for point, held in ((Point.RECEIVED, sent), (Point.ROLLOUT_LOADED, loaded(steps, **kind))):
            made = _at(point, phase, at, "rollout", number, held, **kind)
            yield made.model_copy(update={"pid": WORKER + replica})


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    """The fingerprint of a tensor times a factor."""
    return lambda held: held.model_copy(
        update={
            "sum": held.sum * factor,
            "square": held.square * factor**2,
            "position": held.position * factor,
            "bits": _other(held.bits),
        }
    )


def moved(held: Tensor) -> Tensor:
    """The fingerprint of the same elements in another order."""
    return held.model_copy(update={"position": held.position + 1.0, "bits": _other(held.bits)})


def zeroed(held: Tensor) -> Tensor:
    """The fingerprint of zeros."""
    return held.model_copy(update={"sum": 0.0, "square": 0.0, "position": 0.0, "bits": "0" * 16})


def other(held: Tensor) -> Tensor:
    """The fingerprint of other values."""
    values = weights(math.prod(held.shape), f"other {held.bits}")
    return tensor(held.name, values, held.shape).model_copy(
        update={key: getattr(held, key) for key in ("kind", "dtype", "requires_grad", "tensor_parallel_dim", "expert")}
    )


def absent(held: Tensor) -> None:
    """No tensor."""


def _other(bits: str) -> str:
    return f"{(int(bits, 16) + 1) % 2**64:016x}"


def hook(target: str = "module:Class.method", **given: Any) -> HookState:
    """A hook that is installed and was called once."""
    fields: dict[str, Any] = {"pid": TRAINER, "target": target, "installed": True, "calls": 1}
    return HookState(**(fields | given))

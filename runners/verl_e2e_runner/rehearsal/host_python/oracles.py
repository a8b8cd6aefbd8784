"""What must hold in a cell whatever the change is. Each row says what it proves and how far a healthy cell may be off.

An oracle gets the cell, what its ranks gave (`values` and `tensors` of each), and what transformers says of the same
weights. It gives the largest deviation and where that is, or None where the cell has nothing for it to look at.
"""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import models
import torch
from safetensors.torch import load_file

# Of two numbers in single precision, added up in another order.
NOISE = 2e-5
EXACT = 0.0
INFINITE = float("inf")
PEFT = (("PeftType", "LORA"), ("TaskType", "CAUSAL_LM"))


class Case:
    """What the oracles of one cell look at."""

    def __init__(self, cell, folder, ranks, reference, verl=""):
        self.cell, self.folder, self.ranks, self.reference = cell, folder, ranks, reference
        # The file in which verl describes adapters to the rollout engine; empty where there is no verl.
        self.verl = verl
        self.data = models.batch(models.config_of(folder).get_text_config().vocab_size)
        self.files = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            self.files |= load_file(file)
        self._by_export = {}

    def value(self, name):
        """A value of the first rank that has it."""
        return next((rank["values"][name] for rank in self.ranks if name in rank["values"]), None)

    def tensor(self, name):
        """A tensor of the first rank that has it."""
        return next((rank["tensors"][name] for rank in self.ranks if name in rank["tensors"]), None)

    def group(self, prefix, rank=0):
        """The tensors of a rank whose names begin with the prefix, without it."""
        tensors = self.ranks[rank]["tensors"]
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    def of_rollout(self):
        """What the rollout engine gets to know of the adapters, by verl's own function where its source is given."""
        settings = self.cell.adapter
        if not self.verl:
            return {"r": settings["rank"], "lora_alpha": settings["alpha"]}
        # Two names of it are all that verl takes of PEFT.
        kinds = {kind: types.SimpleNamespace(**dict.fromkeys((kind, name), name)) for kind, name in PEFT}
        sys.modules["peft"] = types.SimpleNamespace(**kinds)
        code = {}
        exec(compile(Path(self.verl).read_text(), self.verl, "exec"), code)
        return code["build_peft_config_for_vllm"](settings)

    def of_export(self, moment):
        """What transformers computes on the weights that were exported; None where it cannot be a reference."""
        if moment not in self._by_export:
            tensors = dict(self.group(f"{moment}/export/"))
            if not self.reference or not tensors:
                return None
            self._by_export[moment] = models.reference(models.reference_model(self.folder, tensors), self.data)
        return self._by_export[moment]


def off(one, other):
    """How far two tensors or numbers are apart, as a part of the second's size."""
    one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    if one.shape != other.shape:
        return INFINITE
    size = float(other.norm())
    apart = float((one - other).norm())
    return apart / size if size else apart


def _largest(found):
    """The largest deviation and where it is."""
    found = [(INFINITE if value != value else value, where) for value, where in found]
    return max(found, key=lambda pair: pair[0]) if found else None


def round_trip(case):
    exported = case.group("start/base/" if case.cell.adapter else "start/export/")
    exported = {name.replace(".base_layer.", "."): tensor for name, tensor in exported.items()}
    if not exported or (case.cell.adapter.get("type") == "dora"):
        return None
    missing = sorted(case.files.keys() ^ exported.keys())
    if missing:
        return INFINITE, f"{missing[0]} and {len(missing) - 1} others are on one side alone"
    return _largest((_bits(case.files[name], tensor), name) for name, tensor in exported.items())


def _bits(one, other):
    """0 where the tensors are equal in every bit, else how far they are apart."""
    if one.shape == other.shape and torch.equal(one.float(), other.float()):
        return 0.0
    return max(off(other.float(), one.float()), 1e-12) if one.shape == other.shape else INFINITE


def logits(case):
    given = case.tensor("start/logits")
    if not case.reference or given is None:
        return None
    expected = case.of_export("start") if case.cell.adapter else case.reference
    return None if expected is None else (off(given, expected["logits"]), "logits of two sequences")


def loss(case):
    if not case.reference or case.cell.adapter or not case.cell.trained:
        return None
    return off(case.value("step1/loss"), case.reference["loss"]), "loss of the first step"


def gradient_norm(case):
    given = case.value("step1/grad_norm")
    # Layers that foretell further tokens train on a loss of their own.
    further = case.value("provider_final").get("mtp_num_layers")
    if not case.reference or case.cell.adapter or given is None or further:
        return None
    return off(given, case.reference["grad_norm"]), "gradient norm of the first step"


def exported(case):
    expected = case.of_export("start") if case.cell.trained else None
    return None if expected is None else (off(case.value("step1/loss"), expected["loss"]), "loss of the first step")


def exported_after_step(case):
    expected = case.of_export("step1")
    return None if expected is None else (off(case.value("step2/loss"), expected["loss"]), "loss of the second step")


def merged(case):
    adapters, base = case.group("start/adapters/"), case.group("start/base/")
    if not adapters or not case.cell.merged:
        return None
    scale = case.cell.adapter["alpha"] / case.cell.adapter["rank"]
    whole, found = case.group("start/export/"), []
    pairs = _pairs(adapters)
    for name, tensor in base.items():
        plain = name.replace(".base_layer.", ".")
        first, second = pairs.get(plain, (None, None))
        if plain not in whole:
            found.append((INFINITE, f"{plain} is not in the merged export"))
        elif first is None:
            # Experts in one tensor have an adapter each; what they export is judged by transformers.
            if ".experts." not in plain or tensor.dim() != 3:
                found.append((off(whole[plain], tensor.double()), plain))
        elif second.dim() == 2 and (second.shape[0], first.shape[1]) == tensor.shape:
            found.append((off(whole[plain], tensor.double() + scale * second.double() @ first.double()), plain))
    # Experts whose weights are exported as one tensor have an adapter each.
    unused = [name for name in pairs if name not in whole and ".experts." not in name]
    found += [(INFINITE, f"the adapter of {name} has no weight in the merged export") for name in unused]
    return _largest(found)


def _pairs(adapters):
    """Both matrices of each adapter by the name of the weight that they change."""
    pairs = {}
    for name, tensor in adapters.items():
        if name.endswith("lora_A.weight"):
            plain = re.sub(r"^base_model\.model\.", "", name.replace(".lora_A.", "."))
            second = adapters.get(name.replace("lora_A", "lora_B"))
            if second is not None:
                pairs[plain] = (tensor, second)
    return pairs


def rollout(case):
    """Whether each adapter has the name of a weight, both matrices, and the rank that the rollout engine gets."""
    adapters = case.group("start/adapters/")
    if not adapters:
        return None
    found, given = [(0.0, "")], case.of_rollout()
    weights = {name.replace(".base_layer.", "."): tensor for name, tensor in case.group("start/base/").items()}
    if (given["r"], given["lora_alpha"]) != (case.cell.adapter["rank"], case.cell.adapter["alpha"]):
        found.append((INFINITE, f"the rollout engine gets rank {given['r']} and alpha {given['lora_alpha']}"))
    pairs = _pairs(adapters)
    if len(adapters) != 2 * len(pairs):
        found.append((INFINITE, "an adapter does not have two matrices, or another name than lora_A and lora_B"))
    for name, (first, second) in pairs.items():
        ranks = first.shape[-2], second.shape[-1]
        if ranks != (given["r"], given["r"]):
            found.append((INFINITE, f"{name} has rank {ranks[0]} and {ranks[1]}"))
        weight = weights.get(name)
        if weight is not None and weight.dim() == 2 and weight.shape != (second.shape[0], first.shape[1]):
            found.append((INFINITE, f"{name} is {list(weight.shape)}, its adapter's product is not"))
        # Experts in one tensor have an adapter each.
        if weight is None and ".experts." not in name:
            found.append((INFINITE, f"{name} is not a weight of the model"))
    return _largest(found)


def trains(case):
    wanted, found = case.cell.adapter, [(0.0, "")]
    for rank in case.ranks:
        names = {name.partition("start/parameters/")[2] for name in rank["tensors"]} - {""}
        asked = {name for name in names if ".adapter" in name or ".weight_magnitude" in name} if wanted else names
        wrong = sorted(asked ^ set(rank["values"]["start/trains"]))
        wrong = wrong if wanted else [name for name in wrong if not _of_tower(name)]
        found += [(INFINITE, f"{name} trains, or does not and should") for name in wrong[:1]]
    if wanted and not any(rank["values"]["start/trains"] for rank in case.ranks):
        found.append((INFINITE, "nothing trains: no module got an adapter"))
    return _largest(found)


def moves(case):
    if not case.cell.trained:
        return None
    found, experts = [(0.0, "")], {}
    for rank in case.ranks:
        if "step1/without_gradient" not in rank["values"]:
            continue
        still = set(rank["values"]["step1/without_gradient"])
        for name in rank["values"]["start/trains"]:
            one, other = (rank["tensors"][f"{moment}/parameters/{name}"] for moment in ("start", "step1"))
            # Weight decay moves what has no gradient, too.
            moved = name not in still and not torch.equal(one, other)
            if ".experts." in name and not (case.cell.adapter and not case.cell.filled):
                # An expert without tokens rests; all of a layer, on all ranks, do not.
                kind = re.sub(r"\d+$", "", name)
                experts[kind] = experts.get(kind, False) or moved
            elif not moved and not (
                # An expert without tokens, and what only a zero matrix leads to.
                ".experts." in name
                or "expert_bias" in name
                or _of_tower(name)
                or (case.cell.adapter and not case.cell.filled and "linear_in" in name)
            ):
                found.append((INFINITE, f"{name} {'got no gradient' if name in still else 'did not move'}"))
        for name, tensor in rank["tensors"].items():
            plain = name.removeprefix("start/parameters/")
            other = rank["tensors"].get(f"step1/parameters/{plain}")
            if plain != name and plain not in rank["values"]["start/trains"] and other is not None:
                found.append((_bits(tensor, other), f"{plain} moved and should not"))
    found += [
        (INFINITE, f"{name} got no gradient, or did not move, for any expert")
        for name, moved in experts.items()
        if not moved
    ]
    return _largest(found)


def _of_tower(name):
    """Whether a parameter sees images or hears sounds, which no cell has."""
    return any(part in name for part in ("vision", "visual", "audio", "image", "multi_modal_projector"))


def export_changes_nothing(case):
    found = [(0.0, "")]
    for rank in case.ranks:
        for moment in ("start", "step1"):
            found += [(INFINITE, name) for name in rank["values"].get(f"{moment}/changed_by_export", ())[:1]]
            for part in ("export", "base", "adapters"):
                twice = rank["values"].get(f"{moment}/{part}/twice") or ()
                found += [(INFINITE, f"{name} is exported twice") for name in twice[:1]]
    return _largest(found)


def same_export(case):
    if len(case.ranks) == 1:
        return None
    found = [(0.0, "")]
    for moment in ("start", "step1"):
        for part in ("export", "base", "adapters"):
            first = case.group(f"{moment}/{part}/")
            for number in range(1, len(case.ranks)):
                other = case.group(f"{moment}/{part}/", number)
                if first.keys() != other.keys():
                    name = sorted(first.keys() ^ other.keys())[0]
                    found.append((INFINITE, f"{name} is not exported by every rank"))
                else:
                    found += [(_bits(first[name], other[name]), f"{moment} {name}") for name in first]
    return _largest(found)


def copies(case):
    if len(case.ranks) == 1:
        return None
    groups = {}
    for number, rank in enumerate(case.ranks):
        place, cut = rank["values"]["place"], set(rank["values"]["cut"])
        for name, tensor in rank["tensors"].items():
            if name.startswith(("step2/parameters/", "start/parameters/")):
                plain = name.partition("/parameters/")[2]
                # What of a rank's place decides which part of a parameter it has.
                owner = place["tp"] if plain in cut else 0, 0
                if ".experts." in plain:
                    # An adapter that all experts share is one on all ranks of experts, too.
                    shared = ".adapter." in plain and tensor.dim() == 2
                    owner = 0 if shared else place["ep"], place["etp"] if plain in cut else 0
                groups.setdefault((name, place["pp"], *owner), []).append((number, tensor))
    found = [(0.0, "")]
    for (name, *_place), copied in groups.items():
        first = copied[0][1]
        found += [(_bits(first, tensor), f"{name} on ranks {copied[0][0]} and {n}") for n, tensor in copied[1:]]
    found += _ends(case)
    return _largest(found)


def _ends(case):
    """The embedding of the first stage and its copy on the last one, where they are tied."""
    first, last = {}, {}
    for rank in case.ranks:
        if not rank["values"]["provider_final"].get("share_embeddings_and_output_weights"):
            return []
        place = rank["values"]["place"]
        for name, tensor in rank["tensors"].items():
            if name.startswith("step2/parameters/"):
                if name.endswith("embedding.word_embeddings.weight") and place["pp"] == 0:
                    first[place["tp"]] = tensor
                elif name.endswith(".output_layer.weight"):
                    last[place["tp"]] = tensor
    return [
        (_bits(first[rank], last[rank]), "embedding and its copy on the last stage") for rank in last if rank in first
    ]


def loaded(case):
    return _equal_moments(case, "step1", "loaded")


def resumed(case):
    return None if case.cell.loaded_in else _equal_moments(case, "step2", "resumed")


def _equal_moments(case, before, after):
    """Whether a resumed process has what the first had: parameters, moments, steps, learning rate, loss and norm."""
    if not case.cell.resumed:
        return None
    found = [(0.0, "")]
    for number, rank in enumerate(case.ranks):
        for kind in ("tensors", "values"):
            for name, value in rank[kind].items():
                # A weight is merged from other parts in another layout: the base and the adapters are compared.
                if name.startswith(f"{after}/") and not (case.cell.adapter and name.startswith(f"{after}/export/")):
                    other = rank[kind].get(name.replace(after, before, 1))
                    if torch.is_tensor(value):
                        off_by = INFINITE if other is None else _bits(other, value)
                    else:
                        off_by = 0.0 if value == other else INFINITE
                    found.append((off_by, f"{name} on rank {number}"))
    return _largest(found)


def written(case):
    """Whether the files of a model have what is exported."""
    if not case.cell.written:
        return None
    found = []
    for part, exported in (("model", "export"), ("adapters", "adapters")):
        tensors = case.group(f"start/{exported}/")
        files = {name.rpartition("/")[2]: tensor for name, tensor in case.group(f"start/written/{part}/").items()}
        # PEFT's prefix.
        files = {name.removeprefix("base_model.model."): tensor for name, tensor in files.items()}
        missing = sorted(tensors.keys() ^ files.keys())
        found += [(INFINITE, f"{name} is in the files or in the export alone") for name in missing[:1]]
        found += [(_bits(tensors[name], files[name]), name) for name in tensors.keys() & files.keys()]
    return _largest(found)


# What Bridge says where it leaves a weight out, or has none for a parameter.
_DROPPED = re.compile(r"no mapping found|can't find|not in global_names_index_dict|skipping|not found|missing", re.I)


def drops_nothing(case):
    lines = [line for rank in case.ranks for line in rank["values"].get("warnings", ()) if _DROPPED.search(line)]
    return _largest([(0.0, ""), *((INFINITE, line) for line in lines[:1])])


def finite(case):
    found = [(0.0, "")]
    for rank in case.ranks:
        for name, tensor in rank["tensors"].items():
            # A sum has what one of its numbers has.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
                found.append((INFINITE, name))
    return _largest(found)


@dataclass(frozen=True)
class Oracle:
    """One row."""

    name: str
    look: object
    proves: str
    bound: float


ORACLES = (
    Oracle("finite", finite, "no number of the cell is infinite or not a number", EXACT),
    Oracle("round-trip", round_trip, "what is imported is exported with equal names, shapes and bits", EXACT),
    Oracle("logits", logits, "the forward agrees with transformers on the same weights", NOISE),
    Oracle("loss", loss, "the loss agrees with transformers on the same weights", NOISE),
    Oracle("gradient-norm", gradient_norm, "the gradient norm agrees with transformers on the same weights", NOISE),
    Oracle("exported", exported, "transformers on the exported weights has the trainer's loss", NOISE),
    Oracle("exported-after-step", exported_after_step, "transformers on what is exported after a step too", NOISE),
    Oracle("merged", merged, "a merged weight is the base and the scaled product of its adapter", NOISE),
    Oracle(
        "rollout", rollout, "exported adapters have the names and ranks that verl passes to the rollout engine", EXACT
    ),
    Oracle("trains", trains, "the asked modules train, and nothing else", EXACT),
    Oracle("moves", moves, "what trains gets a gradient and moves in a step, and nothing else moves", EXACT),
    Oracle("export-changes-nothing", export_changes_nothing, "an export leaves the model as it was", EXACT),
    Oracle("same-export", same_export, "every rank exports the same", EXACT),
    Oracle("loaded", loaded, "what is loaded is what was saved, moments, steps and learning rate included", EXACT),
    Oracle("resumed", resumed, "a step after loading is the step without the interruption", EXACT),
    Oracle("written", written, "the files of a model and of its adapters have what is exported", EXACT),
    Oracle("drops-nothing", drops_nothing, "no warning says that a weight is left out", EXACT),
    Oracle("copies", copies, "what ranks hold in common is equal, after two steps too", EXACT),
)


_AGREEMENT = Oracle("agrees", None, "loss, gradient norm and what is exported after a step are those of one rank", 1e-4)


def agreement(quantities, reference):
    """Whether a cell of several ranks computes what the one with one rank does, by what both wrote down."""
    found = []
    for name, expected in reference.items():
        plain = name.rpartition("@")[0]
        if plain.startswith(("step1/export/", "step1/loss", "step1/grad_norm", "step2/loss", "step2/grad_norm")):
            given = next((value for key, value in quantities.items() if key.rpartition("@")[0] == plain), None)
            apart = INFINITE
            if given is not None and not isinstance(expected, dict):
                apart = off(given, expected)
            elif given and given["shape"] == expected["shape"] and None not in (*given["sketch"], *expected["sketch"]):
                apart = off(given["sketch"], expected["sketch"])
            found.append((apart, plain))
    return _row(_AGREEMENT, *_largest(found))


def _row(oracle, value, where):
    shown = value if value < INFINITE else "inf"
    return {"oracle": oracle.name, "passed": value <= oracle.bound, "off": shown, "where": where}


def judged(case):
    """What each oracle found in a cell, as JSON; infinity as a word."""
    found = []
    for oracle in ORACLES:
        try:
            seen = oracle.look(case)
        except Exception as error:
            seen = INFINITE, f"{type(error).__name__}: {error}"[:300]
        if seen is not None:
            found.append(_row(oracle, *seen))
    return found

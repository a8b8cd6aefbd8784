"""Which settings of a job each cell of a rehearsal stands for: one table of rules over the attributes of its row."""

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from verl_e2e.core.compare.cell_map import CellRow
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.settings import Axis, FieldValue, Takes, Value
from verl_e2e.core.model.space import ModelWant, Want
from verl_e2e.core.plan.policy import Policy

# The axes that cells differ on.
CELL_AXES = tuple(axis for axis in Axis if axis.row.cell)
# What verl sets by itself, what only a tiny model needs, and what says how a cell is judged.
_OF_NO_JOB = frozenset({"sequence_parallel", "trained", "agrees_with", "filled", "merged", "name", "family"})
# What no job of verl can be given.
_UNKNOWN = frozenset({"distributed_optimizer", "loaded_in"})


@dataclass(frozen=True, slots=True)
class CellSettings:
    """What a cell stands for."""

    # The family of its model.
    family: str
    # The settings that differ from those of level 0.
    axes: Mapping[Axis, Value] = field(default_factory=dict)
    # Fields of the model's configuration that differ from the family's usual ones.
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    # A feature that its model has by fields of the recipe, empty where there is none.
    feature: str = ""
    # Whether its adapters are drawn, and so add something before a step.
    filled: bool = False
    # Whether a job can have all that its row asks for.
    possible: bool = True

    @property
    def key(self) -> str:
        """Equal for cells that differ by their family alone."""
        return repr((sorted(self.axes.items()), sorted(self.fields.items()), self.feature, self.filled, self.possible))


@dataclass(frozen=True)
class CellTable:
    """The cells of a map with the settings that they stand for, by their places in it."""

    rows: Sequence[CellRow]
    policy: Policy
    _known: dict[tuple[str, str, frozenset[int]], bool] = field(default_factory=dict)

    @cached_property
    def settings(self) -> tuple[CellSettings, ...]:
        """The settings of each cell."""
        # By family what all of its cells ask for besides sizes and adapters: a tiny model of it needs that.
        usual: dict[str, dict[str, dict[str, object]]] = {}
        for row in self.rows:
            parts = {name: dict(_mapping(row.settings.get(name))) for name in ("fields", "sizes", "settings")}
            known = usual.setdefault(row.family, parts)
            for name, part in parts.items():
                known[name] = {key: value for key, value in known[name].items() if part.get(key, part) == value}
        return tuple(_settings(row, usual[row.family]) for row in self.rows)

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], int]:
        """The cells by their family and key; the first of equal ones."""
        return {(item.family, item.key): at for at, item in reversed([*enumerate(self.settings)])}

    def counterpart(self, at: int, **differing: object) -> int | None:
        """The cell that differs from one in these fields of its settings alone, None where there is none."""
        other = replace(self.settings[at], **differing)  # type: ignore[arg-type]
        return self.by_key.get((other.family, other.key))

    def keeps_out(self, at: int | None, entered: frozenset[int]) -> bool:
        """Whether a cell is known not to enter what others do: it ran to its end, and is not among them."""
        return at is not None and at not in entered and self.rows[at].outcome is not CellOutcome.BLOCKED

    @cached_property
    def features(self) -> Mapping[str, frozenset[str]]:
        """The features of each family, by its name."""
        return {family.name: frozenset(family.features) for family in self.policy.families}

    @cached_property
    def checkpoints(self) -> Mapping[str, Checkpoint | None]:
        """The checkpoint of each family, by its name."""
        return {family.name: family.checkpoint for family in self.policy.families}

    @cached_property
    def usual_family(self) -> str:
        """The family of the policy's own checkpoint, empty where it is of none."""
        return next((name for name, found in self.checkpoints.items() if found == self.policy.checkpoint), "")

    def stands_in(self, family: str, for_family: str, entered: frozenset[int]) -> bool:
        """Whether what cells of one family enter, one of another enters as well, as far as their counterparts tell."""
        key = family, for_family, entered
        if key not in self._known:
            able = self.features.get(for_family, frozenset()) <= self.features.get(family, frozenset())
            own = [at for at in entered if self.settings[at].family == for_family] if able else []
            out = any(self.keeps_out(self.counterpart(at, family=family), entered) for at in own)
            self._known[key] = family == for_family or (able and not out)
        return self._known[key]

    def wants(self, entered: frozenset[int], *, moved: bool) -> Iterator[Want]:
        """What a job needs to be like each of some cells; `moved` where more entered than these.

        That a cell trains without adapters, or with drawn ones, counts only where its counterpart is not among them.
        """
        seen = set()
        for at in sorted(entered):
            found = self.settings[at]
            if not found.possible:
                continue
            axes = dict(found.axes)
            if axes.get(Axis.ADAPTER) == "none":
                adapted: dict[Axis, Value] = {axis: value for axis, value in axes.items() if axis is not Axis.ADAPTER}
                counterparts = (self.counterpart(at, axes=adapted, filled=filled) for filled in (True, False))
                if not any(self.keeps_out(counterpart, entered) for counterpart in counterparts):
                    axes = adapted
            unfilled = self.counterpart(at, filled=False) if found.filled and moved else None
            if self.keeps_out(unfilled, entered):
                axes[Axis.ADAPTER_B_START] = "xavier"
            family = found.family
            if self.stands_in(self.usual_family, family, entered):
                family = self.usual_family
            model = ModelWant(family, dict(found.fields), frozenset(filter(None, [found.feature])))
            key = repr((axes, model))
            if key not in seen:
                seen.add(key)
                yield Want(self.rows[at].name, axes, model)


def _settings(row: CellRow, usual: Mapping[str, Mapping[str, object]]) -> CellSettings:
    given = {name: value for name, value in row.settings.items() if name not in _OF_NO_JOB}
    axes: dict[Axis, Value] = {}
    for axis in CELL_AXES:
        values = [given[name] for name in axis.row.cell if given.get(name)]
        if values:
            axes[axis] = True if axis.row.takes is Takes.SWITCH else _value(values[0])
    own = {
        name: {key: value for key, value in _mapping(given.get(name)).items() if key not in usual[name]}
        for name in ("fields", "sizes", "settings")
    }
    possible = _UNKNOWN.isdisjoint(given) and own["sizes"].keys() <= {"layers"}
    recompute = {key: value for key, value in own["settings"].items() if key.startswith("recompute_")}
    possible = possible and recompute.keys() == own["settings"].keys()
    if recompute:
        axes[Axis.RECOMPUTE] = _value(recompute.get("recompute_granularity"))
    adapter = _mapping(given.get("adapter"))
    axes[Axis.ADAPTER] = _value(adapter.get("type")) if adapter else "none"
    targets = adapter.get("target_modules")
    if isinstance(targets, list) and axes[Axis.ADAPTER] != "canonical_lora":
        axes[Axis.ADAPTER_TARGETS] = ",".join(map(str, targets))
    if adapter.get("share_expert_adapters") is False:
        axes[Axis.ADAPTER_SHARING] = "per expert"
    # Ranks that the experts' sizes need anyway.
    ranks = _int(given.get("ep")) * _int(given.get("etp"))
    if _int(given.get("dp")) * _int(given.get("tp")) <= ranks:
        axes.pop(Axis.DATA, None)
    differing = {axis: value for axis, value in axes.items() if axis.default != value}
    filled = bool(adapter) and row.settings.get("filled", True) is not False
    # The model's configuration and a recipe's have these fields in different places.
    fields = {re.sub(r"^rope_parameters\.", "rope_scaling.", name): value for name, value in own["fields"].items()}
    feature = str(given.get("feature", ""))
    return CellSettings(row.family, differing, fields, feature, filled, possible)  # type: ignore[arg-type]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _value(value: object) -> Value:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _int(value: object) -> int:
    return value if isinstance(value, int) and value else 1


CONVERSION = "/models/conversion/"


@dataclass(frozen=True, slots=True)
class Standing:
    """One row: which changed functions it is for, and what they want."""

    # How reports name the row.
    name: str
    # Parts of paths, one of which the file has.
    paths: tuple[str, ...]
    # Parts of names, one of which the function's has; empty for every function of such a file.
    words: tuple[str, ...]
    # What is wanted, for people.
    condition: str
    # The settings; the first that a job can have will do.
    wants: tuple[Want, ...]
    # Identifiers, one of which a changed statement of any other function of such a file has.
    statements: frozenset[str] = frozenset()

    def is_for(self, path: str, symbol: str, words: Container[str]) -> bool:
        """Whether a function is one of those; `words` are the identifiers of its changed statements."""
        name = symbol.lower()
        named = not self.words or any(word in name for word in self.words)
        said = any(word in words for word in self.statements)
        return (named or said) and any(part in path for part in self.paths)


_CONVERSION = (CONVERSION,)
# Adapters that change what the model computes, so that what is done with them shows, their scale too.
_AMPLIFIED = Want(axes={Axis.ADAPTER_B_START: "xavier", Axis.ADAPTER_ALPHA: 4 * int(Axis.ADAPTER_RANK.default or 1)})
_ADDING = "the adapters change what the model computes"
# What runs only where adapters leave by themselves: in a weight sync that does not merge them (verl:
# MegatronEngine.get_per_tensor_param), as with experts they must be, and in a save (verl:
# MegatronCheckpointManager._save_model_as_hf_via_bridge).
_OWN_EXPORT_WORDS = ("stream_adapter_weights", "stream_shared_outer_adapter", "packed_expert_", "save_hf_adapter")
_ALONE = (Want(axes={Axis.ADAPTER_MERGE: False}), Want(axes={Axis.RESUME: True}))
_TIED_WORDS = (
    *("export", "megatron_to_hf", "stream_", "save_hf"),
    *("hf_to_megatron", "load_weights", "tied", "embedding", "build_conversion_tasks"),
)
# The default model's are tied.
_UNTIED = Want(model=ModelWant(fields={"tie_word_embeddings": False}))
# No cell of a rehearsal packs.
_PACKING = frozenset({"packed_seq_params", "cu_seqlens", "cu_seqlens_q", "qkv_format"})
_PACKED = Want(axes={Axis.PACKING: True})

STANDING: tuple[Standing, ...] = (
    Standing("adapters", ("/peft/", "/peft_bridge.py"), (), _ADDING, (_AMPLIFIED,)),
    Standing("adapters in conversion", _CONVERSION, ("adapter", "lora", "peft"), _ADDING, (_AMPLIFIED,)),
    Standing("own export", _CONVERSION, _OWN_EXPORT_WORDS, "the adapters leave by themselves", _ALONE),
    Standing("untied", _CONVERSION, _TIED_WORDS, "the model's embeddings are untied", (_UNTIED,)),
    Standing("packed", ("/models/",), ("packed_seq", "thd"), "sequences are packed", (_PACKED,), _PACKING),
)


def leaves_by_itself(path: str, symbol: str) -> bool:
    """Whether a function runs only where adapters leave by themselves."""
    return any(row.wants is _ALONE for row in standing_wants(path, symbol))


def standing_wants(path: str, symbol: str, words: Container[str] = ()) -> Iterator[Standing]:
    """The rows that are for a function; `words` are the identifiers of its changed statements."""
    return (row for row in STANDING if row.is_for(path, symbol, words))

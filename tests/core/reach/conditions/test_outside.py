"""Tests of the conditions under which another program uses the package, and of what follows from them."""

from textwrap import dedent

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree
from tests.core.reach.programs import entries_of
from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.reach.conditions.callers import Ways
from verl_e2e.core.reach.conditions.code_tree import CodeTree
from verl_e2e.core.reach.conditions.flow import read_flows
from verl_e2e.core.reach.conditions.outside import uses_with_conditions
from verl_e2e.core.reach.conditions.settings import ANY_RUN, all_joined
from verl_e2e.core.reach.entries import UseCondition
from verl_e2e.core.reach.program import Node
from verl_e2e.core.reach.walk import Reach

ENGINE = """
from lib.core import Bridge, hook

class Engine:
    def build(self):
        bridge = Bridge.make()
        self.bridge = bridge
        if wanted:
            callbacks.append(hook)

    def export(self, base_sync_done=False):
        adapters = self.peft_cls is not None and not self.lora.get("merge", False)
        only = base_sync_done and adapters
        if self.vanilla_bridge:
            return None
        if only:
            return self.bridge.export_adapters()
        return self.bridge.export(1) if adapters else self.bridge.export_all(2)

    def save_checkpoint(self, path):
        if self.should_save_hf_model:
            self._save(path)

    def _save(self, path):
        if self.peft_cls is not None:
            self.bridge.save_adapters(path)
        else:
            self.bridge.save(path)

    def _alone(self):
        self.bridge.alone()

    def __call__(self):
        try:
            self.bridge.tried()
        except ValueError:
            self.bridge.caught()
        if not self.bridge:
            raise ValueError
        self.bridge.last()
        hook = 3
        return hook
"""


def conditions(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    uses = uses_with_conditions({"other/engine.py": dedent(source).encode()}, "lib", "a test")
    for use in uses.conditions:
        found.setdefault(use.name, []).append(use.condition)
    return found


ADAPTERS = "self.peft_cls is not None and (not self.lora.get('merge', False))"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Bridge", [""]),
        ("make", [""]),
        ("hook", ["(wanted)"]),
        ("export_adapters", [f"(not self.vanilla_bridge) and (base_sync_done and ({ADAPTERS}))"]),
        ("export", [f"(not self.vanilla_bridge) and (not (base_sync_done and ({ADAPTERS}))) and ({ADAPTERS})"]),
        ("save_adapters", ["(self.peft_cls is not None) and (self.should_save_hf_model) and (save_checkpoint)"]),
        ("save", ["(self.peft_cls is None) and (self.should_save_hf_model) and (save_checkpoint)"]),
        ("alone", [""]),
        ("tried", [""]),
        ("caught", [""]),
        ("last", [""]),
    ],
)
def test_a_use_has_what_decides_it_in_its_own_file(name: str, expected: list[str]) -> None:
    assert conditions(ENGINE)[name] == expected


def test_private_functions_are_entered_by_any_of_their_callers() -> None:
    source = """
    from lib.core import used
    def first():
        x = a > 1
        if x:
            _inner()
    def second():
        if b:
            _inner()
    def _inner():
        used()
    """
    assert conditions(source) == {"used": ["((a > 1) or (b))"]}
    assert conditions(source.replace("if b:", "if True:")) == {"used": [""]}


def test_long_conditions_and_chains_end() -> None:
    chain = "".join(f"def _f{number + 1}():\n    if a{number}:\n        _f{number}()\n" for number in range(9))
    found = conditions(f"from lib.core import used\ndef _f0():\n    used()\n{chain}")["used"]
    assert found == ["(a0) and (a1) and (a2)"]
    long = "x == '" + "y" * 1200 + "'"
    assert conditions(f"from lib.core import used\nif {long}:\n    used()\n") == {"used": [""]}
    named = f"def f():\n    z = '{'y' * 300}'\n    w = v\n    v = w\n    if z and w:\n        used()\n"
    assert conditions(f"from lib.core import used\n{named}") == {"used": ["(z) and (v)"]}
    assert conditions("from lib.core import used\nused(\n") == {}


CORE = "class Bridge:\n    def save(self): pass\n    def load(self): pass\ndef main():\n    Bridge()\n"


def _settings(symbol: str, *uses: UseCondition) -> dict[Axis, Value]:
    tree = code_tree({FILE: CORE}, ("lib.core", "main"), ("", "save"), ("", "load"))
    entries = entries_of(("lib.core", "main"), ("", "save"), ("", "load"))
    flows = {FILE: read_flows(CORE.encode())}
    made = CodeTree(tree.program, Reach(tree.program, entries), flows.get, uses)
    demands = Ways(made).into(Node("lib.core", symbol))
    found = all_joined(demand.settings or ANY_RUN for demand in demands)
    assert found is not None
    return dict(found.axes)


def _use(name: str, condition: str) -> UseCondition:
    return UseCondition(name, "other/engine.py", 1, condition)


def test_what_every_use_demands_is_demanded() -> None:
    saves = _use("save", "(self.peft_cls is None) and (save_checkpoint)")
    loads = _use("load", "(self.use_megatron_fsdp)"), _use("load", "(self.use_megatron_fsdp) and (load_checkpoint)")
    assert _settings("Bridge.save", saves, *loads) == {Axis.ADAPTER: "none", Axis.RESUME: True}
    assert _settings("Bridge.load", saves, *loads) == {Axis.FSDP: True}
    assert _settings("Bridge.load", *loads, _use("load", "")) == {}
    assert _settings("Bridge.save") == {}


@pytest.mark.parametrize(
    ("condition", "axes"),
    [
        ("self.model_config.lora.get('merge', False)", {Axis.ADAPTER_MERGE: True}),
        ("not self.vanilla_bridge and not self.engine_config.use_dist_checkpointing", {}),
        ("self.engine_config.param_offload", {Axis.OFFLOAD: True}),
        ("model.use_remove_padding", {Axis.PACKING: True}),
        ("lora_cfg.get('rank', 0) <= 0", {Axis.ADAPTER: "none"}),
        ("base_sync_done", {Axis.SYNCS: 2}),
        ("is_value_model and wrap_config.wrap_with_ddp", {}),
    ],
)
def test_verl_s_configuration_becomes_settings(condition: str, axes: dict[Axis, Value]) -> None:
    assert _settings("Bridge.save", _use("save", condition)) == axes

"""A real rehearsal: a released Megatron-Bridge is driven on a CPU, healthy and with faults put into its sources."""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import REHEARSAL
from verl_e2e.adapters.files.run_folder import OBSERVED_FILE, read_records
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    CellOutcome,
    CellRecord,
    FaultTargets,
    Observed,
    ObserveLimits,
    Sight,
    Wanted,
    judge_rehearsal,
)
from verl_e2e.core.compare.unaffected import unaffected_cells
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.reach.diff import compare
from verl_e2e.core.report.rehearsal_text import render_rehearsal
from verl_e2e.wiring.rehearse import consumer_imports
from verl_e2e_runner.rehearsal.rehearse import RehearsalPlace, check_environment, chosen_cells, run_driver

pytestmark = pytest.mark.rehearsal

# Every kind of cell that this release can run: plain, tied, experts, three kinds of adapters, data, tensor, pipeline
# and expert parallel, an adapter that matches nothing, and a resume.
CELLS = (
    "qwen2-plain",
    "qwen3-plain",
    "qwen3-lora",
    "qwen3-canonical",
    "qwen3-lora-unmatched",
    "qwen3-tied",
    "qwen3-tied-pp2",
    "qwen3-plain-dp2",
    "qwen3-plain-tp2sp",
    "qwen3-plain-resume",
    "qwen3_moe-plain",
    "qwen3_moe-plain-ep2",
)
BRIDGE, CORE = "megatron/bridge", "megatron/core"
# It reads the base of rope where older releases of transformers kept it, so a model has the base that is the default;
# and it always normalises what a router gives to the chosen experts.
ROPE = {"rope_parameters.rope_theta": 10000.0}
WANTED = {"qwen3_moe": {**ROPE, "norm_topk_prob": True}}


def rehearsed(
    sources: Path, cells: Sequence[str], out: Path, work: Path, faults: FaultTargets | None = None
) -> dict[str, CellRecord]:
    """The records of cells over the sources in a folder; what the base has of the others is carried, never run.

    All of them name the same cells, so their models are made once.
    """
    runs = chosen_cells(cells)
    carried = {name: (work / f"base/{name}.json").read_text() for name in CELLS if name not in runs}
    place = RehearsalPlace(REHEARSAL / "bin" / "python", work, dict(os.environ))
    check_environment(place)
    recipes: Mapping[str, object] = {
        family.name: {**family.synthetic.recipe.model_dump(mode="json"), "wanted": WANTED.get(family.name, ROPE)}
        for family in packaged_policy().families
        if family.synthetic
    }
    wanted = Wanted(chosen_cells(CELLS), recipes, consumer_imports(), faults)
    run_driver({sources: ""}, wanted, out, place, carried)
    return {name: record for name, record in read_records(out, wanted.cells).items() if name not in carried}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rehearsal")


@pytest.fixture(scope="module")
def base(work: Path) -> dict[str, CellRecord]:
    return rehearsed(REHEARSAL / "released", CELLS, work / "base", work)


def failing(records: Mapping[str, CellRecord]) -> dict[str, list[str]]:
    """The oracles that fail, by cell; an error by its type."""
    found = {
        name: [*([record.error.type] if record.error else []), *(f.oracle for f in record.oracles if not f.passed)]
        for name, record in records.items()
    }
    return {name: oracles for name, oracles in found.items() if oracles}


def test_every_cell_of_a_release_runs_and_every_oracle_holds(base: dict[str, CellRecord]) -> None:
    assert set(base) == {IMPORTS, *CELLS}
    # That cell shows an adapter which matches nothing; and verl imports names that this release does not have.
    newer = failing(base)[IMPORTS]
    assert failing(base) == {IMPORTS: newer, "qwen3-lora-unmatched": ["trains"]}
    assert "import megatron.bridge.peft.utils:create_peft" in newer
    assert "import megatron.bridge:AutoBridge" in [finding.oracle for finding in base[IMPORTS].oracles]
    assert "import megatron.bridge:AutoBridge" not in newer
    assert {name: len(record.quantities) > 100 for name, record in base.items() if name != IMPORTS} == dict.fromkeys(
        CELLS, True
    )


FAULTS = {
    "gradients of replicas are not summed": (
        f"{CORE}/distributed/finalize_model_grads.py",
        "    config = get_model_config(model[0])\n",
        "    return\n    config = get_model_config(model[0])\n",
        "qwen3-plain-dp2",
        "agrees",
    ),
    "gate and up are exchanged on both ways": (
        f"{BRIDGE}/models/qwen/qwen3_bridge.py",
        'gate="model.layers.*.mlp.gate_proj.weight",\n                    up="model.layers.*.mlp.up_proj.weight"',
        'gate="model.layers.*.mlp.up_proj.weight",\n                    up="model.layers.*.mlp.gate_proj.weight"',
        "qwen3-plain",
        "logits",
    ),
    "no module matches": (
        f"{BRIDGE}/peft/lora.py",
        "        if (ans := self.match(module, name, prefix)) is not None:\n",
        "        if (ans := self.match(module, name, prefix)) is not None and name is None:\n",
        "qwen3-lora",
        "trains",
    ),
    "an export writes into the weights": (
        f"{BRIDGE}/models/conversion/param_mapping.py",
        "        gathered = [torch.empty_like(tensor) for _ in range(self.tp_size)]\n",
        "        tensor.data.mul_(1.001)\n        gathered = [torch.empty_like(tensor) for _ in range(self.tp_size)]\n",
        "qwen3-plain-tp2sp",
        "export-changes-nothing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_the_rehearsal(name: str, base: dict[str, CellRecord], work: Path) -> None:
    path, old, new, cell, oracle = FAULTS[name]
    sources = work / name.replace(" ", "-")
    shutil.copytree(REHEARSAL / "released", sources)
    before = (sources / path).read_text()
    assert before.count(old) == 1
    (sources / path).write_text(before.replace(old, new))
    changed = [
        function.model_copy(update={"path": path})
        for function in compare(before.encode(), (sources / path).read_bytes()).functions.changed
    ]
    head = rehearsed(sources, [cell], work / f"records-{sources.name}", work)
    found = judge_rehearsal({name: base[name] for name in head}, head, changed)
    assert found.outcome is CellOutcome.FAIL, render_rehearsal(found)
    judged = {item.cell: item for item in found.cells}
    assert oracle in [finding.oracle for finding in judged[cell].newly]
    assert judged[cell].differences
    assert judged[cell].cause == f"{path}:{changed[0].symbol}"
    assert found.unentered == ()
    # Each cell that differs has to run, and there are others.
    unaffected = unaffected_cells(base, {path: (before.encode(), (sources / path).read_bytes())}, {})
    assert not unaffected & {item.cell for item in found.cells if item.outcome is not CellOutcome.EQUAL}
    assert unaffected


# What becomes of faults in functions that cells enter. None of these cells has several stages, between which gradients
# of the embedding are summed.
WATCHED = {
    (f"{BRIDGE}/peft/base.py", "PEFT.freeze_model.<locals>.freeze_parameters"): (Sight.OBSERVED, "round-trip"),
    (f"{BRIDGE}/models/conversion/param_mapping.py", "GatedMLPMapping.hf_to_megatron"): (Sight.OBSERVED, "round-trip"),
    (f"{CORE}/distributed/finalize_model_grads.py", "finalize_model_grads"): (Sight.OBSERVED, "gradient-norm"),
    (f"{CORE}/distributed/finalize_model_grads.py", "_allreduce_word_embedding_grads"): (Sight.UNNOTICED, ""),
}


@pytest.fixture(scope="module")
def again(work: Path) -> tuple[dict[str, CellRecord], Observed]:
    """The records of the same sources, and what became of faults in functions of theirs."""
    faults = FaultTargets({f"{path}:{symbol}": () for path, symbol in WATCHED}, ObserveLimits(faults=2, seconds=300))
    cells = ["qwen3-lora", "qwen3-plain-dp2", "qwen3-plain-tp2sp", "qwen3_moe-plain-ep2"]
    records = rehearsed(REHEARSAL / "released", cells, work / "again", work, faults)
    return records, Observed.model_validate_json((work / "again" / OBSERVED_FILE).read_bytes())


def test_the_same_sources_are_equal_in_every_bit(
    base: dict[str, CellRecord], again: tuple[dict[str, CellRecord], Observed]
) -> None:
    found = judge_rehearsal({name: base[name] for name in again[0]}, again[0], ())
    assert found.outcome is CellOutcome.EQUAL, render_rehearsal(found)


def test_faults_in_functions_that_cells_enter_are_noticed_or_it_is_said_that_nothing_would(
    base: dict[str, CellRecord], again: tuple[dict[str, CellRecord], Observed]
) -> None:
    changed = [ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=1) for path, symbol in WATCHED]
    found = judge_rehearsal({name: base[name] for name in again[0]}, again[0], changed, observed=again[1])
    expected = {f"{path}:{symbol}": seen for (path, symbol), seen in WATCHED.items()}
    assert {item.function: (item.sight, item.reason) for item in found.observations} == expected


# What a hostile change would like to do when it is imported; what became of it stands in the error that it raises.
HOSTILE = """
import os, socket
def _tried(attempt):
    try:
        attempt()
        return "done"
    except OSError as error:
        return "refused"
_done = [_tried(lambda path=path: open(path, "a")) for path in {files!r}]
_done.append(_tried(lambda: socket.create_connection(("127.0.0.1", {port}), timeout=5)))
_done.append(_tried(lambda: os.listdir({records!r})))
raise RuntimeError(" ".join([*_done, os.environ.get("GITHUB_TOKEN", "none")]))
"""


@pytest.mark.bwrap
def test_a_hostile_change_reaches_neither_models_nor_records_nor_the_network(
    base: dict[str, CellRecord], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    sources = work / "hostile"
    shutil.copytree(REHEARSAL / "released", sources)
    model = next((work / "models").glob("qwen3-*/config.json"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        text = HOSTILE.format(
            files=[str(model), str(work / "base/qwen3-plain.json"), str(sources / "planted")],
            port=listener.getsockname()[1],
            records=str(work / "base"),
        )
        init = sources / BRIDGE / "__init__.py"
        init.write_text(text + init.read_text())
        head = rehearsed(sources, ["qwen3-plain"], work / "records-hostile", work)
    error = head[IMPORTS].error
    assert error is not None
    assert error.text == "refused refused refused refused refused none"
    assert (
        judge_rehearsal({name: base[name] for name in (IMPORTS, "qwen3-plain")}, head, ()).outcome is CellOutcome.FAIL
    )

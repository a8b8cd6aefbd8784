"""The table of cells, what is asked of the environment, and the record of entered lines."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.errors import UserError
from verl_e2e_runner.rehearsal import cells
from verl_e2e_runner.rehearsal.cells import CELLS, LORA
from verl_e2e_runner.rehearsal.rehearse import PROGRAMS, RehearsalPlace, check_environment, chosen_cells


def test_every_family_with_a_recipe_has_a_plain_cell_and_one_with_adapters_or_a_reason() -> None:
    families = {family.name for family in packaged_policy().families if family.synthetic}
    assert set(cells.FAMILIES) == families
    for family in families - cells.NOT_RUN.keys():
        assert CELLS[f"{family}-plain"].adapter == {}
        assert CELLS[f"{family}-lora"].adapter == LORA
    reasons = {**cells.NOT_RUN, **cells.UNTRAINED, **cells.NO_REFERENCE}
    assert reasons.keys() <= families | CELLS.keys()
    assert all(reasons.values())


def test_each_feature_that_a_model_has_by_fields_of_its_recipe_has_a_cell() -> None:
    switched = [(family.name, family.synthetic) for family in packaged_policy().families if family.synthetic]
    asked = {(feature, name) for name, recipe in switched for feature in recipe.switched}
    assert {(feature, name) for feature, names in cells.SWITCHED.items() for name in names} == asked
    for feature, name in asked:
        assert CELLS[f"{name}-{feature}"].feature == feature
        assert CELLS[f"{name}-plain"].feature == ""


def test_a_cell_agrees_with_one_on_one_rank_that_differs_in_layout_alone() -> None:
    sizes = {"tp", "pp", "vpp", "dp", "cp", "ep", "etp"}
    layout = {*sizes, "sequence_parallel", "distributed_optimizer", "overlapped"}
    besides = {"name", "agrees_with", "resumed", "loaded_in", "written"}
    for cell in CELLS.values():
        # Bridge's own initialisation draws other adapters in every layout.
        if cell.ranks > 1 and cell.filled:
            reference = CELLS[cell.agrees_with]
            differing = {name for name in cells.Cell.__slots__ if getattr(cell, name) != getattr(reference, name)}
            assert reference.ranks == 1
            assert differing <= layout | besides


def test_a_checkpoint_that_is_loaded_in_another_layout_differs_in_sizes_alone() -> None:
    changed = [cell for cell in CELLS.values() if cell.loaded_in]
    assert changed
    for cell in changed:
        assert cell.resumed
        # A rank that loads adds to the record of the one that saved.
        assert cell.loading.ranks <= cell.ranks
        assert cell.loaded_in.keys() <= {"tp", "pp", "dp", "ep", "etp", "sequence_parallel"}


def test_cells_are_chosen_by_patterns_with_those_that_they_agree_with() -> None:
    assert chosen_cells([]) == tuple(CELLS)
    assert chosen_cells(["qwen3-plain-tp2"]) == ("qwen3-plain", "qwen3-plain-tp2")
    assert set(chosen_cells(["qwen2-*"])) == {name for name in CELLS if name.startswith("qwen2-")}
    with pytest.raises(UserError, match="--only qwen9: no cell has this name"):
        chosen_cells(["qwen3-plain", "qwen9"])


def test_an_environment_that_is_missing_or_lacks_a_package_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; run `make rehearsal-env`"):
        check_environment(RehearsalPlace(tmp_path / "python", tmp_path, {}))
    bare = tmp_path / "python"
    bare.symlink_to(sys.executable)
    with pytest.raises(UserError, match=r"does not have .*einops.*; run `make rehearsal-env`"):
        check_environment(RehearsalPlace(bare, tmp_path, {}))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match=r"cannot be used \(exit code 3: no\)"):
        check_environment(RehearsalPlace(broken, tmp_path, {}))


def lines_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rehearsal_lines", PROGRAMS / "shared.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = """def outer(value):
    if value:
        return inner(value)
    return 0


def inner(value):
    for _ in range(value):
        value += 1
    return value


def never():
    return 1
"""


def test_entered_lines_and_the_order_of_functions_are_recorded(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "code.py").write_text(SOURCE)
    names: dict[str, object] = {}
    exec(compile(SOURCE, str(tree / "code.py"), "exec"), names)
    outer = names["outer"]
    assert callable(outer)
    entered = lines_module().Lines({str(tree): "src/"})
    before = sys.gettrace()
    entered.start()
    try:
        # What is called often is left alone, and a line that only a later call enters is recorded all the same.
        for _ in range(5):
            outer(0)
        outer(2)
    finally:
        entered.stop()
        sys.settrace(before)
    found = entered.document()
    assert found["functions"] == ["src/code.py:outer", "src/code.py:inner"]
    assert found["lines"] == {"src/code.py": [[1, 4], [7, 10]]}


def test_a_record_names_no_folder_of_its_run(tmp_path: Path) -> None:
    shared = lines_module()
    shared.PLACES.update({"/a/models": "$MODELS", "/a": "$OUT"})
    shared.put(tmp_path / "cell.json", {"hf_model_id": "/a/models/qwen3", "/a/b": ["/a"], "kept": "/another"})
    found = json.loads((tmp_path / "cell.json").read_text())
    assert found == {"hf_model_id": "$MODELS/qwen3", "$OUT/b": ["$OUT"], "kept": "/another"}


def test_the_documented_oracles_are_those_of_the_table() -> None:
    tree = ast.parse((PROGRAMS / "oracles.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Oracle"]
    rows = []
    for call in calls:
        name, proves, bound = call.args[0], call.args[2], call.args[3]
        assert isinstance(name, ast.Constant)
        assert isinstance(proves, ast.Constant)
        shown = {"EXACT": "exact", "NOISE": "2e-5"}[bound.id] if isinstance(bound, ast.Name) else "1e-4"
        rows.append(f"| {ast.literal_eval(name)} | {ast.literal_eval(proves)} | {shown} |")
    assert rows
    text = (Path(__file__).parents[2] / "docs" / "rehearsal.md").read_text()
    assert [row for row in rows if row not in text] == []

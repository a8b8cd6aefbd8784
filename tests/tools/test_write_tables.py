"""The space of settings as tables: every axis, need, exclusion and mask has a row."""

import re

import pytest

from tools.write_tables import axes_table, exclusions_table, implications_table, masks_table
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import EXCLUSIONS, IMPLICATIONS, MASKS


@pytest.mark.parametrize(
    ("table", "rows"),
    (
        (axes_table(), len(Axis)),
        (implications_table(), len(IMPLICATIONS)),
        (exclusions_table(), len({(row.kind, row.reason) for row in EXCLUSIONS})),
        (masks_table(), len(MASKS)),
    ),
    ids=("axes", "needs", "exclusions", "masks"),
)
def test_each_table_has_a_head_and_a_row_for_each_item(table: str, rows: int) -> None:
    lines = table.splitlines()
    assert re.fullmatch(r"\|(---\|)+", lines[1])
    assert len(lines) == rows + 2
    assert {line.count(" | ") for line in (lines[0], *lines[2:])} == {lines[0].count(" | ")}


@pytest.mark.parametrize(
    ("table", "row"),
    (
        (axes_table(), "| tensor | a size | 1 | `COMMON_TP`, `INFER_TP` |"),
        (axes_table(), "| save and resume | on, off | off | `SAVE_FREQ`,"),
        (axes_table(), "| adapter | lora, canonical_lora, dora, vlm_lora, none | lora | `model.lora.type` |"),
        (implications_table(), "| virtual pipeline of 2 or more | pipeline of 2 or more |"),
        (implications_table(), "| expert of 2 or more | a model with `moe` |"),
        (
            exclusions_table(),
            "; adapter none with adapter merge; ",
        ),
        (masks_table(), "| save and resume | data of 2 or more, overlap | with one seed for all samples"),
    ),
)
def test_a_row_says_it_in_words(table: str, row: str) -> None:
    assert row in table


def test_every_exclusion_stands_in_its_row() -> None:
    table = exclusions_table()
    assert [row for row in EXCLUSIONS if " with ".join(map(str, row.traits)) not in table] == []

"""Maps of cells: packaged, and of the out folder of a rehearsal; what cannot be read is said in one sentence."""

import gzip
from pathlib import Path

import pytest

from verl_e2e.config.maps import NAME, cell_map_content, packaged_cell_map, read_cell_map
from verl_e2e.core.model.errors import UserError

LORA = "src/megatron/bridge/peft/lora.py"


def test_the_packaged_map_is_small_and_says_what_cells_enter() -> None:
    cells = packaged_cell_map()
    assert len(cell_map_content(cells)) < 300_000
    entering = {cells.cells[at].name for at in cells.of_function(LORA, "LoRA.transform")}
    assert entering
    assert all(row.settings.get("adapter") for row in cells.cells if row.name in entering)
    assert all(path.startswith("src/megatron/bridge/") for path in cells.files)


def test_what_is_written_is_read_back_and_always_the_same(tmp_path: Path) -> None:
    content = cell_map_content(packaged_cell_map())
    (tmp_path / NAME).write_bytes(content)
    assert read_cell_map(tmp_path) == packaged_cell_map()
    assert cell_map_content(read_cell_map(tmp_path)) == content


@pytest.mark.parametrize(
    ("content", "words"),
    (
        (None, "cannot be read"),
        (b"not packed", "it is damaged"),
        (gzip.compress(b"{}", mtime=0), "commit: Field required"),
        (gzip.compress(b"not JSON", mtime=0), "Invalid JSON"),
        (gzip.compress(b" " * (17 << 20)), "it is larger than 16 MiB"),
    ),
)
def test_what_cannot_be_read_is_the_users_mistake(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    with pytest.raises(UserError, match=words) as raised:
        read_cell_map(tmp_path)
    assert "name the out folder of `verl-e2e rehearse`" in str(raised.value)

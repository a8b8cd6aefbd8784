"""Maps files on disk: what is written can be read again, packed or not, and what is damaged is named."""

import gzip
from pathlib import Path

import pytest

from tests.core.model.test_execution_maps import map_of
from verl_e2e.adapters.files.folders import keep_maps, own_maps
from verl_e2e.config.maps import known_maps, load_maps, maps_content, packaged_maps, read_maps
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MOST_MAPS_BYTES, NO_MAPS, ExecutionMaps

MAPS = ExecutionMaps(maps=(map_of(),))


@pytest.mark.parametrize("name", ["maps.json", "maps.json.gz"])
def test_what_is_kept_is_read_again(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    assert own_maps(file) == NO_MAPS
    keep_maps(MAPS, file)
    assert own_maps(file) == read_maps(file) == MAPS
    assert file.read_bytes() == maps_content(MAPS, name)
    assert file.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert map_of() in known_maps(file).maps


def test_the_packaged_maps_can_be_read() -> None:
    assert known_maps() is packaged_maps()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x1f\x8b damaged", "it is damaged"),
        (maps_content(MAPS, "x.gz")[:-9], "it is damaged"),
        (b"{", "Invalid JSON"),
        (b'{"maps": [{"job": 1}]}', "maps.0.job"),
        (b'{"other": 1}', "other: Extra inputs"),
        (gzip.compress(b" " * (MOST_MAPS_BYTES + 1)), "it is larger than 64 MiB"),
    ],
)
def test_what_is_no_maps_file_is_named(content: bytes, text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        load_maps(content, "maps.json")
    assert str(caught.value).startswith("maps.json: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_maps(tmp_path / "maps.json")

"""Summaries on disk: what comes back is what was kept, and a spoilt file costs time only."""

from pathlib import Path

import pytest

from verl_e2e.adapters.files.reach_cache import SummaryCache
from verl_e2e.core.reach.reader import summarize
from verl_e2e.ports import SummaryStore

SOURCE = b"""
from a.b import c as d
_WHERE = {"E": ".e"}
def __getattr__(name): return _WHERE[name]
@d.impl(int)
def f(x: c): return x.g()
@d("k")
class K(c):
    def m(self): return self.n
"""


@pytest.mark.parametrize("on_disk", (False, True))
def test_what_is_kept_comes_back_the_same(on_disk: bool, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache" if on_disk else None
    first: SummaryStore = SummaryCache(folder)
    kept = {str(number): summarize(SOURCE + b"\n" * number) for number in range(1200)}
    first.save(kept)
    second = SummaryCache(folder) if on_disk else first
    assert second.load([*kept, "unknown"]) == kept


def test_a_spoilt_file_is_as_good_as_none(tmp_path: Path) -> None:
    SummaryCache(tmp_path).save({"a": summarize(SOURCE)})
    file = next(tmp_path.iterdir())
    file.write_bytes(b"not a database at all, but long enough to be taken for one" * 50)
    spoilt = SummaryCache(tmp_path)
    assert spoilt.load(["a"]) == {}
    spoilt.save({"a": summarize(SOURCE)})
    assert spoilt.load(["a"]) == {"a": summarize(SOURCE)}


def test_a_folder_that_cannot_be_made_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = SummaryCache(tmp_path / "file" / "cache")
    store.save({"a": summarize(SOURCE)})
    assert store.load(["a"]) == {"a": summarize(SOURCE)}

"""Uses of a program on disk: what comes back is what was kept, and a spoilt file costs time only."""

from pathlib import Path

import pytest

from verl_e2e.adapters.files.caches import UsesCache
from verl_e2e.core.reach.entries import Uses, uses_of

SOURCES = {
    "app/engine.py": b"from lib import make\n\ndef go(cfg, *more):\n    it = make(cfg, size=2)\n    it.run(*more)\n",
    "app/quiet.py": b"try:\n    import lib.side\nexcept ImportError:\n    lib = None\n",
}


def uses() -> Uses:
    found = uses_of(SOURCES, "lib", "app 1234")
    assert found.entries
    assert found.calls
    return found


def test_what_is_kept_comes_back_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    UsesCache(folder).save("a", uses())
    assert UsesCache(folder).load("a") == uses()
    assert UsesCache(folder).load("b") is None


def test_without_a_folder_nothing_is_kept() -> None:
    cache = UsesCache()
    cache.save("a", uses())
    assert cache.load("a") is None


@pytest.mark.parametrize("text", ("", "{", "[]", "[[[1]],[],3]", '[[],[[1]],"x"]'))
def test_a_spoilt_file_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    cache = UsesCache(tmp_path)
    cache.save("a", uses())
    file = next((tmp_path / "uses").iterdir())
    file.write_text(text)
    assert cache.load("a") is None
    cache.save("a", uses())
    assert cache.load("a") == uses()


def test_a_folder_that_cannot_be_made_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cache = UsesCache(tmp_path / "file" / "cache")
    cache.save("a", uses())
    assert cache.load("a") is None

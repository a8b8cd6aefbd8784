"""Summaries on disk: what comes back is what was kept, and a spoilt file costs time only."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from verl_e2e.adapters.files.caches import SummaryCache, digest_of_program
from verl_e2e.core.plan.reached_files import Marks, ReachedFiles
from verl_e2e.core.reach.diff import FileDifference, compare
from verl_e2e.core.reach.entries import Uses, uses_of
from verl_e2e.core.reach.program import Summary
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
import numba
open("k/l.json")
"""


USER = b"from lib import make\n\ndef go(cfg, *more):\n    it = make(cfg, size=2)\n    it.run(*more)\n"


OLD = b"import a\nX = [1]\ndef f(x):\n    return X\ndef g(): pass\nclass C:\n    def m(self): return 1\n"
NEW = b"import a, b\nX = [2]\ndef f(x, y=1):\n    print('no')\n    return X + [g]\nclass C(a.D):\n    x = '\\ud800'\n"
PAIRS = ((OLD, NEW), (NEW, OLD), (None, NEW), (OLD, None), (OLD, OLD), (OLD, b"return 1"))


USES = uses_of({"app/a.py": USER, "app/b.py": b"import lib.side\n"}, "lib", "app 1234")


@cache
def kept() -> dict[type, dict[str, object]]:
    """Something of each kind, more than one question can name."""
    return {
        Summary: {str(number): summarize(SOURCE + b"\n" * number) for number in range(1200)},
        Marks: {"a": Marks(3, 2), "b": Marks(0)},
        ReachedFiles: {"k": ReachedFiles("a" * 64, "", frozenset({"src/b.py", "src/\udcff.py"}), ("src/",))},
        FileDifference: {str(number): compare(old, new) for number, (old, new) in enumerate(PAIRS)},
        Uses: {"k": USES},
    }


@pytest.mark.parametrize("on_disk", (False, True))
def test_what_is_kept_comes_back_the_same(on_disk: bool, tmp_path: Path) -> None:
    assert USES.entries
    assert USES.calls
    folder = tmp_path / "deep" / "cache" if on_disk else None
    first: SummaryStore = SummaryCache(folder)
    for kind, values in kept().items():
        first.save(kind, values)
    second = SummaryCache(folder) if on_disk else first
    for kind, values in kept().items():
        assert second.load(kind, [*values, "unknown"]) == values


@pytest.mark.parametrize(
    "text", ('{"changes": 1}', '{"changes": [], "functions": {"readers": {"x": 1}}}', "[]", "?", "")
)
def test_a_poisoned_difference_is_ignored_and_written_again(text: str, tmp_path: Path) -> None:
    SummaryCache(tmp_path).save(FileDifference, {"k": compare(OLD, NEW)})
    (file,) = tmp_path.iterdir()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE difference SET text = ?", (text,))
    poisoned = SummaryCache(tmp_path)
    assert poisoned.load(FileDifference, ["k"]) == {}
    poisoned.save(FileDifference, {"k": compare(OLD, NEW)})
    assert SummaryCache(tmp_path).load(FileDifference, ["k"]) == {"k": compare(OLD, NEW)}


def test_another_version_of_the_program_finds_no_difference(tmp_path: Path) -> None:
    SummaryCache(tmp_path, program=lambda: "one").save(FileDifference, {"k": compare(OLD, NEW)})
    assert SummaryCache(tmp_path, program=lambda: "two").load(FileDifference, ["k"]) == {}
    assert SummaryCache(tmp_path, program=lambda: "one").load(FileDifference, ["k"]) == {"k": compare(OLD, NEW)}


def test_the_program_is_known_by_each_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "reach" / "conditions").mkdir(parents=True)
    (tmp_path / "reach" / "__pycache__").mkdir()
    inner = tmp_path / "reach" / "conditions" / "a.py"
    inner.write_text("x = 1\n")
    before = digest_of_program([tmp_path / "reach"])
    (tmp_path / "reach" / "__pycache__" / "a.pyc").write_text("")
    assert digest_of_program([tmp_path / "reach"]) == before
    inner.write_text("x = 2\n")
    assert digest_of_program([tmp_path / "reach"]) != before


@pytest.mark.parametrize("text", ('[["d", "t", "b", 1], [], []]', '[["d"], [], []]', '["d", "t"]', "[]", "?"))
def test_a_poisoned_text_of_what_jobs_can_read_is_ignored(text: str, tmp_path: Path) -> None:
    SummaryCache(tmp_path).save(ReachedFiles, {"k": ReachedFiles()})
    (file,) = tmp_path.iterdir()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE reached SET text = ?", (text,))
    assert SummaryCache(tmp_path).load(ReachedFiles, ["k"]) == {}


@pytest.mark.parametrize("damage", ("other", "cut", "empty", "filled"))
def test_a_spoilt_file_is_as_good_as_none_and_is_replaced(damage: str, tmp_path: Path) -> None:
    SummaryCache(tmp_path).save(Summary, {str(number): summarize(SOURCE + b"\n" * number) for number in range(200)})
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    others = {"other": b"not a database at all, but long enough to be taken for one" * 50, "empty": b""}
    others |= {"cut": whole[: len(whole) // 2], "filled": whole[:100] + b"\xff" * (len(whole) - 100)}
    file.write_bytes(others[damage])
    spoilt = SummaryCache(tmp_path)
    assert spoilt.load(Summary, ["a"]) == {}
    spoilt.save(Summary, {"a": summarize(SOURCE)})
    assert spoilt.load(Summary, ["a"]) == {"a": summarize(SOURCE)}
    assert SummaryCache(tmp_path).load(Summary, ["a"]) == {"a": summarize(SOURCE)}


@pytest.mark.parametrize(
    "text", ("", "{", "[]", "[1]", "[[1],[],3,4]", "[[1],[],3,4,5,6]", "[-1,0]", '["1",0]', "[true,0]", "[" * 9_000)
)
def test_a_poisoned_text_is_ignored_alone_and_written_again(text: str, tmp_path: Path) -> None:
    summary, marks = summarize(SOURCE), Marks(2, 1)
    cache = SummaryCache(tmp_path)
    cache.save(Summary, {"a": summary, "b": summary})
    cache.save(Marks, {"a": marks, "b": marks})
    (file,) = tmp_path.iterdir()
    with closing(sqlite3.connect(file)) as database, database:
        for table in ("summary", "marks"):
            database.execute(f"UPDATE {table} SET text = ? WHERE blob = 'a'", (text,))
    poisoned = SummaryCache(tmp_path)
    assert poisoned.load(Summary, ["a", "b"]) == {"b": summary}
    assert poisoned.load(Marks, ["a", "b"]) == {"b": marks}
    poisoned.save(Summary, {"a": summary})
    poisoned.save(Marks, {"a": marks})
    assert SummaryCache(tmp_path).load(Summary, ["a", "b"]) == {"a": summary, "b": summary}
    assert SummaryCache(tmp_path).load(Marks, ["a", "b"]) == {"a": marks, "b": marks}


def test_the_file_stays_small_and_the_newest_stay_in_it(tmp_path: Path) -> None:
    most = 200_000
    cache = SummaryCache(tmp_path, most)
    for start in range(0, 2000, 50):
        cache.save(Summary, {str(start + number): summarize(SOURCE + b"\n" * number) for number in range(50)})
        cache.save(Marks, {str(start): Marks(1)})
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 2 * most
    assert SummaryCache(tmp_path).load(Marks, ["0", "1950"]) == {"1950": Marks(1)}
    kept = SummaryCache(tmp_path).load(Summary, [str(number) for number in range(2000)])
    assert 50 <= len(kept) < 2000
    assert {str(number) for number in range(1950, 2000)} <= kept.keys()


def test_a_folder_that_cannot_be_made_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = SummaryCache(tmp_path / "file" / "cache")
    store.save(Summary, {"a": summarize(SOURCE)})
    assert store.load(Summary, ["a"]) == {"a": summarize(SOURCE)}

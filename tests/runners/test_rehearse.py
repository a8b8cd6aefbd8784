"""What a rehearsal keeps and uses again, and how records are read; a script stands in for the Python of rehearsals."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.core.compare.test_rehearsal import GOOD, record
from verl_e2e.adapters.files import run_folder as reading
from verl_e2e.adapters.files.run_folder import read_records
from verl_e2e.config.maps import packaged_cell_map, packaged_uses
from verl_e2e.core.compare.cell_map import AskedCells
from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    MOST_RECORD_BYTES,
    CellOutcome,
    CellRecord,
    FaultTargets,
    ObserveLimits,
    RunNote,
    Wanted,
    judge_rehearsal,
)
from verl_e2e.core.model.errors import UserError
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.rehearse import _differing_files, consumer_imports
from verl_e2e_runner.rehearsal.rehearse import RehearsalPlace, _carried, is_kept, run_driver, table_rows

# In the place of the Python: it notes each call, and writes what a driver would into the folder of the request.
PYTHON = """#!/bin/sh
echo "$1" >> {calls}
case "$1" in
*driver.py) /bin/cp {records}/* . ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RehearsalPlace:
    monkeypatch.setattr("verl_e2e_runner.place._UTILITIES", "/nowhere")
    records = tmp_path / "given"
    records.mkdir()
    (records / "a.json").write_text(GOOD.model_dump_json())
    (records / "import.json").write_text(record(IMPORTS).model_dump_json())
    (records / "complete.json").write_text("{}")
    (records / "observed.json").write_text("{}")
    python = tmp_path / "python"
    python.write_text(PYTHON.format(calls=tmp_path / "calls", records=records))
    python.chmod(0o755)
    (tmp_path / "work").mkdir()
    return RehearsalPlace(python, tmp_path / "work", {"PATH": "/nowhere"})


def calls(place: RehearsalPlace) -> list[str]:
    """The scripts that were started since the last look."""
    file = place.python.with_name("calls")
    started = [Path(line).name for line in file.read_text().splitlines()] if file.exists() else []
    file.write_text("")
    return started


@pytest.fixture
def run(place: RehearsalPlace, tmp_path: Path) -> Callable[[Wanted], Path]:
    (tmp_path / "tree").mkdir()

    def started(wanted: Wanted) -> Path:
        out = place.work / "records" / "digest"
        run_driver({tmp_path / "tree": "src/"}, wanted, out, place)
        return out

    return started


def test_models_are_made_by_a_process_of_their_own_and_once(
    place: RehearsalPlace, run: Callable[[Wanted], Path]
) -> None:
    wanted = Wanted(("a",), {})
    run(wanted)
    assert calls(place) == ["make_models.py", "driver.py"]
    run(wanted)
    assert calls(place) == ["driver.py"]
    run(Wanted(("a", "b"), {}))
    assert calls(place) == ["make_models.py", "driver.py"]


def test_models_that_cannot_be_made_are_the_environments_fault(
    place: RehearsalPlace, run: Callable[[Wanted], Path]
) -> None:
    place.python.write_text("#!/bin/sh\necho no torch >&2\nexit 3\n")
    with pytest.raises(
        UserError, match=r"the models cannot be made \(exit code 3: no torch\); run `make rehearsal-env`"
    ):
        run(Wanted(("a",), {}))
    assert not list(place.work.glob("models/*.made"))


def test_sets_have_one_order_in_every_process(place: RehearsalPlace, run: Callable[[Wanted], Path]) -> None:
    place.python.write_text("#!/bin/sh\necho seed $PYTHONHASHSEED >&2\nexit 3\n")
    with pytest.raises(UserError, match="exit code 3: seed 0"):
        run(Wanted(("a",), {}))


def test_the_records_of_a_driver_are_kept_with_the_note_on_it(
    place: RehearsalPlace, run: Callable[[Wanted], Path]
) -> None:
    out = run(Wanted(("a",), {}))
    assert sorted(file.name for file in out.iterdir()) == [
        *("a.json", "complete.json", "driver.log", "import.json", "run.json")
    ]
    assert json.loads((out / "run.json").read_text())["isolated"] is False
    assert not list((place.work / "running").iterdir())
    assert read_records(out, ["a"]) == {IMPORTS: record(IMPORTS), "a": GOOD}


def test_faults_are_tried_over_records_that_are_there(run: Callable[[Wanted], Path]) -> None:
    out = run(Wanted(("a",), {}))
    before = (out / "a.json").stat().st_ino
    run(Wanted(("a",), {}, faults=FaultTargets({"src/x.py:f": (1,)}, ObserveLimits())))
    assert (out / "a.json").stat().st_ino == before
    assert (out / "observed.json").exists()


def test_records_are_kept_only_with_what_is_asked_now(place: RehearsalPlace, run: Callable[[Wanted], Path]) -> None:
    plain = Wanted(("a",), {})
    first, other = (FaultTargets({"src/x.py:f": (line,)}, ObserveLimits()) for line in (1, 2))
    assert not is_kept(place.work / "records" / "digest", plain, place)
    out = run(replace(plain, faults=first))
    assert is_kept(out, plain, place)
    assert is_kept(out, replace(plain, faults=first), place)
    assert not is_kept(out, replace(plain, faults=other), place)
    # What was not kept apart does not serve where it must be.
    assert not is_kept(out, plain, replace(place, require_cage=True))
    (out / "run.json").write_text(RunNote(isolated=True).model_dump_json())
    assert is_kept(out, plain, replace(place, require_cage=True))
    (out / "complete.json").unlink()
    assert not is_kept(out, plain, place)


def test_what_differs_between_two_commits_is_told_of_files_links_and_attributes(tmp_path: Path) -> None:
    def commit() -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (("add", "--all"), (*names, "commit", "--quiet", "-m", "x")):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "src").mkdir()
    files = {"src/same.py": "1", "src/changed.py": "1", "src/gone.py": "1", "src/link.py": "changed.py", "docs.md": "1"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    base = commit()
    for name in ("src/changed.py", "src/new.py", "docs.md", ".gitattributes"):
        (tmp_path / name).write_text("2")
    for name in ("src/gone.py", "src/link.py"):
        (tmp_path / name).unlink()
    (tmp_path / "src/same.py").chmod(0o755)
    # What the link leads to is what the file was, to the letter.
    (tmp_path / "src/link.py").symlink_to("changed.py")
    assert _differing_files(GitRepository(tmp_path), base, commit(), "src/") == {
        "src/changed.py": (b"1", b"2"),
        "src/gone.py": (b"1", None),
        "src/new.py": (None, b"2"),
        "src/link.py": (None, None),
        ".gitattributes": (None, b"2"),
    }


def test_a_carried_record_is_the_bases_but_for_its_lines_and_says_so(tmp_path: Path) -> None:
    name, quantities = "qwen3-plain", {"step1/loss@0": float("nan")}
    of_import, of_cell = ({"lines": {"src/a.py": [[first, 3]]}} for first in (1, 2))
    base = {IMPORTS: record(IMPORTS, entered=of_import), name: record(name, entered=of_cell)}
    for cell, kept in base.items():
        document = {**kept.model_dump(mode="json"), "quantities": quantities}
        (tmp_path / f"{cell}.json").write_text(json.dumps(document))
    moved = {"src/a.py": (b"def f():\n    a()\n    b()\n", b"# new\ndef f():\n    a()\n    b()\n")}
    head = tmp_path / "head"
    head.mkdir()
    for cell, text in _carried(tmp_path, Wanted((name,), {}), moved).items():
        (head / f"{cell}.json").write_text(text)
    (head / "import.json").write_bytes((tmp_path / "import.json").read_bytes())
    found = read_records(head, [name])
    assert found[name].carried
    assert found[name].entered.lines == {"src/a.py": ((3, 4),)}
    assert judge_rehearsal(read_records(tmp_path, [name]), found, ()).outcome is CellOutcome.EQUAL


def test_what_the_consumer_imports_comes_from_the_packaged_uses_each_once() -> None:
    found = [(item["module"], item["attribute"]) for item in consumer_imports()]
    used = {(entry.module, entry.attribute) for entry in packaged_uses().entries if entry.module}
    assert set(found) == used
    assert len(found) == len(used)
    assert ("megatron.bridge", "AutoBridge") in used


def test_a_name_is_guarded_where_every_place_does_without_it() -> None:
    guarded = {(item["module"], item["attribute"]): item["guarded"] for item in consumer_imports()}
    for entry in packaged_uses().entries:
        if entry.module and not entry.guarded:
            assert guarded[entry.module, entry.attribute] is False


DEEP = '{"cell":"a","error":null,"quantities":' + '{"a":' * 5000 + "1" + "}" * 5001


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "not json",
        DEEP,
        '{"cell":"a","error":null,"quantities":{"x":"\\ud800"}}',
        '{"cell":"a","error":null,"quantities":{"x":1' + "0" * 5000 + "}}",
        '{"cell":"b","error":null}',
        '{"cell":"a"}',
        '{"cell":"a","error":null}' + " " * MOST_RECORD_BYTES,
    ],
)
def test_a_record_that_is_not_one_is_not_there(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_records(tmp_path, ["a"]) == {}


def test_no_more_bytes_are_read_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(GOOD.model_copy(update={"cell": name}).model_dump_json())
    assert set(read_records(tmp_path, ["a", "b"])) == {"a", "b"}
    monkeypatch.setattr(reading, "MOST_BYTES_OF_ALL", 10)
    assert set(read_records(tmp_path, ["a", "b"])) == {"a"}


def test_what_is_no_record_takes_of_the_bytes_too_and_none_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    kept = reading.read_document

    def counted(file: Path, kind: type[CellRecord]) -> CellRecord | None:
        opened.append(file.name)
        return kept(file, kind)

    monkeypatch.setattr(reading, "read_document", counted)
    (tmp_path / "a.json").write_text("no record")
    assert read_records(tmp_path, ["a", "a", "a"]) == {}
    assert opened == ["import.json", "a.json"]
    monkeypatch.setattr(reading, "MOST_BYTES_OF_ALL", 5)
    assert read_records(tmp_path, ["a", "b"]) == {}
    assert opened[2:] == ["import.json", "a.json"]


def test_one_side_is_not_read_as_the_other(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/a.json").write_text(GOOD.model_copy(update={"cell": "a"}).model_dump_json())
    (tmp_path / "head").symlink_to("base")
    assert set(read_records(tmp_path / "base", ["a"])) == {"a"}
    assert read_records(tmp_path / "head", ["a"]) == {}


@pytest.mark.parametrize("name", ["../base/a", "a/b", "a\0", "", ".", "x" * 300])
def test_a_cell_whose_name_is_no_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(ValidationError):
        AskedCells(cells=(name,))


def test_only_the_cells_that_were_asked_for_are_read(tmp_path: Path) -> None:
    (tmp_path / "surprise.json").write_text(GOOD.model_copy(update={"cell": "surprise"}).model_dump_json())
    assert read_records(tmp_path, ["a"]) == {}


def test_the_packaged_map_has_each_row_of_the_table() -> None:
    """A rehearsal is judged by these rows: rehearse the pin against itself and package its map where this fails."""
    packaged = {row.name: row.model_copy(update={"outcome": None}) for row in packaged_cell_map().cells}
    assert packaged == {row.name: row for row in table_rows()}

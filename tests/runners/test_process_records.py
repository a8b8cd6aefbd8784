"""What code under test may leave in the place of its execution record, and what is made of it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.recorded import MLM, SOURCE, Place, lines, names
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.model.execution import MOST_PROCESSES, Executed, ProcessRole
from verl_e2e_runner.folder.process_records import BRIDGE_TESTS_PHASE, MOST_PROCESS_BYTES, read_process, role_of

BEGIN = ["process", 7, "3.12.3", "python3", "", "", 1.0]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, changed=(SOURCE,))
    with made.recorder:
        yield made


def _leave(place: Place, *entries: object, name: str = "1.jsonl", begin: object = BEGIN) -> None:
    text = "".join(json.dumps(entry) + "\n" for entry in (begin, *entries))
    (place.folder / name).write_text(text)


def _function(place: Place, path: str = SOURCE, symbol: str = "f", line: object = 3) -> list[object]:
    return ["function", f"{place.root}/bridge/{path}", line, symbol, 2.0]


def test_a_path_is_taken_as_text_and_only_where_it_lies_in_a_tree(place: Place) -> None:
    bridge = f"{place.root}/bridge"
    forged = ("/etc/passwd", f"{bridge}/../verl/x.py", f"{bridge}/./x.py", f"{bridge}//x.py", "x.py", bridge)
    _leave(place, _function(place), *(["function", path, 1, "forged", 2.0] for path in forged))
    executed = place.executed()
    assert [file.path for file in executed.files] == [SOURCE]
    assert executed.cut == (f"{len(forged)} functions of files outside of the trees under test",)


def test_a_module_that_was_imported_is_listed_only_where_it_lies_in_a_tree(place: Place) -> None:
    paths = (f"{place.root}/bridge/{SOURCE}", f"{place.root}/bridge/../verl/x.py", "/etc/passwd")
    _leave(place, *(["module", path, 2.0] for path in paths))
    executed = place.executed()
    assert [(file.path, file.functions, file.lines) for file in executed.files] == [(SOURCE, (), {})]
    assert executed.cut == ("2 modules outside of the trees under test",)


def test_a_tree_of_megatron_lm_of_its_own_has_the_place_of_the_submodule(tmp_path: Path) -> None:
    place = Place(tmp_path, changed=(MLM,), megatron_lm=tmp_path / "other")
    with place.recorder:
        path = f"{tmp_path}/other/megatron/core/layers.py"
        assert json.loads(place.settings.read_text())["changed"] == [path]
        _leave(place, ["function", path, 1, "Linear", 2.0], ["line", path, 4, 2.0])
        executed = place.executed()
    assert (names(executed, MLM), lines(executed, MLM)) == ({"Linear"}, {4})


@pytest.mark.parametrize(
    "entry",
    [
        ["function", "PATH", 3, "f"],
        ["function", "PATH", 0, "f", 1.0],
        ["function", "PATH", 3, "", 1.0],
        ["function", "PATH", True, "f", 1.0],
        ["function", "PATH", "3", "f", 1.0],
        ["function", "PATH", 3, "f" * 501, 1.0],
        ["function", "P" * 9_000, 3, "f", 1.0],
        ["line", "PATH", 3, float("nan")],
        ["line", "PATH", 3, "now"],
        ["title", "t" * 201, "", 1.0],
        ["other", 1.0],
        BEGIN,
        {"function": 1},
        [[[[]]]],
        None,
    ],
)
def test_an_entry_of_another_shape_is_counted(entry: object, place: Place) -> None:
    text = json.dumps(entry).replace("PATH", f"{place.root}/bridge/{SOURCE}")
    _leave(place, _function(place))
    with (place.folder / "1.jsonl").open("a") as file:
        file.write(f"{text}\n")
    executed = place.executed()
    assert names(executed, SOURCE) == {"f"}
    assert executed.cut == ("1 lines of processes that cannot be read",)


@pytest.mark.parametrize("raw", [b"", b"\0" * 5000, b"[" * 100_000, b'["line", "/x", 1, 1.0]\n', b"\xff\xfe\n"])
def test_a_file_that_does_not_begin_as_a_record_is_not_one(raw: bytes, place: Place) -> None:
    (place.folder / "1.jsonl").write_bytes(raw)
    executed = place.executed()
    assert (executed.processes, executed.cut) == ((), ("1 files of processes that cannot be read",))
    assert "no process" in executed.problem


def test_a_line_that_was_cut_is_counted_and_the_rest_is_read(place: Place) -> None:
    _leave(place, _function(place))
    with (place.folder / "1.jsonl").open("a") as file:
        file.write('["line", "/')
    executed = place.executed()
    assert names(executed, SOURCE) == {"f"}
    assert executed.cut == ("1 lines of processes that cannot be read",)


def test_links_pipes_and_folders_are_not_read(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(BEGIN) + "\n" + json.dumps(_function(place, symbol="of_another_file")) + "\n")
    (place.folder / "link.jsonl").symlink_to(secret)
    os.mkfifo(place.folder / "pipe.jsonl")
    (place.folder / "folder.jsonl").mkdir()
    executed = place.executed()
    assert (executed.processes, executed.files) == ((), ())


def test_a_link_in_the_place_of_the_folder_is_not_followed(place: Place, tmp_path: Path) -> None:
    _leave(place, _function(place))
    place.folder.rename(tmp_path / "elsewhere")
    place.folder.symlink_to(tmp_path / "elsewhere")
    assert place.executed().files == ()


def test_a_huge_file_is_read_up_to_its_limit(place: Place) -> None:
    with (place.folder / "1.jsonl").open("w") as file:
        file.write(json.dumps(BEGIN) + "\n")
        file.write(json.dumps(_function(place)) + "\n")
        file.truncate(MOST_PROCESS_BYTES * 4)
    executed = place.executed()
    assert names(executed, SOURCE) == {"f"}
    assert executed.processes[0].problem == "it ran more than is recorded of one process"
    assert executed.problem == ""


def test_only_so_many_processes_are_read(place: Place) -> None:
    for number in range(MOST_PROCESSES + 3):
        _leave(place, name=f"{number:05d}.jsonl")
    executed = place.executed()
    assert (len(executed.processes), executed.cut) == (MOST_PROCESSES, ("3 processes left out",))


def test_of_many_processes_of_one_kind_each_function_names_some(place: Place) -> None:
    for number in range(60):
        _leave(place, _function(place), name=f"{number:05d}.jsonl")
    executed = place.executed()
    (file,) = executed.files
    assert len(executed.processes) == 60
    assert list(file.functions[0].first_s) == list(range(16))


def test_a_document_that_would_be_too_large_to_be_judged_names_fewer_processes(place: Place) -> None:
    entries = [_function(place, symbol=f"f{number}", line=number + 1) for number in range(4_000)]
    others = [_function(place, path=f"src/other{number}.py", symbol="g") for number in range(4_000)]
    for number in range(30):
        _leave(place, *entries, *others, name=f"{number:05d}.jsonl")
    executed = place.executed()
    assert executed.cut == ()
    assert {len(function.first_s) for file in executed.files for function in file.functions} == {4}
    place.recorder.document("executed.json", executed)
    missing = read_record(place.root / "out").missing
    assert not [entry for entry in missing if entry.startswith("executed.json")]


def test_what_finds_no_room_at_all_is_counted_and_the_changed_file_is_kept(place: Place) -> None:
    others = [_function(place, path=f"src/a{number}.py", symbol="g") for number in range(7_900)]
    many = [_function(place, path="src/b.py", symbol=f"f{number}") for number in range(4_999)]
    _leave(place, *others, *many, _function(place))
    _leave(place, *[_function(place, path=f"src/c{number}.py", symbol="g") for number in range(9_000)], name="2.jsonl")
    executed = place.executed()
    assert names(executed, SOURCE) == {"f"}
    assert [cut for cut in executed.cut if cut.endswith("files left out")]


def test_lines_of_a_file_that_the_change_does_not_touch_are_left_out(place: Place) -> None:
    bridge = f"{place.root}/bridge"
    _leave(place, ["line", f"{bridge}/{SOURCE}", 3, 2.0], ["line", f"{bridge}/{MLM}", 3, 2.0])
    executed = place.executed()
    assert (lines(executed, SOURCE), lines(executed, MLM)) == ({3}, set())
    assert executed.cut == ("1 lines of files that the change does not touch",)


def test_times_lie_within_the_run(place: Place) -> None:
    _leave(place, [*_function(place)[:4], 1e300], begin=[*BEGIN[:6], -1e9])
    executed = place.executed()
    elapsed = place.recorder.elapsed()
    assert executed.processes[0].began_s == 0
    assert 0 <= executed.files[0].functions[0].first_s[0] <= elapsed


def test_the_earliest_time_of_a_function_counts() -> None:
    raw = "\n".join(
        json.dumps(entry) for entry in (BEGIN, ["function", "/x", 1, "f", 5.0], ["function", "/x", 1, "f", 4])
    )
    record = read_process(raw.encode())
    assert record is not None
    assert list(record.functions.values()) == [4]


@pytest.mark.parametrize(
    ("titles", "role", "title"),
    [
        (["python3 -m verl.trainer.main_ppo"], ProcessRole.DRIVER, "python3 -m verl.trainer.main_ppo"),
        (["ray::IDLE", "ray::TaskRunnerV1"], ProcessRole.CONTROLLER, "ray::TaskRunnerV1"),
        (["ray::IDLE", "ray::WorkerDict", "ray::IDLE"], ProcessRole.TRAINER, "ray::WorkerDict"),
        (["python3 -c", "VLLM::EngineCore"], ProcessRole.ROLLOUT, "VLLM::EngineCore"),
        (["ray::vLLMHttpServer", "VLLM::Worker_TP1"], ProcessRole.ROLLOUT, "VLLM::Worker_TP1"),
        (["ray::IDLE", "ray::AgentLoopWorkerTQ"], ProcessRole.OTHER, "ray::AgentLoopWorkerTQ"),
        (["ray::AgentLoopWorker", "ray::IDLE"], ProcessRole.OTHER, "ray::AgentLoopWorker"),
        (["ray::IDLE"], ProcessRole.OTHER, "ray::IDLE"),
        (["python3 init_random_model.py"], ProcessRole.OTHER, "python3 init_random_model.py"),
        ([], ProcessRole.OTHER, ""),
    ],
)
def test_the_title_tells_the_role(titles: list[str], role: ProcessRole, title: str) -> None:
    assert role_of(titles) == (role, title)


@pytest.mark.parametrize(("rank", "known"), [("3", 3), ("", None), ("x", None), ("-1", None), ("٣", None)])
def test_a_rank_is_a_trainers(rank: str, known: int | None, place: Place) -> None:
    _leave(place, begin=["process", 7, "3.12.3", "ray::WorkerDict", rank, "", 1.0])
    _leave(place, begin=["process", 8, "3.12.3", "ray::IDLE", rank, "", 1.0], name="2.jsonl")
    assert [process.rank for process in place.executed().processes] == [known, None]


def test_every_process_of_the_bridge_tests_is_one_of_a_bridge_test(place: Place) -> None:
    _leave(place, begin=["process", 7, "3.12.3", "ray::WorkerDict", "1", "", 1.0])
    (process,) = place.executed(BRIDGE_TESTS_PHASE).processes
    assert (process.role, process.phase, process.rank) == (ProcessRole.BRIDGE_TEST, "bridge_tests", None)


def test_where_some_processes_could_not_record_the_record_is_none_the_less_one(place: Place) -> None:
    _leave(place, begin=["process", 7, "3.11.9", "pytest", "", "it has no sys.monitoring", 1.0])
    alone = place.executed(BRIDGE_TESTS_PHASE)
    assert alone.problem == "Python 3.11.9: it has no sys.monitoring"
    _leave(place, _function(place), name="2.jsonl")
    both = place.executed()
    assert both.problem == ""
    assert [process.problem for process in both.processes] == ["Python 3.11.9: it has no sys.monitoring", ""]


def test_the_document_can_be_read_again(place: Place) -> None:
    _leave(place, _function(place), ["line", f"{place.root}/bridge/{SOURCE}", 3, 2.0])
    executed = place.executed()
    place.recorder.document("executed.json", executed)
    assert Executed.model_validate_json((place.root / "out/executed.json").read_bytes()) == executed

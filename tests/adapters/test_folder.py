"""Run folders on disk: whatever lies there is read or named as missing, and never breaks the judge."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.run_folders import write_run_folder
from tests.core.builders import make_job, make_record
from tests.core.executions import REMOVED, TRANSFORM, ran
from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files import run_folder as disk
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import EXECUTED_FILE
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import RELATED_FILE, Related, RelatedRun, RelatedStep, Role


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run_folder(tmp_path / "run", make_record(), b"a log\n")


def test_a_whole_folder_is_read_back_as_it_was(run: Path) -> None:
    assert disk.read_record(run) == make_record()
    assert disk.find_jobs(run) == (run,)
    assert disk.find_log(run) == run / "log.txt.zst"


def test_the_records_of_what_ran_are_read_on_both_sides(run: Path) -> None:
    head, base = ran(TRANSFORM), ran(REMOVED, bridge_commit="d" * 40)
    of_base = run / "related" / "merge_base"
    of_base.mkdir(parents=True)
    (run / EXECUTED_FILE).write_text(head.model_dump_json())
    (of_base / EXECUTED_FILE).write_text(base.model_dump_json())
    record = disk.read_record(run)
    assert (record.executed, record.base_executed, record.missing) == (head, base, ())


def test_a_record_of_the_merge_base_that_cannot_be_read_is_missing_there_alone(run: Path) -> None:
    of_base = run / "related" / "merge_base"
    of_base.mkdir(parents=True)
    (of_base / EXECUTED_FILE).write_text("{")
    record = disk.read_record(run)
    assert (record.base_executed, record.missing) == (None, ())


FILES = ("job.json", "environment.json", "events.jsonl", "imports.jsonl", "metrics.jsonl", "config.json", "log.txt.zst")


def test_a_folder_with_only_a_log_names_everything_else(tmp_path: Path) -> None:
    (tmp_path / "log.txt.zst").write_bytes(b"")
    record = disk.read_record(tmp_path)
    assert record.missing == tuple(f"{name}: not there" for name in FILES[:-1])
    assert (record.job, record.environment, record.events, record.imports, record.tests) == (None, None, (), (), None)


@pytest.mark.parametrize("name", FILES)
def test_each_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert disk.read_record(run).missing == (f"{name}: not there",)


@pytest.mark.parametrize(("required", "named"), [(True, ("junit.xml: not there",)), (False, ())])
def test_the_test_result_is_missed_only_where_it_is_required(tmp_path: Path, required: bool, named: tuple[str]) -> None:
    record = make_record(job=make_job(require_bridge_checks=required), tests=None)
    assert disk.read_record(write_run_folder(tmp_path / "run", record, b"")).missing == named


def spoil(path: Path, text: bytes) -> None:
    path.write_bytes(text)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("job.json", b"", "job.json: the document: Invalid JSON"),
        ("job.json", b"[]", "job.json: the document: Input should be an object"),
        ("job.json", b'{"id": "0-x", "extra": 1}', "job.json: level: Field required"),
        ("job.json", b"[" * 100_000, "job.json: the document: Invalid JSON"),
        ("environment.json", b'{"schema": 3}', "environment.json: schema: Input should be 1"),
        ("environment.json", b"\xff\xfe", "environment.json: the document: Invalid JSON"),
        ("metrics.jsonl", b'{"step": 1}\n{"st', "metrics.jsonl: line 2 cannot be read"),
        ("metrics.jsonl", b"[" * 100_000, "metrics.jsonl: line 1 cannot be read"),
        ("config.json", b'{"schema": 1', "config.json: not a JSON document"),
        ("config.json", b"\0\0", "config.json: not a JSON document"),
        ("junit.xml", b"<testsuite", "junit.xml: not readable as JUnit (unclosed token: line 1, column 0)"),
        ("junit.xml", b"<!DOCTYPE x><testsuite/>", "junit.xml: not readable as JUnit (it declares a document type)"),
    ],
)
def test_a_broken_document_is_named_with_its_key(run: Path, name: str, text: bytes, words: str) -> None:
    (run / name).write_bytes(text)
    (missing,) = disk.read_record(run).missing
    assert missing.startswith(words)


def test_lines_are_read_up_to_the_first_that_is_cut(run: Path) -> None:
    events = run / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(b"\n" + whole[:-30])
    record = disk.read_record(run)
    assert record.events == make_record().events[:-1]
    assert record.missing == ("events.jsonl: line 6 cannot be read",)


def test_too_many_lines_are_named_not_dropped_in_silence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MAX_JSON_LINES", 3)
    record = disk.read_record(run)
    assert len(record.events) == 3
    assert "events.jsonl: more than 3 lines" in record.missing


def test_a_document_of_absurd_size_is_not_read(run: Path) -> None:
    with (run / "job.json").open("wb") as file:
        file.truncate(disk.MAX_DOCUMENT_BYTES + 1)
    record = disk.read_record(run)
    assert record.job is None
    assert record.missing == ("job.json: larger than 16,777,216 bytes",)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _folder, _device])
def test_what_is_no_file_is_not_read(run: Path, make: Callable[[Path], None]) -> None:
    (run / "junit.xml").unlink()
    make(run / "junit.xml")
    assert disk.read_record(run).missing == ("junit.xml: not a regular file",)


def test_a_loop_of_links_is_named(run: Path) -> None:
    (run / "job.json").unlink()
    (run / "job.json").symlink_to("job.json")
    assert disk.read_record(run).missing == ("job.json: Too many levels of symbolic links",)


@pytest.mark.parametrize("name", ["log.txt.zst", "log.txt", "log.txt.xz", "log.txt.gz", "level0.log", "x.log.zst"])
def test_a_log_is_found_under_its_known_names_or_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert disk.find_log(tmp_path) == tmp_path / name
    assert disk.read_record(tmp_path).log == name


def test_of_several_other_logs_none_is_taken(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"")
    assert disk.find_log(tmp_path) is None
    (tmp_path / "log.txt").write_bytes(b"")
    assert disk.find_log(tmp_path) == tmp_path / "log.txt"


def test_a_folder_that_is_not_there_has_everything_missing(tmp_path: Path) -> None:
    assert disk.find_log(tmp_path / "none") is None
    assert disk.read_record(tmp_path / "none").missing == tuple(f"{name}: not there" for name in FILES)


def mistake(call: Callable[[], object]) -> str:
    with pytest.raises(disk.FolderError) as raised:
        call()
    assert isinstance(raised.value, UserError)
    return str(raised.value)


def test_the_run_folders_of_a_check_in_name_order(tmp_path: Path) -> None:
    for name in ("2-dense", "0-lora-ddp", "0-lora-ddp-base"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    (tmp_path / "jobs" / "0-lora-ddp" / "events.jsonl").write_text("")
    (tmp_path / "jobs" / "note.txt").write_text("")
    assert [path.name for path in disk.find_jobs(tmp_path)] == ["0-lora-ddp", "0-lora-ddp-base", "2-dense"]


def test_no_folder_and_no_jobs_are_the_user_s_mistake(tmp_path: Path) -> None:
    assert "not a folder; give the --out folder" in mistake(lambda: disk.find_jobs(tmp_path / "none"))
    (tmp_path / "jobs").mkdir()
    assert "no run folder in it" in mistake(lambda: disk.find_jobs(tmp_path))


@pytest.mark.parametrize(
    "name", ["notes.md", "config.json", "metrics.jsonl", "jobs/lint/notes.md", "log.txt", "run.log"]
)
def test_a_folder_without_a_run_is_the_user_s_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("of another program\n")
    text = mistake(lambda: disk.find_jobs(tmp_path))
    assert "no run" in text
    assert ("verl-e2e triage" in text) == (name in ("log.txt", "run.log"))


@pytest.mark.parametrize("name", ["job.json", "events.jsonl"])
def test_a_run_that_was_cut_right_after_its_first_file_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert disk.find_jobs(tmp_path) == (tmp_path,)


@pytest.mark.parametrize("jobs", [True, False])
def test_a_check_that_needed_no_job_has_no_run_folder(tmp_path: Path, jobs: bool) -> None:
    (tmp_path / "plan.json").write_text('{"jobs": []}')
    if jobs:
        (tmp_path / "jobs").mkdir()
    assert disk.find_jobs(tmp_path) == ()
    assert disk.planned_jobs(tmp_path) == {}


def test_planned_jobs_are_read_from_the_plan(tmp_path: Path) -> None:
    assert disk.planned_jobs(tmp_path) == {}
    (tmp_path / "plan.json").write_text('{"jobs": [{"id": "0-lora-ddp", "level": 0}, {"id": "2-vpp", "level": 2}]}')
    assert disk.planned_jobs(tmp_path) == {"0-lora-ddp": Level.SMOKE, "2-vpp": Level.PARALLELISM}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"jobs": [{"id": "x", "level": 9}]}', '{"jobs": 1}', "[" * 100_000])
def test_a_plan_that_cannot_be_read_is_never_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    assert "make it again with `verl-e2e check`" in mistake(lambda: disk.planned_jobs(tmp_path))


def test_a_plan_that_is_no_file_is_never_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    assert "plan.json: not a regular file" in mistake(lambda: disk.planned_jobs(tmp_path))


def test_files_are_written_whole_and_over_older_ones(tmp_path: Path) -> None:
    disk.write_files(tmp_path, {"card.txt": "old"})
    disk.write_files(tmp_path, {"card.txt": "Ünï\n", "card.md": "x"})
    assert (tmp_path / "card.txt").read_bytes() == "Ünï\n".encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.md", "card.txt"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "card.txt").mkdir()
    assert "card.txt: cannot be written: Is a directory; remove what is there" in mistake(
        lambda: disk.write_files(tmp_path, {"card.txt": ""})
    )


@pytest.mark.parametrize("make", [lambda path, to: path.symlink_to(to), lambda path, _: os.mkfifo(path)])
def test_nothing_is_written_through_what_a_folder_brings(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "run"
    theirs.write_text("kept")
    folder.mkdir()
    make(folder / ".card.txt.part", theirs)
    make(folder / "card.txt", theirs)
    disk.write_files(folder, {"card.txt": "ours"})
    assert theirs.read_text() == "kept"
    assert (folder / "card.txt").read_text() == "ours"
    assert not (folder / "card.txt").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["card.txt"]


def test_an_empty_record_is_equal_to_none_read(tmp_path: Path) -> None:
    empty = disk.read_record(tmp_path)
    assert empty == Record(missing=tuple(f"{name}: not there" for name in FILES))


BESIDE = RelatedRun(
    role=Role.MERGE_BASE,
    job_id="0-lora-ddp",
    job_digest="e" * 64,
    bridge_commit="d" * 40,
    folder="related/merge_base",
    result=Result.FAIL,
    stage=Stage.PEFT,
    cause="planted",
    fingerprint=("no_exception: ValueError",),
    steps=(RelatedStep(step=1, values={"actor/grad_norm": math.inf, "actor/loss": 0.5}),),
)


def test_the_runs_beside_a_run_are_read_back_as_they_were_written(run: Path) -> None:
    document = Related(runs=(BESIDE,), not_run={Role.RETRY: "interrupted"})
    disk.write_files(run, {RELATED_FILE: document.model_dump_json()})
    record = disk.read_record(run)
    assert (record.related, record.related_not_run) == ((BESIDE,), {Role.RETRY: "interrupted"})
    assert record.missing == ()


def test_a_value_that_is_no_number_is_kept_as_one(run: Path) -> None:
    step = RelatedStep(step=1, values={"actor/loss": math.nan})
    document = Related(runs=(BESIDE.model_copy(update={"steps": (step,)}),))
    disk.write_files(run, {RELATED_FILE: document.model_dump_json()})
    (read,) = disk.read_record(run).related
    assert math.isnan(read.steps[0].values["actor/loss"])


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 3}', '{"runs": [{"role": "friend"}]}', "[" * 100_000])
def test_runs_beside_a_run_that_cannot_be_read_are_missing(run: Path, text: str) -> None:
    (run / RELATED_FILE).write_text(text)
    record = disk.read_record(run)
    assert record.related == ()
    assert [row.partition(":")[0] for row in record.missing] == [RELATED_FILE]


def test_related_folders_are_part_of_their_run_and_no_jobs(tmp_path: Path) -> None:
    main = write_run_folder(tmp_path / "out" / "jobs" / "0-lora-ddp", make_record(), b"a log\n")
    write_run_folder(main / "related" / "merge_base", make_record(), b"a log\n")
    (main / "related" / "merge_base.job.json").write_text("{}")
    assert disk.find_jobs(tmp_path / "out") == (main,)
    assert disk.find_jobs(main) == (main,)
    assert disk.find_jobs(main / "related" / "merge_base") == (main / "related" / "merge_base",)


def test_the_times_of_stages_are_those_of_the_last_phase() -> None:
    times = disk.stage_times(FIXTURES / "runs" / "level1-resume")
    assert times[Stage.CHECKPOINT_LOAD] == 603.314
    assert times[Stage.TRAIN_STEP] == 609.647, "294.6 is the save phase's"
    assert Stage.RAY not in times, "the resume phase was seen again from its provider on"


BOMBS = {
    "empty objects": '{"schema": 1, "runs": [' + ",".join(["{}"] * 400_000) + "]}",
    "unknown keys": '{"schema": 1, ' + ",".join(f'"a{number}": 1' for number in range(400_000)) + "}",
    "wrong roles": '{"schema": 2, "not_run": {' + ",".join(f'"a{number}": 1' for number in range(200_000)) + "}}",
    "depth": "[" * 900_000,
    "a number": '{"schema": ' + "1" * 8_000_000 + "}",
    "values": '{"schema": 1, "runs": [' + "[]," * 2_000_000,
}


@pytest.mark.parametrize("document", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("name", ["related.json", "environment.json", "checkpoints.json", "job.json"])
def test_a_document_with_endless_mistakes_is_told_in_one_sentence(run: Path, name: str, document: str) -> None:
    (run / name).write_text(document)
    began = time.process_time()
    missing = [message for message in disk.read_record(run).missing if message.startswith(name)]
    assert len(missing) == 1
    assert len(missing[0]) < 500
    assert time.process_time() - began < 15


def test_mistakes_beyond_number_are_counted_and_not_listed(run: Path) -> None:
    (run / "related.json").write_text(BOMBS["wrong roles"])
    (message,) = (message for message in disk.read_record(run).missing if message.startswith("related.json"))
    assert message == "related.json: 400,000 mistakes in it"

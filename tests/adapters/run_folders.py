"""Writes a run folder as the runner leaves it, from a record and a log."""

from pathlib import Path
from xml.sax.saxutils import quoteattr

from backports import zstd
from pydantic import BaseModel

from verl_e2e.core.model.record import Record, TestCase


def write_run_folder(folder: Path, record: Record, log: bytes | None) -> Path:
    """Lay the documents of a record and the log into a new folder, as `verl-e2e run` does; returns the folder."""
    folder.mkdir(parents=True)
    for name, document in (("job.json", record.job), ("environment.json", record.environment)):
        if document is not None:
            (folder / name).write_text(document.model_dump_json(indent=2))
    _write_lines(folder / "events.jsonl", record.events)
    _write_lines(folder / "imports.jsonl", record.imports)
    if record.tests is not None:
        cases = "".join(_case(test) for test in record.tests)
        stated = f'<property name="bridge_commit" value={quoteattr(record.tests_commit)}/>'
        (folder / "junit.xml").write_text(f"<testsuites><testsuite>{stated}{cases}</testsuite></testsuites>")
    if log is not None:
        (folder / record.log).write_bytes(zstd.compress(log))
    (folder / "metrics.jsonl").write_text("")
    (folder / "config.json").write_text("{}")
    return folder


def _write_lines(path: Path, documents: tuple[BaseModel, ...]) -> None:
    path.write_text("".join(f"{document.model_dump_json()}\n" for document in documents))


def _case(test: TestCase) -> str:
    inner = {"passed": "", "failed": f"<failure message={quoteattr(test.message)}/>", "skipped": "<skipped/>"}
    return f"<testcase name={quoteattr(test.name)}>{inner[test.outcome]}</testcase>"

"""The report of a recorded run: one file without a network, whose links lead to the lines that decided."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.judge_folder import judge_run, write_judgement
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.record import LOG_FILE
from verl_e2e.pages.report import LOG_PAGE_FILE, REPORT_FILE, link_of, linked_lines, render_log_page, render_run_report

RUNS = FIXTURES / "runs"


class Page(HTMLParser):
    """The ids and addresses of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src", "action"):
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for file in (RUNS / "level0-lora-exception").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    folders = run_folders()
    write_judgement(folders, folder, (judge_run(folders, folder)[0],))
    return folder


def test_a_failed_run_says_what_where_and_what_now(failed: Path) -> None:
    page = Page((failed / REPORT_FILE).read_text())
    assert "LoRA could not be applied" in page.text
    assert "src/megatron/bridge/peft/lora.py:189 in transform" in page.text
    assert 'raise ValueError(f"LoRA cannot wrap {full_name}: the input size is unknown")' in page.text
    assert {"where", "next", "command", "timeline", "evidence", "environment"} <= page.ids


def test_every_link_leads_to_something_in_the_folder(failed: Path) -> None:
    page, log = Page((failed / REPORT_FILE).read_text()), Page((failed / LOG_PAGE_FILE).read_text())
    assert f"{LOG_PAGE_FILE}#L1299" in page.addresses
    for address in page.addresses:
        file, _, anchor = address.partition("#")
        assert (failed / file).exists(), address
        assert not anchor or anchor in log.ids, address


def test_a_log_of_another_name_is_linked_too(failed: Path) -> None:
    (failed / LOG_FILE).rename(failed / "run.log.zst")
    folders = run_folders()
    write_judgement(folders, failed, (judge_run(folders, failed)[0],))
    assert f"{LOG_PAGE_FILE}#L1299" in Page((failed / REPORT_FILE).read_text()).addresses
    assert "L1299" in Page((failed / LOG_PAGE_FILE).read_text()).ids
    assert "1299: decided" in Page((failed / LOG_PAGE_FILE).read_text()).text


def test_a_line_of_a_log_hides_and_turns_nothing() -> None:
    (row,) = re.findall(r"</a> (.*)", "".join(render_log_page("x", ["  \x1b[31mred\x1b[0m \u202eevil\x00\r"], {})))
    assert row == "  red evil"
    assert f"... ({10**6} characters)" in "".join(render_log_page("x", ["y" * 10**6], {}))


def test_no_page_asks_the_network(failed: Path) -> None:
    for name in (REPORT_FILE, LOG_PAGE_FILE):
        assert not re.search(r"<script|@import|url\(|https?://", (failed / name).read_text().partition("<body>")[0])


@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir()))
def test_every_recorded_run_has_a_report(name: str) -> None:
    folders = run_folders()
    verdict = judge_run(folders, RUNS / name)[0]
    page = Page(render_run_report(verdict, folders.record(RUNS / name)))
    assert page.text.startswith(f"{verdict.result}: {verdict.job_id}")


def verdict_with(*items: Evidence) -> Verdict:
    verdict = judge_run(run_folders(), RUNS / "level0-lora-exception")[0]
    return replace(verdict, evidence=items, key_lines=())


def test_what_a_log_says_is_text_and_nothing_else() -> None:
    hostile = "<script>alert(1)</script><a href='javascript:x'>"
    page = "".join(render_log_page(hostile, [hostile], {1: hostile}))
    assert "<script>" not in page
    assert "<a href='javascript" not in page
    report = render_run_report(
        verdict_with(Evidence(State.BROKEN, hostile, LOG_FILE, 1, hostile, "exit_zero")),
        run_folders().record(RUNS / "level0-lora-exception"),
    )
    assert "<script>" not in report


def test_a_link_is_to_the_line_of_the_log() -> None:
    assert link_of(Evidence(State.MET, "", LOG_FILE, 7), LOG_FILE) == "log.html#L7"
    assert link_of(Evidence(State.MET, "", LOG_FILE), LOG_FILE) == "log.html"
    assert link_of(Evidence(State.MET, "", "events.jsonl"), LOG_FILE) == ""
    assert link_of(Evidence(State.MET, ""), LOG_FILE) == ""


def test_of_a_long_log_the_ends_and_what_is_linked_are_shown() -> None:
    def lines() -> Iterator[str]:
        yield from (f"line {number}" for number in range(1, 60_001))

    shown = Page("".join(render_log_page("x", lines(), {30_000: "decided"})))
    assert {"L1", "L5000", "L29960", "L30000", "L30040", "L45001", "L60000"} <= shown.ids
    assert not {"L5001", "L29959", "L30041", "L45000"} & shown.ids
    assert "24959 lines are left out here" in shown.text
    assert "14960 lines are left out here" in shown.text


def test_the_lines_that_decided_are_marked_as_that() -> None:
    verdict = judge_run(run_folders(), RUNS / "level0-lora-exception")[0]
    assert linked_lines(verdict, LOG_FILE)[1299] == "decided"

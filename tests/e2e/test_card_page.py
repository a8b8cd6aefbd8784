"""Card and checks in a real browser: folds open on a click, nothing overflows on a phone, nothing foreign runs."""

from collections.abc import Iterator
from struct import unpack

import pytest

from tests.core.judged import verdict_that_says
from tests.fakes.browser_pipe import Browser, started
from tests.fakes.github_page import LIGHT, THEMES, page
from tests.fakes.places import ROOT
from tests.fakes.shown_pull import (
    FAILED,
    PASSED,
    card_that_says,
    shown_card,
    shown_checks,
    shown_plan,
    shown_target_state,
)
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.gate import JobStanding
from verl_e2e.core.pulls.ledger import JobStatus
from verl_e2e.core.pulls.wanted_jobs import WantedJob

PHONE = 400
IMAGES = ROOT / "docs" / "images"

FOLDS = """
  const folds = [...page.querySelectorAll("details")]
  const closed = folds.filter((one) => !one.open).length
  for (const one of folds) one.querySelector("summary").click()
  const bodies = folds.map((one) => one.getBoundingClientRect().height - one.querySelector("summary").offsetHeight)
  return {folds: folds.length, closed, open: folds.filter((one) => one.open).length, least: Math.min(...bodies)}
"""
WIDTHS = """
  for (const one of page.querySelectorAll("details")) one.open = true
  const scrolls = (one) => one && (one.matches("table, pre") || scrolls(one.parentElement))
  const wide = [...page.querySelectorAll("body *")].filter((one) => !scrolls(one) && one.scrollWidth > one.clientWidth
    && page.defaultView.getComputedStyle(one).display != "inline")
  return {page: page.documentElement.scrollWidth, wide: wide.map((one) => one.outerHTML.slice(0, 200))}
"""
FOREIGN = """
  const names = [...page.querySelectorAll("main *")].map((one) => one.tagName.toLowerCase())
  return {names: [...new Set(names)], ran: page.defaultView.ran === true}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


def _parts(*recorded: str) -> dict[str, str]:
    checks = shown_checks(*recorded)
    return {"card": shown_card(*recorded), **{check.title: f"{check.summary}\n\n{check.text}" for check in checks}}


def _hostile() -> str:
    texts = ["x" * 3_000, "<script>ran = true</script>", "<img src=x onerror=ran=true>", "</details>", "| a " * 40]
    said = {"verdict": verdict_json(verdict_that_says(*texts)), "url": ""}
    run = shown_target_state(*FAILED).runs[0].model_copy(update=said)
    found = [JobStanding(WantedJob(text, Level.SMOKE), JobStatus.FAILED, text, run) for text in texts]
    return card_that_says(JobStatus.FAILED, texts[0], *found, plan=shown_plan(), broken=tuple(texts))


@pytest.mark.chromium
@pytest.mark.parametrize("recorded", [PASSED, FAILED])
def test_every_fold_is_closed_at_first_and_opens_on_a_click(browser: Browser, recorded: tuple[str, ...]) -> None:
    found = browser.measure(page(_parts(*recorded), LIGHT), 900, FOLDS)
    assert found["folds"] >= 8
    assert found["closed"] == found["open"] == found["folds"]
    assert found["least"] > 10


@pytest.mark.chromium
@pytest.mark.parametrize("recorded", [PASSED, FAILED])
def test_nothing_overflows_on_a_phone(browser: Browser, recorded: tuple[str, ...]) -> None:
    assert browser.measure(page(_parts(*recorded), LIGHT), PHONE, WIDTHS) == {"page": PHONE, "wide": []}


@pytest.mark.chromium
def test_a_hostile_run_neither_overflows_nor_runs_anything(browser: Browser) -> None:
    html = page({"card": _hostile()}, LIGHT)
    assert browser.measure(html, PHONE, WIDTHS) == {"page": PHONE, "wide": []}
    found = browser.measure(html, PHONE, FOREIGN)
    assert not found["ran"]
    assert not {"script", "img", "iframe", "a", "form"} & set(found["names"])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_the_picture_in_the_documents_is_there_and_small(theme: object) -> None:
    data = (IMAGES / f"card-{getattr(theme, 'name', '')}.png").read_bytes()
    width, height = unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG")
    assert (width, height > 800, len(data) < 300_000) == (960, True, True)

"""Every page in a real browser, in light and dark: axe finds nothing, the keyboard reaches everything, and pictures."""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from struct import unpack
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from tests.entry_points.test_pages import EXTENDING, NOW, PUBLIC, Site, light_site, made, recorded
from tests.fakes.browser_pipe import Browser, started
from tests.fakes.npm import install
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.fakes.shown_pull import FAILED, PASSED
from tests.stories.shown import showing
from verl_e2e.cli import cli
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import RunState, run_key
from verl_e2e.core.pulls.run_lines import Glance
from verl_e2e.pages.report import LOG_PAGE_FILE, REPORT_FILE
from verl_e2e.pages.site import site_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["light_site"]

IMAGES = ROOT / "docs" / "images"
SIZE = (1000, 620)
THEMES = ("dark", "light")
LOG = ("step 1 - loss 2.31", "step 2 - loss 2.17", "step 3 - loss 2.05")
# What of a page cannot be reached by the Tab key, or cannot be seen when it has been.
_JUDGED = """(async () => {
const wanted = [...document.querySelectorAll("a[href], button, select, textarea, summary, [tabindex]")]
const unreached = wanted.filter((one) => {
  for (let fold = one.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true
  one.focus()
  const style = getComputedStyle(one)
  return document.activeElement !== one || one.tabIndex !== 0 || style.outlineStyle === "none"
}).map((one) => one.outerHTML.slice(0, 200))
const found = await axe.run(document, {resultTypes: ["violations"]})
const told = found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])
return {axe: told, unreached, count: wanted.length, passes: found.passes.length}
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def axe(request: pytest.FixtureRequest) -> str:
    modules = install(ROOT / "tests" / "browser", request.config.cache.mkdir("browser"))
    return (modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def filled(site: Site) -> Mapping[str, str]:
    """The addresses of pages of each kind, with something on all of them."""
    ledger = site.ledger
    running, waiting = made(9, state=RunState.RUNNING), made(11, awaits_slot=True)
    ended = recorded(*FAILED)
    for run in (*ended, running, waiting):
        ledger.put_run(run)
    for number, result in ((3, Result.PASS), (4, Result.BLOCKED)):
        week: dict[str, Any] = {"created": NOW - timedelta(days=9), "gpu_minutes": 7.0, "state": RunState.FINISHED}
        ledger.put_run(made(number, result=result, causes=("preflight:disk",) * (number == 4), **week))
    for run in recorded(*PASSED):
        ledger.put_run(run.model_copy(update={"number": 8, "key": run_key(PUBLIC, run.head_sha, run.job_id, 8)}))
    site.glances[running.key] = Glance("step 3", LOG)
    site.views.ask_policy = lambda _: ("c" * 40, EXTENDING)
    return {
        "site": "/",
        "pull": f"/{PUBLIC}/pull/{ended[0].number}",
        "run": f"/run/{ended[0].key}",
        "running": f"/run/{running.key}",
        "history": "/history",
        "policy": f"/{PUBLIC}/policy",
    }


def judged(browser: Browser, html: str, axe: str, theme: str) -> Mapping[str, object]:
    """What axe and the keyboard find on a page."""
    # Narrow, where tables and lines of code do not fit.
    with browser.showing(html, size=(500, 800), scheme=theme) as page:
        page.evaluate(f"{axe}\n;0")
        found: Mapping[str, object] = page.evaluate(_JUDGED)
    return found


def looked_at(browser: Browser, pages: Mapping[str, str], axe: str, theme: str) -> Mapping[str, object]:
    """The pages with which something is wrong."""
    found = {name: judged(browser, html, axe, theme) for name, html in pages.items()}
    assert all(int(str(one["count"])) > 0 for one in found.values())
    return {name: one for name, one in found.items() if one["axe"] or one["unreached"]}


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_every_page_of_the_service_is_for_everyone(browser: Browser, light_site: Site, axe: str, theme: str) -> None:
    style = f"<style>{site_file('style.css')}</style>"
    addresses = filled(light_site)
    pages = {
        name: light_site.get(path)[1]
        .replace('<link rel="stylesheet" href="/style.css">', style)
        .replace('<script src="/live.js" defer></script>', "")
        for name, path in addresses.items()
    }
    assert looked_at(browser, pages, axe, theme) == {}


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_the_report_and_the_log_of_a_run_are_for_everyone(
    browser: Browser, tmp_path: Path, axe: str, theme: str
) -> None:
    folder = Path(shutil.copytree(ROOT / "bot/verl_e2e/demo/failed", tmp_path / "run"))
    # Each line of a log is made alike, and axe looks at each: its end shows all that there is on the page.
    log = folder / "log.txt.zst"
    end = zstd.decompress(log.read_bytes()).splitlines(keepends=True)[-200:]
    log.write_bytes(zstd.compress(b"".join(end)))
    CliRunner().invoke(cli, ["judge", str(folder)])
    pages = {name: (folder / name).read_text(encoding="utf-8") for name in (REPORT_FILE, LOG_PAGE_FILE)}
    assert "<mark" in pages[LOG_PAGE_FILE]
    assert looked_at(browser, pages, axe, theme) == {}


@pytest.mark.chromium
@pytest.mark.parametrize("theme", THEMES)
def test_the_pages_in_a_browser_are_the_pictures_in_the_documents(
    browser: Browser, light_site: Site, theme: str
) -> None:
    for name, path in filled(light_site).items():
        kept = IMAGES / f"{name}-{theme}.png"
        # One shows how pictures are taken; the others are taken where they are missing.
        if name == "site" or not kept.exists():
            data = pictured(browser, f"http://127.0.0.1:{light_site.port}{path}", theme)
            assert unpack(">II", data[16:24]) == SIZE
            if not kept.exists():
                kept.write_bytes(data)
        assert unpack(">II", kept.read_bytes()[16:24]) == SIZE
        assert kept.stat().st_size < 150_000
        assert f"images/{kept.name}" in (ROOT / "docs" / "operating.md").read_text()


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_the_pull_request_of_the_story_is_the_picture_in_the_tutorial(
    browser: Browser, tmp_path: Path, axe: str, theme: str
) -> None:
    with showing(tmp_path / "shown", 10.0) as shown:
        for at_s in (0.0, 1.0, 11.0):
            shown.step(at_s)
        address = f"{shown.world.url}/{shown.world.full_name}/pull/{shown.number}"
        data = pictured(browser, address, theme)
        with urlopen(address, timeout=HANG_S) as answer:
            html = re.sub("<script>.*?</script>", "", answer.read().decode(), flags=re.DOTALL)
    assert looked_at(browser, {"pull": html}, axe, theme) == {}
    kept = IMAGES / f"standin-{theme}.png"
    if not kept.exists():
        kept.write_bytes(data)
    assert unpack(">II", data[16:24]) == unpack(">II", kept.read_bytes()[16:24]) == SIZE
    assert f"images/{kept.name}" in (ROOT / "docs" / "tutorial.md").read_text()


def until(evaluate: Callable[[str], Any], expression: str) -> None:
    began = time.monotonic()
    while not evaluate(expression):
        assert time.monotonic() - began < HANG_S, evaluate("document.body.innerText")
        time.sleep(0.1)


@pytest.mark.chromium
def test_an_open_page_shows_what_changes_but_not_under_the_keyboard(browser: Browser, light_site: Site) -> None:
    run = made(state=RunState.RUNNING)
    light_site.ledger.put_run(run)
    with browser.visiting(f"http://127.0.0.1:{light_site.port}/run/{run.key}") as page:
        evaluate = page.evaluate
        until(evaluate, "document.body.innerText.includes('It is running')")
        light_site.glances[run.key] = Glance("step 1", LOG)
        until(evaluate, "document.body.innerText.includes('step 3 - loss 2.05')")
        evaluate("document.querySelector('main a').focus()")
        light_site.glances[run.key] = Glance("step 2", LOG)
        time.sleep(4.5)
        assert "step 2" not in evaluate("document.querySelector('main').innerText.split('loss')[0]")
        assert evaluate("document.activeElement.tagName") == "A"
        evaluate("document.querySelector('main pre').focus()")
        until(evaluate, "[...document.querySelectorAll('main p')].some((one) => one.innerText === 'step 2')")
        assert evaluate("document.activeElement.tagName") == "PRE"


def pictured(browser: Browser, address: str, theme: str) -> bytes:
    """A picture of what a browser shows at an address."""
    with browser.visiting(address, size=SIZE, scheme=theme) as page:
        return page.picture()

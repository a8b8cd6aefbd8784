"""Every page in a real browser, in light and dark: axe finds nothing, the keyboard reaches everything, and pictures."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from html import unescape
from pathlib import Path
from shutil import which
from struct import unpack
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from tests.entry_points.test_pages import EXTENDING, NOW, PUBLIC, Site, light_site, made, recorded
from tests.fakes.browser_pipe import visiting
from tests.fakes.github_page import BROWSERS, browse
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
THEMES = {"dark": 0, "light": 1}
LOG = ("step 1 - loss 2.31", "step 2 - loss 2.17", "step 3 - loss 2.05")
# What of a page cannot be reached by the Tab key, or cannot be seen when it has been.
_KEYBOARD = """
const wanted = [...document.querySelectorAll("a[href], button, select, textarea, summary, [tabindex]")]
const unreached = wanted.filter((one) => {
  for (let fold = one.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true
  one.focus()
  const style = getComputedStyle(one)
  return document.activeElement !== one || one.tabIndex !== 0 || style.outlineStyle === "none"
}).map((one) => one.outerHTML.slice(0, 200))
"""
_AXE = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  const told = found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])
  document.body.innerHTML = "<pre id=answer></pre>"
  const answer = {axe: told, unreached, count: wanted.length, passes: found.passes.length}
  document.getElementById("answer").textContent = JSON.stringify(answer)
})
"""


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


def judged(html: str, axe: str, scheme: int) -> Mapping[str, object]:
    """What axe and the keyboard find on a page."""
    scripts = f"<script>{axe}</script><script>{_KEYBOARD}{_AXE}</script>"
    # Narrow, where tables and lines of code do not fit.
    flags = "--dump-dom", "--window-size=500,800", f"--blink-settings=preferredColorScheme={scheme}"
    document = browse(html.replace("</body>", f"{scripts}</body>"), *flags)
    found: Mapping[str, object] = json.loads(unescape(document.split('<pre id="answer">')[1].split("</pre>")[0]))
    return found


def looked_at(pages: Mapping[str, str], axe: str, scheme: int) -> Mapping[str, object]:
    """The pages with which something is wrong."""
    found = {name: judged(html, axe, scheme) for name, html in pages.items()}
    assert all(int(str(one["count"])) > 0 for one in found.values())
    return {name: one for name, one in found.items() if one["axe"] or one["unreached"]}


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_every_page_of_the_service_is_for_everyone(light_site: Site, axe: str, theme: str) -> None:
    style = f"<style>{site_file('style.css')}</style>"
    addresses = filled(light_site)
    pages = {
        name: light_site.get(path)[1]
        .replace('<link rel="stylesheet" href="/style.css">', style)
        .replace('<script src="/live.js" defer></script>', "")
        for name, path in addresses.items()
    }
    assert looked_at(pages, axe, THEMES[theme]) == {}


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_the_report_and_the_log_of_a_run_are_for_everyone(tmp_path: Path, axe: str, theme: str) -> None:
    folder = Path(shutil.copytree(ROOT / "bot/verl_e2e/demo/failed", tmp_path / "run"))
    # Each line of a log is made alike, and axe looks at each: its end shows all that there is on the page.
    log = folder / "log.txt.zst"
    end = zstd.decompress(log.read_bytes()).splitlines(keepends=True)[-200:]
    log.write_bytes(zstd.compress(b"".join(end)))
    CliRunner().invoke(cli, ["judge", str(folder)])
    pages = {name: (folder / name).read_text(encoding="utf-8") for name in (REPORT_FILE, LOG_PAGE_FILE)}
    assert "<mark" in pages[LOG_PAGE_FILE]
    assert looked_at(pages, axe, THEMES[theme]) == {}


@pytest.mark.chromium
@pytest.mark.parametrize("theme", THEMES)
def test_the_pages_in_a_browser_are_the_pictures_in_the_documents(light_site: Site, tmp_path: Path, theme: str) -> None:
    for name, path in filled(light_site).items():
        kept = IMAGES / f"{name}-{theme}.png"
        # One shows how pictures are taken; the others are taken where they are missing.
        if name == "site" or not kept.exists():
            data = pictured(f"http://127.0.0.1:{light_site.port}{path}", tmp_path, THEMES[theme])
            assert unpack(">II", data[16:24]) == SIZE
            if not kept.exists():
                kept.write_bytes(data)
        assert unpack(">II", kept.read_bytes()[16:24]) == SIZE
        assert kept.stat().st_size < 150_000
        assert f"images/{kept.name}" in (ROOT / "docs" / "operating.md").read_text()


@pytest.mark.chromium
@pytest.mark.node
@pytest.mark.parametrize("theme", THEMES)
def test_the_pull_request_of_the_story_is_the_picture_in_the_tutorial(tmp_path: Path, axe: str, theme: str) -> None:
    with showing(tmp_path / "shown", 10.0) as shown:
        for at_s in (0.0, 1.0, 11.0):
            shown.step(at_s)
        address = f"{shown.world.url}/{shown.world.full_name}/pull/{shown.number}"
        data = pictured(address, tmp_path, THEMES[theme])
        with urlopen(address, timeout=HANG_S) as answer:
            html = re.sub("<script>.*?</script>", "", answer.read().decode(), flags=re.DOTALL)
    assert looked_at({"pull": html}, axe, THEMES[theme]) == {}
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
def test_an_open_page_shows_what_changes_but_not_under_the_keyboard(light_site: Site, tmp_path: Path) -> None:
    run = made(state=RunState.RUNNING)
    light_site.ledger.put_run(run)
    with visiting(f"http://127.0.0.1:{light_site.port}/run/{run.key}", tmp_path) as evaluate:
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


def pictured(address: str, folder: Path, scheme: int) -> bytes:
    """A picture of what a browser shows at an address."""
    browser = next(found for name in BROWSERS if (found := which(name)))
    picture = folder / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
    flags += [f"--window-size={SIZE[0]},{SIZE[1]}", f"--blink-settings=preferredColorScheme={scheme}"]
    call = [browser, *flags, f"--screenshot={picture}", address]
    subprocess.run(call, capture_output=True, check=True, timeout=HANG_S)
    return picture.read_bytes()

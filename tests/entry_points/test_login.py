"""The login of pages by GitHub's web flow, against the stand-in over real HTTP, as a browser with cookies goes it."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.entry_points.test_pages import NOW, SECRET, Site, made, serving
from tests.fakes.clocks import HandClock
from tests.fakes.github_standin.faults import server_error
from tests.fakes.github_standin.web_login import CLIENT_SECRET
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.github.visitors import GithubVisitors
from verl_e2e.adapters.store import open_store
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.web import PageLogin
from verl_e2e.wiring.app import GithubViews

CLIENT_ID = "Iv1.standin"
SESSION, BEGUN = "verl-e2e-session", "verl-e2e-login"


@dataclass
class Visit:
    """A browser, the pages that it visits, GitHub's stand-in with a private repository, and the clock of both."""

    site: Site
    github: GithubAdapters
    clock: HandClock
    browser: requests.Session = field(default_factory=requests.Session)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.site.port}"

    def get(self, path: str, *, follow: bool = True) -> requests.Response:
        return self.browser.get(f"{self.address}{path}", timeout=HANG_S, allow_redirects=follow)

    def log_in(self, person: str, place: str = "/") -> requests.Response:
        self.github.world.standin.login.person = person
        return self.get(f"/login?next={place}")


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[Visit]:
    clock = HandClock(NOW)
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    with github_adapters(tmp_path / "world") as at:
        visitors = GithubVisitors(at.world.url, CLIENT_ID, CLIENT_SECRET)
        views = GithubViews(clock)

        def reads(token: str, repository: str) -> bool:
            return views.reads(visitors, token, repository)

        login = PageLogin(CLIENT_ID, CLIENT_SECRET, at.world.url, "", visitors.token, reads, clock.now)
        for site in serving(store, login):
            at.world.repository.private = True
            at.world.person("mona", "read")
            at.world.person("carol")
            at.world.standin.login.callback = f"http://127.0.0.1:{site.port}/login/callback"
            site.public.clear()
            site.ledger.put_run(
                made(repository=REPOSITORY, state=RunState.FINISHED, result=Result.FAIL, sentence="our next model")
            )
            site.ledger.put_run(made(repository=SECRET, sentence="of others"))
            yield Visit(site, at, clock)
    store.close()


PULL = f"/{REPOSITORY}/pull/5"


def test_who_may_read_the_repository_on_github_sees_its_pages_after_the_login(visit: Visit) -> None:
    assert visit.get(PULL).status_code == 404
    answer = visit.log_in("mona", PULL)
    assert (answer.status_code, urlsplit(answer.url).path) == (200, PULL)
    assert "our next model" in answer.text
    overview = visit.get("/").text
    assert "our next model" in overview
    assert "of others" not in overview
    assert "Log out" in overview


def test_for_everyone_else_a_private_page_is_not_there(visit: Visit) -> None:
    missing = visit.get("/octo/none/pull/5")
    assert missing.status_code == 404
    assert visit.get(PULL).text == missing.text.replace("octo/none/pull/5", PULL[1:])
    visit.log_in("carol", PULL)
    assert visit.get(PULL).status_code == 404
    assert visit.get(PULL).text == visit.get("/octo/none/pull/5").text
    assert "our next model" not in visit.get("/").text + visit.get("/history").text


def test_an_address_leads_to_the_login_and_back(visit: Visit) -> None:
    link = re.search(r'href="(/login\?next=[^"]+)"', visit.get(PULL).text)
    assert link is not None
    visit.github.world.standin.login.person = "mona"
    assert urlsplit(visit.get(link[1]).url).path == PULL


def test_what_someone_may_no_longer_read_is_gone_after_a_minute(visit: Visit) -> None:
    visit.log_in("mona")
    assert visit.get(PULL).status_code == 200
    del visit.github.world.repository.roles["mona"]
    visit.clock.pass_s(61)
    assert visit.get(PULL).status_code == 404


def test_a_revoked_token_and_a_github_that_does_not_answer_show_nothing(visit: Visit) -> None:
    visit.log_in("mona")
    assert visit.get(PULL).status_code == 200
    visit.clock.pass_s(61)
    for _ in range(20):
        visit.github.world.faults.add(server_error(502), "GET", f"/repos/{REPOSITORY}$")
    assert visit.get(PULL).status_code == 404
    visit.github.world.state.tokens.clear()
    visit.clock.pass_s(61)
    assert visit.get(PULL).status_code == 404


def test_a_session_ends_with_the_logout_and_after_eight_hours(visit: Visit) -> None:
    visit.log_in("mona")
    kept = visit.browser.cookies[SESSION]
    visit.browser.post(f"{visit.address}/logout", timeout=HANG_S)
    assert SESSION not in visit.browser.cookies
    assert visit.get(PULL).status_code == 404
    visit.browser.cookies.set(SESSION, kept)
    assert visit.get(PULL).status_code == 200
    visit.clock.time += timedelta(hours=8, seconds=1)
    assert visit.get(PULL).status_code == 404


@pytest.mark.parametrize("forged", ["", "x", "ghu_known", "gAAAAABl" + "A" * 120, "é"])
def test_a_cookie_that_we_did_not_seal_is_none(visit: Visit, forged: str) -> None:
    answer = requests.get(f"{visit.address}{PULL}", headers={"Cookie": f"{SESSION}={forged}".encode()}, timeout=HANG_S)
    assert answer.status_code == 404


def test_the_cookie_of_a_login_that_only_began_is_no_session(visit: Visit) -> None:
    visit.get("/login", follow=False)
    visit.browser.cookies.set(SESSION, visit.browser.cookies[BEGUN])
    assert "Log in with GitHub" in visit.get("/").text


def begun(visit: Visit) -> str:
    """Begin a login, and give the address that GitHub would send the browser back to."""
    visit.github.world.standin.login.person = "mona"
    asked = visit.get("/login", follow=False)
    assert asked.status_code == 303
    return requests.get(asked.headers["Location"], timeout=HANG_S, allow_redirects=False).headers["Location"]


def test_a_code_that_another_browser_asked_for_logs_no_one_in(visit: Visit) -> None:
    back = begun(visit)
    stranger = requests.get(back, timeout=HANG_S, allow_redirects=False)
    assert stranger.status_code == 400
    assert SESSION not in stranger.cookies
    visit.get("/login", follow=False)
    assert visit.browser.get(back, timeout=HANG_S).status_code == 400, "the state of an earlier beginning"


def test_a_login_that_takes_too_long_is_to_begin_again(visit: Visit) -> None:
    back = begun(visit)
    visit.clock.pass_s(601)
    assert visit.browser.get(back, timeout=HANG_S).status_code == 400


def test_a_code_works_once_and_only_with_the_word_that_it_was_asked_with(visit: Visit) -> None:
    back = begun(visit)
    code = parse_qs(urlsplit(back).query)["code"][0]
    visitors = GithubVisitors(visit.github.world.url, CLIENT_ID, CLIENT_SECRET)
    assert visitors.token(code, "another word") == ""
    assert visit.browser.get(back, timeout=HANG_S).status_code == 403


def test_who_does_not_agree_is_not_logged_in(visit: Visit) -> None:
    answer = visit.log_in("")
    assert answer.status_code == 403
    assert SESSION not in visit.browser.cookies


def test_a_github_that_does_not_take_the_code_is_named(visit: Visit) -> None:
    back = begun(visit)
    visit.github.world.standin.login.codes.clear()
    assert visit.browser.get(back, timeout=HANG_S).status_code == 403


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example", "/\\evil.example", "/%0d%0aSet-Cookie:x=y", "", "x", "/a b"]
)
def test_the_login_leads_to_no_other_site(visit: Visit, place: str) -> None:
    assert urlsplit(visit.log_in("mona", place).url).path == "/"
    assert visit.get("/").url.startswith(visit.address)


@pytest.mark.parametrize(("public_url", "secure"), [("", False), ("https://e2e.example", True)])
def test_cookies_are_for_this_site_and_no_script_and_behind_https_for_https_alone(
    tmp_path: Path, public_url: str, secure: bool
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    login = PageLogin(
        CLIENT_ID, CLIENT_SECRET, "https://github.example", public_url, lambda *_: "t", lambda *_: False, lambda: NOW
    )
    for site in serving(store, login):
        status, _, headers = site.answer("/login")
        cookie = headers["Set-Cookie"]
        asked = parse_qs(urlsplit(headers["Location"]).query)
        assert status == 303
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert ("Secure" in cookie) is secure
        assert ("redirect_uri" in asked) is secure
        state = {"Cookie": cookie.partition(";")[0]}
        back = requests.get(
            f"http://127.0.0.1:{site.port}/login/callback?code=c&state={asked['state'][0]}",
            headers=state, timeout=HANG_S, allow_redirects=False,
        )  # fmt: skip
        session = next(
            one for one in back.raw.headers.getlist("Set-Cookie") if one.startswith(SESSION) and "gAAA" in one
        )
        assert ("HttpOnly" in session, "SameSite=lax" in session, "Secure" in session) == (True, True, secure)
    store.close()


def test_a_logout_is_no_link(visit: Visit) -> None:
    visit.log_in("mona")
    assert visit.get("/logout").status_code == 405
    assert "Log out" in visit.get("/").text


def test_a_logout_that_another_site_sends_ends_no_session(visit: Visit) -> None:
    visit.log_in("mona")
    answer = requests.post(f"{visit.address}/logout", timeout=HANG_S, allow_redirects=False)
    assert "Set-Cookie" not in answer.headers


def test_logins_that_wait_for_github_hold_up_no_probe(tmp_path: Path) -> None:
    store, goes_on = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}"), threading.Event()

    def token(_code: str, _verifier: str) -> str:
        goes_on.wait(HANG_S)
        return ""

    login = PageLogin(CLIENT_ID, CLIENT_SECRET, "https://g.example", "", token, lambda *_: False, lambda: NOW)
    for site in serving(store, login):
        _, _, headers = site.answer("/login")
        state = parse_qs(urlsplit(headers["Location"]).query)["state"][0]
        address, cookie = f"http://127.0.0.1:{site.port}", headers["Set-Cookie"].partition(";")[0]

        def end(number: int, address: str = f"{address}/login/callback?state={state}", cookie: str = cookie) -> int:
            return requests.get(f"{address}&code={number}", headers={"Cookie": cookie}, timeout=HANG_S).status_code

        with ThreadPoolExecutor(50) as browsers:
            ended = [browsers.submit(end, number) for number in range(50)]
            try:
                assert any(each.result() == 503 for each in as_completed(ended, HANG_S))
                assert requests.get(f"{address}/healthz", timeout=HANG_S).status_code == 200
            finally:
                goes_on.set()
        assert sorted({each.result() for each in ended}) == [403, 503]
    store.close()

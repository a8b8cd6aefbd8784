"""Tokens, roles, teams, settings of a repository, deliveries; and many threads at once."""

import heapq
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import Fault, server_error
from tests.fakes.github_standin.world import APP_ID, living
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubPeople, GithubPulls
from verl_e2e.adapters.github.requester import ApiRequester, Lane, RateLimiter, RetryPolicy
from verl_e2e.adapters.github.session import (
    AppIdentity,
    InstallationAnswer,
    as_app,
    checked_api_url,
    narrowed,
    with_token,
)
from verl_e2e.adapters.github.workflows import download
from verl_e2e.core.pulls.forge import PullRef
from verl_e2e.ports import ForgeError, UnknownPullError


def test_a_token_is_taken_once_and_for_one_repository_alone(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    for _ in range(5):
        pulls.pull(ONE)
    (asked,) = [item for item in at.world.standin.traffic if item.path.endswith("/access_tokens")]
    assert json.loads(asked.sent)["repositories"] == ["bridge"]
    assert json.loads(asked.sent)["permissions"] == {
        "actions": "write",
        "administration": "read",
        "attestations": "read",
        "checks": "write",
        "contents": "read",
        "issues": "write",
        "members": "read",
        "metadata": "read",
        "pull_requests": "write",
    }
    assert sum(at.github.calls.by_answer().values()) == len(at.world.standin.traffic) == 7


@pytest.mark.parametrize("off_s", [-86400, -3600, -301, -300, 45, 90, 300, 3600, 86400])
def test_a_clock_that_is_wrong_is_corrected_by_githubs(tmp_path: Path, off_s: int) -> None:
    """The stand-in refuses a JWT as GitHub does: made in its future, expired, or valid for more than ten minutes.

    A minute is allowed for; a slow machine takes seconds of it, so no case lies next to it.
    """
    with living(tmp_path, clock=lambda: datetime.now(UTC) - timedelta(seconds=off_s)) as world:
        world.commit({"README.md": b"a bridge\n"})
        world.open_pull("ada", {"src/a.py": b"a = 1\n"})
        github = as_app(APP_ID, world.private_key, api_url=world.url)
        for _ in range(3):
            assert GithubPulls(github).pull(ONE).ref == ONE
        refused = [exchange for exchange in world.standin.traffic if exchange.status == 401]
        assert len(refused) == (0 if abs(off_s) < 60 else 1), "once, and then it is known"
        github.close()


def test_a_clock_that_is_set_while_the_service_runs(tmp_path: Path) -> None:
    ahead = timedelta()
    with living(tmp_path, clock=lambda: datetime.now(UTC) + ahead) as world:
        world.commit({"README.md": b"a bridge\n"})
        github = as_app(APP_ID, world.private_key, api_url=world.url)
        for seconds in (0, 7200, -7200):
            ahead = timedelta(seconds=seconds)
            assert github.trouble() == ""
            assert github.app().ask("GET", "/app")["id"] == APP_ID
        github.close()


def test_a_key_that_github_does_not_know_is_no_matter_of_the_clock(at: GithubAdapters) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = other.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    stranger = as_app(APP_ID, text, api_url=at.world.url)
    with pytest.raises(ForgeError, match="check GITHUB_APP_ID and the private key") as refused:
        stranger.app().ask("GET", "/app")
    assert refused.value.unknown_to_it
    assert not refused.value.permission
    assert "could not be decoded" in stranger.trouble()
    stranger.close()


def test_github_is_well_only_where_it_answered_lately(at: GithubAdapters, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    patient = RetryPolicy(sleep=waited.append)
    silent = as_app(APP_ID, at.world.private_key, api_url="http://127.0.0.1:9", retry_policy=patient)
    assert "GitHub cannot be reached from this machine" in silent.trouble()
    assert waited == [], "a look at readiness would end before a second answer"
    silent.close()
    before = sum(at.github.calls.by_answer().values())
    assert at.github.trouble() == ""
    assert sum(at.github.calls.by_answer().values()) == before + 1, "it was asked"
    assert at.github.trouble() == ""
    assert sum(at.github.calls.by_answer().values()) == before + 1, "it had just answered"
    at.world.standin.faults.add(server_error(), path="/app", times=99)
    monkeypatch.setattr("verl_e2e.adapters.github.session._ANSWERED_S", 0.0)
    assert "GitHub did not answer" in at.github.trouble()


def test_a_token_is_never_asked_to_do_more_than_was_granted() -> None:
    assert narrowed({"checks": "read", "contents": "write", "secrets": "write"}) == {
        "checks": "read",
        "contents": "read",
    }


class Desk:
    """Hands out tokens that are good for some minutes by GitHub's clock, which is years off ours."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes
        self.given = 0

    def find(self, model: type[InstallationAnswer], _path: str) -> InstallationAnswer:
        return model(id=1, app_id=APP_ID, permissions={"checks": "write"})

    def send(self, *_: object, **__: object) -> tuple[dict[str, str], dict[str, str]]:
        self.given += 1
        ends = f"2040-01-01T00:{self.minutes:02}:00Z"
        return {"date": "Sun, 01 Jan 2040 00:00:00 GMT"}, {"token": f"t{self.given}", "expires_at": ends}


@pytest.mark.parametrize(("minutes", "asked"), [(59, 1), (6, 1), (5, 3), (1, 3)])
def test_a_token_near_its_end_is_renewed_by_githubs_clock(minutes: int, asked: int) -> None:
    desk = Desk(minutes)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    identity = AppIdentity(APP_ID, key, lambda: cast("ApiRequester", desk), lambda: None)
    assert [identity.token(REPOSITORY) for _ in range(3)][-1] == f"t{asked}"


def test_a_token_that_was_withdrawn_is_replaced(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    pulls.pull(ONE)
    at.world.state.tokens.clear()
    assert pulls.pull(ONE).author == "ada"


def test_a_repository_without_the_app_is_reported(at: GithubAdapters) -> None:
    with pytest.raises(ForgeError, match="not installed in else/where"):
        GithubPulls(at.github).pull(PullRef("else/where", 1))


@pytest.mark.parametrize("key", ["", "no key", "-----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY-----\n"])
def test_a_key_that_is_none_is_told_at_once(key: str) -> None:
    with pytest.raises(ForgeError, match="PEM") as message:
        as_app(APP_ID, key)
    assert "x" not in str(message.value).split()


@pytest.mark.parametrize("url", ["", "github.com", "ftp://x", "https://", "https://u:p@x/", "https://x/?a=1"])
def test_an_address_that_is_none_is_reported(url: str) -> None:
    with pytest.raises(ForgeError, match="GitHub API"):
        checked_api_url(url)


def test_an_enterprise_address_with_a_path_works(at: GithubAdapters) -> None:
    github = as_app(APP_ID, at.world.private_key, api_url=f"{at.world.url}/api/v3/")
    talk = GithubConversation(github)
    for number in range(101):
        at.world.comment("ada", f"{number}")
    assert len(talk.comments(ONE)) == 101
    github.close()


def test_a_role_is_told_by_its_name(at: GithubAdapters) -> None:
    people = GithubPeople(at.github)
    for role in ("admin", "maintain", "write", "triage", "read"):
        at.world.person("ada", role)
        assert people.role(REPOSITORY, "ada") == role
    assert people.role(REPOSITORY, "stranger") in ("none", "read")


def test_a_team_holds_its_active_members(at: GithubAdapters) -> None:
    at.world.team("octo/e2e", "ada")
    at.world.state.teams["octo/e2e"]["bob"] = "pending"
    people = GithubPeople(at.github)
    assert [people.in_team("octo/e2e", login) for login in ("ada", "bob", "eve")] == [True, False, False]
    assert not people.in_team("octo/none", "ada")


@pytest.mark.parametrize("as_ruleset", [False, True])
def test_what_a_branch_asks_for_by_protection_or_ruleset(at: GithubAdapters, as_ruleset: bool) -> None:
    at.world.protect(("verl-e2e", APP_ID), ("lint", None), as_ruleset=as_ruleset)
    at.world.repository.merge_queues["main"] = 45
    rules = GithubAdministration(at.github).branch_rules(REPOSITORY, "main")
    assert {(check.name, check.app_id) for check in rules.required} == {("verl-e2e", APP_ID), ("lint", None)}
    assert {check.source.split()[0] for check in rules.required} == {"ruleset" if as_ruleset else "branch"}
    assert rules.queue_minutes == 45


def test_a_branch_that_asks_for_nothing(at: GithubAdapters) -> None:
    assert GithubAdministration(at.github).branch_rules(REPOSITORY, "main").required == ()


def test_how_the_app_is_installed(at: GithubAdapters) -> None:
    administration = GithubAdministration(at.github)
    found = administration.installation(REPOSITORY)
    assert found is not None
    assert (found.app_id, found.app_slug, found.permissions["checks"]) == (APP_ID, "verl-e2e", "write")
    assert {"pull_request", "merge_group"} <= found.events
    assert administration.installation("else/where") is None


def test_deliveries_that_failed_are_seen_and_sent_again(at: GithubAdapters) -> None:
    administration = GithubAdministration(at.github)
    start = at.world.state.now()
    # No one listens there.
    at.world.deliveries.url = "http://127.0.0.1:9/"
    at.world.push(1, {"src/a.py": b"a = 2\n"})
    at.world.deliveries.wait()
    failed = [
        delivery_attempt
        for delivery_attempt in administration.deliveries(start - timedelta(days=3))
        if delivery_attempt.failed
    ]
    assert ("pull_request", "synchronize") in {
        (delivery_attempt.event, delivery_attempt.action) for delivery_attempt in failed
    }
    administration.redeliver(failed[0].id)
    assert administration.deliveries(start + timedelta(days=1)) == ()
    with pytest.raises(ForgeError):
        administration.redeliver(999_999)


def test_runners_and_workflow_files(at: GithubAdapters) -> None:
    at.world.runner("gpu-1", "self-hosted", "gpu-8")
    at.world.runner("gpu-2", "self-hosted", online=False)
    at.world.commit({".github/workflows/verl-e2e.yml": b"name: x\non: workflow_dispatch\njobs: {}\n"})
    administration = GithubAdministration(at.github)
    assert [(machine.name, machine.online, machine.labels) for machine in administration.machines(REPOSITORY)] == [
        ("gpu-1", True, ("self-hosted", "gpu-8")),
        ("gpu-2", False, ("self-hosted",)),
    ]
    assert administration.workflow_state(REPOSITORY, "verl-e2e.yml") == "active"
    assert administration.workflow_state(REPOSITORY, "none.yml") == ""


def test_only_the_app_itself_sees_its_installation(at: GithubAdapters) -> None:
    github = with_token("ghp_x", api_url=at.world.url)
    with pytest.raises(ForgeError, match="GITHUB_APP_ID"):
        GithubAdministration(github).installation(REPOSITORY)
    github.close()


SECONDARY = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
USED_UP = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4102444800"}
ASKS: dict[str, Callable[[GithubAdapters, Path], object]] = {
    "read": lambda at, _: GithubPulls(at.github).pull(ONE),
    "write": lambda at, _: GithubConversation(at.github).comment(ONE, "a word"),
    "download": lambda at, folder: download(
        at.github, REPOSITORY, f"/repos/{REPOSITORY}/zipball/main", folder / "file", limit=1000
    ),
}


@pytest.mark.parametrize("refused", ASKS)
@pytest.mark.parametrize(
    ("fault", "all_stop"),
    (
        (Fault(403, {}, SECONDARY), True),
        (Fault(429, {}, SECONDARY), True),
        (Fault(403, {}, "You have triggered an abuse detection mechanism."), True),
        (Fault(403, USED_UP, "API rate limit exceeded"), True),
        # The limit of one resource, and the time that one request has to wait.
        (Fault(403, {**USED_UP, "X-RateLimit-Resource": "search"}, "API rate limit exceeded"), False),
        (Fault(403, {"Retry-After": "60"}, SECONDARY), False),
        (Fault(403, {}, "Resource not accessible by integration"), False),
    ),
)
def test_a_limit_that_names_no_request_stops_every_thread(
    tmp_path: Path, refused: str, fault: Fault, all_stop: bool
) -> None:
    with github_adapters(tmp_path / "world", total_s=4.0) as at, ThreadPoolExecutor(4) as pool:
        GithubPulls(at.github).pull(ONE)
        at.world.standin.faults.add(fault, path="^/repos/octo/bridge")
        with pytest.raises(ForgeError):
            ASKS[refused](at, tmp_path)
        before = len(at.world.standin.traffic)
        asked = [pool.submit(ask, at, tmp_path) for ask in ASKS.values()]
        errors = [answer.exception() for answer in asked]
        if all_stop:
            assert len(at.world.standin.traffic) == before
            assert all(isinstance(error, ForgeError) and (error.wait_s or 0) > 50 for error in errors)
        else:
            assert len(at.world.standin.traffic) >= before + len(ASKS)
            assert errors[0] is None


def test_what_was_stopped_goes_on_when_the_time_is_over(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    at.world.standin.faults.add(Fault(403, {}, SECONDARY), path="/pulls/")
    assert pulls.pull(ONE).ref == ONE
    assert at.waits.taken[0] == 60.0
    waited = len(at.waits.taken)
    assert pulls.pull(ONE).ref == ONE
    assert len(at.waits.taken) == waited


def test_threads_never_take_each_others_request(at: GithubAdapters) -> None:
    for number in range(2, 10):
        at.world.open_pull(f"author-{number}", {f"f{number}": b"1"})
    pulls = GithubPulls(at.github)

    def author(number: int) -> tuple[int, str]:
        return number, pulls.pull(PullRef(REPOSITORY, number)).author

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(author, [number for _ in range(20) for number in range(2, 10)]))
    finally:
        sys.setswitchinterval(before)
    assert all(name == f"author-{number}" for number, name in answers)
    assert at.calls("POST", "/access_tokens") == 1


def test_what_ends_a_run_gets_by_where_replies_and_cards_are_held_back() -> None:
    waits: list[float] = []
    limiter = RateLimiter(((12, 60.0),), waits.append)
    for lane, times in ((Lane.COURTESY, 6), (Lane.NORMAL, 4), (Lane.URGENT, 2)):
        for _ in range(times):
            limiter.wait(1, lane, what=object())
        with pytest.raises(ForgeError):
            limiter.wait(1, lane, what=object())
    assert waits == []


def test_a_pace_holds_back_what_is_too_much() -> None:
    waits: list[float] = []
    limiter = RateLimiter(((3, 60.0), (5, 3600.0)), waits.append)
    for _ in range(3):
        limiter.wait(100, what=object())
    assert waits == []
    limiter.wait(100, what=object())
    assert len(waits) == 1
    assert 59 < waits[0] <= 60
    limiter.wait(100, what=object())
    with pytest.raises(ForgeError) as message:
        limiter.wait(100, what=object())
    assert message.value.passing
    assert message.value.wait_s > 3_000


def test_each_that_is_sent_away_comes_back_at_a_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("verl_e2e.adapters.github.requester.time.monotonic", lambda: clock[0])
    limiter = RateLimiter(((6, 60.0),))

    def away(lane: Lane, what: object) -> float:
        with pytest.raises(ForgeError) as refused:
            limiter.wait(0, lane, what=what)
        return clock[0] + refused.value.wait_s

    for what in "abcde":
        clock[0] += 2
        limiter.wait(1, Lane.NORMAL, what=what)
    # Places become free as those who wrote did so, and later ones after these; not more than a span is added.
    assert [away(Lane.NORMAL, what) for what in "fghijkl"] == [1062, 1064, 1066, 1068, 1070, 1122, 1122]
    # A write that comes too early has the same place again.
    assert away(Lane.NORMAL, "g") == 1064
    # What is more important does not wait for them.
    limiter.wait(1, Lane.URGENT, what="m")
    assert away(Lane.URGENT, "n") == 1062
    # What comes later has no place before those that wait.
    clock[0] = 1071
    assert away(Lane.NORMAL, "o") > 1071
    # A write that is late is let by, and what does not come back in time has no place any more.
    limiter.wait(1, Lane.NORMAL, what="f")
    clock[0] = 1153
    limiter.wait(1, Lane.NORMAL, what="p")


def test_writes_that_are_held_back_are_not_overtaken_by_all_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("verl_e2e.adapters.github.requester.time.monotonic", lambda: clock[0])
    limiter = RateLimiter(((12, 60.0), (60, 3600.0)))
    # 60 an hour where 50 may be written, and each comes back a second late.
    due, waited = [(number * 60.0, number) for number in range(500)], []
    while due:
        clock[0], number = heapq.heappop(due)
        try:
            limiter.wait(0, what=number)
            waited.append(clock[0] - number * 60.0)
        except ForgeError as refused:
            heapq.heappush(due, (clock[0] + refused.wait_s + 1, number))
    # The last of 500 in turn has waited an hour and a half; before, one waited for more than eight hours.
    assert max(waited) < 2 * 3600


Script = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def scripted() -> Iterator[Callable[[Script], str]]:
    """A server that answers every request by one function."""
    servers: list[ThreadingHTTPServer] = []

    def serve(script: Script) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                script(self)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                script(self)

            def log_message(self, *_: object) -> None:
                """Silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def answering(status: int, body: bytes, **headers: str) -> Script:
    def script(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return script


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"{}", "another form than documented: number"),
        (200, b"[]", "another form than documented"),
        (200, b"", "another form than documented"),
        (200, b"<html>", "another form than documented"),
        (200, b'{"number": "x"}', "another form than documented"),
        (404, b"<html>gone</html>", "no such pull request"),
        (404, b"[1]", "no such pull request"),
        (451, b'{"message": ["odd"]}', "451"),
    ],
)
def test_an_answer_that_github_would_not_give_is_one_sentence(
    scripted: Callable[[Script], str], status: int, body: bytes, message: str
) -> None:
    github = with_token("t", api_url=scripted(answering(status, body)))
    with pytest.raises((ForgeError, UnknownPullError), match=message) as refused:
        GithubPulls(github).pull(ONE)
    assert "\n" not in str(refused.value)
    github.close()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"OK"', b'{"check_runs": "none"}', b'{"check_runs": [1]}'])
def test_a_list_that_github_would_not_give_is_one_sentence_and_never_empty(
    scripted: Callable[[Script], str], body: bytes
) -> None:
    """By an empty list a check run would be created again."""
    github = with_token("t", api_url=scripted(answering(200, body)))
    with pytest.raises(ForgeError, match="another form than documented"):
        GithubChecks(github).check_runs("acme/bridge", "a" * 40)
    github.close()


def test_deliveries_are_read_as_far_back_as_asked_and_no_further(
    scripted: Callable[[Script], str], at: GithubAdapters
) -> None:
    seen: list[str] = []

    def script(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.path)
        day = 10 - len(seen)
        one = {"id": 2**60 + day, "guid": "g", "event": "push", "action": None, "status_code": 502}
        body = json.dumps([one | {"delivered_at": f"2026-01-{day:02}T00:00:00Z", "redelivery": False}]).encode()
        link = f'<{url}/app/hook/deliveries?per_page=100&cursor=v1_{len(seen)}>; rel="next"'
        answering(200, body, Link=link)(handler)

    url = scripted(script)
    github = as_app(APP_ID, at.world.private_key, api_url=url)
    found = GithubAdministration(github).deliveries(datetime(2026, 1, 7, tzinfo=UTC))
    assert [delivery_attempt.id - 2**60 for delivery_attempt in found] == [9, 8, 7]
    asked = [parse_qs(urlsplit(path).query) for path in seen]
    assert asked[1:3] == [{"cursor": [f"v1_{n}"], "per_page": ["100"]} for n in (1, 2)]
    assert len(seen) == 4
    github.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_repository_that_moved_is_told_and_nothing_is_read_or_written_elsewhere(
    scripted: Callable[[Script], str], status: int
) -> None:
    moved = answering(status, b'{"message": "Moved", "id": 1}', Location="/repositories/1/issues/1/comments")
    github = with_token("t", api_url=scripted(moved))
    with pytest.raises(ForgeError, match="moved"):
        GithubConversation(github).comment(ONE, "body")
    with pytest.raises(ForgeError, match="moved"):
        GithubPulls(github).file_at(REPOSITORY, "0" * 40, "policy.yml")
    assert github.calls.by_answer() == {("POST", "moved"): 1, ("GET", "moved"): 1}
    github.close()


def test_a_list_that_points_elsewhere_is_read_on_here(scripted: Callable[[Script], str]) -> None:
    seen: list[str] = []

    def script(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.path)
        more = {"Link": '<https://evil.example/steal?page=2>; rel="next"'} if len(seen) == 1 else {}
        answering(200, b"[]", **more)(handler)

    github = with_token("t", api_url=scripted(script))
    assert GithubConversation(github).comments(ONE) == ()
    assert seen[1] == "/steal?page=2"
    github.close()

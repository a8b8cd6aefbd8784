"""The web application over real HTTP, in front of a real deliveries table."""

import asyncio
import hashlib
import hmac
import http.client
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request

from tests.fakes.patience import HANG_S
from verl_e2e.adapters.metrics import Metrics, SharedCollector
from verl_e2e.adapters.store import SqlDeliveries, SqlFigures, Store, open_store
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.figures import SharedFigures
from verl_e2e.web import BODY_BYTES, Door, PatientProtocol, Probes, create_app
from verl_e2e.web.app import MOST_WAITING, Bodies, probe_routes

SECRET = "It's a Secret to Everybody"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)


@dataclass
class House:
    """The application at an address, its table, and what can be made to fail."""

    port: int
    store: Store
    arrived: list[int] = field(default_factory=list)
    trouble: str = ""

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        if self.trouble:
            raise OSError(self.trouble)
        return SqlDeliveries(self.store).keep(received)

    def figures(self) -> SharedFigures:
        if self.trouble:
            raise OSError(self.trouble)
        return SqlFigures(self.store).read(NOW)

    def stalled(self) -> str:
        return "a thread hangs" if self.trouble else ""

    def readiness(self) -> Mapping[str, str]:
        return {"database": "it does not answer" if self.trouble else "", "worker": ""}

    def kept(self) -> list[tuple[str, str, bytes]]:
        waiting = SqlDeliveries(self.store).take(NOW, 1000)
        return [(delivery.id, delivery.event, delivery.body) for delivery in waiting]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    listener = socket.create_server(("127.0.0.1", 0))
    house = House(listener.getsockname()[1], store)
    metrics = Metrics()
    metrics.watch(SharedCollector(house.figures))
    probes = Probes(house.stalled, house.readiness, metrics.text)
    door = Door(SECRET, house.keep, lambda: house.arrived.append(1), lambda: NOW, metrics.answered, probes)
    config = uvicorn.Config(
        create_app(door), log_config=None, access_log=False, server_header=False, lifespan="off", http=PatientProtocol
    )
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield house
    web.should_exit = True
    thread.join(HANG_S)
    listener.close()
    store.close()


def signature(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def call(
    house: House, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", house.port, timeout=HANG_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


PING = b'{"zen": "x"}'


def post(
    house: House, body: bytes = PING, headers: Mapping[str, str | None] | None = None, **changed: str | None
) -> tuple[int, str]:
    """A delivery as GitHub sends it; a header that is None is left out."""
    sent: dict[str, str | None] = {
        "X-GitHub-Delivery": DELIVERY,
        "X-GitHub-Event": "ping",
        "Content-Type": "application/json",
        "X-Hub-Signature-256": signature(body),
    }
    sent |= {name.replace("_", "-"): value for name, value in {**(headers or {}), **changed}.items()}
    return call(house, "POST", "/webhook", body, {name: value for name, value in sent.items() if value is not None})


def test_githubs_own_example_of_a_signature() -> None:
    assert signature(b"Hello, World!") == "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def test_a_delivery_is_kept_as_it_came_and_wakes_the_worker(house: House) -> None:
    body = '{"title": "naïve \\u2603", "n": 1.0}\n'.encode()
    assert post(house, body)[0] == 202
    assert house.kept() == [(DELIVERY, "ping", body)]
    assert len(house.arrived) == 1


def test_a_repeated_delivery_is_answered_and_not_kept_again(house: House) -> None:
    assert [post(house)[0] for _ in range(3)] == [202, 200, 200]
    assert len(house.kept()) == 1
    assert len(house.arrived) == 1


@pytest.mark.parametrize(
    "wrong",
    (
        None,
        "",
        "sha256=",
        "sha256=" + "0" * 64,
        signature(b"other body"),
        signature(b'{"zen": "x"}', "other secret"),
        signature(b'{"zen": "x"}').upper(),
        signature(b'{"zen": "x"}').removeprefix("sha256="),
        "sha1=" + hmac.new(SECRET.encode(), b'{"zen": "x"}', hashlib.sha1).hexdigest(),
        signature(b'{"zen": "x"}') + "\xff",
    ),
)
def test_a_wrong_signature_is_refused_and_leaves_no_trace(house: House, wrong: str | None) -> None:
    status, text = post(house, X_Hub_Signature_256=wrong)
    assert (status, text) == (401, "the signature is missing or wrong\n")
    assert house.kept() == []
    assert house.arrived == []


@pytest.mark.parametrize(
    ("headers", "status"),
    (
        ({"X_GitHub_Delivery": None}, 400),
        ({"X_GitHub_Delivery": "a b"}, 400),
        ({"X_GitHub_Delivery": "x" * 65}, 400),
        ({"X_GitHub_Event": None}, 400),
        ({"X_GitHub_Event": "../etc"}, 400),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": None}, 415),
    ),
)
def test_what_is_signed_and_yet_no_delivery_is_refused(
    house: House, headers: dict[str, str | None], status: int
) -> None:
    assert post(house, headers=headers)[0] == status
    assert house.kept() == []


def head(length: str, sign: str = "sha256=" + "0" * 64) -> bytes:
    """The head of a delivery, up to the empty line."""
    lines = ("POST /webhook HTTP/1.1", "Host: x", length, f"X-Hub-Signature-256: {sign}", "X-GitHub-Delivery: a")
    return "\r\n".join((*lines, "X-GitHub-Event: ping", "Content-Type: application/json", "", "")).encode()


def connected(house: House) -> socket.socket:
    return socket.create_connection(("127.0.0.1", house.port), timeout=HANG_S)


def test_a_body_over_the_cap_is_refused_before_all_of_it_was_sent(house: House) -> None:
    with connected(house) as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        sent, part = 0, b"x" * (1 << 20)
        try:
            while sent < 4 * BODY_BYTES:
                connection.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
                sent += len(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = connection.recv(64)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 3 * BODY_BYTES  # some more fits into the sockets' own buffers
    assert house.kept() == []


@pytest.mark.parametrize(
    ("sent", "status"),
    (
        (head(f"Content-Length: {BODY_BYTES + 1}"), b"413"),
        (head("Content-Length: 26000000"), b"413"),
        (head("Content-Length: 99999999999999999999"), b"413"),
        (head("Content-Length: 9", "sha256=xyz"), b"401"),
        (head("Content-Length: 9", ""), b"401"),
        (head("Content-Length: 9").replace(b"application/json", b"text/plain"), b"415"),
        (head("Content-Length: 9").replace(b"X-GitHub-Event", b"X-Event"), b"400"),
    ),
)
def test_what_the_head_shows_is_refused_before_the_body(house: House, sent: bytes, status: bytes) -> None:
    with connected(house) as connection:
        connection.sendall(sent)
        assert connection.recv(64).startswith(b"HTTP/1.1 " + status)


def test_five_slow_strangers_with_the_largest_bodies_keep_no_delivery_out(house: House) -> None:
    strangers = [connected(house) for _ in range(5)]
    for stranger in strangers:
        stranger.sendall(head(f"Content-Length: {BODY_BYTES}"))
        stranger.sendall(b"x" * (BODY_BYTES - 1))
    assert [post(house, X_GitHub_Delivery=f"{number}")[0] for number in range(40)] == [202] * 40
    for stranger in strangers:
        stranger.close()


def test_half_heads_keep_no_delivery_out_and_are_closed(house: House) -> None:
    strangers = [connected(house) for _ in range(520)]
    for stranger in strangers:
        stranger.sendall(b"POST /webhook HTTP/1.1\r\nHost: x\r\n")
    assert [post(house, X_GitHub_Delivery=f"{number}")[0] for number in range(40)] == [202] * 40
    # The service holds no more of them than this, however many there are.
    assert len(PatientProtocol._waiting) <= MOST_WAITING
    for stranger in strangers:
        with suppress(ConnectionResetError):
            assert stranger.recv(64) == b""
        stranger.close()


def test_a_head_that_comes_byte_by_byte_is_given_up(house: House) -> None:
    with connected(house) as connection:
        began = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began < HANG_S:
                connection.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - began < HANG_S


def test_a_connection_may_be_used_again(house: House) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", house.port, timeout=HANG_S)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"ok":true}'
    connection.close()


@pytest.mark.parametrize("source", ("same", "other"))
def test_of_too_many_bodies_the_one_that_holds_a_place_longest_is_given_up(source: str) -> None:
    async def story() -> tuple[list[object], bytes | None]:
        bodies = Bodies(SECRET.encode(), most=4, total_bytes=1000)
        gate = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 100
            await gate.wait()

        async def quick() -> AsyncIterator[bytes]:
            yield PING

        strangers = []
        for _ in range(4):
            strangers.append(asyncio.create_task(bodies.receive(slow(), "", "same")))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        kept = await bodies.receive(quick(), signature(PING), source)
        gate.set()
        return await asyncio.gather(*strangers, return_exceptions=True), kept

    ended, kept = asyncio.run(story())
    assert kept == PING
    assert [getattr(item, "status", None) for item in ended] == [503, None, None, None]


def test_bodies_take_no_more_room_together_than_they_may() -> None:
    async def story() -> tuple[list[object], bytes | None]:
        bodies = Bodies(SECRET.encode(), total_bytes=1000)
        gate = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 400
            await gate.wait()

        async def quick() -> AsyncIterator[bytes]:
            yield b"y" * 300

        strangers = [asyncio.create_task(bodies.receive(slow(), "", "one")) for _ in range(2)]
        await asyncio.sleep(0.01)
        kept = await bodies.receive(quick(), signature(b"y" * 300), "another")
        gate.set()
        return await asyncio.gather(*strangers, return_exceptions=True), kept

    ended, kept = asyncio.run(story())
    assert kept == b"y" * 300
    assert sorted(getattr(item, "status", 0) for item in ended) == [0, 503]


@pytest.mark.parametrize(
    "event", ["projects_v2_item", "projects_v2", "Some-New.event2", "2fa_change", "secret_scanning_alert_location"]
)
def test_an_event_of_any_name_is_taken(house: House, event: str) -> None:
    assert post(house, headers={"X-GitHub-Event": event})[0] == 202
    assert house.kept() == [(DELIVERY, event, PING)]


def test_a_body_of_exactly_the_cap_is_kept(house: House) -> None:
    assert BODY_BYTES == 25_000_000
    body = b" " * BODY_BYTES
    assert post(house, body)[0] == 202
    assert [len(kept[2]) for kept in house.kept()] == [BODY_BYTES]


def test_a_table_that_fails_is_told_to_github_without_a_word_about_why(house: House) -> None:
    house.trouble = "disk full at /secret/place"
    status, text = post(house)
    assert (status, text) == (503, "the database did not take the delivery\n")
    assert call(house, "GET", "/healthz") == (503, '{"ok":false,"why":"a thread hangs"}')
    answer = (503, '{"ready":false,"checks":{"database":"it does not answer","worker":"ok"}}')
    assert call(house, "GET", "/readyz") == answer
    status, text = call(house, "GET", "/metrics")
    assert status == 200
    assert "verl_e2e_database_up 0.0" in text
    assert "secret" not in text
    house.trouble = ""
    assert post(house)[0] == 202


def test_many_at_once_are_each_kept_once(house: House) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: post(house, X_GitHub_Delivery=f"{number % 40}")[0], range(120)))
    assert sorted(answers) == [200] * 80 + [202] * 40
    assert len(house.kept()) == 40


def test_health_and_a_few_numbers(house: House) -> None:
    post(house)
    post(house)
    post(house, X_Hub_Signature_256="sha256=" + "0" * 64)
    assert call(house, "GET", "/healthz") == (200, '{"ok":true}')
    assert call(house, "GET", "/readyz") == (200, '{"ready":true,"checks":{"database":"ok","worker":"ok"}}')
    lines = call(house, "GET", "/metrics")[1].splitlines()
    for line in (
        'verl_e2e_webhook_answers_total{event="other",kind="kept"} 1.0',
        'verl_e2e_webhook_answers_total{event="other",kind="repeated"} 1.0',
        'verl_e2e_webhook_answers_total{event="none",kind="unsigned"} 1.0',
        "verl_e2e_deliveries_waiting 1.0",
    ):
        assert line in lines


TOKEN = "0123456789abcdef"
LOCAL = ("127.0.0.1", 40000)
ALLOWED, SHUT, HIDDEN, UNKNOWN = 200, 403, 404, 401


@pytest.mark.parametrize(
    ("client", "headers", "token", "apart", "status"),
    (
        (LOCAL, {}, "", False, ALLOWED),
        (("::1", 40000), {}, "", False, ALLOWED),
        (("10.0.0.7", 40000), {}, "", False, SHUT),
        (None, {}, "", False, SHUT),
        (("testclient", 1), {}, "", False, SHUT),
        (LOCAL, {"X-Forwarded-For": "127.0.0.1"}, "", False, SHUT),
        (LOCAL, {"Forwarded": "for=127.0.0.1"}, "", False, SHUT),
        (LOCAL, {"Via": "1.1 proxy"}, "", False, SHUT),
        (LOCAL, {}, TOKEN, False, UNKNOWN),
        (LOCAL, {"Authorization": f"Bearer {TOKEN[:-1]}"}, TOKEN, False, UNKNOWN),
        (LOCAL, {"Authorization": TOKEN}, TOKEN, False, UNKNOWN),
        (("10.0.0.7", 40000), {"Authorization": f"Bearer {TOKEN}"}, TOKEN, False, ALLOWED),
        (LOCAL, {}, "", True, HIDDEN),
    ),
)
def test_who_may_read_the_metrics(
    client: tuple[str, int] | None, headers: Mapping[str, str], token: str, apart: bool, status: int
) -> None:
    *_, metrics = probe_routes(Probes(lambda: "", dict, lambda: b"x 1\n", 9464 if apart else None, token))
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": raw, "server": ("127.0.0.1", 8080)}
    given = asyncio.run(metrics.endpoint(Request({**scope, "client": client})))
    assert given.status_code == status
    assert (b"x 1" in given.body) == (status == ALLOWED)
    if apart:
        other = asyncio.run(metrics.endpoint(Request({**scope, "client": client, "server": ("10.0.0.5", 9464)})))
        assert other.status_code == ALLOWED


def test_many_who_ask_at_once_cost_one_question_and_no_answer_is_old() -> None:
    asked: list[int] = []

    def readiness() -> Mapping[str, str]:
        asked.append(1)
        return {"database": f"answer {len(asked)}"}

    async def story() -> list[bytes]:
        _, readyz, _ = probe_routes(Probes(lambda: "", readiness, bytes))
        scope = {"type": "http", "method": "GET", "path": "/readyz", "headers": []}
        together = await asyncio.gather(*(readyz.endpoint(Request(scope)) for _ in range(50)))
        await asyncio.sleep(0.6)
        return [bytes(each.body) for each in (*together, await readyz.endpoint(Request(scope)))]

    bodies = asyncio.run(story())
    assert {body.count(b"answer 1") for body in bodies[:-1]} == {1}
    assert b"answer 2" in bodies[-1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    (
        ("GET", "/webhook", 405),
        ("POST", "/metrics", 405),
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/../x", 404),
    ),
)
def test_nothing_else_is_served(house: House, method: str, path: str, status: int) -> None:
    assert call(house, method, path)[0] == status

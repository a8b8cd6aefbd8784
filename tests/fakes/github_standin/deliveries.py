"""Webhooks: signed, sent in order by a thread, or held so that a test loses, doubles, delays and reorders them."""

import hashlib
import hmac
import http.client
import json
import queue
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from tests.fakes.github_standin.shapes import Json, Shapes, node, time
from tests.fakes.github_standin.state import App, Installation, Repository, State

_PATIENCE_S = 10.0


@dataclass(slots=True)
class Delivery:
    """One webhook: its bytes as they are sent, and how each attempt at it ended (0: no answer)."""

    guid: str
    event: str
    action: str | None
    body: bytes
    installation: int
    repository: int | None
    attempts: list["Attempt"] = field(default_factory=list)

    @property
    def payload(self) -> Json:
        """The document."""
        found: Json = json.loads(self.body)
        return found


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending of a delivery, with an id of its own."""

    id: int
    delivery: Delivery
    at: datetime
    status: int
    redelivery: bool
    duration_s: float
    headers: Mapping[str, str]
    answer: str


class Deliveries:
    """What sends webhooks to the one hook that is set.

    Held, they gather in `pending` until a test sends, drops or shuffles them. `sent` is all that GitHub has tried.
    """

    def __init__(self, state: State, shapes: Shapes, secret: str) -> None:
        self.url = ""
        self.secret = secret
        self.held = False
        self.pending: list[Delivery] = []
        self.made: list[Delivery] = []
        self.attempts: list[Attempt] = []
        self._state = state
        self._shapes = shapes
        self._queue: queue.Queue[Delivery | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def emit(self, event: str, action: str | None, repository: Repository | None, payload: Json) -> None:
        """Make a delivery for each installation that covers the repository and subscribed to the event."""
        with self._state.lock:
            for installation in self._state.installations.values():
                if installation.suspended or event not in (*installation.app.events, "ping", "installation"):
                    continue
                if repository is not None and repository.owner is not installation.account:
                    continue
                self._add(installation, event, action, repository, payload)

    def ping(self, app: App) -> None:
        """Send what GitHub sends when a hook is set up."""
        now = time(self._state.now())
        config = {"content_type": "json", "insecure_ssl": "0", "secret": "********", "url": "http://hook.invalid"}
        hook: Json = {"type": "App", "id": app.id, "name": "web", "active": True, "events": list(app.events)}
        hook |= {"app_id": app.id, "config": config, "updated_at": now, "created_at": now}
        hook["deliveries_url"] = f"{self._shapes.base}/app/hook/deliveries"
        self.emit("ping", None, None, {"zen": "Keep it simple.", "hook_id": app.id, "hook": hook})

    def _add(
        self, installation: Installation, event: str, action: str | None, repository: Repository | None, payload: Json
    ) -> None:
        body: Json = {} if action is None else {"action": action}
        body |= payload
        if event not in ("ping", "installation"):
            body["installation"] = {"id": installation.id, "node_id": node("MDIzOk", installation.id)}
        if repository is not None:
            body["repository"] = self._shapes.repository(repository)
        raw = json.dumps(body).encode()
        delivery = Delivery(
            str(uuid.uuid4()), event, action, raw, installation.id, repository.id if repository else None
        )
        self.made.append(delivery)
        if self.held:
            self.pending.append(delivery)
        elif self.url:
            self._queue.put(delivery)

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="webhooks")
        self._thread.start()

    def stop(self) -> None:
        """End, with what has been queued sent."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def wait(self) -> None:
        """Until every delivery that was not held has been tried."""
        self._queue.join()

    def hold(self) -> None:
        """Keep what comes from now on."""
        self.held = True

    def release(self, order: Sequence[Delivery] | None = None) -> None:
        """Send what was held, in this order (a delivery may be in it twice, or not at all), and hold no more."""
        self.held = False
        chosen = list(self.pending) if order is None else list(order)
        self.pending.clear()
        for delivery in chosen:
            self._queue.put(delivery)

    def lose(self, delivery: Delivery) -> None:
        """A delivery that was held fails, as if no one had listened."""
        self.pending.remove(delivery)
        self._try(delivery, "")

    def send(self, delivery: Delivery) -> int:
        """Try one delivery now, and give the status of the answer, 0 for none."""
        return self._try(delivery, self.url)

    def _try(self, delivery: Delivery, url: str) -> int:
        begun = self._state.clock()
        redelivery = bool(delivery.attempts)
        headers = self._headers(delivery)
        status, answer = _post(url, delivery.body, headers) if url else (0, "")
        took_s = (self._state.clock() - begun).total_seconds()
        attempt = Attempt(
            self._state.new_id(), delivery, self._state.now(), status, redelivery, took_s, headers, answer
        )
        delivery.attempts.append(attempt)
        self.attempts.append(attempt)
        return status

    def _headers(self, delivery: Delivery) -> Mapping[str, str]:
        digest = hmac.new(self.secret.encode(), delivery.body, hashlib.sha256).hexdigest()
        app = self._state.installations[delivery.installation].app
        return {
            "Accept": "*/*",
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/standin",
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Hook-ID": str(app.id),
            "X-GitHub-Hook-Installation-Target-ID": str(app.id),
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature-256": f"sha256={digest}",
        }

    def _send_all(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                self.send(delivery)
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def listed(self, query: Mapping[str, str]) -> list[Json]:
        """`hook-delivery-item`, newest first; `status` may ask for success or failure."""
        wanted = query.get("status", "")
        ok = {"success": (True,), "failure": (False,)}.get(wanted, (True, False))
        return [self._item(attempt) for attempt in reversed(self.attempts) if (200 <= attempt.status < 400) in ok]

    def _item(self, attempt: Attempt) -> Json:
        delivery = attempt.delivery
        words = {0: "failed to connect to host"}
        fine = 200 <= attempt.status < 400
        return {
            "id": attempt.id,
            "guid": delivery.guid,
            "delivered_at": time(attempt.at),
            "redelivery": attempt.redelivery,
            "duration": round(attempt.duration_s, 2),
            "status": "OK" if fine else words.get(attempt.status, f"Invalid HTTP Response: {attempt.status}"),
            "status_code": attempt.status or 502,
            "event": delivery.event,
            "action": delivery.action,
            "installation_id": delivery.installation,
            "repository_id": delivery.repository,
            "throttled_at": None,
        }

    def detail(self, delivery: int) -> Json | None:
        """`hook-delivery` by the id of an attempt."""
        found = next((attempt for attempt in self.attempts if attempt.id == delivery), None)
        if found is None:
            return None
        request = {"headers": dict(found.headers), "payload": found.delivery.payload}
        return {**self._item(found), "url": self.url, "request": request, "response": _answered(found)}

    def redeliver(self, delivery: int) -> bool:
        """Send a delivery again, by the id of an attempt at it, under the same name."""
        found = next((attempt for attempt in self.attempts if attempt.id == delivery), None)
        if found is None:
            return False
        if self.held:
            self.pending.append(found.delivery)
        else:
            self._queue.put(found.delivery)
        return True


def _answered(attempt: Attempt) -> Json:
    return {"headers": {}, "payload": attempt.answer}


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_PATIENCE_S)
    try:
        connection.request("POST", parts.path or "/", body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()

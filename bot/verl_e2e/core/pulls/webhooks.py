"""Webhooks of GitHub as typed events: only those that we act on, only the keys that we read.

The sender's signature was checked before; still a body is taken as hostile: its size, depth, types and numbers.
"""

import json
from typing import Any, NoReturn, get_args

from pydantic import ValidationError

from verl_e2e.core.pulls.webhook_events import MODELS, CommentEvent, Event, PushEvent

# GitHub sends no more than 25 MB; what we read of it is far smaller.
MAX_BODY = 25_000_000


class BadDeliveryError(Exception):
    """A delivery that GitHub would not send; the text says what is odd, in one line, without quoting the body."""


def parse_event(name: str, body: bytes) -> Event | None:
    """The event that GitHub calls `name`; None for an event or an action that we do not act on; BadDeliveryError."""
    model = MODELS.get(name)
    if model is None:
        return None
    payload = _payload(body)
    if not _acted_on(model, payload):
        return None
    try:
        event = model.model_validate(payload)
    except ValidationError as error:
        raise BadDeliveryError(f"A {name} delivery is not what GitHub sends: {_first(error)}") from None
    return None if isinstance(event, CommentEvent) and event.issue.pull_request is None else event


def _payload(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        raise BadDeliveryError(f"A delivery has {len(body):,} bytes; GitHub sends at most {MAX_BODY:,}")
    try:
        payload = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadDeliveryError(f"A delivery is not JSON text: {type(error).__name__}") from None
    if not isinstance(payload, dict):
        raise BadDeliveryError("A delivery is not a JSON object")
    return payload


def _acted_on(model: type[Event], payload: dict[str, Any]) -> bool:
    """Whether this kind of event is one that we act on; what is malformed counts, so that it is refused and seen."""
    if model is PushEvent:
        ref = payload.get("ref")
        return not isinstance(ref, str) or ref.startswith("refs/heads/")
    field = model.model_fields.get("action")
    action = payload.get("action")
    return field is None or not isinstance(action, str) or action in get_args(field.annotation)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['type']}"


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)

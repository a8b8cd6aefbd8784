"""GitHub's published OpenAPI description, and what of recorded traffic breaks it."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from jsonschema import Draft4Validator, FormatChecker
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT4

from tests.fakes.github_standin.deliveries import Delivery
from tests.fakes.github_standin.server import ROUTES, Exchange

DESCRIPTION = "node_modules/@octokit/openapi/generated/api.github.com.json"
_ROOT = "urn:github"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_SHOWN = 300
# The descriptions of an App within a check suite and an issue list the events that there were before merge queues.
_KNOWN_HOLE = re.compile(
    r"\.app\.events\[\d+\]: 'merge_group' is not one of"
    r"|\.issue\.performed_via_github_app\.events\[\d+\]: '(merge_group|workflow_job)' is not one of"
)
_formats = FormatChecker(())


@_formats.checks("date-time")
def _is_time(text: object) -> bool:
    return not isinstance(text, str) or _TIME.fullmatch(text) is not None


@_formats.checks("uri")
def _is_uri(text: object) -> bool:
    return not isinstance(text, str) or re.match(r"[a-z][a-z0-9+.-]*:\S+$", text) is not None


def _allowing_null(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    # OpenAPI 3.0 writes `nullable` next to the type where JSON Schema would name the type null.
    def checked(validator: Validator, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if instance is not None or not schema.get("nullable"):
            yield from check(validator, value, instance, schema) or ()

    return checked


# What is as a part of the description says, by a digest of both: most answers and webhooks hold the same users.
_as_described: set[bytes] = set()


def _referenced(validator: Validator, ref: str, instance: Any, schema: Any) -> Iterator[Any]:
    digest = hashlib.sha256(f"{ref} {json.dumps(instance)}".encode()).digest()
    if digest not in _as_described:
        errors = list(Draft4Validator.VALIDATORS["$ref"](validator, ref, instance, schema))
        if not errors:
            _as_described.add(digest)
        yield from errors


_CHECKS = {key: _allowing_null(check) for key, check in Draft4Validator.VALIDATORS.items()}
_CHECKS["$ref"] = _allowing_null(_referenced)
_Nullable = extend(Draft4Validator, _CHECKS)  # type: ignore[no-untyped-call]  # its stub is half


@dataclass(frozen=True, slots=True)
class Violation:
    """Where traffic and description part."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Contract:
    """The description, read once."""

    def __init__(self, path: Path) -> None:
        self._document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        resource = DRAFT4.create_resource(self._document)
        self._registry: Registry[Any] = Registry().with_resource(_ROOT, resource)
        self._paths = [(_pattern(path), path) for path in self._document["paths"]]
        # Of several that fit, the one that says most in plain words.
        self._paths.sort(key=lambda pair: -len(re.sub(r"\{[^}]+\}", "", pair[1])))
        self._validators: dict[str, Validator] = {}

    def violations(self, exchange: Exchange) -> tuple[Violation, ...]:
        """What is wrong with one request and its answer; an answer that a fault put there is not looked at."""
        where = f"{exchange.method} {exchange.path}"
        path = next((template for pattern, template in self._paths if pattern.fullmatch(exchange.path)), None)
        operation = self._document["paths"].get(path, {}).get(exchange.method.lower())
        if path is None or operation is None:
            return (Violation(where, "GitHub describes no such endpoint"),)
        pointer = f"/paths/{_escaped(path)}/{exchange.method.lower()}"
        found = [*self._query(exchange, operation), *self._request(exchange, operation, pointer)]
        if exchange.fault is None:
            found += self._answer(exchange, operation, pointer)
        return tuple(Violation(where, what) for what in found)

    def webhook_violations(self, delivery: Delivery) -> tuple[Violation, ...]:
        """What is wrong with the payload of a webhook."""
        name = f"{delivery.event}-{delivery.action}" if delivery.action else delivery.event
        name = name.replace("_", "-")
        if name not in self._document["x-webhooks"]:
            return (Violation(name, "GitHub describes no such webhook"),)
        pointer = f"/x-webhooks/{name}/post/requestBody/content/application~1json/schema"
        return tuple(Violation(f"webhook {name}", what) for what in self._errors(pointer, delivery.payload))

    def payload_errors(self, name: str, payload: object) -> tuple[str, ...]:
        """What is wrong with a payload by the webhook's name, `pull-request-opened`."""
        pointer = f"/x-webhooks/{name}/post/requestBody/content/application~1json/schema"
        return tuple(self._errors(pointer, payload))

    def _query(self, exchange: Exchange, operation: Mapping[str, Any]) -> Iterator[str]:
        parameters = [self._resolved(text) for text in operation.get("parameters", ())]
        known = {parameter["name"]: parameter for parameter in parameters if parameter["in"] == "query"}
        for name, value in parse_qsl(exchange.query, keep_blank_values=True):
            if name not in known:
                yield f"query: {name} is not described"
                continue
            schema = self._resolved(known[name].get("schema", {}))
            if "enum" in schema and value not in schema["enum"]:
                yield f"query: {name}={value} is none of {schema['enum']}"
            if schema.get("type") == "integer" and not value.isdigit():
                yield f"query: {name}={value} is not a number"

    def _request(self, exchange: Exchange, operation: Mapping[str, Any], pointer: str) -> Iterator[str]:
        described = operation.get("requestBody")
        if not exchange.sent:
            if described is not None and described.get("required"):
                yield "request: a body is required"
            return
        if described is None:
            if exchange.sent not in (b"{}", b"null"):
                yield "request: no body is described"
            return
        sent = json.loads(exchange.sent)
        below = f"{pointer}/requestBody/content/application~1json/schema"
        yield from (f"request: {error}" for error in self._errors(below, sent))
        schema = self._resolved(described["content"]["application/json"]["schema"])
        if isinstance(sent, dict) and "properties" in schema:
            unknown = sorted(set(sent) - set(schema["properties"]))
            yield from (f"request: {name} is not described" for name in unknown)

    def _answer(self, exchange: Exchange, operation: Mapping[str, Any], pointer: str) -> Iterator[str]:
        status = str(exchange.status)
        described = operation["responses"].get(status)
        if described is None:
            # GitHub leaves errors out of most descriptions, and so they say nothing of a stray one.
            if exchange.status < 400 and exchange.status != 304:
                yield f"answer: status {status} is not described"
            return
        resolved = self._resolved(described)
        content = resolved.get("content", {}).get("application/json")
        if content is None or not exchange.content_type.startswith("application/json") or not exchange.answered:
            if content is not None and not exchange.answered and exchange.status < 300:
                yield "answer: a body is described"
            return
        base = described["$ref"].removeprefix("#") if "$ref" in described else f"{pointer}/responses/{status}"
        below = f"{base}/content/application~1json/schema"
        yield from (f"answer {status}: {error}" for error in self._errors(below, json.loads(exchange.answered)))

    def _errors(self, pointer: str, instance: Any) -> Iterator[str]:
        if pointer not in self._validators:
            schema = {"$ref": f"{_ROOT}#{_quoted(pointer)}"}
            self._validators[pointer] = _Nullable(schema, registry=self._registry, format_checker=_formats)
        for error in self._validators[pointer].iter_errors(instance):
            if _KNOWN_HOLE.search(f"{error.json_path}: {error.message}"):
                continue
            yield f"{error.json_path}: {error.message[:_SHOWN]}"

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            found: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part.replace("~1", "/").replace("~0", "~")]
            schema = found
        return schema


def _pattern(path: str) -> re.Pattern[str]:
    # These variables take slashes too: a file's path, a ref, two revisions.
    greedy = ("path", "ref", "basehead")
    parts = re.split(r"\{([^}]+)\}", path)
    made = ((".+" if part in greedy else "[^/]+") if at % 2 else re.escape(part) for at, part in enumerate(parts))
    return re.compile("".join(made))


def _escaped(path: str) -> str:
    return path.replace("~", "~0").replace("/", "~1")


def _quoted(pointer: str) -> str:
    return pointer.replace("{", "%7B").replace("}", "%7D")


def description_of_routes(path: Path) -> str:
    """The text of the description with nothing but the endpoints of the stand-in: Prism reads all that it is given."""
    document = json.loads(path.read_text(encoding="utf-8"))
    ours = [re.sub(r"\{[^}]+\}", "x", route.template) for route in ROUTES]
    paths = {
        path: described
        for path, described in document["paths"].items()
        if any(_pattern(path).fullmatch(route) for route in ours)
    }
    components: dict[str, dict[str, Any]] = defaultdict(dict)
    waiting = list(_references(paths))
    while waiting:
        kind, name = waiting.pop().removeprefix("#/components/").split("/")
        if name not in components[kind]:
            components[kind][name] = document["components"][kind][name]
            waiting += _references(components[kind][name])
    kept = {name: document[name] for name in ("openapi", "info", "servers")}
    return json.dumps({**kept, "paths": paths, "components": components})


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


@cache
def contract(folder: Path) -> Contract:
    """The description in an installed folder, read once for each process."""
    return Contract(folder / DESCRIPTION)


def all_violations(found: Contract, traffic: Iterable[Exchange], deliveries: Iterable[Delivery]) -> tuple[str, ...]:
    """Every violation, each kind once."""
    stored = ("/_storage/",)
    rest = [
        violation
        for exchange in traffic
        if not exchange.path.startswith(stored)
        for violation in found.violations(exchange)
    ]
    hooks = [violation for delivery in deliveries for violation in found.webhook_violations(delivery)]
    return tuple(dict.fromkeys(str(exchange) for exchange in (*rest, *hooks)))

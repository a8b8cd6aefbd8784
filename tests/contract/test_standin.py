"""The stand-in held against GitHub's own description, by our reading of it and by Prism's."""

from pathlib import Path

import pytest

from tests.contract.openapi import all_violations, contract
from tests.contract.tour import Call, calls, furnish, send
from tests.fakes.github_standin.server import ROUTES
from tests.fakes.github_standin.world import World, living
from tests.fakes.prism import proxying

pytestmark = pytest.mark.node
# How Prism says that no answer came.
_LOST = b'"type":"FetchError"'
# Answers that say no, each once, so that their shape is seen too.
_REFUSED = {404, 409}


def _people_act(world: World) -> None:
    """Every webhook that the stand-in can send."""
    world.push(1, {"src/a.py": "x = 2\n"})
    world.close(1)
    world.reopen(1)
    world.set_draft(1, True)  # noqa: FBT003  # reads as one
    world.set_draft(1, False)  # noqa: FBT003  # reads as one
    world.label(1, "verl-e2e:run", "alice")
    world.unlabel(1, "verl-e2e:run", "alice")
    comment = world.comment("alice", "/verl-e2e plan")
    world.edit_comment(comment, "/verl-e2e run")
    world.delete_comment(comment, "alice")
    group = world.queue(1)
    world.leave_queue(group, "merged")


def test_every_request_and_answer_and_webhook_is_as_github_describes_them(tmp_path: Path, node_folder: Path) -> None:
    found = contract(node_folder)
    with living(tmp_path) as world:
        token = furnish(world)
        for call in calls(world):
            status, body = send(world.url, call, world, token)
            assert status < 400 or status in _REFUSED, (call, body)
        check = world.checks(world.head(1))[0]
        world.press(check, "rerun", "alice")
        world.rerequest_all(world.head(1), "alice")
        _people_act(world)
        assert "\n".join(all_violations(found, world.standin.traffic, world.deliveries.made)) == ""
        called = set(world.standin.calls())
        assert {f"{route.method} {route.template}" for route in ROUTES} - called == {"GET /_storage/{kind}/{number}"}


def test_prism_lets_every_request_and_answer_through(tmp_path: Path, node_folder: Path, description: str) -> None:
    with (
        living(tmp_path / "world") as world,
        proxying(node_folder, description, world.url, tmp_path / "prism.log") as proxy,
    ):
        token = furnish(world)
        world.standin.shapes.base = proxy
        refused = []
        for call in calls(world):
            # Prism follows redirects itself, with the token that the place of the files refuses.
            where = world.url if call.path.endswith(("/logs", "/zip")) else proxy
            heard = len(world.standin.traffic)
            status, body = send(where, call, world, token)
            if _LOST in body and (call.method == "GET" or len(world.standin.traffic) == heard):
                # The proxy lost the line to the stand-in, which says nothing of the request or its answer.
                status, body = send(where, call, world, token)
            if b"stoplight" in body or (status >= 400 and status not in _REFUSED):
                refused.append((call.method, call.path, status, body[:600]))
        assert "\n".join(map(str, refused)) == ""


def test_what_breaks_the_contract_is_found(tmp_path: Path, node_folder: Path) -> None:
    found = contract(node_folder)
    with living(tmp_path) as world:
        token = furnish(world)
        head = world.head(1)
        bad = {"name": "verl-e2e", "head_sha": head, "status": "completed", "conclusion": "passed", "extra": 1}
        send(world.url, Call("POST", f"/repos/{world.full_name}/check-runs", bad), world, token)
        send(world.url, Call("GET", f"/repos/{world.full_name}/pulls?states=open"), world, token)
        world.pull(2).title = 5  # type: ignore[assignment]  # an answer of the wrong type
        send(world.url, Call("GET", f"/repos/{world.full_name}/pulls/2"), world, token)
        words = " ".join(all_violations(found, world.standin.traffic, ()))
    for text in ("passed", "extra is not described", "states is not described", "$.title"):
        assert text in words

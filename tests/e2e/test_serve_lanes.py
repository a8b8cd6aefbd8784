"""The whole service as a process: what one slow or limited write, and what strangers write, holds up."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.github_standin.faults import Fault, slow_down
from tests.fakes.github_standin.state import Comment
from tests.fakes.github_standin.world import World
from tests.fakes.service_process import environment, serving, until

# A command is to be processed in 2 s and a pull request to show a first sign in 3 s on an idle machine; what is limited
# waits for 40 s, and a busy machine is slow.
LIMITED_S, SOON_S = 40, 25.0
DOCUMENTS, SOURCE = {"docs/guide.md": "other\n"}, {"src/bridge.py": "value = 2\n"}


def eyes(world: World, comment: Comment) -> bool:
    return any(reaction.user is world.app.bot and reaction.content == "eyes" for reaction in comment.reactions.values())


def replies(world: World, number: int) -> list[str]:
    return [comment.body for comment in world.comments(number) if "verl-e2e:reply" in comment.body]


def limited(method: str, end: str, times: int, fault: Fault) -> Callable[[str, str], Fault | None]:
    left = [times]

    def choose(verb: str, path: str) -> Fault | None:
        if verb != method or not path.endswith(end) or not left[0]:
            return None
        left[0] -= 1
        return fault

    return choose


def test_a_limited_reaction_holds_up_neither_another_pull_request_nor_a_command(world: World, tmp_path: Path) -> None:
    with serving(environment(world, tmp_path / "data"), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        first = world.open_pull("alice", DOCUMENTS)
        until(lambda: world.gate(first) == "success")
        world.faults.choose = limited("POST", "/reactions", 1, slow_down(429, LIMITED_S))
        world.comment("alice", "/verl-e2e status", first)
        until(lambda: world.faults.met)
        second = world.open_pull("alice", DOCUMENTS)
        sign = until(lambda: world.gate(second))
        until(lambda: world.gate(second) == "success", SOON_S)
        text = world.comment("mona", "/verl-e2e plan", second)
        processed = until(lambda: eyes(world, text))
        sys.stderr.write(f"first sign {sign:.2f} s, processed {processed:.2f} s\n")
        assert sign < SOON_S
        assert processed < SOON_S


def test_limited_checks_of_four_pull_requests_leave_the_others_be(world: World, tmp_path: Path) -> None:
    with serving(environment(world, tmp_path / "data"), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        world.faults.choose = limited("POST", "/check-runs", 6, slow_down(403, LIMITED_S))
        for _ in range(6):
            world.open_pull("alice", DOCUMENTS)
        until(lambda: world.faults.met == 6)
        last = world.open_pull("alice", DOCUMENTS)
        sign = until(lambda: world.gate(last))
        until(lambda: world.gate(last) == "success", SOON_S)
        sys.stderr.write(f"first sign {sign:.2f} s\n")
        assert sign < SOON_S


def test_strangers_typing_errors_hold_up_no_command_and_stop_being_answered(world: World, tmp_path: Path) -> None:
    with serving(environment(world, tmp_path / "data"), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", SOURCE)
        until(world.live_runs)
        slow = Fault(502, delay_s=4.0)
        world.faults.choose = lambda _, path: slow if "/collaborators/carol/" in path else None
        for at in range(60):
            world.comment("carol", f"/verl-e2e rnu {at}", number)
        text = world.comment("alice", "/verl-e2e cancel", number)
        began = time.monotonic()
        until(lambda: eyes(world, text))
        processed = time.monotonic() - began
        until(lambda: not world.live_runs() or all(run.status == "completed" for run in world.live_runs()))
        cancelled = time.monotonic() - began
        sys.stderr.write(f"processed {processed:.2f} s, cancelled {cancelled:.2f} s\n")
        assert processed < SOON_S
        time.sleep(2)
        assert len(replies(world, number)) <= 10


def test_one_comment_in_several_deliveries_gets_one_reply(world: World, tmp_path: Path) -> None:
    with serving(environment(world, tmp_path / "data"), tmp_path / "log") as (_, address):
        world.deliveries.url = f"{address}/webhook"
        number = world.open_pull("alice", DOCUMENTS)
        until(lambda: world.gate(number) == "success")
        world.deliveries.hold()
        world.comment("alice", "/verl-e2e rnu", number)
        world.comment("carol", "/verl-e2e approve 123", number)
        held = list(world.deliveries.pending)
        # The same events under other ids, as another hook or a replay would send them.
        copies = [
            type(sent)(f"copy-{at}-{n}", sent.event, sent.action, sent.body, sent.installation, sent.repository)
            for n in range(6)
            for at, sent in enumerate(held)
        ]
        world.deliveries.release([*held, *copies])
        until(lambda: len(replies(world, number)) >= 2)
        world.deliveries.wait()
        time.sleep(3)
        assert len(replies(world, number)) == 2

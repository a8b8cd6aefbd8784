"""Answer the commands that ask for words: `help` and `explain`, each with one comment."""

from dataclasses import replace

from bot.core.inert import fence_for, fenced_row
from bot.core.planning.explain import render_explanation
from bot.core.pulls.command_text import render_help
from bot.core.pulls.ledger import Asked
from bot.core.pulls.messages import reply_to
from bot.core.pulls.pull import Pull
from bot.core.pulls.situation import Situation
from bot.handlers.app_rooms import AppRooms
from bot.handlers.messaging import say, was_said
from bot.ports import ForgeError

MAX_ANSWERS = 20
MAX_ROWS = 80
TOO_MANY = "There are more, left out here; name a symbol as PATH:SYMBOL."


def answer(situation: Situation, rooms: AppRooms) -> None:
    """Answer what was asked on this pull request, each question once, at most twenty."""
    target = situation.target
    if not isinstance(target, Pull):
        return
    asked = [one for one in situation.entries if isinstance(one, Asked) and one.verb in {"help", "explain"}]
    for one in asked[:MAX_ANSWERS]:
        message = reply_to(one.repository, one.number, one.source, "", person=one.by_person)
        if not was_said(message, rooms):
            text = render_help() if one.verb == "help" else _explained(one, situation, rooms)
            say(replace(message, body=text), rooms)


def _explained(asked: Asked, situation: Situation, rooms: AppRooms) -> str:
    path, _, symbol = asked.arguments[0].partition(":")
    if situation.policy.reach is None:
        return _fenced((f"{situation.policy.source} follows no reach: paths are judged by their names alone",))
    try:
        found = rooms.analysis.explain(situation.target, situation.policy, path, symbol)
    except Exception as error:
        if isinstance(error, ForgeError) or not getattr(error, "user_mistake", False):
            raise
        return _fenced((str(error),))
    rows = tuple(row for one in found for row in render_explanation(one).splitlines())
    return _fenced((*rows[:MAX_ROWS], *((TOO_MANY,) if len(rows) > MAX_ROWS else ())))


def _fenced(rows: tuple[str, ...]) -> str:
    inert = tuple(fenced_row(row) for row in rows)
    fence = fence_for(inert)
    return "\n".join((f"{fence}text", *inert, fence)) + "\n"

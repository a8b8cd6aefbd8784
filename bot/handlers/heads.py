"""What is remembered of a pull request's head: since when it is known here, and who else has it.

One commit may be the head of several pull requests, and GitHub shows one gate for it: it opens when it may for all.
"""

import json
from dataclasses import replace
from datetime import datetime

from bot.core.pulls.conduct import Steps, conduct
from bot.core.pulls.gate import GateState
from bot.core.pulls.ledger import Posted
from bot.core.pulls.pull import Pull, PullRef, PullState
from bot.core.pulls.situation import Situation
from bot.handlers.app_rooms import AppRooms
from bot.ports import UnknownPullError

# The ledger's `digest` holds the gate of each pull request by its number, `at` is when the head was first looked at.
_HEAD = "head"


def since(pull: Pull, rooms: AppRooms) -> datetime | None:
    """When this head was first looked at; None when it never was."""
    known = rooms.ledger.posted(pull.ref.repository, _HEAD, _subject(pull.head_sha))
    return known.at if known is not None else None


def with_others(situation: Situation, steps: Steps, rooms: AppRooms) -> Steps:
    """The steps as they are with regard to other open pull requests that have this head.

    There is no success while the gate of another one is none, and a closed one leaves the checks to the others.
    """
    if not isinstance(situation.target, Pull):
        return steps
    others = {one: state for one, state in _gates(situation.target, steps, rooms) if _is_open(one, situation, rooms)}
    if situation.over and others:
        return replace(steps, checks=())
    unsatisfied = next((one for one, state in others.items() if state != GateState.SUCCESS), None)
    if steps.gate.state is not GateState.SUCCESS or unsatisfied is None:
        return steps
    beside = f"pull request #{unsatisfied.number} has this head too and is not satisfied, and one gate stands for both"
    mend = "mend or close it, then comment `/verl-e2e status` here"
    return conduct(replace(situation, beside=f"{beside}: {mend}"))


def _subject(head_sha: str) -> str:
    return f"{head_sha}:pulls"


def _gates(pull: Pull, steps: Steps, rooms: AppRooms) -> tuple[tuple[PullRef, str], ...]:
    """The gates of all others that ever had this head, as they last were; ours is noted."""
    repository, own = pull.ref.repository, str(pull.ref.number)
    known = rooms.ledger.posted(repository, _HEAD, _subject(pull.head_sha))
    states: dict[str, str] = json.loads(known.digest) if known is not None else {}
    if states.get(own) != steps.gate.state:
        text = json.dumps({**states, own: steps.gate.state.value})
        at = known.at if known is not None else rooms.clock.now()
        subject = _subject(pull.head_sha)
        rooms.ledger.put_posted(
            Posted(repository=repository, kind=_HEAD, subject=subject, remote_id=0, digest=text, at=at)
        )
    return tuple((PullRef(repository, int(one)), state) for one, state in states.items() if one != own)


def _is_open(ref: PullRef, situation: Situation, rooms: AppRooms) -> bool:
    try:
        pull = rooms.pulls.pull(ref)
    except UnknownPullError:
        return False
    return pull.state is PullState.OPEN and pull.head_sha == situation.head_sha

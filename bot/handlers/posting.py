"""Write what shall stand on GitHub, once: looked for before it is made, and left alone while nothing changed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta

from bot.core.pulls.check_runs import CheckRun
from bot.core.pulls.ledger import Posted
from bot.core.pulls.pull import PullRef, Target, repository_of
from bot.core.pulls.pull_card import MARKER
from bot.handlers.app_rooms import AppRooms
from bot.handlers.opened import note_concluded, note_opening
from bot.ports import Comment

CARD, CHECK, REPLY = "card", "check", "reply"
MAX_REPLY = 20_000


def post_checks(target: Target, checks: tuple[CheckRun, ...], rooms: AppRooms) -> None:
    """Bring check runs to what they shall say; of an earlier head only those that we wrote before.

    What is about to be shown without a conclusion is written down first, so that it gets one whatever happens.
    """
    repository = repository_of(target)
    listed: dict[str, tuple[CheckRun, ...]] = {}

    def there(sha: str) -> tuple[CheckRun, ...]:
        if sha not in listed:
            listed[sha] = rooms.checks.check_runs(repository, sha)
        return listed[sha]

    note_opening(target, checks, rooms)
    for check in checks:
        _post_check(target, check, there, rooms)
    note_concluded(target, checks, rooms)


def _post_check(target: Target, check: CheckRun, there: Callable[[str], tuple[CheckRun, ...]], rooms: AppRooms) -> None:
    repository, subject = repository_of(target), check_subject(check.head_sha, check.name)
    posted = rooms.ledger.posted(repository, CHECK, subject)
    digest = check_digest(check)
    if posted is not None and posted.digest == digest:
        return
    if posted is None:
        ours = [one.id for one in there(check.head_sha) if _is_same(one, check, rooms)]
        remote_id = max(ours, default=0)
        if not remote_id and check.head_sha != target.head_sha:
            return
    else:
        remote_id = posted.remote_id
    written = rooms.checks.write_check(repository, replace(check, id=remote_id))
    _remember(repository, CHECK, subject, written, digest, rooms)


def check_digest(check: CheckRun) -> str:
    """What a check run as it was written is remembered by."""
    return _digest(asdict(check))


def _is_same(found: CheckRun, wanted: CheckRun, rooms: AppRooms) -> bool:
    ours = rooms.app_id is None or found.app_id == rooms.app_id
    return ours and (found.name, found.external_id) == (wanted.name, wanted.external_id)


def check_subject(head_sha: str, name: str) -> str:
    """What a check run is remembered by."""
    return f"{head_sha}:{name}"


def forget_check(repository: str, head_sha: str, name: str, rooms: AppRooms) -> None:
    """GitHub reset a check run of ours: what it says now is not known any more, so it is written again."""
    posted = rooms.ledger.posted(repository, CHECK, check_subject(head_sha, name))
    if posted is not None:
        rooms.ledger.put_posted(posted.model_copy(update={"digest": ""}))


def post_card(ref: PullRef, body: str, interval_s: int, rooms: AppRooms) -> float:
    """Bring the one card to what it shall say; gives in how many seconds it may be edited, 0 when it says it now.

    One that was deleted by hand is made anew; a comment of somebody else with our marker is never touched.
    """
    posted = rooms.ledger.posted(ref.repository, CARD, str(ref.number))
    digest = _digest(body)
    if posted is not None and posted.digest == digest:
        return 0.0
    if posted is not None:
        wait = posted.at + timedelta(seconds=interval_s) - rooms.clock.now()
        if wait > timedelta(0):
            return wait.total_seconds()
    known = posted.remote_id if posted is not None else _found_card(ref, rooms)
    if not known or not rooms.conversation.edit(ref, known, body):
        known = rooms.conversation.comment(ref, body)
    _remember(ref.repository, CARD, str(ref.number), known, digest, rooms)
    return 0.0


def _found_card(ref: PullRef, rooms: AppRooms) -> int:
    """The first card of ours that is there though nobody remembers it; 0 for none."""
    ours = (one for one in rooms.conversation.comments(ref) if one.body.startswith(MARKER) and _is_ours(one, rooms))
    return next((one.id for one in ours), 0)


def _is_ours(comment: Comment, rooms: AppRooms) -> bool:
    return comment.author_is_app and (rooms.app_id is None or comment.app_id in {None, rooms.app_id})


def reply(ref: PullRef, subject: str, body: str, rooms: AppRooms) -> None:
    """Answer with one comment, once for each subject."""
    if rooms.ledger.posted(ref.repository, REPLY, f"{ref.number}:{subject}") is not None:
        return
    marker = f"<!-- verl-e2e:reply:{subject} -->"
    there = (one for one in rooms.conversation.comments(ref) if one.body.startswith(marker) and _is_ours(one, rooms))
    known = next((one.id for one in there), 0)
    written = known or rooms.conversation.comment(ref, f"{marker}\n{body[:MAX_REPLY]}")
    _remember(ref.repository, REPLY, f"{ref.number}:{subject}", written, _digest(body), rooms)


def _remember(repository: str, kind: str, subject: str, remote_id: int, digest: str, rooms: AppRooms) -> None:
    rooms.ledger.put_posted(
        Posted(
            repository=repository,
            kind=kind,
            subject=subject,
            remote_id=remote_id,
            digest=digest,
            at=rooms.clock.now(),
        )
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

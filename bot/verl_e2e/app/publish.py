"""Write what shall stand on GitHub, once: looked for before it is made, and left alone while nothing changed."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta

from verl_e2e.app.create_once import Creation, Outcome, create_once, end_doubles_of
from verl_e2e.app.open_checks import note_concluded, note_opening
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.check_runs import CheckRun, CheckStatus, Conclusion
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import PullRef, Target, repository_of
from verl_e2e.core.report.pull_card import MARKER
from verl_e2e.ports import Comment, ForgeError

CARD, CHECK, REPLY = "card", "check", "reply"
MAX_REPLY = 20_000
REPLACED = "Created twice; the other check run of this name counts"


def post_checks(target: Target, checks: tuple[CheckRun, ...], rooms: AppRooms) -> float:
    """Bring check runs to what they shall say; of an earlier head only those that we wrote before.

    What is about to be shown without a conclusion is written down first, so that it gets one whatever happens. Gives in
    how many seconds one may be written of which no one knows yet whether it is there, 0 for none.
    """
    repository = repository_of(target)
    listed: dict[str, tuple[CheckRun, ...]] = {}

    def there(sha: str) -> tuple[CheckRun, ...]:
        if sha not in listed:
            listed[sha] = rooms.checks.check_runs(repository, sha)
        return listed[sha]

    note_opening(target, checks, rooms)
    outcomes = [(check, *_post_check(target, check, there, rooms)) for check in checks]
    note_concluded(target, [check for check, known, _ in outcomes if known], rooms)
    return min((wait_s for _, _, wait_s in outcomes if wait_s > 0), default=0.0)


def _post_check(
    target: Target, check: CheckRun, there: Callable[[str], tuple[CheckRun, ...]], rooms: AppRooms
) -> tuple[bool, float]:
    """Whether it is known to say what it shall, and in how many seconds to look at it again, 0 for never."""
    repository, subject = repository_of(target), check_subject(check.head_sha, check.name)
    posted = rooms.ledger.posted(repository, CHECK, subject)
    digest, creation = check_digest(check), Creation(repository, f"{subject}:check")
    if posted is not None and posted.digest == digest:
        return True, _hide_doubles(creation, check, posted.remote_id, rooms)

    def find() -> int:
        return max(
            (check_run.id for check_run in there(check.head_sha) if _is_same(check_run, check, rooms)), default=0
        )

    if posted is not None:
        outcome = Outcome(posted.remote_id, found=True)
    elif check.head_sha != target.head_sha:
        outcome = Outcome(find(), found=True)
    else:
        outcome = create_once(creation, find, lambda: rooms.checks.write_check(repository, check), rooms)
    if not outcome.id:
        return not outcome.wait_s, outcome.wait_s
    if outcome.found:
        rooms.checks.write_check(repository, replace(check, id=outcome.id))
    _remember(repository, CHECK, subject, outcome.id, digest, rooms)
    return True, _hide_doubles(creation, check, outcome.id, rooms)


def _hide_doubles(creation: Creation, check: CheckRun, kept_id: int, rooms: AppRooms) -> float:
    """Close and rename what was created beside the check run that we go on with; gives when to look again."""

    def hide() -> None:
        for check_run in rooms.checks.same_name(creation.repository, check.head_sha, check.name):
            if _is_same(check_run, check, rooms) and check_run.id != kept_id:
                double = replace(
                    check, id=check_run.id, name=f"{check.name} (replaced)", external_id="", annotations=()
                )
                closed = replace(double, status=CheckStatus.COMPLETED, conclusion=Conclusion.CANCELLED, actions=())
                rooms.checks.write_check(creation.repository, replace(closed, title=REPLACED, summary=REPLACED))

    return end_doubles_of(creation, hide, rooms)


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

    One that was deleted by hand is made again; a comment of someone else with our marker is never touched.
    """
    posted = rooms.ledger.posted(ref.repository, CARD, str(ref.number))
    digest = _digest(body)
    creation = Creation(ref.repository, f"{ref.number}:card")
    if posted is not None and posted.digest == digest:
        return _delete_doubles(creation, ref, posted.remote_id, rooms)
    if posted is not None:
        wait = posted.at + timedelta(seconds=interval_s) - rooms.clock.now()
        if wait > timedelta(0):
            return wait.total_seconds()
    known = posted.remote_id if posted is not None else 0
    if not known or not rooms.conversation.edit(ref, known, body):
        gone = known

        def find() -> int:
            return next((card for card in _cards(ref, rooms) if card != gone), 0)

        outcome = create_once(creation, find, lambda: rooms.conversation.comment(ref, body), rooms)
        if not outcome.id:
            return outcome.wait_s
        known = outcome.id
        if outcome.found:
            rooms.conversation.edit(ref, known, body)
    _remember(ref.repository, CARD, str(ref.number), known, digest, rooms)
    return _delete_doubles(creation, ref, known, rooms)


def _delete_doubles(creation: Creation, ref: PullRef, kept_id: int, rooms: AppRooms) -> float:
    """Delete the cards that were created beside the one that we go on with; gives when to look again."""

    def delete() -> None:
        for card in _cards(ref, rooms):
            if card != kept_id:
                rooms.conversation.delete(ref, card)

    return end_doubles_of(creation, delete, rooms)


def _cards(ref: PullRef, rooms: AppRooms) -> tuple[int, ...]:
    """The ids of the cards of ours that GitHub lists, oldest first."""
    there = rooms.conversation.comments(ref)
    return tuple(comment.id for comment in there if comment.body.startswith(MARKER) and _is_ours(comment, rooms))


def _is_ours(comment: Comment, rooms: AppRooms) -> bool:
    return comment.author_is_app and (rooms.app_id is None or comment.app_id in {None, rooms.app_id})


def reply(ref: PullRef, subject: str, body: str, rooms: AppRooms) -> None:
    """Answer with one comment, once for each subject; ForgeError."""
    if rooms.ledger.posted(ref.repository, REPLY, f"{ref.number}:{subject}") is not None:
        return
    marker = f"<!-- verl-e2e:reply:{subject} -->"

    def find() -> int:
        there = rooms.conversation.comments(ref)
        return next((item.id for item in there if item.body.startswith(marker) and _is_ours(item, rooms)), 0)

    def create() -> int:
        return rooms.conversation.comment(ref, f"{marker}\n{body[:MAX_REPLY]}")

    outcome = create_once(Creation(ref.repository, f"{ref.number}:{subject}:reply"), find, create, rooms)
    if not outcome.id:
        raise ForgeError("a reply may be there that GitHub does not list yet", passing=True, wait_s=outcome.wait_s)
    _remember(ref.repository, REPLY, f"{ref.number}:{subject}", outcome.id, _digest(body), rooms)


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

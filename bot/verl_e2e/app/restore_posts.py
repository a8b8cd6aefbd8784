"""Hold what is on GitHub against what should be there: someone may have edited, hidden or deleted our card or a check.

What we wrote last is remembered and not read again at each look. So now and then, when someone asks for `status`, and
when GitHub tells that a comment of ours was touched, the real thing is read; what differs is forgotten and so written
again. Nothing is written where nothing differs, so our own edits lead to nothing.
"""

from datetime import timedelta

from verl_e2e.app.publish import CARD, CHECK, check_subject, forget_check
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.check_runs import CheckRun
from verl_e2e.core.pulls.ledger import Posted, RecordedCommand
from verl_e2e.core.pulls.pull import Pull, PullRef, Target, repository_of
from verl_e2e.core.pulls.target_state import TargetState

# How long what stands on GitHub is believed without being read. Two requests for a pull request.
BELIEVED = timedelta(minutes=30)
# The ledger's `at` is when GitHub was read, `digest` the source of the last `status` by then, or `_TOUCHED`.
_READ, _TOUCHED = "read", "touched"


def touched(ref: PullRef, rooms: AppRooms) -> None:
    """Someone touched a comment of ours: the next look reads what is there."""
    _remember(ref, _TOUCHED, rooms)


def restore(target_state: TargetState, checks: tuple[CheckRun, ...], card: str, rooms: AppRooms) -> None:
    """Forget what GitHub does not show as it should, when it is time to read it."""
    target = target_state.target
    if not isinstance(target, Pull):
        return
    asked = [
        entry.source for entry in target_state.entries if isinstance(entry, RecordedCommand) and entry.verb == "status"
    ]
    latest = asked[-1] if asked else ""
    known = rooms.ledger.posted(target.ref.repository, _READ, f"{target.ref.number}:read")
    if known is not None and known.digest == latest and rooms.clock.now() - known.at < BELIEVED:
        return
    if known is not None or latest:
        _read_card(target.ref, card, rooms)
        _read_checks(target, checks, rooms)
    _remember(target.ref, latest, rooms)


def _read_card(ref: PullRef, wanted: str, rooms: AppRooms) -> None:
    posted = rooms.ledger.posted(ref.repository, CARD, str(ref.number))
    if posted is None:
        return
    found = rooms.conversation.read(ref, posted.remote_id)
    if found is not None and found.minimized:
        # No way leads back but to write it again in another place.
        rooms.conversation.delete(ref, found.id)
    if found is None or found.minimized or not _is_same_text(found.body, wanted):
        rooms.ledger.put_posted(posted.model_copy(update={"digest": ""}))


def _read_checks(target: Target, wanted: tuple[CheckRun, ...], rooms: AppRooms) -> None:
    repository = repository_of(target)
    there = {check.id: check for check in rooms.checks.check_runs(repository, target.head_sha)}
    for check in wanted:
        posted = rooms.ledger.posted(repository, CHECK, check_subject(check.head_sha, check.name))
        if posted is None or check.head_sha != target.head_sha:
            continue
        found = there.get(posted.remote_id)
        if found is None or not _says_the_same(found, check):
            forget_check(repository, check.head_sha, check.name, rooms)


def _says_the_same(found: CheckRun, wanted: CheckRun) -> bool:
    states = (found.status, found.conclusion) == (wanted.status, wanted.conclusion)
    texts = ((found.title, wanted.title), (found.summary, wanted.summary), (found.text, wanted.text))
    return states and all(_is_same_text(old, new) for old, new in texts)


def _is_same_text(found: str, wanted: str) -> bool:
    """Whether GitHub keeps the text, which it may give other line ends."""
    return _plain(found) == _plain(wanted)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _remember(ref: PullRef, digest: str, rooms: AppRooms) -> None:
    subject, now = f"{ref.number}:read", rooms.clock.now()
    rooms.ledger.put_posted(
        Posted(repository=ref.repository, kind=_READ, subject=subject, remote_id=0, digest=digest, at=now)
    )

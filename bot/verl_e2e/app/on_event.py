"""Hear what GitHub delivers, and find what it failed to deliver: both end as targets to look at.

Nothing is decided here but whether someone may ask. The same event received twice, late or out of order adds nothing.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.app.keep_command import CommandKeeper, Given, Grants
from verl_e2e.app.known_targets import BasePolicies, KnownTargets, NoPolicyError
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, PostRestorer
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.checkup import failed_deliveries
from verl_e2e.core.pulls.commands import LEVEL, Command, CommandLine, parse
from verl_e2e.core.pulls.deliveries import (
    BadDeliveryError,
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    Event,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    Received,
    WorkflowJobEvent,
    WorkflowRunEvent,
    delivery_lane,
    parse_event,
    reaction_to,
    reply_to,
)
from verl_e2e.core.pulls.forge import CANCEL, LEVEL_BUTTON, RERUN, CheckId, DeliveryAttempt, check_name, read_check_id
from verl_e2e.core.pulls.pull import MergeGroup, OpenPull, Pull, PullRef, Reference, read_reference, reference_text
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import (
    Clock,
    ForgeError,
    Ledger,
    UnknownPullError,
    UnreadableDeliveryError,
    WebhookHistory,
    Worklist,
)

HEARD, NOT_UNDERSTOOD = "eyes", "confused"
LABEL = "verl-e2e:"
_RUN_AND_LEVELS = {"run": ("run", ()), **{f"level{int(item)}": (LEVEL, (str(int(item)),)) for item in Level}}


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Hears every kind of event that GitHub tells of."""

    app_id: int | None
    check_posts: CheckPublisher
    commands: CommandKeeper
    comments: CommentPublisher
    grants: Grants
    known: KnownTargets
    ledger: Ledger
    policies: BasePolicies
    restorer: PostRestorer
    read_commands: Callable[[str], tuple[CommandLine, ...]]

    def hear(self, event: Event, delivery: str = "") -> tuple[Reference, ...]:
        """Keep what the event says and give the references to reconcile; `delivery` is GitHub's id of its delivery."""
        match event:
            case PullRequestEvent():
                return self._pull_request(event)
            case CommentEvent():
                return self._comment(event)
            case CheckRunEvent():
                return self._check_run(event, delivery)
            case CheckSuiteEvent():
                return self._check_suite(event, delivery)
            case MergeGroupEvent():
                return self._merge_group(event)
            case WorkflowRunEvent():
                return self._of_handle(event.repository.full_name, event.workflow_run.id)
            case WorkflowJobEvent():
                return self._of_handle(event.repository.full_name, event.workflow_job.run_id)
            case PushEvent():
                # What a push means as one to a base branch is for `DeliveryHandler`.
                return () if event.number is None else (PullRef(event.repository.full_name, event.number),)

    def _pull_request(self, event: PullRequestEvent) -> tuple[Reference, ...]:
        ref = PullRef(event.repository.full_name, event.pull_request.number)
        if event.action == "synchronize":
            self.grants.remember_pusher(ref, event.pull_request.head.sha, event.sender.login)
        label = event.label.name if event.action == "labeled" and event.label else ""
        meant = _RUN_AND_LEVELS.get(label.removeprefix(LABEL)) if label.startswith(LABEL) else None
        if meant is not None:
            pull = self.known.pull(ref)
            if pull is None:
                return ()
            # Set before a push and delivered late: it was meant for what lay there then.
            if pull.head_sha != event.pull_request.head.sha:
                return (ref,)
            given = Given(event.sender.login, f"label:{label}:{pull.head_sha}", pull)
            self.commands.press(Command(0, *meant), given)
        return self.known.with_sharing(ref, (event.pull_request.head.sha, event.before or ""))

    def _comment(self, event: CommentEvent) -> tuple[Reference, ...]:
        """The commands of a comment, by the person who wrote it: an edited or relayed one is nobody's word."""
        comment, ref = event.comment, PullRef(event.repository.full_name, event.issue.number)
        via, who = comment.performed_via_github_app, comment.user.login
        ours = via is not None and self.app_id is not None and via.id == self.app_id
        if event.action != "created":
            if not ours or event.sender.login == who:
                return ()
            # Someone else edited or deleted a comment of ours.
            self.restorer.touched(ref)
            return (ref,)
        if ours or comment.updated_at != comment.created_at or event.sender.login != who:
            return ()
        parsed = parse(self.read_commands(comment.body))
        pull = self.known.pull(ref) if parsed else None
        if pull is None:
            return ()
        person = self.grants.is_member(ref.repository, who, comment.author_association)
        place = ref.repository, ref.number
        self.comments.say(reaction_to(*place, comment.id, HEARD, person=person, to=who))
        wrong = [self.commands.keep_line(item, event, pull, person=person) for item in parsed]
        words = [text for text in wrong if text]
        if words:
            self.comments.say(reaction_to(*place, comment.id, NOT_UNDERSTOOD, person=person, to=who))
            self.comments.say(reply_to(*place, f"comment:{comment.id}", "\n".join(words), person=person, to=who))
        return self.known.with_sharing(ref, (pull.head_sha,))

    def _check_run(self, event: CheckRunEvent, delivery: str) -> tuple[Reference, ...]:
        """The targets of a check run of ours that someone reran, or of which a button was pressed."""
        check, repository = event.check_run, event.repository.full_name
        own = read_check_id(check.external_id or "")
        ours = self.app_id is None or (check.app is not None and check.app.id == self.app_id)
        if own is None or not ours or own.head_sha != check.head_sha:
            return ()
        if event.action == "rerequested":
            # GitHub set it back to queued, whatever becomes of the request.
            self.check_posts.forget_check(repository, own.head_sha, check.name)
        if not own.number:
            group = self.known.group(repository, own.head_sha)
            return (group,) if group is not None else ()
        identifier = event.requested_action.identifier if event.requested_action else RERUN
        command = _button(identifier, own if event.action == "rerequested" else CheckId(own.number, own.head_sha))
        ref = PullRef(repository, own.number)
        pull = self.known.pull(ref)
        # A button on the check of an earlier head asks for nothing now.
        if pull is not None and command is not None and pull.head_sha == own.head_sha:
            action = event.action if event.requested_action is None else identifier
            self.commands.press(command, Given(event.sender.login, f"check:{check.id}:{action}:{delivery}", pull))
        return self.known.with_sharing(ref, (own.head_sha,)) if pull is not None else ()

    def _check_suite(self, event: CheckSuiteEvent, delivery: str) -> tuple[Reference, ...]:
        """The pull requests whose checks someone reran all together."""
        suite, repository = event.check_suite, event.repository.full_name
        if self.app_id is not None and (suite.app is None or suite.app.id != self.app_id):
            return ()
        runs = self.ledger.runs(repository, head_sha=suite.head_sha)
        numbers = {run.number for run in runs if run.number is not None}
        found: list[Reference] = []
        for number in sorted(numbers | {request.number for request in suite.pull_requests}):
            pull = self.known.pull(PullRef(repository, number))
            if pull is None or pull.head_sha != suite.head_sha:
                continue
            self._forget_all(pull, {run.job_id for run in runs})
            source = f"suite:{suite.id}:rerequested:{delivery}"
            self.commands.press(Command(0, "rerun"), Given(event.sender.login, source, pull))
            found.append(pull.ref)
        return tuple(found)

    def _forget_all(self, pull: Pull, job_ids: Iterable[str]) -> None:
        try:
            name = self.policies.policy_of(pull).gate.name
        except NoPolicyError:
            return
        for text in (name, *(check_name(name, job_id) for job_id in job_ids)):
            self.check_posts.forget_check(pull.ref.repository, pull.head_sha, text)

    def _merge_group(self, event: MergeGroupEvent) -> tuple[Reference, ...]:
        part, repository = event.merge_group, event.repository.full_name
        branch = part.base_ref.removeprefix("refs/heads/")
        group = MergeGroup(repository, branch, part.base_sha, part.head_sha, _pulls_of(part.head_ref))
        self.known.remember_group(group, destroyed=event.action == "destroyed")
        return (group,)

    def _of_handle(self, repository: str, workflow_run: int) -> tuple[Reference, ...]:
        """The target whose run this workflow run is, and who shares its head; nothing for other workflows."""
        run = self.ledger.run_by_handle(repository, str(workflow_run))
        found = self.known.reference_of(run) if run is not None else None
        return self.known.with_sharing(found, (run.head_sha,)) if run is not None and found is not None else ()


def _button(identifier: str, own: CheckId) -> Command | None:
    """The command that a button stands for."""
    if identifier == RERUN and own.job_id == REHEARSAL:
        return Command(0, "rehearse")
    if identifier == RERUN:
        return Command(0, "rerun", (own.job_id,) if own.job_id else ())
    if identifier == CANCEL:
        return Command(0, "cancel")
    number = identifier.removeprefix(LEVEL_BUTTON)
    if identifier.startswith(LEVEL_BUTTON) and number in {str(int(item)) for item in Level}:
        return Command(0, LEVEL, (number,))
    return None


def _pulls_of(head_ref: str) -> tuple[int, ...]:
    """The pull request that GitHub's branch for a group names, `gh-readonly-queue/<base>/pr-<number>-<sha>`."""
    last = head_ref.rpartition("/")[2].split("-")
    return (int(last[1]),) if len(last) >= 2 and last[0] == "pr" and last[1].isdigit() else ()


# As long as GitHub can deliver again.
KEPT = timedelta(days=3)
# What was on its way at the last look may have failed since.
_OVERLAP = timedelta(minutes=2)
_FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 900.0
# What our own door says to what it never takes, and how often that is asked for all the same.
_REFUSALS, MOST_TIMES = frozenset({400, 401, 413, 415}), 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryHandler:
    """Hears what was delivered for the repositories that are served, and finds what was not delivered."""

    events: EventHandler
    worklist: Worklist
    # Names in any case; every repository when there are none.
    served: tuple[str, ...] = ()

    def process(self, delivery: Received) -> Collection[str]:
        """The targets of a delivery, as text; UnreadableDeliveryError."""
        try:
            event = parse_event(delivery.event, delivery.body)
        except BadDeliveryError as error:
            raise UnreadableDeliveryError(str(error)) from None
        if event is None or not self._is_served(event.repository.full_name):
            return ()
        repository = event.repository.full_name
        add_to_log_context(repository=repository)
        if isinstance(event, PushEvent) and event.number is None:
            pulls = self.events.known.pulls.open_pulls(repository, base=event.branch)
            self.events.policies.look_again(pulls, self.worklist)
        return tuple(map(reference_text, self.events.hear(event, delivery.id)))

    def lost(self, known: Collection[str]) -> Collection[str]:
        """The targets that no delivery named, as text, in addition to the known ones.

        A known pull request is among them where it has another head than when it was last looked at: that may be a head
        that it had before, to which someone went back. A policy that changed is wanted at once.
        """
        refs = {reference for reference in map(read_reference, known) if isinstance(reference, PullRef)}
        found = set[PullRef]()
        for repository in dict.fromkeys(ref.repository for ref in refs):
            if not self._is_served(repository):
                continue
            try:
                listed = self.events.known.pulls.open_pulls(repository)
            except (ForgeError, UnknownPullError) as error:
                # Where the App is no longer, which must not hide what the others have.
                log.warning("open pull requests not listed: %s", error, extra={"repository": repository})
                continue
            self.events.policies.look_again(listed, self.worklist)
            found |= missed_openings(listed, refs)
            for pull in listed:
                last_seen = self.events.ledger.pulls_with(repository, pull.head_sha, newest=True)
                if pull.ref in refs and pull.ref not in last_seen:
                    found.add(pull.ref)
        return {reference_text(ref) for ref in found}

    def _is_served(self, repository: str) -> bool:
        # GitHub takes names in any case for the same repository.
        return not self.served or repository.lower() in {name.lower() for name in self.served}


def lane_of(delivery: Received) -> str:
    """What hearing a delivery may wait for; empty for nothing."""
    try:
        return delivery_lane(parse_event(delivery.event, delivery.body))
    except BadDeliveryError:
        return ""  # hearing it refuses it


def missed_openings(listed: Iterable[OpenPull], known: Iterable[PullRef]) -> set[PullRef]:
    """The open pull requests that are newer than every known one of their repository: no delivery named their opening.

    Older ones that are not known were there before the service was; they wait until something happens to them.
    """
    newest: dict[str, int] = {}
    for ref in known:
        newest[ref.repository] = max(newest.get(ref.repository, 0), ref.number)
    return {pull.ref for pull in listed if pull.ref.number > newest.get(pull.ref.repository, pull.ref.number)}


@dataclass(slots=True)
class _Failing:
    """A delivery that never reached us."""

    # Its newest attempt.
    attempt: DeliveryAttempt
    # When it was first seen to have failed.
    since: datetime
    asked: int = 0
    # When to ask for it again, by the monotonic clock.
    again_s: float = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to ask for it now."""
        if self.attempt.code in _REFUSALS and self.asked >= MOST_TIMES:
            return False
        return not self.asked or self.again_s <= now_s


class Redelivery:
    """Asks GitHub to send a webhook again until it reaches us: GitHub does not by itself, and forgets in three days.

    What fails again is asked for later each time, for no one knows how long GitHub cannot reach us. A new process looks
    at all that GitHub still has.
    """

    def __init__(self, history: WebhookHistory, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._looked: datetime | None = None
        self._failing: dict[str, _Failing] = {}

    def ask_again(self) -> int:
        """Ask for what is due, first for what was asked for least; gives how many that were. ForgeError."""
        self._look()
        now_s = self._clock.monotonic()
        due = [failing for failing in self._failing.values() if failing.is_due(now_s)]
        for failing in sorted(due, key=lambda failing: (failing.asked, failing.attempt.at, failing.attempt.id)):
            try:
                self._history.redeliver(failing.attempt.id)
            except ForgeError as error:
                if error.passing:
                    raise
                log.warning("webhook not sent again: %s", error, extra={"delivery": failing.attempt.guid})
            failing.again_s = now_s + min(_FIRST_WAIT_S * 2 ** min(failing.asked, 20), LONGEST_WAIT_S)
            failing.asked += 1
        return len(due)

    def _look(self) -> None:
        """Note which deliveries failed or arrived since the last look."""
        now = self._clock.now()
        attempts = self._history.deliveries(now - KEPT if self._looked is None else min(self._looked, now) - _OVERLAP)
        for attempt in attempts:
            if not attempt.failed:
                self._failing.pop(attempt.guid, None)
        for attempt in failed_deliveries(attempts):
            self._failing.setdefault(attempt.guid, _Failing(attempt, now)).attempt = attempt
        self._failing = {guid: failing for guid, failing in self._failing.items() if now - failing.since <= KEPT}
        self._looked = now

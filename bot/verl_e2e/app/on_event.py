"""Hear what GitHub delivers, and find what it failed to deliver: both end as targets to look at.

A command is kept if the person may give it; nothing else is decided here. The same event received twice, late or out of
order adds nothing.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from verl_e2e.app.known_targets import Grants, KnownTargets, NoPolicyError
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, PostRestorer
from verl_e2e.app.runs import RunQueue
from verl_e2e.core.model.access import Access, Capability
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.outline import refused_image
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.checkup import failed_deliveries
from verl_e2e.core.pulls.commands import (
    LEVEL,
    MAX_REQUESTS,
    OWN_HEAD,
    PAUSE,
    RESUME,
    VERBS,
    Command,
    CommandLine,
    Denied,
    GivenEntry,
    Mistake,
    counted,
    level_requests,
    parse_commands,
)
from verl_e2e.core.pulls.deliveries import (
    BadDeliveryError,
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    Received,
    WebhookEvent,
    WorkflowJobEvent,
    WorkflowRunEvent,
    delivery_lane,
    parse_event,
    reaction_to,
    reply_to,
)
from verl_e2e.core.pulls.forge import (
    CANCEL,
    LEVEL_BUTTON,
    RERUN,
    Branch,
    BranchCommit,
    CheckId,
    DeliveryAttempt,
    MergeGroup,
    OpenPull,
    Pull,
    PullRef,
    Reference,
    check_name,
    read_check_id,
    read_reference,
    reference_text,
)
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand
from verl_e2e.core.report.command_text import render_mistakes, render_named
from verl_e2e.core.text.escape import markdown, sentence
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import (
    Clock,
    ForgeError,
    Ledger,
    Revisions,
    UnknownPullError,
    UnreadableDeliveryError,
    WebhookHistory,
    Worklist,
)

# Commands that count for the one commit that they name.
NAMES_HEAD = frozenset({"approve", "override"})


NO_QUEUE = "the Action has no queue of its own; install the App, or use the concurrency of the workflow"
BROKEN_POLICY = "the policy of the base branch cannot be used, so it is not known who may ask; fix it first"


@dataclass(frozen=True, slots=True)
class Given:
    """One command of someone: who, where it stands, on which pull request, when it was written, with a role or not."""

    actor: str
    source: str
    pull: Pull
    written: datetime | None = None
    by_person: bool = True


def refused_option(options: Mapping[str, str], policy: Policy, verl: Callable[[str], Revisions]) -> str:
    """Why a command may not be kept with its options, empty when it may or when no one can say now."""
    image, ref = options.get("image", ""), options.get("verl_ref", "")
    if image and (refused := refused_image(image, policy)):
        return refused
    if not ref:
        return ""
    try:
        verl(ref).resolve(ref)
    except (UserError, ForgeError) as error:
        # What may pass is asked again when the job is made.
        passing = isinstance(error, ForgeError) and error.passing
        return "" if passing else f"`verl_ref={ref}`: verl's repository has no such commit, branch or tag"
    return ""


HEARD, NOT_UNDERSTOOD = "eyes", "confused"
LABEL = "verl-e2e:"
# GitHub's branch for a group names a pull request.
_QUEUE_BRANCH = re.compile(r"(?:.*/)?pr-(\d+)(?:-[^/]*)?")
_RUN_AND_LEVELS = {"run": ("run", ()), **{f"level{int(item)}": (LEVEL, (str(int(item)),)) for item in Level}}


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Hears every kind of event that GitHub tells of, and keeps the commands of those who may give them."""

    app_id: int | None
    check_posts: CheckPublisher
    comments: CommentPublisher
    grants: Grants
    known: KnownTargets
    ledger: Ledger
    restorer: PostRestorer
    read_commands: Callable[[str], tuple[CommandLine, ...]]
    clock: Clock
    queue: RunQueue
    verl: Callable[[str], Revisions]

    def hear(self, event: WebhookEvent, delivery: str = "") -> tuple[Reference, ...]:
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
                part, branch = event.merge_group, event.merge_group.base_ref.removeprefix("refs/heads/")
                inside = _QUEUE_BRANCH.fullmatch(part.head_ref)
                pulls = (int(inside[1]),) if inside else ()
                group = MergeGroup(event.repository.full_name, branch, part.base_sha, part.head_sha, pulls)
                self.known.remember_group(group, destroyed=event.action == "destroyed")
                return (group,)
            case WorkflowRunEvent():
                return self._of_handle(event.repository.full_name, event.workflow_run.id)
            case WorkflowJobEvent():
                return self._of_handle(event.repository.full_name, event.workflow_job.run_id)
            case PushEvent():
                # What a push means as one to a base branch is for `DeliveryHandler`.
                if event.number is not None:
                    return (PullRef(event.repository.full_name, event.number),)
                return (Branch(event.repository.full_name, event.branch),) if self._is_watched(event) else ()

    def _is_watched(self, event: PushEvent) -> bool:
        """Whether the branch is the default one, and its policy has it watched."""
        if event.branch != event.repository.default_branch or event.deleted:
            return False
        pushed = BranchCommit(event.repository.full_name, event.branch, event.after, event.after)
        with suppress(NoPolicyError):
            return self.known.policy_of(pushed).schedule is not None
        return False

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
            self._press(Command(0, *meant), given)
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
        parsed = parse_commands(self.read_commands(comment.body))
        pull = self.known.pull(ref) if parsed else None
        if pull is None:
            return ()
        person = self.grants.is_member(ref.repository, who, comment.author_association)
        place = ref.repository, ref.number
        self.comments.say(reaction_to(*place, comment.id, HEARD, person=person, to=who))
        wrong = [self._keep_line(item, event, pull, person=person) for item in parsed]
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
            self._press(command, Given(event.sender.login, f"check:{check.id}:{action}:{delivery}", pull))
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
            with suppress(NoPolicyError):
                name = self.known.policy_of(pull).gate.name
                for text in (name, *(check_name(name, job_id) for job_id in {run.job_id for run in runs})):
                    self.check_posts.forget_check(repository, pull.head_sha, text)
            source = f"suite:{suite.id}:rerequested:{delivery}"
            self._press(Command(0, "rerun"), Given(event.sender.login, source, pull))
            found.append(pull.ref)
        return tuple(found)

    def _of_handle(self, repository: str, workflow_run: int) -> tuple[Reference, ...]:
        """The target whose run this workflow run is, and who shares its head; nothing for other workflows."""
        run = self.ledger.run_by_handle(repository, str(workflow_run))
        found = self.known.reference_of(run) if run is not None else None
        return self.known.with_sharing(found, (run.head_sha,)) if run is not None and found is not None else ()

    def _keep_line(self, command: Command | Mistake, event: CommentEvent, pull: Pull, *, person: bool) -> str:
        """Keep one command; gives what is wrong with it, as Markdown, empty for nothing."""
        if isinstance(command, Mistake):
            named = command.verb in NAMES_HEAD
            shown = render_named(command.verb, pull.head_sha, command.text.split()[2:]) if named else ""
            return render_mistakes([command]) + shown
        comment = event.comment
        given = Given(comment.user.login, f"comment:{comment.id}:{command.line}", pull, comment.created_at, person)
        refused = self._keep(command, given)
        if not refused:
            return ""
        other = command.verb in NAMES_HEAD and pull.head_sha not in command.arguments
        shown = f"\n{render_named(command.verb, pull.head_sha, command.arguments)}" if other else ""
        return f"Line {command.line}: {sentence(refused)}.\n{shown}"

    def _press(self, command: Command, given: Given) -> None:
        """Keep what a button or a label stands for; a person who may not ask gets an answer, once for each head."""
        refused = self._keep(command, given)
        if refused:
            what = "A label" if given.source.startswith("label:") else "A button"
            subject = f"press:{given.actor}:{given.pull.head_sha}:{command.verb}"
            asked = " ".join((command.verb, *command.arguments))
            message = f"{what} asked for `{asked}` in the name of {markdown(given.actor)}, and nothing was done"
            ref, body = given.pull.ref, f"{message}: {sentence(refused)}.\n"
            self.comments.say(reply_to(ref.repository, ref.number, subject, body, person=False, to=given.actor))

    def _keep(self, command: Command, given: Given) -> str:
        """Keep a command if its actor may give it; gives why not, empty when it is kept."""
        verb, pull = VERBS[command.verb], given.pull
        policy: Policy | None = None
        with suppress(NoPolicyError):
            of_queue = verb.needs is Capability.QUEUE
            policy = self.known.policy_of_queue(pull) if of_queue else self.known.policy_of(pull)
        if policy is None and verb.needs is not Capability.ASK:
            return BROKEN_POLICY
        leave = self.grants.allowed(given.actor, verb.needs, pull, policy.capabilities if policy else Access())
        if isinstance(leave, Denied):
            return leave.reason
        named = {"approve": command.arguments[:1], "override": command.arguments[1:2]}.get(command.verb, ())
        if any(sha != pull.head_sha for sha in named):
            return f"the head is {pull.head_sha} now, not {named[0]}; look at it and name that"
        is_counted = command.verb in {LEVEL, "override"}
        entries = self.ledger.entries(pull.ref.repository, pull.ref.number) if is_counted else ()
        known = any(entry.source == given.source for entry in entries)
        if command.verb == LEVEL and not known and len(level_requests(entries, pull.head_sha)) >= MAX_REQUESTS:
            return f"{MAX_REQUESTS} different requests are accepted for one head, and these levels would be one more"
        if verb.needs is Capability.QUEUE and self.queue.shared is None:
            return NO_QUEUE
        if policy is not None and (refused := refused_option(command.options, policy, self.verl)):
            return refused
        entry = self._entry(command, given)
        if isinstance(entry, Override) and policy is not None:
            if self.grants.is_own_head(entry.actor, pull):
                return OWN_HEAD
            of_head = (item for item in entries if isinstance(item, Override) and item.head_sha == pull.head_sha)
            before = (item for item in of_head if item.base == pull.base_branch and item.source != entry.source)
            uncounted = counted((*before, entry), policy.overrides, self.clock.now()).uncounted
            # One that waits for a second person alone is kept.
            for item in uncounted:
                if item.override is entry and not item.needs_second_person:
                    return item.why
        if self.ledger.add(entry) and command.verb in {PAUSE, RESUME}:
            self.queue.switched(pull.ref.repository)
        return ""

    def _entry(self, command: Command, given: Given) -> GivenEntry:
        ref, head_sha, base = given.pull.ref, given.pull.head_sha, given.pull.base_branch
        common: dict[str, Any] = {"repository": ref.repository, "number": ref.number, "head_sha": head_sha}
        common |= {"actor": given.actor, "source": given.source, "at": self.clock.now()}
        if command.verb == "approve":
            return Approval(**common, base=base)
        if command.verb == "override":
            level, _, reason = command.arguments
            return Override(**common, base=base, level=Level(int(level)), reason=reason)
        return RecordedCommand(
            **common,
            verb=command.verb,
            arguments=command.arguments,
            options=dict(command.options),
            written=given.written,
            by_person=given.by_person,
        )


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
            self.events.known.look_again(pulls, self.worklist)
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
            self.events.known.look_again(listed, self.worklist)
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
        now, now_s = self._clock.now(), self._clock.monotonic()
        attempts = self._history.deliveries(now - KEPT if self._looked is None else min(self._looked, now) - _OVERLAP)
        for attempt in attempts:
            if not attempt.failed:
                self._failing.pop(attempt.guid, None)
        for attempt in failed_deliveries(attempts):
            self._failing.setdefault(attempt.guid, _Failing(attempt, now)).attempt = attempt
        self._failing = {guid: failing for guid, failing in self._failing.items() if now - failing.since <= KEPT}
        self._looked = now
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

"""Hear one event: keep the fact that it carries, if any, and name what is to be looked at because of it.

Nothing is decided here but whether someone may ask. The same event received twice, late or out of order adds nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verl_e2e.app.base_policy import BasePolicies, NoPolicyError
from verl_e2e.app.current_grants import CurrentGrants, Permissions
from verl_e2e.app.keep_command import CommandKeeper, Given
from verl_e2e.app.known_heads import KnownHeads, MergeGroups
from verl_e2e.app.publish import CheckPublisher, Messages, PostRestorer
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.rehearsal_job import REHEARSAL
from verl_e2e.core.pulls.commands import LEVEL, Command, CommandLine, parse
from verl_e2e.core.pulls.deliveries import (
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    Event,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    WorkflowJobEvent,
    WorkflowRunEvent,
    reaction_to,
    reply_to,
)
from verl_e2e.core.pulls.forge import CANCEL, LEVEL_BUTTON, RERUN, CheckId, check_name, read_check_id
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, Reference
from verl_e2e.ports import Ledger

HEARD, NOT_UNDERSTOOD = "eyes", "confused"


@dataclass(frozen=True, slots=True)
class CommentEvents:
    """Acts on what happens to comments."""

    commands: CommandKeeper
    heads: KnownHeads
    messages: Messages
    restorer: PostRestorer
    app_id: int | None
    permissions: Permissions
    read_commands: Callable[[str], tuple[CommandLine, ...]]

    def comment(self, event: CommentEvent) -> tuple[Reference, ...]:
        """The commands of a comment, by the person who wrote it: an edited or relayed one is nobody's word."""
        comment, ref = event.comment, PullRef(event.repository.full_name, event.issue.number)
        via = comment.performed_via_github_app
        ours = via is not None and self.app_id is not None and via.id == self.app_id
        if event.action != "created":
            return self._touched(event, ours=ours)
        edited = comment.updated_at != comment.created_at
        if ours or edited or event.sender.login != comment.user.login:
            return ()
        parsed = parse(self.read_commands(comment.body))
        if not parsed:
            return ()
        pull = self.heads.pull(ref)
        if pull is None:
            return ()
        person = self.permissions.is_member(event.repository.full_name, comment.user.login, comment.author_association)
        place, who = (ref.repository, ref.number), comment.user.login
        self.messages.say(reaction_to(*place, comment.id, HEARD, person=person, to=who))
        wrong = [self.commands.keep_line(item, event, pull, person=person) for item in parsed]
        words = [text for text in wrong if text]
        if words:
            self.messages.say(reaction_to(*place, comment.id, NOT_UNDERSTOOD, person=person, to=who))
            self.messages.say(reply_to(*place, f"comment:{comment.id}", "\n".join(words), person=person, to=who))
        return self.heads.with_sharing(ref, (pull.head_sha,))

    def _touched(self, event: CommentEvent, *, ours: bool) -> tuple[Reference, ...]:
        """Someone else edited or deleted a comment: of ours it is to be put right, and our own edits are ignored."""
        if not ours or event.sender.login == event.comment.user.login:
            return ()
        ref = PullRef(event.repository.full_name, event.issue.number)
        self.restorer.touched(ref)
        return (ref,)


@dataclass(frozen=True, slots=True)
class CheckEvents:
    """Acts on reruns and buttons of our checks."""

    policies: BasePolicies
    check_posts: CheckPublisher
    commands: CommandKeeper
    heads: KnownHeads
    groups: MergeGroups
    app_id: int | None
    ledger: Ledger

    def check_run(self, event: CheckRunEvent, delivery: str) -> tuple[Reference, ...]:
        """The targets of a check run of ours; `delivery` is GitHub's id of the delivery."""
        check, repository = event.check_run, event.repository.full_name
        own = read_check_id(check.external_id or "")
        ours = self.app_id is None or (check.app is not None and check.app.id == self.app_id)
        if own is None or not ours or own.head_sha != check.head_sha:
            return ()
        if event.action == "rerequested":
            # GitHub set it back to queued, whatever becomes of the request.
            self.check_posts.forget_check(repository, own.head_sha, check.name)
        if not own.number:
            group = self.groups.remembered_group(repository, own.head_sha)
            return (group,) if group is not None else ()
        identifier = event.requested_action.identifier if event.requested_action else RERUN
        command = _button(identifier, own if event.action == "rerequested" else CheckId(own.number, own.head_sha))
        ref = PullRef(repository, own.number)
        pull = self.heads.pull(ref)
        # A button on the check of an earlier head asks for nothing now.
        if pull is not None and command is not None and pull.head_sha == own.head_sha:
            action = event.action if event.requested_action is None else identifier
            self.commands.press(command, Given(event.sender.login, f"check:{check.id}:{action}:{delivery}", pull))
        return self.heads.with_sharing(ref, (own.head_sha,)) if pull is not None else ()

    def check_suite(self, event: CheckSuiteEvent, delivery: str) -> tuple[Reference, ...]:
        """The pull requests whose checks someone reran all together."""
        suite, repository = event.check_suite, event.repository.full_name
        if self.app_id is not None and (suite.app is None or suite.app.id != self.app_id):
            return ()
        runs = self.ledger.runs(repository, head_sha=suite.head_sha)
        numbers = {run.number for run in runs if run.number is not None} | {
            request.number for request in suite.pull_requests
        }
        found: list[Reference] = []
        for number in sorted(numbers):
            pull = self.heads.pull(PullRef(repository, number))
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


LABEL = "verl-e2e:"
_RUN_AND_LEVELS = {"run": ("run", ()), **{f"level{int(item)}": (LEVEL, (str(int(item)),)) for item in Level}}


@dataclass(frozen=True, slots=True)
class EventHandler:
    """Hears every kind of event that GitHub tells of."""

    on_check: CheckEvents
    commands: CommandKeeper
    on_comment: CommentEvents
    grants: CurrentGrants
    heads: KnownHeads
    groups: MergeGroups
    ledger: Ledger

    def hear(self, event: Event, delivery: str = "") -> tuple[Reference, ...]:
        """Keep what the event says and give the references to reconcile; `delivery` is GitHub's id of its delivery."""
        match event:
            case PullRequestEvent():
                return self._pull_request(event)
            case CommentEvent():
                return self.on_comment.comment(event)
            case CheckRunEvent():
                return self.on_check.check_run(event, delivery)
            case CheckSuiteEvent():
                return self.on_check.check_suite(event, delivery)
            case MergeGroupEvent():
                return self._merge_group(event)
            case WorkflowRunEvent():
                return self._of_handle(event.repository.full_name, event.workflow_run.id)
            case WorkflowJobEvent():
                return self._of_handle(event.repository.full_name, event.workflow_job.run_id)
            case PushEvent():
                # What a push means as one to a base branch is for `verl_e2e.app.base_policy`.
                return () if event.number is None else (PullRef(event.repository.full_name, event.number),)
            case _:
                return ()

    def _pull_request(self, event: PullRequestEvent) -> tuple[Reference, ...]:
        ref = PullRef(event.repository.full_name, event.pull_request.number)
        if event.action == "synchronize":
            self.grants.remember_pusher(ref, event.pull_request.head.sha, event.sender.login)
        label = event.label.name if event.action == "labeled" and event.label else ""
        meant = _RUN_AND_LEVELS.get(label.removeprefix(LABEL)) if label.startswith(LABEL) else None
        if meant is not None:
            pull = self.heads.pull(ref)
            if pull is None:
                return ()
            # Set before a push and delivered late: it was meant for what lay there then.
            if pull.head_sha != event.pull_request.head.sha:
                return (ref,)
            given = Given(event.sender.login, f"label:{label}:{pull.head_sha}", pull)
            self.commands.press(Command(0, *meant), given)
        return self.heads.with_sharing(ref, (event.pull_request.head.sha, event.before or ""))

    def _merge_group(self, event: MergeGroupEvent) -> tuple[Reference, ...]:
        part, repository = event.merge_group, event.repository.full_name
        branch = part.base_ref.removeprefix("refs/heads/")
        group = MergeGroup(repository, branch, part.base_sha, part.head_sha, _pulls_of(part.head_ref))
        self.groups.remember(group)
        if event.action == "destroyed":
            self.groups.remember_end(group)
        return (group,)

    def _of_handle(self, repository: str, workflow_run: int) -> tuple[Reference, ...]:
        """The target whose run this workflow run is, and who shares its head; nothing for other workflows."""
        run = self.ledger.run_by_handle(repository, str(workflow_run))
        found = self.groups.reference_of(run) if run is not None else None
        return self.heads.with_sharing(found, (run.head_sha,)) if run is not None and found is not None else ()


def _pulls_of(head_ref: str) -> tuple[int, ...]:
    """The pull request that GitHub's branch for a group names, `gh-readonly-queue/<base>/pr-<number>-<sha>`."""
    last = head_ref.rpartition("/")[2].split("-")
    return (int(last[1]),) if len(last) >= 2 and last[0] == "pr" and last[1].isdigit() else ()

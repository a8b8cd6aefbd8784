"""Hear one event: keep the fact that it carries, if any, and name what is to be looked at because of it.

Nothing is decided here but whether someone may ask. The same event heard twice, late or out of order adds nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from verl_e2e.app.base_policy import policy_of
from verl_e2e.app.current_grants import is_own_head, remember_pusher
from verl_e2e.app.keep_message import say
from verl_e2e.app.known_heads import sharing
from verl_e2e.app.look_up_person import allowed
from verl_e2e.app.merge_groups import reference_of, remember_end, remember_group, remembered_group
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish import forget_check
from verl_e2e.app.refused_options import refused_option
from verl_e2e.app.restore_posts import touched
from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.access import Access, Capability
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.check_runs import CANCEL, LEVEL_BUTTON, RERUN, CheckId, check_name, read_check_id
from verl_e2e.core.pulls.commands import LEVEL, VERBS, Command, Mistake, parse
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand
from verl_e2e.core.pulls.messages import MEMBERS, reaction_to, reply_to
from verl_e2e.core.pulls.overrides import OWN_HEAD, counted
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.requests import MAX_REQUESTS, level_requests
from verl_e2e.core.pulls.trust import Denied
from verl_e2e.core.pulls.webhook_events import (
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    Event,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    WorkflowJobEvent,
    WorkflowRunEvent,
)
from verl_e2e.core.report.command_text import render_mistakes, render_named
from verl_e2e.core.text.escape import markdown, sentence
from verl_e2e.ports import UnknownPullError

HEARD, NOT_UNDERSTOOD = "eyes", "confused"
LABEL = "verl-e2e:"
# Commands that count for the one commit that they name.
NAMES_HEAD = frozenset({"approve", "override"})
BROKEN_POLICY = "the policy of the base branch cannot be used, so no one can be told who may ask; fix it first"
_RUN_AND_LEVELS = {"run": ("run", ()), **{f"level{int(item)}": (LEVEL, (str(int(item)),)) for item in Level}}


@dataclass(frozen=True, slots=True)
class _Said:
    """One command of someone: who, where it stands, on which pull request, when it was written, with a role or not."""

    actor: str
    source: str
    pull: Pull
    written: datetime | None = None
    by_person: bool = True


def hear(event: Event, rooms: AppRooms, delivery: str = "") -> tuple[Reference, ...]:
    """Keep what the event says and give the references to reconcile; `delivery` is GitHub's id of its delivery."""
    match event:
        case PullRequestEvent():
            return _pull_request(event, rooms)
        case CommentEvent():
            return _comment(event, rooms)
        case CheckRunEvent():
            return _check_run(event, rooms, delivery)
        case CheckSuiteEvent():
            return _check_suite(event, rooms, delivery)
        case MergeGroupEvent():
            return _merge_group(event, rooms)
        case WorkflowRunEvent():
            return _of_handle(event.repository.full_name, event.workflow_run.id, rooms)
        case WorkflowJobEvent():
            return _of_handle(event.repository.full_name, event.workflow_job.run_id, rooms)
        case PushEvent():
            # What a push means as one to a base branch is for `verl_e2e.app.base_branch_changed`.
            return () if event.number is None else (PullRef(event.repository.full_name, event.number),)
        case _:
            return ()


def _pull_request(event: PullRequestEvent, rooms: AppRooms) -> tuple[Reference, ...]:
    ref = PullRef(event.repository.full_name, event.pull_request.number)
    if event.action == "synchronize":
        remember_pusher(ref, event.pull_request.head.sha, event.sender.login, rooms)
    label = event.label.name if event.action == "labeled" and event.label else ""
    meant = _RUN_AND_LEVELS.get(label.removeprefix(LABEL)) if label.startswith(LABEL) else None
    if meant is not None:
        pull = _pull(ref, rooms)
        if pull is None:
            return ()
        # Set before a push and told of late: it was meant for what lay there then.
        if pull.head_sha != event.pull_request.head.sha:
            return (ref,)
        text = _Said(event.sender.login, f"label:{label}:{pull.head_sha}", pull)
        _press(Command(0, *meant), text, rooms)
    return _with_sharing(ref, (event.pull_request.head.sha, event.before or ""), rooms)


def _with_sharing(reference: Reference, heads: Iterable[str], rooms: AppRooms) -> tuple[Reference, ...]:
    """The reference, and every pull request that shares one of the heads: one gate is shown for all of them."""
    found = (sharing(reference.repository, head_sha, rooms) for head_sha in heads if head_sha)
    return tuple(dict.fromkeys((reference, *(ref for refs in found for ref in refs))))


def _comment(event: CommentEvent, rooms: AppRooms) -> tuple[Reference, ...]:
    """The commands of a comment, by the person who wrote it: an edited or relayed one is nobody's word."""
    comment, ref = event.comment, PullRef(event.repository.full_name, event.issue.number)
    via = comment.performed_via_github_app
    ours = via is not None and rooms.app_id is not None and via.id == rooms.app_id
    if event.action != "created":
        return _touched(event, ours=ours, rooms=rooms)
    edited = comment.updated_at != comment.created_at
    if ours or edited or event.sender.login != comment.user.login:
        return ()
    parsed = parse(rooms.read_commands(comment.body))
    if not parsed:
        return ()
    pull = _pull(ref, rooms)
    if pull is None:
        return ()
    person = _is_person(event, rooms)
    say(reaction_to(ref.repository, ref.number, comment.id, HEARD, person=person), rooms)
    wrong = [_heard(item, event, pull, rooms, person=person) for item in parsed]
    words = [text for text in wrong if text]
    if words:
        say(reaction_to(ref.repository, ref.number, comment.id, NOT_UNDERSTOOD, person=person), rooms)
        say(reply_to(ref.repository, ref.number, f"comment:{comment.id}", "\n".join(words), person=person), rooms)
    return _with_sharing(ref, (pull.head_sha,), rooms)


def _touched(event: CommentEvent, *, ours: bool, rooms: AppRooms) -> tuple[Reference, ...]:
    """Someone else edited or deleted a comment: of ours it is to be put right, and our own edits are no news."""
    if not ours or event.sender.login == event.comment.user.login:
        return ()
    ref = PullRef(event.repository.full_name, event.issue.number)
    touched(ref, rooms)
    return (ref,)


def _is_person(event: CommentEvent, rooms: AppRooms) -> bool:
    """Whether the person who wrote a comment has a role in the repository."""
    if event.comment.author_association in MEMBERS:
        return True
    # A role that a team gives is not always told.
    return rooms.people.role(event.repository.full_name, event.comment.user.login) not in ("none", "read")


def _heard(mistake: Command | Mistake, event: CommentEvent, pull: Pull, rooms: AppRooms, *, person: bool) -> str:
    """Keep one command; gives what is wrong with it, as Markdown, empty for nothing."""
    if isinstance(mistake, Mistake):
        shown = (
            render_named(mistake.verb, pull.head_sha, mistake.text.split()[2:]) if mistake.verb in NAMES_HEAD else ""
        )
        return render_mistakes([mistake]) + shown
    comment = event.comment
    words = _Said(comment.user.login, f"comment:{comment.id}:{mistake.line}", pull, comment.created_at, person)
    refused = _keep(mistake, words, rooms)
    if not refused:
        return ""
    other = mistake.verb in NAMES_HEAD and pull.head_sha not in mistake.arguments
    shown = f"\n{render_named(mistake.verb, pull.head_sha, mistake.arguments)}" if other else ""
    return f"Line {mistake.line}: {sentence(refused)}.\n{shown}"


def _press(command: Command, text: _Said, rooms: AppRooms) -> None:
    """Keep what a button or a label stands for; the person who may not ask for it is told so, once for each head."""
    refused = _keep(command, text, rooms)
    if refused:
        what = "A label" if text.source.startswith("label:") else "A button"
        subject = f"press:{text.actor}:{text.pull.head_sha}:{command.verb}"
        asked = " ".join((command.verb, *command.arguments))
        message = f"{what} asked for `{asked}` in the name of {markdown(text.actor)}, and nothing was done"
        ref, body = text.pull.ref, f"{message}: {sentence(refused)}.\n"
        say(reply_to(ref.repository, ref.number, subject, body, person=False), rooms)


def _keep(command: Command, text: _Said, rooms: AppRooms) -> str:
    """Keep a command if its actor may give it; gives why not, empty when it is kept."""
    verb, pull = VERBS[command.verb], text.pull
    policy = _policy(pull, rooms)
    if policy is None and verb.needs is not Capability.ASK:
        return BROKEN_POLICY
    leave = allowed(text.actor, verb.needs, pull, policy.capabilities if policy else Access(), rooms)
    if isinstance(leave, Denied):
        return leave.reason
    named = {"approve": command.arguments[:1], "override": command.arguments[1:2]}.get(command.verb, ())
    if any(sha != pull.head_sha for sha in named):
        return f"the head is {pull.head_sha} now, not {named[0]}; look at it and name that"
    if command.verb == LEVEL and _is_one_too_many(text, rooms):
        return f"{MAX_REQUESTS} different wishes for one head are served, and these levels would be one more"
    if policy is not None and (refused := refused_option(command.options, policy, rooms)):
        return refused
    entry = _entry(command, text, rooms)
    refused = _why_no_override(entry, pull, policy, rooms) if isinstance(entry, Override) and policy else ""
    if not refused:
        rooms.ledger.add(entry)
    return refused


def _why_no_override(new: Override, pull: Pull, policy: Policy, rooms: AppRooms) -> str:
    """Why an override would not count, empty when it does or when only a second person is missing."""
    if is_own_head(new.actor, pull, rooms):
        return OWN_HEAD
    entries = rooms.ledger.entries(pull.ref.repository, pull.ref.number)
    before = (entry for entry in entries if isinstance(entry, Override) and entry.head_sha == pull.head_sha)
    given = (*(entry for entry in before if entry.base in {"", pull.base_branch} and entry.source != new.source), new)
    uncounted = counted(given, policy.overrides, rooms.clock.now()).uncounted
    return next((item.why for item in uncounted if item.override is new and not item.needs_second_person), "")


def _is_one_too_many(text: _Said, rooms: AppRooms) -> bool:
    """Whether so many levels were asked for on this head that another wish would be passed over."""
    entries = rooms.ledger.entries(text.pull.ref.repository, text.pull.ref.number)
    known = any(entry.source == text.source for entry in entries)
    return not known and len(level_requests(entries, text.pull.head_sha)) >= MAX_REQUESTS


def _policy(pull: Pull, rooms: AppRooms) -> Policy | None:
    try:
        return policy_of(pull, rooms)
    except NoPolicyError:
        return None


def _entry(command: Command, text: _Said, rooms: AppRooms) -> RecordedCommand | Approval | Override:
    pull, now = text.pull, rooms.clock.now()
    where, number = pull.ref.repository, pull.ref.number
    if command.verb == "approve":
        return Approval(
            repository=where,
            number=number,
            head_sha=pull.head_sha,
            actor=text.actor,
            source=text.source,
            at=now,
            base=pull.base_branch,
        )
    if command.verb == "override":
        level, _, reason = command.arguments
        return Override(
            repository=where,
            number=number,
            head_sha=pull.head_sha,
            level=Level(int(level)),
            reason=reason,
            actor=text.actor,
            source=text.source,
            at=now,
            base=pull.base_branch,
        )
    return RecordedCommand(
        source=text.source,
        repository=where,
        number=number,
        actor=text.actor,
        verb=command.verb,
        arguments=command.arguments,
        options=dict(command.options),
        head_sha=pull.head_sha,
        at=now,
        written=text.written,
        by_person=text.by_person,
    )


def _check_run(event: CheckRunEvent, rooms: AppRooms, delivery: str) -> tuple[Reference, ...]:
    check, repository = event.check_run, event.repository.full_name
    own = read_check_id(check.external_id or "")
    ours = rooms.app_id is None or (check.app is not None and check.app.id == rooms.app_id)
    if own is None or not ours or own.head_sha != check.head_sha:
        return ()
    if event.action == "rerequested":
        # GitHub set it back to queued, whatever becomes of the wish.
        forget_check(repository, own.head_sha, check.name, rooms)
    if not own.number:
        group = remembered_group(repository, own.head_sha, rooms)
        return (group,) if group is not None else ()
    identifier = event.requested_action.identifier if event.requested_action else RERUN
    command = _button(identifier, own if event.action == "rerequested" else CheckId(own.number, own.head_sha))
    ref = PullRef(repository, own.number)
    pull = _pull(ref, rooms)
    # A button on the check of an earlier head asks for nothing now.
    if pull is not None and command is not None and pull.head_sha == own.head_sha:
        action = event.action if event.requested_action is None else identifier
        _press(command, _Said(event.sender.login, f"check:{check.id}:{action}:{delivery}", pull), rooms)
    return _with_sharing(ref, (own.head_sha,), rooms) if pull is not None else ()


def _button(identifier: str, own: CheckId) -> Command | None:
    """The command that a button stands for."""
    if identifier == RERUN:
        return Command(0, "rerun", (own.job_id,) if own.job_id else ())
    if identifier == CANCEL:
        return Command(0, "cancel")
    number = identifier.removeprefix(LEVEL_BUTTON)
    if identifier.startswith(LEVEL_BUTTON) and number in {str(int(item)) for item in Level}:
        return Command(0, LEVEL, (number,))
    return None


def _check_suite(event: CheckSuiteEvent, rooms: AppRooms, delivery: str) -> tuple[Reference, ...]:
    suite, repository = event.check_suite, event.repository.full_name
    if rooms.app_id is not None and (suite.app is None or suite.app.id != rooms.app_id):
        return ()
    runs = rooms.ledger.runs(repository, head_sha=suite.head_sha)
    numbers = {run.number for run in runs if run.number is not None} | {
        request.number for request in suite.pull_requests
    }
    found: list[Reference] = []
    for number in sorted(numbers):
        pull = _pull(PullRef(repository, number), rooms)
        if pull is None or pull.head_sha != suite.head_sha:
            continue
        _forget_all(pull, {run.job_id for run in runs}, rooms)
        source = f"suite:{suite.id}:rerequested:{delivery}"
        _press(Command(0, "rerun"), _Said(event.sender.login, source, pull), rooms)
        found.append(pull.ref)
    return tuple(found)


def _forget_all(pull: Pull, job_ids: Iterable[str], rooms: AppRooms) -> None:
    try:
        name = policy_of(pull, rooms).gate.name
    except NoPolicyError:
        return
    for text in (name, *(check_name(name, job_id) for job_id in job_ids)):
        forget_check(pull.ref.repository, pull.head_sha, text, rooms)


def _merge_group(event: MergeGroupEvent, rooms: AppRooms) -> tuple[Reference, ...]:
    part, repository = event.merge_group, event.repository.full_name
    branch = part.base_ref.removeprefix("refs/heads/")
    group = MergeGroup(repository, branch, part.base_sha, part.head_sha, _pulls_of(part.head_ref))
    remember_group(group, rooms)
    if event.action == "destroyed":
        remember_end(group, rooms)
    return (group,)


def _pulls_of(head_ref: str) -> tuple[int, ...]:
    """The pull request that GitHub's branch for a group names, `gh-readonly-queue/<base>/pr-<number>-<sha>`."""
    last = head_ref.rpartition("/")[2].split("-")
    return (int(last[1]),) if len(last) >= 2 and last[0] == "pr" and last[1].isdigit() else ()


def _of_handle(repository: str, workflow_run: int, rooms: AppRooms) -> tuple[Reference, ...]:
    """The target whose run this workflow run is, and who shares its head; nothing for everyone else's workflows."""
    run = rooms.ledger.run_by_handle(repository, str(workflow_run))
    found = reference_of(run, rooms) if run is not None else None
    return _with_sharing(found, (run.head_sha,), rooms) if run is not None and found is not None else ()


def _pull(ref: PullRef, rooms: AppRooms) -> Pull | None:
    try:
        return rooms.pulls.pull(ref)
    except UnknownPullError:
        return None

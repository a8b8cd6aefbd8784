"""Commands: what someone asked for is kept, if that person may ask for it, and questions get their answer.

What people allowed counts while they may still allow it: looked up again at each look, by the policy of now.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.known_targets import BasePolicies, Kept, NoPolicyError
from verl_e2e.app.publish import CommentPublisher
from verl_e2e.app.run_queue import RunQueue
from verl_e2e.core.model.access import WIDE_ROLES, Access, Capability, Grant
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.plan.outline import refused_image
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import LEVEL, MAX_REQUESTS, VERBS, Command, Entry, Mistake, level_requests
from verl_e2e.core.pulls.deliveries import MEMBERS, CommentEvent, reply_to
from verl_e2e.core.pulls.ledger import PRIORITY, Approval, Override, Pushers, RecordedCommand
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, Target
from verl_e2e.core.pulls.queue import PAUSE, RESUME
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import (
    OWN_HEAD,
    Actor,
    Denied,
    Granted,
    NeedsApproval,
    Trusted,
    Uncounted,
    counted,
    has_role,
    is_of_author,
    may,
    may_run,
)
from verl_e2e.core.report.command_text import render_help, render_mistakes, render_named
from verl_e2e.core.text.escape import fence_for, fenced_row, markdown, sentence
from verl_e2e.ports import Clock, ForgeError, Ledger, People, Pulls, Revisions

# An author who loses a role may run so long yet; a person who gives a command is looked up each time.
AUTHOR_KEPT = timedelta(minutes=5)
# A person who gave a permission is looked up again at each reconcile, but for looks that follow at once.
GIVER_KEPT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Grants:
    """Who someone is, what the policy lets them do, and which kept entries count now."""

    clock: Clock
    ledger: Ledger
    people: People
    pulls: Pulls
    # Held while a remembered list is read and changed, for several looks may share it.
    lock: AbstractContextManager[object] = field(default_factory=Lock)
    actors: Kept[tuple[float, Actor]] = field(default_factory=lambda: Kept(256))
    committers: Kept[frozenset[str]] = field(default_factory=lambda: Kept(256))

    def allowed(self, login: str, capability: Capability, pull: Pull, access: Access) -> Granted | Denied:
        """Whether someone may ask for this on a pull request."""
        return may(self.actor_for(login, access.of(capability), pull), capability, access)

    def is_member(self, repository: str, login: str, association: str) -> bool:
        """Whether someone has a role in the repository; `association` is what GitHub says of them in the event."""
        if association in MEMBERS:
            return True
        # A role that a team gives is not always reported.
        return self.people.role(repository, login) not in WIDE_ROLES

    def actor_for(self, login: str, grant: Grant, pull: Pull) -> Actor:
        """What is known of someone, as far as a grant asks for it: no one is looked up in vain."""
        is_author = login == pull.author
        if grant.anyone or (grant.author and is_author):
            return Actor(login, is_author=is_author)
        role = self.people.role(pull.ref.repository, login)
        teams = frozenset(team for team in grant.teams if self.people.in_team(team, login))
        return Actor(login, role, teams, is_author)

    def trust_of(self, target: Target, entries: tuple[Entry, ...], policy: Policy) -> Trusted | NeedsApproval:
        """Whether the head may run: a merge group's may, because the person who queued it could have merged it."""
        if isinstance(target, MergeGroup):
            return Trusted("the merge queue made this commit from approved pull requests")
        approvals = tuple(entry for entry in entries if isinstance(entry, Approval))
        unknown = may_run(target, approvals, Actor(target.author), policy.capabilities)
        if isinstance(unknown, Trusted) or target.from_fork:
            return unknown
        return may_run(target, approvals, self._author(target, policy), policy.capabilities)

    def with_role(self, trust: Trusted | NeedsApproval, target: Target, policy: Policy) -> Trusted | NeedsApproval:
        """The trust in a head with what is known of its author's role, where an approval is needed."""
        if isinstance(trust, Trusted) or isinstance(target, MergeGroup):
            return trust
        known = is_of_author(target) and has_role(self._author(target, policy), policy.capabilities)
        return replace(trust, has_role=known)

    def _author(self, pull: Pull, policy: Policy) -> Actor:
        return self.known_actor(pull.author, Capability.RUN, pull, policy, AUTHOR_KEPT)

    def known_actor(
        self, login: str, capability: Capability, pull: Pull, policy: Policy, kept: timedelta = GIVER_KEPT
    ) -> Actor:
        """What is known of someone as far as a capability asks for it, looked up again when that is longer ago."""
        # A clock that is set back must not keep a role that someone lost.
        now_s = self.clock.monotonic()
        key = str(pull.ref), login.lower(), capability.value, policy.source, policy.text_digest
        found = self.actors.find(key)
        if found is None or now_s - found[0] >= kept.total_seconds():
            grant = policy.capabilities.of(capability)
            found = self.actors.put(key, (now_s, self.actor_for(login, grant, pull)))
        return found[1]

    def standing(
        self, pull: Pull, entries: tuple[Entry, ...], policy: Policy
    ) -> tuple[tuple[Entry, ...], tuple[Uncounted, ...]]:
        """The entries of givers who may still give them, and the overrides of this head that do not count for that."""
        standing: list[Entry] = []
        refused: list[Uncounted] = []
        for entry in entries:
            why = self._why_not(entry, pull, policy)
            if not why:
                standing.append(entry)
            elif isinstance(entry, Override):
                refused.append(Uncounted(entry, why))
        return tuple(standing), tuple(refused)

    def _why_not(self, entry: Entry, pull: Pull, policy: Policy) -> str:
        """Why an entry does not count any more, empty when it does; of an earlier head nothing counts anyway."""
        lasting = isinstance(entry, RecordedCommand) and entry.verb == PRIORITY
        if not lasting and entry.head_sha != pull.head_sha:
            return ""
        # To cancel takes nothing that was not the giver's to take, and must not be undone by a lost role; no more than
        # a pause, which ends with `resume`.
        if isinstance(entry, RecordedCommand) and entry.verb in {"cancel", PAUSE, RESUME}:
            return ""
        if isinstance(entry, RecordedCommand) and entry.verb not in VERBS:
            return "the command is gone"
        match entry:
            case Approval():
                needs = Capability.APPROVE
            case Override():
                needs = Capability.OVERRIDE
            case RecordedCommand():
                needs = VERBS[entry.verb].needs
        leave = may(self.known_actor(entry.actor, needs, pull, policy), needs, policy.capabilities)
        if isinstance(leave, Denied):
            return leave.reason
        return OWN_HEAD if isinstance(entry, Override) and self.is_own_head(entry.actor, pull) else ""

    def is_own_head(self, login: str, pull: Pull) -> bool:
        """Whether someone opened the pull request, pushed its head, or is named by GitHub in one of its commits.

        Who pushed is known where the webhook of the push arrived. Whom a commit names is what its author wrote there.
        """
        name = login.lower()
        if name == pull.author.lower() or name in self._pushers(pull.ref, pull.head_sha):
            return True
        key = (str(pull.ref), pull.head_sha)
        return name in self.committers.get(key, lambda: frozenset(map(str.lower, self.pulls.committers(pull))))

    def remember_pusher(self, ref: PullRef, head_sha: str, login: str) -> None:
        """Put down who pushed a head."""
        subject, now = f"{head_sha}:{ref.number}:pusher", self.clock.now()
        with self.lock:
            known = self._pushers(ref, head_sha)
            if login.lower() not in known:
                logins = (*known, login.lower())
                self.ledger.put_note(Pushers(repository=ref.repository, subject=subject, at=now, logins=logins))

    def _pushers(self, ref: PullRef, head_sha: str) -> tuple[str, ...]:
        known = self.ledger.note(Pushers, ref.repository, f"{head_sha}:{ref.number}:pusher")
        return known.logins if known is not None else ()


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


@dataclass(frozen=True, slots=True)
class CommandKeeper:
    """Keeps the commands of comments, buttons and labels in the ledger, if their givers may give them."""

    policies: BasePolicies
    grants: Grants
    comments: CommentPublisher
    clock: Clock
    ledger: Ledger
    queue: RunQueue
    verl: Callable[[str], Revisions]

    def keep_line(self, mistake: Command | Mistake, event: CommentEvent, pull: Pull, *, person: bool) -> str:
        """Keep one command; gives what is wrong with it, as Markdown, empty for nothing."""
        if isinstance(mistake, Mistake):
            shown = (
                render_named(mistake.verb, pull.head_sha, mistake.text.split()[2:])
                if mistake.verb in NAMES_HEAD
                else ""
            )
            return render_mistakes([mistake]) + shown
        comment = event.comment
        given = Given(comment.user.login, f"comment:{comment.id}:{mistake.line}", pull, comment.created_at, person)
        refused = self._keep(mistake, given)
        if not refused:
            return ""
        other = mistake.verb in NAMES_HEAD and pull.head_sha not in mistake.arguments
        shown = f"\n{render_named(mistake.verb, pull.head_sha, mistake.arguments)}" if other else ""
        return f"Line {mistake.line}: {sentence(refused)}.\n{shown}"

    def press(self, command: Command, given: Given) -> None:
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
        policy = self._policy(pull, verb.needs)
        if policy is None and verb.needs is not Capability.ASK:
            return BROKEN_POLICY
        leave = self.grants.allowed(given.actor, verb.needs, pull, policy.capabilities if policy else Access())
        if isinstance(leave, Denied):
            return leave.reason
        named = {"approve": command.arguments[:1], "override": command.arguments[1:2]}.get(command.verb, ())
        if any(sha != pull.head_sha for sha in named):
            return f"the head is {pull.head_sha} now, not {named[0]}; look at it and name that"
        if command.verb == LEVEL and self._is_one_too_many(given):
            return f"{MAX_REQUESTS} different requests are accepted for one head, and these levels would be one more"
        if verb.needs is Capability.QUEUE and self.queue.shared is None:
            return NO_QUEUE
        if policy is not None and (refused := refused_option(command.options, policy, self.verl)):
            return refused
        entry = self._entry(command, given)
        refused = self._why_no_override(entry, pull, policy) if isinstance(entry, Override) and policy else ""
        if not refused and self.ledger.add(entry) and command.verb in {PAUSE, RESUME}:
            self.queue.switched(pull.ref.repository)
        return refused

    def _why_no_override(self, new: Override, pull: Pull, policy: Policy) -> str:
        """Why an override would not count, empty when it does or when only a second person is missing."""
        if self.grants.is_own_head(new.actor, pull):
            return OWN_HEAD
        entries = self.ledger.entries(pull.ref.repository, pull.ref.number)
        before = (entry for entry in entries if isinstance(entry, Override) and entry.head_sha == pull.head_sha)
        given = (
            *(entry for entry in before if entry.base == pull.base_branch and entry.source != new.source),
            new,
        )
        uncounted = counted(given, policy.overrides, self.clock.now()).uncounted
        return next((item.why for item in uncounted if item.override is new and not item.needs_second_person), "")

    def _is_one_too_many(self, given: Given) -> bool:
        """Whether so many levels were asked for on this head that another request would be passed over."""
        entries = self.ledger.entries(given.pull.ref.repository, given.pull.ref.number)
        known = any(entry.source == given.source for entry in entries)
        return not known and len(level_requests(entries, given.pull.head_sha)) >= MAX_REQUESTS

    def _policy(self, pull: Pull, needs: Capability) -> Policy | None:
        """The policy that says who has a capability, None where it cannot be used."""
        try:
            return self.policies.policy_of_queue(pull) if needs is Capability.QUEUE else self.policies.policy_of(pull)
        except NoPolicyError:
            return None

    def _entry(self, command: Command, given: Given) -> RecordedCommand | Approval | Override:
        pull = given.pull
        common = {
            "repository": pull.ref.repository,
            "number": pull.ref.number,
            "head_sha": pull.head_sha,
            "actor": given.actor,
            "source": given.source,
            "at": self.clock.now(),
        }
        if command.verb == "approve":
            return Approval.model_validate({**common, "base": pull.base_branch})
        if command.verb == "override":
            level, _, reason = command.arguments
            override = {"base": pull.base_branch, "level": Level(int(level)), "reason": reason}
            return Override.model_validate({**common, **override})
        asked = {"verb": command.verb, "arguments": command.arguments, "options": dict(command.options)}
        written = {"written": given.written, "by_person": given.by_person}
        return RecordedCommand.model_validate({**common, **asked, **written})


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


# Questions on one pull request that are answered: to someone without a role, to all of them together, and to
# someone who may plan. Nobody's questions use up what is there for those with a role.
MAX_EACH, MAX_TOGETHER, MAX_WITH_ROLE = 10, 40, 200
NO_MORE = (
    "So many questions of yours were answered on this pull request that this one and later ones are not; "
    "ask someone with a role in the repository, or use `verl-e2e explain` on your machine.\n"
)
MAX_ROWS = 80
TOO_MANY = "There are more, left out here; name a symbol as PATH:SYMBOL."


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers questions, each once."""

    comments: CommentPublisher
    grants: Grants
    analysis: Analysis

    def answer(self, target_state: TargetState) -> None:
        """Answer what was asked on this pull request, each question once, within bounds for each person."""
        target = target_state.target
        if not isinstance(target, Pull):
            return
        asked = [
            entry
            for entry in target_state.entries
            if isinstance(entry, RecordedCommand) and entry.verb in {"help", "explain"}
        ]
        for place, question in enumerate(asked):
            where = question.repository, question.number, question.source
            message = reply_to(*where, "", person=question.by_person, to=question.actor)
            if self.comments.was_said(message):
                continue
            left = self._answers_left(question, asked[:place], target, target_state.policy)
            if left > 0:
                text = render_help() if question.verb == "help" else self._explained(question, target_state)
                self.comments.say(replace(message, body=text))
            elif left == 0:
                self.comments.say(replace(message, body=NO_MORE))

    def _answers_left(
        self, question: RecordedCommand, before: list[RecordedCommand], pull: Pull, policy: Policy
    ) -> int:
        """How many questions of a person may still be answered; 0 is said to them, and below that nothing is."""
        asked = Counter(earlier.actor.lower() for earlier in before)
        own = asked[question.actor.lower()]
        # What was asked beyond the bound was not answered and takes nothing from others.
        left = min(MAX_EACH - own, MAX_TOGETHER - sum(min(count, MAX_EACH) for count in asked.values()))
        if left > 0:
            return left
        if isinstance(self.grants.allowed(question.actor, Capability.PLAN, pull, policy.capabilities), Granted):
            return MAX_WITH_ROLE - own
        is_said_once = own > MAX_EACH or (left < MAX_EACH - own and own > 0)
        return -1 if is_said_once else 0

    def _explained(self, asked: RecordedCommand, target_state: TargetState) -> str:
        path, _, symbol = asked.arguments[0].partition(":")
        try:
            found = self.analysis.explain(target_state.target, target_state.policy, path, symbol)
        except UserError as error:
            return _fenced((str(error),))
        rows = tuple(row for explanation in found for row in render_explanation(explanation).splitlines())
        return _fenced((*rows[:MAX_ROWS], *((TOO_MANY,) if len(rows) > MAX_ROWS else ())))


def _fenced(rows: tuple[str, ...]) -> str:
    inert = tuple(fenced_row(row) for row in rows)
    fence = fence_for(inert)
    return "\n".join((f"{fence}text", *inert, fence)) + "\n"

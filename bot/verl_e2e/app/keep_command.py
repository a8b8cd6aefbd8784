"""Commands: what someone asked for is kept, if that person may ask for it, and questions get their answer."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.base_policy import BasePolicies, NoPolicyError
from verl_e2e.app.current_grants import Grants
from verl_e2e.app.publish import CommentPublisher
from verl_e2e.app.run_queue import RunQueue
from verl_e2e.core.model.access import Access, Capability
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.plan.outline import refused_image
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import LEVEL, MAX_REQUESTS, VERBS, Command, Mistake, level_requests
from verl_e2e.core.pulls.deliveries import (
    CommentEvent,
    reply_to,
)
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand
from verl_e2e.core.pulls.pull import Pull
from verl_e2e.core.pulls.queue import PAUSE, RESUME
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import OWN_HEAD, Denied, Granted, counted
from verl_e2e.core.report.command_text import render_help, render_mistakes, render_named
from verl_e2e.core.text.escape import fence_for, fenced_row, markdown, sentence
from verl_e2e.ports import Clock, ForgeError, Ledger, Revisions

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
            *(entry for entry in before if entry.base in {"", pull.base_branch} and entry.source != new.source),
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
        pull, now = given.pull, self.clock.now()
        where, number = pull.ref.repository, pull.ref.number
        if command.verb == "approve":
            return Approval(
                repository=where,
                number=number,
                head_sha=pull.head_sha,
                actor=given.actor,
                source=given.source,
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
                actor=given.actor,
                source=given.source,
                at=now,
                base=pull.base_branch,
            )
        return RecordedCommand(
            source=given.source,
            repository=where,
            number=number,
            actor=given.actor,
            verb=command.verb,
            arguments=command.arguments,
            options=dict(command.options),
            head_sha=pull.head_sha,
            at=now,
            written=given.written,
            by_person=given.by_person,
        )


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

"""Answer the commands that ask for words: `help` and `explain`, each with one comment."""

from collections import Counter
from dataclasses import dataclass, replace

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.look_up_person import Permissions
from verl_e2e.app.publish_comments import Messages
from verl_e2e.core.model.access import Capability
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.messages import reply_to
from verl_e2e.core.pulls.pull import Pull
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.pulls.trust import Granted
from verl_e2e.core.report.command_text import render_help
from verl_e2e.core.text.escape import fence_for, fenced_row

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

    messages: Messages
    permissions: Permissions
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
            if self.messages.was_said(message):
                continue
            left = self._answers_left(question, asked[:place], target, target_state.policy)
            if left > 0:
                text = render_help() if question.verb == "help" else self._explained(question, target_state)
                self.messages.say(replace(message, body=text))
            elif left == 0:
                self.messages.say(replace(message, body=NO_MORE))

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
        if isinstance(self.permissions.allowed(question.actor, Capability.PLAN, pull, policy.capabilities), Granted):
            return MAX_WITH_ROLE - own
        message = own > MAX_EACH or (left < MAX_EACH - own and own > 0)
        return -1 if message else 0

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

"""Show what was decided: checks with annotations on the changed lines, the card, and the answers to questions."""

import logging
from dataclasses import dataclass, replace

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.answer_commands import Answers
from verl_e2e.app.publish_checks import CheckPublisher
from verl_e2e.app.publish_comments import CommentPublisher
from verl_e2e.app.restore_posts import PostRestorer
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.pulls.check_runs import CheckRun, check_name
from verl_e2e.core.pulls.decide import Actions
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.pull import Pull
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.annotations import paths_to_read
from verl_e2e.core.report.checks import checks_wanted
from verl_e2e.core.report.pull_card import render
from verl_e2e.core.report.pull_card_content import card_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Display:
    """Shows on GitHub what was decided for a target."""

    answers: Answers
    check_posts: CheckPublisher
    comments: CommentPublisher
    restorer: PostRestorer
    analysis: Analysis

    def announce(self, target_state: TargetState, steps: Actions) -> None:
        """Bring the checks alone to what was decided, before GPUs are spent on it."""
        self.check_posts.post_checks(target_state.target, checks_wanted(target_state, steps))

    def show(self, target_state: TargetState, steps: Actions) -> float:
        """Checks first, for they gate; then the card and the answers. Gives when something is to be written again."""
        checks = with_notes(target_state, steps.standings, checks_wanted(target_state, steps), self.analysis)
        target = target_state.target
        card = render(card_of(target_state, steps))
        self.restorer.restore(target_state, checks, card)
        waits = [self.check_posts.post_checks(target, checks)]
        if isinstance(target, Pull):
            self.answers.answer(target_state)
            waits.append(self.comments.post_card(target.ref, card, target_state.policy.gate.card_interval_s))
        return min((wait for wait in waits if wait > 0), default=0.0)


def with_notes(
    target_state: TargetState, standings: tuple[Standing, ...], checks: tuple[CheckRun, ...], analysis: Analysis
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their annotations; files are read only for lines in a traceback."""
    if target_state.plan is None:
        return checks
    failed = {
        check_name(target_state.policy.gate.name, standing.wanted.id): verdict
        for standing in standings
        if standing.state is JobStatus.FAILED
        and standing.run is not None
        and (verdict := read_verdict(standing.run.verdict)) is not None
    }
    return tuple(
        _remarked(check, failed[check.name], target_state.plan, target_state, analysis)
        if check.name in failed and check.head_sha == target_state.head_sha
        else check
        for check in checks
    )


def _remarked(check: CheckRun, verdict: Verdict, plan: Plan, target_state: TargetState, analysis: Analysis) -> CheckRun:
    # Asked here too, so that no process is needed where there is nothing to read.
    if not paths_to_read(plan, verdict):
        return check
    try:
        return replace(check, annotations=analysis.annotate(target_state.target, plan, verdict))
    except LimitError as error:
        log.warning("no annotations on %s: %s", check.name, error)
        return check

"""A check that someone reran or whose button was pressed."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_e2e.app.base_policy import BasePolicies
from verl_e2e.app.keep_command import CommandKeeper, Given
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.merge_groups import MergeGroups
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish_checks import CheckPublisher
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.rehearsal_job import REHEARSAL
from verl_e2e.core.pulls.check_runs import CANCEL, LEVEL_BUTTON, RERUN, CheckId, check_name, read_check_id
from verl_e2e.core.pulls.commands import LEVEL, Command
from verl_e2e.core.pulls.pull import Pull, PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.webhook_events import (
    CheckRunEvent,
    CheckSuiteEvent,
)
from verl_e2e.ports import Ledger


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

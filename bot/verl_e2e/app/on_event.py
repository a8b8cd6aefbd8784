"""Hear one event: keep the fact that it carries, if any, and name what is to be looked at because of it.

Nothing is decided here but whether someone may ask. The same event received twice, late or out of order adds nothing.
"""

from dataclasses import dataclass

from verl_e2e.app.current_grants import CurrentGrants
from verl_e2e.app.keep_command import CommandKeeper, Given
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.merge_groups import MergeGroups
from verl_e2e.app.on_check import CheckEvents
from verl_e2e.app.on_comment import CommentEvents
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.commands import LEVEL, Command
from verl_e2e.core.pulls.pull import MergeGroup, PullRef
from verl_e2e.core.pulls.references import Reference
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
from verl_e2e.ports import Ledger

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
                # What a push means as one to a base branch is for `verl_e2e.app.base_branch_changed`.
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

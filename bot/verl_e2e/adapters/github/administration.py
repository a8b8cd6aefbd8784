"""How our App and a repository are set up: endpoints that no other module asks."""

from datetime import datetime
from urllib.parse import quote

from pydantic import AliasChoices, AwareDatetime, Field

from verl_e2e.adapters.github.requester import Answer, Named, read
from verl_e2e.adapters.github.session import AppIdentity, GitHub
from verl_e2e.core.pulls.forge import BranchRules, DeliveryAttempt, Installation, Machine, RequiredCheck
from verl_e2e.ports import ForgeError


class _DeliveryAnswer(Answer):
    id: int
    guid: str
    event: str
    action: str | None = None
    status_code: int = 0
    delivered_at: AwareDatetime
    redelivery: bool = False


class _CheckRequirement(Answer):
    # Any writer will do where `app_id` is None or negative.
    context: str
    app_id: int | None = Field(default=None, validation_alias=AliasChoices("app_id", "integration_id"))


class _RequiredChecks(Answer):
    checks: tuple[_CheckRequirement, ...] = ()
    contexts: tuple[str, ...] = ()


class _ProtectionAnswer(Answer):
    required_status_checks: _RequiredChecks | None = None


class _RuleParameters(Answer):
    required_status_checks: tuple[_CheckRequirement, ...] = ()
    check_response_timeout_minutes: int | None = None


class _RuleAnswer(Answer):
    type: str
    ruleset_id: int = 0
    parameters: _RuleParameters = Field(default_factory=_RuleParameters)


class _RunnerAnswer(Answer):
    name: str
    status: str
    busy: bool = False
    labels: tuple[Named, ...] = ()
    ephemeral: bool | None = None


class _StateAnswer(Answer):
    state: str


class _VisibilityAnswer(Answer):
    private: bool


_MOST_PAGES = 100


class GithubAdministration:
    """`verl_e2e.ports.Administration`: how things are set up. Deliveries and the installation need the App itself."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def hook_url(self) -> str:
        return str(self._github.app().ask("GET", "/app/hook/config").get("url") or "")

    def default_branch(self, repository: str) -> str:
        return str(self._github.requester(repository).ask("GET", f"/repos/{repository}")["default_branch"])

    def is_public(self, repository: str) -> bool:
        found = self._github.requester(repository).find(_VisibilityAnswer, f"/repos/{repository}")
        # Internal repositories of an enterprise are private too.
        return found is not None and not found.private

    def installation(self, repository: str) -> Installation | None:
        if not isinstance(self._github.identity, AppIdentity):
            raise ForgeError("Only the App itself can see how it is installed: set GITHUB_APP_ID and its private key")
        found = self._github.identity.installation(repository)
        if found is None:
            return None
        return Installation(
            id=found.id,
            app_id=found.app_id,
            app_slug=found.app_slug,
            permissions=dict(found.permissions),
            events=frozenset(found.events),
            suspended=found.suspended_at is not None,
        )

    def branch_rules(self, repository: str, branch: str) -> BranchRules:
        path = f"/repos/{repository}/rules/branches/{quote(branch, safe='')}"
        rules = self._github.requester(repository).read_all(_RuleAnswer, path)
        required = [
            RequiredCheck(check.context, _app(check.app_id), f"ruleset {rule.ruleset_id}")
            for rule in rules
            for check in rule.parameters.required_status_checks
        ]
        path = f"/repos/{repository}/branches/{quote(branch, safe='')}/protection"
        protection = self._github.requester(repository).find(_ProtectionAnswer, path)
        if protection and (asked := protection.required_status_checks):
            bound = {check.context: _app(check.app_id) for check in asked.checks}
            names = sorted({*bound, *asked.contexts})
            required = [*(RequiredCheck(name, bound.get(name), "branch protection") for name in names), *required]
        minutes = [rule.parameters.check_response_timeout_minutes for rule in rules if rule.type == "merge_queue"]
        least = min((found for found in minutes if found is not None), default=None)
        return BranchRules(required=tuple(required), queue_minutes=least)

    def machines(self, repository: str) -> tuple[Machine, ...]:
        owner = repository.partition("/")[0]
        found = self._github.requester(repository).read_all(
            _RunnerAnswer, f"/repos/{repository}/actions/runners", "runners"
        )
        try:
            path = f"/orgs/{owner}/actions/runners"
            found += self._github.requester(f"{owner}/").read_all(_RunnerAnswer, path, "runners")
        except ForgeError as error:
            # A person's repository, or an organisation that does not let us look.
            if error.passing:
                raise
        return tuple(
            Machine(
                runner.name,
                runner.status == "online",
                runner.busy,
                tuple(label.name for label in runner.labels),
                runner.ephemeral,
            )
            for runner in found
        )

    def workflow_state(self, repository: str, workflow: str) -> str:
        path = f"/repos/{repository}/actions/workflows/{quote(workflow, safe='')}"
        found = self._github.requester(repository).find(_StateAnswer, path)
        return found.state if found else ""

    def deliveries(self, since: datetime) -> tuple[DeliveryAttempt, ...]:
        requester = self._github.app()
        kept: list[DeliveryAttempt] = []
        path, cursor = "/app/hook/deliveries", {"per_page": 100}
        for _ in range(_MOST_PAGES):
            headers, data = requester.send("GET", path, parameters=cursor)
            page = [
                DeliveryAttempt(
                    id=answer.id,
                    guid=answer.guid,
                    event=answer.event,
                    action=answer.action or "",
                    code=answer.status_code,
                    at=answer.delivered_at,
                    redelivery=answer.redelivery,
                )
                for answer in (read(_DeliveryAnswer, entry, path) for entry in data or ())
            ]
            kept += [attempt for attempt in page if attempt.at >= since]
            path, cursor = requester.next_page(headers), {}
            if not path or not page or page[-1].at < since:
                return tuple(kept)
        raise ForgeError(f"There are more than {_MOST_PAGES * 100:,} deliveries since {since:%Y-%m-%d %H:%M}")

    def redeliver(self, delivery_id: int) -> None:
        self._github.app().ask("POST", f"/app/hook/deliveries/{delivery_id}/attempts")


def _app(app_id: int | None) -> int | None:
    return app_id if app_id is not None and app_id > 0 else None

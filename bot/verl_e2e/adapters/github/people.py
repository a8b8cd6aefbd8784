"""Who someone is in a repository or a team."""

from urllib.parse import quote

from verl_e2e.adapters.github.answers import RoleAnswer, StateAnswer
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.ports import ForgeError


class GithubPeople:
    """Roles and teams, as `verl_e2e.ports.People`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def role(self, repository: str, login: str) -> str:
        """The role by its name, which tells maintain from write and triage from read; `none` without access."""
        path = f"/repos/{repository}/collaborators/{quote(login, safe='')}/permission"
        found = self._github.requester(repository).find(RoleAnswer, path)
        return (found.role_name or found.permission) if found else "none"

    def in_team(self, team: str, login: str) -> bool:
        """Whether someone is an active member of `organisation/team`, or of a team below it."""
        organisation, slash, slug = team.partition("/")
        if not (organisation and slash and slug):
            raise ForgeError(f"{team!r} is not a team: write organisation/team")
        path = f"/orgs/{quote(organisation, safe='')}/teams/{quote(slug, safe='')}/memberships/{quote(login, safe='')}"
        found = self._github.requester(f"{organisation}/").find(StateAnswer, path)
        return found is not None and found.state == "active"

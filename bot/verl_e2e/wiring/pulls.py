"""Planning a pull request by its address: facts from the API, objects from a partial clone that is kept."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path

from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.adapters.github.pulls import GithubPulls, PublicRepository, named_by
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import anonymously, with_token
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.plan_change import Planned, PlanReaders, plan_pull
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.forge import PUBLIC_API, api_of, read_address, web_of
from verl_e2e.git.repository import GitRepository
from verl_e2e.ports import ForgeError, Revisions, UnknownPullError
from verl_e2e.wiring.planning import PlanRequest, policy_file, uses_for, with_details


def verl_at(place: str) -> GitRepository | PublicRepository:
    """The verl repository of a folder or of an address, `https://HOST/OWNER/NAME`."""
    if not place.startswith(("https://", "http://")):
        return GitRepository(Path(place))
    api_url, name = named_by(place)
    return PublicRepository(anonymously(api_url=api_url), name)


def verl_source(place: str) -> Callable[[str], Revisions]:
    """The verl repository of a place for whatever revision; it is opened with the first."""
    opened = lru_cache(1)(verl_at)
    return lambda _: opened(place)


# Someone waits at a terminal: what takes longer than this is reported instead.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class PullPlanRequest:
    """Which pull request to plan, and how GitHub is reached; `plan.repo` is not looked at.

    `api_url` and `web_url` (GitHub's words for them in workflows) outweigh the site that the address names. The token
    goes to the site that `api_url` names and to GitHub's own, to no other that an address may lead to.
    """

    address: str
    plan: PlanRequest
    api_url: str = ""
    web_url: str = ""
    token: str = field(default="", repr=False)


def plan_address(order: PullPlanRequest, now: Callable[[], datetime]) -> Planned:
    """The plan of a pull request; `now` says when a limit ends."""
    with tempfile.TemporaryDirectory(prefix="verl-e2e-") as folder:
        return _plan(order, order.plan.cache or Path(folder), now)


def _plan(order: PullPlanRequest, cache: Path, now: Callable[[], datetime]) -> Planned:
    address = read_address(order.address)
    api = (order.api_url or api_of(address.web)).rstrip("/")
    web = (order.web_url if order.api_url else "") or web_of(api)
    token = order.token if order.api_url or api == PUBLIC_API else ""
    patience = RetryPolicy(total_s=_PATIENCE_S)
    if token:
        github = with_token(token, api_url=api, retry_policy=patience)
    else:
        github = anonymously(api_url=api, retry_policy=patience)
    mirrors = Mirrors(cache, web, token=lambda _: token or None, environ=order.plan.environment)
    named, repository = order.plan.megatron_lm, address.ref.repository
    readers = PlanReaders(
        GithubPulls(github),
        mirrors.changes,
        lambda policy: uses_for(order.plan, policy),
        SummaryCache(cache),
        policy_file(order.plan.policy) if order.plan.policy else None,
        now().date(),
        partial(mirrors.commits, repository) if named is None else lambda *_: GitRepository(named),
    )
    try:
        found = plan_pull(address.ref, readers)
    except UnknownPullError as error:
        raise UserError(f"{error}{'' if token else '; if it is private, set GITHUB_TOKEN'}") from None
    except ForgeError as error:
        if error.wait_s <= 0:
            raise UserError(str(error)) from None
        ends = (now() + timedelta(seconds=error.wait_s)).astimezone()
        fix = "" if token else "; with a token in GITHUB_TOKEN the limit is far higher"
        raise UserError(f"GitHub's rate limit is used up until {ends:%Y-%m-%d %H:%M:%S %Z}{fix}") from None
    finally:
        github.close()
    return with_details(found, replace(order.plan, repo=cache))

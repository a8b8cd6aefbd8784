"""People with a browser: their login with our App at GitHub, and what GitHub lets them read."""

from dataclasses import dataclass, field

import requests

from verl_e2e.adapters.github.requester import Answer, RefusedError, RetryPolicy, StatusError, as_forge_error, read
from verl_e2e.adapters.github.session import anonymously, with_token
from verl_e2e.core.pulls.forge import web_of

# Someone waits for the page.
_PATIENCE = RetryPolicy(total_s=2.0)


class _TokenAnswer(Answer):
    # Empty where GitHub does not accept the code, which it says with status 200.
    access_token: str = ""


class _RepositoryAnswer(Answer):
    id: int


@dataclass(frozen=True, slots=True)
class GithubVisitors:
    """GitHub's web flow of an App; errors are ForgeError."""

    api_url: str
    client_id: str
    client_secret: str = field(repr=False)

    def token(self, code: str, verifier: str) -> str:
        """The token of who has just logged in, for a code that works once; empty where GitHub does not accept it."""
        address = f"{web_of(self.api_url)}/login/oauth/access_token"
        sent = {"client_id": self.client_id, "client_secret": self.client_secret}
        sent |= {"code": code, "code_verifier": verifier}
        github = anonymously(api_url=self.api_url, retry_policy=_PATIENCE)
        try:
            answer = github.app().exchange("POST", address, {"Accept": "application/json"}, body=sent)
            return read(_TokenAnswer, answer.json(), "the login's code").access_token
        except (StatusError, requests.RequestException) as error:
            raise as_forge_error(error, "the login's code") from error
        finally:
            github.close()

    def reads(self, token: str, repository: str) -> bool:
        """Whether the bearer of a token may read a repository; false for a token that is none any more."""
        github = with_token(token, api_url=self.api_url, retry_policy=_PATIENCE)
        try:
            return github.requester(repository).find(_RepositoryAnswer, f"/repos/{repository}") is not None
        except RefusedError:
            return False
        finally:
            github.close()

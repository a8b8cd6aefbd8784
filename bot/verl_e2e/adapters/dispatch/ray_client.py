"""Asks the Jobs server of a Ray cluster, by Ray's own client (the extra `ray`). No other module imports Ray."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from verl_e2e.adapters.dispatch.ray_backend import KEY_OF_RUN, RayJob, RayRefusedError
from verl_e2e.ports import BackendError

_Answer = TypeVar("_Answer")

# By these Ray's client would go to another cluster than the settings name.
_LEADS_ELSEWHERE = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_NOT_FOUND = 404


class _Client(JobSubmissionClient):  # type: ignore[misc]  # Ray is an extra, so its types are not known
    """Ray's client with a limit for each request, and errors that tell the HTTP status."""

    def __init__(self, address: str, *, headers: Mapping[str, str], verify: bool | str, time_s: float) -> None:
        self._time_s = time_s
        super().__init__(address, headers=dict(headers), verify=verify)

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        answer: requests.Response = super()._do_request(method, endpoint, **{"timeout": self._time_s, **options})
        return answer

    def _raise_error(self, r: requests.Response) -> None:
        # A proxy whose cluster is just starting knows no job either: only Ray itself can say that there is none.
        if r.status_code == _NOT_FOUND:
            self._check_connection_and_version()
        raise RayRefusedError(r.status_code, r.text)


@dataclass(frozen=True)
class RayClient:
    """The Jobs server of one cluster; errors are BackendError."""

    address: str
    """`http://HOST:PORT` of the dashboard."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request, as for a token."""
    verify: bool | str = True
    """Whether the server's certificate is verified, or the file of the authorities that may sign it."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment of this process, which Ray's client reads as well."""
    time_s: float = 60.0
    """Seconds that a request may take."""

    def check(self) -> str:
        """The version of the cluster's Ray; BackendError where the server cannot be asked."""
        return str(self._ask(lambda client: client._server_ray_version))

    def submit(self, name: str, entrypoint: str, **options: Any) -> None:
        self._ask(lambda client: client.submit_job(entrypoint=entrypoint, submission_id=name, **options))

    def job(self, name: str) -> RayJob | None:
        try:
            return self._ask(lambda client: _read(client.get_job_info(name)))
        except RayRefusedError as error:
            if error.code == _NOT_FOUND:
                return None
            raise self._silent(str(error)) from error

    def stop(self, name: str) -> None:
        try:
            self._ask(lambda client: client.stop_job(name))
        except RayRefusedError as error:
            if error.code != _NOT_FOUND:
                raise self._silent(str(error)) from error

    @cached_property
    def _client(self) -> _Client:
        # A new one asks for the server's version first.
        if named := next((name for name in _LEADS_ELSEWHERE if self.environ.get(name)), ""):
            what = f"{named} is set, and Ray's client would go there instead of to {self.address}"
            raise BackendError(f"{what}; unset it for the service")
        return _Client(self.address, headers=self.headers, verify=self.verify, time_s=self.time_s)

    def _ask(self, question: Callable[[_Client], _Answer]) -> _Answer:
        try:
            return question(self._client)
        except AuthenticationError:
            what = f"Ray at {self.address} does not accept who we are"
            raise BackendError(f"{what}; write the header with its token into VERL_E2E_RAY_HEADERS_FILE") from None
        except (OSError, RuntimeError) as error:
            # Ray's client raises ConnectionError and RuntimeError, requests its own kinds of OSError.
            raise self._silent(_first_line(error)) from error
        except ValueError as error:
            what = f"Ray at {self.address} answers with what its client here does not know: {_first_line(error)}"
            raise BackendError(f"{what}; install the cluster's version of Ray for verl-e2e") from error

    def _silent(self, what: str) -> BackendError:
        fix = "see that its dashboard runs and can be reached (`ray job list --address ADDRESS`)"
        return BackendError(f"Ray at {self.address} gave no answer: {what}; {fix}", uncertain=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _read(details: Any) -> RayJob:
    """A job from Ray's own description of it."""

    def instant(milliseconds: int | None) -> datetime | None:
        if not milliseconds or not math.isfinite(milliseconds):
            return None
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    return RayJob(
        state=str(getattr(details.status, "value", details.status)),
        error=str(details.error_type or ""),
        message=" ".join((details.message or "").split())[:300],
        # Ray before 2.9 does not tell it.
        exit_code=getattr(details, "driver_exit_code", None),
        key=(details.metadata or {}).get(KEY_OF_RUN, ""),
        submitted=instant(details.start_time),
        ended=instant(details.end_time),
    )

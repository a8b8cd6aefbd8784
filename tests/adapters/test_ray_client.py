"""What Ray's own client makes of answers that a healthy cluster does not give, by a server that gives them."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.config.test_settings import GOOD
from verl_e2e.config.settings import load_settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import BackendError
from verl_e2e.wiring.engines import check_engine

if TYPE_CHECKING:
    from verl_e2e.adapters.dispatch.ray_client import RayClient

pytestmark = pytest.mark.ray

Answer = tuple[int, Any]
VERSION: Answer = (200, {"version": "4", "ray_version": "2.48.0", "ray_commit": "", "session_name": ""})
JOB = {"type": "SUBMISSION", "entrypoint": "true", "status": "RUNNING", "start_time": 1767225600000}


@contextmanager
def serving(answer: Callable[[str], Answer]) -> Iterator[str]:
    """The address of a server that gives one answer for each path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, document = answer(self.path)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(document.encode() if isinstance(document, str) else json.dumps(document).encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asking(address: str, **environ: str) -> "RayClient":
    from verl_e2e.adapters.dispatch.ray_client import RayClient

    return RayClient(address, environ=environ)


def jobs(answer: Answer) -> Callable[[str], Answer]:
    return lambda path: VERSION if path == "/api/version" else answer


def test_a_job_as_an_old_and_a_new_version_of_ray_describe_it() -> None:
    new = {"error_type": "NEW", "message": "a\n" * 400, "driver_exit_code": 3, "metadata": {"verl-e2e-run": "k"}}
    for document, error, exit_code, key in ((JOB, "", None, ""), (JOB | new, "NEW", 3, "k")):
        with serving(jobs((200, document))) as address:
            job = asking(address).job("any")
        assert job is not None
        assert (job.state, job.error, job.exit_code, job.key) == ("RUNNING", error, exit_code, key)
        assert len(job.message) <= 300


def test_a_state_of_a_later_version_is_an_error_that_passes() -> None:
    with serving(jobs((200, JOB | {"status": "PAUSED"}))) as address, pytest.raises(BackendError) as unknown:
        asking(address).job("any")
    assert (unknown.value.final, "install the cluster's version of Ray" in str(unknown.value)) == (False, True)


def test_only_ray_can_say_that_there_is_no_such_job() -> None:
    with serving(jobs((404, "Job any does not exist"))) as address:
        client = asking(address)
        assert client.job("any") is None
        client.stop("any")
    closed = False
    with serving(lambda path: (404, "no route") if closed else jobs((200, JOB))(path)) as address:
        client = asking(address)
        assert client.job("any") is not None
        closed = True
        with pytest.raises(BackendError) as unsure:
            client.job("any")
    assert unsure.value.uncertain


@pytest.mark.parametrize("answer", [(500, "Traceback\nOSError: disk full"), (503, ""), (200, "<html>sign in</html>")])
def test_an_answer_that_is_none_is_an_error_that_passes(answer: Answer) -> None:
    with serving(jobs(answer)) as address, pytest.raises(BackendError) as error:
        asking(address).job("any")
    assert not error.value.final


def test_a_token_that_is_missing_is_told_with_the_setting() -> None:
    with serving(lambda _: (401, "Unauthorized")) as address, pytest.raises(BackendError) as refused:
        asking(address).check()
    assert "VERL_E2E_RAY_HEADERS_FILE" in str(refused.value)


def test_the_environment_does_not_lead_to_another_cluster() -> None:
    with serving(jobs((200, JOB))) as address, pytest.raises(BackendError, match="RAY_ADDRESS is set"):
        asking(address, RAY_ADDRESS="http://other:8265").check()


def settings_of(address: str, folder: Path) -> dict[str, str]:
    here = {"VERL_E2E_RAY_FOLDER": str(folder)}
    return {**GOOD, **here, "VERL_E2E_TOOL": "", "VERL_E2E_BACKEND": "ray", "VERL_E2E_RAY_ADDRESS": address}


def test_a_check_of_the_settings_asks_the_cluster(tmp_path: Path) -> None:
    with serving(jobs((200, JOB))) as address:
        settings = load_settings(settings_of(address, tmp_path))
        assert check_engine(settings, {}) == "Ray 2.48.0"
    with pytest.raises(UserError, match=f"VERL_E2E_RAY_ADDRESS: Ray at {address} gave no answer"):
        check_engine(settings, {})
    assert check_engine(load_settings(GOOD), {}) == ""


def test_a_missing_extra_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UserError, match=r"needs aiohttp, which is not installed; pip install 'verl-e2e\[ray\]'"):
        check_engine(load_settings(settings_of("http://127.0.0.1:9", tmp_path)), {})

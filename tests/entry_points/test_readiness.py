"""What a service says of itself while something is away: each fault is named, in a bounded time."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.patience import HANG_S
from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.worker import Worker
from verl_e2e.config.settings import load_settings
from verl_e2e.wiring.app import Bounded, Service, github_work, open_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    settings = load_settings(
        {
            "GITHUB_API_URL": "http://127.0.0.1:9",
            "GITHUB_APP_ID": "1",
            "GITHUB_APP_PRIVATE_KEY": key.private_bytes(
                Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
            ).decode(),
            "GITHUB_WEBHOOK_SECRET": "s" * 16,
            "VERL_E2E_TOOL": f"owner/verl-e2e@{'a' * 40}",
            "VERL_E2E_DATA": str(tmp_path),
        }
    )
    opened = open_service(settings, SystemClock(), github_work({}))
    opened.start()
    yield opened
    opened.stop()


def test_a_service_is_ready_and_each_fault_is_named(service: Service) -> None:
    ready = dict(service.readiness())
    assert "GitHub cannot be reached from this machine" in ready.pop("github")
    assert (service.stalled(), {*ready.values()}) == ("", {""})

    def fail() -> str:
        raise OSError("postgresql://bot:hunter2@db")

    service.monitoring.checks["github"] = fail
    assert service.readiness()["github"] == "it cannot be checked (OSError)"
    service.worker.stop()
    assert service.readiness()["worker"] == service.stalled() == "the thread of the worker has ended"


def test_a_database_that_hangs_is_named_in_time_and_is_no_reason_to_start_again(service: Service) -> None:
    """A lock that never comes free stands for a server that does not answer; only one thread waits for it."""
    gate = threading.Event()
    asked: list[int] = []

    def hang() -> bool:
        asked.append(1)
        return gate.wait(HANG_S)

    away = replace(stuck(service), database_answers=Bounded(hang, 0.2))
    began = time.monotonic()
    for _ in range(5):
        readiness = away.readiness()
    assert (away.stalled(), readiness["worker"]) == ("", "")
    assert readiness["database"] == "it does not answer"
    assert time.monotonic() - began < HANG_S / 2
    assert len(asked) == 1
    gate.set()


def stuck(service: Service) -> Service:
    """The service with a worker whose thread began no round for two minutes."""
    worker = SimpleNamespace(alive=True, silent_s=121.0)
    return replace(service, worker=cast(Worker, worker))


def test_a_thread_that_hangs_while_the_database_answers_is_a_reason(service: Service) -> None:
    assert stuck(service).stalled() == "the thread of the worker hangs"

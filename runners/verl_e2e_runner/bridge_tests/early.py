"""Runs the Bridge tests while the imports are proved: each is mostly one Python after another importing the stack."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from verl_e2e_runner.bridge_tests.run import BridgeTests


@dataclass(slots=True)
class EarlyTests:
    """Bridge tests that may have been started before their turn; made by `early_tests`."""

    _executor: ThreadPoolExecutor
    _stop: Event = field(default_factory=Event)
    _begun: Future[BridgeTests] | None = None

    def begin(self, work: Callable[[Event], BridgeTests]) -> None:
        """Start the tests; `work` ends them soon after its event is set."""
        self._begun = self._executor.submit(work, self._stop)

    def result(self) -> BridgeTests | None:
        """How they went, waiting for them; None where they were not started."""
        return self._begun.result() if self._begun is not None else None

    def stop(self) -> None:
        """End what runs: no one needs its result."""
        self._stop.set()


@contextmanager
def early_tests() -> Iterator[EarlyTests]:
    """Tests that run in the background; none of them is left when this ends."""
    with ThreadPoolExecutor(1, thread_name_prefix="bridge-tests") as executor:
        tests = EarlyTests(executor)
        try:
            yield tests
        finally:
            tests.stop()

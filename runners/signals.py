"""Interruptions of the runner itself, taken as values so that the folder is whole when it ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def received_signals() -> Iterator[list[str]]:
    """Names of the SIGINT and SIGTERM that this process gets meanwhile, instead of being ended by them."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, _: received.append(signal.Signals(got).name)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

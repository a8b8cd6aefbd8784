"""Interruptions of the runner itself, taken in order, so that the folder is whole and the host clean when it ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A terminal that goes away sends SIGHUP; a runner started with nohup ignores it and goes on.
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def received_signals() -> Iterator[list[str]]:
    """Names of the SIGINT, SIGTERM and SIGHUP that this process gets meanwhile, instead of being ended by them."""
    received: list[str] = []
    with _handled(received.append):
        yield received


@contextmanager
def interruptible() -> Iterator[None]:
    """The first of these signals raises KeyboardInterrupt with its name; later ones do not cut the clean-up short."""
    received: list[str] = []

    def interrupt(name: str) -> None:
        received.append(name)
        if len(received) == 1:
            raise KeyboardInterrupt(name)

    with _handled(interrupt):
        yield


@contextmanager
def _handled(take: Callable[[str], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    ours = [number for number in _NUMBERS if number != signal.SIGHUP or before[number] is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, lambda got, _: take(signal.Signals(got).name))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])

"""What the child processes of `test_limited.py` are asked to do."""

import ast
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from verl_e2e.core.model.change import Change
from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import ForgeError

Ask = Callable[[object], Any]


class _MistakeError(UserError):
    pass


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/never",)


def _ask_in_vain(_: Any, ask: Ask) -> object:
    try:
        return ask("x")
    except ForgeError:
        return "went on"


def _spin(*_: Any) -> object:
    while True:
        pass


def _leave(*_: Any) -> object:
    subprocess.Popen(["sleep", "600"])
    return os.getpgid(0)


def _raise(error: Exception) -> object:
    raise error


WORK: dict[str, Callable[[Any, Ask], object]] = {
    "value": lambda name, _: Change("a" * 40, name, None, ()),
    "environment": lambda *_: dict(os.environ),
    "memory": lambda *_: len(bytearray(8 << 30)),
    "parse": lambda text, _: len(ast.dump(ast.parse(text))),
    "spin": _spin,
    "sleep": lambda *_: time.sleep(600),
    "die": lambda *_: os._exit(7),
    "large": lambda *_: "x" * (64 << 20),
    "evil": lambda *_: Evil(),
    "mistake": lambda *_: _raise(_MistakeError("name another")),
    "fault": lambda *_: _raise(RuntimeError("a fault of ours")),
    "ask": lambda questions, ask: [ask(question) for question in questions],
    "ask in vain": _ask_in_vain,
    "leave": _leave,
    "pid": lambda *_: os.getpid(),
}


def work(name: str, argument: Any, ask: Ask) -> object:
    """The entry point."""
    return WORK[name](argument, ask)

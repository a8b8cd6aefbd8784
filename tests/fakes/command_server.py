"""Starts `verl-e2e` by a fork of a process that has imported it: of most commands the imports take the longest.

What comes after the imports is read and compiled once in a process too: the packaged documents, the templates of pages,
the schemas of documents and the patterns of logs. The server has judged a run before it takes a command.

What runs is the command in a process of its own, with descriptors, folder and environment of the one that asked.
Where it matters how Python itself starts (its switches, PYTHONPATH, which packages a command imports), a test starts
Python.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.fakes.places import ROOT

_CLIENT = Path(__file__).with_name("command_client.py")
# What few commands need and takes long to import: the parts that belong to an extra.
_LEFT_OUT = ("verl_e2e.adapters.dispatch.ray", "verl_e2e.adapters.files.plots")


@cache
def verl_e2e() -> tuple[str, ...]:
    """The words that stand for `verl-e2e` in a command line; the first use starts the server, which ends with us."""
    path = Path(tempfile.mkdtemp(prefix="verl-e2e-")) / "commands"
    server = subprocess.Popen(
        (sys.executable, "-m", "tests.fakes.command_server", str(path)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: os.environ[name] for name in ("HOME", "LANG", "PATH", "PYTHONPATH") if name in os.environ},
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return (sys.executable, "-I", "-S", str(_CLIENT), str(path))


def _import_all() -> None:
    package = importlib.import_module("verl_e2e")
    for found in pkgutil.walk_packages(package.__path__, "verl_e2e."):
        if not found.name.endswith("__main__") and not found.name.startswith(_LEFT_OUT):
            importlib.import_module(found.name)


def _judge_a_run() -> None:
    from verl_e2e.adapters.files.folders import run_folders
    from verl_e2e.app.judge_folder import judge_folders, write_judgement
    from verl_e2e.config.maps import other_uses, packaged_bands, packaged_cell_map, packaged_maps
    from verl_e2e.config.policy import packaged_policy

    for packaged in (other_uses, packaged_cell_map, packaged_maps, packaged_policy):
        packaged()
    folders = run_folders(packaged_bands())
    with tempfile.TemporaryDirectory(prefix="verl-e2e-") as place:
        folder = Path(shutil.copytree(ROOT / "bot/verl_e2e/demo/failed", Path(place) / "run"))
        write_judgement(folders, folder, judge_folders(folders, folder))


def _receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    length = int.from_bytes(head, "big")
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    return json.loads(text), descriptors


def _watch(connection: socket.socket, child: int) -> None:
    """Wait for the command's end and say how it ended; kill it when no one waits for it any more."""
    connection.sendall(child.to_bytes(8, "big"))
    ended = os.pidfd_open(child)
    ready, _, _ = select.select((ended, connection.fileno()), (), ())
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(status.to_bytes(8, "big"))


def _next(listening: socket.socket, alive: int) -> list[str]:
    """The words of the next command, in the process that is to run it; the others never return."""
    while True:
        ready, _, _ = select.select((listening.fileno(), alive), (), ())
        if alive in ready:
            os._exit(0)
        connection, _ = listening.accept()
        # A process in between waits for the command, so that this one does not.
        if os.fork():
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        listening.close()
        asked, descriptors = _receive(connection)
        if child := os.fork():
            for descriptor in (0, 1, 2, *descriptors):
                os.close(descriptor)
            _watch(connection, child)
            os._exit(0)
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return _become(asked)


def _become(asked: dict[str, object]) -> list[str]:
    words, environ, cwd, umask = (asked[name] for name in ("words", "environ", "cwd", "umask"))
    assert isinstance(words, list)
    assert isinstance(environ, dict)
    assert isinstance(umask, int)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(str(cwd))
    os.umask(umask)
    sys.path[0:1] = [os.getcwd(), *filter(None, str(environ.get("PYTHONPATH", "")).split(os.pathsep))]
    # The ones of the server know what its own descriptors were.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", closefd=False)
    return words


def _main() -> None:
    # Who started the tests may ignore a signal, as nohup and a shell's background do, and a child inherits that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _import_all()
    _judge_a_run()
    alive = os.dup(0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen(64)
        gc.freeze()
        os.write(1, b"ready\n")
        words = _next(listening, alive)
    os.close(alive)
    sys.argv = ["verl-e2e", *words]
    _end(_run())


def _run() -> object:
    """Run the command; what it ended with."""
    try:
        runpy.run_module("verl_e2e", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: object) -> NoReturn:
    """End as Python does, but without tidying away all that was imported, which takes longer than most commands."""
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _main()

"""A program that stands for a `verl-e2e` of `tests.fakes.command_server`: `command_client.py SOCKET WORD...`.

Its descriptors, folder, environment and umask become the command's; signals go on to it; it ends as the command ends,
and where it is killed the command is killed too. It imports little, because it is started for every command.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Ask for the command, and end as it does."""
    # Kept until they can be handed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    umask = os.umask(0o077)
    os.umask(umask)
    asked = {"words": sys.argv[2:], "cwd": os.getcwd(), "environ": dict(os.environ), "umask": umask}
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as to_server:
        to_server.connect(sys.argv[1])
        socket.send_fds(to_server, [len(text).to_bytes(8, "big")], [0, 1, 2])
        to_server.sendall(text)
        pid = int.from_bytes(to_server.recv(8, socket.MSG_WAITALL), "big")

        def forward(number: int, _frame: FrameType | None) -> None:
            os.kill(pid, number)

        for number in _FORWARDED:
            signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        status = int.from_bytes(to_server.recv(8, socket.MSG_WAITALL), "big")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


main()

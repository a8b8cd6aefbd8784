"""The redactor of this host: its directories, names, addresses and secret variables."""

import os
import socket
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from verl_e2e.core.text.redact import Redactor, redactor
from verl_e2e.core.text.secret_names import secrets_in

_HOST_VARIABLES = ("HOSTNAME", "SLURMD_NODENAME", "NODE_NAME", "RUNNER_NAME")


def host_redactor(
    environ: Mapping[str, str], places: Mapping[str, Path | str], *, resolver: Path = Path("/etc/resolv.conf")
) -> Redactor:
    """A redactor for this host.

    `environ` are the variables of the runner and of the run, for HOME and for those that hold a secret.
    `places` maps a placeholder (`$OUT`, `$WORK`, `$BRIDGE`, `$MEGATRON_LM`, `$VERL`) to its directory. Every
    directory is known by the name given and by the one that its links lead to.
    """
    named = [
        *places.items(),
        ("$HOME", environ.get("HOME") or os.path.expanduser("~")),
        ("$TMPDIR", environ.get("TMPDIR") or tempfile.gettempdir()),
        ("$TMPDIR", "/tmp"),  # noqa: S108 - programs write there whatever TMPDIR says
    ]
    names = [socket.gethostname(), *(environ.get(variable, "") for variable in _HOST_VARIABLES)]
    return redactor(
        paths=[
            (path, placeholder)
            for placeholder, place in named
            for path in dict.fromkeys((os.path.abspath(place), os.path.realpath(place)))
        ],
        hosts=_with_domains([name for name in dict.fromkeys(names) if name], _domains(resolver)),
        addresses=_addresses(),
        secrets=[(text, name) for name, value in environ.items() for text in secrets_in(name, value)],
    )


def _domains(resolver: Path) -> list[str]:
    """The domains that short host names are completed with; asking the resolver itself could take seconds."""
    try:
        lines = [line.split() for line in resolver.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    found = [domain for words in lines if words[:1] in (["search"], ["domain"]) for domain in words[1:]]
    return [domain.strip(".") for domain in found if domain.strip(".")]


def _with_domains(names: Iterable[str], domains: Iterable[str]) -> list[str]:
    complete = []
    for name in names:
        short, dot, _ = name.partition(".")
        complete += [name, short] if dot else [name, *(f"{name}.{domain}" for domain in domains)]
    return complete


def _addresses() -> list[str]:
    families = (socket.AF_INET, socket.AF_INET6)
    found = [entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in families]
    return [entry.address.partition("%")[0] for entry in found]

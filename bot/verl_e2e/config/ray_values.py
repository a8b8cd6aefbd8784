"""Readers for the settings of a Ray cluster: each returns the value, or raises UnfitError with the fix."""

import os
import re
from collections.abc import Mapping

from verl_e2e.config.settings_values import url
from verl_e2e.core.model.document import UnfitError

_HEADER = re.compile(r"([A-Za-z0-9-]+):[ \t]*([\x21-\x7e][\x20-\x7e]*)")
_AMOUNT = re.compile(r"[0-9]{1,6}(\.[0-9]{1,4})?")
_RESOURCE = re.compile(r"[A-Za-z0-9_.:-]+")
# Ray has arguments of their own for these.
_BUILT_IN = ("CPU", "GPU", "memory", "object_store_memory")


def address(text: str) -> str:
    """The address of a dashboard; empty stays empty."""
    return url(text) if text else ""


def headers(text: str) -> Mapping[str, str]:
    """Headers, one `NAME: VALUE` on each line. No message shows a value."""
    found = {}
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise UnfitError(f"line {number} is not a header", "write NAME: VALUE on each line")
        found[header[1]] = header[2].rstrip()
    return found


def verify(text: str) -> bool | str:
    """Whether a certificate is verified, or the absolute path of the authorities that may sign it."""
    if text.lower() in ("yes", "no"):
        return text.lower() == "yes"
    if not (os.path.isabs(text) and os.path.exists(text)):
        raise UnfitError("it is not yes, no or the path of a file", "write yes, no, or the path of a PEM file")
    return text


def resources(text: str) -> Mapping[str, float]:
    """Amounts of a cluster's own resources by name, `NAME=AMOUNT`, separated by spaces."""
    found = {}
    for word in text.split():
        name, _, number = word.partition("=")
        if not _RESOURCE.fullmatch(name) or name in _BUILT_IN or not _AMOUNT.fullmatch(number):
            what = f"{word[:40]!r} is not an amount of one of the cluster's own resources"
            raise UnfitError(what, "write NAME=AMOUNT as on the nodes; GPUs, CPUs and memory are asked for anyway")
        found[name] = float(number)
    return found

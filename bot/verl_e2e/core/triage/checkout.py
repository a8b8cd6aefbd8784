"""Whether Megatron-Bridge and its Megatron-LM were imported from the checkout that PYTHONPATH names."""

import posixpath
import re
from collections.abc import Iterator

from verl_e2e.core.model.facts import LogFacts, PackagePath, Setting
from verl_e2e.core.triage.values import read_value

_PYTHONPATH = re.compile(r"(?:.*\.)?PYTHONPATH")
_CHECKOUT = re.compile(r"(?:[A-Z]+_)?BRIDGE(?:_\w+)?")
_INSTALLED = re.compile(r"/(?:site|dist)-packages(?:/|$)")
_OF_BRIDGE = re.compile(r"(?i)bridge")
_NAMES = {"megatron.bridge": "Megatron-Bridge", "megatron.core": "Megatron-LM"}
_SUBMODULE = "3rdparty/Megatron-LM"


def imported_elsewhere(facts: LogFacts) -> tuple[PackagePath, str] | None:
    """A package from a folder that is on no PYTHONPATH of the run, with a sentence; None where none is shown.

    A PYTHONPATH without a checkout of the package asks for whatever is installed. A process that shows the package in
    the checkout, too, imported it from there. A frame of a traceback counts when it is of an installed package: an
    exception may carry the traceback of another machine.
    """
    entries = [(entry, setting) for setting in facts.asked for entry in _entries(setting)]
    local = {(item.package, item.actor) for item in facts.packages if _on_path(item, entries)}
    for found in facts.packages:
        asked = _asked(found.package, entries)
        known = (found.package, found.actor) in local or (found.traced and not _INSTALLED.search(found.root))
        if asked is not None and not known:
            entry, setting = asked
            wanted = f"asked for {_NAMES[found.package]} from {entry[:200]} (line {setting.at.line})"
            got = f"{found.package} was imported from {found.root[:200]} (line {found.at.line})"
            return found, f"{wanted}, but {got}"
    return None


def _on_path(found: PackagePath, entries: list[tuple[str, Setting]]) -> bool:
    return any(_holds(entry, found.root) for entry, _ in entries)


def _entries(setting: Setting) -> Iterator[str]:
    """The folders that a setting puts on the path; those of a variable that names a checkout count with all below."""
    read = read_value(setting.value)
    value = (read if isinstance(read, str) else setting.value).strip("'\"")
    if _PYTHONPATH.fullmatch(setting.name):
        yield from (posixpath.normpath(entry) for entry in value.split(":") if entry)
    elif _CHECKOUT.fullmatch(setting.name) and not setting.override and value.startswith(("/", "~", "$")):
        root = posixpath.normpath(value)
        yield from (root, f"{root}/src", f"{root}/{_SUBMODULE}")


def _asked(package: str, entries: list[tuple[str, Setting]]) -> tuple[str, Setting] | None:
    """The first entry that is a checkout of the package."""
    if package == "megatron.core":
        return next((row for row in entries if row[0].endswith(_SUBMODULE)), None)
    names = {entry for entry, _ in entries}
    return next((row for row in entries if _is_bridge(row[0], names)), None)


def _is_bridge(entry: str, others: set[str]) -> bool:
    if _INSTALLED.search(entry) or entry.endswith(_SUBMODULE):
        return False
    parent, _, last = entry.rpartition("/")
    if last == "src" and f"{parent}/{_SUBMODULE}" in others:
        return True
    return bool(_OF_BRIDGE.search(last) or (last == "src" and _OF_BRIDGE.search(parent.rpartition("/")[2])))


def _holds(entry: str, root: str) -> bool:
    """Whether an entry of the path is the folder; a relative one is known by its end only."""
    place = posixpath.normpath(root)
    return place == entry or (not entry.startswith(("/", "~", "$")) and place.endswith(f"/{entry.removeprefix('./')}"))

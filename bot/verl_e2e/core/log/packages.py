"""From where packages under test were imported, by the paths in warnings and tracebacks."""

import re

from verl_e2e.core.log.lines import Line
from verl_e2e.core.model.facts import PackagePath

MAX_PATHS = 64
# Ray's copy of a working directory says nothing of where it was copied from.
_COPIED = re.compile(r"/(?:working_dir_files|py_modules_files)/")
_PATH = re.compile(
    r"(?<![\w./$~-])(?P<root>(?:/|~/|\$\w+/)[^\s:'\"(),]{0,400}?)/megatron/(?P<package>bridge|core)/[\w/.-]{1,200}\.py\b"
)


class PackageBook:
    """The roots of each package, each with the first line of each kind of process that shows it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, bool], PackagePath] = {}

    def take(self, line: Line) -> None:
        """Take a line that may hold a path of a package."""
        traced = line.text.lstrip().startswith('File "')
        for match in _PATH.finditer(line.text[:4096]):
            package, root = f"megatron.{match['package']}", match["root"]
            key = (package, root, line.actor, traced)
            if len(self._found) < MAX_PATHS and key not in self._found and not _COPIED.search(match[0]):
                self._found[key] = PackagePath(package, root, line.excerpt(), line.actor, traced)

    def all(self) -> tuple[PackagePath, ...]:
        """Every root of every package."""
        return tuple(self._found.values())

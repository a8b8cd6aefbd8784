"""Which files of a head a run can read, as digests: two heads with one digest run the same code of Bridge.

What decides is the whole tree and never the change: a file that nothing names counts, and what is left out is left out
for a reason of the policy or because no chain of imports from verl leads there.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.named_files import name_tails
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.standins import is_among


@dataclass(frozen=True, slots=True)
class ReachedFiles:
    """What the jobs of one plan can read of its head."""

    # SHA-256 of all files that a run of verl can read, with their contents; empty where that is not known.
    digest: str = ""
    # The same together with what the Bridge tests of the plan can read; empty where that is not known.
    with_tests: str = ""
    # The source files below `roots` that the digests cover.
    sources: frozenset[str] = frozenset()
    # The import roots of the policy.
    roots: tuple[str, ...] = ()

    def digest_for(self, *, tests: bool) -> str:
        """The digest for a job with or without Bridge tests, empty where it is not known."""
        return self.with_tests if tests else self.digest

    def outside(self, executed: Iterable[str]) -> str:
        """The first executed source that no digest covers, empty for none: then reach was not followed far enough."""
        missed = (path for path in executed if path.startswith(self.roots) and path not in self.sources)
        return min(missed, default="") if self.roots else ""


NOT_KNOWN = ReachedFiles()


def digest_of(files: Mapping[str, str], paths: Iterable[str]) -> str:
    """SHA-256 over paths, each with the id of its content."""
    text = "\0".join(f"{path}\0{files[path]}" for path in sorted(set(paths)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class FilesOfTree:
    """The files of a tree by what has a run of verl read them.

    - a module of the package under test: if it is imported
    - anything else below the import roots, as data and packages that shadow others
    - anything elsewhere that the policy does not set aside, or that an imported source names
    """

    def __init__(self, files: Iterable[str], policy: Policy, is_set_aside: Callable[[str], bool]) -> None:
        roots = policy.reach.roots if policy.reach is not None else ()
        paths = tuple(files)
        common = {name for name, count in Counter(name_tails(path)[0] for path in paths).items() if count > 1}
        # The files that are modules of the package under test.
        self.modules = frozenset(_modules_of_package(paths, policy))
        self._always: set[str] = set()
        # Those that count where a source names them: by the name that it must have.
        self._named: dict[str, list[str]] = {}
        for path in paths:
            if path in self.modules:
                continue
            if is_among(path, roots) or not is_set_aside(path):
                self._always.add(path)
                continue
            name, with_folder = name_tails(path)
            if name not in common and not name.endswith(".py"):
                self._named.setdefault(name, []).append(path)
            elif "/" in path:
                # Several files have this name.
                self._named.setdefault(with_folder, []).append(path)

    def read_by_run(self, imported: frozenset[str], named: Iterable[str]) -> frozenset[str]:
        """The files that a run can read; `imported` are the sources that verl's entries import, `named` what they name.

        A name is that of a file with its folder, and stands for the file's name by itself too.
        """
        names = {tail for name in named for tail in name_tails(name)}
        found = (path for name in names & self._named.keys() for path in self._named[name])
        return frozenset((*self._always, *(self.modules & imported), *found))


def _modules_of_package(files: Iterable[str], policy: Policy) -> Iterator[str]:
    reach = policy.reach
    if reach is None:
        return
    packages = tuple(f"{root}{reach.package.replace('.', '/')}/" for root in reach.roots)
    yield from (path for path in files if path.startswith(packages) and module_name(path, reach.roots) is not None)

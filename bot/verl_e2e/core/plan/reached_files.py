"""Which files of a head a run can read, as digests: two heads with one digest run the same code of Bridge.

What decides is the whole tree and never the change: a file that nothing names counts, and what is left out is left out
for a reason of the policy or because no chain of imports from verl leads there.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.standins import is_among

# Every byte that is not part of a file's path becomes a blank, and either quote the same one.
_PATHS_ALONE = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_./-") else 34 if byte in b"'\"" else 32
    for byte in range(256)
)
# TorchScript, Triton, CUTLASS and Numba compile a function that Python never enters, by its source or its byte code.
_COMPILERS = re.compile(
    rb"jit\.script|numba|triton|cutlass|(?:from|import)\s+torch\.jit\b|from\s+torch\s+import\s+(?:\([^)]*|[^\n(]*)\bjit\b"
)


@dataclass(frozen=True, slots=True)
class ReachedFiles:
    """What the jobs of one plan can read of its head."""

    # SHA-256 of all files that a run of verl can read, with their contents; empty where that is not known.
    digest: str = ""
    # The same together with what the Bridge tests of the plan can read; empty where that is not known.
    with_tests: str = ""
    # The same two without the modules of the package under test and the files of requirements, which are compared by
    # what they hold; empty too where a source may be compiled in a way that no record of a run shows.
    besides: str = ""
    besides_with_tests: str = ""
    # The source files below `roots` that the digests cover.
    sources: frozenset[str] = frozenset()
    # The import roots of the policy.
    roots: tuple[str, ...] = ()

    def digest_for(self, *, tests: bool) -> str:
        """The digest for a job with or without Bridge tests, empty where it is not known."""
        return self.with_tests if tests else self.digest

    def besides_for(self, *, tests: bool) -> str:
        """The digest for such a job of all but the modules of the package, empty where it is not known."""
        return self.besides_with_tests if tests else self.besides

    def outside(self, executed: Iterable[str]) -> str:
        """The first executed source that no digest covers, empty for none: then reach was not followed far enough."""
        missed = (path for path in executed if path.startswith(self.roots) and path not in self.sources)
        return min(missed, default="") if self.roots else ""


NOT_KNOWN = ReachedFiles()


def digest_of(files: Mapping[str, str], paths: Iterable[str]) -> str:
    """SHA-256 over paths, each with the id of its content."""
    text = "\0".join(f"{path}\0{files[path]}" for path in sorted(set(paths)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def may_be_compiled(contents: Iterable[bytes]) -> bool:
    """Whether sources may have functions compiled that run though Python never enters them."""
    return any(_COMPILERS.search(content) for content in contents)


def named_files(contents: Iterable[bytes]) -> frozenset[str]:
    """The names of files with which a text in sources ends: each by itself, and with the folder that it is in.

    Comments and what documentation says of a file are left out: there no quote follows the name.
    """
    words: set[bytes] = set()
    for content in contents:
        words.update(content.translate(_PATHS_ALONE).split())
    quoted = (part for word in words if b'"' in word and b"." in word for part in word.split(b'"')[:-1])
    names = (name.decode("ascii").strip("./") for name in quoted if b"." in name)
    return frozenset(tail for name in names for tail in _tails(name))


def _tails(path: str) -> tuple[str, str]:
    parts = path.rsplit("/", 2)
    return parts[-1], "/".join(parts[-2:])


def read_by_run(files: Iterable[str], policy: Policy, imported: frozenset[str], named: frozenset[str]) -> Iterator[str]:
    """The files that a run of verl can read; `imported` are the sources that verl's entries import.

    - a module of the package under test: if it is imported
    - anything else below the import roots, as data and packages that shadow others
    - anything elsewhere that the policy does not set aside, or that an imported source names (`named`)
    """
    roots = policy.reach.roots if policy.reach is not None else ()
    files = tuple(files)
    common = {name for name, count in Counter(_tails(path)[0] for path in files).items() if count > 1}
    modules = frozenset(modules_of_package(files, policy))
    for path in files:
        if path in modules:
            counts = path in imported
        else:
            counts = is_among(path, roots) or _is_named(path, named, common) or not _is_set_aside(path, policy)
        if counts:
            yield path


def modules_of_package(files: Iterable[str], policy: Policy) -> Iterator[str]:
    """The files that are modules of the package under test."""
    reach = policy.reach
    if reach is None:
        return
    packages = tuple(f"{root}{reach.package.replace('.', '/')}/" for root in reach.roots)
    yield from (path for path in files if path.startswith(packages) and module_name(path, reach.roots) is not None)


def _is_set_aside(path: str, policy: Policy) -> bool:
    return any(not exemption.unless_reached and exemption.paths.match(path) for exemption in policy.exempt)


def _is_named(path: str, named: frozenset[str], common: set[str]) -> bool:
    """Whether sources name a file: with its folder, or by a name that no other file has."""
    name, with_folder = _tails(path)
    if name in common or name.endswith(".py"):
        return "/" in path and with_folder in named
    return name in named

"""Changed names that may be imported in the place of something else: links and their targets, shadows, compiled files.

No content tells what such a path does, so no name excuses it.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from verl_e2e.core.reach.program import module_name

_COMPILED = (".so", ".pyd", ".pyc", ".pyo", ".pth", ".dll", ".dylib", ".egg-link", ".zip", ".egg")
_MOST_LINKS = 40
_LINK = "it is a link or a submodule among the sources, at base or head"
_OUTSIDE = "it lies next to the package under test, where Python looks for other packages"
_CACHED = "Python would run it in the place of a source file"
_ATTRIBUTES = "it changes what a checkout of the sources holds, whatever they say"
_CASE = "its name differs from another by the case of letters alone"


@dataclass(frozen=True, slots=True)
class TreeNames:
    """The names of one commit."""

    # The plain files below the import roots.
    files: frozenset[str]
    # Every symbolic link with what it points to, and every submodule with an empty text.
    links: Mapping[str, str]


def stand_ins(
    changed: Iterable[str], sides: tuple[TreeNames, TreeNames], roots: tuple[str, ...], package: str
) -> dict[str, str]:
    """The changed names that may stand in for something that is imported, each with the reason."""
    found: dict[str, str] = {}
    names = tuple(changed)
    for tree in sides:
        found.update(_through_links(names, tree.links, roots))
    doubled = [*_shadows(sides[0].files, roots), *_shadows(sides[1].files, roots)]
    cases = _case_variants(sides[1].files)
    for name in names:
        reason = _by_name(name, roots, package)
        if not reason and any(name in pair for pair in doubled):
            reason = (
                f"a module and a package have one name: {' and '.join(sorted(next(p for p in doubled if name in p)))}"
            )
        if not reason and name in cases:
            reason = _CASE
        if reason:
            found.setdefault(name, reason)
    return found


def _by_name(name: str, roots: tuple[str, ...], package: str) -> str:
    root = next((root for root in roots if name.startswith(root)), None)
    if name.rpartition("/")[2] == ".gitattributes" and is_among(name.rpartition("/")[0] or ".", roots):
        return _ATTRIBUTES
    if root is None:
        return ""
    if not name.startswith(f"{root}{package.replace('.', '/')}/"):
        return _OUTSIDE
    return _CACHED if "/__pycache__/" in name or any(ending in f"{name}/" for ending in _endings()) else ""


def _endings() -> Iterator[str]:
    return (f"{item}/" for item in _COMPILED)


def _through_links(
    names: tuple[str, ...], links: Mapping[str, str], roots: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """The changed names that are links among the sources, or that such a link leads to."""
    todo = [link for link in links if is_among(link, roots)]
    for name in names:
        if name in todo:
            yield name, _LINK
    followed: set[str] = set()
    while todo and len(followed) < _MOST_LINKS:
        link = todo.pop()
        if link in followed:
            continue
        followed.add(link)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(link), links[link])) if links[link] else ""
        for name in names if target else ():
            if _overlap(name, target):
                yield name, f"{link} links to {target}, which is imported under that name"
        todo.extend(item for item in links if target and _overlap(item, target))
    if todo:
        yield from ((name, "too many links lead to each other among the sources") for name in names)


def is_among(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a path lies below an import root, or is a folder around one."""
    return any(f"{path}/".startswith(root) or root.startswith(f"{path}/") or path == "." for root in roots)


def _overlap(text: str, other: str) -> bool:
    """Whether two paths are the same, or one is a folder around the other."""
    return other in {"", "."} or f"{text}/".startswith(f"{other}/") or f"{other}/".startswith(f"{text}/")


def _shadows(files: frozenset[str], roots: tuple[str, ...]) -> Iterator[frozenset[str]]:
    """Pairs of files that give one module: Python takes one of them."""
    found: dict[str, str] = {}
    for path in files:
        name = module_name(path, roots)
        if name is not None:
            other = found.setdefault(name, path)
            if other != path:
                yield frozenset({other, path})


def _case_variants(files: frozenset[str]) -> frozenset[str]:
    """The files whose name, or a folder of it, differs from another one by case alone."""
    spelled: dict[str, set[str]] = {}
    for path in files:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            whole = "/".join(parts[:end])
            spelled.setdefault(whole.casefold(), set()).add(whole)
    doubled = {item for several in spelled.values() if len(several) > 1 for item in several}
    if not doubled:
        return frozenset()
    return frozenset(path for path in files if any(_overlap(path, text) for text in doubled))

"""Changed paths of which no source tells what they do: requirements, and names that stand in for what is imported.

A link, a shadow, a compiled file or an attribute may be imported in the place of something else, so no name excuses it.
"""

import posixpath
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_e2e.core.reach.program import module_name

_COMPILED = (".so", ".pyd", ".pyc", ".pyo", ".pth", ".dll", ".dylib", ".egg-link", ".zip", ".egg")
_MOST_LINKS = 40
_LINK = "it is a link or a submodule among the sources, at base or head"
_OUTSIDE = "it lies next to the package under test, where Python looks for other packages"
_CACHED = "Python would run it in the place of a source file"
_ATTRIBUTES = "it changes what a checkout of the sources holds, whatever they say"


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
    for name in names:
        reason, root = "", next((root for root in roots if name.startswith(root)), None)
        folder, _, own = name.rpartition("/")
        if own == ".gitattributes" and is_among(folder or ".", roots):
            reason = _ATTRIBUTES
        elif root is not None and not name.startswith(f"{root}{package.replace('.', '/')}/"):
            reason = _OUTSIDE
        elif root is not None and ("/__pycache__/" in name or any(f"{end}/" in f"{name}/" for end in _COMPILED)):
            reason = _CACHED
        elif pair := next((pair for pair in doubled if name in pair), None):
            reason = f"a module and a package have one name: {' and '.join(sorted(pair))}"
        if reason:
            found.setdefault(name, reason)
    return found


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


# What describes the project to people, and the lists whose entries `changed_requirements` compares.
_DESCRIPTION = frozenset(
    {"authors", "maintainers", "description", "readme", "keywords", "classifiers", "urls", "license", "license-files"}
    | {"dependencies", "optional-dependencies"}
)
_LISTS_OF_UV = ("override-dependencies", "constraint-dependencies", "build-constraint-dependencies", "dev-dependencies")
_LISTS_OF_LOCK = ("overrides", "constraints", "build-constraints", "requirements")
_CHECKING_TOOLS = frozenset(
    {"ruff", "pytest", "mypy", "isort", "black", "coverage", "codespell", "pyright", "interrogate", "pylint"}
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def changed_requirements(old: bytes | None, new: bytes | None, watched: Iterable[str]) -> tuple[str, ...] | None:
    """The watched requirements that differ; None when a side is not TOML.

    In a project file their text, source and override count with the list that has them, extras and groups included; in
    a lock file all that it says of them but for times: version, source, addresses, hashes and their own requirements.
    """
    try:
        before, after = _requirements(old), _requirements(new)
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    wanted = {_key(name) for name in watched}
    return tuple(sorted(name for name in wanted if before.get(name) != after.get(name)))


def same_build(old: bytes | None, new: bytes | None) -> bool:
    """Whether two project or lock files say the same of how packages are built and found.

    What may differ is named: requirements, which are compared one by one, tools that only check or test, and what
    describes the project to people.
    """
    try:
        before, after = (_build(tomllib.loads((text or b"").decode("utf-8"))) for text in (old, new))
    except (ValueError, TypeError, RecursionError):
        return False
    return before == after


def _build(document: dict[str, Any]) -> dict[str, Any]:
    tool = document.get("tool", {})
    tables = [document.get(name, {}) for name in ("project", "dependency-groups", "manifest")]
    if not all(isinstance(table, dict) for table in (tool, *tables)) or not isinstance(tool.get("uv", {}), dict):
        return document
    project, groups, manifest = tables
    rest = {key: value for key, value in document.items() if key not in {"package", "revision"}}
    rest["project"] = _without(project, _DESCRIPTION)
    rest["tool"] = _without(tool, _CHECKING_TOOLS) | {"uv": _without(tool.get("uv", {}), {*_LISTS_OF_UV, "sources"})}
    rest["manifest"] = _without(manifest, _LISTS_OF_LOCK)
    # A group holds requirements, which are texts, and tables that include other groups.
    rest["dependency-groups"] = {
        name: [entry for entry in group if not isinstance(entry, str)] for name, group in groups.items()
    }
    return rest


def _without(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


# A head is the base of the next change.
@lru_cache(maxsize=4)
def _requirements(text: bytes | None) -> Mapping[str, set[str]]:
    document: dict[str, Any] = tomllib.loads(text.decode("utf-8")) if text else {}
    # Every requirement, with the list that it is in.
    project, manifest = document.get("project", {}), document.get("manifest", {})
    uv = document.get("tool", {}).get("uv", {})
    tables = (("extra", project.get("optional-dependencies", {})), ("group", document.get("dependency-groups", {})))
    lists = [
        ("dependencies", project.get("dependencies", ())),
        ("package", _without_times(document.get("package", []))),
    ]
    lists += [(f"{kind} {name}", entries) for kind, table in tables for name, entries in table.items()]
    lists += [(name, uv.get(name, ())) for name in _LISTS_OF_UV]
    lists += [(name, manifest.get(name, ())) for name in _LISTS_OF_LOCK]
    lists += [("source", [{"name": name, "is": source}]) for name, source in uv.get("sources", {}).items()]
    found: dict[str, set[str]] = {}
    for where, requirement in ((where, entry) for where, entries in lists for entry in entries):
        name = requirement.get("name", "") if isinstance(requirement, dict) else requirement
        match = _NAME.match(name.strip())
        if match:
            found.setdefault(_key(match[0]), set()).add(f"{where}: {requirement}")
    return found


def _without_times(part: Any) -> Any:
    """Part of a lock file without the times at which files were uploaded."""
    if isinstance(part, list):
        return [_without_times(item) for item in part]
    if isinstance(part, dict):
        return {key: _without_times(value) for key, value in part.items() if key != "upload-time"}
    return part


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""Which requirements a change of `pyproject.toml` or `uv.lock` alters, of those that a run of verl imports."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

# The requirements among these are compared by `changed_requirements`.
_DESCRIPTION = frozenset(
    {"authors", "maintainers", "description", "readme", "keywords", "classifiers", "urls", "license", "license-files"}
    | {"dependencies", "optional-dependencies"}
)
_CHECKING_TOOLS = frozenset(
    {"ruff", "pytest", "mypy", "isort", "black", "coverage", "codespell", "pyright", "interrogate", "pylint", "uv"}
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def changed_requirements(old: bytes | None, new: bytes | None, watched: Iterable[str]) -> tuple[str, ...] | None:
    """The watched requirements that differ; None when a side is not TOML.

    In a project file their text, source or override counts, in a lock file the locked version and its source.
    """
    try:
        before, after = _requirements(old), _requirements(new)
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    wanted = {_key(name) for name in watched}
    return tuple(sorted(name for name in wanted if before.get(name) != after.get(name)))


def same_build(old: bytes | None, new: bytes | None) -> bool:
    """Whether two project files say the same of how the package is built and found; requirements are not looked at.

    What may differ is named: tools that only check or test, and what describes the project to people.
    """
    try:
        before, after = (tomllib.loads((text or b"").decode("utf-8")) for text in (old, new))
    except (ValueError, RecursionError):
        return False
    return _build(before) == _build(after)


def _build(document: dict[str, Any]) -> dict[str, Any]:
    project, tool = document.get("project", {}), document.get("tool", {})
    if not isinstance(project, dict) or not isinstance(tool, dict):
        return document
    rest = {key: value for key, value in document.items() if key not in {"project", "tool", "dependency-groups"}}
    rest["project"] = {key: value for key, value in project.items() if key not in _DESCRIPTION}
    rest["tool"] = {key: value for key, value in tool.items() if key not in _CHECKING_TOOLS}
    return rest


# A head is the base of the next change.
@lru_cache(maxsize=4)
def _requirements(text: bytes | None) -> Mapping[str, set[str]]:
    document: dict[str, Any] = tomllib.loads(text.decode("utf-8")) if text else {}
    if "package" in document:
        return _locked(document["package"])
    uv = document.get("tool", {}).get("uv", {})
    listed = [*document.get("project", {}).get("dependencies", [])]
    listed += [*uv.get("override-dependencies", []), *uv.get("constraint-dependencies", [])]
    found: dict[str, set[str]] = {}
    for requirement in listed:
        match = _NAME.match(requirement)
        if match:
            found.setdefault(_key(match[0]), set()).add(requirement)
    for name, source in uv.get("sources", {}).items():
        found.setdefault(_key(name), set()).add(repr(source))
    return found


def _locked(packages: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package in packages:
        pinned = f"{package.get('version')} {package.get('source')}"
        found.setdefault(_key(package.get("name", "")), set()).add(pinned)
    return found


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

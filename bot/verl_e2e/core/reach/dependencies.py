"""Which requirements a change of `pyproject.toml` or `uv.lock` alters, of those that a run of verl imports."""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

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
    found: dict[str, set[str]] = {}
    for where, requirement in _listed(document):
        name = requirement.get("name", "") if isinstance(requirement, dict) else requirement
        match = _NAME.match(name.strip())
        if match:
            found.setdefault(_key(match[0]), set()).add(f"{where}: {requirement}")
    return found


def _listed(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every requirement, with the list that it is in."""
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
    for where, entries in lists:
        yield from ((where, entry) for entry in entries)
    yield from (("source", {"name": name, "is": source}) for name, source in uv.get("sources", {}).items())


def _without_times(part: Any) -> Any:
    """Part of a lock file without the times at which files were uploaded."""
    if isinstance(part, list):
        return [_without_times(item) for item in part]
    if isinstance(part, dict):
        return {key: _without_times(value) for key, value in part.items() if key != "upload-time"}
    return part


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

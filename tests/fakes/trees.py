"""A repository in memory: commits are plain dictionaries of files, and contents may be absent."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_e2e.app.plan_change import Planner, uses_at
from verl_e2e.core.model.change import Change, ChangedPath, Merge, PathStatus
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy

Kept = TypeVar("Kept")
Files = Mapping[str, str | bytes]


class LinkTo(str):
    """The content of a symbolic link."""

    __slots__ = ()


def sha(name: str) -> str:
    """A commit id that is the same for the same name."""
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


@dataclass
class FakeTrees:
    """A `SourceTrees`: every commit by its name, without history; `absent` are paths whose content is not here."""

    commits: Mapping[str, Files]
    absent: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)

    def change(self, base: str, head: str) -> Change:
        unknown = [revision for revision in (base, head) if revision not in self.commits]
        if unknown:
            raise UserError(f"commit {unknown[0]} is not here")
        old, new = self.commits[base], self.commits[head]
        moved = {source: target for source, target in self.renames.items() if source in old and target in new}
        paths = [ChangedPath(target, PathStatus.RENAMED, source) for source, target in moved.items()]
        for path in sorted(old.keys() | new.keys()):
            if path in moved or path in moved.values() or old.get(path) == new.get(path):
                continue
            kind = PathStatus.ADDED if path not in old else PathStatus.REMOVED if path not in new else None
            paths.append(ChangedPath(path, kind or PathStatus.MODIFIED))
        return Change(base, head, base, tuple(paths))

    def merged(self, base: str, head: str) -> Merge:
        """There is no history, so no base has moved on."""
        return Merge(problem=f"{base} and {head} have no history")

    def read_blob(self, revision: str, path: str) -> bytes | None:
        content = self.commits[revision].get(path)
        return _bytes(content) if content is not None else None

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        files = {path: text for path, text in self.commits[revision].items() if not _is_link(text)}
        return {path: _id(path, text) for path, text in files.items() if path.startswith(under)}

    def links(self, revision: str) -> Mapping[str, str]:
        return {path: _id(path, text) for path, text in self.commits[revision].items() if _is_link(text)}

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        known = {
            _id(path, text): None if path in self.absent else _bytes(text)
            for files in self.commits.values()
            for path, text in files.items()
        }
        return {identifier: known.get(identifier) for identifier in ids}


class FakeSummaries:
    """A `SummaryStore` in memory that shows what it was given."""

    def __init__(self) -> None:
        self.values: dict[type, dict[str, Any]] = defaultdict(dict)

    def load(self, kind: type[Kept], keys: Collection[str]) -> Mapping[str, Kept]:
        return {key: self.values[kind][key] for key in keys if key in self.values[kind]}

    def save(self, kind: type[Kept], values: Mapping[str, Kept]) -> None:
        self.values[kind].update(values)


def _is_link(text: str | bytes) -> bool:
    return isinstance(text, LinkTo)


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _id(path: str, text: str | bytes) -> str:
    return hashlib.sha1(_bytes(path) + b"\0" + _bytes(text), usedforsecurity=False).hexdigest()


def planner_over(trees: FakeTrees, policy: Policy, summaries: FakeSummaries | None = None) -> Planner:
    """A planner of these trees, whose commit `verl` uses them."""
    assert policy.reach is not None
    return Planner(trees, uses_at(trees, "verl", policy.reach, "verl as the test has it"), summaries or FakeSummaries())

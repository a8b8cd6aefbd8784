"""A clone in a child process: it reads by itself, and has its parent fetch, which alone has a token."""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from verl_e2e.core.model.errors import LimitError
from verl_e2e.git.clone import Bounds, Clone, Wanted

_MAX_CONTENTS = 100_000
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

Ask = Callable[[object], Any]


class AskingClone(Clone):
    """A `Clone` that asks for what it does not have; `ask` reaches `answer_for` in the parent."""

    def __init__(self, place: Path, bounds: Bounds, ask: Ask) -> None:
        super().__init__(place, bounds)
        self._ask = ask

    def bring_commits(self, wanted: Collection[Wanted]) -> None:
        """See that commits are here; ForgeError."""
        if self._missing([commit.sha for commit in wanted]):
            self._ask(("commits", tuple((commit.name, commit.sha, commit.spare) for commit in wanted)))

    def bring_contents(self, ids: Collection[str]) -> frozenset[str]:
        """See that contents are here; gives the ids that the origin does not have. ForgeError, DamagedError."""
        if len(ids) > _MAX_CONTENTS:
            raise LimitError("the number of files that it has to read", f"{_MAX_CONTENTS:,}")
        return frozenset(self._ask(("contents", tuple(ids))))

    def renew(self, generation: int) -> None:
        """Have a damaged clone removed."""
        self._ask(("renew", generation))


def answer_for(clone: Clone, allowed: Collection[Wanted]) -> Callable[[Any], object]:
    """What answers the questions of an `AskingClone`: it may have these commits, and contents by their ids."""
    known = {(commit.name, commit.sha, commit.spare): commit for commit in allowed}

    def answer(question: Any) -> object:
        match question:
            case ("commits", tuple(rows)) if all(row in known for row in rows):
                clone.bring_commits([known[row] for row in rows])
                return None
            case ("contents", tuple(ids)) if len(ids) <= _MAX_CONTENTS and all(map(_is_id, ids)):
                return tuple(clone.bring_contents(ids))
            case ("renew", int(generation)):
                clone.renew(generation)
                return None
            case _:
                raise ValueError("a child process asked for what it may not have")

    return answer


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None

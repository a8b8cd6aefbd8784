"""Trees whose functions can be looked into; what was read of a content is kept, as most of it is the same next time."""

from collections.abc import Mapping, Sequence

from verl_e2e.core.reach.conditions.code_tree import CodeTree
from verl_e2e.core.reach.conditions.flow import Flows, read_flows
from verl_e2e.core.reach.entries import UseCondition
from verl_e2e.core.reach.program import Program
from verl_e2e.core.reach.walk import Reach
from verl_e2e.ports import SourceTrees

# Files of which the syntax tree is kept, and contents: a whole tree of what is imported, and what changes meanwhile.
_MOST_FLOWS, _MOST_CONTENTS = 256, 1_500


class CodeTrees:
    """Reads the functions of files of one repository."""

    def __init__(self, repository: SourceTrees, outside: Sequence[UseCondition] = ()) -> None:
        self._repository = repository
        # The conditions of the other program's uses.
        self._outside = outside
        self._known: dict[str, Flows | None] = {}
        self._contents: dict[str, bytes | None] = {}

    def of(self, program: Program, reach: Reach, files: Mapping[str, str]) -> CodeTree:
        """A tree by its program; `files` gives the id of each file's content."""
        paths = (program.paths.get(module, "") for module in reach.imported)
        imported = [files[path] for path in paths if path in files]

        def flows(path: str) -> Flows | None:
            return self._flows(files[path], imported) if path in files else None

        return CodeTree(program, reach, flows, self._outside)

    def _flows(self, blob: str, imported: list[str]) -> Flows | None:
        flows = self._known.pop(blob) if blob in self._known else read_flows(self._content(blob, imported))
        self._known[blob] = flows
        while len(self._known) > _MOST_FLOWS:
            del self._known[next(iter(self._known))]
        return flows

    def _content(self, blob: str, imported: list[str]) -> bytes | None:
        """One content, read together with those that are likely to be asked for next."""
        if blob not in self._contents:
            if len(self._contents) > _MOST_CONTENTS:
                self._contents.clear()
            missing = {item for item in (blob, *imported) if item not in self._contents}
            self._contents.update(self._repository.read_objects(sorted(missing)))
        return self._contents[blob]

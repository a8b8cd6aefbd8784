"""What is to be reconciled, by name: enough to read the rest again."""

from pydantic import TypeAdapter

from verl_e2e.core.pulls.pull import MergeGroup, PullRef

Reference = PullRef | MergeGroup
_GROUP = TypeAdapter(MergeGroup)


def reference_text(reference: Reference) -> str:
    """The reference as text that `read_reference` reads: the same text for the same reference."""
    if isinstance(reference, PullRef):
        return str(reference)
    return _GROUP.dump_json(reference).decode()


def read_reference(text: str) -> Reference:
    """A reference from its text; ValueError for anything else."""
    if text.startswith("{"):
        return _GROUP.validate_json(text)
    repository, _, number = text.rpartition("#")
    if not repository or not number.isdigit():
        raise ValueError(f"{text!r} is not a reference")
    return PullRef(repository, int(number))

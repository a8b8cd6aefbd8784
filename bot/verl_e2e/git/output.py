"""Parses what git prints. Names are kept exactly: bytes that are not UTF-8 become lone surrogates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SUBMODULE_MODE = "160000"
# The command that asks for the unpacked bytes of objects; its input is `id_lines`.
SIZES = ("cat-file", "--batch-check=%(objectname) %(objectsize)")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a commit's tree."""

    mode: str
    """As git prints it: `100644` and `100755` are files, `120000` a symbolic link, `160000` a submodule."""
    kind: str
    """`blob`, `tree` or `commit`."""
    id: str
    """The object's id."""
    path: str
    """From the top of the repository."""


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """One path that differs between two trees; a side that does not exist has a mode and an id of zeros."""

    old_mode: str
    new_mode: str
    old_id: str
    new_id: str
    status: str
    """One letter: A, M, D, R, C or T."""
    path: str
    """The path after the change, the path before it for a removal."""
    old_path: str | None = None
    """Of a rename or copy the path that it came from."""


def id_lines(ids: Iterable[str]) -> bytes:
    """Object ids as `cat-file` and `fetch --stdin` read them."""
    return "".join(f"{object_id}\n" for object_id in ids).encode("ascii")


def tree_entries(output: bytes) -> Iterator[TreeEntry]:
    """Parse `ls-tree -z`: mode, type and object, a tab, the name."""
    for row in filter(None, output.split(b"\0")):
        meta, _, name = row.partition(b"\t")
        mode, kind, object_id = meta.decode("ascii").split(" ")
        yield TreeEntry(mode, kind, object_id, _name(name))


def diff_entries(output: bytes) -> Iterator[DiffEntry]:
    """Parse `diff-tree -r -z --raw --no-abbrev`: modes, objects and status, the name, of a rename one more name."""
    fields = iter(output.split(b"\0"))
    for head in filter(None, fields):
        old_mode, new_mode, old_id, new_id, status = head.decode("ascii").removeprefix(":").split(" ")
        first = _name(next(fields))
        renamed = status[0] in "RC"
        path, old_path = (_name(next(fields)), first) if renamed else (first, None)
        yield DiffEntry(old_mode, new_mode, old_id, new_id, status[0], path, old_path)


def object_sizes(output: bytes) -> dict[str, int]:
    """Parse what `SIZES` prints, without the objects that are missing."""
    rows = (line.split(" ") for line in output.decode("ascii", "replace").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def blob_contents(output: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse `cat-file --batch`: `id type size`, the content, a newline; or `id missing`. Gives ids and contents."""
    start = 0
    while (end := output.find(b"\n", start)) >= 0:
        head = output[start:end].split(b" ")
        start = end + 1
        if len(head) == 3 and head[2].isdigit():
            size = int(head[2])
            content = output[start : start + size]
            if head[1] == b"blob" and len(content) == size:
                yield head[0].decode("ascii"), content
            start += size + 1


def status_paths(output: bytes) -> Iterator[str]:
    """Parse `status --porcelain=v1 -z --no-renames`: two letters, a blank, the name."""
    return (_name(row[3:]) for row in output.split(b"\0") if row)


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")

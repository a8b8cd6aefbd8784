"""Small changes of differently shaped Python, each with a call that goes around what differs and one that does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHAPES_FILE = Path(__file__).parents[1] / "fixtures" / "changed-shapes.txt"


class Shape(NamedTuple):
    """One change, as `== name`, the lines of a diff with all of the file, `around: code` and `through: code`."""

    name: str
    # The file before and after it.
    before: str
    after: str
    # What runs something of the file and nothing that the change decides.
    around: str
    # What runs all that it decides.
    through: str


def read_shapes() -> Iterator[Shape]:
    """The changes of the file."""
    for part in f"\n{SHAPES_FILE.read_text(encoding='utf-8')}".split("\n== ")[1:]:
        name, *rows, around, through = part.splitlines()
        before, after = ("".join(f"{row[1:]}\n" for row in rows if row[0] in (" ", mark)) for mark in "-+")
        calls = [row.partition(": ")[2].replace("\\n", "\n") for row in (around, through)]
        yield Shape(name, before, after, *calls)


SHAPES = tuple(read_shapes())

"""What a run must execute of a change of one file, as text that a row of a table can hold."""

from textwrap import dedent

from verl_e2e.core.model.execution import ChangedFunction, Side
from verl_e2e.core.reach.diff import compare


def text_of(function: ChangedFunction) -> str:
    """`side symbol: lines !excuse lines`, so that a row of a table can be read."""
    side = "" if function.side is Side.HEAD else "base "
    lines = "".join(f" {line}" for line in function.lines)
    excused = "".join(f" !{item.excuse} {','.join(map(str, item.lines))}" for item in function.excused)
    return f"{side}{function.symbol or '(module)'}:{lines}{excused}"


def changed(old: str, new: str) -> list[str]:
    found = compare(dedent(old).encode(), dedent(new).encode())
    assert not found.problem
    return [text_of(function) for function in found.functions.changed]

"""How a trainer reaches changed code of Megatron-LM in a way of its own, beside verl's."""

from textwrap import dedent

import pytest

from tests.core.reach.programs import entries_of
from verl_e2e.core.reach.bump import own_way
from verl_e2e.core.reach.program import Program, module_name
from verl_e2e.core.reach.reader import summarize

MEGATRON = {
    "megatron/core/optimizer/clip.py": """
        from megatron.core.optimizer.sums import total
        def clip(values):
            return total(values)
    """,
    "megatron/core/optimizer/sums.py": "def total(values): ...",
    "megatron/core/moe.py": "def clear(): ...",
    "megatron/core/shared.py": "def finalize(): ...",
}
# No import alone runs it.
CALLED = (False,)
OWN = ("megatron.core.optimizer.clip", "clip")
SHARED = ("megatron.core.shared", "finalize")


def _megatron() -> Program:
    paths = {module_name(path, ("",)) or "": path for path in MEGATRON}
    return Program(paths, lambda path: summarize(dedent(MEGATRON[path]).encode()))


@pytest.mark.parametrize(
    ("path", "symbol", "way"),
    [
        ("megatron/core/optimizer/clip.py", "clip", "caller.py:7"),
        ("megatron/core/optimizer/sums.py", "total", "caller.py:7"),
        ("megatron/core/shared.py", "finalize", ""),
        ("megatron/core/moe.py", "clear", ""),
    ],
)
def test_what_only_its_own_imports_name_or_lead_to_is_its_own(path: str, symbol: str, way: str) -> None:
    found = own_way(_megatron(), entries_of(OWN, SHARED), entries_of(SHARED), ())(path, symbol, *CALLED)
    assert (way in found) if way else not found


def test_a_module_that_cannot_be_read_leaves_its_way_open() -> None:
    way = own_way(_megatron(), entries_of(OWN), (), {"megatron.core.optimizer.sums"})
    assert "could not be followed" in way("megatron/core/moe.py", "clear", *CALLED)

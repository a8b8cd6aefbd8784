"""Small programs whose functions can be looked into, and the wants of a change of them."""

from textwrap import dedent

from tests.core.reach.programs import ROOTS, Files, entries_of, program, version
from verl_e2e.core.model.wants import Want
from verl_e2e.core.reach.conditions.code_tree import CodeTree
from verl_e2e.core.reach.conditions.families import ANY_FAMILY, FamiliesOf
from verl_e2e.core.reach.conditions.flow import FunctionFlow, read_flows
from verl_e2e.core.reach.conditions.wants import wants_of
from verl_e2e.core.reach.effects import Sides, effects_of
from verl_e2e.core.reach.walk import Reach

FILE = "src/lib/core.py"
ENTRY = ("lib.core", "main")


def code_tree(files: Files, *entries: tuple[str, str | None]) -> CodeTree:
    """The tree of these files, entered at `lib.core.main` where nothing else is said."""
    found = program(files)
    known = {path: read_flows(dedent(text).encode()) for path, text in files.items()}
    return CodeTree(found, Reach(found, entries_of(*(entries or (ENTRY,)))), known.get)


def flow_of(source: str, symbol: str = "f") -> FunctionFlow:
    """One function of a source."""
    flows = read_flows(dedent(source).encode())
    assert flows is not None
    found = flows.get(symbol)
    assert found is not None
    return found


def wants(
    base: Files,
    changed: Files,
    *entries: tuple[str, str | None],
    families_of: FamiliesOf = lambda _path: ANY_FAMILY,
) -> tuple[Want, ...]:
    """The wants of a change of some files."""
    head = {**base, **changed}
    trees = code_tree(base, *entries), code_tree(head, *entries)
    both = Sides(trees[0].program, trees[1].program, trees[0].reach, trees[1].reach)
    pairs = [(version(path, base.get(path)), version(path, head.get(path))) for path in changed]
    return wants_of(effects_of(pairs, both, ROOTS).functions, trees, ROOTS, families_of)

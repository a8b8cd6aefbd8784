"""The contract between verl's uses and Bridge, on two small trees."""

from collections.abc import Mapping

import pytest

from verl_e2e.core.plan.contract import ContractFinding, Kind, check_contract
from verl_e2e.core.reach.effects import Sides
from verl_e2e.core.reach.entries import uses_of
from verl_e2e.core.reach.program import Program, module_name
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.walk import Reach

CALLER = b"""
from lib.kit import Maker, keep
try:
    from lib.kit import maybe
except ImportError:
    maybe = None
from lib.never import gone

maker = Maker.load("x", strict=True)
maker.export(1, path="y")
keep(maker, 2)
"""
KIT = """
class Maker:
    @classmethod
    def load(cls, name, strict=False): return cls()
    def export(self, count, path=None): pass
def keep(maker, count): pass
def maybe(): pass
"""


def findings(new: str, old: str = KIT, changed: str = "src/lib/kit.py") -> tuple[ContractFinding, ...]:
    files: tuple[Mapping[str, str], Mapping[str, str]] = ({"src/lib/kit.py": old}, {"src/lib/kit.py": new})
    uses = uses_of({"app.py": CALLER}, "lib", "here")
    programs = [
        Program(
            {name: path for path in side if (name := module_name(path, ("src/",)))},
            lambda path, side=side: summarize(side[path].encode()),  # type: ignore[misc]
        )
        for side in files
    ]
    base, head = programs
    both = Sides(base, head, Reach(base, uses.entries), Reach(head, uses.entries))
    return check_contract(
        uses, both, {changed}, lambda path: files[0][path].encode(), lambda path: files[1][path].encode()
    )


def findings_of(new: str) -> list[tuple[Kind, str, int]]:
    return [
        (finding.kind, finding.name.rpartition(".")[2], finding.line)
        for finding in findings(new)
        if finding.kind is not Kind.SKEW
    ]


def test_what_is_missing_on_both_sides_is_skew() -> None:
    (finding,) = findings(KIT)
    assert (finding.kind, finding.name) == (Kind.SKEW, "lib.never.gone")
    assert str(finding) == "app.py:7 lib.never.gone: missing at base and head alike"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        ("def keep(maker, count)", "def kept(maker, count)", [(Kind.BREAK, "keep", 2)]),
        ("def maybe()", "def perhaps()", [(Kind.GUARDED, "maybe", 4)]),
        ("def export", "def write", [(Kind.BREAK, "export", 10)]),
        ("strict=False", "exact=False", [(Kind.BREAK, "load", 9)]),
        ("def keep(maker, count)", "def keep(maker, count, size)", [(Kind.BREAK, "keep", 11)]),
        ("def keep(maker, count)", "def keep(maker)", [(Kind.BREAK, "keep", 11)]),
        ("def keep(maker, count)", "def keep(maker, *, count)", [(Kind.BREAK, "keep", 11)]),
        ("def keep(maker, count)", "def keep(maker, count, size=1)", []),
        ("def keep(maker, count)", "def keep(*everything)", []),
        ("path=None", "**options", []),
        ("path=None", "path=None, *, force", [(Kind.BREAK, "export", 10)]),
    ),
)
def test_a_use_that_the_head_does_not_serve_is_told_with_the_callers_line(
    old: str, new: str, expected: list[tuple[Kind, str, int]]
) -> None:
    assert old in KIT
    assert findings_of(KIT.replace(old, new)) == expected


WIDER = KIT.replace("def keep(maker, count)", "def keep(maker, count, size)")
WITHOUT_FUNCTION = KIT.replace("def keep(maker, count): pass", "keep = print")


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    (
        # What did not fit before is not the change's, and a file that does not differ is not looked into.
        (WIDER.replace("size)", "depth)"), WIDER, "src/lib/kit.py"),
        (KIT, WIDER, "src/lib/other.py"),
        # Where either side defines no function of the name, no call is held against it.
        (WITHOUT_FUNCTION, WIDER, "src/lib/kit.py"),
        (KIT, WITHOUT_FUNCTION, "src/lib/kit.py"),
    ),
)
def test_a_call_is_held_against_definitions_that_the_change_made_unfit(old: str, new: str, changed: str) -> None:
    assert [finding.kind for finding in findings(new, old, changed)] == [Kind.SKEW]

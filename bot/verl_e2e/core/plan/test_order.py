"""The order of test files near a change: those that name what differs first, then the nearest, families in turn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verl_e2e.core.model.jobs import ChosenTest, WhyChosen
from verl_e2e.core.plan.test_choice import ChoiceOfTests
from verl_e2e.core.reach.program import Summary
from verl_e2e.core.reach.users import ChangedModule

# A test file's use of a changed module: what verl runs of it first, then conversion tests, then the nearest.
Rank = tuple[bool, bool, int, bool, str]
# Measured on one host: a session of 153 tests took 36 s, of which the tests themselves took 3.8 s.
START_S, SECONDS_PER_TEST = 32.2, 0.025


@dataclass(frozen=True, slots=True)
class RankedTest:
    """A test file near the change."""

    test: ChosenTest
    rank: Rank
    # The changed functions that the file names, each by module and symbol.
    named: frozenset[tuple[str, str]] = frozenset()


def identifiers(summary: Summary) -> frozenset[str]:
    """The names, attributes and parts of full names in texts that a file refers to."""
    refs = (ref for symbol in summary.symbols for ref in symbol.refs)
    return frozenset(part for ref in refs for part in ref.replace("()", "").lstrip("!?^=").split(".") if part)


def named_functions(module: ChangedModule, mentioned: frozenset[str]) -> frozenset[tuple[str, str]]:
    """The changed functions of a module that a file names: by their name, or by their class where Python calls them."""
    return frozenset((module.name, symbol) for symbol in module.symbols if _called_by(symbol) in mentioned)


def _called_by(symbol: str) -> str:
    owner, _, name = symbol.rpartition(".")
    return owner.rpartition(".")[2] if owner and name.startswith("__") else name


def ordered(ranked: Iterable[RankedTest]) -> list[ChosenTest]:
    """First the nearest file for each function that one names, then others that name one, then the rest.

    Among equals the folders take turns, so that no family comes first by its name.
    """
    rest = sorted(ranked, key=lambda item: (item.rank[0], not item.named, item.rank))
    first: list[RankedTest] = []
    covered: set[tuple[str, str]] = set()
    for item in rest:
        if item.named - covered:
            first.append(item)
            covered |= item.named
    others = [item for item in rest if item not in first]
    return list(dict.fromkeys(item.test for item in (*first, *_in_turns(others))))


def _in_turns(tests: Iterable[RankedTest]) -> list[RankedTest]:
    """Equally near files so that each folder gives its first one before any gives its second."""
    turns: dict[tuple[object, str], int] = {}
    keyed: list[tuple[tuple[object, ...], RankedTest]] = []
    for item in tests:
        nearness = (item.rank[0], not item.named, *item.rank[1:4])
        place = (nearness, item.test.test.rpartition("/")[0])
        turns[place] = turns.get(place, -1) + 1
        keyed.append(((*nearness, turns[place], item.test.test), item))
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def within_time(tests: Iterable[ChosenTest], counts: Mapping[str, int], choice: ChoiceOfTests) -> list[ChosenTest]:
    """The tests that the change touches, and the next ones while half of the time lasts, for a host may be slower.

    `counts` are the test functions of each file; a file of known duration takes that long.
    """
    left = choice.seconds / 2 - START_S
    kept: list[ChosenTest] = []
    for test in tests:
        left -= choice.durations.get(test.test, counts.get(test.test, 1) * SECONDS_PER_TEST)
        if left < 0 and test.why is not WhyChosen.CHANGED:
            break
        kept.append(test)
    return kept

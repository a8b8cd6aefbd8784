"""The choice of Bridge tests for one change: the policy's own, those that the change touches, and those near it.

Nearest first and bounded: what does not fit is left out and said.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.change import Change, PathStatus, readable
from verl_e2e.core.model.jobs import ChosenTest, WhyChosen
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.policy import ChoiceOfTests, Policy
from verl_e2e.core.plan.reached_files import Marks
from verl_e2e.core.reach.effects import Effects, Idle
from verl_e2e.core.reach.program import Summary, module_name
from verl_e2e.core.reach.users import ChangedModule, Distance, Use

_SHOWN_LEFT_OUT = 3
_MOST_SIBLINGS = 2
_FARTHEST = (True, len(Distance))


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tests, nearest first, the policy's own not among them; `left_out` are sentences on what is not run."""

    tests: tuple[ChosenTest, ...] = ()
    left_out: tuple[str, ...] = ()
    limit_s: int = 300


NO_CHOICE = Choice()


@dataclass(frozen=True, slots=True)
class TestsAtHead:
    """What is known of the test files at the head of a change, by path.

    `present` are all that may be chosen, `uses` how those near the change use changed modules, `marks` what the files
    say of themselves, at least of those that are present and changed or near.
    """

    __test__ = False

    present: frozenset[str] = frozenset()
    uses: Mapping[str, Use] = field(default_factory=dict)
    marks: Mapping[str, Marks] = field(default_factory=dict)
    # The identifiers that files near the change refer to.
    mentioned: Mapping[str, frozenset[str]] = field(default_factory=dict)


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
    found = set()
    for symbol in module.symbols:
        owner, _, name = symbol.rpartition(".")
        if (owner.rpartition(".")[2] if owner and name.startswith("__") else name) in mentioned:
            found.add((module.name, symbol))
    return frozenset(found)


def is_test_file(path: str) -> bool:
    """Whether pytest collects the file by its name when no option says otherwise."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def changed_tests(change: Change, choice: ChoiceOfTests) -> tuple[str, ...]:
    """The test files that the change added or changed, by their names at the head."""
    there = (item for item in change.paths if item.status is not PathStatus.REMOVED and item.submodule is None)
    return tuple(sorted(item.path for item in there if is_test_file(item.path) and choice.paths.match(item.path)))


def changed_modules(change: Change, policy: Policy, effects: Effects | None) -> tuple[ChangedModule, ...]:
    """The modules that differ in effect and that the policy does not exempt whatever reaches them.

    A module that the change removed or renamed counts by its old name too: a test that still imports it must fail.
    """
    if policy.reach is None:
        return ()
    found = []
    for path in change.names():
        name = module_name(path, policy.reach.roots)
        if name is None or classify(path, policy, effects).exemption in policy.exempt:
            continue
        inside = effects.inside(path) if effects is not None else None
        if inside is not None and inside.reason is Idle.NO_EFFECT:
            continue
        symbols = (
            frozenset(effect.symbol for effect in inside.effects if effect.symbol)
            if inside is not None
            else frozenset()
        )
        found.append(ChangedModule(name, path, symbols, reached=inside is None or bool(inside.effects)))
    return tuple(found)


def choose(policy: Policy, changed: Iterable[str], modules: Iterable[ChangedModule], at_head: TestsAtHead) -> Choice:
    """The tests of one change: those it touched, those of import and export where it is about them, then the users.

    `changed` are the changed test files, `modules` the changed modules.
    """
    limit = policy.test_choice.seconds
    listed = {test.partition("::")[0] for test in policy.bridge_tests}
    found: dict[str, ChosenTest] = {}
    there = [path for path in changed if path in at_head.present]
    # Those that use what verl runs of the change come first.
    there.sort(key=lambda path: (at_head.uses[path].rank if path in at_head.uses else _FARTHEST, path))
    touched = [_chosen(path, WhyChosen.CHANGED, "the change adds or changes it", at_head) for path in there]
    for chosen_test in (*touched, *_users(policy.test_choice, modules, at_head)):
        found.setdefault(chosen_test.test, chosen_test)
    unnamed = [test for test in found if readable(test) != test]
    order = [item for item in found.values() if item.test not in {*listed, *unnamed}]
    collectable = [item for item in order if at_head.marks.get(item.test, Marks(1)).tests]
    files = policy.test_choice.files
    most = len(collectable) if files is None else max(0, files - len(policy.bridge_tests))
    counts = {path: marks.tests for path, marks in at_head.marks.items()}
    kept = within_time(collectable[:most], counts, policy.test_choice)
    bound = f"the {limit} seconds" if len(kept) < most else f"the {files}"
    left_out = []
    if empty := [item.test for item in order if item not in collectable]:
        left_out.append(f"No test function in {_first_paths(empty)}.")
    if rest := [item.test for item in collectable[len(kept) :]]:
        more = "more test file is" if len(rest) == 1 else "more test files are"
        left_out.append(f"{len(rest)} {more} near the change, beyond {bound} of the policy: {_first_paths(rest)}.")
    if unnamed:
        left_out.append(f"Not run, because their names are not UTF-8: {_first_paths(unnamed)}.")
    return Choice(tuple(kept), tuple(left_out), limit)


def _users(choice: ChoiceOfTests, modules: Iterable[ChangedModule], at_head: TestsAtHead) -> list[ChosenTest]:
    """Tests that use changed modules, those of import and export first where the module is about that."""
    about = {module.name: module for module in modules if choice.is_conversion(module.path)}
    ranked: list[RankedTest] = []
    for path, use in at_head.uses.items():
        if path not in at_head.present:
            continue
        conversion = use.module.name in about and choice.is_conversion_test(path)
        why = WhyChosen.CONVERSION if conversion else WhyChosen.IMPORTS
        reason = f"a conversion test: {use}" if conversion else str(use)
        # `peft/test_lora.py` is named for `peft/lora.py`.
        mirrors = _stem(path).removeprefix("test_").removesuffix("_test") == _stem(use.module.path)
        rank = (not use.module.reached, not conversion, use.distance, not mirrors, path)
        named = named_functions(use.module, at_head.mentioned.get(path, frozenset()))
        ranked.append(RankedTest(_chosen(path, why, reason, at_head), rank, named))
    conversions = (item.test for item in ranked if item.test.why is WhyChosen.CONVERSION)
    used = {at_head.uses[chosen.test].module.name for chosen in conversions}
    # For a module of import or export that no conversion test uses by name: those of the folder of its name.
    for module in (module for name, module in about.items() if name not in used and module.reached):
        folder = _folder(module.path)
        same = (path for path in sorted(at_head.present) if _folder(path) == folder)
        tests = [path for path in same if choice.is_conversion_test(path)]
        reason = f"a conversion test of {folder}, where {module.name} differs"
        for path in tests[:_MOST_SIBLINGS]:
            rank = (False, False, Distance.THROUGH, True, path)
            ranked.append(RankedTest(_chosen(path, WhyChosen.CONVERSION, reason, at_head), rank))
    return ordered(ranked)


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _folder(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]


def _chosen(path: str, why: WhyChosen, reason: str, at_head: TestsAtHead) -> ChosenTest:
    gpu_count = at_head.marks[path].gpu_count if path in at_head.marks else 0
    return ChosenTest(test=path, why=why, reason=readable(reason), gpu_count=gpu_count)


def _first_paths(paths: list[str]) -> str:
    more = len(paths) - _SHOWN_LEFT_OUT
    return ", ".join(map(readable, paths[:_SHOWN_LEFT_OUT])) + (f" and {more} more" if more > 0 else "")


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
    turns: dict[tuple[object, str], int] = {}
    others: list[tuple[tuple[object, ...], RankedTest]] = []
    for item in (item for item in rest if item not in first):
        nearness = (item.rank[0], not item.named, *item.rank[1:4])
        place = (nearness, item.test.test.rpartition("/")[0])
        turns[place] = turns.get(place, -1) + 1
        others.append(((*nearness, turns[place], item.test.test), item))
    others.sort(key=lambda pair: pair[0])
    return list(dict.fromkeys(item.test for item in (*first, *(item for _, item in others))))


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

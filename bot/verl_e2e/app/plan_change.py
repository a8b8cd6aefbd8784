"""Plan a change with its sources: read both trees, follow verl's entries through them, and judge what differs.

A pull request or a merge group is planned by git objects, in full where these do not tell.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from types import MappingProxyType

from verl_e2e.app.choose_tests import REQUIREMENTS, TestChooser, reached_files
from verl_e2e.app.known_targets import base_text, read_policy
from verl_e2e.config.maps import known_maps, load_maps, other_uses, packaged_cell_map
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump, on_one_line, readable
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, NO_MAPS, ExecutionMaps, in_megatron_lm, merged_maps
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.beside_verl import beside, differing
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.contract import ContractFinding, check_contract
from verl_e2e.core.plan.explain import Explanation, explanations, with_maps, with_must_run
from verl_e2e.core.plan.lint import lint_defects, lint_jobs, lint_policy
from verl_e2e.core.plan.measured_jobs import Measured
from verl_e2e.core.plan.plan import Plan, beyond_head, plan, with_tests
from verl_e2e.core.plan.policy import Policy, ReachPolicy
from verl_e2e.core.plan.reached_files import NOT_KNOWN, ReachedFiles
from verl_e2e.core.pulls.forge import Pull, PullRef, Target
from verl_e2e.core.reach.bump import MEGATRON_CODE, OwnWay, other_files, own_way, with_bump
from verl_e2e.core.reach.carried import CarriedLines, carried_lines
from verl_e2e.core.reach.changed_functions import graph_names
from verl_e2e.core.reach.diff import FileDifference, all_changed, compare, symbols_of
from verl_e2e.core.reach.effects import NO_EFFECT, Effects, Idle, Inside, LookedAt, Sides, Version, effects_of
from verl_e2e.core.reach.entries import USES_VERSION, Uses, uses_of
from verl_e2e.core.reach.other_paths import TreeNames, changed_requirements, is_among, same_build, stand_ins
from verl_e2e.core.reach.program import SUMMARY_VERSION, Node, Program, Summary, module_name
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.users import taken_elsewhere
from verl_e2e.core.reach.walk import Entry, Reach
from verl_e2e.core.text.escape import likely, suggest
from verl_e2e.ports import ChangeSource, ForgeError, Pulls, SourceTrees, SummaryStore


class OtherRepositoryError(UserError):
    """None of the commits holds the policy's package, so nothing that a plan says of them would mean anything."""

    def __init__(self, reach: ReachPolicy, revisions: tuple[str, ...], source: str) -> None:
        roots = " or ".join(reach.roots)
        commits = " or ".join(dict.fromkeys(revision[:12] for revision in revisions))
        super().__init__(
            f"this is not the repository that the policy ({source}) is for: "
            f"there is no package {reach.package} below {roots} at {commits}; "
            f"use the repository that has it, or a policy whose reach.package and reach.roots name this one's"
        )


def require_package(trees: SourceTrees, revisions: Iterable[str], policy: Policy) -> None:
    """OtherRepositoryError unless one of the revisions holds the package whose use the policy follows.

    A fork, a renamed checkout and a bare directory are known by it; a policy that follows no package says nothing.
    """
    named = tuple(revisions)
    if policy.reach is not None and not any(holds_package(trees, revision, policy.reach) for revision in named):
        raise OtherRepositoryError(policy.reach, named, policy.source)


def holds_package(trees: SourceTrees, revision: str, reach: ReachPolicy) -> bool:
    """Whether a commit holds the package below one of its import roots, as a folder or as one file."""
    inner = reach.package.replace(".", "/")
    places = [f"{root.rstrip('/')}/{inner}".lstrip("/") for root in reach.roots]
    return any(
        path.endswith(".py")
        for place in places
        for name in (place, f"{place}.py")
        for path in trees.tree(revision, name)
        if path == f"{place}.py" or path.startswith(f"{place}/")
    )


def maps_of(policy: Policy, source: ChangeSource, commit: str) -> ExecutionMaps:
    """The packaged maps, and in addition those that a policy names, as they are at a commit; UserError.

    A map in which nothing of the policy's package ran is one of another repository and is left out.
    """
    content = source.read_blob(commit, policy.maps) if policy.maps else None
    own = NO_MAPS if content is None else load_maps(content, policy.maps or "")
    every = merged_maps(known_maps(), own).maps
    return ExecutionMaps(maps=tuple(found for found in every if is_about(found.files, policy)))


def is_about(paths: Iterable[str], policy: Policy) -> bool:
    """Whether one of some measured paths is of the package that a policy is about."""
    reach = policy.reach
    folders = tuple(f"{root}{reach.package.replace('.', '/')}/" for root in reach.roots) if reach is not None else ()
    return any(path.startswith(folders) for path in paths)


@cache
def entered_by_runs(package: str, roots: tuple[str, ...]) -> tuple[Entry, ...]:
    """The functions of the package that the packaged maps have, by all names that reach may have for them."""
    found: dict[tuple[str, str], Entry] = {}
    for measured in known_maps().maps:
        for path, symbols in measured.files.items():
            module = module_name(path, roots) or ""
            if f"{module}.".startswith(f"{package}."):
                names = (name for symbol in symbols for name in graph_names(symbol))
                found.update(((module, name), Entry(module, name, job=measured.job)) for name in names)
    return tuple(found.values())


# Two versions of a file; None stands for one that does not exist.
Contents = tuple[bytes | None, bytes | None]


def compared_files(
    pairs: Collection[Contents], store: SummaryStore
) -> Callable[[bytes | None, bytes | None], FileDifference]:
    """`compare` for these pairs, answered from what was kept where it can be."""
    keys: dict[Contents, str] = {}
    for pair in pairs:
        parts = ("" if content is None else hashlib.sha256(content).hexdigest() for content in pair)
        keys[pair] = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    found = dict(store.load(FileDifference, set(keys.values())))
    made = {key: compare(*pair) for pair, key in keys.items() if key not in found}
    # Why two versions could not be compared may be how deep the program was nested just then.
    store.save(FileDifference, {key: difference for key, difference in made.items() if not difference.problem})
    found |= made
    return lambda old, new: found[keys[old, new]]


ABSENT = "its content is not in this repository, as in a partial clone, or is larger than is read"
_KEPT_TREES = 4
# Of the functions that another consumer alone reaches.
_SHOWN_PLACES = 5
_NO_PYTHON = "it is not a Python source"
_BESIDE = "it lies beside the package, where Python looks for modules"
_NO_COMMITS = f"The commits that {MEGATRON_LM_FOLDER} moves between could not be read"
_NOT_MERGED = "What the base branch has brought since the head left it was not looked at, for they could not be merged"
_TOO_DEEP = "the chain of imports or of classes"
_SAMEREQUIREMENTS = Inside(
    (),
    NO_EFFECT,
    "neither a requirement differs that the policy lists in `reach.dependencies`, in any list, extra or group, nor how "
    "packages are built and found",
)
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")


def differences_between(
    trees: SourceTrees, base: str, head: str, below: str, store: SummaryStore | None = None
) -> Mapping[str, FileDifference]:
    """What differs in each Python file below a folder that is not the same in two commits, by its path.

    `store` keeps what was found, where it is given.
    A content that is not here, as in a partial clone, is not one that was never there: the file could not be compared.
    """
    sides = trees.tree(base, below), trees.tree(head, below)
    names = sorted(path for path in {**sides[0], **sides[1]} if path.endswith(".py"))
    blobs = {path: (sides[0].get(path), sides[1].get(path)) for path in names}
    blobs = {path: (old, new) for path, (old, new) in blobs.items() if old != new}
    contents = trees.read_objects({blob for pair in blobs.values() for blob in pair if blob is not None})
    pairs = {path: (contents.get(old or ""), contents.get(new or "")) for path, (old, new) in blobs.items()}
    compared = compare if store is None else compared_files(list(pairs.values()), store)
    return {
        path: FileDifference((), ABSENT)
        if any(blob is not None and contents.get(blob) is None for blob in blobs[path])
        else compared(*pair)
        for path, pair in pairs.items()
    }


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it rests on; `contract` is empty when reach was not followed."""

    change: Change
    plan: Plan
    effects: Effects | None
    contract: tuple[ContractFinding, ...] = ()
    reached: ReachedFiles = NOT_KNOWN
    # The same of the jobs of other consumers, by their names.
    reached_by: Mapping[str, ReachedFiles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tree:
    files: Mapping[str, str]
    program: Program
    reach: Reach
    unread: tuple[str, ...]


# The trees of commits, by their full SHAs, of the Megatron-LM at an address; UserError, ForgeError.
CommitsAt = Callable[[str, tuple[str, ...]], SourceTrees]


class Planner:
    """Plans changes of one repository by one policy; keeps the trees that it followed last.

    `today` is the day, by UTC, on which entries of the policy end; `megatron_lm` gives the commits that a bump names.
    `others` is what other consumers use of the package, by their titles. `verl` is what verl uses, for a planner
    of another consumer: no run of that was measured, and what verl's jobs entered says nothing of its jobs.
    """

    def __init__(
        self,
        repository: SourceTrees,
        uses: Uses,
        summaries: SummaryStore,
        today: date = date.min,
        megatron_lm: CommitsAt | None = None,
        others: Mapping[str, Uses] = MappingProxyType({}),
        *,
        verl: Uses | None = None,
    ) -> None:
        self.repository = repository
        self._verl, self._measured = verl, verl is None
        self._commits_at = megatron_lm
        self._bumps: dict[
            tuple[str, str], tuple[Mapping[str, FileDifference], Mapping[str, str], tuple[OwnWay, ...]]
        ] = {}
        self._today = today
        self._uses = uses
        self._others = others
        self._summaries = summaries
        self._chooser = TestChooser(repository, summaries)
        self._trees: dict[tuple[str, str], _Tree] = {}
        self._aside: dict[tuple[str, str], bool] = {}
        self._beside: dict[str, Planner] = {}
        self._reached: dict[tuple[str, str], Reach] = {}

    def plan(
        self,
        base: str,
        head: str,
        policy: Policy,
        asked: Collection[Level] = (),
        cells: CellMap | None = None,
        megatron_lm: str = "",
    ) -> Planned:
        """The plan of base..head, with the contract findings and, where a level is required, the Bridge tests.

        `cells` is the map of a rehearsal, of the head or of another commit; None: the packaged one. `megatron_lm` is a
        commit in the place of the one that the head pins.
        OtherRepositoryError where neither side holds the package that the policy is about.
        """
        change = self.repository.change(base, head)
        require_package(self.repository, (change.merge_base or change.base, change.head), policy)
        if megatron_lm:
            pin = self.repository.links(change.merge_base or change.base).get(MEGATRON_LM_FOLDER, "")
            bump = SubmoduleBump(pin.removeprefix("commit ") or None, megatron_lm)
            rest = tuple(item for item in change.paths if item.path != MEGATRON_LM_FOLDER)
            moved = ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED, submodule=bump)
            change = replace(change, paths=(*rest, moved))
        known = cells or packaged_cell_map()
        found, merged = self._with_merge(self._planned(change, policy, asked, known), policy, asked, known)
        found = self._with_consumers(found, policy, known, tuple(asked), merged)
        if not found.plan.jobs:
            return found
        followed = self._trees.get((found.change.head, policy.source))
        program = None if followed is None else followed.program
        chosen = self._chooser.choose(found.change, policy, found.effects, program)
        planned = with_tests(found.plan, chosen)
        tests = (*policy.bridge_tests, *(test.test for test in planned.tests.tests))
        reached = self.reached(change.head, policy, tests)
        # Where reach is not followed, names are all that is known of any consumer.
        named = dict.fromkeys(policy.consumers if policy.reach is None else (), reached)
        others = {name: made.reached(change.head, policy, tests) for name, made in self._beside.items()}
        return replace(found, plan=planned, reached=reached, reached_by={**named, **others})

    def reached(self, revision: str, policy: Policy, tests: Iterable[str]) -> ReachedFiles:
        """What jobs with these Bridge tests can read at a revision."""
        tree = None if policy.reach is None else self.tree(revision, policy)
        if tree is not None and tree.unread:
            return NOT_KNOWN
        paths = () if tree is None else (tree.program.paths.get(module, "") for module in tree.reach.imported)
        imported = [path for path in paths if path]
        return reached_files(
            self.repository,
            revision,
            policy,
            imported,
            tests,
            self._summaries_of,
            lambda path: self._is_aside(path, policy),
            self._summaries,
        )

    def _with_merge(
        self, found: Planned, policy: Policy, asked: Iterable[Level], cells: CellMap
    ) -> tuple[Planned, Change | None]:
        """The plan with the levels that the change needs only together with what the base has brought since.

        And what the head is to that base, None where it brought no source or cannot be merged.
        """
        change, reach = found.change, policy.reach
        if reach is None or change.merge_base in {None, change.base}:
            return found, None
        left, tip = (
            [self.repository.tree(at, root) for root in reach.roots] for at in (change.merge_base, change.base)
        )
        if left == tip:
            return found, None
        merge = self.repository.merged(change.base, change.head)
        if merge.commit is None:
            notes = (f"{_NOT_MERGED}: {merge.problem}.",) if merge.problem else ()
            return replace(found, plan=_merged_later(found.plan, notes)), None
        merged = self.repository.change(change.base, merge.commit)
        both = self._planned(merged, policy, (), cells)
        beyond = beyond_head(both.plan, found.plan)
        known = {str(finding) for finding in found.contract}
        broken = tuple(finding for finding in both.contract if str(finding) not in known)
        whole = found.plan
        if beyond:
            measured = self.measured(change, policy, cells)
            whole = plan(change, policy, asked, found.effects, beyond, measured)
        return replace(found, plan=_merged_later(whole), contract=(*found.contract, *broken)), merged

    def _with_consumers(
        self, found: Planned, policy: Policy, cells: CellMap, asked: tuple[Level, ...], merged: Change | None
    ) -> Planned:
        """The plan with the jobs of the other consumers that the policy names.

        Where reach is not followed, names tell what each of them runs.
        """
        planned = found.plan
        for name, rules in policy.consumers.items():
            consumer, changes = CONSUMERS[name], list[tuple[Change, Effects | None]]()
            uses = self._others.get(consumer.title)
            for change in filter(None, (found.change, merged)):
                effects = None
                if policy.reach is not None and uses is not None:
                    if name not in self._beside:
                        known = self.repository, uses, self._summaries, self._today, self._commits_at
                        self._beside[name] = Planner(*known, verl=self._uses)
                    plain = policy.model_copy(update={"consumers": {}})
                    effects = self._beside[name]._planned(change, plain, (), cells).effects
                if effects is not None and uses is not None and rules.when == "differs":
                    effects = differing(effects, uses.entries, self._uses.entries)
                changes.append((change, effects))
            planned = beside(planned, consumer, policy, changes, asked)
        return replace(found, plan=planned)

    def _planned(self, change: Change, policy: Policy, asked: Iterable[Level], cells: CellMap) -> Planned:
        if policy.reach is None:
            return Planned(change, plan(change, policy, asked), None)
        unknown = self._stand_ins(change, policy.reach)
        if not unknown and not any(_compared(item, policy.reach) for item in change.paths):
            inside = self._requirements(change, policy.reach)
            count, roots = len(change.names()), " and ".join(policy.reach.roots)
            names = "1 changed path" if count == 1 else f"{count} changed paths"
            nothing = (
                f"Looked at the names of {names}: none is a Python source below {roots}, or stands in for one as a "
                "link, a compiled file or an attribute of the checkout does."
            )
            known = Effects(inside, {}, (nothing,), defects=self._defects(change, policy))
            known = self._with_bump(known, change, policy)
            measured = self.measured(change, policy, cells) if known.bumped else None
            return Planned(change, plan(change, policy, asked, known, measured=measured), known)
        old, new = self.tree(change.merge_base or change.base, policy), self.tree(change.head, policy)
        both = Sides(old.program, new.program, old.reach, new.reach)
        effects = self._effects(change, policy, policy.reach, (old, new), both, cells)
        unknown = {**effects.unknown, **unknown}
        compared = sum(module_name(path, policy.reach.roots) is not None for path in effects.paths)
        unread = {path for path in new.unread if path not in unknown}
        looked_at = LookedAt(compared, len(new.reach.imported), len(unknown) + len(unread))
        notes = (*self._by_others(change, policy, policy.reach, (old, new), effects), *effects.notes)
        effects = replace(
            effects, unknown=unknown, looked_at=looked_at, defects=self._defects(change, policy), notes=notes
        )
        effects = self._with_bump(effects, change, policy)
        findings = check_contract(self._uses, both, set(change.names()), self._reader(old), self._reader(new))
        measured = self.measured(change, policy, cells)
        return Planned(change, plan(change, policy, asked, effects, measured=measured), effects, findings)

    def measured(self, change: Change, policy: Policy, cells: CellMap) -> Measured | None:
        """What cells and jobs entered, as far as it is about a change; None for cells of another package."""
        if not self._measured or not (is_about(cells.files, policy) or any(map(in_megatron_lm, cells.files))):
            return None
        return Measured(cells, self._maps(policy, change), cells.commit == change.head)

    def _maps(self, policy: Policy, change: Change) -> ExecutionMaps:
        return maps_of(policy, self.repository, change.merge_base or change.base) if self._measured else NO_MAPS

    def _with_bump(self, effects: Effects, change: Change, policy: Policy) -> Effects:
        """The effects with those of the Megatron-LM that the change moves to, where its commits can be had."""
        moved = (item.submodule for item in change.paths if item.path == MEGATRON_LM_FOLDER and item.submodule)
        bump = next(moved, None)
        if self._commits_at is None or bump is None or bump.old is None or bump.new is None:
            return effects
        commits = bump.old, bump.new
        try:
            # The same for a head and for what merging it gives.
            if commits not in self._bumps:
                trees = self._commits_at(policy.megatron_lm.repository, commits)
                found = differences_between(trees, *commits, MEGATRON_CODE, self._summaries)
                ways = () if self._verl is None else tuple(self._way(trees, commit) for commit in commits)
                self._bumps[commits] = found, _not_compared(trees, commits, policy), ways
        except (UserError, ForgeError) as error:
            passing = isinstance(error, ForgeError) and error.passing
            return replace(effects, incomplete=(*effects.incomplete, f"{_NO_COMMITS}: {error}"), passing=passing)
        differences, others, ways = self._bumps[commits]
        return with_bump(effects, differences, self._maps(policy, change), commits, others, ways)

    def _way(self, trees: SourceTrees, commit: str) -> OwnWay:
        """The consumer's own way through a commit of Megatron-LM."""
        program, problems = self._program(trees, trees.tree(commit, MEGATRON_CODE), ("",))
        verls = () if self._verl is None else self._verl.core
        return own_way(program, self._uses.core, verls, problems)

    def megatron_lm(self, policy: Policy, commits: tuple[str, ...]) -> SourceTrees:
        """The trees of commits of Megatron-LM; UserError where they cannot be had."""
        if self._commits_at is None:
            raise UserError("no repository of Megatron-LM is known here")
        try:
            return self._commits_at(policy.megatron_lm.repository, commits)
        except ForgeError as error:
            raise UserError(str(error)) from None

    def _defects(self, change: Change, policy: Policy) -> tuple[KnownDefect, ...]:
        """The defects of the policy that the changed code is known to have today."""
        if not policy.defects:
            return ()
        # A submodule may be at another commit than the head pins.
        moved = {item.path: item.submodule.new for item in change.paths if item.submodule and item.submodule.new}
        objects, today = {**self._objects(change.head), **moved}, self._today
        return tuple(item for item in policy.defects if not item.ended(policy.verl.commit, objects, today))

    def _objects(self, revision: str) -> Mapping[str, str]:
        """The ids of all files and submodules at a revision."""
        links = self.repository.links(revision)
        modules = {path: item.removeprefix("commit ") for path, item in links.items() if item.startswith("commit ")}
        return {**self.repository.tree(revision), **modules}

    def effects_of_whole(self, change: Change, policy: Policy, cells: CellMap) -> Effects | None:
        """The effects of a change in which all that the paths hold at the head differs."""
        if policy.reach is None:
            return None
        tree = self.tree(change.head, policy)
        both = Sides(tree.program, tree.program, tree.reach, tree.reach)
        effects = self._effects(change, policy, policy.reach, (tree, tree), both, cells, whole=True)
        return replace(effects, unknown={**effects.unknown, **self._stand_ins(change, policy.reach)})

    def lint(self, revision: str, policy: Policy) -> tuple[str, ...]:
        """What of a policy says nothing about a revision; OtherRepositoryError."""
        require_package(self.repository, (revision,), policy)
        paths = self.repository.tree(revision)
        ended = lint_defects(policy, self._objects(revision), self._today)
        of_defects = tuple(f"{finding.what}; {finding.fix}" for finding in ended)
        if policy.reach is None:
            return (*of_defects, *lint_policy(policy, paths, {}, ()))
        tree = self.tree(revision, policy)
        views = {path: tree.program.view(name) for name, path in tree.program.paths.items()}
        symbols = {path: tuple(view.symbols) if view else () for path, view in views.items()}
        contents = self.repository.read_objects([tree.files[path] for path in symbols])
        words = {word.decode("ascii") for text in contents.values() for word in _WORD.findall(text or b"")}
        return (*of_defects, *lint_policy(policy, paths, symbols, words))

    def tree(self, revision: str, policy: Policy) -> _Tree:
        """One tree with all that is reached in it, from memory where it was followed before."""
        assert policy.reach is not None
        key = (revision, policy.source)
        found = self._trees.pop(key, None) or self._follow(revision, policy.reach)
        self._trees[key] = found
        while len(self._trees) > _KEPT_TREES:
            del self._trees[next(iter(self._trees))]
        return found

    def _follow(self, revision: str, reach: ReachPolicy) -> _Tree:
        files: dict[str, str] = {}
        for root in reach.roots:
            files.update(self.repository.tree(revision, root))
        program, problems = self._program(self.repository, files, reach.roots)
        try:
            ran = entered_by_runs(reach.package, reach.roots) if self._measured else ()
            followed = Reach(program, self._uses.entries, ran)
        except RecursionError:
            return _Tree(files, program, Reach(program, ()), (_TOO_DEEP,))
        return _Tree(
            files, program, followed, tuple(sorted(problems[name] for name in problems.keys() & followed.imported))
        )

    def _program(
        self, trees: SourceTrees, files: Mapping[str, str], roots: tuple[str, ...]
    ) -> tuple[Program, Mapping[str, str]]:
        """The modules of a tree, and the paths of those that could not be read, by their names."""
        # A package is taken before a module of the same name.
        ordered = sorted(files, key=lambda path: (path.endswith("/__init__.py"), path))
        paths = {name: path for path in ordered if (name := module_name(path, roots)) is not None}
        summaries = self._summaries_of({files[path] for path in paths.values()}, trees)
        problems = {name: path for name, path in paths.items() if summaries[files[path]].problem}
        return Program(paths, lambda path: summaries[files[path]]), problems

    def _stand_ins(self, change: Change, reach: ReachPolicy) -> Mapping[str, str]:
        """The changed names of which no content tells what they do."""
        base, head = (self._names(revision, reach) for revision in (change.merge_base or change.base, change.head))
        return stand_ins(change.names(), (base, head), reach.roots, reach.package)

    def _names(self, revision: str, reach: ReachPolicy) -> TreeNames:
        files = {path for root in reach.roots for path in self.repository.tree(revision, root)}
        links = self.repository.links(revision)
        ids = sorted({item for item in links.values() if not item.startswith("commit ")})
        # Where a link leads counts only when one of them is among the sources.
        wanted = ids if any(is_among(link, reach.roots) for link in links) else []
        targets = self.repository.read_objects(wanted)
        texts = {path: (targets.get(blob) or b"").decode("utf-8", "surrogateescape") for path, blob in links.items()}
        return TreeNames(frozenset(files), texts)

    def _summaries_of(self, blobs: set[str], trees: SourceTrees | None = None) -> Mapping[str, Summary]:
        known = dict(self._summaries.load(Summary, blobs))
        missing = sorted(blobs - known.keys())
        made: dict[str, Summary] = {}
        for blob, content in (trees or self.repository).read_objects(missing).items():
            if content is None:
                known[blob] = Summary((), (), ABSENT)
            else:
                made[blob] = summarize(content)
        self._summaries.save(Summary, made)
        return {**known, **made}

    def _effects(
        self,
        change: Change,
        policy: Policy,
        reach: ReachPolicy,
        trees: tuple[_Tree, _Tree],
        both: Sides,
        cells: CellMap,
        *,
        whole: bool = False,
    ) -> Effects:
        """What the change does inside its files; with `whole` as if each came new at the head."""
        imported = {name for tree in trees for name in tree.reach.imported}
        pairs = [
            pair
            for item in change.paths
            if (pair := _compared(item, reach)) is not None
            and not all(_set_aside(name, policy) and module_name(name, reach.roots) not in imported for name in pair)
        ]
        versions, unread = self._versions(pairs, trees, whole=whole)
        compared = compared_files([(old.content, new.content) for old, new in versions], self._summaries)
        found = effects_of(versions, both, reach.roots, lambda path: self._is_aside(path, policy), compared)
        unread |= found.unread
        unknown = {path: why for path, why in unread.items() if module_name(path, reach.roots) in imported}
        gaps: tuple[str, ...] = ()
        doubted: dict[str, str] = {}
        if missing := sorted({path for tree in trees for path in tree.unread}):
            first, count = missing[0], len(missing)
            gaps = (f"{count} imported file(s) could not be read, {readable(first)} first: reach is not complete.",)
            # Where a file on the way could not be read, "not reached" is not an answer.
            why = f"{first}, which verl imports, could not be read, so what it reaches is not known"
            for path, inside in found.paths.items():
                if not inside.effects and inside.reason is not Idle.NO_EFFECT:
                    doubted[path] = why
        paths = {**({} if whole else self._requirements(change, reach)), **found.paths}
        modules = {item.path: module_name(item.path, reach.roots) for item in found.functions}
        head = trees[1]

        def has_hosts(path: str) -> bool:
            return not policy.families_without_hosts(path)

        return Effects(
            {path: inside for path, inside in paths.items() if path not in doubted},
            unread,
            (f"Reach starts from {self._uses.source}.",),
            {**doubted, **unknown},
            incomplete=gaps,
            functions=found.functions,
            lines=self._measured_lines(versions, cells),
            # What code of the head that a host can run takes from files of families that none can.
            taken={
                path: taken_elsewhere(module, head.program, head.reach, has_hosts)
                for path, module in modules.items()
                if module is not None and not has_hosts(path)
            },
        )

    def _versions(
        self, pairs: Collection[tuple[str, str]], trees: tuple[_Tree, _Tree], *, whole: bool = False
    ) -> tuple[list[tuple[Version, Version]], dict[str, str]]:
        """Both versions of files, and the names of those whose content is not at hand."""
        wanted = [
            tree.files[path] for pair in pairs for tree, path in zip(trees, pair, strict=True) if path in tree.files
        ]
        contents = self.repository.read_objects(wanted)
        unread: dict[str, str] = {}
        versions = []
        for pair in pairs:
            blobs = [tree.files.get(path) for tree, path in zip(trees, pair, strict=True)]
            if any(blob is not None and contents[blob] is None for blob in blobs):
                unread.update(dict.fromkeys(pair, ABSENT))
                continue
            old, new = (contents[blob] if blob is not None else None for blob in blobs)
            versions.append((Version(pair[0], None if whole else old), Version(pair[1], new)))
        return versions, unread

    def _by_others(
        self, change: Change, policy: Policy, reach: ReachPolicy, trees: tuple[_Tree, _Tree], effects: Effects
    ) -> Iterator[str]:
        """What other consumers reach of the changed functions and verl does not, so that no job here runs it."""
        pairs = [pair for item in change.paths if (pair := _compared(item, reach))]
        known = all(old == new and new in effects.paths for old, new in pairs)
        if known and all(item.function.reached for item in effects.functions if not item.earlier):
            return
        # Where verl's own way is not known, nothing is another's alone.
        if any(tree.unread for tree in trees):
            return
        versions, absent = self._versions(pairs, trees)
        compared = compared_files([(old.content, new.content) for old, new in versions], self._summaries)
        programs = [tree.program for tree in trees]

        def reached(base: Reach, head: Reach) -> tuple[set[tuple[str, str]], Effects]:
            found = effects_of(versions, Sides(programs[0], programs[1], base, head), reach.roots, compared=compared)
            touched = (item for item in found.functions if item.function.reached and not item.earlier)
            # Without a symbol it is code at import.
            return {(item.function.path, item.symbol) for item in touched}, found

        own, _ = reached(trees[0].reach, trees[1].reach)
        ran = entered_by_runs(reach.package, reach.roots)
        whose = dict.fromkeys(self._others, "no job here runs it")
        whose |= {CONSUMERS[name].title: "no job of verl runs it" for name in policy.consumers}
        for title, uses in self._others.items():
            try:
                base, head = (Reach(program, uses.entries, ran) for program in programs)
            except RecursionError:
                yield f"What {title} reaches is not known: {_TOO_DEEP} is too long."
                continue
            theirs, found = reached(base, head)
            imported = {*base.imported, *head.imported} - {name for tree in trees for name in tree.reach.imported}
            # What cannot be compared, and modules that have another name now.
            whole = {*absent, *found.unread, *(old for old, new in pairs if old != new)}
            files = {(path, "") for path in whole if module_name(path, reach.roots) in imported}
            if alone := sorted({*theirs, *files} - own):
                in_folder = [("/".join(path.split("/")[-2:]), symbol) for path, symbol in alone]
                places = [f"{symbol} ({file})" if symbol else file for file, symbol in in_folder]
                shown = ", ".join(map(readable, places[:_SHOWN_PLACES]))
                more = f" and {len(alone) - _SHOWN_PLACES} more" if len(alone) > _SHOWN_PLACES else ""
                yield f"{title} alone reaches {shown}{more}: {whose[title]} ({uses.source})."

    def reached_by(self, revision: str, policy: Policy, path: str, symbol: str) -> tuple[str, ...]:
        """The other consumers that reach a symbol at a revision, each with where its chain starts."""
        module = module_name(path, policy.reach.roots) if policy.reach is not None else None
        if not symbol or module is None:
            return ()
        tree = self.tree(revision, policy)
        found: list[str] = []
        for title, uses in self._others.items():
            key = (revision, title)
            try:
                if key not in self._reached:
                    self._reached[key] = Reach(tree.program, uses.entries)
            except RecursionError:
                found.append(f"whether {title} reaches it is not known: {_TOO_DEEP} is too long")
                continue
            chain = self._reached[key].chain(Node(module, symbol))
            if chain:
                start = f"{title}, from {readable(str(chain[0].source))}"
                found.append(f"reached by {start}{'' if all(step.sure for step in chain) else ' (uncertain)'}")
        return tuple(found)

    def _measured_lines(
        self, versions: Iterable[tuple[Version, Version]], cells: CellMap
    ) -> Mapping[str, CarriedLines]:
        """The lines of compared files that the map is about, by the path at the head, or of a file that is gone."""
        named = [(old, new, cells.files.get(old.path) or cells.files.get(new.path)) for old, new in versions]
        contents = self.repository.read_objects([file.blob for _, _, file in named if file is not None])
        return {
            (new if new.content is not None else old).path: carried_lines(content, old.content, new.content)
            for old, new, file in named
            if file is not None and (content := contents[file.blob]) is not None
        }

    def _is_aside(self, path: str, policy: Policy) -> bool:
        key = (path, policy.source)
        if key not in self._aside:
            self._aside[key] = _set_aside(path, policy)
        return self._aside[key]

    def _requirements(self, change: Change, reach: ReachPolicy) -> dict[str, Inside]:
        names = [name for name in REQUIREMENTS if reach.dependencies and name in change.names()]
        commits = (change.merge_base or change.base, change.head)
        return {name: _SAMEREQUIREMENTS for name in names if self.has_same_requirements(name, commits, reach)}

    def has_same_requirements(self, name: str, commits: tuple[str, str], reach: ReachPolicy) -> bool:
        """Whether a file surely keeps every requirement that a run imports, and how packages are built and found."""
        old, new = (self.repository.read_blob(commit, name) for commit in commits)
        return same_build(old, new) and changed_requirements(old, new, reach.dependencies) == ()

    def _reader(self, tree: _Tree) -> Callable[[str], bytes | None]:
        """Reads a file of a tree by its path."""

        def read(path: str) -> bytes | None:
            blob = tree.files.get(path)
            return None if blob is None else self.repository.read_objects([blob])[blob]

        return read


def _merged_later(planned: Plan, notes: tuple[str, ...] = ()) -> Plan:
    """The plan of a head whose base has other sources by now, of which a rehearsal of the head alone says nothing."""
    reasons = tuple(replace(reason, at_import=False) for reason in planned.reasons)
    return replace(planned, reasons=reasons, incomplete=(*notes, *planned.incomplete))


def _not_compared(trees: SourceTrees, commits: tuple[str, str], policy: Policy) -> Mapping[str, str]:
    """The files of Megatron-LM that differ and that no comparison of functions looks into, each with the reason."""
    found: dict[str, str] = {}
    for name in other_files(*({**trees.tree(commit), **trees.links(commit)} for commit in commits)):
        found[name] = _NO_PYTHON if "/" in name or not name.endswith(".py") else _BESIDE
        if name in REQUIREMENTS and policy.reach is not None:
            old, new = (trees.read_blob(commit, name) for commit in commits)
            changed = changed_requirements(old, new, policy.reach.dependencies)
            if changed == () and same_build(old, new):
                del found[name]
            elif changed:
                found[name] = f"it asks for another {', '.join(changed)}, and a run has the packages of its image"
    return found


def _set_aside(path: str, policy: Policy) -> bool:
    return any(not exemption.unless_reached and exemption.paths.match(path) for exemption in policy.exempt)


def _compared(changed_path: ChangedPath, reach: ReachPolicy) -> tuple[str, str] | None:
    """The names of the two versions to compare, None where no side is source.

    A file that becomes source by its new name is new there, and one that was source by its old name is gone.
    """
    names = (changed_path.old_path or changed_path.path, changed_path.path)
    sources = [name for name in dict.fromkeys(names) if module_name(name, reach.roots)]
    if changed_path.submodule is not None or not sources:
        return None
    return (sources[0], sources[-1])


@dataclass(frozen=True, slots=True)
class PlanReaders:
    """What planning reads: facts of pull requests, trees of a target, verl's uses (by policy), kept summaries.

    `policy` stands in for the policy of the base branch where someone gave one.
    """

    pulls: Pulls
    changes: Callable[[Target], SourceTrees]
    uses: Callable[[Policy], Uses]
    summaries: SummaryStore
    policy: Policy | None = None
    today: date = date.min
    megatron_lm: CommitsAt | None = None


def plan_pull(ref: PullRef, readers: PlanReaders) -> Planned:
    """The plan of a pull request as it is now; by GitHub's own list of files where git cannot be had.

    UnknownPullError or ForgeError when GitHub does not tell what it is.
    """
    pull = readers.pulls.pull(ref)

    def policy_of() -> Policy:
        # The policy at the base's tip, as the service reads it.
        return readers.policy or read_policy(base_text(ref.repository, pull.base_branch, readers.pulls))

    try:
        trees, policy = readers.changes(pull), policy_of()
        uses = readers.uses(policy)
        planner = Planner(trees, uses, readers.summaries, readers.today, readers.megatron_lm, other_uses())
        return plan_target(pull, policy, planner)
    except ForgeError as error:
        listed, policy = readers.pulls.change(pull), policy_of()
        missing = _missing(pull, listed)
        asked = tuple(Level) if missing else ()
        found = Planned(listed, plan(listed, policy, asked), None)
        for name in policy.consumers:
            found = replace(found, plan=beside(found.plan, CONSUMERS[name], policy, [(listed, None)], asked))
        return _incomplete(found, *([missing] if missing else []), f"{error}. So the files were not looked into.")


def plan_target(
    target: Target, policy: Policy, planner: Planner, cells: CellMap | None = None, megatron_lm: str = ""
) -> Planned:
    """The plan of a target; where git shows fewer names than GitHub counts files, it asks for everything.

    `megatron_lm` is a commit in the place of the one that the head pins.
    """
    found = planner.plan(target.base_sha, target.head_sha, policy, (), cells, megatron_lm)
    missing = _missing(target, found.change)
    if not missing:
        return found
    every = planner.plan(target.base_sha, target.head_sha, policy, tuple(Level), cells, megatron_lm)
    return _incomplete(every, missing)


def _missing(target: Target, change: Change) -> str:
    """A sentence when more files changed than are known; a rename may be counted as one file or as two."""
    counted = target.changed_files if isinstance(target, Pull) else 0
    known = sum(len(path.names()) for path in change.paths)
    if known >= counted:
        return ""
    return f"GitHub counts {counted} changed files and {known} are known: every level is planned."


def _incomplete(planned: Planned, *notes: str) -> Planned:
    """The plan with why it may not be what the change needs; no verdict is reused for what may be another change."""
    found = replace(planned.plan, incomplete=(*notes, *planned.plan.incomplete))
    return replace(planned, plan=found, reached=NOT_KNOWN, reached_by={})


def with_verl_files(planned: Planned, paths: Collection[str], verl: str) -> Planned:
    """The plan with a sentence for each job whose script is missing in `verl`; `paths` are all its files."""
    notes = lint_jobs(planned.plan.jobs, paths, verl)
    return replace(planned, plan=replace(planned.plan, notes=(*planned.plan.notes, *notes)))


class UnknownTargetError(UserError):
    """A path or symbol that the revision does not have, in one sentence with the nearest one. The user's mistake."""


_OF_BUMP = "a bump asks for those levels alone whose code differs, where its commits can be compared"
_OF_BUMP_ALONE = "every bump asks for it, and no rule of the policy names its place"
_IN_NO_RUN = "no run has this folder of Megatron-LM"
_ONLY_SOME = "a change that keeps every requirement that verl's run imports, and the build, asks for nothing"


def explain_targets(
    planner: Planner, revision: str, policy: Policy, targets: Iterable[tuple[str, str]]
) -> tuple[Explanation, ...]:
    """What the plan makes of changes at a revision; a target is a path and a symbol, empty for all of it.

    OtherRepositoryError where the revision does not hold the package that the policy is about, UnknownTargetError.
    """
    repository = planner.repository
    require_package(repository, (revision,), policy)
    # A change of each path of the tree: files, links and submodules.
    paths = {path: ChangedPath(path, PathStatus.MODIFIED) for path in repository.tree(revision)}
    for path, target in repository.links(revision).items():
        commit = target.removeprefix("commit ") if target.startswith("commit ") else None
        bump = SubmoduleBump(commit, commit) if commit else None
        paths[path] = ChangedPath(path, PathStatus.MODIFIED, submodule=bump)
    cells, maps = packaged_cell_map(), maps_of(policy, repository, revision)
    rows: list[Explanation] = []
    for named, symbol in targets:
        path = named.rstrip("/")
        pin = paths[MEGATRON_LM_FOLDER].submodule if MEGATRON_LM_FOLDER in paths else None
        if pin is not None and pin.new is not None and f"{path}/".startswith(f"{MEGATRON_LM_FOLDER}/"):
            rows += _explain_bump(planner, (revision, pin.new), policy, (path, symbol), maps)
            continue
        if path not in paths:
            raise UnknownTargetError(f"{on_one_line(path)}: {_no_path(path, paths)}")
        content = repository.read_blob(revision, path) or b""
        _require_symbol(path, symbol, content)
        change = Change(revision, revision, revision, (paths[path],))
        effects = planner.effects_of_whole(change, policy, cells)
        # The symbols of a source file in order, each with whether an import of the file runs it.
        names: Mapping[str, bool] = {}
        if effects is not None and effects.inside(path) and policy.reach is not None:
            view = planner.tree(revision, policy).program.view(module_name(path, policy.reach.roots) or "")
            kinds = {name: view.symbols[name].kind for name in view.symbols} if view is not None else {}
            names = {name: kinds.get(name) in ("variable", "class") for name in symbols_of(content)}
        condition = _ONLY_SOME if policy.reach and policy.reach.dependencies and path in REQUIREMENTS else ""
        planned = plan(change, policy, (), effects, measured=planner.measured(change, policy, cells))
        found = explanations(planned, classify(path, policy, effects), symbol, names, condition)
        found = tuple(with_maps(with_must_run(explanation, planned), maps) for explanation in found)
        for item in found:
            others = planner.reached_by(revision, policy, path, item.symbol or symbol)
            rows.append(replace(item, reached_by=others))
    return tuple(rows)


def _require_symbol(path: str, symbol: str, content: bytes) -> None:
    known = symbols_of(content) if path.endswith(".py") else ()
    if symbol and not any(f"{name}.".startswith(f"{symbol}.") for name in known):
        fix = suggest(symbol, known) if known else "leave it out: no symbol of the file can be read"
        raise UnknownTargetError(f"{on_one_line(path)} has no symbol {symbol}; {fix}")


def _explain_bump(
    planner: Planner, commits: tuple[str, str], policy: Policy, target: tuple[str, str], maps: ExecutionMaps
) -> Iterator[Explanation]:
    """What a bump asks for in which the target differs, the submodule itself or a file of it.

    `commits` are those of the repository and of its submodule.
    """
    (revision, pin), (path, symbol) = commits, target
    inner = path.removeprefix(MEGATRON_LM_FOLDER).lstrip("/")
    # Two commits that are not at hand may differ in anything.
    submodule = SubmoduleBump(pin, pin) if inner else None
    moved = ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED, submodule=submodule)
    change, effects, names = Change(revision, revision, revision, (moved,)), Effects(), dict[str, bool]()
    if inner:
        trees = planner.megatron_lm(policy, (pin,))
        files = trees.tree(pin)
        if inner not in files:
            shown = {f"{MEGATRON_LM_FOLDER}/{name}": blob for name, blob in files.items()}
            raise UnknownTargetError(f"{on_one_line(path)}: {_no_path(path, shown)}")
        content = trees.read_blob(pin, inner) or b""
        _require_symbol(path, symbol, content)
        found, others = dict[str, FileDifference](), dict[str, str]()
        if inner in other_files({}, {inner: ""}):
            others = {inner: _NO_PYTHON}
        else:
            found = {inner: all_changed(content)} if inner.startswith(MEGATRON_CODE) else {}
        effects = with_bump(effects, found, maps, (pin, pin), others)
        names = dict.fromkeys(symbols_of(content) if found else (), False)
    planned = plan(change, policy, (), effects)
    judged = classify(path, policy, effects)
    whole, *rows = explanations(planned, judged, "", names, _OF_BUMP)
    rules = () if inner else policy.megatron_lm.rules
    if not inner:
        whole = replace(whole, reason=_OF_BUMP)
    elif judged.effects is None or judged.exemption is not None:
        why = judged.exemption.reason if judged.exemption is not None else _IN_NO_RUN
        whole = replace(whole, symbol=symbol, reason=f"{why}; every bump asks for it")
    areas = (Explanation(path, "", tuple(map(Level, rule.levels)), (rule.name,), reason=rule.reason) for rule in rules)
    for row in (whole, *areas, *(rows if names else ())):
        if not symbol or f"{row.symbol}.".startswith(f"{symbol}."):
            of_bump = row if row.levels else replace(row, levels=(Level.SMOKE,), reason=_OF_BUMP_ALONE)
            yield with_maps(with_must_run(of_bump, planned), maps)


def _no_path(path: str, paths: Collection[str]) -> str:
    if any(name.startswith(f"{path}/") for name in paths):
        return "this is a folder; name a file in it"
    # The same name in another folder is nearer than any other text.
    same = [name for name in paths if name.rpartition("/")[2] == path.rpartition("/")[2]]
    near = likely(path, same) or next(iter(sorted(same)), "") or likely(path, paths)
    return f"this commit has no such path; {f'did you mean {on_one_line(near)}?' if near else 'name one of it'}"


def uses_at(
    repository: SourceTrees, commit: str, reach: ReachPolicy, source: str, store: SummaryStore | None = None
) -> Uses:
    """What verl uses of the package at a commit, given in full; `source` tells people which verl that is.

    `store` keeps what was read of it, unless a content was not there: a partial clone may have it the next time.
    """
    # All that the answer depends on.
    parts = (str(USES_VERSION), str(SUMMARY_VERSION), commit, reach.package, reach.callers, source)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    known = store.load(Uses, [key]).get(key) if store is not None else None
    if known is not None:
        return known
    tree = {path: blob for path, blob in repository.tree(commit, reach.callers).items() if path.endswith(".py")}
    contents = repository.read_objects(list(tree.values()))
    sources = {path: content for path, blob in tree.items() if (content := contents[blob]) is not None}
    uses = uses_of(sources, reach.package, source)
    if store is not None and len(sources) == len(tree):
        store.save(Uses, {key: uses})
    return uses

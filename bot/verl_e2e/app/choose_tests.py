"""Choose the Bridge tests of a change from git objects: no checkout, and only test files that may matter are parsed."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.model.change import Change
from verl_e2e.core.model.document import PathPatterns
from verl_e2e.core.plan.bridge_tests import (
    Choice,
    TestsAtHead,
    changed_modules,
    changed_tests,
    choose,
    identifiers,
    is_test_file,
)
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import (
    MARKS_VERSION,
    NOT_KNOWN,
    FilesOfTree,
    Marks,
    ReachedFiles,
    UnreadTestError,
    digest_of,
    read_by_tests,
    read_marks,
)
from verl_e2e.core.reach.effects import Effects
from verl_e2e.core.reach.other_paths import is_among
from verl_e2e.core.reach.program import Program, Summary, module_name
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.users import ChangedModule, Use, nearest_use, use_through
from verl_e2e.core.text.escape import any_word
from verl_e2e.ports import SourceTrees, SummaryStore

_TOP = ("",)
_SHORTEST_NAME = 4


class TestChooser:
    """Chooses tests of one repository; summaries of test files are kept where those of sources are."""

    __test__ = False

    def __init__(self, repository: SourceTrees, summaries: SummaryStore) -> None:
        self._repository = repository
        self._summaries = summaries
        # Whether tests may be chosen from a path: most paths of one tree are in the next one, too.
        self._matched: dict[PathPatterns, dict[str, bool]] = {}

    def choose(self, change: Change, policy: Policy, effects: Effects | None, program: Program | None) -> Choice:
        """The tests of a change; `program` is the one at its head, None where it was not read."""
        if policy.bridge_test_choice is None:
            return Choice(limit_s=policy.test_choice.seconds)
        paths = policy.bridge_test_choice.paths
        changed = changed_tests(change, policy.test_choice)
        modules = changed_modules(change, policy, effects)
        known = self._matched.setdefault(paths, {})
        tree = {path: blob for path, blob in self._repository.tree(change.head).items() if path.endswith(".py")}
        known.update({path: paths.match(path) for path in tree.keys() - known.keys()})
        files = {path: blob for path, blob in tree.items() if known[path]}
        wanted = files.values() if modules else [files[path] for path in changed if path in files]
        tests = _Files(files, self._repository.read_objects(list(wanted)))
        uses = self._uses(tests, modules, program, policy.test_choice.gpu_marks)
        present = frozenset(path for path in files if is_test_file(path))
        near = {*changed, *uses} & present
        marks = self._marks_of(tests, near, policy.test_choice.gpu_marks)
        summaries = self._summaries_of(tests, near & uses.keys())
        mentioned = {path: identifiers(summary) for path, summary in summaries.items()}
        return choose(policy, changed, modules, TestsAtHead(present, uses, marks, mentioned))

    def _marks_of(self, tests: "_Files", paths: Iterable[str], gpu_marks: tuple[str, ...]) -> Mapping[str, Marks]:
        """The marks of test files, each content read once."""
        keys = {path: _marks_key(tests.blobs[path], gpu_marks) for path in paths}
        known = dict(self._summaries.load(Marks, set(keys.values())))
        made = {
            key: read_marks(content, gpu_marks)
            for path, key in keys.items()
            if key not in known and (content := tests.content(path)) is not None
        }
        self._summaries.save(Marks, made)
        known |= made
        return {path: known.get(key, Marks(1)) for path, key in keys.items()}

    def _uses(
        self, tests: "_Files", modules: Collection[ChangedModule], program: Program | None, gpu_marks: tuple[str, ...]
    ) -> Mapping[str, Use]:
        if not modules:
            return {}
        changed = {module.name: module for module in modules}
        near = self._summaries_of(tests, tests.holding(_words(modules, program)), gpu_marks)
        uses = {
            path: use
            for path, summary in near.items()
            if (use := nearest_use(_name(path), summary, changed, program)) is not None
        }
        between = {_name(path): use for path, use in uses.items() if not is_test_file(path)}
        if between:
            further = self._summaries_of(tests, tests.holding(any_word(name.rpartition(".")[2] for name in between)))
            for path, summary in further.items():
                use = use_through(_name(path), summary, between)
                if use is not None:
                    uses.setdefault(path, use)
        return uses

    def _summaries_of(
        self, tests: "_Files", paths: Iterable[str], gpu_marks: tuple[str, ...] = ()
    ) -> Mapping[str, Summary]:
        """The summaries of files, each content read once.

        With `gpu_marks` the marks of those that hold tests are kept as well: most are asked for next, and the tree of
        a file is there now.
        """
        wanted = {path: tests.blobs[path] for path in paths}
        known = dict(self._summaries.load(Summary, set(wanted.values())))
        made: dict[str, Summary] = {}
        marks: dict[str, Marks] = {}
        for path, blob in wanted.items():
            if blob in known or (content := tests.content(path)) is None:
                continue
            made[blob] = summarize(content)
            if gpu_marks and is_test_file(path):
                marks[_marks_key(blob, gpu_marks)] = read_marks(content, gpu_marks)
        self._summaries.save(Summary, made)
        self._summaries.save(Marks, marks)
        known |= made
        return {path: known[blob] for path, blob in wanted.items() if blob in known}


class _Files:
    """Test files at one commit, with the contents that were read."""

    def __init__(self, blobs: Mapping[str, str], contents: Mapping[str, bytes | None]) -> None:
        self.blobs = blobs
        self._contents = contents

    def content(self, path: str) -> bytes | None:
        return self._contents.get(self.blobs[path])

    def holding(self, words: re.Pattern[bytes]) -> list[str]:
        return [path for path in self.blobs if words.search(self.content(path) or b"")]


def _marks_key(blob: str, gpu_marks: tuple[str, ...]) -> str:
    """All that the marks of a content depend on, as one digest."""
    return hashlib.sha256("\0".join((str(MARKS_VERSION), blob, *gpu_marks)).encode("utf-8", "replace")).hexdigest()


def _name(path: str) -> str:
    return module_name(path, _TOP) or path


def _words(modules: Iterable[ChangedModule], program: Program | None) -> re.Pattern[bytes]:
    """What a file must hold to use a module: its full name, an import from its package, or a name that it defines."""
    found: list[str] = []
    for module in modules:
        found += [module.name, f"{module.name.rpartition('.')[0]} import"]
        view = program.view(module.name) if program is not None else None
        names = view.symbols if view is not None else ()
        found += [name for name in names if "." not in name and len(name) >= _SHORTEST_NAME and name[0] != "_"]
    return any_word(found)


Summaries = Callable[[set[str]], Mapping[str, Summary]]

# The files of requirements, whose entries are compared. The first one has the settings of pytest too.
REQUIREMENTS = ("pyproject.toml", "uv.lock")

# Raise it whenever the same tree would give another answer: kept ones are then made again.
_VERSION = 4


def reached_files(
    trees: SourceTrees,
    revision: str,
    policy: Policy,
    imported: Iterable[str],
    tests: Iterable[str],
    summaries: Summaries,
    is_set_aside: Callable[[str], bool],
    kept: SummaryStore,
) -> ReachedFiles:
    """What jobs can read at a revision where verl's entries import the files `imported`; `tests` by node id.

    Not known where a link lies among the sources: it may lead anywhere. `summaries` are of sources, by blob;
    `is_set_aside` says of a path whether the policy sets it aside. A tree that was asked for before is answered from
    what was kept.
    """
    plain, links = trees.tree(revision), trees.links(revision)
    sources, test_files = frozenset(imported), frozenset(test.partition("::")[0] for test in tests)
    aside = [
        [exemption.unless_reached, [[pattern.pattern, wanted] for pattern, wanted in exemption.paths.steps]]
        for exemption in policy.exempt
    ]
    reach = policy.reach
    of_policy = [aside, [reach.package, reach.roots, bool(reach.dependencies)] if reach is not None else []]
    depends_on = (_VERSION, of_policy, sorted(plain.items()), sorted(links.items()), sorted(sources))
    text = json.dumps([*depends_on, sorted(test_files)])
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    found = kept.load(ReachedFiles, [key]).get(key)
    if found is None:
        tree = FilesOfTree((*plain, *links), policy, is_set_aside)
        found = _reached(tree, (plain, links), policy, sources, test_files, summaries)
        kept.save(ReachedFiles, {key: found})
    return found


def _reached(
    tree: FilesOfTree,
    listed: tuple[Mapping[str, str], Mapping[str, str]],
    policy: Policy,
    sources: frozenset[str],
    tests: frozenset[str],
    summaries: Summaries,
) -> ReachedFiles:
    plain, links = listed
    files = {**plain, **links}
    roots = policy.reach.roots if policy.reach is not None else ()
    if any(is_among(link, roots) for link in links):
        return NOT_KNOWN
    read = _summaries_of(sources, files, summaries)
    named = {name for summary in read for name in summary.files}
    by_run = tree.read_by_run(sources, named)
    found = ReachedFiles(digest_of(files, by_run), sources=sources, roots=roots)
    tops = tuple(f"{test.partition('/')[0]}/" for test in tests)
    among_tests = any(is_among(link, tops) for link in links)
    if not tests or among_tests:
        return found

    def load(paths: frozenset[str]) -> Mapping[str, Summary]:
        by_blob = summaries({plain[path] for path in paths})
        return {path: by_blob[plain[path]] for path in sorted(paths)}

    try:
        by_tests = read_by_tests(tests, plain, roots, load)
    except UnreadTestError:
        # What tests can read is not known.
        return found
    read = _summaries_of(by_tests - sources, files, summaries)
    named.update(name for summary in read for name in summary.files)
    by_both = tree.read_by_run(sources, named) | by_tests
    below = frozenset(path for path in by_tests if path.startswith(roots)) if roots else frozenset()
    return replace(found, with_tests=digest_of(files, by_both), sources=sources | below)


def _summaries_of(sources: Iterable[str], files: Mapping[str, str], summaries: Summaries) -> list[Summary]:
    return [*summaries({files[path] for path in sources if path.endswith(".py")}).values()]

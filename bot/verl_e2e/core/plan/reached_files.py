"""Which files of a head a run can read, as digests: two heads with one digest run the same code of Bridge.

What decides is the whole tree and never the change: a file that nothing names counts, and what is left out is left out
for a reason of the policy or because no chain of imports from verl leads there.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.other_paths import is_among
from verl_e2e.core.reach.program import Summary, absolute, module_name, parse_to_read
from verl_e2e.core.reach.syntax import dotted

_PROCESSES = re.compile(rb"nproc[-_]per[-_]node[\s=\"',]+(\d{1,3})")
_NO_DEVICE = re.compile(r"\bnot\b.*\bcuda\b|\bcuda\b.*<")
_SKIPS = frozenset({"skipif"})

# Raise it whenever the marks of the same text would read differently: kept ones are then made again.
MARKS_VERSION = 1


@dataclass(frozen=True, slots=True)
class Marks:
    """`tests` counts the test functions that can be seen; `gpu_count` is 0 when some of them run without a GPU."""

    tests: int
    gpu_count: int = 0


def read_marks(source: bytes, gpu_marks: Iterable[str]) -> Marks:
    """Read one test file; `gpu_marks` are the names of pytest marks that ask for a GPU.

    A mark with arguments asks for one when an argument says `gpu`. A file that is not Python counts as one test: pytest
    must be the one that says so.
    """
    tree = parse_to_read(source)
    if isinstance(tree, str):
        return Marks(1)
    marks = frozenset(gpu_marks)
    on_gpu = False
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                each = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                on_gpu = _asks_for_gpu(each, marks)
                break
            case _:
                pass
    found = list(_tests(tree.body, on_gpu=on_gpu, marks=marks))
    if not found or not all(found):
        return Marks(len(found))
    processes = (int(count) for count in _PROCESSES.findall(source))
    return Marks(len(found), max((1, *processes)))


def _tests(body: list[ast.stmt], *, on_gpu: bool, marks: frozenset[str]) -> Iterator[bool]:
    """For every test function, whether it needs a GPU."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield on_gpu or _asks_for_gpu(node.decorator_list, marks)
            case ast.ClassDef() if node.name.startswith("Test") or node.bases:
                inside = on_gpu or _asks_for_gpu(node.decorator_list, marks)
                yield from _tests(node.body, on_gpu=inside, marks=marks)
            case ast.If() | ast.Try():
                yield from _tests([*node.body, *node.orelse], on_gpu=on_gpu, marks=marks)
            case _:
                pass


def _asks_for_gpu(decorators: Iterable[ast.expr], marks: frozenset[str]) -> bool:
    for node in decorators:
        owner, _, name = dotted(node).rpartition(".")
        if owner.rpartition(".")[2] != "mark":
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []
        texts = [item.value for item in arguments if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if name in _SKIPS:
            asks = bool(arguments) and _NO_DEVICE.search(ast.unparse(arguments[0])) is not None
        else:
            asks = name in marks and (not texts or any("gpu" in text.lower() for text in texts))
        if asks:
            return True
    return False


@dataclass(frozen=True, slots=True)
class ReachedFiles:
    """What the jobs of one plan can read of its head."""

    # SHA-256 of all files that a run of verl can read, with their contents; empty where that is not known.
    digest: str = ""
    # The same together with what the Bridge tests of the plan can read; empty where that is not known.
    with_tests: str = ""
    # The source files below `roots` that the digests cover.
    sources: frozenset[str] = frozenset()
    # The import roots of the policy.
    roots: tuple[str, ...] = ()

    def digest_for(self, *, tests: bool) -> str:
        """The digest for a job with or without Bridge tests, empty where it is not known."""
        return self.with_tests if tests else self.digest

    def outside(self, executed: Iterable[str]) -> str:
        """The first executed source that no digest covers, empty for none: then reach was not followed far enough."""
        missed = (path for path in executed if path.startswith(self.roots) and path not in self.sources)
        return min(missed, default="") if self.roots else ""


NOT_KNOWN = ReachedFiles()


def digest_of(files: Mapping[str, str], paths: Iterable[str]) -> str:
    """SHA-256 over paths, each with the id of its content."""
    text = "\0".join(f"{path}\0{files[path]}" for path in sorted(set(paths)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class FilesOfTree:
    """The files of a tree by what has a run of verl read them.

    - a module of the package under test: if it is imported
    - anything else below the import roots, as data and packages that shadow others
    - anything elsewhere that the policy does not set aside, or that an imported source names
    """

    def __init__(self, files: Iterable[str], policy: Policy, is_set_aside: Callable[[str], bool]) -> None:
        roots = policy.reach.roots if policy.reach is not None else ()
        paths = tuple(files)
        common = {name for name, count in Counter(_name_tails(path)[0] for path in paths).items() if count > 1}
        # The files that are modules of the package under test.
        package = policy.reach.package.replace(".", "/") if policy.reach is not None else ""
        below = tuple(f"{root}{package}/" for root in roots)
        self.modules = frozenset(
            path for path in paths if path.startswith(below) and module_name(path, roots) is not None
        )
        self._always: set[str] = set()
        # Those that count where a source names them: by the name that it must have.
        self._named: dict[str, list[str]] = {}
        for path in paths:
            if path in self.modules:
                continue
            if is_among(path, roots) or not is_set_aside(path):
                self._always.add(path)
                continue
            name, with_folder = _name_tails(path)
            if name not in common and not name.endswith(".py"):
                self._named.setdefault(name, []).append(path)
            elif "/" in path:
                # Several files have this name.
                self._named.setdefault(with_folder, []).append(path)

    def read_by_run(self, imported: frozenset[str], named: Iterable[str]) -> frozenset[str]:
        """The files that a run can read; `imported` are the sources that verl's entries import, `named` what they name.

        A name is that of a file with its folder, and stands for the file's name by itself too.
        """
        names = {tail for name in named for tail in _name_tails(name)}
        found = (path for name in names & self._named.keys() for path in self._named[name])
        return frozenset((*self._always, *(self.modules & imported), *found))


def _name_tails(path: str) -> tuple[str, str]:
    """The name of a file, by itself and with the folder that it is in."""
    parts = path.rsplit("/", 2)
    return parts[-1], "/".join(parts[-2:])


_CONFTEST, _PACKAGE = "conftest.py", "__init__.py"


class UnreadTestError(Exception):
    """A file that tests import could not be read; the text names it."""


def read_by_tests(
    tests: Iterable[str],
    files: Iterable[str],
    roots: tuple[str, ...],
    load: Callable[[frozenset[str]], Mapping[str, Summary]],
) -> frozenset[str]:
    """The files that tests can read; UnreadTestError where that is not known. `load` gives the summaries of paths.

    Every import counts, in functions too, and each text that reads like the full name of a module. So do the packages
    that a test is in, and the modules of a folder that pytest puts first on the search path, where each may take the
    place of another package. A name that a test imports and that is not a module of the repository stands for every
    file of that name outside of the import roots, because a test may extend the search path. The name of a source in a
    text stands for every file of that name, wherever it lies: tests put paths together, and run what they find there.
    """
    tests, every = tuple(tests), frozenset(files)
    folders = {folder for test in tests for folder in _folders(test)}
    found = _Closure(every, roots, load)
    around = every & {f"{folder}{name}" for folder in folders for name in (_CONFTEST, _PACKAGE)}
    first = {_base(path, around) for path in (*tests, *around) if not path.endswith(_PACKAGE)}
    found.follow({*(every & {*tests}), *around, *_modules_in({*first, ""}, every)})
    found.follow_names()
    tops = {"/".join(test.split("/")[:2]) + "/" for test in tests}
    near = (tuple(tops), folders - {""})
    data = (
        path
        for path in every
        if not path.endswith(".py") and (path.startswith(near[0]) or f"{path.rpartition('/')[0]}/" in near[1])
    )
    return frozenset((*found.read, *data))


def _folders(path: str) -> Iterator[str]:
    """The folders around a file, each with a slash behind it; the top is the empty text."""
    parts = path.split("/")[:-1]
    return (f"{'/'.join(parts[:end])}/" if end else "" for end in range(len(parts) + 1))


def _base(path: str, packages: Collection[str]) -> str:
    """The folder that pytest puts first on the search path for a file: the nearest one that is not a package."""
    outwards = sorted(_folders(path), key=len, reverse=True)
    return next((folder for folder in outwards if f"{folder}{_PACKAGE}" not in packages), "")


def _modules_in(folders: Collection[str], files: Iterable[str]) -> Iterator[str]:
    """The modules and packages that lie in folders themselves, but for tests."""
    for path in files:
        module = path.removesuffix(f"/{_PACKAGE}").removesuffix(".py")
        above, slash, name = module.rpartition("/")
        is_test = name.startswith("test_") or name.endswith("_test")
        if module != path and f"{above}{slash}" in folders and not is_test:
            yield path


class _Closure:
    def __init__(
        self, files: frozenset[str], roots: tuple[str, ...], load: Callable[[frozenset[str]], Mapping[str, Summary]]
    ) -> None:
        self.read: set[str] = set()
        self._roots, self._load, self._top = (*roots, ""), load, roots or ("/",)
        self._modules: dict[str, list[str]] = {}
        self._stems: dict[str, list[str]] = {}
        for path in files:
            if path.endswith(".py"):
                for name in self._names(path):
                    self._modules.setdefault(name, []).append(path)
                if not path.startswith(self._top):
                    self._stems.setdefault(path.rpartition("/")[2].removesuffix(".py"), []).append(path)
        self._files = files
        self._found: dict[str, tuple[str, ...]] = {}
        # Every file without its ending, and every folder, with its own folders.
        self._places = {path.removesuffix(".py") for path in files if path.endswith(".py")}
        self._places.update(folder[:-1] for path in self._places.copy() for folder in _folders(path))

    def _names(self, path: str) -> set[str]:
        """The names by which a file can be imported: from each root that it lies below."""
        return {name for root in self._roots if (name := module_name(path, (root,)))}

    def follow(self, starts: Iterable[str]) -> None:
        """Read files and all that they import, as many at a time as are known to be next."""
        todo = frozenset(starts)
        while todo:
            self.read |= todo
            imported: set[str] = set()
            for path, summary in self._load(todo).items():
                if summary.problem:
                    raise UnreadTestError(f"{path}: {summary.problem}")
                imported.update(self._imported(path, summary))
            todo = frozenset(imported - self.read)

    def follow_names(self) -> None:
        """Read the sources too that texts of tests, and of what is read so outside of the import roots, name."""
        sources: dict[str, list[str]] = {}
        for path in self._files:
            if path.endswith(".py") and not path.endswith(_PACKAGE):
                sources.setdefault(path.rpartition("/")[2], []).append(path)
        looked: frozenset[str] = frozenset()
        while new := frozenset(path for path in self.read if not path.startswith(self._top)) - looked:
            looked |= new
            names = {name.rpartition("/")[2] for summary in self._load(new).values() for name in summary.files}
            named = (path for name in names for path in sources.get(name, ()))
            self.follow({*named} - self.read)

    def _imported(self, path: str, summary: Summary) -> Iterator[str]:
        folder = path.rpartition("/")[0]
        for module in {*self._named(path, summary)}:
            known = self._of_module(module)
            first = module.partition(".")[0]
            if f"{folder}/{first}" in self._places:
                # A module in the folder of the file that imports it: pytest puts that folder on the search path.
                parts = module.split(".")
                places = ("/".join((folder, *parts[:end])) for end in range(1, len(parts) + 1))
                near = (name for place in places for name in (f"{place}.py", f"{place}/__init__.py"))
                known = (*known, *(name for name in near if name in self._files))
            yield from known
            if not known and not path.startswith(self._top):
                yield from self._stems.get(first, ())

    def _of_module(self, module: str) -> tuple[str, ...]:
        """The files of a module and of the packages around it; files share most of what they import."""
        found = self._found.get(module)
        if found is None:
            outer = module.rpartition(".")[0]
            around = self._of_module(outer) if outer else ()
            found = self._found[module] = (*around, *self._modules.get(module, ()))
        return found

    def _named(self, path: str, summary: Summary) -> Iterator[str]:
        """The full names of modules, and of what is taken from them."""
        for name in self._names(path):
            package = path.endswith("__init__.py")
            for item in summary.imports:
                target = absolute(name, item.module, item.dots, package=package)
                yield target
                yield f"{target}.{item.attribute}"
        yield from (source for _, source in summary.lazy)
        yield from summary.texts

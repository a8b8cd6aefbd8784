"""What Bridge tests can read of a head: their files, all that these import, and the data next to them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from verl_e2e.core.reach.program import absolute, module_name
from verl_e2e.core.reach.summary import Summary

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
    data = (path for path in every if not path.endswith(".py") and (path.startswith(tuple(tops)) or _in(path, folders)))
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


def _in(path: str, folders: Iterable[str]) -> bool:
    return bool(path.rpartition("/")[0]) and f"{path.rpartition('/')[0]}/" in folders


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
                    self._stems.setdefault(_stem(path), []).append(path)
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
                near = (found for name in _outer(module) for found in self._in_same_folder(folder, name))
                known = (*known, *near)
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

    def _in_same_folder(self, folder: str, module: str) -> Iterator[str]:
        """A module in the folder of the file that imports it: pytest puts that folder on the search path."""
        place = f"{folder}/{module.replace('.', '/')}"
        return (name for name in (f"{place}.py", f"{place}/__init__.py") if name in self._files)


def _outer(module: str) -> list[str]:
    """A module's full name and those of the packages around it, the outermost first."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")

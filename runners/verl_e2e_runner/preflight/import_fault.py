"""Where the fault of a failed import lies: on the host, in the trees under test, or in either.

The process that imports says which file imported what; whether the trees have it is read here, from their own files.
A name that a module binds only under a condition, and a module whose folder holds sources to be compiled, may be
missing because of the host.
"""

import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from verl_e2e.core.model.outcome import Attribution
from verl_e2e.core.triage.broken_imports import is_compiled
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.trees.worktrees import Trees

# Twice the largest source of Megatron-LM; the tokenizer takes some hundred times as much memory.
_MAX_SOURCE = 512 << 10
_TO_COMPILE = frozenset({".c", ".cc", ".cpp", ".cu", ".pyx", ".rs"})
_INSTALLED = frozenset({"site-packages", "dist-packages", ".."})
_PACKAGE = "__init__.py"
_DYNAMIC = frozenset({"__getattr__", "globals", "setattr", "exec"})


@dataclass(frozen=True, slots=True)
class ImportFault:
    """Where the fault of a failed import lies."""

    attribution: Attribution
    # What identifies it in another run of the same job, without the folders of this one; empty for a fault of the host.
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A file or folder of a tree."""

    root: Path
    path: PurePath

    def names(self) -> tuple[str, ...]:
        return names_below(self.root, self.path)


def import_fault(record: Mapping[str, Any], trees: Trees) -> ImportFault:
    """Where the fault lies that a line of the import proof tells of."""
    roots = (trees.bridge / "src", trees.megatron_lm)
    module, name = record.get("asked_module") or "", record.get("asked_name") or ""
    importer, file = (_place(record.get(key) or "", roots) for key in ("importer", "asked_file"))
    package = _package_of(module, roots)
    if not (importer or file or package or any(_place(path, roots) for path in record.get("files") or ())):
        return ImportFault(Attribution.HOST)
    gone = importer is not None and not is_compiled(name or module)
    gone = gone and (_has_no_name(file, name) if name else _has_no_module(package))
    asked = ".".join(part for part in (module, name) if part) or str(record.get("root") or record["error"])
    where = importer.path if importer is not None else PurePath(record.get("importer") or "").name
    return ImportFault(Attribution.TREES if gone else Attribution.UNDECIDED, f"{where} imports {asked}")


def _place(file: str, roots: Iterable[Path]) -> _Place | None:
    """Where a file lies in the trees; None for a file elsewhere, or of a package that is installed in one of them."""
    path = PurePath(file)
    for root in roots:
        if path.is_relative_to(root) and not _INSTALLED & set(path.relative_to(root).parts):
            return _Place(root, path.relative_to(root))
    return None


def _package_of(module: str, roots: Iterable[Path]) -> _Place | None:
    """The folder that a module should be in, if a regular package of the trees holds it; None where there is none."""
    parts = module.split(".")[:-1]
    if not all(part.isidentifier() for part in parts):
        return None
    for root in roots:
        # `megatron` itself is shared with packages of the host.
        if any(_PACKAGE in names_below(root, PurePath(*parts[:count])) for count in range(2, len(parts) + 1)):
            return _Place(root, PurePath(*parts))
    return None


def _has_no_module(package: _Place | None) -> bool:
    """Whether only the trees can have a module of this folder: nothing in it is to be compiled."""
    return package is not None and not any(PurePath(name).suffix in _TO_COMPILE for name in package.names())


def _has_no_name(file: _Place | None, name: str) -> bool:
    """Whether a module of the trees does not have a name, whatever the host has."""
    if file is None:
        return False
    folder = _Place(file.root, file.path.parent)
    if file.path.name == _PACKAGE and not (_has_no_module(folder) and f"{name}.py" not in folder.names()):
        return False
    source = read_below(file.root, file.path, limit=_MAX_SOURCE)
    return source is not None and len(source) < _MAX_SOURCE and _never_or_always_binds(source, name)


def _never_or_always_binds(source: bytes, name: str) -> bool:
    """Whether no condition decides if a module binds a name: it does not name it at all, or binds it at its top level.

    A name that is bound there and still missing is one of modules that import each other.
    """
    try:
        statements = list(_statements(source))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return False
    if any(_binds(words, name) for column, words in statements if column == 0):
        return True
    named = {word for _, words in statements for word in words}
    star = any(words[:1] == ["from"] and words[-1] == "*" for _, words in statements)
    return not star and not named & {name, *_DYNAMIC}


def _binds(words: list[str], name: str) -> bool:
    if words[0] in ("from", "import"):
        return "import" in words and name in words[words.index("import") :]
    if words[0] in ("def", "class"):
        return words[1:2] == [name]
    return words[0] == name and words[1:2] in (["="], [":"])


def _statements(source: bytes) -> Iterator[tuple[int, list[str]]]:
    """The logical lines of a module: their column, and their names and operators without texts and comments."""
    words: list[str] = []
    column = 0
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.NEWLINE:
            yield from [(column, words)] if words else []
            words = []
        elif token.type in (tokenize.NAME, tokenize.OP):
            column = column if words else token.start[1]
            words.append(token.string)

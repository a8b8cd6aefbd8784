"""What one source file refers to, symbol by symbol: all that the reach graph needs, small enough to keep by blob.

A reference is a dotted text. Its first part says how it is looked up:

    name.part       a name of the module: a symbol of its own or an import
    self.part       the class that the method belongs to, its bases and its subclasses
    super().part    the bases alone
    Type().part     an instance of `Type`, known from an annotation or a constructor call
    !module.part    a text that reads like a full name, as lazy imports write it
    ?.part          an object whose type is not known: every live class that has `part` is meant
"""

import ast
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from verl_e2e.core.reach.source_limits import beyond_limits

BODY = ""
# What a later Python alone can read, an import in a run cannot, whichever Python this is.
_PYTHON_OF_RUNS = (3, 12)
# Raise it whenever a summary of the same text would read differently: stored ones are then made again.
SUMMARY_VERSION = 9


# Tables of a file are tuples, because a tree has some ten thousand of them: they are made in a quarter of the time.
class Import(NamedTuple):
    """One imported name: `module` (with `dots` in front when relative), `attribute` (None: the module itself).

    `scope` is the symbol that executes the import, `guarded` whether an ImportError is caught, `typing` whether
    only a type checker sees it, `conditional` whether it is in a block that its scope may skip.
    """

    name: str
    module: str
    dots: int
    attribute: str | None
    line: int
    scope: str
    guarded: bool = False
    typing: bool = False
    conditional: bool = False


class Symbol(NamedTuple):
    """A function, a class, a method (`Class.method`), a module variable, or the module's body (`""`).

    `bases` and `decorated` are set for classes; `decorated` says that a decorator may register the class. `serves` is
    set for a function that is registered as the implementation of another: it runs when that one is called.
    """

    name: str
    kind: str
    line: int
    refs: tuple[str, ...]
    bases: tuple[str, ...] = ()
    decorated: bool = False
    serves: str = ""


@dataclass(frozen=True)
class Summary:
    """One file. `problem` tells why nothing could be read, empty when all was.

    `lazy` pairs names with the modules that a table of the file says they come from: a module's `__getattr__`
    serves them.
    """

    symbols: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    problem: str = ""
    lazy: tuple[tuple[str, str], ...] = ()
    # The files that texts name, each with its folder where the text has one.
    files: tuple[str, ...] = ()

    # A summary is kept as long as its file's content is in use, and these with it.

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What reads like a full name in texts."""
        if "!" not in self._references:
            return ()
        return tuple(dict.fromkeys(ref[1:] for symbol in self.symbols for ref in symbol.refs if ref[0] == "!"))

    def naming(self, part: str) -> tuple[str, ...]:
        """The symbols that have a part in one of their references, in order."""
        # Most files have no part of this name, and a text is searched in far less time than the table takes to make.
        return self._naming.get(part, ()) if part in self._references else ()

    @cached_property
    def _references(self) -> str:
        """All references, one on each line."""
        return "\n".join([ref for symbol in self.symbols for ref in symbol.refs])

    @cached_property
    def _naming(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for symbol in self.symbols:
            for part in {part for ref in symbol.refs for part in ref.strip("!?^=").replace("()", "").split(".")}:
                found.setdefault(part, []).append(symbol.name)
        return {part: tuple(names) for part, names in found.items()}


def references(summary: Summary) -> Summary:
    """The summary without lines and files that texts name: equal where the same symbols refer to the same."""
    symbols = tuple(symbol._replace(line=0) for symbol in summary.symbols)
    imports = tuple(item._replace(line=0) for item in summary.imports)
    return replace(summary, symbols=symbols, imports=imports, files=())


def encoding_of(source: bytes | None) -> str:
    """The encoding that a source declares, by a mark or by its first lines; empty for one that Python refuses."""
    try:
        return tokenize.detect_encoding(iter((source or b"").splitlines(keepends=True)[:2]).__next__)[0]
    except SyntaxError:
        return ""


def parse(source: bytes) -> ast.Module | str:
    """The syntax tree, or one clause that says why there is none."""
    if problem := beyond_limits(source):
        return problem
    try:
        # Not every version of Python decodes comments, but what reads the sources of a run does.
        if encoding_of(source) in {"", "utf-8", "utf-8-sig"}:
            source.decode()
        return ast.parse(source, feature_version=_PYTHON_OF_RUNS)
    except SyntaxError as error:
        return f"line {error.lineno or 1} is not Python ({error.msg})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"it is not Python ({type(error).__name__})"

"""The contract check: what verl imports and calls from Bridge at the base still works at the head.

No GPU and no import: both trees are read. What is missing on both sides is skew that the change did not cause.
"""

import ast
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from verl_e2e.core.reach.effects import Sides
from verl_e2e.core.reach.entries import CallSite, Uses
from verl_e2e.core.reach.program import Node, Program, parse_to_read
from verl_e2e.core.reach.syntax import walk
from verl_e2e.core.reach.walk import Entry

Read = Callable[[str], bytes | None]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Kind(StrEnum):
    """What a contract finding means: a `break` fails the Bridge-side checks, the others are only reported."""

    BREAK = "break"
    GUARDED = "guarded"
    SKEW = "skew"


@dataclass(frozen=True, slots=True)
class ContractFinding:
    """One use in verl that the head does not serve; `file` and `line` are verl's, `name` is Bridge's."""

    kind: Kind
    name: str
    reason: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}: {self.reason}"


def check_contract(
    uses: Uses, both: Sides, changed: Container[str], read_base: Read, read_head: Read
) -> tuple[ContractFinding, ...]:
    """Every finding, breaks first.

    `changed` are the paths that differ: no other definition is looked at. `read_base` and `read_head` give a file's
    content by its path.
    """
    found = [*_imports(uses, both)]

    @cache
    def definitions(of_head: bool, path: str | None) -> Mapping[str, _Function]:
        """The functions and methods of a file; of several with one name the outermost, first one."""
        content = (read_head if of_head else read_base)(path) if path is not None else None
        tree = parse_to_read(content or b"")
        classes: dict[str, ast.ClassDef] = {}
        functions: dict[str, _Function] = {}
        for node in () if isinstance(tree, str) else walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)
            elif isinstance(node, _Function):
                functions.setdefault(node.name, node)
        for owner in classes.values():
            for item in owner.body:
                if isinstance(item, _Function):
                    functions.setdefault(f"{owner.name}.{item.name}", item)
        return functions

    guarded = {entry.attribute for entry in uses.entries if entry.guarded}
    places = {entry.attribute: entry.module for entry in uses.entries if entry.module and entry.attribute is not None}
    for site in uses.calls:
        definers = both.base_reach.definers(site.name) if site.method else ()
        if definers and not both.head_reach.definers(site.name):
            # No live class of the head defines the method any more.
            reason = "verl calls this method, and the head has it no more"
            found.append(ContractFinding(Kind.BREAK, f"{definers[0]}.{site.name}", reason, site.file, site.line))
        for node in _targets(site, both, places):
            if both.head.paths.get(node.module) not in changed:
                continue
            before, after = (
                definitions(program is both.head, program.paths.get(node.module)).get(node.symbol)
                for program in (both.base, both.head)
            )
            if before is None or after is None or ast.dump(before.args) == ast.dump(after.args):
                continue
            if not misfit(before, site) and (problem := misfit(after, site)):
                kind = Kind.GUARDED if site.name in guarded else Kind.BREAK
                reason = f"verl's call no longer fits: {problem}"
                found.append(ContractFinding(kind, str(node), reason, site.file, site.line))
    return tuple(sorted(set(found), key=lambda item: (list(Kind).index(item.kind), item.file, item.line, item.name)))


def _imports(uses: Uses, both: Sides) -> Iterator[ContractFinding]:
    for entry in uses.entries:
        if not entry.module:
            continue
        name = f"{entry.module}.{entry.attribute}" if entry.attribute else entry.module
        if _has(both.head, entry):
            continue
        if not _has(both.base, entry):
            kind, reason = Kind.SKEW, "missing at base and head alike"
        elif entry.guarded:
            kind, reason = Kind.GUARDED, "gone, where verl survives an ImportError"
        else:
            kind, reason = Kind.BREAK, "verl imports it, and the head has it no more"
        yield ContractFinding(kind, name, reason, entry.file, entry.line)


def _has(program: Program, entry: Entry) -> bool:
    if entry.module not in program:
        return False
    return entry.attribute is None or program.lookup(entry.module, entry.attribute) is not None


def _targets(site: CallSite, both: Sides, places: Mapping[str, str]) -> list[Node]:
    if site.method:
        return [Node(cls.module, f"{cls.symbol}.{site.name}") for cls in both.head_reach.definers(site.name)]
    module = places.get(site.name)
    found = both.head.lookup(module, site.name) if module else None
    if found is None:
        return []
    return [Node(found.node.module, f"{found.node.symbol}.__init__") if found.kind == "class" else found.node]


def misfit(function: ast.FunctionDef | ast.AsyncFunctionDef, site: CallSite) -> str:
    """Why a call does not fit a definition; empty when it does, or when its open arguments may make it fit."""
    arguments = function.args
    plain = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list)
    if (site.method or function.name == "__init__") and not static:
        plain = plain[1:]
    by_name = {*plain[len(arguments.posonlyargs) :], *(parameter.arg for parameter in arguments.kwonlyargs)}
    by_name |= set(plain) - {parameter.arg for parameter in arguments.posonlyargs}
    unknown = [name for name in site.keywords if name not in by_name] if arguments.kwarg is None else []
    if unknown:
        return f"no parameter {unknown[0]!r}"
    if site.positional > len(plain) and arguments.vararg is None:
        return f"{site.positional} positional arguments, and it takes {len(plain)}"
    by_keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required = plain[site.positional : len(plain) - len(arguments.defaults)]
    required += [parameter.arg for parameter, default in by_keyword if default is None]
    missing = [name for name in required if name not in site.keywords]
    return f"parameter {missing[0]!r} is required" if missing and not site.open_ended else ""

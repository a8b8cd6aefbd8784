"""What differs in one version of a file, function by function, and where a statement of it is."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach import excuses
from verl_e2e.core.reach.blocks import Block
from verl_e2e.core.reach.code_lines import Function


@dataclass(frozen=True, slots=True)
class Mark:
    """A place that differs."""

    # Where what differs begins.
    line: int
    # The first and the last line of the statement, or of the head of a block, that it is in.
    first: int
    last: int
    # Why it need not be executed.
    excuse: Excuse | None
    # Whether the whole statement is in this version alone.
    whole: bool
    # The statement, None for the head of a block that no node stands for.
    node: ast.AST | None = None
    # The class whose body it is in; None outside of a class body.
    class_name: str | None = None


@dataclass(slots=True)
class Marked:
    """One function of one version, or what belongs to no function (`node` None), with what differs in it."""

    node: Function | ast.Lambda | None
    # Its qualified name as the source has it.
    name: str
    # Why nothing of its body need be executed.
    excuse: Excuse | None = None
    # Whether this version alone has it.
    whole: bool = False
    # Whether a call of it differs wherever its lines do not: its parameters, defaults or decorators, or which names are
    # its own.
    head_differs: bool = False
    # Whether an annotation in its head differs.
    annotation_differs: bool = False
    # The same function in the older version, for one of the newer.
    earlier: "Marked | None" = None
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a statement of one version is."""

    owner: Marked
    # All that differs on this side, by function.
    found: list[Marked]
    # The file's own errors that some place of the file catches.
    caught_elsewhere: frozenset[str] = frozenset()
    # By the name of a function: the errors that callers of the file catch.
    callers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Prefix of the qualified names of what is defined here.
    prefix: str = ""
    excuse: Excuse | None = None
    # The class whose body this is; None outside of a class body.
    class_name: str | None = None
    in_protocol: bool = False
    # The errors that are caught around here in this function.
    caught: frozenset[str] = frozenset()
    # The lines of this block below its head; empty where they are not known.
    block_lines: range = range(0)
    # The lambdas of this side that were met, by the `id` of their nodes.
    lambdas: dict[int, Marked] = field(default_factory=dict)

    def mark(self, line: int, node: ast.AST, excuse: Excuse | None, *, whole: bool, first: int, last: int = 0) -> None:
        """Note that a part of a statement, or of the head of a block, differs."""
        end = last or getattr(node, "end_lineno", None) or first
        excuse = self.excuse or excuse
        self.owner.marks.append(Mark(line, first, max(end, first), excuse, whole, node, self.class_name))

    def excuse_of(self, node: ast.stmt) -> Excuse | None:
        """What excuses a statement here."""
        if isinstance(node, ast.AnnAssign) and self.class_name is not None:
            # A field: decorators and base classes read it.
            return None
        return self._unless_caught(excuses.of_statement(node), [node])

    def head_excuse_of(self, block: Block) -> Excuse | None:
        """What excuses the head of a block."""
        return self._unless_caught(block.head_excuse, block.body)

    def _unless_caught(self, excuse: Excuse | None, body: Iterable[ast.AST]) -> Excuse | None:
        error = excuse is Excuse.ERROR_PATH
        return None if error and excuses.may_go_on(body, self.caught, self.caught_elsewhere) else excuse

    def function(self, node: Function, *, whole: bool) -> "Scope":
        """The body of a function that is defined here."""
        name = f"{self.prefix}{node.name}"
        called = node.name if node.name != "__init__" else (self.class_name or "").rpartition(".")[2]
        inner = replace(self, caught=self.callers.get(called, frozenset()))
        own = excuses.of_function(node, in_protocol=self.in_protocol)
        return self._inner(node, name, self.excuse or inner._unless_caught(own, node.body), inner.caught, whole=whole)

    def of_lambda(self, node: ast.Lambda, excuse: Excuse | None, *, whole: bool) -> "Scope":
        """The body of a lambda that is made here."""
        known = self.lambdas.get(id(node))
        if known is not None:
            return replace(self, owner=known, prefix=f"{known.name}.<locals>.")
        made = self._inner(node, f"{self.prefix}<lambda>", self.excuse or excuse, frozenset(), whole=whole)
        self.lambdas[id(node)] = made.owner
        return made

    def _inner(
        self,
        node: Function | ast.Lambda,
        name: str,
        excuse: Excuse | None,
        caught: frozenset[str],
        *,
        whole: bool,
    ) -> "Scope":
        owner = Marked(node, name, excuse, whole)
        self.found.append(owner)
        prefix = f"{name}.<locals>."
        shared = (self.found, self.caught_elsewhere, self.callers)
        return Scope(owner, *shared, prefix, excuse, caught=caught, lambdas=self.lambdas)

    def of_class(self, node: ast.ClassDef) -> "Scope":
        """The body of a class that is defined here."""
        name, protocol = f"{self.prefix}{node.name}", excuses.is_protocol(node)
        return replace(self, prefix=f"{name}.", class_name=name, in_protocol=protocol, block_lines=range(0))

    def inside(self, block: Block) -> "Scope":
        """The body of a block."""
        excuse = self.excuse or self._unless_caught(block.excuse, block.body)
        return replace(self, excuse=excuse, caught=self.caught | block.caught, block_lines=block.body_lines)

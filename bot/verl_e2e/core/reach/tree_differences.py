"""Which statements of a file, and which parts of them, the other version does not have: function by function.

Both trees are in their normal form. A definition is compared with the one of its name wherever that is, any other
statement with the one in its place; what has no counterpart is marked as a whole, and what has an unequal one by its
parts that differ.
"""

import ast
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from verl_e2e.core.model.execution import Excuse
from verl_e2e.core.reach.normal import Pair, TreeNumbers
from verl_e2e.core.reach.statements import (
    Block,
    Function,
    begins,
    blocks_of,
    caught_by_callers,
    first_line,
    is_protocol,
    may_go_on,
    of_function,
    of_statement,
    own_errors_caught,
    test_line,
)
from verl_e2e.core.reach.syntax import own_nodes, walk


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
        return self._unless_caught(of_statement(node), [node])

    def head_excuse_of(self, block: Block) -> Excuse | None:
        """What excuses the head of a block."""
        return self._unless_caught(block.head_excuse, block.body)

    def _unless_caught(self, excuse: Excuse | None, body: Iterable[ast.AST]) -> Excuse | None:
        error = excuse is Excuse.ERROR_PATH
        return None if error and may_go_on(body, self.caught, self.caught_elsewhere) else excuse

    def function(self, node: Function, *, whole: bool) -> "Scope":
        """The body of a function that is defined here."""
        name = f"{self.prefix}{node.name}"
        called = node.name if node.name != "__init__" else (self.class_name or "").rpartition(".")[2]
        inner = replace(self, caught=self.callers.get(called, frozenset()))
        own = of_function(node, in_protocol=self.in_protocol)
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
        name, protocol = f"{self.prefix}{node.name}", is_protocol(node)
        return replace(self, prefix=f"{name}.", class_name=name, in_protocol=protocol, block_lines=range(0))

    def inside(self, block: Block) -> "Scope":
        """The body of a block."""
        excuse = self.excuse or self._unless_caught(block.excuse, block.body)
        return replace(self, excuse=excuse, caught=self.caught | block.caught, block_lines=block.body_lines)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UnnamedHead(ast.Pass):
    """The head of a block that no node stands for."""


def lambdas_of(part: object) -> Iterator[ast.Lambda]:
    """The lambdas in a part of a statement, without those in functions that it defines."""
    if isinstance(part, ast.AST):
        for node in walk(part):
            if isinstance(node, ast.Lambda):
                yield node


def matters(node: ast.stmt, scope: Scope) -> bool:
    """Whether a run differs without a statement: an error that does not come any more counts."""
    return isinstance(node, ast.Raise) or (scope.excuse is None and scope.excuse_of(node) is None)


def mark_place(node: ast.AST, scope: Scope) -> None:
    """Demand what a statement begins with, unless it is an error that no run executes."""
    blocks = blocks_of(node)
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.Try | ast.TryStar) and node.body:
        mark_place(node.body[0], scope)
    elif blocks:
        scope.mark(blocks[0].line, ast.Pass(), None, whole=False, first=blocks[0].line, last=blocks[0].last)
    else:
        assert isinstance(node, ast.stmt)
        simple = not isinstance(node, Definition)
        line = begins(node) if simple else first_line(node)
        last = node.end_lineno if simple and node.end_lineno else line
        scope.mark(line, ast.Pass(), None, whole=False, first=line, last=last)


def mark_whole(node: ast.AST | None, scope: Scope) -> None:
    """All of a statement that the other version does not have."""
    assert isinstance(node, ast.stmt)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if scope.owner.node is not None:
                line = first_line(node)
                scope.mark(line, node, None, whole=True, first=line, last=line)
            _mark_lambdas([node.args, *node.decorator_list], scope, None)
            inner = scope.function(node, whole=True)
            for item in node.body:
                mark_whole(item, inner)
        case ast.ClassDef():
            line = first_line(node)
            scope.mark(line, node, None, whole=True, first=line, last=node.lineno)
            for item in node.body:
                mark_whole(item, scope.of_class(node))
        case _ if blocks := blocks_of(node):
            for block in blocks:
                mark_block(block, scope)
        case _:
            line, excuse = begins(node), scope.excuse_of(node)
            scope.mark(line, node, excuse, whole=True, first=line)
            _mark_lambdas([node], scope, excuse)


def mark_block(block: Block, scope: Scope) -> None:
    """All of a block that the other version does not have."""
    if block.head or block.node is not None:
        excuse = scope.head_excuse_of(block)
        scope.mark(block.line, block.node or UnnamedHead(), excuse, whole=True, first=block.line, last=block.last)
        _mark_lambdas(block.head, scope, excuse)
    for item in block.body:
        mark_whole(item, scope.inside(block))


def _mark_lambdas(parts: Iterable[ast.AST], scope: Scope, excuse: Excuse | None) -> None:
    """The lambdas of a statement that the other version does not have."""
    for part in parts:
        for node in lambdas_of(part):
            inner = scope.of_lambda(node, excuse, whole=True)
            inner.mark(node.body.lineno, node, inner.excuse, whole=True, first=node.lineno)


# A line where something differs, and the lambda in whose body that is.
_Part = tuple[int, ast.Lambda | None]


def differences(
    before: ast.Module,
    after: ast.Module,
    numbers: TreeNumbers,
    catching: tuple[list[ast.AST], list[ast.AST]],
) -> tuple[tuple[Marked, ...], tuple[Marked, ...]]:
    """What differs in the older and in the newer version, each function with its marks.

    `catching` are the statements of each version that may catch an error.
    """
    sides = tuple(Marked(None, "") for _ in range(2))
    caught = own_errors_caught(chain(*catching))
    callers = tuple(map(caught_by_callers, catching))
    scopes = tuple(Scope(side, [side], caught, names) for side, names in zip(sides, callers, strict=True))
    _Comparison(numbers).bodies(before.body, after.body, scopes[0], scopes[1])
    return tuple(scopes[0].found), tuple(scopes[1].found)


class _Comparison:
    def __init__(self, numbers: TreeNumbers) -> None:
        self._numbers = numbers

    def bodies(self, old: list[ast.stmt], new: list[ast.stmt], ours: Scope, theirs: Scope) -> None:
        """The statements of two bodies that take each other's place."""
        numbers = self._numbers
        if numbers.of(old) == numbers.of(new):
            return
        definitions = _definitions(old), _definitions(new)
        for before, after in numbers.paired(*definitions, (self._head, _title)):
            self._pair(before, after, ours, theirs)
        self._reordered(*definitions, theirs)
        pairs = list(numbers.aligned(_others(old), _others(new), (self._target, type)))
        for before, after in pairs:
            self._pair(before, after, ours, theirs)
        if theirs.owner.node is not None and theirs.excuse is None:
            self._mark_gaps(pairs, old, new, ours, theirs)

    def _reordered(self, old: Sequence[ast.AST], new: Sequence[ast.AST], theirs: Scope) -> None:
        """Definitions of one name of which another one is the last now."""
        of = self._numbers.of
        before, after = (_by_title(nodes) for nodes in (old, new))
        for title, nodes in after.items():
            order, other = list(map(of, before.get(title, ()))), list(map(of, nodes))
            last = nodes[-1]
            if order != other and sorted(order) == sorted(other) and isinstance(last, Function):
                theirs.function(last, whole=False).owner.head_differs = True

    def _mark_gaps(
        self, pairs: Iterable[Pair], old: list[ast.stmt], new: list[ast.stmt], ours: Scope, theirs: Scope
    ) -> None:
        """Where statements are gone: what is executed next there tells whether they would have been executed."""
        known = {id(before): after for before, after in pairs if before is not None and after is not None}
        later, earlier = _nearest(reversed(old), known), _nearest(old, known)
        for node in old:
            if isinstance(node, Definition) or id(node) in known or not matters(node, ours):
                continue
            place = later.get(id(node)) or earlier.get(id(node)) or next(iter(new), None)
            if place is not None:
                mark_place(place, theirs)
            elif theirs.block_lines:
                first, last = theirs.block_lines[0], theirs.block_lines[-1]
                theirs.mark(first, ast.Pass(), None, whole=False, first=first, last=last)

    def _head(self, node: ast.AST) -> Hashable:
        """What tells definitions of one name apart, as a property and its setter."""
        return _title(node), self._numbers.of(getattr(node, "decorator_list", None))

    def _target(self, node: ast.AST) -> Hashable:
        """What two versions of one statement have in common: what is assigned, called, tested or gone through."""
        for name in ("targets", "target", "test", "items", "subject"):
            if hasattr(node, name):
                return type(node), self._numbers.of(getattr(node, name))
        value = getattr(node, "value", None)
        return type(node), self._numbers.of(value.func) if isinstance(value, ast.Call) else None

    def _pair(self, old: ast.AST | None, new: ast.AST | None, ours: Scope, theirs: Scope) -> None:
        if old is not None and new is not None and self._numbers.of(old) == self._numbers.of(new):
            return
        names = ast.Global | ast.Nonlocal
        if theirs.owner.node is not None and (isinstance(old, names) or isinstance(new, names)):
            # The statement does nothing itself, and decides what others of the function mean.
            theirs.owner.head_differs = True
        if new is None:
            mark_whole(old, ours)
        elif old is None:
            mark_whole(new, theirs)
        else:
            self._changed(old, new, ours, theirs)

    def _changed(self, old: ast.AST, new: ast.AST, ours: Scope, theirs: Scope) -> None:
        match old, new:
            case ((ast.FunctionDef() | ast.AsyncFunctionDef()), (ast.FunctionDef() | ast.AsyncFunctionDef())):
                self._function(old, new, ours, theirs)
            case ast.ClassDef(), ast.ClassDef():
                self._heads(_class_head(old), _class_head(new), ours, theirs)
                self.bodies(old.body, new.body, ours.of_class(old), theirs.of_class(new))
            case _:
                self._statement(old, new, ours, theirs)

    def _function(self, old: Function, new: Function, ours: Scope, theirs: Scope) -> None:
        before, after = ours.function(old, whole=False), theirs.function(new, whole=False)
        of = self._numbers.of
        same = all(of(text) == of(other) for text, other in zip(_called_by(old), _called_by(new), strict=True))
        after.owner.earlier = before.owner
        after.owner.head_differs = not same
        after.owner.annotation_differs = same and any(
            of(text) != of(other) for text, other in ((old.args, new.args), (old.returns, new.returns))
        )
        heads = [[*node.args.defaults, *node.args.kw_defaults, *node.decorator_list] for node in (old, new)]
        self._mark_parts(heads[0], heads[1], theirs, None, new, first=first_line(new), lambdas_alone=True)
        self.bodies(old.body, new.body, before, after)

    def _mark_parts(
        self,
        old: object,
        new: object,
        scope: Scope,
        excuse: Excuse | None,
        node: ast.AST,
        *,
        first: int,
        last: int = 0,
        lambdas_alone: bool = False,
    ) -> None:
        """Mark the parts that the other version does not have, each in its function or its lambda."""
        start = first if isinstance(node, Definition) else getattr(node, "lineno", first)
        for line, inner in dict.fromkeys(self._parts(old, new, start)):
            if inner is not None:
                body = scope.of_lambda(inner, excuse, whole=False)
                body.mark(line, inner, body.excuse, whole=False, first=inner.lineno)
            elif not lambdas_alone:
                scope.mark(line, node, excuse, whole=False, first=first, last=last)

    def _statement(self, old: ast.AST, new: ast.AST, ours: Scope, theirs: Scope) -> None:
        before, after = blocks_of(old), blocks_of(new)
        if not before and not after:
            assert isinstance(old, ast.stmt)
            assert isinstance(new, ast.stmt)
            annotation = _differs_by_annotation(old, new, self._numbers)
            for text, other, scope in ((old, new, theirs), (new, old, ours)):
                excuse = Excuse.IDLE if annotation and scope.class_name is None else scope.excuse_of(other)
                self._mark_parts(text, other, scope, excuse, other, first=begins(other))
            return
        fixed = [[block for block in blocks if block.node is None] for blocks in (before, after)]
        for text, other in zip(*fixed, strict=True):
            self._block(text, other, ours, theirs)
        by_node = {id(block.node): block for block in (*before, *after) if block.node is not None}
        nodes = [[block.node for block in blocks if block.node is not None] for blocks in (before, after)]
        for one, two in self._numbers.aligned(nodes[0], nodes[1], (_caught, type)):
            if one is None or two is None:
                mark_block(by_node[id(one or two)], ours if two is None else theirs)
            else:
                self._block(by_node[id(one)], by_node[id(two)], ours, theirs)

    def _block(self, old: Block, new: Block, ours: Scope, theirs: Scope) -> None:
        self._heads(old, new, ours, theirs)
        self.bodies(old.body, new.body, ours.inside(old), theirs.inside(new))

    def _heads(self, old: Block, new: Block, ours: Scope, theirs: Scope) -> None:
        if self._numbers.of(list(old.head)) == self._numbers.of(list(new.head)):
            return
        for text, other, scope in ((old, new, theirs), (new, old, ours)):
            parts, node = (list(text.head), list(other.head)), other.node or UnnamedHead(lineno=other.line)
            self._mark_parts(*parts, scope, scope.head_excuse_of(other), node, first=other.line, last=other.last)

    def _parts(self, old: object, new: object, line: int, within: ast.Lambda | None = None) -> Iterator[_Part]:
        """The lines where the parts of a statement begin that the other one does not have."""
        of = self._numbers.of
        # The normal form of a message has no line of its own.
        here = test_line(new) if isinstance(new, ast.BoolOp | ast.UnaryOp) else getattr(new, "lineno", line)
        if isinstance(old, list) and isinstance(new, list):
            if len(old) == len(new):
                for text, other in zip(old, new, strict=True):
                    if of(text) != of(other):
                        yield from self._parts(text, other, line, within)
                return
            had = Counter(map(of, old))
            had.subtract(map(of, new))
            only = [part for part in new if had[of(part)] < 0]
            yield from ((getattr(part, "lineno", line), within) for part in only) if only else ((line, within),)
            yield from ((inner.body.lineno, inner) for part in only for inner in lambdas_of(part))
        elif isinstance(old, ast.AST) and type(old) is type(new) and not isinstance(old, ast.Constant):
            inner = new if isinstance(new, ast.Lambda) else within
            for name in old._fields:
                text, other = getattr(old, name, None), getattr(new, name, None)
                if of(text) != of(other):
                    yield from self._parts(text, other, here, inner)
        else:
            yield here, within
            yield from ((inner.body.lineno, inner) for inner in lambdas_of(new))


def _nearest(body: Iterable[ast.stmt], known: Mapping[int, ast.AST]) -> dict[int, ast.AST]:
    """For each statement without a counterpart that of the nearest one before it, where there is one."""
    found: dict[int, ast.AST] = {}
    last = None
    for node in body:
        last = known.get(id(node), last)
        if last is not None:
            found[id(node)] = last
    return found


def _by_title(nodes: Iterable[ast.AST]) -> dict[Hashable, list[ast.AST]]:
    found: dict[Hashable, list[ast.AST]] = {}
    for node in nodes:
        found.setdefault(_title(node), []).append(node)
    return found


def _definitions(body: list[ast.stmt]) -> list[ast.AST]:
    return [item for item in body if isinstance(item, Definition)]


def _others(body: list[ast.stmt]) -> list[ast.AST]:
    return [item for item in body if not isinstance(item, Definition)]


def _class_head(node: ast.ClassDef) -> Block:
    return Block((*node.bases, *node.keywords, *node.decorator_list), [], first_line(node), node)


def _title(node: ast.AST) -> Hashable:
    return isinstance(node, ast.ClassDef), getattr(node, "name", None)


def _caught(node: ast.AST) -> Hashable:
    """What tells the handlers of one statement apart."""
    return type(node), ast.dump(node.type) if isinstance(node, ast.ExceptHandler) and node.type else None


def _called_by(node: Function) -> tuple[object, ...]:
    """What decides how a call of a function begins: all of its head but annotations."""
    arguments = node.args
    plain = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    rests = [item.arg if item else None for item in (arguments.vararg, arguments.kwarg)]
    by_name = [item.arg for item in arguments.kwonlyargs]
    counts = [len(arguments.posonlyargs)]
    values = (list(arguments.defaults), list(arguments.kw_defaults), list(node.decorator_list))
    inside = (item for statement in node.body for item in own_nodes(statement))
    generator = any(isinstance(item, ast.Yield | ast.YieldFrom) for item in inside)
    return (type(node).__name__, generator, plain, rests, by_name, counts, *values)


def _differs_by_annotation(old: ast.stmt, new: ast.stmt, numbers: TreeNumbers) -> bool:
    """Whether nothing but the annotation of an assignment differs."""
    if not isinstance(old, ast.AnnAssign) or not isinstance(new, ast.AnnAssign):
        return False
    return numbers.of([old.target, old.value]) == numbers.of([new.target, new.value])

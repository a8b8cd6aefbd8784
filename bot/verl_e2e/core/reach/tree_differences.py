"""Which statements of a file, and which parts of them, the other version does not have: function by function.

Both trees are in their normal form. A definition is compared with the one of its name wherever that is, any other
statement with the one in its place; what has no counterpart is marked as a whole, and what has an unequal one by its
parts that differ.
"""

import ast
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach import excuses
from verl_e2e.core.reach.blocks import Block, begins, blocks_of, test_line
from verl_e2e.core.reach.code_lines import Function, first_line
from verl_e2e.core.reach.normal import Frozen
from verl_e2e.core.reach.tree_numbers import TreeNumbers

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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


@dataclass(slots=True)
class Marked:
    """One function of one version, or what belongs to no function (`node` None), with what differs in it."""

    node: Function | None
    # Its qualified name as the source has it.
    name: str
    # Why nothing of its body need be executed.
    excuse: Excuse | None = None
    # Whether this version alone has it.
    whole: bool = False
    # Whether a call of it differs wherever its lines do not: its parameters, defaults or decorators.
    head_differs: bool = False
    # Whether an annotation in its head differs.
    annotation_differs: bool = False
    # The same function in the older version, for one of the newer.
    earlier: "Marked | None" = None
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a statement of one version is."""

    owner: Marked
    # All that differs on this side, by function.
    found: list[Marked]
    # Prefix of the qualified names of what is defined here.
    prefix: str = ""
    excuse: Excuse | None = None
    in_protocol: bool = False

    def mark(self, line: int, node: ast.AST, excuse: Excuse | None, *, whole: bool, first: int, last: int = 0) -> None:
        end = last or getattr(node, "end_lineno", None) or first
        self.owner.marks.append(Mark(line, first, max(end, first), self.excuse or excuse, whole))

    def function(self, node: Function, *, whole: bool) -> "_Scope":
        name = f"{self.prefix}{node.name}"
        excuse = self.excuse or excuses.of_function(node, in_protocol=self.in_protocol)
        owner = Marked(node, name, excuse, whole)
        self.found.append(owner)
        return _Scope(owner, self.found, f"{name}.<locals>.", excuse)

    def of_class(self, node: ast.ClassDef) -> "_Scope":
        return replace(self, prefix=f"{self.prefix}{node.name}.", in_protocol=excuses.is_protocol(node))

    def inside(self, block: "Block") -> "_Scope":
        return replace(self, excuse=self.excuse or block.excuse)


def differences(
    before: ast.Module, after: ast.Module, tokens: Mapping[int, Frozen]
) -> tuple[tuple[Marked, ...], tuple[Marked, ...]]:
    """What differs in the older and in the newer version, each function with its marks."""
    sides = tuple(Marked(None, "") for _ in range(2))
    scopes = tuple(_Scope(side, [side]) for side in sides)
    _Comparison(TreeNumbers(tokens)).bodies(before.body, after.body, scopes[0], scopes[1])
    return tuple(scopes[0].found), tuple(scopes[1].found)


class _Comparison:
    def __init__(self, numbers: TreeNumbers) -> None:
        self._numbers = numbers

    def bodies(self, old: list[ast.stmt], new: list[ast.stmt], ours: _Scope, theirs: _Scope) -> None:
        """The statements of two bodies that take each other's place."""
        numbers = self._numbers
        if numbers.of(old) == numbers.of(new):
            return
        for before, after in numbers.paired(_definitions(old), _definitions(new), (self._head, _title)):
            self._pair(before, after, ours, theirs)
        for before, after in numbers.aligned(_others(old), _others(new), (self._target, type)):
            self._pair(before, after, ours, theirs)

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

    def _pair(self, old: ast.AST | None, new: ast.AST | None, ours: _Scope, theirs: _Scope) -> None:
        if new is None:
            _mark_whole(old, ours)
        elif old is None:
            _mark_whole(new, theirs)
        elif self._numbers.of(old) != self._numbers.of(new):
            self._changed(old, new, ours, theirs)

    def _changed(self, old: ast.AST, new: ast.AST, ours: _Scope, theirs: _Scope) -> None:
        match old, new:
            case ((ast.FunctionDef() | ast.AsyncFunctionDef()), (ast.FunctionDef() | ast.AsyncFunctionDef())):
                self._function(old, new, ours, theirs)
            case ast.ClassDef(), ast.ClassDef():
                self._heads(_class_head(old), _class_head(new), ours, theirs)
                self.bodies(old.body, new.body, ours.of_class(old), theirs.of_class(new))
            case _:
                self._statement(old, new, ours, theirs)

    def _function(self, old: Function, new: Function, ours: _Scope, theirs: _Scope) -> None:
        before, after = ours.function(old, whole=False), theirs.function(new, whole=False)
        of = self._numbers.of
        same = all(of(text) == of(other) for text, other in zip(_called_by(old), _called_by(new), strict=True))
        after.owner.earlier = before.owner
        after.owner.head_differs = not same
        after.owner.annotation_differs = same and any(
            of(text) != of(other) for text, other in ((old.args, new.args), (old.returns, new.returns))
        )
        self.bodies(old.body, new.body, before, after)

    def _statement(self, old: ast.AST, new: ast.AST, ours: _Scope, theirs: _Scope) -> None:
        before, after = blocks_of(old), blocks_of(new)
        if not before and not after:
            assert isinstance(old, ast.stmt)
            assert isinstance(new, ast.stmt)
            annotation = _differs_by_annotation(old, new, self._numbers)
            for text, other, scope in ((old, new, theirs), (new, old, ours)):
                excuse = Excuse.IDLE if annotation else excuses.of_statement(other)
                for line in dict.fromkeys(self._parts(text, other, other.lineno)):
                    scope.mark(line, other, excuse, whole=False, first=begins(other))
            return
        fixed = [[block for block in blocks if block.node is None] for blocks in (before, after)]
        for text, other in zip(*fixed, strict=True):
            self._block(text, other, ours, theirs)
        by_node = {id(block.node): block for block in (*before, *after) if block.node is not None}
        nodes = [[block.node for block in blocks if block.node is not None] for blocks in (before, after)]
        for one, two in self._numbers.aligned(nodes[0], nodes[1], (_caught, type)):
            if one is None or two is None:
                _mark_block(by_node[id(one or two)], ours if two is None else theirs)
            else:
                self._block(by_node[id(one)], by_node[id(two)], ours, theirs)

    def _block(self, old: Block, new: Block, ours: _Scope, theirs: _Scope) -> None:
        self._heads(old, new, ours, theirs)
        self.bodies(old.body, new.body, ours.inside(old), theirs.inside(new))

    def _heads(self, old: Block, new: Block, ours: _Scope, theirs: _Scope) -> None:
        if self._numbers.of(list(old.head)) == self._numbers.of(list(new.head)):
            return
        for text, other, scope in ((old, new, theirs), (new, old, ours)):
            for line in dict.fromkeys(self._parts(list(text.head), list(other.head), other.line)):
                scope.mark(
                    line, other.node or ast.Pass(), other.head_excuse, whole=False, first=other.line, last=other.last
                )

    def _parts(self, old: object, new: object, line: int) -> Iterator[int]:
        """The lines where the parts of a statement begin that the other one does not have."""
        of = self._numbers.of
        # The normal form of a message has no line of its own.
        here = test_line(new) if isinstance(new, ast.BoolOp | ast.UnaryOp) else getattr(new, "lineno", line)
        if isinstance(old, list) and isinstance(new, list):
            if len(old) == len(new):
                for text, other in zip(old, new, strict=True):
                    if of(text) != of(other):
                        yield from self._parts(text, other, line)
                return
            had = Counter(map(of, old))
            had.subtract(map(of, new))
            only = [part for part in new if had[of(part)] < 0]
            yield from (getattr(part, "lineno", line) for part in only) if only else (line,)
        elif isinstance(old, ast.AST) and type(old) is type(new) and not isinstance(old, ast.Constant):
            for name in old._fields:
                text, other = getattr(old, name, None), getattr(new, name, None)
                if of(text) != of(other):
                    yield from self._parts(text, other, here)
        else:
            yield here


def _definitions(body: list[ast.stmt]) -> list[ast.AST]:
    return [item for item in body if isinstance(item, _Definition)]


def _others(body: list[ast.stmt]) -> list[ast.AST]:
    return [item for item in body if not isinstance(item, _Definition)]


def _class_head(node: ast.ClassDef) -> Block:
    return Block((*node.bases, *node.keywords, *node.decorator_list), [], first_line(node))


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
    return (type(node).__name__, plain, rests, by_name, counts, *values)


def _differs_by_annotation(old: ast.stmt, new: ast.stmt, numbers: TreeNumbers) -> bool:
    """Whether nothing but the annotation of an assignment differs."""
    if not isinstance(old, ast.AnnAssign) or not isinstance(new, ast.AnnAssign):
        return False
    return numbers.of([old.target, old.value]) == numbers.of([new.target, new.value])


def _mark_whole(node: ast.AST | None, scope: _Scope) -> None:
    """All of a statement that the other version does not have."""
    assert isinstance(node, ast.stmt)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if scope.owner.node is not None:
                line = first_line(node)
                scope.mark(line, node, None, whole=True, first=line, last=line)
            inner = scope.function(node, whole=True)
            for item in node.body:
                _mark_whole(item, inner)
        case ast.ClassDef():
            line = first_line(node)
            scope.mark(line, node, None, whole=True, first=line, last=node.lineno)
            for item in node.body:
                _mark_whole(item, scope.of_class(node))
        case _ if blocks := blocks_of(node):
            for block in blocks:
                _mark_block(block, scope)
        case _:
            line = begins(node)
            scope.mark(line, node, excuses.of_statement(node), whole=True, first=line)


def _mark_block(block: Block, scope: _Scope) -> None:
    if block.head or block.node is not None:
        scope.mark(
            block.line, block.node or ast.Pass(), block.head_excuse, whole=True, first=block.line, last=block.last
        )
    for item in block.body:
        _mark_whole(item, scope.inside(block))

"""Which statements of a file, and which parts of them, the other version does not have: function by function.

Both trees are in their normal form. A definition is compared with the one of its name wherever that is, any other
statement with the one in its place; what has no counterpart is marked as a whole, and what has an unequal one by its
parts that differ.
"""

import ast
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach import excuses
from verl_e2e.core.reach.blocks import Block, begins, blocks_of, test_line
from verl_e2e.core.reach.code_lines import Function, first_line
from verl_e2e.core.reach.marks import Marked, Scope
from verl_e2e.core.reach.nodes import own_nodes
from verl_e2e.core.reach.one_sided import (
    Definition,
    UnnamedHead,
    lambdas_of,
    mark_block,
    mark_place,
    mark_whole,
    matters,
)
from verl_e2e.core.reach.tree_numbers import Pair, TreeNumbers

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
    caught = excuses.own_errors_caught(chain(*catching))
    callers = tuple(map(excuses.caught_by_callers, catching))
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

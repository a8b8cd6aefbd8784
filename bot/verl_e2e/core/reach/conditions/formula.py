"""Conditions in normal form: literals under `all` and `any`, with every `not` pushed down to the literals."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from verl_e2e.core.reach.nodes import walk

_OPPOSITES: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Lt, ast.GtE),
    (ast.Gt, ast.LtE),
)
_NEGATED = dict(_OPPOSITES) | {right: left for left, right in _OPPOSITES}


@dataclass(frozen=True, slots=True)
class Literal:
    """One test that must hold as it is written."""

    # The test as the code states it, with its negation written out.
    text: str
    # The same as a syntax tree; None for what is not an expression, as a caught error.
    test: ast.expr | None = field(default=None, compare=False, repr=False)
    # Whether a run that fails it ends with an error, so that every healthy run passes it.
    healthy: bool = field(default=False, compare=False)
    # The names of the function around it with the only value that each is given there.
    names: "Names" = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class All:
    """All parts hold; without parts nothing is demanded."""

    parts: tuple["Formula", ...]


@dataclass(frozen=True, slots=True)
class Any:
    """At least one part holds; without parts nothing can fulfil it."""

    parts: tuple["Formula", ...]


Formula = Literal | All | Any
Names = dict[str, ast.expr]
NOTHING = All(())


def formula(test: ast.expr, names: Names, *, holds: bool = True) -> Formula:
    """The normal form of a test, or with `holds` False of its negation."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return formula(operand, names, holds=not holds)
        case ast.BoolOp(op=operator, values=values):
            parts = tuple(formula(value, names, holds=holds) for value in values)
            return all_of(parts) if isinstance(operator, ast.And) is holds else any_of(parts)
        case ast.Compare(left=left, ops=[_, _, *_] as ops, comparators=rights):
            lefts = (left, *rights[:-1])
            pairs = [
                ast.Compare(*item) for item in zip(lefts, ([op] for op in ops), ([r] for r in rights), strict=True)
            ]
            return formula(ast.BoolOp(ast.And(), list(pairs)), names, holds=holds)
        case ast.NamedExpr(value=value) | ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
            return formula(value, names, holds=holds)
        case ast.IfExp(test=choice, body=body, orelse=other) if not _chooses(choice):
            first = all_of((formula(choice, names), formula(body, names, holds=holds)))
            second = all_of((formula(choice, names, holds=False), formula(other, names, holds=holds)))
            return any_of(way for way in (first, second) if not _is_never(way))
        case ast.Constant(value=value):
            return NOTHING if bool(value) is holds else Any(())
        case _:
            return _literal(test, names, holds=holds)


def _is_never(condition: Formula) -> bool:
    """Whether nothing can fulfil a condition."""
    return any(part == Any(()) for part in conjuncts(condition))


def _chooses(test: ast.expr) -> bool:
    """Whether there is a choice in a test: one inside another would be written out twice."""
    return any(isinstance(node, ast.IfExp) for node in walk(test))


def _literal(test: ast.expr, names: Names, *, holds: bool) -> Literal:
    found = test
    if not holds:
        match test:
            case ast.Compare(left=left, ops=[op], comparators=rights):
                found = ast.Compare(left, [_NEGATED[type(op)]()], rights)
            case _:
                found = ast.UnaryOp(ast.Not(), test)
    return Literal(ast.unparse(found), found, names=names)


def all_of(parts: Iterable[Formula]) -> Formula:
    """The conjunction, flat, without repetitions and without what the other parts decide."""
    found: dict[Formula, None] = {}
    for part in parts:
        found.update(dict.fromkeys(part.parts if isinstance(part, All) else (part,)))
    if not any(isinstance(part, Any) and part.parts for part in found) or len(found) == 1:
        return next(iter(found)) if len(found) == 1 else All(tuple(found))
    facts = {part for part in found if isinstance(part, Literal)}
    against = {negation(fact) for fact in facts}
    kept: list[Formula] = [part for part in found if not isinstance(part, Any)]
    for part in found:
        if isinstance(part, Any) and not any(facts.issuperset(conjuncts(way)) for way in part.parts):
            ways = [way for way in part.parts if against.isdisjoint(conjuncts(way))]
            kept.append(any_of(ways) if ways else part)
    return all_of(kept) if len(facts) < sum(isinstance(part, Literal) for part in kept) else _flat(kept)


def _flat(parts: Iterable[Formula]) -> Formula:
    """The conjunction of parts that decide nothing of each other."""
    every = tuple(dict.fromkeys(item for part in parts for item in conjuncts(part)))
    return every[0] if len(every) == 1 else All(every)


def any_of(parts: Iterable[Formula]) -> Formula:
    """The disjunction, flat; what demands nothing fulfils it."""
    found: dict[Formula, None] = {}
    for part in parts:
        found.update(dict.fromkeys(part.parts if isinstance(part, Any) else (part,)))
    if NOTHING in found:
        return NOTHING
    return next(iter(found)) if len(found) == 1 else Any(tuple(found))


def negation(condition: Formula) -> Formula:
    """What holds where a condition does not; a caught error has no opposite that a test could state."""
    match condition:
        case All(parts=parts):
            return any_of(map(negation, parts))
        case Any(parts=parts):
            return all_of(map(negation, parts))
        case Literal(text=text, test=test, names=names):
            return Literal(f"not ({text})") if test is None else formula(test, names, holds=False)


def impossible(condition: Formula) -> bool:
    """Whether the parts contradict each other, as long as no name gets another value between them."""
    parts = conjuncts(condition)
    against = {negation(part) for part in parts if isinstance(part, Literal)}
    ways = (part.parts if isinstance(part, Any) else (part,) for part in parts)
    return any(all(not against.isdisjoint(conjuncts(way)) for way in each) for each in ways)


def conjuncts(condition: Formula) -> tuple[Formula, ...]:
    """The parts that all must hold."""
    return condition.parts if isinstance(condition, All) else (condition,)


def literals(condition: Formula) -> Iterator[Literal]:
    """Every literal, in order."""
    if isinstance(condition, Literal):
        yield condition
    else:
        for part in condition.parts:
            yield from literals(part)


def as_healthy(condition: Formula) -> Formula:
    """The same condition, passed by every run that does not end with an error."""
    match condition:
        case Literal():
            return replace(condition, healthy=True)
        case All(parts=parts):
            return All(tuple(map(as_healthy, parts)))
        case Any(parts=parts):
            return Any(tuple(map(as_healthy, parts)))


def expression_of(condition: Formula) -> ast.expr | None:
    """The condition as one expression; None where nothing is demanded or a part of it is not one."""
    if isinstance(condition, Literal):
        return condition.test
    tests = [test for part in condition.parts if (test := expression_of(part)) is not None]
    if not tests or len(tests) < len(condition.parts):
        return None
    operator = ast.And() if isinstance(condition, All) else ast.Or()
    return tests[0] if len(tests) == 1 else ast.BoolOp(operator, tests)


def text_of(condition: Formula) -> str:
    """The condition as one line of Python."""
    match condition:
        case Literal(text=text):
            return text
        case All(parts=parts):
            return " and ".join(
                f"({text_of(part)})" if isinstance(part, Any) and part.parts else text_of(part) for part in parts
            )
        case Any(parts=parts):
            ways = (f"({text_of(part)})" if isinstance(part, All) else text_of(part) for part in parts)
            return " or ".join(ways) or "False"

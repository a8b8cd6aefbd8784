"""What a test looks at, and which values of it pass: the form in which the rows of the table are held against code."""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from verl_e2e.core.reach.conditions.table import rows_by_name

_ROWS = rows_by_name()
_COMPARISONS: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


class Subject(NamedTuple):
    """What a test looks at: `owner.name`, where `owner` is the last name before the dot."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class Test:
    """A test of one subject against constants: whether a value of the subject passes it."""

    subject: Subject
    passes: Callable[[object], bool]
    # The constants that it is compared with.
    constants: tuple[object, ...] = ()


def test_of(test: ast.expr) -> Test | None:
    """A test in the form that rows are held against."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = test_of(operand)
            return None if inner is None else replace(inner, passes=lambda value: not inner.passes(value))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(left, op, right)
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
            named = _kinds(kind)
            return None if named is None else Test(named, bool)
        case _:
            subject = subject_of(test)
            return None if subject is None else Test(subject, bool)


def constants_pass(test: ast.expr) -> bool | None:
    """Whether a comparison of two constants holds; None for anything else."""
    match test:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            values = _constant(left), _constant(right)
            if values[0] is None or values[1] is None:
                return None
            try:
                return bool(_COMPARISONS[type(op)](values[0][0], values[1][0]))
            except TypeError:
                return False
        case _:
            return None


def _kinds(kind: ast.expr) -> Subject | None:
    kinds = [subject_of(item) for item in (kind.elts if isinstance(kind, ast.Tuple) else [kind])]
    return next((item for item in kinds if item is not None and item.name in _ROWS), None)


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Test | None:
    mirrored: dict[type[ast.cmpop], ast.cmpop] = {
        ast.Lt: ast.Gt(),
        ast.Gt: ast.Lt(),
        ast.LtE: ast.GtE(),
        ast.GtE: ast.LtE(),
    }
    if isinstance(left, ast.Constant) and not isinstance(op, ast.In | ast.NotIn):
        left, right, op = right, left, mirrored.get(type(op), op)
    subject, constant = subject_of(left), _constant(right)
    if subject is None or constant is None:
        return None
    compare, value = _COMPARISONS[type(op)], constant[0]

    def passes(candidate: object) -> bool:
        try:
            return bool(compare(candidate, value))
        except TypeError:
            return False

    known = value if isinstance(value, tuple) else (value,)
    return Test(subject, passes, known)


def _constant(node: ast.expr) -> tuple[object] | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return (tuple(value) if isinstance(value, list | set) else value,)


def subject_of(node: ast.expr) -> Subject | None:
    """What an expression looks at by its last names, through calls and subscripts; None for any other."""
    match node:
        case ast.Name(id=name):
            return Subject("", name)
        case ast.Attribute(value=value, attr=name):
            return Subject(last_name_of(value), name)
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]):
            return Subject(last_name_of(value), name)
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return Subject(last_name_of(value), name)
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
            return Subject(last_name_of(value), name)
        case ast.Call(func=ast.Name(id="len"), args=[value]):
            return Subject(last_name_of(value), "len")
        case ast.Call(func=ast.Name(id="get_pg_size" | "_process_group_size"), args=[group, *_]):
            return Subject(last_name_of(group), "size")
        case ast.Call(
            func=ast.Attribute(attr="get_world_size"), args=[], keywords=[ast.keyword(arg="group", value=group)]
        ):
            return Subject(last_name_of(group), "size")
        case ast.Call(func=function):
            return subject_of(function)
        case _:
            return None


def last_name_of(node: ast.expr) -> str:
    """The last name of what an expression looks at, empty where it has none."""
    found = subject_of(node)
    return "" if found is None else found.name

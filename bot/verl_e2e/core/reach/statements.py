"""The statements, blocks and functions of a file, and the lines that a run can report of them."""

import ast
import builtins
import opcode
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

from verl_e2e.core.model.execution import Excuse
from verl_e2e.core.reach.normal import Frozen, freeze, is_log_call
from verl_e2e.core.reach.syntax import copied, dotted, own_name, own_nodes, walk

_RESUME = opcode.opmap["RESUME"]
# Set in the flags of a function's code, as `inspect.CO_OPTIMIZED`.
_OPTIMIZED = 1
_LAMBDA = "<lambda>"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def first_line(node: ast.stmt | ast.Lambda) -> int:
    """The first line of a statement or a lambda, that of its first decorator for a definition."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


class CodeLines:
    """One compiled file."""

    def __init__(self, module: CodeType) -> None:
        self._module = module
        self._functions: dict[tuple[str, int], CodeType] = {}
        self._lines: dict[CodeType, frozenset[int]] = {}
        for code in _functions(module):
            self._functions.setdefault((code.co_name, code.co_firstlineno), code)

    def name(self, node: Function | ast.Lambda) -> str:
        """The function's qualified name; empty for one that the compiler drops, as in `if False:`."""
        code = self._functions.get(_key(node))
        return "" if code is None else code.co_qualname

    def lines(self, node: Function | ast.Lambda | None) -> frozenset[int]:
        """The lines that a run of a function with a name can report; of the module's and the class bodies for None."""
        code = self._module if node is None else self._functions[_key(node)]
        if code not in self._lines:
            self._lines[code] = frozenset(_reported(code))
        return self._lines[code]


def _key(node: Function | ast.Lambda) -> tuple[str, int]:
    return _LAMBDA if isinstance(node, ast.Lambda) else node.name, first_line(node)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Every function in a code object; a comprehension belongs to the function around it."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if _is_function(inner):
                yield inner
            yield from _functions(inner)


def _is_function(code: CodeType) -> bool:
    """Whether it is the body of a `def` or a lambda: classes and modules have no fast locals, others a name in `<>`."""
    return bool(code.co_flags & _OPTIMIZED) and (not code.co_name.startswith("<") or code.co_name == _LAMBDA)


def _reported(code: CodeType) -> Iterator[int]:
    """The lines of a function and of what belongs to it."""
    # What is on the line on which a frame begins is reported by some interpreters, and by others it is not.
    resumes = 2 * code.co_code[::2].index(_RESUME)
    table = list(code.co_lines())
    begin = next(line for first, end, line in table if first <= resumes < end)
    yield from (line for _, end, line in table if line and line != begin and end > resumes)
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not _is_function(inner):
            yield from _reported(inner)


_ABSTRACT = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod"})
_PRINT = frozenset({"print"})
_LEAVES = ast.Return | ast.Yield | ast.YieldFrom | ast.Break | ast.Continue
_DOES_SOMETHING = (
    ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Starred
    # They go through what may be an iterator, which is then at its end.
    | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)  # fmt: skip
_READING = frozenset(
    {"abs", "bool", "float", "format", "hex", "id", "int", "isinstance", "len", "repr", "round", "str", "type"}
    | {"dim", "get", "get_rank", "get_world_size", "items", "keys", "lower", "numel", "size", "upper", "values"}
    | {"getpid", "perf_counter", "time"}
)
# Python itself, or a loop, catches them and goes on.
_CONTROL = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit"})
_ASKED_BY_PYTHON = ("__getattr__", "__getattribute__", "__getitem__", "__missing__", "__next__", "__anext__")


def of_statement(node: ast.stmt) -> Excuse | None:
    """What excuses a statement by itself, None for one that a run must execute."""
    match node:
        case ast.Raise():
            return Excuse.ERROR_PATH
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return Excuse.IDLE
        case ast.Expr(value=ast.Call() as call) if is_log_call(call, _PRINT):
            # Building a message must only read.
            parts = [part for argument in (*call.args, *call.keywords) for part in walk(argument)]
            called = {own_name(part.func) or dotted(part.func) for part in parts if isinstance(part, ast.Call)}
            acts = not called <= _READING or any(isinstance(part, _DOES_SOMETHING) for part in parts)
            return None if acts else Excuse.LOGGING
        case _:
            return None


def of_function(node: Function, *, in_protocol: bool) -> Excuse | None:
    """What excuses the whole body of a function, None where a run must execute it."""
    names = {dotted(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    body = [item for item in node.body if of_statement(item) is not Excuse.IDLE]
    match body:
        case _ if "overload" in names:
            return Excuse.ABSTRACT
        case []:
            return Excuse.ABSTRACT if in_protocol or names & _ABSTRACT else Excuse.IDLE
        case [ast.Raise(exc=ast.expr() as error)] if dotted(error) == "NotImplementedError":
            return Excuse.ABSTRACT
        case [*before, ast.Raise()] if all(isinstance(item, ast.Assign) or of_statement(item) for item in before):
            return Excuse.ERROR_PATH
        case _:
            return None


def of_block(body: list[ast.stmt]) -> Excuse | None:
    """What excuses a block that is run under a condition: one that always ends with an error."""
    if not body or not isinstance(body[-1], ast.Raise):
        return None
    leaves = any(isinstance(item, _LEAVES) for statement in body for item in own_nodes(statement))
    return None if leaves else Excuse.ERROR_PATH


def of_test(test: ast.AST) -> Excuse | None:
    """What excuses all that is run under a condition."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(value=ast.Name(), attr="TYPE_CHECKING"):
            return Excuse.TYPE_CHECKING
        case _:
            return None


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class only says what others must have."""
    return any(dotted(base).rpartition(".")[2] == "Protocol" for base in node.bases)


def may_go_on(nodes: Iterable[ast.AST], here: frozenset[str], elsewhere: frozenset[str]) -> bool:
    """Whether an error that statements raise may be caught where the run goes on.

    `here` are the errors that are caught around them, `elsewhere` the file's own ones that another place of it catches.
    """
    raised = (item for node in nodes for item in own_nodes(node) if isinstance(item, ast.Raise))
    for name in {_last_name(item.exc) for item in raised}:
        if name in _CONTROL or name in elsewhere:
            return True
        error = getattr(builtins, name, None)
        for caught in here:
            # An error that is not known, or not Python's own, may be of any class.
            other = getattr(builtins, caught, None)
            if caught in {"Exception", "BaseException"} or not isinstance(error, type):
                return True
            if isinstance(other, type) and issubclass(error, other):
                return True
    return False


def errors_caught(node: ast.AST) -> frozenset[str]:
    """The errors after which a `try` or a `with suppress(...)` lets the run go on."""
    match node:
        case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
            going_on = [handler for handler in handlers if of_block(handler.body) is None]
            return frozenset(name for handler in going_on for name in _names(handler.type))
        case ast.With(items=items) | ast.AsyncWith(items=items):
            calls = [item.context_expr for item in items if isinstance(item.context_expr, ast.Call)]
            suppressing = [call for call in calls if dotted(call).rpartition(".")[2] == "suppress"]
            return frozenset(name for call in suppressing for item in call.args for name in _names(item))
        case _:
            return frozenset()


def own_errors_caught(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The errors that are not Python's own and that some statement of a file catches and goes on."""
    found = frozenset[str]().union(*map(errors_caught, nodes))
    return frozenset(name for name in found if not hasattr(builtins, name))


def caught_by_callers(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """By the name of a function: the errors after which a caller in the file, or Python for some methods, goes on.

    `nodes` are the statements of the file that may catch an error.
    """
    found = dict.fromkeys(_ASKED_BY_PYTHON, frozenset({"BaseException"}))
    for node in nodes:
        caught = errors_caught(node)
        body = getattr(node, "body", ()) if caught else ()
        for call in (item for statement in body for item in own_nodes(statement) if isinstance(item, ast.Call)):
            name = _last_name(call.func)
            found[name] = found.get(name, frozenset()) | caught
    return found


def _names(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Tuple):
        for item in node.elts:
            yield from _names(item)
    else:
        yield (_last_name(node) if node is not None else "") or "BaseException"


def _last_name(node: ast.expr | None) -> str:
    return "" if node is None else dotted(node).rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Block:
    """Statements below one head; a head without parts does nothing."""

    # The parts of the head.
    head: tuple[ast.AST, ...]
    # The statements.
    body: list[ast.stmt]
    # The line of the head.
    line: int = 0
    # The node that stands for it where the number of blocks may differ.
    node: ast.AST | None = None
    # Why its body need not be executed.
    excuse: Excuse | None = None
    # Why its head need not.
    head_excuse: Excuse | None = None
    # The errors of its body that are caught where the run goes on.
    caught: frozenset[str] = frozenset()
    # The last line that its body may have; 0 where that is not known.
    end: int = 0

    @property
    def last(self) -> int:
        """The last line of the head."""
        return max([self.line, *(getattr(part, "end_lineno", None) or 0 for part in self.head)])

    @property
    def body_lines(self) -> range:
        """The lines that its body may have; none where they are not known."""
        return range(self.last + 1, self.end + 1)


def test_line(test: ast.expr) -> int:
    """The line on which a test begins to be evaluated; some interpreters have no instruction for what is before it."""
    match test:
        case ast.BoolOp(values=[first, *_]) | ast.UnaryOp(op=ast.Not(), operand=first):
            return test_line(first)
        case _:
            return test.lineno


def begins(node: ast.stmt) -> int:
    """The line on which a simple statement begins to be executed."""
    return test_line(node.test) if isinstance(node, ast.Assert) else node.lineno


def blocks_of(node: ast.AST) -> tuple[Block, ...]:
    """The blocks of a compound statement, none for a simple one."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            typing = of_test(test)
            excuse, other = map(of_block, (node.body, node.orelse)) if isinstance(node, ast.If) else (None, None)
            body = Block((test,), node.body, test_line(test), None, typing or excuse, typing, end=_end_of_body(node))
            return body, Block((), node.orelse, excuse=other)
        case ast.For() | ast.AsyncFor():
            head = (node.target, node.iter)
            return Block(head, node.body, node.lineno, end=_end_of_body(node)), Block((), node.orelse)
        case ast.With() | ast.AsyncWith():
            caught = errors_caught(node)
            return (Block(tuple(node.items), node.body, node.lineno, caught=caught, end=node.end_lineno or 0),)
        case ast.Try() | ast.TryStar():
            body = Block((), node.body, caught=errors_caught(node))
            return body, Block((), node.orelse), Block((), node.finalbody), *map(_clause, node.handlers)
        case ast.Match():
            return Block((node.subject,), [], node.lineno), *map(_clause, node.cases)
        case _:
            return ()


def _end_of_body(node: ast.If | ast.While | ast.For | ast.AsyncFor) -> int:
    return node.orelse[0].lineno - 1 if node.orelse else node.end_lineno or 0


def _clause(node: ast.ExceptHandler | ast.match_case) -> Block:
    """A handler of a `try`, or a case of a `match`."""
    excuse = of_block(node.body)
    if isinstance(node, ast.ExceptHandler):
        head = (node.type,) if node.type else ()
        return Block(head, node.body, node.lineno, node, excuse, excuse, end=node.end_lineno or 0)
    parts = (node.pattern, node.guard) if node.guard else (node.pattern,)
    return Block(parts, node.body, node.pattern.lineno, node, excuse, excuse)


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """A statement, a part of a head or an element of a table."""

    # What it is compared by, equal for equal code.
    key: Frozen
    # Its identifiers, and those of the conditions around it.
    words: frozenset[str]

    @classmethod
    def of(cls, node: ast.AST) -> "Piece":
        """The whole of a node."""
        return cls(freeze(node), words_of(node))

    def guarded(self, words: frozenset[str]) -> "Piece":
        """The piece below conditions with these identifiers; one without any of its own says nothing by theirs."""
        return Piece(self.key, self.words | words) if self.words and words else self


_SHORT_CALL = 2


def pieces(node: ast.AST) -> Iterator[Piece]:
    """A simple statement, and the elements of its tables apart, so that a long one differs by what is new in it.

    Tables are lists, dictionaries and the named arguments of calls that have many.
    """
    elements: list[ast.AST] = []
    tables = ast.List | ast.Dict
    if any(isinstance(part, tables) or len(getattr(part, "keywords", ())) > _SHORT_CALL for part in walk(node)):
        node = _Elements(elements).visit(copied(node))
    yield Piece.of(node)
    for item in elements:
        yield from pieces(item)


class _Elements(ast.NodeTransformer):
    """Takes the elements out of tables."""

    def __init__(self, found: list[ast.AST]) -> None:
        self._found = found

    def visit_List(self, node: ast.List) -> ast.AST:
        self._found.extend(node.elts)
        return ast.List([], node.ctx)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        pairs = zip(node.keys, node.values, strict=True)
        self._found.extend(value if key is None else ast.Tuple([key, value], ast.Load()) for key, value in pairs)
        return ast.Dict([], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if len(node.keywords) > _SHORT_CALL:
            name = ast.Name(_last_name(node.func), ast.Load())
            self._found.extend(ast.Call(name, [], [keyword]) for keyword in node.keywords)
            node = ast.Call(node.func, node.args, [])
        return self.generic_visit(node)


def words_of(root: ast.AST) -> frozenset[str]:
    """The identifiers of a node and of those below it."""
    found: set[str] = set()
    for node in walk(root):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                found.add(name)
            case ast.Constant(value=str(text)) if len(text) <= _LONGEST_TEXT:
                found.update(_IDENTIFIER.findall(text))
            case ast.ImportFrom(module=str(module)):
                found.update(module.split("."))
            case _:
                pass
    return frozenset(found)

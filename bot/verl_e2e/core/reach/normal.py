"""The normal form of a syntax tree: a whitelist of what may differ between two versions without effect on a run.

Positions are not part of a tree's content, so comments and layout do not count. Everything else counts unless it is one
of these, each of which relies only on what holds in both versions (`Common`):

- the `u` of `u"text"`
- a docstring, where the file reads none and no decorator of a function can
- `pass`, and a constant that stands alone
- inside a function: the text of a log call, of a raised error or of an assertion
- the annotation of a function's local variable, which is never evaluated; one that makes a generator (`yield`) or a
  name local (`:=`) stays
- what is below `if TYPE_CHECKING:`, where it is nothing but imports, at module level

What a message is made of besides text must be names, constants, plain attributes or f-strings of these, and must be
equal in both versions: an attribute may be a property, so reading it is never added or taken away unseen.
"""

import ast
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from verl_e2e.core.reach.syntax import dotted, own_nodes, walk

_LOG_OWNERS = frozenset({"logger", "logging", "log", "warnings", "_logger", "LOG"})
_LOG_METHODS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "log", "warning_once", "info_once"}
)
_LOG_FUNCTIONS = frozenset({"print_rank_0", "print_rank_last", "warn_rank_0", "log_single_rank", "warn_once"})
# Of these the arguments are a message and nothing else; of an OSError or a SystemExit they are not.
_MESSAGE_ERRORS = frozenset(
    {"ValueError", "TypeError", "RuntimeError", "NotImplementedError", "AssertionError", "ImportError"}
    | {"AttributeError", "KeyError", "IndexError", "Exception"}
)
_BUILTINS = _MESSAGE_ERRORS | {"print"}
_READS_DOCSTRINGS = frozenset({"__doc__", "getdoc", "getcomments", "getsource"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Common:
    """What holds in both versions of a file."""

    # Nothing in the file reads docstrings or sources.
    docstrings_unread: bool
    # The expressions that are typing's TYPE_CHECKING, as dotted names.
    type_checking: frozenset[str]
    # Builtin names of messages that the file does not bind again.
    builtins: frozenset[str]
    # The decorators that run nothing of what they decorate, as both versions spell them.
    plain: frozenset[str]

    @classmethod
    def of(cls, *trees: ast.Module) -> "Common":
        """What holds in every one of the trees."""
        nodes = [walk(tree) for tree in trees]
        return cls(
            not any(name in _READS_DOCSTRINGS for each in nodes for name in _mentioned(each)),
            frozenset.intersection(*map(type_checking_names, trees)),
            _BUILTINS.difference(*map(_stored_names, nodes)),
            frozenset.intersection(*map(plain_decorators, trees)),
        )


def _mentioned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
            case _:
                pass


def type_checking_names(tree: ast.Module) -> frozenset[str]:
    """The expressions that are typing's own TYPE_CHECKING in a tree, as dotted names."""
    bound = Counter(_stored_names(walk(tree)))
    found: set[str] = set()
    for node in tree.body if not bound["*"] else ():
        aliases = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        names = {alias.name for alias in aliases if not alias.asname}
        of_typing = isinstance(node, ast.ImportFrom) and node.module == "typing" and not node.level
        if of_typing and "TYPE_CHECKING" in names and bound["TYPE_CHECKING"] == 1:
            found.add("TYPE_CHECKING")
        if isinstance(node, ast.Import) and "typing" in names and bound["typing"] == 1 and not bound["TYPE_CHECKING"]:
            found.add("typing.TYPE_CHECKING")
    return frozenset(found)


def _stored_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The names that nodes bind and the attributes that they store, each as often as that happens."""
    for node in nodes:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                yield node.attr
        elif type(node) in _BINDING:
            yield from bound_names(node)


# The nodes of type parameters, which Python has since 3.12.
_TYPE_PARAMETERS = frozenset({"TypeVar", "ParamSpec", "TypeVarTuple"})
# All that bind names besides `ast.Name`: few nodes, and the others are not looked at by `bound_names`.
_BINDING = frozenset(
    {ast.arg, ast.alias, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal}
    | {ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping}
    | {getattr(ast, name) for name in _TYPE_PARAMETERS if hasattr(ast, name)}
)


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that one node binds itself, in whatever scope."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias():
            yield node.asname or node.name.partition(".")[0]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case _:
            if type(node).__name__ in _TYPE_PARAMETERS:
                yield getattr(node, "name", "")


_HOLDS_STATEMENTS = ast.mod | ast.stmt | ast.ExceptHandler | ast.match_case
_HOLDS_DOCSTRING = ast.Module | ast.ClassDef | _Function
# Below a `yield` a function is a generator, and what `:=` binds is local, evaluated or not.
_COMPILED_UNEVALUATED = ast.Yield | ast.YieldFrom | ast.NamedExpr


def normalize(tree: ast.Module, common: Common) -> None:
    """Bring a tree into its normal form."""
    for node in walk(tree):
        if isinstance(node, ast.Constant):
            node.kind = None
    for item in tree.body:
        # The test itself is executed, so it stays; only the bare positive one of typing's own constant is meant.
        if isinstance(item, ast.If) and not item.orelse and isinstance(item.test, ast.Name | ast.Attribute):
            imports = all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in item.body)
            if imports and dotted(item.test) in common.type_checking:
                item.body = []
    _Normal(common).visit(tree)


class _Normal(ast.NodeTransformer):
    def __init__(self, common: Common) -> None:
        self._common = common
        self._in_function = False

    def visit(self, node: ast.AST) -> ast.AST:
        # Below an expression there are no statements.
        if not isinstance(node, _HOLDS_STATEMENTS):
            return node
        if self._in_function and isinstance(node, ast.Expr | ast.Raise | ast.Assert):
            blank_message(node, self._common)
        if self._in_function and isinstance(node, ast.AnnAssign):
            if any(isinstance(part, _COMPILED_UNEVALUATED) for part in walk(node.annotation)):
                return node
            if node.value is not None:
                return ast.copy_location(ast.Assign([node.target], node.value), node)
            # Without a value it still makes the name local.
            node.annotation = ast.Constant(None)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                kept = body[:1] if self._is_read_docstring(node, body) else []
                for item in body[len(kept) :]:
                    constant = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
                    kept += [] if constant or isinstance(item, ast.Pass) else [item]
                setattr(node, name, kept)
        outer = self._in_function
        if isinstance(node, _Function | ast.ClassDef):
            self._in_function = isinstance(node, _Function)
        self.generic_visit(node)
        self._in_function = outer
        return node

    def _is_read_docstring(self, node: ast.AST, body: list[ast.stmt]) -> bool:
        """Whether a body begins with a docstring that the file or a decorator may read."""
        match body:
            case [ast.Expr(value=ast.Constant(value=str())), *_] if isinstance(node, _HOLDS_DOCSTRING):
                plain = not isinstance(node, _Function) or is_plainly_decorated(node, self._common.plain)
                return not (self._common.docstrings_unread and plain)
            case _:
                return False


def blank_message(node: ast.Expr | ast.Raise | ast.Assert, common: Common) -> None:
    """Take the text out of a message; what is not text in it stays, and one that is more than a message stays whole."""
    match node:
        case ast.Assert(msg=ast.expr() as message):
            node.msg = _without_text(message) if _inert(message) else message
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name), keywords=[]) as call):
            if name in common.builtins & _MESSAGE_ERRORS and all(map(_inert, call.args)):
                call.args = [_without_text(arg) for arg in call.args]
        case ast.Expr(value=ast.Call() as call) if is_log_call(call, common.builtins):
            if all(map(_inert, (*call.args, *(keyword.value for keyword in call.keywords)))):
                level = 1 if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else 0
                call.args = [*call.args[:level], *(_without_text(arg) for arg in call.args[level:])]
        case _:
            pass


def is_log_call(call: ast.Call, builtins: frozenset[str]) -> bool:
    """Whether a call writes a log; `builtins` are names that mean Python's own functions."""
    match call.func:
        case ast.Name(id=name):
            # What is printed into a file is data.
            into_file = any(keyword.arg in {None, "file"} for keyword in call.keywords)
            return name in _LOG_FUNCTIONS or (name == "print" and name in builtins and not into_file)
        case ast.Attribute(value=owner, attr=method):
            return isinstance(owner, ast.Name | ast.Attribute) and (
                dotted(owner).rpartition(".")[2] in _LOG_OWNERS and method in _LOG_METHODS
            )
        case _:
            return False


def _inert(node: ast.expr | None) -> bool:
    """Whether an expression is a constant, a name, a plain attribute, or an f-string of these."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=owner):
            return _inert(owner) and not isinstance(owner, ast.Constant)
        case ast.JoinedStr(values=values):
            return all(_inert(item) for item in values)
        case ast.FormattedValue(value=value, format_spec=spec):
            parts = spec.values if isinstance(spec, ast.JoinedStr) else []
            return _inert(value) and all(isinstance(part, ast.Constant) for part in parts)
        case _:
            return False


def _without_text(node: ast.expr) -> ast.expr:
    """Text as the empty text, an f-string as what is formatted in it, anything else as it is."""
    match node:
        case ast.Constant(value=str()):
            return ast.Constant("")
        case ast.JoinedStr(values=values):
            kept = [item for item in values if not isinstance(item, ast.Constant)]
            return ast.JoinedStr(kept) if kept else ast.Constant("")
        case _:
            return node


# By module the decorators that keep what they decorate, or run it when it is called and not before.
_PLAIN_DECORATORS: Mapping[str, frozenset[str]] = {
    "abc": frozenset({"abstractmethod"}),
    "contextlib": frozenset({"contextmanager"}),
    "dataclasses": frozenset({"dataclass"}),
    "functools": frozenset({"cache", "cached_property", "lru_cache", "total_ordering", "wraps"}),
    "torch": frozenset({"inference_mode", "no_grad"}),
    "typing": frozenset({"final", "overload", "runtime_checkable"}),
    "typing_extensions": frozenset({"final", "overload", "override", "runtime_checkable"}),
}
_PLAIN_BUILTINS = frozenset({"classmethod", "property", "staticmethod"})


def plain_decorators(tree: ast.Module) -> frozenset[str]:
    """The decorators of a file that run nothing of what they decorate, as it spells them.

    A name counts where an import at module level binds it and nothing else does; a file that imports `*` has none.
    """
    bound = Counter(name for item in tree.body for node in own_nodes(item) for name in bound_names(node))
    if bound["*"]:
        return frozenset()
    found = {name for name in _PLAIN_BUILTINS if not bound[name]}
    aliases = [(node, alias) for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    whole = Counter(name for _, alias in aliases for name in bound_names(alias))
    for node in (node for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level):
        known = _PLAIN_DECORATORS.get(node.module or "", frozenset())
        names = (alias.asname or alias.name for alias in node.names if alias.name in known)
        found.update(name for name in names if bound[name] == 1)
    for _, alias in aliases:
        name = alias.asname or alias.name
        if bound[name] == whole[name]:
            found.update(f"{name}.{inner}" for inner in _PLAIN_DECORATORS.get(alias.name, ()))
    return frozenset(found)


def is_plainly_decorated(node: _Function | ast.ClassDef, plain: frozenset[str]) -> bool:
    """Whether no decorator can run or read what it decorates; `plain` are the file's own that surely do not."""
    return all(is_plain(decorator, node.name, plain) for decorator in node.decorator_list)


def is_plain(decorator: ast.expr, name: str, plain: frozenset[str]) -> bool:
    """Whether a decorator of a definition of this name is plain, by itself, called, or as the setter of a property."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(made, ast.Name | ast.Attribute):
        return False
    spelled = ast.unparse(made)
    return spelled in plain or (spelled == f"{name}.setter" and "property" in plain)


Frozen = tuple[object, ...] | str | int | None


def freeze(node: object) -> Frozen:
    """A tree as nested tuples, equal for trees that are equal but for positions."""
    if isinstance(node, ast.Constant):
        value = node.value
        shown = hex(value) if isinstance(value, int) else repr(value)
        return ("Constant", type(value).__name__, shown, node.kind)
    if isinstance(node, ast.AST):
        return (type(node).__name__, *[freeze(getattr(node, name, None)) for name in node._fields])
    if isinstance(node, list):
        return ("list", *map(freeze, node))
    assert node is None or isinstance(node, str | int)
    return node


# More pairs of statements than this are not put in order: the time for that grows with the pairs.
_MOST_PAIRS = 1_000_000

Pair = tuple[ast.AST | None, ast.AST | None]


class TreeNumbers:
    """Numbers for the trees of both versions; they must stay as they are while it is in use."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, int] = {}

    def of(self, part: object) -> int:
        """The number of a node, of a list of nodes or of a plain value."""
        if isinstance(part, list):
            return self._number(("list", *map(self.of, part)))
        if not isinstance(part, ast.AST):
            return self._number((type(part), part))
        known = self._known.get(id(part))
        if known is None:
            known = self._known[id(part)] = self._number(self.content(part))
        return known

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))

    def content(self, node: ast.AST) -> Hashable:
        """What the number of a node stands for."""
        if isinstance(node, ast.Constant):
            return freeze(node)
        return (type(node), *(self.of(getattr(node, name, None)) for name in node._fields))

    def paired(
        self, old: Sequence[ast.AST], new: Sequence[ast.AST], keys: Sequence[Callable[[ast.AST], Hashable]]
    ) -> Iterator[Pair]:
        """Each node with its counterpart on the other side, whatever the order: the first key that is equal decides."""
        left, came = list(old), list(new)
        for key in (self.of, *keys):
            waiting: dict[Hashable, deque[ast.AST]] = {}
            for node in left:
                waiting.setdefault(key(node), deque()).append(node)
            rest = []
            for node in came:
                same = waiting.get(key(node))
                if same:
                    yield same.popleft(), node
                else:
                    rest.append(node)
            alone = {id(node) for nodes in waiting.values() for node in nodes}
            left, came = [node for node in left if id(node) in alone], rest
        yield from ((node, None) for node in left)
        yield from ((None, node) for node in came)

    def aligned(
        self, old: Sequence[ast.AST], new: Sequence[ast.AST], keys: Sequence[Callable[[ast.AST], Hashable]]
    ) -> Iterator[Pair]:
        """The same in the order of both: what is equal on both sides but in another order has no counterpart."""
        ours, theirs = list(map(self.of, old)), list(map(self.of, new))
        if len(ours) * len(theirs) > _MOST_PAIRS:
            yield from self.paired(old, new, keys)
            return
        for kind, begin, end, at, until in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
            if kind == "equal":
                yield from zip(old[begin:end], new[at:until], strict=True)
            else:
                yield from self.paired(old[begin:end], new[at:until], keys)

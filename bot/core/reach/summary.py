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
import re
from collections.abc import Iterator
from dataclasses import dataclass

BODY = ""
# Raise it whenever a summary of the same text would read differently: stored ones are then made anew.
SUMMARY_VERSION = 1
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LAZY = re.compile(r"\.*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REGISTERING = frozenset({"impl", "register"})
_TYPE_CHECKS = frozenset({"isinstance", "issubclass"})


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `module` (with `dots` in front when relative), `attribute` (None: the module itself).

    `scope` is the symbol that executes the import, `guarded` whether an ImportError is caught, `typing` whether
    only a type checker sees it.
    """

    name: str
    module: str
    dots: int
    attribute: str | None
    line: int
    scope: str
    guarded: bool = False
    typing: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
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


@dataclass(frozen=True, slots=True)
class Summary:
    """One file. `problem` tells why nothing could be read, empty when all was.

    `lazy` pairs names with the modules that a table of the file says they come from: a module's `__getattr__`
    serves them.
    """

    symbols: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    problem: str = ""
    lazy: tuple[tuple[str, str], ...] = ()


def summarize(source: bytes) -> Summary:
    """Read one file; a file that is no Python, or not text, gives an empty summary with its problem."""
    tree = parse(source)
    return Summary((), (), tree) if isinstance(tree, str) else _Reader().read(tree)


def parse(source: bytes) -> ast.Module | str:
    """The syntax tree, or one clause that says why there is none."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno or 1} is no Python ({error.msg})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"it is no Python ({type(error).__name__})"


class _Scope:
    """References collected for one symbol, with what is known of its local names."""

    __slots__ = ("name", "names", "refs", "types")

    def __init__(self, name: str) -> None:
        self.name = name
        self.refs: dict[str, None] = {}
        self.names: set[str] = set()
        self.types: dict[str, str] = {}


class _Reader:
    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self.imports: list[Import] = []

    def read(self, tree: ast.Module) -> Summary:
        body = _Scope(BODY)
        self._module_level(tree.body, body, guarded=False, typing=False)
        self.symbols.append(Symbol(BODY, "module", 1, tuple(body.refs)))
        lazy = tuple(_lazy_names(tree)) if any(one.name == "__getattr__" for one in self.symbols) else ()
        return Summary(tuple(self.symbols), tuple(self.imports), lazy=lazy)

    def _module_level(self, statements: list[ast.stmt], body: _Scope, *, guarded: bool, typing: bool) -> None:
        for node in statements:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(node, "", body)
                case ast.ClassDef():
                    self._class(node, body)
                case ast.Import() | ast.ImportFrom():
                    self._import(node, BODY, guarded=guarded, typing=typing)
                case ast.If():
                    self._expression(node.test, body)
                    only_typing = typing or _is_type_checking(node.test)
                    self._module_level(node.body, body, guarded=guarded, typing=only_typing)
                    self._module_level(node.orelse, body, guarded=guarded, typing=typing)
                case ast.Try():
                    inside = guarded or _catches_import_errors(node)
                    self._module_level(node.body, body, guarded=inside, typing=typing)
                    for handler in node.handlers:
                        self._module_level(handler.body, body, guarded=guarded, typing=typing)
                    self._module_level(node.orelse + node.finalbody, body, guarded=guarded, typing=typing)
                case ast.With() | ast.For() | ast.While():
                    self._walk(node, body)
                case _:
                    self._variable(node, body)

    def _variable(self, node: ast.stmt, body: _Scope) -> None:
        names = assigned_names(node)
        if not names:
            self._walk(node, body)
            return
        own = _Scope(names[0])
        self._walk(node, own, locals_count=False)
        if not isinstance(getattr(node, "value", None), ast.Subscript | ast.BinOp | ast.Name | ast.Attribute):
            # A type alias runs nothing, and nothing is made by it.
            body.refs.update(own.refs)
        self.symbols.extend(Symbol(name, "variable", node.lineno, tuple(own.refs)) for name in names)

    def _class(self, node: ast.ClassDef, body: _Scope) -> None:
        own = _Scope(node.name)
        for decorator in node.decorator_list:
            self._expression(decorator, body)
        bases = tuple(filter(None, (_dotted(base) for base in node.bases)))
        for base in node.bases:
            self._expression(base, own)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(statement, f"{node.name}.", own)
            else:
                self._walk(statement, own, locals_count=False)
        decorated = any(_dotted(one).rpartition(".")[2] not in _PLAIN_DECORATORS for one in node.decorator_list)
        self.symbols.append(Symbol(node.name, "class", node.lineno, tuple(own.refs), bases, decorated))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, outer: _Scope) -> None:
        if not prefix and _serves(node):
            self._implementation(node, outer)
            return
        for decorator in node.decorator_list:
            self._expression(decorator, outer)
        own = _Scope(prefix + node.name)
        self._arguments(node.args, own)
        for local in _local_names(node):
            own.names.add(local)
        for statement in node.body:
            self._walk(statement, own)
        if not prefix and any(_may_register(one) for one in node.decorator_list):
            outer.refs.setdefault(node.name)
        self.symbols.append(Symbol(own.name, "method" if prefix else "function", node.lineno, tuple(own.refs)))

    def _implementation(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: _Scope) -> None:
        own = _Scope(f"{outer.name}:{node.name}")
        own.types.update(outer.types)
        self._arguments(node.args, own)
        own.names |= _local_names(node)
        for statement in node.body:
            self._walk(statement, own)
        self.symbols.append(Symbol(own.name, "function", node.lineno, tuple(own.refs), serves=_serves(node)))

    def _arguments(self, arguments: ast.arguments, scope: _Scope) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every.extend(one for one in (arguments.vararg, arguments.kwarg) if one)
        for argument in every:
            scope.names.add(argument.arg)
            kind = _annotated(argument.annotation)
            if kind:
                scope.types[argument.arg] = kind
        if "." in scope.name and every:
            scope.types.pop(every[0].arg, None)
            if every[0].arg in {"self", "cls"}:
                scope.names.discard(every[0].arg)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self._expression(default, scope)

    def _walk(self, node: ast.AST, scope: _Scope, *, locals_count: bool = True) -> None:
        match node:
            case ast.expr():
                self._expression(node, scope)
                return
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope.name, guarded=False, typing=False)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _serves(node):
                self._implementation(node, scope)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self._expression(decorator, scope)
                self._arguments(node.args, scope)
                for statement in node.body:
                    self._walk(statement, scope)
                return
            case ast.Try() if _catches_import_errors(node):
                for statement in node.body:
                    if isinstance(statement, ast.Import | ast.ImportFrom):
                        self._import(statement, scope.name, guarded=True, typing=False)
                    else:
                        self._walk(statement, scope, locals_count=locals_count)
                for rest in (*node.handlers, *node.orelse, *node.finalbody):
                    self._walk(rest, scope, locals_count=locals_count)
                return
            case ast.AnnAssign():
                if isinstance(node.target, ast.Name) and locals_count:
                    kind = _annotated(node.annotation)
                    if kind:
                        scope.types[node.target.id] = kind
                if node.value is not None:
                    self._expression(node.value, scope)
                if not isinstance(node.target, ast.Name):
                    self._expression(node.target, scope)
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)) if locals_count:
                made = _dotted(function)
                if made and made.rpartition(".")[2][:1].isupper():
                    scope.types[name] = made
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._walk(child, scope, locals_count=locals_count)

    def _expression(self, node: ast.expr, scope: _Scope) -> None:
        match node:
            case ast.Name():
                if node.id not in scope.names and not isinstance(node.ctx, ast.Store):
                    scope.refs.setdefault(node.id)
            case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
                scope.refs.setdefault(f"!{text}")
            case ast.Tuple(elts=[ast.Constant(value=str(module)), ast.Constant(value=str(name))]) if (
                _DOTTED.fullmatch(module) and name.isidentifier()
            ):
                scope.refs.setdefault(f"!{module}.{name}")
            case ast.Attribute():
                self._attribute(node, scope)
            case ast.Call(func=ast.Name(id=name), args=[subject, *_]) if name in _TYPE_CHECKS:
                self._expression(subject, scope)
            case ast.Call(func=ast.Name(id=name), args=[subject, ast.Constant(value=str(attribute)), *_]) if (
                name in {"getattr", "hasattr", "setattr"}
            ):
                self._expression(subject, scope)
                if attribute.isidentifier():
                    scope.refs.setdefault(f"?.{attribute}")
            case _:
                for child in ast.iter_child_nodes(node):
                    self._walk(child, scope)

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        parts: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            parts.append(root.attr)
            root = root.value
        parts.reverse()
        rest = ".".join(parts)
        match root:
            case ast.Name(id=name) if name in scope.types:
                scope.refs.setdefault(f"{scope.types[name]}().{rest}")
            case ast.Name(id=name) if name in scope.names:
                scope.refs.setdefault(f"?.{rest}")
            case ast.Name(id=name):
                scope.refs.setdefault(f"{name if name != 'cls' else 'self'}.{rest}")
            case ast.Call(func=ast.Name(id="super")):
                scope.refs.setdefault(f"super().{rest}")
            case ast.Call(func=function) if _dotted(function).rpartition(".")[2][:1].isupper():
                self._expression(root, scope)
                scope.refs.setdefault(f"{_dotted(function)}().{rest}")
            case _:
                self._expression(root, scope)
                scope.refs.setdefault(f"?.{rest}")

    def _import(self, node: ast.Import | ast.ImportFrom, scope: str, *, guarded: bool, typing: bool) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else name
                self.imports.append(Import(name, module, 0, None, node.lineno, scope, guarded, typing))
                if module != alias.name:
                    self.imports.append(Import("", alias.name, 0, None, node.lineno, scope, guarded, typing))
            else:
                name = alias.asname or alias.name
                found = Import(name, node.module or "", node.level, alias.name, node.lineno, scope, guarded, typing)
                self.imports.append(found)


_PLAIN_DECORATORS = frozenset(
    {"dataclass", "staticmethod", "classmethod", "property", "abstractmethod", "overload", "cached_property", "wraps"}
    | {"lru_cache", "cache", "contextmanager", "no_grad", "setter", "runtime_checkable", "total_ordering", "final"}
)


def _serves(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The function that a decorator such as `@function.register(...)` makes this one an implementation of."""
    for decorator in node.decorator_list:
        front, _, last = _dotted(decorator).rpartition(".")
        if front and last in _REGISTERING:
            return front
    return ""


def _may_register(decorator: ast.expr) -> bool:
    """Whether a decorator may hand the function to a registry: those with arguments, and those that say so."""
    name = _dotted(decorator).rpartition(".")[2]
    return name not in _PLAIN_DECORATORS and (isinstance(decorator, ast.Call) or "regist" in name.lower())


def assigned_names(node: ast.stmt) -> tuple[str, ...]:
    """The module variables that a statement assigns, none for any other statement."""
    match node:
        case ast.Assign(targets=targets):
            return tuple(one.id for one in targets if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return ()


def _lazy_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names and modules of tables such as `{"Name": "package.module"}` or `{"Name": (".module", "Name")}`."""
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            first = value.elts[0] if isinstance(value, ast.Tuple | ast.List) and value.elts else value
            match key, first:
                case ast.Constant(value=str(name)), ast.Constant(value=str(module)) if _LAZY.fullmatch(module):
                    yield name, module
                case _:
                    pass


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            front = _dotted(node.value)
            return f"{front}.{node.attr}" if front else ""
        case ast.Call():
            return _dotted(node.func)
        case ast.Subscript():
            return _dotted(node.value)
        case _:
            return ""


def _annotated(node: ast.expr | None) -> str:
    """The class that an annotation names, looking through Optional, unions and containers; empty when unclear."""
    match node:
        case ast.Name() | ast.Attribute():
            dotted = _dotted(node)
            return dotted if dotted.rpartition(".")[2][:1].isupper() and dotted not in {"Any", "Callable"} else ""
        case ast.Constant(value=str(text)):
            return text if text.replace(".", "").isidentifier() and text.rpartition(".")[2][:1].isupper() else ""
        case ast.BinOp(left=left, right=right):
            return _annotated(left) or _annotated(right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _annotated(inner)
        case _:
            return ""


def _local_names(node: ast.AST) -> set[str]:
    return {
        one.id if isinstance(one, ast.Name) else one.name or ""
        for one in ast.walk(node)
        if (isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)) or isinstance(one, ast.ExceptHandler)
    } - {""}


def _is_type_checking(node: ast.expr) -> bool:
    return _dotted(node).rpartition(".")[2] == "TYPE_CHECKING"


def _catches_import_errors(node: ast.Try) -> bool:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(one is None or _dotted(one).rpartition(".")[2] in _IMPORT_ERRORS for one in kinds):
            return True
    return False

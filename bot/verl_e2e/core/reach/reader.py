"""Reading one source file into its summary: every reference, by the symbol that makes it."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from verl_e2e.core.reach.normal import bound_names, is_plain, plain_decorators, type_checking_names
from verl_e2e.core.reach.program import BODY, Import, Summary, Symbol, parse_to_read
from verl_e2e.core.reach.syntax import (
    annotated,
    annotations_of,
    assigned_names,
    catches_import_errors,
    children,
    dotted,
    evaluated_parts,
    lazy_names,
    own_nodes,
    serves,
    stored_names,
)
from verl_e2e.core.reach.users import named_files

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_TYPE_CHECKS = frozenset({"isinstance", "issubclass"})


def summarize(source: bytes) -> Summary:
    """Read one file; a file that is not Python, or not text, gives an empty summary with its problem."""
    tree = parse_to_read(source)
    if isinstance(tree, str):
        return Summary((), (), tree)
    try:
        typing_tests = type_checking_names(tree) if b"TYPE_CHECKING" in source else frozenset()
        found = _Reader(typing_tests).read(tree)
        return replace(found, files=named_files(source))
    except (RecursionError, MemoryError) as error:
        return Summary((), (), f"it nests too deeply to be read ({type(error).__name__})")


class _Scope:
    """References collected for one symbol, with what is known of its local names."""

    __slots__ = ("in_class", "name", "names", "refs", "types")

    def __init__(self, name: str, in_class: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = name
        # What the names mean that the body of a class binds, while it is executed.
        self.in_class = in_class
        self.refs: dict[str, None] = {}
        self.names: set[str] = set()
        self.types: dict[str, str] = {}


class _Reader:
    def __init__(self, typing_tests: frozenset[str]) -> None:
        self._typing_tests = typing_tests
        self.symbols: list[Symbol] = []
        self.imports: list[Import] = []

    def read(self, tree: ast.Module) -> Summary:
        body = _Scope(BODY)
        self._plain = plain_decorators(tree)
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        names = {(node.module, alias.asname or alias.name) for node in imports for alias in node.names}
        self._lazy_annotations = ("__future__", "annotations") in names
        self._field_is_of_python = ("dataclasses", "field") in names
        self._module_level(tree.body, body, guarded=False, typing=False)
        self.symbols.append(Symbol(BODY, "module", 1, tuple(body.refs)))
        lazy = tuple(lazy_names(tree)) if any(symbol.name == "__getattr__" for symbol in self.symbols) else ()
        # One symbol for each name, for any of its definitions may be the one that counts: a name is defined again by a
        # fallback, by a property's setter, or by a decoration that is written as a call, `Name = register(...)(Name)`;
        # none of them hides what the definition before it does.
        united: dict[str, Symbol] = {}
        for symbol in self.symbols:
            before = united.setdefault(symbol.name, symbol)
            if before is not symbol:
                main = before if symbol.kind == "variable" else symbol
                own = before.kind == "class" and before.name in symbol.refs
                united[symbol.name] = main._replace(
                    refs=tuple(dict.fromkeys((*before.refs, *symbol.refs))),
                    bases=tuple(dict.fromkeys((*before.bases, *symbol.bases))),
                    decorated=before.decorated or symbol.decorated or own,
                )
        return Summary(tuple(united.values()), tuple(self.imports), lazy=lazy)

    def _module_level(self, statements: list[ast.stmt], body: _Scope, *, guarded: bool, typing: bool) -> None:
        for node in statements:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(node, "")
                    self._at_import([node], body)
                case ast.ClassDef():
                    self._class(node, body)
                case ast.Import() | ast.ImportFrom():
                    self._import(node, BODY, guarded=guarded, typing=typing)
                case ast.If():
                    self._expression(node.test, body)
                    only_typing = typing or (
                        isinstance(node.test, ast.Name | ast.Attribute) and dotted(node.test) in self._typing_tests
                    )
                    self._module_level(node.body, body, guarded=guarded, typing=only_typing)
                    self._module_level(node.orelse, body, guarded=guarded, typing=typing)
                case ast.Try():
                    inside = guarded or catches_import_errors(node)
                    self._module_level(node.body, body, guarded=inside, typing=typing)
                    for handler in node.handlers:
                        self._at_import([handler.type] if handler.type else [], body)
                    rest = [item for handler in node.handlers for item in handler.body] + node.orelse
                    self._module_level(rest, body, guarded=guarded, typing=typing)
                    self._module_level(node.finalbody, body, guarded=guarded, typing=typing)
                case ast.With() | ast.For() | ast.While():
                    self._walk(node, body)
                case _:
                    self._variable(node, body)

    def _at_import(self, nodes: Iterable[ast.AST], body: _Scope, owner: str = "") -> None:
        """All that is executed while the module is imported, but for the names that are only read: that runs nothing.

        `owner` is the class whose body the nodes are of, with a dot.
        """
        todo = list(nodes)
        while todo:
            node = todo.pop()
            match node:
                case ast.Call(func=ast.Name(id="field")) if self._field_is_of_python:
                    todo.extend((*node.args, *(keyword.value for keyword in node.keywords)))
                case ast.Call():
                    self._expression(node, body)
                case ast.Attribute():
                    self._read_attribute(node, body)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._decorators(node, f"^{owner}{node.name}", body)
                    todo.extend((*evaluated_parts(node.args), *self._evaluated_annotations(node)))
                case ast.Lambda():
                    todo.extend(evaluated_parts(node.args))
                case ast.ClassDef():
                    for decorator in node.decorator_list:
                        self._expression(decorator, body)
                    todo.extend((*node.bases, *node.keywords, *node.body))
                case ast.Import() | ast.ImportFrom():
                    self._import(node, BODY, guarded=False, typing=False)
                case _:
                    note = node.annotation if self._lazy_annotations and isinstance(node, ast.AnnAssign) else None
                    todo.extend(part for part in children(node) if part is not note)

    def _evaluated_annotations(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
        return [] if self._lazy_annotations else annotations_of(node)

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef, own: str, scope: _Scope) -> None:
        """Decorators are called, and one that is not plain may call what it decorates, whose reference is `own`.

        One that makes the function an implementation of another registers it, and calls neither of them.
        """
        serving = "." not in own and serves(node)
        for decorator in node.decorator_list:
            made = decorator.func if isinstance(decorator, ast.Call) else decorator
            plain = is_plain(decorator, node.name, self._plain)
            registers = serving and isinstance(made, ast.Attribute) and dotted(made.value) == serving
            if isinstance(made, ast.Attribute) and registers:
                self._read_attribute(made, scope)
            elif not plain:
                self._expression(made, scope)
            for part in children(decorator)[1:] if isinstance(decorator, ast.Call) else ():
                self._walk(part, scope)
            if not plain and not serving:
                scope.refs.setdefault(own)

    def _read_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        """An attribute that is only asked for: a property may run, the object itself is not called."""
        name, _, rest = dotted(node).partition(".")
        pure = ast.unparse(node) == f"{name}.{rest}"
        if pure and name not in scope.names and name not in scope.in_class:
            scope.refs.setdefault(f"={name}.{rest}")
        else:
            self._expression(node, scope)

    def _variable(self, node: ast.stmt, body: _Scope) -> None:
        names = assigned_names(node)
        plain = all(isinstance(target, ast.Name) for target in getattr(node, "targets", ()))
        if not names or not plain:
            self._walk(node, body)
        own = _Scope(names[0] if names else BODY)
        if names:
            self._walk(node, own, locals_count=False)
            if not isinstance(getattr(node, "value", None), ast.Subscript | ast.BinOp | ast.Name | ast.Attribute):
                # A type alias runs nothing, and nothing is made by it.
                body.refs.update(own.refs)
        self._at_import([node], body)
        self.symbols.extend(Symbol(name, "variable", node.lineno, tuple(own.refs)) for name in names)

    def _class(self, node: ast.ClassDef, body: _Scope) -> None:
        own = _Scope(node.name)
        bases = tuple(filter(None, (dotted(base) for base in node.bases)))
        bases += tuple(f"{item.arg}={dotted(item.value)}" for item in node.keywords)
        for base in node.bases:
            self._expression(base, own)
        for keyword in node.keywords:
            self._expression(keyword.value, body)
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
        bound = {name for item in _in_class(node) for name in bound_names(item)}
        names = {name: f"^{node.name}.{name}" if name in methods else f"^{node.name}" for name in bound}
        inside = _Scope(BODY, names)
        inside.refs = body.refs
        self._at_import([node], inside, f"{node.name}.")
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(statement, f"{node.name}.")
            else:
                self._walk(statement, own, locals_count=False)
        decorated = not all(is_plain(item, node.name, self._plain) for item in node.decorator_list)
        self.symbols.append(Symbol(node.name, "class", node.lineno, tuple(own.refs), bases, decorated))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str) -> None:
        if not prefix and serves(node):
            self._implementation(node, _Scope(BODY))
            return
        own = _Scope(prefix + node.name)
        self._arguments(node.args, own)
        for local in stored_names(node):
            own.names.add(local)
        for statement in node.body:
            self._walk(statement, own)
        self.symbols.append(Symbol(own.name, "method" if prefix else "function", node.lineno, tuple(own.refs)))

    def _implementation(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: _Scope) -> None:
        own = _Scope(f"{outer.name}:{node.name}")
        own.types.update(outer.types)
        self._arguments(node.args, own)
        own.names |= stored_names(node)
        for statement in node.body:
            self._walk(statement, own)
        self.symbols.append(Symbol(own.name, "function", node.lineno, tuple(own.refs), serves=serves(node)))

    def _arguments(self, arguments: ast.arguments, scope: _Scope) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every.extend(item for item in (arguments.vararg, arguments.kwarg) if item)
        for argument in every:
            scope.names.add(argument.arg)
            kind = annotated(argument.annotation)
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
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope.name, guarded=False, typing=False)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._nested(node, scope)
            case ast.Try() if catches_import_errors(node):
                self._guarded(node, scope)
            case ast.AnnAssign():
                kind = annotated(node.annotation)
                if isinstance(node.target, ast.Name) and locals_count and kind:
                    scope.types[node.target.id] = kind
                if node.value is not None:
                    self._expression(node.value, scope)
                if not isinstance(node.target, ast.Name):
                    self._expression(node.target, scope)
            case _:
                if isinstance(node, ast.MatchClass):
                    scope.refs.update(dict.fromkeys(f"?.{name}" for name in node.kwd_attrs))
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)) if locals_count:
                        # A local variable is a new instance of the class.
                        made = dotted(function)
                        if made.rpartition(".")[2][:1].isupper():
                            scope.types[name] = made
                    case _:
                        pass
                for child in children(node):
                    self._walk(child, scope, locals_count=locals_count)

    def _nested(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        self._decorators(node, node.name, scope)
        self._at_import(self._evaluated_annotations(node), scope)
        if serves(node):
            self._implementation(node, scope)
            return
        self._arguments(node.args, scope)
        for statement in node.body:
            self._walk(statement, scope)

    def _guarded(self, node: ast.Try, scope: _Scope) -> None:
        for statement in node.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement, scope.name, guarded=True, typing=False)
            else:
                self._walk(statement, scope)
        for rest in (*node.handlers, *node.orelse, *node.finalbody):
            self._walk(rest, scope)

    def _expression(self, node: ast.expr, scope: _Scope) -> None:
        # By far the most are of the first kinds, which are not held against the patterns of the others.
        if isinstance(node, ast.Name):
            if node.id not in scope.names and not isinstance(node.ctx, ast.Store):
                scope.refs.setdefault(scope.in_class.get(node.id, node.id))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
                scope.refs.setdefault(f"!{node.value}")
        elif isinstance(node, ast.Attribute):
            self._attribute(node, scope)
        else:
            self._composed(node, scope)

    def _composed(self, node: ast.expr, scope: _Scope) -> None:
        match node:
            case ast.Tuple(elts=[ast.Constant(value=str(module)), ast.Constant(value=str(name))]) if (
                _DOTTED.fullmatch(module) and name.isidentifier()
            ):
                scope.refs.setdefault(f"!{module}.{name}")
            case ast.Call(func=ast.Name(id=name), args=[subject, *_]) if name in _TYPE_CHECKS:
                self._expression(subject, scope)
            case ast.Call(func=ast.Name(id=name), args=[subject, ast.Constant(value=str(attribute)), *more]) if (
                name
                in {
                    "getattr",
                    "hasattr",
                    "setattr",
                }
            ):
                self._expression(subject, scope)
                if attribute.isidentifier():
                    scope.refs.setdefault(f"?.{attribute}")
                for given in more:
                    self._expression(given, scope)
            case _:
                for child in children(node):
                    if isinstance(child, ast.expr):
                        self._expression(child, scope)
                    else:
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
            case ast.Name(id=name) if name in scope.in_class:
                scope.refs.setdefault(scope.in_class[name])
                scope.refs.setdefault(f"?.{rest}")
            case ast.Name(id=name):
                scope.refs.setdefault(f"{name if name != 'cls' else 'self'}.{rest}")
            case ast.Call(func=ast.Name(id="super")):
                scope.refs.setdefault(f"super().{rest}")
            case ast.Call(func=function) if dotted(function).rpartition(".")[2][:1].isupper():
                self._expression(root, scope)
                scope.refs.setdefault(f"{dotted(function)}().{rest}")
            case _:
                self._expression(root, scope)
                scope.refs.setdefault(f"?.{rest}")

    def _import(self, node: ast.Import | ast.ImportFrom, scope: str, *, guarded: bool, typing: bool) -> None:
        marks = (guarded, typing)
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else name
                self.imports.append(Import(name, module, 0, None, node.lineno, scope, *marks))
                if module != alias.name:
                    self.imports.append(Import("", alias.name, 0, None, node.lineno, scope, *marks))
            else:
                name = alias.asname or alias.name
                found = Import(name, node.module or "", node.level, alias.name, node.lineno, scope, *marks)
                self.imports.append(found)


def _in_class(node: ast.ClassDef) -> Iterator[ast.AST]:
    """The nodes of the body of a class and of the classes in it, but for those in functions."""
    for statement in node.body:
        for item in own_nodes(statement):
            yield item
            if isinstance(item, ast.ClassDef):
                yield from _in_class(item)

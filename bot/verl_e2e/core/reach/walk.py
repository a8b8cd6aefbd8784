"""Following references from entry points: what can run, how it was reached, and how sure that is."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verl_e2e.core.reach.program import BODY, Node, Program

# Bases that never call back into a class: a subclass of these alone runs only what someone calls by name.
_PASSIVE_BASES = frozenset(
    {"object", "ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict", "dict", "list"}
    | {"str", "int", "Exception", "ValueError", "RuntimeError", "tuple", "set"}
)

# What Python calls of a class while others are made, though no instance exists.
_HOOKS = frozenset(
    {"__init_subclass__", "__class_getitem__", "__mro_entries__", "__prepare__", "__subclasshook__"}
    | {"_generate_next_value_", "_missing_"}
)

_AT_DEFINITION = "may call where it is defined"

_NO_METHODS: Mapping[str, str] = MappingProxyType({})

_FACTORIES = ("create_", "make_", "build_", "get_")

# How many steps back a symbol still counts as what another one does.
_NEAR = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the other program: an import, or an attribute that is used there (`module` empty).

    `attribute` is None for the import of a whole module. `file` and `line` say where; `guarded` that the place
    survives an ImportError. With a `job` it is not a place, but a function that a measured run of this job entered.
    """

    module: str
    attribute: str | None
    file: str = ""
    line: int = 0
    guarded: bool = False
    job: str = ""

    @property
    def target(self) -> str:
        """What is imported by its full name, or the attribute with a dot before it."""
        return self.module if self.attribute is None else f"{self.module}.{self.attribute}"

    def __str__(self) -> str:
        if self.job:
            return f"a measured run of {self.job} entered {self.attribute}"
        what = f"imports {self.attribute or self.module}" if self.module else f"uses .{self.attribute}"
        return f"{self.file}:{self.line} {what}"


@dataclass(frozen=True, slots=True)
class Step:
    """How a node was reached: from which node, or from an entry; `sure` is False for an edge that is a guess."""

    source: Node | Entry
    how: str
    sure: bool = True


class Reach:
    """What can run. `steps` holds every node that is executed, `imported` every module whose body is.

    `ran` are functions that runs entered: those to which no chain leads can run all the same.
    """

    def __init__(self, program: Program, entries: Iterable[Entry], ran: Iterable[Entry] = ()) -> None:
        self._program = program
        self.steps: dict[Node, Step] = {}
        self.imported: dict[str, Step] = {}
        self.live: dict[Node, Step] = {}
        self.unresolved: list[Entry] = []
        self._sources: dict[Node, dict[Node, None]] = {}
        self._called: dict[str, Node | Entry] = {}
        self._waiting: dict[str, list[Node]] = {}
        self._asked: dict[Node, dict[str, None]] = {}
        self._below: dict[Node, list[Node]] = {}
        self._lines: dict[Node, tuple[Node, ...]] = {}
        self._active: dict[Node, bool] = {}
        self._methods: dict[str, list[Node]] | None = None
        self._serving: dict[Node, list[Node]] = {}
        # Functions that run at most while they are decorated: then no implementation of them is there yet.
        self._unserved: set[Node] = set()
        self._todo: deque[Node] = deque()
        self._later: deque[Node] = deque()
        entries = tuple(entries)
        for entry in entries:
            if entry.module:
                self._enter(entry)
        for entry in entries:
            if not entry.module and entry.attribute:
                self._call(entry.attribute, entry)
        self._drain()
        for entry in ran:
            node = Node(entry.module, entry.attribute or "")
            symbol = program.symbol(node)
            if symbol is not None and node not in self.steps:
                self._use(node, symbol.kind, [], entry)
                self._import(node.module, entry)
        self._drain()

    def chain(self, node: Node) -> tuple[Step, ...]:
        """The steps from an entry to a node, outermost first; empty for a node that is not reached."""
        found: list[Step] = []
        seen: set[Node] = set()
        step = self.steps.get(node) or self.live.get(node) or (None if node.symbol else self.imported.get(node.module))
        while step is not None:
            found.append(step)
            if isinstance(step.source, Entry) or step.source in seen:
                break
            seen.add(step.source)
            source = step.source
            step = self.steps.get(source) or self.live.get(source)
        return tuple(reversed(found))

    def definers(self, method: str) -> tuple[Node, ...]:
        """The live classes that define a method of this name themselves."""
        if self._methods is None:
            self._methods = {}
            for cls in self.live:
                view = self._program.view(cls.module)
                for name in view.methods.get(cls.symbol, ()) if view else ():
                    self._methods.setdefault(name, []).append(cls)
        return tuple(self._methods.get(method, ()))

    def _enter(self, entry: Entry) -> None:
        known = entry.module in self._program
        if known:
            self._follow_import(entry.module, entry.attribute, entry)
        if entry.attribute is None:
            if not known:
                self.unresolved.append(entry)
            return
        found = self._program.lookup(entry.module, entry.attribute) if known else None
        if found is None:
            self.unresolved.append(entry)
        else:
            self._use(found.node, found.kind, [], entry)
            return
        # This tree cannot serve the import: whatever has the name elsewhere, else what a factory would make.
        name = entry.attribute
        # The class that a factory function makes, judged by its name.
        verb = next((verb for verb in _FACTORIES if name.startswith(verb)), None)
        kin = name[len(verb) :].replace("_", "").lower() if verb else ""
        for view in self._program.all_views():
            for symbol in view.symbols.values():
                if symbol.name == name:
                    self._import(view.name, entry, sure=False)
                    self._use(Node(view.name, name), symbol.kind, [], entry, sure=False)
                elif kin and symbol.kind == "class" and not entry.guarded:
                    cls = Node(view.name, symbol.name)
                    if any(above.symbol.lower() == kin for above in self._line(cls)):
                        self._import(view.name, entry, sure=False)
                        self._make_live(cls, Step(entry, "may make", sure=False))

    def _drain(self) -> None:
        while self._todo or self._later:
            node = self._todo.popleft() if self._todo else self._later.popleft()
            view = self._program.view(node.module)
            symbol = view.symbols.get(node.symbol) if view else None
            if view is None or symbol is None:
                continue
            for text in view.by_scope.get(node.symbol, ()) if node.symbol else ():
                self._follow_import(view.target(text), text.attribute, node)
            owner = Node(node.module, node.symbol.partition(".")[0]) if "." in node.symbol else None
            for ref in symbol.refs:
                self._follow(node, node if symbol.kind == "class" else owner, ref)

    def callers(self, node: Node, depth: int = _NEAR) -> tuple[Node, ...]:
        """The symbols that surely lead to a node in so many steps, whichever way it was reached first."""
        found: dict[Node, None] = {}
        last = [node]
        for _ in range(depth):
            last = [source for item in last for source in self._sources.get(item, ()) if source not in found]
            found.update(dict.fromkeys(last))
        return tuple(found)

    def _reach(self, node: Node, step: Step) -> None:
        if step.sure and isinstance(step.source, Node):
            self._sources.setdefault(node, {})[step.source] = None
        if step.how == _AT_DEFINITION and node not in self.steps:
            self._unserved.add(node)
        elif step.how != _AT_DEFINITION:
            self._unserved.discard(node)
            for implementation in self._serving.pop(node, ()):
                self._reach(implementation, Step(node, "dispatches to", sure=step.sure))
        if node in self.steps:
            return
        self.steps[node] = step
        (self._todo if step.sure else self._later).append(node)

    def _follow_import(self, module: str, attribute: str | None, source: Node | Entry) -> None:
        if module not in self._program:
            return
        self._import(module, source)
        if attribute is not None:
            self._ask_module(module, attribute, source)
            if f"{module}.{attribute}" in self._program:
                self._import(f"{module}.{attribute}", source)

    def _ask_module(self, module: str, name: str, source: Node | Entry) -> None:
        """A name is asked of a module: one that it does not bind is a case for its `__getattr__`.

        So is the `__path__` of one that is not a package, for which `from module import name` asks first.
        """
        view = self._program.view(module)
        if view is None or "__getattr__" not in view.symbols:
            return
        if not view.package or not {name} & (view.symbols.keys() | view.imports):
            self._reach(Node(module, "__getattr__"), Step(source, "calls"))

    def _import(self, module: str, source: Node | Entry, *, sure: bool = True) -> None:
        if module in self.imported:
            return
        self.imported[module] = Step(source, "imports", sure=sure)
        outer = module.rpartition(".")[0]
        if outer and outer in self._program:
            self._import(outer, source, sure=sure)
        view = self._program.view(module)
        if view is None:
            return
        body = Node(module, BODY)
        for item in view.by_scope.get(BODY, ()):
            self._follow_import(view.target(item), item.attribute, body)
        self._reach(body, Step(source, "imports", sure=sure))
        for symbol in view.symbols.values():
            node = Node(module, symbol.name)
            if symbol.kind == "class" and (symbol.decorated or self._is_hooked(node)):
                self._make_live(node, Step(body, "registers"))
            elif symbol.serves:
                # An implementation runs from the moment on that the function it serves does.
                served, rest = self._program.dotted(module, symbol.serves.split("."))
                if served is None or rest:
                    continue
                if served.node in self.steps and served.node not in self._unserved:
                    self._reach(node, Step(served.node, "dispatches to"))
                else:
                    self._serving.setdefault(served.node, []).append(node)
            elif symbol.name.rpartition(".")[2] in _HOOKS:
                self._reach(node, Step(body, "runs"))

    def _is_hooked(self, cls: Node) -> bool:
        """Whether a class of the program has a say in how this one is made: a base with a hook, or a metaclass."""
        for above in self._line(cls):
            symbol = self._program.symbol(above)
            made_by = [base.partition("=")[2] for base in symbol.bases if "=" in base] if symbol is not None else []
            if any(name and self._program.dotted(above.module, name.split("."))[0] for name in made_by):
                return True
            if above != cls and self._program.symbol(Node(above.module, f"{above.symbol}.__init_subclass__")):
                return True
        return False

    def _follow(self, node: Node, owner: Node | None, ref: str) -> None:
        if ref[0] == "!":
            # A full name in a text.
            named = self._program.full_name(ref[1:])
            if named is not None:
                self._use(named.node, named.kind, [], node, sure=False)
            return
        if ref[0] == "^":
            # A function of the file that its decorator may call.
            self._reach(Node(node.module, ref[1:]), Step(node, _AT_DEFINITION))
            return
        if ref[0] == "=":
            # An attribute that is only asked for imports the module that has it, and does not call a function that has
            # it.
            found, left = self._program.dotted(node.module, ref[1:].split("."))
            if found is not None and left and found.kind != "function":
                self._use(found.node, found.kind, left, node)
                return
            if found is not None:
                self._import(found.node.module, node)
            self._call_all(left, node)
            return
        kind, made, rest = ref.partition("().")
        if made:
            self._follow_instance(node, owner, kind, rest.split("."))
            return
        parts = ref.split(".")
        if parts[0] == "?":
            self._call_all(parts[1:], node)
        elif parts[0] == "self" and owner is not None:
            if len(parts) > 1:
                self._dispatch(owner, parts[1], node)
                self._call_all(parts[2:], node)
        else:
            found, left = self._program.dotted(node.module, parts)
            first = self._program.lookup(node.module, parts[0])
            if first is not None and first.kind == "module" and len(parts) > 1:
                self._ask_module(first.node.module, parts[1], node)
            if found is not None:
                self._use(found.node, found.kind, left, node)

    def _follow_instance(self, node: Node, owner: Node | None, kind: str, rest: list[str]) -> None:
        if kind == "super":
            if owner is not None:
                method = self._nearest(self._line(owner)[1:], rest[0])
                if method is not None:
                    self._reach(method, Step(node, "calls"))
            self._call_all(rest[1:], node)
            return
        found, left = self._program.dotted(node.module, kind.split("."))
        if found is not None and found.kind == "class" and not left:
            self._dispatch(found.node, rest[0], node)
            self._call_all(rest[1:], node)
        else:
            self._call_all(rest, node)

    def _use(self, target: Node, kind: str, left: list[str], source: Node | Entry, *, sure: bool = True) -> None:
        if kind == "module":
            self._import(target.module, source)
            return
        if kind == "class":
            self._make_live(target, Step(source, "uses", sure=sure))
            if left:
                self._dispatch(target, left[0], source)
                self._call_all(left[1:], source)
            return
        self._reach(target, Step(source, "calls" if kind == "function" else "uses", sure=sure))
        self._call_all(left, source)

    def _call_all(self, names: list[str], source: Node | Entry) -> None:
        for name in names:
            self._call(name, source)

    def _call(self, name: str, source: Node | Entry) -> None:
        """An attribute of an object whose type is unknown: every live class that has it may be meant."""
        if name in self._called:
            return
        self._called[name] = source
        for method in self._waiting.pop(name, ()):
            self._reach(method, Step(source, "may call", sure=False))

    def _dispatch(self, cls: Node, name: str, source: Node | Entry) -> None:
        """A method called on an instance of a class: the inherited one, and each live subclass's own or inherited."""
        if name in self._asked.setdefault(cls, {}):
            return
        self._asked[cls][name] = None
        method = self._method(cls, name)
        if method is not None:
            self._reach(method, Step(source, "calls"))
        for below in self._below.get(cls, ()):
            method = self._method(below, name)
            if method is not None:
                self._reach(method, Step(source, "dispatches to"))

    def _method(self, cls: Node, name: str) -> Node | None:
        """The method that an instance of a class has by this name: its own, else the nearest inherited one."""
        return self._nearest(self._line(cls), name)

    def _nearest(self, line: Iterable[Node], name: str) -> Node | None:
        """The method of this name in the first of some classes that has one."""
        for base in line:
            view = self._program.view(base.module)
            symbol = view.methods.get(base.symbol, _NO_METHODS).get(name) if view is not None else None
            if symbol is not None:
                return Node(base.module, symbol)
        return None

    def _line(self, cls: Node) -> tuple[Node, ...]:
        """A class and the classes of the program that it inherits from, nearest first."""
        found = self._lines.get(cls)
        if found is None:
            self._lines[cls] = (cls,)
            order: dict[Node, None] = {cls: None}
            active = False
            symbol = self._program.symbol(cls)
            for base in symbol.bases if symbol else ():
                target, rest = self._program.dotted(cls.module, base.split("."))
                if target is not None and target.kind == "class" and not rest:
                    for item in self._line(target.node):
                        order.setdefault(item)
                    active = active or self._active.get(target.node, False)
                elif base.rpartition(".")[2] not in _PASSIVE_BASES:
                    active = True
            found = self._lines[cls] = tuple(order)
            self._active[cls] = active
        return found

    def _make_live(self, cls: Node, step: Step) -> None:
        """Instances of the class may exist from here on."""
        if cls in self.live:
            return
        self.live[cls] = step
        self._import(cls.module, step.source, sure=step.sure)
        self._reach(cls, step)
        line = self._line(cls)
        for above in line[1:]:
            self._below.setdefault(above, []).append(cls)
            self._make_live(above, Step(cls, "inherits from"))
        view = self._program.view(cls.module)
        assert view is not None
        for name, symbol in view.methods.get(cls.symbol, _NO_METHODS).items():
            method = Node(cls.module, symbol)
            if name.startswith("__") and name.endswith("__"):
                self._reach(method, Step(cls, "runs"))
            elif any(name in self._asked.get(above, ()) for above in line):
                self._reach(method, Step(cls, "overrides"))
            elif name in self._called:
                self._reach(method, Step(self._called[name], "may call", sure=False))
            elif self._active[cls]:
                self._reach(method, Step(cls, "may be called by its foreign base", sure=False))
            else:
                self._waiting.setdefault(name, []).append(method)
        # A base may call what only another base of the same class has.
        for name in [name for base in line[1:] for name in self._asked.get(base, ())]:
            inherited = self._method(cls, name)
            if inherited is not None:
                self._reach(inherited, Step(cls, "inherits"))

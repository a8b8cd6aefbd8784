"""One tree of sources whose functions can be looked into: parsed when first asked for, with who names what."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from verl_e2e.core.reach.conditions.flow import Flows
from verl_e2e.core.reach.entries import UseCondition
from verl_e2e.core.reach.program import Node, Program
from verl_e2e.core.reach.summary import BODY
from verl_e2e.core.reach.walk import Reach


class CodeTree:
    """The program of one side of a change, what is reached in it, and the text of its files."""

    def __init__(
        self,
        program: Program,
        reach: Reach,
        flows: Callable[[str], Flows | None],
        outside: Iterable[UseCondition] = (),
    ) -> None:
        self.program = program
        self.reach = reach
        # The functions of a file by its path, None for one that cannot be read.
        self.flows = flows
        self._naming: dict[str, tuple[Node, ...]] = {}
        self._below: dict[Node, list[Node]] | None = None
        # What the other program's uses of a name demand, one expression for each place; empty for none.
        self.outside: dict[str, list[str]] = {}
        for use in outside:
            self.outside.setdefault(use.name, []).append(use.condition)
        self.used_outside = frozenset(entry.attribute for entry in reach.entries if entry.attribute)

    def path_of(self, module: str) -> str:
        """The path of a module, empty for one without a file."""
        return self.program.paths.get(module, "")

    def naming(self, name: str) -> tuple[Node, ...]:
        """The reached symbols that name something: all that could call it, however they come by it."""
        if name not in self._naming:
            views = [view for module in self._modules if (view := self.program.view(module)) is not None]
            nodes = (Node(view.name, symbol) for view in views for symbol in view.summary.naming(name))
            reached = (node for node in nodes if node in self._order)
            self._naming[name] = tuple(sorted(reached, key=self._order.__getitem__))
        return self._naming[name]

    @cached_property
    def _order(self) -> Mapping[Node, int]:
        """The order in which symbols were reached."""
        return {node: at for at, node in enumerate(dict.fromkeys((*self.reach.steps, *self.reach.live)))}

    @cached_property
    def _modules(self) -> frozenset[str]:
        return frozenset(node.module for node in self._order)

    def below(self, cls: Node) -> tuple[Node, ...]:
        """The live classes that inherit from a class directly."""
        if self._below is None:
            self._below = {}
            for node in self.reach.live:
                for base in self._bases(node):
                    if base is not None:
                        self._below.setdefault(base, []).append(node)
        return tuple(self._below.get(cls, ()))

    def has_foreign_base(self, cls: Node) -> bool:
        """Whether code outside of the program may call the methods of a class, as a base of it is from there."""
        return any(base is None or self.has_foreign_base(base) for base in self._bases(cls))

    def _bases(self, cls: Node) -> Iterable[Node | None]:
        symbol = self.program.symbol(cls)
        for base in symbol.bases if symbol is not None else ():
            found, rest = self.program.dotted(cls.module, base.split("."))
            known = found is not None and found.kind == "class" and not rest
            if known and found is not None and found.node != cls:
                yield found.node
            elif base.rpartition(".")[2] not in _PASSIVE:
                yield None


# Bases that call no method of a class that they do not define themselves.
_PASSIVE = frozenset(
    {"object", "ABC", "Generic", "Protocol", "Enum", "StrEnum", "metaclass=ABCMeta", "metaclass=abc.ABCMeta"}
    # Containers call special methods alone, whose callers are not followed anyway.
    | {"Mapping", "Sequence", "Iterable", "Iterator", "Collection", "dict", "list", "tuple", "NamedTuple"}
)


def owner_of(node: Node) -> Node | None:
    """The class that a method belongs to."""
    owner = node.symbol.rpartition(".")[0]
    return Node(node.module, owner) if owner else None


def is_body(node: Node) -> bool:
    """Whether a node is what runs when a module is imported."""
    return node.symbol == BODY

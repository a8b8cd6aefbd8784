"""Which classes of Bridge convert which models, as the sources register them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from verl_e2e.core.reach.summary import parse

REGISTER = "register_bridge"


@dataclass(frozen=True, slots=True)
class Converter:
    """A class of Bridge that is registered for models of one architecture."""

    # The entry of `architectures` in the model's configuration.
    architecture: str
    # The class, and the file that it lies in.
    name: str
    path: str
    # Files that its file imports from.
    uses: frozenset[str] = frozenset()


def registered(path: str, text: bytes, uses: frozenset[str] = frozenset()) -> Iterator[Converter]:
    """The classes that a file registers, by a decorator or by a call; none of a file that Python does not parse."""
    if REGISTER.encode() not in text:
        return
    module = parse(text)
    if isinstance(module, str):
        return
    texts = dict(_constants(module))
    for node in ast.walk(module):
        calls: list[ast.expr] = []
        if isinstance(node, ast.ClassDef):
            name, calls = node.name, node.decorator_list
        elif isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            name, calls = node.args[0].id, [node.func]
        for call in calls:
            source = _source(call)
            if source is not None:
                yield Converter(texts.get(source, source), name, path, uses)


def _source(call: ast.expr) -> str | None:
    """What a call of the registration names as `source`: a text, or the name of a class or of a text."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != REGISTER:
        return None
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "source"), None)
    if isinstance(given, ast.Name):
        return given.id
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The variables of a module that hold a text, and that text."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            value, targets = statement.value.value, statement.targets
            yield from ((name.id, value) for name in targets if isinstance(name, ast.Name) and isinstance(value, str))

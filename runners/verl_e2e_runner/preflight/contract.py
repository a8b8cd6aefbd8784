"""What a wrapper script reads from its environment, by its syntax tree; nothing is executed.

A name counts as read when some path through the script expands it before the script has assigned it:
`NAME=${NAME:-x}` reads, `NAME=x` hides whatever the environment says from there on.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, remark

_LANGUAGE = Language(tree_sitter_bash.language())

# Statements whose body may not run, or runs in a shell of its own: what they assign is not certain afterwards.
_UNCERTAIN = frozenset(
    {"c_style_for_statement", "while_statement", "subshell", "command_substitution", "pipeline"}
    | {"process_substitution", "function_definition"}
)
# The one idiom that is unmistakable even where the grammar does not follow bash: `NAME=${NAME:-...}`.
_OWN_DEFAULT = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)=\"?\$\{\1:?-", re.MULTILINE)

_BUILTINS_THAT_ASSIGN = frozenset({"read", "mapfile", "readarray", "getopts"})


def reads(script: str) -> frozenset[str]:
    """The variables that the script takes from its environment.

    Of a part that the grammar cannot read only `NAME=${NAME:-...}` at the start of a line counts.
    """
    found: set[str] = set()
    _walk(_parse(script), frozenset(), found)
    return frozenset(found)


def unreadable_line(script: str) -> int | None:
    """The 1-based line of the first part that cannot be read as bash, None when all of it can."""
    root = _parse(script)
    return _first_fault(root) if root.has_error else None


def check_contract(
    script: str, name: str, wrapper: Mapping[str, str], *, droppable: Collection[str]
) -> tuple[frozenset[str], tuple[Finding, ...]]:
    """The names that the script reads, and whether it reads every one of `wrapper`.

    A name of `droppable` that is not read is a remark; any other blocks, with the closest names that are read.
    """
    known = reads(script)
    findings = []
    fault = unreadable_line(script)
    if fault is not None:
        findings.append(
            remark(Check.WRAPPER, f"{name}:{fault} cannot be read as bash: only plain defaults count there")
        )
    for variable in sorted(set(wrapper) - known):
        if variable in droppable:
            findings.append(remark(Check.WRAPPER, f"{name} does not read {variable} at this commit: not passed"))
        else:
            findings.append(_unread(name, variable, wrapper[variable], known))
    if not any(finding.blocking for finding in findings):
        findings.append(good(Check.WRAPPER, f"{name} reads all {len(set(wrapper) & known)} variables of the job"))
    return known, tuple(findings)


def _unread(name: str, variable: str, value: str, known: Iterable[str]) -> Finding:
    close = difflib.get_close_matches(variable, sorted(known), n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return blocked(
        Check.WRAPPER,
        f"{name} does not read {variable} (the job sets {variable}={value}): the run would silently be a weaker one",
        f"{hint}Correct the name in the job's `wrapper` map, or choose a verl commit that reads it",
    )


def _walk(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    """Collect what `node` reads while `assigned` holds; returns what is certainly assigned after it."""
    kind = node.type
    if node.is_error:
        found.update(set(_OWN_DEFAULT.findall(_text(node))) - assigned)
        return assigned
    if kind in ("simple_expansion", "expansion"):
        return _expand(node, assigned, found)
    if kind == "variable_assignment":
        return _assign(node, assigned, found)
    if kind == "command":
        return _command(node, assigned, found)
    if kind == "unset_command":
        return assigned | {_text(child) for child in node.children if child.type == "variable_name"}
    if kind == "for_statement":
        variable = node.child_by_field_name("variable")
        _children(node, assigned | ({_text(variable)} if variable else set()), found)
        return assigned
    if kind in ("if_statement", "case_statement"):
        return _branches(node, assigned, found)
    if kind == "list":
        return _list(node, assigned, found)
    if kind == "variable_name" and _is_arithmetic(node) and _text(node) not in assigned:
        found.add(_text(node))
    after = _children(node, assigned, found)
    return assigned if kind in _UNCERTAIN else after


def _children(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    for child in node.children:
        assigned = _walk(child, assigned, found)
    return assigned


def _expand(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    names = [child for child in node.children if child.type == "variable_name"]
    if names and _text(names[0]) not in assigned:
        found.add(_text(names[0]))
    for child in node.children:
        if not (names and child == names[0]):
            _walk(child, assigned, found)
    assigns = any(child.type in (":=", "=") for child in node.children)
    return assigned | {_text(names[0])} if names and assigns else assigned


def _assign(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    target, *rest = node.children
    name = target.child_by_field_name("name") if target.type == "subscript" else target
    for child in rest:
        _walk(child, assigned, found)
    if name is None:
        return assigned
    if any(child.type == "+=" for child in rest) and _text(name) not in assigned:
        found.add(_text(name))
    return assigned | {_text(name)}


def _command(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    """`NAME=x command` assigns for that command only; `: ${NAME:=x}` and `read NAME` assign for good."""
    for child in node.children:
        after = _walk(child, assigned, found)
        if child.type != "variable_assignment":
            assigned = after
    words = [_text(child) for child in node.children if child.is_named]
    if words and words[0] in _BUILTINS_THAT_ASSIGN:
        return assigned | {word for word in words[1:] if word.isidentifier()}
    return assigned


def _branches(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    """What every branch assigns is certain; without `else` (or `*)`) one branch does nothing."""
    trunk = assigned
    ends: list[frozenset[str]] = []
    complete = False
    arms = {"elif_clause", "else_clause", "case_item"}
    for child in node.children:
        if child.type in arms:
            ends.append(_walk(child, assigned, found))
            complete = complete or child.type == "else_clause" or _is_catch_all(child)
        else:
            trunk = _walk(child, trunk, found)
    if node.type == "if_statement":
        ends.append(trunk)
    return frozenset.intersection(*ends) if complete and ends else assigned


def _list(node: Node, assigned: frozenset[str], found: set[str]) -> frozenset[str]:
    """`a && b`, `a || b`: only the left side certainly runs."""
    after = _walk(node.children[0], assigned, found)
    for child in node.children[1:]:
        _walk(child, after, found)
    return after


def _is_catch_all(node: Node) -> bool:
    value = node.child_by_field_name("value")
    return node.type == "case_item" and value is not None and _text(value) == "*"


def _is_arithmetic(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
        parent = parent.parent
    return parent is not None and parent.type in ("arithmetic_expansion", "compound_statement")


def _first_fault(node: Node) -> int:
    for child in node.children:
        if child.has_error or child.is_missing:
            return _first_fault(child)
    return node.start_point[0] + 1


def _parse(script: str) -> Node:
    return Parser(_LANGUAGE).parse(script.encode()).root_node


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")

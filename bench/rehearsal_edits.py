"""Edits of a source file, of which `rehearsal_faults.py` draws some."""

import ast
import copy
import itertools
import random

PAIRS = "Eq NotEq, Lt LtE, Gt GtE, Is IsNot, In NotIn, And Or, Add Sub, BitAnd BitOr, Mult Div"
OPERATORS = {"FloorDiv": "Mult", "Mod": "FloorDiv", "Pow": "Mult"}
for pair in PAIRS.split(", "):
    one, other = pair.split()
    OPERATORS |= {one: other, other: one}
# What stands for the folder of the sources in a record.
SHORT = "src/"
KINDS = ("compare", "arithmetic", "constant", "arguments", "call", "order")
# What only tells people something.
SAID = ("logger.", "logging.", "print", "log_", "warnings.")
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)


def drawn(bridge, imports, records, table, seed, count):
    """Edit 0, which changes nothing, and so many of lines that cells enter: other places, kinds in turn.

    `bridge` is the folder of the sources, `imports` and `records` what they left unedited, `table` the cells by name.
    An edit needs a process of its own (`apart`) where it runs at import time or in a module that only cells import.
    """
    chance, cells_of, found = random.Random(seed), {}, {kind: [] for kind in KINDS}
    for name, record in records.items():
        for path, ranges in record.entered.lines.items():
            for line in itertools.chain(*(range(first, last + 1) for first, last in ranges)):
                cells_of.setdefault((path, line), []).append(name)
    for path in sorted({path for path, _line in cells_of if path.startswith(SHORT)}):
        source = (bridge / path.removeprefix(SHORT)).read_text()
        for kind, line, owner, start, end, text in candidates(source):
            if (path, line) in cells_of:
                apart = not owner or path not in imports.entered.lines or f"{path}:{owner}" in imports.entered.functions
                place = {"path": path.removeprefix(SHORT), "line": line, "owner": owner, "start": start, "end": end}
                found[kind].append({"kind": kind, **place, "text": text, "apart": apart})
    edits = [{"number": 0, "kind": "none", "apart": False, "cells": spread(records, table, chance)}]
    for number in range(1, count + 1):
        among = found[KINDS[number % len(KINDS)]]
        if among:
            edit = among.pop(chance.randrange(len(among)))
            cells = spread(cells_of[SHORT + edit["path"], edit["line"]], table, chance)
            edits.append({"number": number, **edit, "cells": cells})
    return edits


def spread(names, table, chance):
    """Cells so that kinds take turns, those of one rank first."""
    kinds = {}
    for name in sorted(names, key=lambda _name: chance.random()):
        cell = table[name]
        kind = cell.ranks > 1, cell.resumed, str(cell.adapter.get("type")), cell.ep > 1 or "moe" in cell.family
        kinds.setdefault(kind, []).append(name)
    turns = itertools.zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return [name for turn in turns for name in turn if name]


def edited(edit, bridge):
    """The text of a file with an edit; no line changes its number."""
    source = (bridge / edit["path"]).read_bytes()
    return (source[: edit["start"]] + edit["text"].encode() + source[edit["end"] :]).decode()


def candidates(source):
    """Every edit of a source: its kind, line, function, the bytes that it replaces, and by what."""
    data, nodes = source.encode(), []
    starts = list(itertools.accumulate((len(line) for line in data.splitlines(keepends=True)), initial=0))

    def span(node):
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    _collect(ast.parse(source), "", "", nodes)
    for node, owner in nodes:
        if isinstance(node, tuple):
            (start, middle), (after, end) = span(node[0]), span(node[1])
            text = data[after:end] + data[middle:after] + data[start:middle]
            yield "order", node[0].lineno, owner, start, end, text.decode()
            continue
        for kind, new in changes(node):
            # As many lines as before, so that every function keeps its place.
            ends = "\n" * (node.end_lineno - node.lineno)
            yield kind, node.lineno, owner, *span(node), f"pass{ends}" if new == "pass" else f"({new}{ends})"


def _collect(node, owner, prefix, nodes):
    """Note what computes something, with the qualified name of the function that it runs in; statements in pairs, too.

    `prefix` is what the name of a function that is defined here begins with.
    """
    said = isinstance(node, ast.Call) and ast.unparse(node.func).startswith(SAID)
    documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if said or documents or isinstance(node, (ast.JoinedStr, ast.Raise)):
        return
    nodes.append((node, owner))
    inner = owner, prefix
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        name = prefix + getattr(node, "name", "<lambda>")
        inner = name, f"{name}.<locals>."
    elif isinstance(node, ast.ClassDef):
        inner = owner, f"{prefix}{node.name}."
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            children = [
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            ]
            for child in children:
                _collect(child, *(inner if name == "body" else (owner, prefix)), nodes)
            for one, other in itertools.pairwise(children):
                simple = isinstance(one, SIMPLE) and isinstance(other, SIMPLE) and one.end_lineno < other.lineno
                if simple and _depend(one, other):
                    nodes.append(((one, other), inner[0] if name == "body" else owner))


def _depend(one, other):
    """Whether one of two statements sets what the other one reads, so that their order counts."""
    return bool(_names(one, ast.Store) & _names(other, ast.Load) or _names(one, ast.Load) & _names(other, ast.Store))


def _names(statement, context):
    """The names and attributes that a statement sets or reads, as they are written."""
    nodes = (node for node in ast.walk(statement) if isinstance(node, (ast.Name, ast.Attribute)))
    found = {ast.unparse(node) for node in nodes if isinstance(node.ctx, context)}
    # `x += 1` reads x, too.
    return found | ({ast.unparse(statement.target)} if isinstance(statement, ast.AugAssign) else set())


def changes(node):
    """The edits of one node: kind and new text."""
    write, new = ast.unparse, copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator]) if _other(operator):
            new.ops = [_other(operator)]
            yield "compare", write(new)
        case ast.BoolOp() | ast.BinOp() if _other(node.op):
            new.op = _other(node.op)
            yield "arithmetic" if isinstance(node, ast.BinOp) else "compare", write(new)
        case ast.UnaryOp(op=ast.Not()):
            yield "compare", write(node.operand)
        case ast.Constant(value=bool() | int() | float() | str() as value):
            kinds = {
                bool: lambda: not value,
                int: lambda: value + 1,
                float: lambda: value * 2 + 1,
                str: lambda: value[:-1],
            }
            yield "constant", repr(kinds[type(value)]())
        case ast.Expr(value=ast.Call()):
            yield "call", "pass"
        case ast.Call(args=[ast.Name() | ast.Attribute() | ast.Call() as only], keywords=[]):
            yield "call", write(only)
        case ast.Call(args=[one, other, *_]) if not {type(one), type(other)} & {ast.Starred}:
            new.args[:2] = other, one
            yield "arguments", write(new)
        case ast.Call(keywords=[one, other, *_]) if one.arg and other.arg and write(one.value) != write(other.value):
            one.arg, other.arg = other.arg, one.arg
            yield "arguments", write(new)


def _other(operator):
    name = OPERATORS.get(type(operator).__name__)
    return getattr(ast, name)() if name else None

"""Edits that leave every run as it is: they should mostly ask for nothing."""

import ast
import random
from collections.abc import Iterator


def harmless_edits(text: str, choose: random.Random) -> Iterator[tuple[str, str]]:
    """The kinds of edits that can be made of a file, each with the whole text after it."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    yield "a comment", text + "\n# a comment\n"
    yield "a comment on top", f"# a comment\n{text}"
    tops = [item.lineno - 1 for item in tree.body[1:] if not getattr(item, "decorator_list", [])]
    if tops:
        line = choose.choice(tops)
        yield "a comment between", "".join([*lines[:line], "# a comment\n\n\n", *lines[line:]])
    yield "reformatted", ast.unparse(tree) + "\n"
    documented = [item for item in ast.walk(tree) if isinstance(item, _Documented) and ast.get_docstring(item)]
    if documented:
        node = choose.choice(documented)
        first = node.body[0]
        assert isinstance(first, ast.Expr)
        changed = ast.parse(text)
        for other in ast.walk(changed):
            if isinstance(other, type(node)) and getattr(other, "lineno", 0) == getattr(node, "lineno", 0):
                other.body[0] = ast.Expr(ast.Constant("Another docstring."))
                break
        yield "a docstring", ast.unparse(ast.fix_missing_locations(changed)) + "\n"
    changed = ast.parse(text)
    raised = [
        item.exc.args
        for item in ast.walk(changed)
        if isinstance(item, ast.Raise) and isinstance(item.exc, ast.Call) and item.exc.args
    ]
    raised = [arg for arg in raised if isinstance(arg[0], ast.Constant) and isinstance(arg[0].value, str)]
    if raised:
        choose.choice(raised)[0] = ast.Constant("another text")
        yield "the text of an error", ast.unparse(ast.fix_missing_locations(changed)) + "\n"


_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module

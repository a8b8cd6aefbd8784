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
    tops = [one.lineno - 1 for one in tree.body[1:] if not getattr(one, "decorator_list", [])]
    if tops:
        line = choose.choice(tops)
        yield "a comment between", "".join([*lines[:line], "# a comment\n\n\n", *lines[line:]])
    yield "reformatted", ast.unparse(tree) + "\n"
    documented = [one for one in ast.walk(tree) if isinstance(one, _Documented) and ast.get_docstring(one)]
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
        one.exc.args
        for one in ast.walk(changed)
        if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call) and one.exc.args
    ]
    raised = [one for one in raised if isinstance(one[0], ast.Constant) and isinstance(one[0].value, str)]
    if raised:
        choose.choice(raised)[0] = ast.Constant("another text")
        yield "the text of an error", ast.unparse(ast.fix_missing_locations(changed)) + "\n"
    yield "a new function that nobody calls", text + "\n\ndef unread_(first, second=1):\n    return first + second\n"
    yield "a new constant that nobody reads", text + "\n\nUNREAD_ = 3\n"


_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module

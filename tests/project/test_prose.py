"""No decision is taken by the words of a sentence: what a sentence says for people is a field for programs.

Two rules, as far as syntax can tell. A field that holds a sentence (`reason`, `summary` ...) is never compared,
searched, cut at a word or used as a key. A sentence of our own is never looked for in anything. Modules that read what
others write (a log, git, a page of GitHub) are named with the reason.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.fakes.places import ROOT

SENTENCES = frozenset(
    {
        *("because", "blame", "cause", "detail", "fix", "note", "obstacle", "problem", "reason", "reasons"),
        *("remark", "remarks", "sentence", "summary", "title", "why"),
    }
)
SEARCHES = frozenset(
    {
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "partition",
        "rpartition",
        "split",
        "find",
        "index",
        "count",
    }
)
PATTERNS = frozenset({"search", "match", "fullmatch"})
# A sentence: two words of letters with a blank between, or a mark between two parts of one.
PROSE = re.compile(r"[A-Za-z`)]{2,}[,;:]? [A-Za-z`(]{2,}|^[;:,] |[;:] `?$")
# What reads the words of others, which have no field for them.
FOREIGN = {
    "bot/verl_e2e/core/log/": "a log's lines",
    "bot/verl_e2e/core/triage/": "a log's lines",
    "bot/verl_e2e/core/reach/": "source code",
    "bot/verl_e2e/core/log/lines.py": "a log's lines",
    "bot/verl_e2e/core/log/printed.py": "a log's lines",
    "bot/verl_e2e/core/judge/criteria/resume.py": "a log's lines",
    "bot/verl_e2e/adapters/github/": "what GitHub answers",
    "bot/verl_e2e/adapters/mirror.py": "what git prints",
    "bot/verl_e2e/git/": "what git prints",
    "bot/verl_e2e/core/judge/junit.py": "what pytest writes, errors of libraries",
    "runners/verl_e2e_runner/preflight/preflight.py": "what the hub's client prints",
    "runners/verl_e2e_runner/bridge_tests.py": "errors of pytest, and what it prints",
    "runners/verl_e2e_runner/folder/process_records.py": "what Ray and vLLM call their processes",
    "runners/verl_e2e_runner/instrumentation/": "what Python raises",
    "runners/verl_e2e_runner/rehearsal/host_python/shared.py": "what Python and C++ raise where no thread can start",
}


# Words for programs although they have a blank: the names of a phase, of kinds of change, of a place.
CODES = frozenset({"bridge tests", "import time", "(module level)", "module level"})
# Where rows that a field of ours lists are laid out in columns.
LAID_OUT = {"bot/verl_e2e/core/report/verdict_rows.py": "one_line(item.excerpt, 2000).split(', ')"}


def parsed() -> dict[str, ast.Module]:
    files = sorted([*(ROOT / "bot").rglob("*.py"), *(ROOT / "runners").rglob("*.py")])
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """The value of every constant of a module, by its name."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name] = value
            case _:
                pass
    return found


def in_reach(tree: ast.Module, trees: dict[str, ast.Module]) -> dict[str, ast.expr]:
    """The constants of a module and those that it imports by name."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            source = trees.get(f"{node.module.replace('.', '/')}.py")
            there = constants(source) if source else {}
            found |= {alias.asname or alias.name: there[alias.name] for alias in node.names if alias.name in there}
    return found | constants(tree)


def texts(node: ast.expr, known: dict[str, ast.expr], depth: int = 3) -> Iterator[str]:
    """The texts that an expression may stand for."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
        case ast.Name(id=name) if name in known and depth:
            yield from texts(known[name], known, depth - 1)
        case ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from texts(part, known, depth)
        case ast.Dict(keys=keys):
            for key in keys:
                yield from texts(key, known, depth) if key is not None else ()
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple"), args=[part]):
            yield from texts(part, known, depth)
        case ast.BinOp(left=left, right=right):
            yield from texts(left, known, depth)
            yield from texts(right, known, depth)
        case _:
            return


def is_sentence(node: ast.expr) -> bool:
    """Whether an expression is a field or a variable that holds a sentence, or some form of one."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SENTENCES
        case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "strip" | "casefold" | "upper")):
            return is_sentence(inner)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return is_sentence(inner)
        case _:
            return False


def is_kind(node: ast.expr) -> bool:
    """Whether an expression is a member of an enumeration, as `EndReason.EXITED`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.isupper()


def asked(node: ast.AST) -> tuple[list[ast.expr], list[ast.expr]]:
    """What a piece of syntax takes a decision on, and what it holds that against."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=[*others]) if not all(
            isinstance(op, ast.Is | ast.IsNot | ast.Lt | ast.Gt | ast.LtE | ast.GtE) for op in ops
        ):
            plain = any(
                (isinstance(other, ast.Constant) and not other.value) or is_kind(other) for other in (left, *others)
            )
            return ([], []) if plain else ([left, *others], [left, *others])
        case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=[first, *_]) if name in SEARCHES:
            return [receiver, first], [first]
        case ast.Call(func=ast.Attribute(attr=name), args=[*given]) if name in PATTERNS and given:
            return [given[-1]], given[:-1]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="get"), args=[key, *_]) if table.isupper():
            return [key], [key]
        case ast.Subscript(value=ast.Name(id=table), slice=key) if table.isupper():
            return [key], [key]
        case _:
            return [], []


def decisions(path: str, tree: ast.Module, known: dict[str, ast.expr]) -> Iterator[str]:
    foreign = any(path.startswith(place) for place in FOREIGN)
    for node in ast.walk(tree):
        subjects, held = asked(node)
        if subjects and path in LAID_OUT and ast.unparse(node) == LAID_OUT[path]:
            continue
        begun = any(
            isinstance(part, ast.JoinedStr) and text.endswith(":") for part in held for text in texts(part, known)
        )
        message = (text for part in held for text in texts(part, known) if text not in CODES)
        if not foreign and (begun or any(map(is_sentence, subjects)) or any(map(PROSE.search, message))):
            yield f"{path}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:120]}"


def test_no_decision_is_taken_by_the_words_of_a_sentence() -> None:
    trees = parsed()
    assert [found for path, tree in trees.items() for found in decisions(path, tree, in_reach(tree, trees))] == []


@pytest.mark.parametrize(
    "line",
    [
        'any("; `/verl-e2e" in reason for reason in told.reasons)',
        'plan.remarks[0].endswith("every level is run")',
        "one.startswith(ids) if (reason := one) else reason.startswith(ids)",
        'obstacle.partition("; `")',
        "run.reason in GONE",
        "TABLE.get(run.reason)",
        'mark.startswith(f"{criterion}:")',
        "TABLE[finding.summary]",
        'text.startswith("its environment does not have ")',
        "text.startswith(NOT)",
        're.search("did not pass", line)',
        "finding.because == verdict.because",
        'job.note.lower() == "cancelled by hand"',
        'any("every level is run" in one for one in rows)',
    ],
)
def test_the_rules_find_such_a_decision(line: str) -> None:
    source = f'GONE = frozenset({{"a new head was pushed"}})\nNOT = "its environment does not have "\nfound = {line}\n'
    tree = ast.parse(source)
    assert list(decisions("bot/verl_e2e/planted.py", tree, constants(tree)))


@pytest.mark.parametrize(
    "line",
    [
        'reason == ""',
        "reason is None",
        "bool(reason) and len(reason) < 5",
        'path.startswith("src/")',
        'run.state in {"queued", "running"}',
        'name.partition("=")',
        "TABLE.get(run.state)",
    ],
)
def test_and_nothing_else(line: str) -> None:
    tree = ast.parse(f"found = {line}\n")
    assert list(decisions("bot/verl_e2e/planted.py", tree, {})) == []


def test_every_reader_of_foreign_words_is_there() -> None:
    assert [place for place in FOREIGN if not (ROOT / place).exists()] == []

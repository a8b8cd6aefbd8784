"""Annotations of changed lines: where the traceback of a failure passes through what the change did.

A changed symbol gets an annotation when the traceback passes through it, or a weaker one when the function that
failed lies on the chain by which verl reaches it. No other part of a change gets one.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import Plan, Reason
from verl_e2e.core.pulls.forge import MAX_ANNOTATIONS, Annotation
from verl_e2e.core.reach.program import parse
from verl_e2e.core.text.escape import one_line

MAX_ANNOTATED_PATHS = 20
_MODULE_LEVEL = "(module level)"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class ChangedSource:
    """A changed file at the head, and at the base where it was there."""

    head: bytes
    base: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A changed place that a failure meets; `frame` is the call of the traceback, `passed` whether it lies in it."""

    path: str
    symbol: str
    frame: str
    passed: bool


def paths_to_read(plan: Plan, verdict: Verdict) -> tuple[str, ...]:
    """The changed paths whose contents `annotate` wants; empty unless the verdict is a Fail with a traceback."""
    return tuple(dict.fromkeys(meeting.path for meeting in _meetings(plan, verdict)))[:MAX_ANNOTATED_PATHS]


def annotate(plan: Plan, verdict: Verdict, sources: Mapping[str, ChangedSource]) -> tuple[Annotation, ...]:
    """The annotations of one failed job, those that the traceback passes through first; at most 50.

    A path that is not in `sources` gets none: without its lines nothing can be pointed at.
    """
    found: dict[tuple[str, int, int], Annotation] = {}
    for meeting in _meetings(plan, verdict):
        if meeting.path not in sources:
            continue
        first, last = _lines(meeting.symbol, sources[meeting.path])
        what, frame = one_line(meeting.symbol, 200) or "this file", one_line(meeting.frame, 200)
        how = "The traceback passes through" if meeting.passed else "The function that failed leads to"
        annotation = Annotation(
            path=meeting.path,
            first_line=first,
            last_line=last,
            level="failure" if meeting.passed else "warning",
            title=one_line(f"{verdict.job_id} failed at {verdict.stage}", 200),
            message=f"{how} {what}, which this change touches ({frame}). {one_line(verdict.cause, 500)}",
        )
        found.setdefault((meeting.path, first, last), annotation)
    return tuple(found.values())[:MAX_ANNOTATIONS]


def _meetings(plan: Plan, verdict: Verdict) -> tuple[_Meeting, ...]:
    """Where the failure meets the change: passed through first, and the innermost frame before the others."""
    if verdict.result is not Result.FAIL:
        return ()
    calls = verdict.calls[::-1]
    reasons = [reason for reason in plan.reasons if reason.path]
    passed = [(reason, call) for call in calls for reason in reasons if _lies_in(reason, call)]
    # The innermost frame on any chain: the places that it leads to may have made what it was given.
    steps = {step for reason in reasons for step in reason.via}
    failed = next((call for call in calls if any(_leads(step, call) for step in steps)), "")
    led = [(reason, failed) for reason in reasons if any(_leads(step, failed) for step in reason.via)]
    found: dict[tuple[str, str], _Meeting] = {}
    for number, (reason, call) in enumerate((*passed, *led)):
        path, symbol = reason.path or "", reason.symbol or ""
        found.setdefault((path, symbol), _Meeting(path, symbol, call, passed=number < len(passed)))
    return tuple(found.values())


def _lies_in(reason: Reason, call: str) -> bool:
    """Whether a frame `path:function` lies in a changed place; logs show files below a folder, or cut on the left."""
    logged, _, function = call.rpartition(":")
    path = reason.path or ""
    same_file = path == logged or logged.endswith(f"/{path}") or ("/" in logged and path.endswith(f"/{logged}"))
    return same_file and (reason.symbol is None or reason.symbol.rpartition(".")[2] == function)


def _leads(step: str, call: str) -> bool:
    """Whether a step of a chain, `package.module.Class.function ...`, is the function of a frame."""
    file, _, function = call.rpartition(":")
    node = step.split(" ", 1)[0]
    if not file.endswith(".py") or node.rpartition(".")[2] != function:
        return False
    module = "." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    owner = node.rpartition(".")[0]
    return module.endswith((f".{owner}", f".{owner.rpartition('.')[0]}")) and "." in owner


def _lines(symbol: str, source: ChangedSource) -> tuple[int, int]:
    """The changed lines of a symbol at the head, else all of its lines, else the first line of the file."""
    first, last = 1, max(1, source.head.count(b"\n") + 1)
    if symbol not in ("", _MODULE_LEVEL):
        tree = parse(source.head)
        # Of several definitions of one name the last one, as Python itself has it.
        node = None if isinstance(tree, str) else dict(_definitions(tree)).get(symbol)
        last = 1
        if node is not None:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            last = node.end_lineno or node.lineno
    changed: list[int] = []
    old, new = (source.base or b"").splitlines(), source.head.splitlines()
    for kind, _, _, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            # After a pure deletion the line that follows it.
            changed += [line for line in range(start + 1, max(end, start + 1) + 1) if first <= line <= last]
    return (min(changed), max(changed)) if changed else (first, last if symbol else first)


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Definition]]:
    """The definitions below a node, by their dotted names, those inside `if` and `try` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            yield f"{prefix}{child.name}", child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _definitions(child, prefix)

"""Which variables a wrapper script reads from its environment, by a search in its text; nothing is executed.

What the wrapper makes of a variable is shown by the call and by the composed configuration, which preflight holds
against the job. This finds what neither of them can show: a name that the wrapper does not know, and the names that a
stray variable of the host must not set.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, note

_COMMENT = re.compile(r"^\s*#.*|\s#[^\"']*$")
_EXPANSION = re.compile(r"\$\{?[!#]?([A-Za-z_]\w*)")
# A statement of its own, not indented, and so under no condition: `NAME=x command` holds for that command only.
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(?:\"[^\"]*\"|'[^']*'|[^\s\"'])*\s*")


def reads(script: str) -> frozenset[str]:
    """The variables that some line expands (`$NAME`, `${NAME...}`) before an unconditional assignment hides them.

    `NAME=${NAME:-x}` reads, `NAME=x` hides whatever the environment says from there on. Quotes are not understood: an
    expansion between single quotes counts.
    """
    found: set[str] = set()
    assigned: set[str] = set()
    for line in script.splitlines():
        code = _COMMENT.sub("", line)
        found.update(set(_EXPANSION.findall(code)) - assigned)
        if assignment := _ASSIGNMENT.fullmatch(code):
            assigned.add(assignment[1])
    return frozenset(found)


def check_contract(
    script: str, name: str, wrapper: Mapping[str, str], *, droppable: Collection[str]
) -> tuple[frozenset[str], tuple[Finding, ...]]:
    """The names that the script reads, and whether it reads every one of `wrapper`.

    An unread name of `droppable` gives a note. Any other unread name blocks, with the closest names that are read.
    """
    known = reads(script)
    findings = []
    for variable in sorted(set(wrapper) - known):
        if variable in droppable:
            findings.append(note(Check.WRAPPER, f"{name} does not read {variable} at this commit, so it is not passed"))
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
        f"{name} does not read {variable} (the job sets {variable}={value}): the run would test too little",
        f"{hint}correct the name in the job's `wrapper` map, or choose a verl commit that reads it",
    )

"""Declared patches and site overrides that touch what the change touches, so that a run would not show the change.

A patch of such a function is left out of the job. An override of such a setting stays, because a profile has it for
what its host cannot do otherwise, and the result names it.
"""

from collections.abc import Iterable, Mapping

from verl_e2e.core.model.changed_code import ChangedCode, ChangedFunction, Side
from verl_e2e.core.model.jobs import Patch

# The lines that a patch replaces: the first and the last of each place.
Lines = tuple[tuple[int, int], ...]
# The parts of a configuration key below which Bridge's own settings are.
_OF_BRIDGE = frozenset({"megatron", "lora"})
_OVERRIDE = "override_"


def replaced_lines(patch: Patch, content: bytes) -> Lines:
    """The lines of a file that a patch replaces; all of it where one place is only there after another was replaced."""
    text = content.decode("utf-8", "replace")
    found: list[tuple[int, int]] = []
    for change in patch.substitutions:
        at = text.find(change.old)
        if at < 0:
            return ((1, text.count("\n") + 1),)
        while at >= 0:
            first = text.count("\n", 0, at) + 1
            found.append((first, first + change.old.rstrip("\n").count("\n")))
            at = text.find(change.old, at + max(1, len(change.old)))
    return tuple(found)


def without_touched(
    patches: Iterable[Patch], lines: Mapping[Patch, Lines], changed: ChangedCode
) -> tuple[tuple[Patch, ...], tuple[str, ...]]:
    """The patches that leave the changed code as it is, and a sentence for each other one.

    A patch whose lines are not known touches every changed function of its file.
    """
    kept: list[Patch] = []
    left_out: list[str] = []
    for patch in patches:
        touched = _touched(patch, lines.get(patch), changed) if patch.repository == "bridge" else None
        if touched is None:
            kept.append(patch)
        else:
            code = f"{patch.file}, {touched.symbol or 'the module level'}"
            left_out.append(f"patch {patch.name} is left out, because it replaces code that the change touches: {code}")
    return tuple(kept), tuple(left_out)


def _touched(patch: Patch, lines: Lines | None, changed: ChangedCode) -> ChangedFunction | None:
    """The changed function that a patch replaces lines of."""
    for function in changed.functions:
        if function.path != patch.file or function.side is not Side.HEAD:
            continue
        own = (
            [(function.first_line, function.last_line)]
            if function.symbol
            else [(line, line) for line in function.lines]
        )
        if lines is None or any(
            first <= last_own and first_own <= last for first, last in lines for first_own, last_own in own
        ):
            return function
    return None


def read_overrides(overrides: Iterable[str], words: frozenset[str]) -> tuple[str, ...]:
    """A sentence for each setting of Bridge that overrides fix and that the changed statements name."""
    found: dict[str, list[str]] = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        parts = key.split(".")
        of_bridge = any(part in _OF_BRIDGE or part.startswith(_OVERRIDE) for part in parts[:-1])
        if of_bridge and parts[-1] in words:
            found.setdefault(parts[-1], []).append(value)
    fixed = {name: " and ".join(dict.fromkeys(values)) for name, values in found.items()}
    return tuple(
        f"the change reads {name}, which the site fixes as {value}: other values are not exercised"
        for name, value in fixed.items()
    )

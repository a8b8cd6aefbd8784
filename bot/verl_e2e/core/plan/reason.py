"""Why a plan requires a level."""

from dataclasses import dataclass

from verl_e2e.core.model.levels import Level

# How reasons name the statements of a module that belong to no symbol.
MODULE_LEVEL = "(module level)"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a level is required.

    `path` is None when another level asks for this one. `symbol` is the function or class concerned, None when
    the whole file is; `via` is how the path was connected with the level, outermost first. `rule` is the name of the
    policy's rule that asks, empty where none names the path; it is the last step of `via` too.
    """

    level: Level
    path: str | None
    reason: str
    symbol: str | None = None
    via: tuple[str, ...] = ()
    rule: str = ""
    # Whether nothing but code that runs at import asks for it, so that importing shows it.
    at_import: bool = False

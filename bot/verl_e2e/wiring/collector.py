"""How often Python looks for unreachable cycles: seldom in a process that reads many syntax trees and ends soon."""

import atexit
import gc

# New objects between two looks at them, and how many of these between two looks at older ones. With Python's own
# numbers a third of a plan's time is spent looking at syntax trees, which hold no cycles. One plan makes fewer objects
# that stay than the first number, and about a thousand that only cycles keep.
_YOUNG, _MIDDLE, _OLD = 2_000_000, 20, 100


def collect_seldom() -> None:
    """Look for cycles seldom from here on, and never at what is there already or what is left when Python ends."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    atexit.register(gc.freeze)

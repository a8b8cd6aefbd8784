"""Which of our files and functions one event passes through: the price that a reader of the code pays."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

from tests.fakes.places import ROOT

_OURS = (f"{ROOT / 'bot'}/", f"{ROOT / 'runners'}/")


@dataclass
class Walk:
    """What was passed, while it was traced."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    """By file, qualified name and line; bodies of modules and classes and comprehensions are left out."""

    @property
    def files(self) -> set[str]:
        """The files of these functions, below the checkout."""
        return {str(Path(file).relative_to(ROOT)) for file, _, _ in self.functions}

    def enter(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; what `sys.setprofile` takes."""
        code = frame.f_code
        ours = event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(_OURS)
        # A template is compiled to functions, and is a page and no code.
        ours = ours and code.co_filename.endswith(".py")
        if ours and (not code.co_name.startswith("<") or code.co_name == "<lambda>"):
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace all threads that start meanwhile, and this one."""
    walk, before = Walk(), sys.getprofile()
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        yield walk
    finally:
        sys.setprofile(before)
        threading.setprofile(None)

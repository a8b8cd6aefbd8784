"""Problems in a file that a person wrote, one sentence for each."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.text.suggest import suggest as suggest

# A file in which everything is wrong needs another look before all of it is read.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file."""

    # The file, or "environment".
    source: str
    # The line, from 1; 0 for the whole file.
    line: int
    # The key with dots (`rules.3.levels`), or the variable; empty for the whole file.
    key: str
    # What is wrong.
    what: str
    # What to do about it; empty when nothing more can be said.
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{place}: {self.key}" if self.key else place
        return f"{subject}: {self.what}; {self.fix}" if self.fix else f"{subject}: {self.what}"


class ConfigError(UserError):
    """A file or the environment has mistakes; the message has one line for each of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_SHOWN]]
        left = len(self.problems) - len(shown)
        super().__init__("\n".join([*shown, f"and {left} more"] if left else shown))

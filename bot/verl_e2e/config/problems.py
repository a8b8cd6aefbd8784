"""What is wrong with a file that a person wrote, one sentence for each problem."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.text.suggest import suggest as suggest


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the file and 1-based line (0: the file as a whole), the dotted key, what is wrong, the fix."""

    source: str
    line: int
    key: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{place}: {self.key}" if self.key else place
        return f"{subject}: {self.what}; {self.fix}" if self.fix else f"{subject}: {self.what}"


class ConfigError(UserError):
    """A file cannot be used as it stands. The user's mistake; the message has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

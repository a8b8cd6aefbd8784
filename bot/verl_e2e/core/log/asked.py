"""What a run was asked for, as its log tells: variables that the shell echoed, and the overrides of the command line.

Nothing is judged here, and nothing evaluated: a value that the shell or Hydra would still have to work out is left out.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from verl_e2e.core.log.lines import EXCERPT_CAP, Line
from verl_e2e.core.model.facts import Excerpt, Setting

MAX_SETTINGS = 2000
MAX_COMMAND_LINES = 400
MAX_ECHO = 4096
# A line of the driver by its number.
Echo = tuple[int, str]

# Variables of the wrapper that say what is run, and those that say from where; literals of the scan nominate each.
VARIABLE = re.compile(
    r"(?:(?:COMMON|TRAIN|INFER|ACTOR|REF|CRITIC|ROLLOUT)_(?:TP|PP|VPP|CP|EP|ETP))|(?:CRITIC_)?LORA_RANK"
    r"|(?:DUMMY_)?MODEL_PATH|(?:VALUE_)?VANILLA_MBRIDGE|USE_MBRIDGE|USE_MEGATRON_FSDP|USE_DUMMY_MODEL|ENGINE|ADV_ESTIMATOR|NUM_GPUS"
    r"|MAX_(?:PROMPT|RESPONSE)_LENGTH|TOTAL_TRAIN_STEPS|SAVE_FREQ|TEST_FREQ|RESUME_MODE|VAL_BEFORE_TRAIN"
    r"|PYTHONPATH|(?:[A-Z]+_)?BRIDGE(?:_(?:ROOT|PATH|DIR|SRC|HOME|REPO))?"
)
COMMAND_SHAPE = r"(?:\s-m\s+[\w.]*\bmain_\w+|\bmain_\w+\.py)(?:\s|$)"
_TRACE = re.compile(r"\++ ")
_DECLARES = re.compile(r"(?:export|declare -x|env|readonly) ")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w@]*(?:[./][\w@-]+)*)=(.*)", re.DOTALL)
_QUOTES = re.compile(r"[\\'\"]")
_LISTED = re.compile(r"overrides: (\[.*\])\s*$")


class Settings(Sequence[Setting]):
    """Settings that are read from their lines when they are first asked for: of most runs of a log they never are."""

    __slots__ = ("_command", "_read", "_variables")

    def __init__(self, variables: tuple[Echo, ...], command: tuple[Echo, ...]) -> None:
        self._variables = variables
        self._command = command
        self._read: tuple[Setting, ...] | None = None

    @overload
    def __getitem__(self, index: int) -> Setting: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Setting]: ...
    def __getitem__(self, index: int | slice) -> Setting | Sequence[Setting]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings):
            return NotImplemented
        return (self._variables, self._command) == (other._variables, other._command)

    def __hash__(self) -> int:
        return hash((self._variables, self._command))

    def _all(self) -> tuple[Setting, ...]:
        if self._read is None:
            variables = (
                Setting(name, value, _at(number, f"{name}={value}"))
                for number, text in self._variables
                for name, value in _assigned(text)
            )
            self._read = (*islice(variables, MAX_SETTINGS), *islice(_overrides(self._command), MAX_SETTINGS))
        return self._read


class AskedBook:
    """What one run was asked for. Variables that are echoed after its command belong to the run after it."""

    def __init__(self, waiting: Iterable[Echo] = ()) -> None:
        self._variables = list(waiting)
        self._later: list[Echo] = []
        self._command: list[Echo] = []
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether the next line goes on with the command."""
        return self._open

    def following(self) -> "AskedBook":
        """The book of the run after this one."""
        return AskedBook(self._later)

    def settings(self) -> Settings:
        """Everything that was asked for, in the order in which it was printed."""
        return Settings(tuple(self._variables), tuple(self._command))

    def variables(self, line: Line, *, ended: bool) -> None:
        """Take a line of the driver that may assign variables; `ended` when the run has ended before it."""
        if line.driver:
            self.echoed(line.number, line.text, ended=ended)

    def echoed(self, number: int, text: str, *, ended: bool) -> None:
        """Take what the driver's shell printed on a line; `ended` as above."""
        rows = self._later if self._command or ended else self._variables
        if len(rows) < MAX_SETTINGS and (not rows or rows[-1][0] != number):
            rows.append((number, text[:MAX_ECHO]))

    def command(self, line: Line) -> None:
        """Take the line that starts the program, and go on with the next one when it ends in a backslash."""
        if line.driver and not self._command:
            self._open = True
            self.go_on(line)

    def go_on(self, line: Line) -> None:
        """Take the next line of the driver while the command is open."""
        if not line.driver or (self._command and self._command[-1][0] == line.number):
            return
        text = line.text.rstrip()
        self._command.append((line.number, text.removesuffix("\\")))
        self._open = text.endswith("\\") and len(self._command) < MAX_COMMAND_LINES

    def listed(self, line: Line) -> None:
        """Take Hydra's list of overrides, which it prints when the program failed, where no command was echoed."""
        if not self._command and _LISTED.search(line.text):
            self._command.append((line.number, line.text))


def _overrides(command: tuple[Echo, ...]) -> Iterator[Setting]:
    """The overrides of a command over one line or several, or of the list that Hydra prints."""
    text = " ".join(text for _, text in command)
    listed = _LISTED.search(text)
    for word in _items(listed[1]) if listed else _words(text):
        found = _OVERRIDE.fullmatch(word)
        if found is not None:
            number = next((number for number, text in command if found[0] in text), command[0][0])
            yield Setting(found[1], found[2], _at(number, found[0]), override=True)


def _items(listed: str) -> list[str]:
    try:
        items = ast.literal_eval(listed)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [item for item in items if isinstance(item, str)]


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """The variables that a line assigns: all behind the shell's `+`, else only a line that is one assignment."""
    traced = _TRACE.match(text)
    if traced is None:
        found = _ASSIGNMENT.fullmatch(text.strip())
        if found is not None and VARIABLE.fullmatch(found[1]) and not re.search(r"\s", found[2]):
            yield found[1], found[2]
        return
    rest = text[traced.end() :]
    declares = _DECLARES.match(rest)
    for word in _words(rest[declares.end() :] if declares else rest):
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return
        if VARIABLE.fullmatch(found[1]):
            yield found[1], found[2]


def _words(text: str) -> list[str]:
    """The words of a shell command; none when its quotes are not closed."""
    if not _QUOTES.search(text):
        return text.split()
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _at(number: int, text: str) -> Excerpt:
    return Excerpt(number, text[:EXCERPT_CAP])

"""The commands: one table from which they are parsed, helped with and documented; and what they ask for on a head.

A command is a line of its own in a comment, `/verl-e2e VERB ARGUMENTS NAME=VALUE ...`. Which lines of a comment
count is for `verl_e2e.adapters.markdown` to say; here a line becomes a `Command` or a `Mistake`.
Here too: who may ask for what, whose code may run on the GPUs, and which overrides count."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from verl_e2e.core.consumer.consumers import PARITY_VARIANTS, VARIANTS, variant_named
from verl_e2e.core.model.access import ROLES, WIDE_ROLES, Access, Capability, OverrideRules
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.forge import Pull
from verl_e2e.core.pulls.ledger import Approval, Override, Priority, RecordedCommand, Run, RunState
from verl_e2e.core.text.escape import suggest

_MAX_STEPS = 1_000
MIN_REASON, MAX_REASON = 10, 500
_MODEL = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/-]{0,199}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?")
_SHA = re.compile(r"[0-9a-f]{40}")
_LEVELS = re.compile(r"level(\d)(?:-(?:level)?(\d))?")
# What a path of a repository never needs, and a shell or Markdown would act on.
_PATH = re.compile(r"[\w.+@/:-]{1,400}")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a word cannot be read, and the fix."""

    what: str
    fix: str = ""


WordReader = Callable[[str], str | Unreadable]


def level_words(word: str) -> tuple[int, ...] | None:
    """The levels that `level2`, `level0-2` or `all` names; empty where there are none such, None for another word."""
    if word == "all":
        return tuple(int(item) for item in Level)
    found = _LEVELS.fullmatch(word)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2] or found[1])
    return tuple(range(first, last + 1)) if last <= max(Level) else ()


def one_of(*words: str) -> WordReader:
    """A reader of closed choices."""

    def read(text: str) -> str | Unreadable:
        return text.lower() if text.lower() in words else Unreadable("not known here", suggest(text.lower(), words))

    return read


def model(text: str) -> str | Unreadable:
    """A Hugging Face model, `organisation/name`."""
    if _MODEL.fullmatch(text) and ".." not in text:
        return text
    return Unreadable("no model id", "write it as on the Hugging Face Hub, such as Qwen/Qwen3-0.6B")


PARITY = "parity"


def variants_asked(name: str) -> tuple[Variant, ...]:
    """The variants that an option's value names, all of one level; empty for an empty name."""
    found = variant_named(name)
    return PARITY_VARIANTS if name == PARITY else (found,) if found is not None else ()


def variant(text: str) -> str | Unreadable:
    """A variant by its job id, or every one of parity."""
    known = {PARITY, *(item.job_id for item in VARIANTS)}
    return text if text in known else Unreadable("no such variant", suggest(text, known))


def steps(text: str) -> str | Unreadable:
    """A number of training steps."""
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MAX_STEPS:
        return str(int(text))
    return Unreadable("no number of steps", f"write a whole number from 1 to {_MAX_STEPS}, such as 20")


def verl_ref(text: str) -> str | Unreadable:
    """A commit, branch or tag of verl."""
    bad = ".." in text or "//" in text or "/." in text or text.endswith(("/", ".", ".lock"))
    if _REF.fullmatch(text) and not bad:
        return text
    return Unreadable("no commit, branch or tag name", "write a SHA or a name, such as verl_ref=main")


def image(text: str) -> str | Unreadable:
    """A container image with its tag or digest."""
    if _IMAGE.fullmatch(text) and ".." not in text and "//" not in text:
        return text
    return Unreadable("no image name", "write name:tag or name@sha256:digest, such as image=verlai/verl:vllm024.dev2")


def full_sha(text: str) -> str | Unreadable:
    """A whole commit id: a short one could name another commit tomorrow."""
    if _SHA.fullmatch(text.lower()):
        return text.lower()
    return Unreadable("no full commit SHA", "write all 40 hexadecimal digits, those of a head as its card shows them")


def level(text: str) -> str | Unreadable:
    """One level, `2` or `level2`."""
    found = level_words(text.lower() if text.lower().startswith("level") else f"level{text}")
    if found is None or len(found) != 1:
        return Unreadable("not a level", "write one number from 0 to 5")
    return str(found[0])


def path(text: str) -> str | Unreadable:
    """A file of the repository, with a symbol after a colon if wanted."""
    if _PATH.fullmatch(text) and not text.startswith("/") and ".." not in text.split("/"):
        return text
    return Unreadable(
        "no path of the repository", "write it from the top folder, such as src/megatron/bridge/peft/lora.py"
    )


def reason(text: str) -> str | Unreadable:
    """A reason that someone can read later."""
    if len(text) < MIN_REASON or len(text.split()) < 2:
        return Unreadable("no reason that says something", "write why in a few words")
    if len(text) > MAX_REASON:
        return Unreadable(f"longer than {MAX_REASON} characters", "write it shorter")
    return text


PREFIX = "/verl-e2e"
MAX_COMMANDS = 10
MAX_LINE = 1_000
_SPLIT = "put them into another comment"
LEVEL = "level"
_WORD = re.compile(r"\S+")
_OPTION = re.compile(r"([A-Za-z][A-Za-z_-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A line of a comment that speaks to the bot: its 1-based number there, and its text from the prefix on."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: how it is shown, and what reads it. `rest` takes the rest of the line unchanged."""

    shown: str
    read: WordReader
    optional: bool = False
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One `name=value`: how the value is shown, what it means, and what reads it."""

    name: str
    shown: str
    help: str
    read: WordReader


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table. `shown` is how the verb is written, where that is not its name."""

    name: str
    needs: Capability
    help: str
    example: str
    arguments: tuple[Argument, ...] = ()
    takes_options: bool = False
    shown: str = ""

    @property
    def usage(self) -> str:
        """The verb with its arguments, as help shows it."""
        words = [self.shown or self.name]
        words += [f"[{argument.shown}]" if argument.optional else argument.shown for argument in self.arguments]
        return " ".join([*words, *(["[options]"] if self.takes_options else [])])


OPTIONS = (
    Option("model", "ORG/NAME", "the Hugging Face model to train instead of the plan's", model),
    Option(
        "variant",
        "JOB",
        "one variant of the level, such as `2-vpp`, instead of its default; `parity`, also as a word of its own "
        "(`level2 parity`): every job of level 2 that is compared with an unsharded run",
        variant,
    ),
    Option("steps", "1..1000", "how many training steps the run takes", steps),
    Option("verl_ref", "SHA|REF", "the verl commit, branch or tag to test with instead of the policy's pin", verl_ref),
    Option(
        "mcore_ref",
        "FULL-SHA",
        "the commit of Megatron-LM to test with instead of the one that the head pins",
        full_sha,
    ),
    Option("image", "NAME:TAG", "the container image, of the same name as the policy's", image),
)

TABLE = (
    Verb(
        LEVEL,
        Capability.RUN,
        "Run levels, level 0 first. A run with an option, or of a level outside the plan, never satisfies the gate.",
        f"{PREFIX} level0-2 model=Qwen/Qwen3-0.6B",
        takes_options=True,
        shown="level0 .. level5 | levelA-B | all",
    ),
    Verb("plan", Capability.PLAN, "Plan the head again and show which levels it needs, and why.", f"{PREFIX} plan"),
    Verb("run", Capability.RUN, "Start the jobs of the plan, also after `cancel`.", f"{PREFIX} run"),
    Verb(
        "rerun",
        Capability.RUN,
        "Run again the jobs of this head that did not pass, and those whose verdict was reused; or only those that "
        "failed or were blocked.",
        f"{PREFIX} rerun failed",
        (Argument("failed|blocked", one_of("failed", "blocked"), optional=True),),
    ),
    Verb(
        "cancel", Capability.CANCEL, "Cancel all runs of this pull request and start no new ones.", f"{PREFIX} cancel"
    ),
    Verb(
        "status",
        Capability.ASK,
        "Update the card and the checks now, and restore what was edited, hidden or deleted.",
        f"{PREFIX} status",
    ),
    Verb(
        "explain",
        Capability.ASK,
        "Show how verl reaches a file, and which levels a change to each of its symbols needs.",
        f"{PREFIX} explain src/megatron/bridge/peft/lora.py",
        (Argument("PATH", path),),
    ),
    Verb(
        "rehearse",
        Capability.PLAN,
        "Rehearse this head on a CPU once more, after a rehearsal that failed, was blocked or was cancelled.",
        f"{PREFIX} rehearse",
    ),
    Verb(
        "approve",
        Capability.APPROVE,
        "Allow exactly this head of a fork or of a first-time author to run on the GPUs; the next push revokes it.",
        f"{PREFIX} approve {'0123456789abcdef' * 2}01234567",
        (Argument("FULL-SHA", full_sha),),
    ),
    Verb(
        "override",
        Capability.OVERRIDE,
        "Take responsibility for a level of this exact head in place of a pass; your reason stays on the card. "
        "Not for a head of your own. "
        "A merge queue still runs the level.",
        f"{PREFIX} override 2 {'0123456789abcdef' * 2}01234567 the cluster has no four free GPUs this week",
        (Argument("LEVEL", level), Argument("FULL-SHA", full_sha), Argument("REASON", reason, rest=True)),
    ),
    Verb(
        "priority",
        Capability.QUEUE,
        "Let the runs of this pull request start before or after those of others, on this head and on later ones.",
        f"{PREFIX} priority high",
        (Argument("high|normal|low", one_of(*map(str, Priority))),),
    ),
    Verb(
        "pause",
        Capability.QUEUE,
        "Start no run in the whole repository until `resume`; what runs goes on. "
        "Your reason is shown on every card that waits.",
        f"{PREFIX} pause the file system of the cluster is full",
        (Argument("REASON", reason, rest=True),),
    ),
    Verb("resume", Capability.QUEUE, "End a pause: runs of the whole repository start again.", f"{PREFIX} resume"),
    Verb("help", Capability.ASK, "Show these commands.", f"{PREFIX} help"),
)
VERBS: Mapping[str, Verb] = {item.name: item for item in TABLE}
_OPTION_NAMES = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it was understood; `line` is its line number. The arguments of `level` are levels, in order."""

    line: int
    verb: str
    arguments: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A line that is not a command: columns `start` to `end` of `text` are wrong, as `what` says; `fix` corrects it."""

    line: int
    text: str
    start: int
    end: int
    what: str
    fix: str = ""

    @property
    def verb(self) -> str:
        """The command that was meant, in small letters; empty where the line has only one word."""
        return next(iter(self.text.lower().split()[1:2]), "")


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int


class _WrongError(Exception):
    """A word that cannot be read; never leaves this module."""

    def __init__(self, word: _Word, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.word, self.what, self.fix = word, what, fix


def parse_commands(lines: tuple[CommandLine, ...]) -> tuple[Command | Mistake, ...]:
    """Each line as a command or as the mistake in it, in order; the lines after the tenth are one mistake."""
    found: list[Command | Mistake] = []
    for line in lines[:MAX_COMMANDS]:
        text = line.text[:MAX_LINE]
        words = [_Word(match[0], match.start(), match.end()) for match in _WORD.finditer(text)]
        try:
            if len(line.text) > MAX_LINE:
                raise _WrongError(words[-1], f"the line is longer than {MAX_LINE} characters", "write a shorter one")
            found.append(_command(line.number, text, words[1:], words[0]))
        except _WrongError as wrong:
            found.append(Mistake(line.number, text, wrong.word.start, wrong.word.end, wrong.what, wrong.fix))
    if len(lines) > MAX_COMMANDS:
        over = lines[MAX_COMMANDS]
        what = f"a comment may hold {MAX_COMMANDS} commands, so this line and those after it are ignored"
        found.append(Mistake(over.number, over.text[:MAX_LINE], 0, min(len(over.text), MAX_LINE), what, _SPLIT))
    return tuple(found)


def _command(number: int, text: str, words: list[_Word], prefix: _Word) -> Command:
    if not words:
        raise _WrongError(prefix, "no command follows", f"write `{PREFIX} help` for the commands")
    named = words[0].text.lower()
    if level_words(named) is not None:
        return _levels(number, words)
    verb = VERBS.get(named)
    if verb is None or verb.name == LEVEL:
        raise _WrongError(words[0], "no such command", suggest(named, _spoken()))
    left, read = words[1:], []
    for argument in verb.arguments:
        if not left and argument.optional:
            break
        if not left:
            raise _WrongError(words[-1], f"{argument.shown} is missing after this", f"write `{PREFIX} {verb.usage}`")
        word = left.pop(0)
        if argument.rest:
            word, left = _Word(text[word.start :].rstrip(), word.start, len(text.rstrip())), []
        read.append(_value(argument.read, word, word.text))
    return Command(number, verb.name, tuple(read), _options(verb, left))


def _spoken() -> tuple[str, ...]:
    levels = tuple(f"level{number}" for number in range(6))
    return (*(item.name for item in TABLE if item.name != LEVEL), *levels, "all")


def _levels(number: int, words: list[_Word]) -> Command:
    named: list[int] = []
    left = [replace(word, text=f"variant={PARITY}") if word.text.lower() == PARITY else word for word in words]
    while left and "=" not in left[0].text:
        word = left.pop(0)
        found = level_words(word.text.lower())
        if found is None:
            raise _WrongError(word, "not a level", suggest(word.text.lower(), _spoken()))
        if not found:
            raise _WrongError(word, "there is no such level, or the range runs backwards", "levels are 0 to 5")
        named.extend(found)
    options = _options(VERBS[LEVEL], left)
    of_level = {int(item.level) for item in variants_asked(options.get("variant", ""))}
    if of_level - {*named}:
        # Another variant would run in its place.
        fix = f"request level{min(of_level)} with it"
        raise _WrongError(_given("variant", left), "not a variant of the levels that are requested", fix)
    if int(Level.SAVE_RESUME) in named and options.get("steps") == "1":
        raise _WrongError(_given("steps", left), "level 1 saves before its last step and resumes", "give 2 or more")
    return Command(number, LEVEL, tuple(str(item) for item in sorted(set(named))), options)


def _given(name: str, words: list[_Word]) -> _Word:
    """The word that gives an option."""
    return next(word for word in words if word.text.lower().startswith(f"{name}="))


def _options(verb: Verb, words: list[_Word]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        named = _OPTION.fullmatch(word.text)
        if named is None or not verb.takes_options:
            raise _WrongError(
                word, f"`{verb.shown or verb.name}` does not take this word", f"write `{PREFIX} {verb.usage}`"
            )
        name = named[1].lower().replace("-", "_")
        if name not in _OPTION_NAMES:
            raise _WrongError(word, "no such option", suggest(name, _OPTION_NAMES))
        if name in found:
            raise _WrongError(word, f"{name}= is given twice", "leave one out")
        found[name] = _value(_OPTION_NAMES[name].read, word, named[2])
    return found


def _value(read: WordReader, word: _Word, text: str) -> str:
    found = read(text)
    if isinstance(found, Unreadable):
        raise _WrongError(word, found.what, found.fix)
    return found


GivenEntry = RecordedCommand | Approval | Override
# How many different requests for one head are served; each may be several jobs.
MAX_REQUESTS = 20
PAUSE, RESUME = "pause", "resume"
_BEGINS_AGAIN = frozenset({"run", "rerun", LEVEL})


@dataclass(frozen=True, slots=True)
class LevelRequest:
    """Levels that one entry asks for, with its options."""

    source: str
    levels: tuple[Level, ...]
    options: Mapping[str, str]


def in_written_order(entries: Iterable[GivenEntry]) -> tuple[GivenEntry, ...]:
    """Entries in the order in which they were written, whatever order they were delivered in.

    A label or a button has no time of its own: it counts from when its webhook was processed.
    """

    def when(entry: GivenEntry) -> tuple[datetime, int]:
        if not isinstance(entry, RecordedCommand) or entry.written is None:
            return entry.at, 0
        number = entry.source.split(":")[1]
        # GitHub's times have whole seconds, and its ids grow.
        return entry.written, int(number) if number.isdigit() else 0

    return tuple(sorted(entries, key=when))


def asked_for(entries: Iterable[GivenEntry], head_sha: str) -> tuple[RecordedCommand, ...]:
    """The commands given on this very head, in order."""
    return tuple(entry for entry in entries if isinstance(entry, RecordedCommand) and entry.head_sha == head_sha)


def level_requests(entries: Iterable[GivenEntry], head_sha: str) -> tuple[LevelRequest, ...]:
    """The levels requested for this head; the same request twice counts once."""
    found: dict[tuple[object, ...], LevelRequest] = {}
    for asked in asked_for(entries, head_sha):
        if asked.verb == LEVEL:
            key = (asked.arguments, tuple(sorted(asked.options.items())))
            levels = tuple(Level(int(number)) for number in asked.arguments)
            found.setdefault(key, LevelRequest(asked.source, levels, asked.options))
    return tuple(found.values())[:MAX_REQUESTS]


def was_begun(entries: Iterable[GivenEntry], head_sha: str) -> bool:
    """Whether someone asked for the plan's levels on this head."""
    return any(asked.verb in {"run", "rerun"} for asked in asked_for(entries, head_sha))


def cancelled_by(entries: Iterable[GivenEntry], head_sha: str) -> RecordedCommand | None:
    """The `cancel` that still holds: nothing was asked to run after it."""
    held: RecordedCommand | None = None
    for asked in asked_for(entries, head_sha):
        if asked.verb == "cancel":
            held = asked
        elif asked.verb in _BEGINS_AGAIN:
            held = None
    return held


def asked_again(last: Run, runs: Iterable[Run], entries: Iterable[GivenEntry]) -> str:
    """The source of the entry that wants this ended run once more, empty for none.

    An entry counts once for each job, and only for a run that was over when it was written, or that was cancelled
    later.
    """
    served = {run.asked_by for run in runs if run.job_id == last.job_id and run.head_sha == last.head_sha}
    since = last.created if last.state is RunState.CANCELLED else last.updated
    wanting = (asked for asked in asked_for(entries, last.head_sha) if asked.source not in served)
    return next((asked.source for asked in wanting if _means(asked, last) and asked.at >= since), "")


def _means(asked: RecordedCommand, last: Run) -> bool:
    failed = last.state is RunState.FINISHED and last.result is Result.FAIL
    passed = last.state is RunState.FINISHED and last.result is Result.PASS
    reused = bool(last.carried_from)
    if (passed and not reused) or not last.state.final:
        return False
    match (asked.verb, *asked.arguments):
        case ("rerun", "failed" | "blocked") if reused:
            return False
        case ("run",):
            return last.state is RunState.CANCELLED
        case ("rerun",):
            return True
        case ("rerun", "failed"):
            return failed
        case ("rerun", "blocked"):
            return not failed
        case ("rerun", job_id):
            return job_id == last.job_id
        case ("rehearse",):
            return last.job_id == REHEARSAL
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a repository that holds now: nothing is started there, and what runs goes on."""

    # The login of the person who paused.
    actor: str
    # When.
    at: datetime
    # The person's reason.
    reason: str

    @property
    def in_short(self) -> str:
        """Who paused, and since when."""
        return f"paused by {self.actor} since {self.at:%Y-%m-%d %H:%M} UTC"


def pauses_of(switches: Iterable[RecordedCommand]) -> Mapping[str, Pause]:
    """The pauses by repository, from every `pause` and `resume` that was ever accepted; the last one counts."""
    found: dict[str, Pause] = {}
    for entry in in_written_order(switches):
        if not isinstance(entry, RecordedCommand):
            continue
        if entry.verb == PAUSE:
            found[entry.repository] = Pause(entry.actor, entry.written or entry.at, entry.arguments[0])
        elif entry.verb == RESUME:
            found.pop(entry.repository, None)
    return found


# GitHub's words for an author of whom nothing was ever merged here.
_FIRST_TIME = frozenset({"FIRST_TIME_CONTRIBUTOR", "FIRST_TIMER", "MANNEQUIN"})


@dataclass(frozen=True, slots=True)
class Actor:
    """What is known of someone: role in the repository, those of the policy's teams that they are in."""

    login: str
    role: str = "none"
    teams: frozenset[str] = frozenset()
    is_author: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """Leave, and what it rests on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """No leave, and why; one sentence without a full stop."""

    reason: str


def may(actor: Actor, capability: Capability, access: Access) -> Granted | Denied:
    """Whether someone has a capability by the policy of the base branch."""
    grant = access.of(capability)
    if grant.anyone:
        return Granted("anyone may")
    if grant.author and actor.is_author:
        return Granted("they opened the pull request")
    if actor.login.lower() in {item.lower() for item in grant.logins}:
        return Granted("the policy names them")
    rank = ROLES.index(actor.role) if actor.role in ROLES else -1
    if actor.role in grant.custom_roles or any(rank >= ROLES.index(role) for role in grant.roles):
        return Granted(f"their role is {actor.role}")
    team = next((item for item in grant.teams if item in actor.teams), "")
    if team:
        return Granted(f"they are in {team}")
    ways = [f"the role {role}" for role in (*grant.roles, *grant.custom_roles)]
    ways += [f"the team {team}" for team in grant.teams]
    ways += ["to be named in the policy"] * bool(grant.logins) + ["to be the author"] * grant.author
    needed = " or ".join(ways) or "a permission that the policy gives to no one"
    return Denied(f"`{capability}` needs {needed}, and {actor.login} has the role {actor.role}")


def has_role(actor: Actor, access: Access) -> bool:
    """Whether someone has a role that not everyone has, or may run levels in another way."""
    return actor.role not in WIDE_ROLES or isinstance(may(actor, Capability.RUN, access), Granted)


def is_of_author(pull: Pull) -> bool:
    """Whether the author's own role speaks for the head: it lies in the repository or in an account of theirs.

    Anyone can open a pull request of someone else's fork, whose owner pushes into it.
    """
    return not pull.from_fork or pull.head_repository.partition("/")[0].lower() == pull.author.lower()


@dataclass(frozen=True, slots=True)
class Trusted:
    """This head may run on the GPUs, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """This head may not run before someone approves it by its full SHA, and why."""

    reason: str
    # Whether it is the head of an author who is known to have a role in the repository, see `has_role`.
    has_role: bool = False


def needs_leave(pull: Pull, approvals: Iterable[Approval]) -> bool:
    """Whether the head is one that runs with an approval alone, given or not."""
    return pull.from_fork or any(_covers(approval, pull) for approval in approvals)


def may_run(pull: Pull, approvals: Iterable[Approval], author: Actor, access: Access) -> Trusted | NeedsApproval:
    """Whether the head, as it is now, may run.

    A fork's head and a first-time author's need an approval of exactly this commit, so every push withdraws it. Other
    heads lie in the repository itself and are covered by the author's own capability to run.
    """
    given = next((approval for approval in approvals if _covers(approval, pull)), None)
    if given is not None:
        return Trusted(f"{given.actor} approved {pull.head_sha[:12]}")
    if pull.from_fork:
        where = pull.head_repository or "a fork that is gone"
        return NeedsApproval(f"the head lies in {where}, outside the repository")
    if pull.author_association.upper() in _FIRST_TIME:
        return NeedsApproval(f"it is {pull.author}'s first contribution here")
    leave = may(author, Capability.RUN, access)
    if isinstance(leave, Granted):
        return Trusted(f"{pull.author} may run levels: {leave.reason}")
    return NeedsApproval(leave.reason)


def _covers(approval: Approval, pull: Pull) -> bool:
    same = approval.repository == pull.ref.repository and approval.number == pull.ref.number
    return same and approval.head_sha == pull.head_sha and approval.base == pull.base_branch


OWN_HEAD = "who opened the pull request, pushed its head or wrote one of its commits cannot override its levels"
SECOND_PERSON = "a second person has to override it too"


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An override that does not count."""

    override: Override
    # A clause for people.
    why: str
    # Whether it counts as soon as a second person gives it too.
    needs_second_person: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """The overrides of a head, apart."""

    # Those that count; of a level that needs two people, one of each.
    overrides: tuple[Override, ...] = ()
    # The others, in the order in which they were given.
    uncounted: tuple[Uncounted, ...] = ()


def counted(overrides: Iterable[Override], rules: OverrideRules, now: datetime) -> Counted:
    """Which of a head's overrides count now; the givers' roles are looked at elsewhere."""
    left, refused = [], []
    for override in overrides:
        if override.level not in rules.levels:
            refused.append(Uncounted(override, f"the policy lets no one override level {int(override.level)}"))
        elif now >= expires_at(override, rules):
            refused.append(Uncounted(override, f"it was given more than {rules.expires_h} hours ago"))
        else:
            left.append(override)
    levels: list[Level] = []
    counting: list[Override] = []
    for level in dict.fromkeys(artifact.level for artifact in left):
        by_person = {artifact.actor.lower(): artifact for artifact in reversed(left) if artifact.level is level}
        given = sorted(by_person.values(), key=lambda item: item.at)
        if len(given) < needed(level, rules):
            refused.extend(Uncounted(item, SECOND_PERSON, needs_second_person=True) for item in given)
        elif len(levels) >= rules.most:
            why = f"the policy lets {rules.most} levels of one head be overridden at once"
            refused.extend(Uncounted(item, why) for item in given)
        else:
            levels.append(level)
            counting.extend(given)
    return Counted(tuple(counting), tuple(refused))


def needed(level: Level, rules: OverrideRules) -> int:
    """How many people must override a level."""
    return 2 if level in rules.two_persons else 1


def expires_at(override: Override, rules: OverrideRules) -> datetime:
    """When an override ends to count."""
    return override.at + timedelta(hours=rules.expires_h)

"""Which of the functions that a change touches each job is planned to execute.

A level's jobs are planned for the functions that its reasons name. Level 0 runs before all others and is planned for
everything that verl reaches, so that the plan's shortest run tells most. A level that is there only because another
one needs it is planned for nothing, and one that someone requests by hand for everything that verl reaches.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from verl_e2e.core.model.change import Change, readable
from verl_e2e.core.model.execution import (
    MEGATRON_LM_FOLDER,
    MOST_FUNCTIONS,
    MOST_LINES,
    ChangedCode,
    ChangedFunction,
    Side,
    in_megatron_lm,
)
from verl_e2e.core.model.jobs import Patch
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.cell_settings import leaves_by_itself
from verl_e2e.core.plan.classify import Classified, Reason
from verl_e2e.core.plan.job_models import is_on_family
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy, Rule, SymbolRule
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.effects import Effects
from verl_e2e.core.reach.program import module_name

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
        touched = None
        if patch.repository == "bridge":
            own = (item for item in changed.functions if item.path == patch.file and item.side is Side.HEAD)
            touched = next((item for item in own if _replaces(lines.get(patch), item)), None)
        if touched is None:
            kept.append(patch)
        else:
            code = f"{patch.file}, {touched.symbol or 'the module level'}"
            left_out.append(f"patch {patch.name} is left out, because it replaces code that the change touches: {code}")
    return tuple(kept), tuple(left_out)


def _replaces(lines: Lines | None, function: ChangedFunction) -> bool:
    """Whether replaced lines are among those of a changed function; of code that runs at import, its changed ones."""
    own = [(function.first_line, function.last_line)] if function.symbol else [(line, line) for line in function.lines]
    return lines is None or any(
        first <= last_own and first_own <= last for first, last in lines for first_own, last_own in own
    )


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


# What a job carries: it travels in the inputs of a workflow, of which GitHub takes 65,535 characters in all.
MOST_OF_JOB = (400, 4_000)
_NAMES_ALONE = "the sources were not looked into"
_NO_FUNCTION = "no function differs, only its name or the order of what it defines, and no record shows that"
_NO_SOURCE = "it is not Python source, and whether a run reads it is not recorded"


@dataclass(frozen=True, slots=True)
class Unshown:
    """What no job of a level can show of the change, because of the models that they run."""

    # The level that asks for it.
    level: Level
    # What none of their models has or is, a clause.
    reason: str
    # The functions, each as its path and name.
    places: tuple[str, ...]


@dataclass(frozen=True)
class CodePlan:
    """The functions of one change, with what asks for them."""

    change: Change
    # The paths that count.
    paths: tuple[Classified, ...]
    policy: Policy
    # Why each level is required.
    reasons: tuple[Reason, ...]
    # The levels that someone requests by hand.
    asked: tuple[Level, ...]
    effects: Effects | None

    def whole(self) -> ChangedCode:
        """Everything that the change touches, as far as it is known."""
        return _code(self._functions, self._unread, len(self._hidden), (MOST_FUNCTIONS, MOST_LINES))

    def planned(self, job: JobOutline) -> JobOutline:
        """The job with what it is planned to execute."""
        wanted = [touched for touched in self._functions if touched.function.reached and self._is_for(job, touched)]
        # A bump nearly always has a function that runs, and that says nothing of what Bridge's own code must show.
        own = [touched for touched in wanted if not in_megatron_lm(touched.path)]
        if any(touched.function.demanded and touched.function.side is Side.HEAD for touched in own):
            wanted = own
        level = job.variant.level
        asking = {reason.path for reason in self.reasons if reason.level is level}
        unread = {path: why for path, why in self._unread.items() if level in self.asked or path in asking}
        files = {touched.path for touched in wanted}
        judged = [effect for path in self.paths if path.path in files for effect in path.effects or ()]
        words = frozenset(word for item in judged for words in item.effect.statements for word in words)
        hidden = sum(path in unread for path in self._hidden)
        return replace(job, changed=_code(wanted, unread, hidden, MOST_OF_JOB), changed_words=words)

    def unshown(self, jobs: Iterable[JobOutline]) -> tuple[Unshown, ...]:
        """What the jobs after level 0 cannot show of functions of families, and of functions about features.

        A job of level 0 is there for what works without any; a job that cannot pass says so itself.
        """
        planned = [job for job in jobs if not job.obstacles and job.variant.level is not Level.SMOKE]
        found: dict[tuple[Level, str], dict[str, None]] = {}
        for touched in self._functions:
            function, reasons = touched.function, self._reasons_of(touched)
            if (
                touched.earlier
                or function.side is Side.MERGE_BASE
                or not (function.reached and function.demanded and function.symbol)
            ):
                continue
            for level in sorted({reason.level for reason in reasons}):
                own = [job for job in planned if job.variant.level is level]
                for missing in self._missing(touched, reasons, own) if own else ():
                    found.setdefault((level, missing), {})[f"{function.path}:{function.symbol}"] = None
        return tuple(Unshown(level, missing, tuple(places)) for (level, missing), places in sorted(found.items()))

    def _missing(self, touched: TouchedFunction, reasons: Iterable[Reason], jobs: list[JobOutline]) -> Iterator[str]:
        """What the models of some jobs are not or do not have that a run of the function needs."""
        named = self._families.get(readable(touched.path), frozenset())
        families = [family for family in self.policy.families if family.name in named]
        if families and not any(is_on_family(job, family) for job in jobs for family in families):
            yield f"runs no model of {' or '.join(family.name for family in families)}"
        rules = (rule for reason in reasons if (rule := self._rules.get(reason.rule)) is not None)
        of_models = {tag for family in self.policy.families for tag in family.features}
        for tag in sorted(of_models.intersection(tag for rule in rules for tag in rule.features)):
            if not any(job.model.shows(tag) for job in jobs):
                yield f"runs no model with {tag}"

    @cached_property
    def _functions(self) -> tuple[TouchedFunction, ...]:
        found = self.effects.functions if self.effects is not None else ()
        unknown = self.effects.unknown if self.effects is not None else {}
        return tuple(replace(touched, function=self._described(touched, unknown)) for touched in found)

    def _described(self, touched: TouchedFunction, unknown: Collection[str]) -> ChangedFunction:
        """The function with a path that can be written down, and what keeps a run out of it."""
        # Where the way to a file could not be read, "not reached" is not an answer.
        reached = touched.function.reached or touched.path in unknown
        # Code that a host can run may take the function from its file.
        taken = self.effects is not None and touched.symbol in self.effects.taken.get(touched.path, ())
        counted = self._families.get(readable(touched.path)) and not taken
        families = ", ".join(self.policy.families_without_hosts(touched.path)) if counted else ""
        condition = f"no host can run {families}, and the file belongs to no other family" if families else ""
        if not condition:
            # The features that the words of its statements are about.
            rules = (self._rules.get(reason.rule) for reason in self._reasons_of(touched))
            by_words = (rule for rule in rules if isinstance(rule, SymbolRule) and rule.words is not None)
            tags = sorted({tag for rule in by_words for tag in rule.features})
            condition = f"it is about {' and '.join(tags)}, which a run must have switched on" if tags else ""
        path = readable(touched.function.path)
        update = {"path": path, "condition": condition, "reached": reached, "uncoverable": families}
        return touched.function.model_copy(update=update)

    @cached_property
    def _rules(self) -> Mapping[str, Rule | SymbolRule]:
        of_reach = self.policy.reach.rules if self.policy.reach is not None else ()
        rules: tuple[Rule | SymbolRule, ...] = (*self.policy.rules, *of_reach, *self.policy.megatron_lm.rules)
        return {rule.name: rule for rule in rules}

    @cached_property
    def _families(self) -> Mapping[str, frozenset[str]]:
        return {readable(path.path): frozenset(family.name for family in path.families) for path in self.paths}

    @cached_property
    def _unread(self) -> Mapping[str, str]:
        """The changed files under test whose functions are not known."""
        found: dict[str, str] = {}
        if self.effects is not None:
            counted = {path.path for path in self.paths}
            unread = self.effects.unread.items()
            found.update((path, why) for path, why in unread if path in counted or not in_megatron_lm(path))
        elif self.policy.reach is not None:
            sources = (name for name in self.change.names() if module_name(name, self.policy.reach.roots) is not None)
            found.update(dict.fromkeys(sources, _NAMES_ALONE))
        touched = {item.path for item in self._functions}
        for judged in self.paths:
            if judged.effects and judged.path not in touched:
                found.setdefault(judged.path, _NO_FUNCTION)
            elif judged.effects is None and not judged.path.endswith(".py"):
                found.setdefault(judged.path, _NO_SOURCE)
        for path in self.change.paths:
            if path.submodule is not None and path.path == MEGATRON_LM_FOLDER:
                commits = [(commit or "nothing")[:12] for commit in (path.submodule.old, path.submodule.new)]
                found[path.path] = f"it moves from {commits[0]} to {commits[1]}, and its functions were not compared"
        if self.effects is not None and self.effects.bumped:
            found.pop(MEGATRON_LM_FOLDER, None)
        return {readable(path): reason for path, reason in sorted(found.items())}

    @cached_property
    def _hidden(self) -> tuple[str, ...]:
        """The sources that verl imports and that could not be compared: at least one function of each may differ."""
        if self.effects is None:
            return ()
        return tuple(readable(path) for path in self.effects.unread if path in self.effects.unknown)

    @cached_property
    def _by_symbol(self) -> Mapping[tuple[str | None, str | None], list[Reason]]:
        found: dict[tuple[str | None, str | None], list[Reason]] = {}
        for reason in self.reasons:
            found.setdefault((reason.path, reason.symbol), []).append(reason)
        return found

    def _reasons_of(self, touched: TouchedFunction) -> list[Reason]:
        """The reasons that name the symbol that a function is in; import-time code has none of its own."""
        return self._by_symbol.get((readable(touched.path), touched.symbol), []) if touched.symbol else []

    def _is_for(self, job: JobOutline, touched: TouchedFunction) -> bool:
        """Whether a job is planned to execute a function."""
        variant, default = job.variant, job.is_default
        path, symbols = readable(touched.path), {touched.symbol, touched.function.symbol}
        if any(purpose.path == path and purpose.symbol in symbols for purpose in job.purposes):
            return True
        # What runs where adapters leave by themselves: such a job merges them and saves nothing.
        if in_megatron_lm(path):
            # A job that does not enter it when it is measured would be Blocked for that.
            entered = self.effects.entered if self.effects is not None else {}
            return variant.job_id in entered.get(f"{touched.path}:{touched.function.symbol}", ())
        merges = job.has_experts and variant.level is not Level.SAVE_RESUME
        if merges and leaves_by_itself(touched.path, touched.function.symbol):
            return False
        if variant.level in self.asked:
            return True
        if variant.level is Level.SMOKE and default:
            asked_for = any(reason.level is Level.SMOKE and reason.path is not None for reason in self.reasons)
            # What no reason names would be planned for no job at all.
            return asked_for or not self._reasons_of(touched)
        families = self._families.get(path, frozenset())
        if job.family and families and job.family not in families:
            return False
        reasons = self._reasons_of(touched)
        if default:
            return any(reason.level is variant.level for reason in reasons)
        # Whichever rule names the variant or its feature: that is why the job is planned.
        rules = [rule for reason in reasons if (rule := self._rules.get(reason.rule)) is not None]
        named = job.replaces or variant.job_id
        return any(named in rule.variants or variant.feature in rule.features for rule in rules)


def _code(
    functions: Iterable[TouchedFunction], unread: Mapping[str, str], hidden: int, most: tuple[int, int]
) -> ChangedCode:
    """The functions by path and line, those that verl reaches first to be kept where there are too many.

    `hidden` are functions that are known to differ and are not known themselves.
    """
    sides: dict[bool, list[ChangedFunction]] = {False: [], True: []}
    for touched in functions:
        sides[touched.earlier].append(touched.function)
    kept: list[tuple[ChangedFunction, ...]] = []
    for side in (False, True):
        first: list[ChangedFunction] = []
        lines = 0
        for function in sorted(sides[side], key=lambda item: (not item.reached, *_place(item))):
            lines += len(function.lines) + sum(len(excused.lines) for excused in function.excused)
            if len(first) < most[0] and lines <= most[1]:
                first.append(function)
        kept.append(tuple(sorted(first, key=_place)))
    changed, earlier = kept
    named = dict(list(unread.items())[: most[0]])
    left_out = len(sides[False]) - len(changed) + len(unread) - len(named) + hidden
    return ChangedCode(functions=changed, earlier=earlier, unread=named, left_out=left_out)


def _place(function: ChangedFunction) -> tuple[str, str, int, str]:
    return function.path, function.side, function.first_line, function.symbol

"""Write what is derived from the tables of the core: bench/grep.txt and parts of pages in docs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from verl_e2e.core.log.literals import LITERALS
from verl_e2e.core.model.access import DEFAULT_GRANTS, Capability
from verl_e2e.core.model.settings import Axis, Takes
from verl_e2e.core.model.space import EXCLUSIONS, IMPLICATIONS, MASKS, Refused, Trait
from verl_e2e.core.pulls.commands import PREFIX, TABLE
from verl_e2e.core.report.command_text import option_rows
from verl_e2e.core.triage.rules import Fault, TriageRule
from verl_e2e.core.triage.table import NOISE, RULES

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- begin {} -->\n", "<!-- end {} -->\n"
_UNDECIDED = "*Base decides.*"
_FAULTS = {Fault.OUTSIDE: "Blocked", Fault.CODE: "Fail/Blocked", Fault.TREES: "Fail"}
_KINDS = {
    Refused.ERROR: "refused",
    Refused.IGNORED: "without effect",
    Refused.UNPROVEN: "not shown to work",
}


def grep_patterns() -> str:
    """The literals as a pattern file for `grep -E -f`, one a line, without duplicates, in table order."""
    special = frozenset("\\^$.[]|()*+?{}")
    texts = dict.fromkeys(literal.text for literal in LITERALS)
    return "".join("".join("\\" + c if c in special else c for c in text) + "\n" for text in texts)


def render_reference() -> str:
    """The table of `docs/commands.md`: every command with an example, and the options."""
    blocks = [
        f"## `{PREFIX} {item.usage}`\n\n{item.help} Needs the capability `{item.needs}`.\n\n    {item.example}"
        for item in TABLE
    ]
    options = ["## Options", "", "| option | what it does |", "|---|---|", *option_rows()]
    return "\n\n".join([*blocks, "\n".join(options)]) + "\n"


def render_capabilities() -> str:
    """The table of `docs/commands.md`: each capability, the commands that need it, and who has it by default."""
    rows = ["| capability | commands | who has it by default |", "|---|---|---|"]
    for capability in Capability:
        verbs = ", ".join(
            f"`{item.shown.partition(' ')[0] or item.name}`" for item in TABLE if item.needs is capability
        )
        grant = DEFAULT_GRANTS[capability]
        ways = [f"the role {role} or a higher one" for role in grant.roles]
        ways += [f"the role {role}" for role in grant.custom_roles]
        ways += ["the author of the pull request"] * grant.author
        rows.append(f"| `{capability}` | {verbs} | {'anyone' if grant.anyone else ', '.join(ways)} |")
    return "\n".join(rows) + "\n"


def runbook(rules: Sequence[TriageRule]) -> str:
    """Markdown: a heading with the rule's id as its anchor, what it means and what to do."""
    sections = []
    for rule in rules:
        stage = f"; `{rule.stage}`" if rule.stage is not None else ""
        undecided = f" {_UNDECIDED}" if rule.undecided else ""
        steps = "".join(f"{number}. {step}\n" for number, step in enumerate(rule.steps, 1))
        sections.append(
            f"### {rule.id}\n\n"
            f"{rule.cause[0].upper()}{rule.cause[1:]}. {_FAULTS[rule.fault]}{stage}.{undecided}\n\n"
            f"{rule.fix}\n" + (f"\n{steps}" if steps else "")
        )
    return "\n".join(sections)


def noise_table() -> str:
    """Markdown: what is explained away after completion."""
    rows = [f"| `{rule.name}` | `{rule.example}` |" for rule in NOISE]
    return "\n".join(["| name | example |", "| --- | --- |", *rows]) + "\n"


def axes_table() -> str:
    """Each axis with its values and what it is in verl."""
    rows = []
    for axis in Axis:
        default = ("off", "on")[axis.default] if isinstance(axis.default, bool) else str(axis.default)
        rows.append((str(axis), _values(axis), default, _in_verl(axis)))
    return _table(("axis", "values", "without it", "in verl"), rows)


def implications_table() -> str:
    """What a setting brings with it."""
    rows = []
    for implication in IMPLICATIONS:
        axes = [str(Trait(axis, value)) for axis, value in implication.axes.items()]
        models = [f"a model with `{feature}`" for feature in sorted(implication.features)]
        rows.append((str(implication.trait), ", ".join((*axes, *models))))
    return _table(("setting", "needs"), rows)


def exclusions_table() -> str:
    """What is not put into one job."""
    rows = []
    for exclusion in EXCLUSIONS:
        together = " with ".join(map(str, exclusion.traits))
        rows.append((together, _KINDS[exclusion.kind], exclusion.reason))
    return _table(("settings", "they are", "reason"), rows)


def masks_table() -> str:
    """Which wants are kept in different jobs."""
    rows = ((str(mask.hiding), ", ".join(map(str, mask.hidden)), mask.reason) for mask in MASKS)
    return _table(("setting", "not with a want for", "reason"), rows)


def _values(axis: Axis) -> str:
    match axis.row.takes:
        case Takes.PARALLEL_SIZE | Takes.SIZE:
            return "a size"
        case Takes.SWITCH:
            return "on, off"
        case Takes.CHOICE:
            return ", ".join(axis.row.choices)
        case Takes.MODULES:
            return "names of modules"
        case Takes.COUNT:
            return "a number"


def _in_verl(axis: Axis) -> str:
    # The second of the choices differs from what holds without it.
    value = axis.row.choices[1] if axis.row.choices else 2 if axis.is_size else not axis.default
    setting = axis.in_verl(value)
    keys = (override.lstrip("+").partition("=")[0] for override in setting.overrides)
    # One of the roles stands for all.
    named = dict.fromkeys(key.removeprefix("critic.").removeprefix("actor_rollout_ref.") for key in keys)
    plain = dict.fromkeys(key.removeprefix("actor.").removeprefix("ref.") for key in named)
    return ", ".join(f"`{name}`" for name in (*setting.wrapper, *plain)) or axis.row.elsewhere


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join((lines[0], f"|{'---|' * len(head)}\n", *lines[1:]))


def between(text: str, name: str, new: str) -> str:
    """`text` with what stands between the two marks replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    head, rest = text.split(begin)
    return head + begin + new + end + rest.split(end)[1]


def main() -> None:
    """Rewrite the files in place."""
    (ROOT / "bench" / "grep.txt").write_text(grep_patterns())
    docs = ROOT / "docs" / "triage.md"
    text = between(docs.read_text(), "noise", noise_table())
    docs.write_text(between(text, "runbook", runbook(RULES)))
    docs = ROOT / "docs" / "commands.md"
    text = between(docs.read_text(), "capabilities", render_capabilities())
    docs.write_text(between(text, "commands", render_reference()))
    docs = ROOT / "docs" / "space.md"
    text = between(between(docs.read_text(), "axes", axes_table()), "needs", implications_table())
    docs.write_text(between(between(text, "exclusions", exclusions_table()), "masks", masks_table()))


if __name__ == "__main__":
    main()

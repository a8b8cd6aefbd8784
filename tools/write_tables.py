"""Write what is derived from the tables of the code: bench/grep.txt and parts of pages in docs."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from verl_e2e.cli import cli
from verl_e2e.config.environment import variables
from verl_e2e.config.settings import Settings
from verl_e2e.core.consumer.verl import VERL
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
        steps = f"{rule.steps[0]}\n" if len(rule.steps) == 1 else steps
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
    rows: dict[tuple[str, str], list[str]] = {}
    for exclusion in EXCLUSIONS:
        rows.setdefault((_KINDS[exclusion.kind], exclusion.reason), []).append(
            " with ".join(map(str, exclusion.traits))
        )
    return _table(("settings", "they are", "reason"), (("; ".join(found), *why) for why, found in rows.items()))


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
    setting = VERL.setting(axis, value)
    keys = (override.lstrip("+").partition("=")[0] for override in setting.overrides)
    # One of the roles stands for all.
    named = dict.fromkeys(key.removeprefix("critic.").removeprefix("actor_rollout_ref.") for key in keys)
    plain = dict.fromkeys(key.removeprefix("actor.").removeprefix("ref.") for key in named)
    return ", ".join(f"`{name}`" for name in (*setting.wrapper, *plain)) or VERL.settings[axis].elsewhere


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join((lines[0], f"|{'---|' * len(head)}\n", *lines[1:]))


def settings_table() -> str:
    """Each variable of the service with its default and meaning, the required ones first."""
    rows = []
    for name, setting in sorted(variables(Settings).items(), key=lambda item: not item[1].is_required()):
        shown = setting.json_schema_extra
        rows.append((f"`{name}`", str(shown["shown"] if isinstance(shown, dict) else ""), setting.description or ""))
    return _table(("variable", "default", "meaning"), rows)


def verbs(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every verb by its whole name, as `bands add`, in the order of `--help`."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for below, found in command.commands.items():
        yield from verbs(found, f"{name} {below}".strip())


def cli_reference() -> str:
    """Every verb with its arguments, its help and its options; an option that several verbs have is described once."""
    known = dict(verbs())
    counted = Counter(row for verb in known.values() for row in _options(verb))
    # Of two texts for one name, that of more verbs.
    first = dict(sorted(counted, key=lambda row: counted[row]))
    shared = {name: text for name, text in first.items() if counted[name, text] > 1}
    blocks = [f"## Options of all verbs\n\n{_option_list(_options(cli))}"]
    blocks += [f"## Options of several verbs\n\n{_option_list(sorted(shared.items()))}"]
    for name, verb in known.items():
        rows = dict(_options(verb))
        own = _option_list(item for item in rows.items() if item not in shared.items())
        also = ", ".join(re.sub(r" .*", "`", name) for name, text in rows.items() if shared.get(name) == text)
        parts = (f"## {name}", *_arguments(verb), *_paragraphs(verb), own, f"Also {also}." if also else "")
        blocks.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(blocks) + "\n"


def _arguments(verb: click.Command) -> Iterator[str]:
    """What is given without the name of an option, in the form of `--help`."""
    context = click.Context(verb)
    words = [
        word for item in verb.params if isinstance(item, click.Argument) for word in item.get_usage_pieces(context)
    ]
    if words:
        yield f"Arguments: `{' '.join(words)}`."


def _paragraphs(verb: click.Command) -> Iterator[str]:
    """The help text; of its examples the first, as code."""
    texts = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", verb.help or "")]
    yield from (text for text in texts if not text.startswith("Example: "))
    yield from [f"    {text[9:]}" for text in texts if text.startswith("Example: ")][:1]


def _options(verb: click.Command) -> list[tuple[str, str]]:
    """Each option with its value, and what it does."""
    rows = []
    for item in verb.params:
        if isinstance(item, click.Option) and not item.hidden:
            name, text = item.get_help_record(click.Context(verb)) or ("", "")
            rows.append((f"`{name}`", " ".join(text.split())))
    return rows


def _option_list(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in rows)


def between(text: str, name: str, new: str) -> str:
    """`text` with what stands between the two marks replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    head, rest = text.split(begin)
    return head + begin + new + end + rest.split(end)[1]


# By page of docs, each part of it that is derived, by the name in its marks.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"cli": cli_reference},
    "commands.md": {"capabilities": render_capabilities, "commands": render_reference},
    "settings.md": {"settings": settings_table},
    "space.md": {
        "axes": axes_table,
        "needs": implications_table,
        "exclusions": exclusions_table,
        "masks": masks_table,
    },
    "triage.md": {"noise": noise_table, "runbook": lambda: runbook(RULES)},
}


def main() -> None:
    """Rewrite the files in place."""
    (ROOT / "bench" / "grep.txt").write_text(grep_patterns())
    for page, parts in PARTS.items():
        file = ROOT / "docs" / page
        text = file.read_text()
        for name, render in parts.items():
            text = between(text, name, render())
        file.write_text(text)


if __name__ == "__main__":
    main()

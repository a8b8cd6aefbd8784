"""What the plan would make of a symbol, were it changed: how verl reaches it, and which levels it asks for."""

from collections.abc import Iterable
from dataclasses import dataclass

from bot.core.levels import Level
from bot.core.rules import Classified, JudgedEffect


@dataclass(frozen=True, slots=True)
class Explanation:
    """One symbol of one path; `because` tells why it asks for nothing, empty when it asks for `levels`."""

    path: str
    symbol: str
    levels: tuple[Level, ...]
    rules: tuple[str, ...]
    via: tuple[str, ...]
    because: str = ""


def explanations(path: str, symbol: str, judged: Classified, names: Iterable[str]) -> tuple[Explanation, ...]:
    """Explain one symbol, or every symbol of the path when none is named; `names` are the symbols that it has."""
    wanted = tuple(name for name in names if not symbol or name == symbol or name.startswith(f"{symbol}."))
    if judged.effects is None or judged.exemption is not None:
        because = judged.exemption.because if judged.exemption else "it is judged by its name, not by its inside"
        return (
            Explanation(path, symbol, _path_levels(judged), tuple(rule.name for rule in judged.rules), (), because),
        )
    by_name = {one.effect.symbol: one for one in judged.effects if one.effect.kind != "imports"}
    return tuple(_one(path, name, by_name.get(name)) for name in wanted)


def render_explanation(one: Explanation) -> str:
    """One explanation as text, the chain below it."""
    place = f"{one.path}:{one.symbol}" if one.symbol else one.path
    levels = ", ".join(str(int(level)) for level in one.levels)
    if not one.levels:
        return f"{place}: asks for nothing, {one.because}"
    rows = [f"{place}: level {levels} ({', '.join(one.rules)})"]
    if one.because:
        rows.append(f"  {one.because}")
    rows.extend(f"  {'  ' * depth}{step}" for depth, step in enumerate(one.via))
    return "\n".join(rows)


def explanation_json(one: Explanation) -> dict[str, object]:
    """One explanation as a document."""
    return {
        "path": one.path,
        "symbol": one.symbol or None,
        "levels": [int(level) for level in one.levels],
        "rules": list(one.rules),
        "via": list(one.via),
        "because": one.because,
    }


def _one(path: str, name: str, judged: JudgedEffect | None) -> Explanation:
    if judged is None:
        return Explanation(path, name, (), (), (), "verl does not reach it")
    levels = tuple(sorted({level for rule in judged.rules for level in rule.levels}))
    return Explanation(path, name, levels, tuple(rule.name for rule in judged.rules), judged.effect.via)


def _path_levels(judged: Classified) -> tuple[Level, ...]:
    return tuple(sorted({level for rule in judged.rules for level in rule.levels}))

"""What a job made for a change is there for, as people read it: its places of the code, each with the condition."""

from collections.abc import Iterable

from verl_e2e.core.model.purposes import Purpose

_SHOWN_PLACES = 2


def purpose_rows(purposes: Iterable[Purpose], most: int = 3) -> tuple[str, ...]:
    """One clause for each condition, `for <places>: <condition>`; the first ones, and how many more there are."""
    places = _by_condition(purposes)
    rows = [f"for {_named(found)}: {condition}" for condition, found in places.items()]
    left = len(rows) - most
    more = [f"for {left} more condition{'' if left == 1 else 's'}"] if left > 0 else []
    return (*rows[:most], *more)


def _by_condition(purposes: Iterable[Purpose]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for purpose in purposes:
        found = places.setdefault(purpose.condition, [])
        if purpose.place not in found:
            found.append(purpose.place)
    return places


def _named(places: list[str]) -> str:
    left = len(places) - _SHOWN_PLACES
    return ", ".join(places[:_SHOWN_PLACES]) + (f" and {left} more" if left > 0 else "")

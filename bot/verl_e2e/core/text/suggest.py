"""The word that someone probably meant."""

import difflib
from collections.abc import Iterable


def likely(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, empty where none is near."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), "")


def suggest(word: str, known: Iterable[str]) -> str:
    """The fix for a word that is not known: the likely one meant, else the words that there are."""
    choices = sorted(known)
    near = likely(word, choices)
    if near:
        return f"did you mean {near!r}?"
    return f"known here: {', '.join(choices)}" if choices else "remove it"

"""The word that somebody probably meant."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """The mend for a word that is not known: the likely one meant, else the words that there are."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known here: {', '.join(choices)}" if choices else "remove it"

"""The word that someone probably meant: a table of words and those that are known."""

import pytest

from verl_e2e.core.text.escape import likely, suggest


@pytest.mark.parametrize(
    ("word", "known", "near", "fix"),
    (
        ("stepz", ("steps", "model"), "steps", "did you mean 'steps'?"),
        ("xyz", ("steps", "model"), "", "known here: model, steps"),
        ("xyz", (), "", "remove it"),
    ),
)
def test_what_was_probably_meant(word: str, known: tuple[str, ...], near: str, fix: str) -> None:
    assert (likely(word, known), suggest(word, known)) == (near, fix)

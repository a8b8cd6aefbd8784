"""Looking for many words at once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.text.escape import any_word

WORDS = st.lists(st.text("ab._", min_size=0, max_size=6), max_size=20)


@given(WORDS, st.text("ab._ ", max_size=16))
def test_the_same_is_found_as_with_the_words_one_by_one(words: list[str], text: str) -> None:
    plain = re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in words if word)})\b".encode())
    assert bool(any_word(words).search(text.encode())) == bool(plain.search(text.encode()))


@pytest.mark.parametrize("length", (1, 30, 1_100))
def test_words_that_all_begin_alike_do_not_nest_too_deeply(length: int) -> None:
    found = any_word("a" * count for count in range(1, length + 1))
    assert found.search(b"x " + b"a" * length)
    assert not found.search(b"a" * (length + 1))

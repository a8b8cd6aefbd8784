"""Looking for many words at once."""

from verl_e2e.core.text.escape import any_word


def test_any_of_the_words_is_found_as_a_whole() -> None:
    words = any_word(["ab", "a.b_c", "", "abc"])
    found = {text for text in ("x ab y", "a.b_c", "abc", "abcd", "aXb_c", "_ab", "x") if words.search(text.encode())}
    assert found == {"x ab y", "a.b_c", "abc"}

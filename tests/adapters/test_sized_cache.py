from verl_e2e.git.repository import SizedCache


def test_those_that_were_asked_for_last_are_kept() -> None:
    kept: SizedCache[int, str] = SizedCache(16, largest_part=4)
    for number in range(4):
        kept.put(number, f"value {number}", 4)
    assert kept.get(0) == "value 0"
    kept.put(4, "value 4", 3)
    assert [kept.get(number) for number in range(5)] == ["value 0", None, "value 2", "value 3", "value 4"]
    assert kept.size == 15


def test_a_value_takes_the_place_of_the_one_before_and_one_that_is_too_large_ends_it() -> None:
    kept: SizedCache[str, str] = SizedCache(16, largest_part=4)
    kept.put("a", "first", 4)
    kept.put("a", "second", 2)
    assert (kept.get("a"), kept.size) == ("second", 2)
    kept.put("a", "large", 5)
    assert (kept.get("a"), kept.size) == (None, 0)

"""What an entry of the quarantine may be: one cause, a day, a reason and a link; never a criterion as a whole."""

from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from verl_e2e.core.model.known_defects import QuarantinedCause, Validity

ENTRY: dict[str, Any] = {
    "cause": "log:network",
    "until": "2026-12-31",
    "reason": "a switch is replaced",
    "link": "https://example.com/1",
}
MARK = "0123456789abcdef"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cause": "engine:node_failed", "job": "0-lora-ddp", "stage": "train_step"},
        {"cause": "criterion:parity", "fingerprint": MARK},
    ],
)
def test_an_entry_is_read(changes: dict[str, Any]) -> None:
    assert QuarantinedCause.model_validate(ENTRY | changes).until == date(2026, 12, 31)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cause": "verdict:evidence"}, "pattern"),
        ({"cause": "log:*"}, "pattern"),
        ({"cause": "criterion:gradients"}, "whole criterion"),
        ({"fingerprint": "abc"}, "pattern"),
        ({"until": "soon"}, "date"),
        ({"reason": ""}, "at least 1"),
        ({"link": "mail me"}, "pattern"),
        ({"stage": "lunch"}, "Input should be"),
        ({"level": 0}, "not permitted"),
    ],
)
def test_an_entry_that_says_too_little_or_too_much_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        QuarantinedCause.model_validate(ENTRY | changes)


@pytest.mark.parametrize("key", ["cause", "until", "reason", "link"])
def test_an_entry_without_a_day_a_reason_or_a_link_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="Field required"):
        QuarantinedCause.model_validate({name: value for name, value in ENTRY.items() if name != key})


@pytest.mark.parametrize(
    ("today", "counts"),
    [
        (date(2026, 10, 1), Validity.TOO_FAR),
        (date(2026, 10, 2), Validity.YES),
        (date(2026, 12, 31), Validity.YES),
        (date(2027, 1, 1), Validity.EXPIRED),
    ],
)
def test_an_entry_counts_for_at_most_a_quarter_and_through_its_last_day(today: date, counts: Validity) -> None:
    assert QuarantinedCause.model_validate(ENTRY).counts(today) is counts


def test_an_entry_ends_with_the_last_second_of_its_day() -> None:
    entry = QuarantinedCause.model_validate(ENTRY)
    assert entry.counts((entry.ends_at - timedelta(seconds=1)).date()) is Validity.YES
    assert entry.counts(entry.ends_at.date()) is Validity.EXPIRED

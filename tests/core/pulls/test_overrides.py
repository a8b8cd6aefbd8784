"""Which overrides of a head count, by what the policy allows."""

from datetime import UTC, datetime, timedelta

import pytest

from verl_e2e.core.model.access import OverrideRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.ledger import Override
from verl_e2e.core.pulls.trust import SECOND_PERSON, counted, expires_at

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def given(level: int, actor: str, hours_ago: float = 0.0) -> Override:
    at = NOW - timedelta(hours=hours_ago)
    source = f"comment:{level}{actor}{hours_ago}"
    return Override(
        repository="o/r", number=1, head_sha="1" * 40, level=Level(level), reason="no host", actor=actor, source=source,
        at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "overrides", "levels", "why"),
    [
        (OverrideRules(), [given(0, "mona")], [0], ""),
        (OverrideRules(levels=(Level(1),)), [given(0, "mona")], [], "lets no one override level 0"),
        (OverrideRules(levels=()), [given(5, "mona")], [], "lets no one override level 5"),
        (OverrideRules(expires_h=2), [given(0, "mona", 1.99)], [0], ""),
        (OverrideRules(expires_h=2), [given(0, "mona", 2)], [], "more than 2 hours ago"),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona")], [], SECOND_PERSON),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(0, "MONA", 1)], [], SECOND_PERSON),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(0, "max")], [0, 0], ""),
        (OverrideRules(two_persons=(Level(0),)), [given(0, "mona"), given(1, "max")], [1], SECOND_PERSON),
        (
            OverrideRules(two_persons=(Level(0),), expires_h=2),
            [given(0, "mona", 3), given(0, "max")],
            [],
            "more than 2 hours ago",
        ),
        (OverrideRules(most=1), [given(0, "mona", 2), given(1, "mona", 1)], [0], "lets 1 levels of one head"),
        (OverrideRules(most=0), [given(0, "mona")], [], "lets 0 levels of one head"),
        (OverrideRules(most=1), [given(0, "mona"), given(0, "max")], [0, 0], ""),
    ],
)
def test_what_counts(rules: OverrideRules, overrides: list[Override], levels: list[int], why: str) -> None:
    found = counted(overrides, rules, NOW)
    assert [int(override.level) for override in found.overrides] == levels
    assert len(found.overrides) + len(found.uncounted) == len(
        {(override.level, override.actor.lower()) for override in overrides}
    )
    assert why in (found.uncounted[0].why if found.uncounted else "")


def test_an_override_ends_after_the_policys_hours() -> None:
    rules, override = OverrideRules(expires_h=3), given(0, "mona")
    ends = expires_at(override, rules)
    assert counted([override], rules, ends - timedelta(seconds=1)).overrides == (override,)
    assert counted([override], rules, ends).overrides == ()

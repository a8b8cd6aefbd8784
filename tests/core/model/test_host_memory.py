"""Who may have how much of a host's memory: what others were promised counts, and only who took too much gives way."""

import pytest
from pydantic import ValidationError

from verl_e2e.core.model.host_memory import Bound, Claim, exhausted_bound, least_free

HOST = Bound(126.0, 60.0)


def claim(need_gib: float, held_gib: float, *groups: int) -> Claim:
    return Claim(need_gib=need_gib, held_gib=held_gib, groups=groups)


@pytest.mark.parametrize(
    ("total", "available", "short"),
    [
        (126.0, 3.9, False),
        (126.0, 3.7, True),
        (251.0, 7.6, False),
        (251.0, 7.5, True),
        (16.0, 2.0, False),
        (16.0, 1.9, True),
        (1.0, 1.0, True),
    ],
)
def test_a_host_is_short_below_two_gib_or_three_percent(total: float, available: float, short: bool) -> None:
    assert Bound(total, available).short is short


@pytest.mark.parametrize(
    ("bounds", "claims", "free", "group", "runs"),
    [
        ((HOST,), (), 60, 0, 0),
        # What a run holds is no longer available, so only the rest of its need is set aside.
        ((HOST,), (claim(14, 0), claim(14, 10)), 42, 0, 2),
        ((HOST,), (claim(14, 20),), 60, 0, 1),
        ((HOST,), (claim(90, 0),), 0, 0, 1),
        # A control group counts where it leaves less, with the claims of the runs in it.
        ((HOST, Bound(32.0, 30.0, 7)), (claim(14, 0, 8), claim(14, 0)), 30, 7, 0),
        ((HOST, Bound(32.0, 30.0, 7)), (claim(14, 4, 7), claim(10, 0)), 20, 7, 1),
        ((HOST, Bound(32.0, 30.0, 7)), (claim(20, 0), claim(20, 0)), 20, 0, 2),
        # Of a group a run needs a little less, so the host is what misses most here.
        ((Bound(126.0, 30.5), Bound(32.0, 30.0, 7)), (), 30.5, 0, 0),
    ],
)
def test_free_memory_is_what_is_available_and_promised_to_no_one(
    bounds: tuple[Bound, ...], claims: tuple[Claim, ...], free: float, group: int, runs: int
) -> None:
    for order in (claims, claims[::-1]):
        found = least_free(bounds, order, 14)
        assert (found.free_gib, found.bound.group, found.runs) == (free, group, runs)


@pytest.mark.parametrize(
    ("bound", "need", "enough"),
    [
        (Bound(126.0, 14.0), 14.0, True),
        (Bound(126.0, 13.9), 14.0, False),
        # The limit that an engine gives the run is its need, and the runner holds some of it.
        (Bound(14.0, 13.8, 7), 14.0, True),
        (Bound(14.0, 12.5, 7), 14.0, False),
    ],
)
def test_a_run_may_begin_where_its_need_is_free(bound: Bound, need: float, enough: bool) -> None:
    assert (least_free((bound,), (), need).missing_gib(need) <= 0) is enough


FULL, FULL_GROUP = Bound(126.0, 1.0), Bound(32.0, 1.0, 7)


@pytest.mark.parametrize(
    ("bounds", "held", "need", "found"),
    [
        ((FULL,), 15.0, 14.0, FULL),
        ((FULL,), 14.0, 14.0, None),
        ((FULL,), 90.0, None, None),
        ((HOST,), 50.0, 14.0, None),
        ((HOST, FULL_GROUP), 15.0, 14.0, FULL_GROUP),
        ((HOST, FULL_GROUP), 13.0, 14.0, None),
        ((), 15.0, 14.0, None),
    ],
)
def test_only_a_run_above_its_stated_need_gives_way_and_only_when_memory_is_short(
    bounds: tuple[Bound, ...], held: float, need: float | None, found: Bound | None
) -> None:
    assert exhausted_bound(bounds, held_gib=held, need_gib=need) == found


@pytest.mark.parametrize(
    "note",
    [
        "",
        "job 0-lora in process 7",
        "[]",
        '{"need_gib": 14}',
        '{"need_gib": "14", "held_gib": 0}',
        '{"need_gib": -1, "held_gib": 0}',
        '{"need_gib": NaN, "held_gib": 0}',
        '{"need_gib": Infinity, "held_gib": 0}',
        '{"need_gib": 14, "held_gib": 0, "groups": ["7"]}',
    ],
)
def test_a_note_of_another_shape_is_no_claim(note: str) -> None:
    with pytest.raises(ValidationError):
        Claim.model_validate_json(note)


def test_a_note_of_a_later_version_is_a_claim() -> None:
    written = claim(14, 3.5, 7).model_dump_json()
    assert Claim.model_validate_json(written) == claim(14, 3.5, 7)
    assert Claim.model_validate_json(written[:-1] + ', "swap_gib": 1}') == claim(14, 3.5, 7)

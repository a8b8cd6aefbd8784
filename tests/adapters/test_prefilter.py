"""Both matchers keep one contract: the same pairs of line and literal, hence the same facts."""

import random

import pytest

from tests.core.logs import NAMES, recorded
from verl_e2e.adapters.files.logs import HyperscanPrefilter, fastest_prefilter
from verl_e2e.core.log.scan import FindPrefilter, Prefilter, literal_bytes, scan
from verl_e2e.core.triage.triage import triage


def pairs(prefilter: Prefilter, block: bytes) -> set[tuple[int, int]]:
    hits = prefilter.hits(block)
    assert list(hits) == sorted(hits)
    return {(block.count(b"\n", 0, offset), literal) for offset, literal in hits}


@pytest.fixture(scope="module")
def native() -> Prefilter:
    return fastest_prefilter(literal_bytes())


def test_the_native_matcher_is_used_where_it_is_installed(native: Prefilter) -> None:
    assert isinstance(native, HyperscanPrefilter)


@pytest.mark.parametrize("name", NAMES)
def test_both_find_the_same_on_recorded_logs(native: Prefilter, name: str) -> None:
    block = recorded(name)
    assert pairs(native, block) == pairs(FindPrefilter(literal_bytes()), block)
    assert scan([block], native) == scan([block])


def test_both_find_the_same_on_random_blocks() -> None:
    literals = (b"ab", b"b", b"bab", b'", line ', b"a.b", b"[x]", b"\\d", b"aaa")
    chance = random.Random(3)
    portable, native = FindPrefilter(literals), HyperscanPrefilter(literals)
    for _ in range(200):
        block = bytes(chance.choice(b'ab\n.", line[x]\\d') for _ in range(chance.randrange(400)))
        assert pairs(native, block) == pairs(portable, block)


def test_the_judgement_does_not_depend_on_the_matcher(native: Prefilter) -> None:
    for name in NAMES:
        assert triage(scan([recorded(name)], native)) == triage(scan([recorded(name)]))

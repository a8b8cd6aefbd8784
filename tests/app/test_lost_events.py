"""What no delivery reported: which open pull requests count as missed."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.fakes.app import App, FakeHub
from verl_e2e.app.on_event import DeliveryHandler
from verl_e2e.core.pulls.forge import OpenPull, PullRef, read_reference
from verl_e2e.ports import ForgeError, Worklist

HEAD = "1" * 40


@dataclass
class Listed(FakeHub):
    """A forge where open pull requests are listed by their numbers, all with one head."""

    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        assert base == ""
        if repository not in self.numbers:
            raise ForgeError(f"the App is not installed in {repository}")
        refs = (PullRef(repository, number) for number in self.numbers[repository])
        return tuple(OpenPull(ref, "main", HEAD) for ref in refs)


class NothingWanted:
    """Nothing may be wanted of it here."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def handler(numbers: dict[str, tuple[int, ...]], served: tuple[str, ...] = ()) -> DeliveryHandler:
    app = App()
    app.hub = Listed(app.clock, numbers=numbers)
    app.restart()
    return DeliveryHandler(app.handlers.events, cast(Worklist, NothingWanted()), served)


# What is known was looked at, each with the head that all of them have here.
@pytest.mark.parametrize(
    ("known", "served", "listed", "found"),
    (
        # Only what is newer than all that is known was missed.
        (("o/r#8", "o/r#10", "o/other#5"), (), {"o/r": (3, 8, 11, 12), "o/other": (5,)}, {"o/r#11", "o/r#12"}),
        # A repository of which nothing is known is not searched,
        ((), ("o/r",), {"o/r": (1, 2)}, set()),
        # nor is one that is served no longer,
        (("O/R#1", "o/gone#1"), ("o/r",), {"O/R": (9,), "o/gone": (9,)}, {"O/R#9"}),
        # and one that the App has left hides no other.
        (("o/gone#1", "o/r#1"), (), {"o/r": (2,)}, {"o/r#2"}),
    ),
)
def test_what_was_missed(
    known: tuple[str, ...], served: tuple[str, ...], listed: dict[str, tuple[int, ...]], found: set[str]
) -> None:
    deliveries = handler(listed, served)
    for ref in map(read_reference, known):
        assert isinstance(ref, PullRef)
        deliveries.events.ledger.put_head(ref, HEAD)
    assert set(deliveries.lost(known)) == found


def test_a_push_that_was_lost_is_found_also_when_it_goes_back_to_an_earlier_head() -> None:
    deliveries, ref = handler({"o/r": (8,)}), PullRef("o/r", 8)
    for head_sha, found in ((HEAD, set()), ("2" * 40, {"o/r#8"}), (HEAD, set[str]())):
        deliveries.events.ledger.put_head(ref, head_sha)
        # GitHub lists the first head.
        assert set(deliveries.lost(("o/r#8",))) == found

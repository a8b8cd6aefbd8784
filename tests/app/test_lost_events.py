"""What no delivery reported: which open pull requests count as missed."""

from dataclasses import dataclass, replace
from typing import cast

from tests.fakes.app import App
from verl_e2e.app.on_event import LostEvents
from verl_e2e.core.model.change import Change
from verl_e2e.core.pulls.pull import OpenPull, Pull, PullRef, read_reference
from verl_e2e.ports import ForgeError, Worklist


@dataclass
class Listed:
    """A forge of which only the listing of open pull requests is asked."""

    numbers: dict[str, tuple[int, ...]]

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        assert base == ""
        if repository not in self.numbers:
            raise ForgeError(f"the App is not installed in {repository}")
        refs = (PullRef(repository, number) for number in self.numbers[repository])
        return tuple(OpenPull(ref, "main", "1" * 40) for ref in refs)

    def tip(self, repository: str, branch: str) -> str | None:
        raise NotImplementedError

    def pull(self, ref: PullRef) -> Pull:
        raise NotImplementedError

    def change(self, pull: Pull) -> Change:
        raise NotImplementedError

    def committers(self, pull: Pull) -> frozenset[str]:
        raise NotImplementedError

    def file_at(self, repository: str, revision: str, path: str) -> bytes | None:
        raise NotImplementedError


def search(known: tuple[str, ...], served: tuple[str, ...], pulls: Listed) -> set[str]:
    app = App()
    # What is known was looked at, each with the head that all of them have here.
    for ref in map(read_reference, known):
        assert isinstance(ref, PullRef)
        app.handlers.heads.remember(replace(app.open(), ref=ref, head_sha="1" * 40))
    lost = LostEvents(pulls, app.handlers.heads, app.handlers.base_changes, cast(Worklist, NothingWanted()), served)
    return set(lost.search(known))


class NothingWanted:
    """Nothing may be wanted of it here."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def test_only_what_is_newer_than_all_that_is_known_was_missed() -> None:
    pulls = Listed({"o/r": (3, 8, 11, 12), "o/other": (5,)})
    assert search(("o/r#8", "o/r#10", "o/other#5"), (), pulls) == {"o/r#11", "o/r#12"}


def test_a_push_that_was_lost_is_found_also_when_it_goes_back_to_an_earlier_head() -> None:
    app, pulls, ref = App(), Listed({"o/r": (8,)}), PullRef("o/r", 8)
    lost = LostEvents(pulls, app.handlers.heads, app.handlers.base_changes, cast(Worklist, NothingWanted()))
    for head_sha, found in (("1" * 40, set()), ("2" * 40, {"o/r#8"}), ("1" * 40, set[str]())):
        app.handlers.heads.remember(replace(app.open(), ref=ref, head_sha=head_sha))
        # GitHub lists the first head.
        assert set(lost.search(("o/r#8",))) == found


def test_a_repository_of_which_nothing_is_known_is_not_searched() -> None:
    assert search((), ("o/r",), Listed({"o/r": (1, 2)})) == set()


def test_a_repository_that_is_served_no_longer_is_not_searched() -> None:
    pulls = Listed({"O/R": (9,), "o/gone": (9,)})
    assert search(("O/R#1", "o/gone#1"), ("o/r",), pulls) == {"O/R#9"}


def test_a_repository_that_the_app_has_left_hides_no_other() -> None:
    assert search(("o/gone#1", "o/r#1"), (), Listed({"o/r": (2,)})) == {"o/r#2"}

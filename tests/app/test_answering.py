"""Questions are answered within bounds for each person, and no one uses up the answers of those with a role."""

import pytest

from tests.fakes.app import APP, REF, App
from tests.fakes.events import comment_event
from verl_e2e.app.publish import MAX_EACH, MAX_TOGETHER, NO_MORE


@pytest.fixture
def app() -> App:
    made = App()
    made.open(path="docs/a.md", author="mallory")
    return made


def ask(app: App, author: str, times: int = 1) -> list[str]:
    """Someone asks; gives what was answered."""
    before = len(app.hub.talk.get(7, []))
    for _ in range(times):
        app.handlers.events.hear(comment_event(app.hub.say(REF, author, "/verl-e2e help")))
    app.handlers.reconciler.reconcile(REF)
    answers = [
        comment.body for comment in app.hub.talk[7][before:] if comment.app_id == APP and ":reply:" in comment.body
    ]
    return ["no more" if NO_MORE in answer else "help" for answer in answers]


def test_somebody_without_a_role_is_answered_so_often_and_told_when_that_is_over(app: App) -> None:
    assert ask(app, "carol", MAX_EACH + 5) == ["help"] * MAX_EACH + ["no more"]
    assert ask(app, "Carol") == []


@pytest.mark.parametrize("author", ("alice", "mona", "rita", "mallory"))
def test_a_person_with_a_role_is_answered_whatever_others_asked(app: App, author: str) -> None:
    for stranger in range(MAX_TOGETHER // MAX_EACH + 1):
        ask(app, f"stranger{stranger}", MAX_EACH + 2)
    assert ask(app, author, MAX_EACH + 2) == ["help"] * (MAX_EACH + 2)


def test_one_stranger_does_not_use_up_the_answers_of_another(app: App) -> None:
    ask(app, "carol", MAX_TOGETHER + 10)
    assert ask(app, "dave") == ["help"]


def test_many_strangers_together_are_answered_so_often(app: App) -> None:
    message = [ask(app, f"stranger{number}", MAX_EACH) for number in range(6)]
    assert sum(answers.count("help") for answers in message) == MAX_TOGETHER
    assert message[-1] == ["no more"]

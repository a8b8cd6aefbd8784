"""What the evidence of a card says of the host, what was installed by hand included."""

from bot.core.judging import wording
from bot.core.judging.card import Card, render_text
from bot.core.judging.verdict import judge
from tests.core.builders import make_environment, make_facts, make_record

BY_HAND = make_environment(hand_installed=("apex", "mbridge"), packages={"mbridge": "0.15.1"})


def test_what_was_installed_by_hand_is_evidence_of_the_environment() -> None:
    record = make_record(environment=BY_HAND)
    assert wording.host(record)[-1] == "Installed by hand: apex, mbridge 0.15.1"
    card = render_text(Card((judge(record, make_facts()),)))
    evidence = card.split("Evidence:\n")[1].split("Limitations:\n")[0]
    assert "- Installed by hand: apex, mbridge 0.15.1\n" in evidence


def test_without_it_nothing_is_said() -> None:
    assert not any("by hand" in row for row in wording.host(make_record()))

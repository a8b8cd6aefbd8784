"""The recorder's events by kind: what was recorded is read whole, and an odd one holds nothing."""

import json
from pathlib import Path

import pytest

from tests.core.judged import RUNS
from verl_e2e.core.model.record import (
    EndedEvent,
    EndReason,
    Event,
    EventData,
    LeftRunning,
    PhaseEvent,
    ProbeEvent,
    StageEvent,
    Started,
    StepEvent,
    read_data,
)

KINDS: dict[str, type[EventData]] = {
    "started": Started,
    "phase": PhaseEvent,
    "stage": StageEvent,
    "step": StepEvent,
    "ended": EndedEvent,
    "probe": ProbeEvent,
    "left_running": LeftRunning,
}


@pytest.mark.parametrize("path", sorted(RUNS.glob("*/events.jsonl")), ids=lambda path: path.parent.name)
def test_every_recorded_event_is_read_as_it_was_written(path: Path) -> None:
    events = [Event.model_validate_json(line) for line in path.read_text().splitlines()]
    for event in events:
        if event.kind in KINDS:
            data = read_data(event, KINDS[event.kind])
            assert data is not None, event
            shown = data.model_dump(by_alias=True)
            written = {key: value for key, value in event.data.items() if key in shown}
            assert written.items() <= shown.items()


@pytest.mark.parametrize("reason", list(EndReason))
def test_only_an_exit_by_itself_with_code_0_is_a_good_end(reason: EndReason) -> None:
    for code in (0, 1, None):
        ended = read_data(Event(t_s=1.0, kind="ended", data={"reason": str(reason), "exit_code": code}), EndedEvent)
        assert ended is not None
        assert ended.exited_zero is (reason is EndReason.EXITED and code == 0)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (EndedEvent, '{"reason": "exited", "exit_code": "0"}'),
        (EndedEvent, '{"reason": "exited", "exit_code": false}'),
        (EndedEvent, '{"reason": ["exited"]}'),
        (ProbeEvent, '{"unreadable": "many"}'),
        (LeftRunning, '{"processes": "odd"}'),
        (Started, '{"unix_s": "now"}'),
        (PhaseEvent, '{"line": 1.5}'),
    ],
)
def test_a_value_of_another_type_is_not_read(kind: type[EventData], text: str) -> None:
    assert read_data(Event(t_s=1.0, kind="x", data=json.loads(text)), kind) is None


def test_a_reason_that_is_not_known_is_left_out() -> None:
    ended = read_data(Event(t_s=1.0, kind="ended", data={"reason": "of tomorrow"}), EndedEvent)
    assert ended is not None
    assert ended.end_reason is None

"""What a person sees of a run, on a terminal and in a log."""

import io

from verl_e2e_runner.reporting import ProgressLine


class Hand:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_come_on_change_and_else_every_thirty_seconds() -> None:
    hand, stream = Hand(), io.StringIO()
    progress = ProgressLine(stream, hand, moving=False, label="0-lora-ddp")
    progress.phase("preflight")
    for _ in range(100):
        hand.now += 1
        progress.tick()
    progress.phase("run")
    progress.stage("ray")
    progress.note("GPU memory is not sampled.")
    hand.now += 3600
    progress.step(1, 20)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "[ 0:00] 0-lora-ddp: preflight",
        "[ 0:30] 0-lora-ddp: preflight",
        "[ 1:00] 0-lora-ddp: preflight",
        "[ 1:30] 0-lora-ddp: preflight",
        "[ 1:40] 0-lora-ddp: run",
        "[ 1:40] 0-lora-ddp: run · ray",
        "GPU memory is not sampled.",
        "[1:01:40] 0-lora-ddp: run · ray · step 1/20",
    ]


def test_a_terminal_has_one_moving_line() -> None:
    hand, stream = Hand(), io.StringIO()
    progress = ProgressLine(stream, hand, moving=True)
    progress.phase("run")
    hand.now += 0.1
    progress.tick()
    hand.now += 0.9
    progress.tick()
    progress.note("stopping")
    progress.close()
    assert stream.getvalue() == ("\r\x1b[K[ 0:00] run\r\x1b[K[ 0:01] run\r\x1b[Kstopping\n\r\x1b[K[ 0:01] run\n")


def test_nothing_is_said_before_the_first_phase() -> None:
    stream = io.StringIO()
    ProgressLine(stream, Hand(), moving=False).tick()
    assert stream.getvalue() == ""


def test_a_closed_terminal_does_not_end_the_run() -> None:
    stream = io.StringIO()
    progress = ProgressLine(stream, Hand(), moving=True)
    stream.close()
    progress.phase("run")
    progress.stage("ray")
    progress.close()
    assert not progress.moving

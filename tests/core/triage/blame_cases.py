"""Generated logs for the question whose fault an error is: fault x place x shape, put into a recorded run.

The faults are the rows of `triage-blame.jsonl`, written by their class before triage read them. A place is a stage of
a real run: its log is the recorded passing run up to there, and the frames are those of verl, Bridge and Megatron-LM.
The shape is how the traceback reaches the log. A case is named `fault/place/shape`; the faults with an odd number
were kept out of sight while the rules were written.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.core.logs import recorded
from tests.core.triage.blame_places import FIT, INIT, PLACES, Place
from tests.core.triage.tables import BLOCKED, FAIL, Case
from tests.fakes.places import FIXTURES

FAULTS = FIXTURES / "triage-blame.jsonl"
SHAPES = ("plain", "ray", "chained", "logged")
H = "Traceback (most recent call last):"
CAUSE = ("", "The above exception was the direct cause of the following exception:", "")
# Where the standard library raises what a library then wraps; anything else comes from a socket.
INNER = {
    "json.": "json/decoder.py:raw_decode",
    "FileNotFoundError": "pathlib.py:open",
    "subprocess.": "subprocess.py:check_call",
}
IP = "(pid=7470, ip=192.0.2.2)"


@dataclass(frozen=True)
class Fault:
    """What is raised: `tail` are library frames below the project's own, `cause` a library error that it wraps."""

    id: str
    group: str
    outside: bool
    kind: str
    message: str
    places: tuple[str, ...]
    tail: tuple[str, ...]
    cause: tuple[str, str] | None
    stage: str
    seen: bool

    @property
    def raised(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@cache
def faults() -> tuple[Fault, ...]:
    rows = [json.loads(line) for line in FAULTS.read_text(encoding="utf-8").splitlines()]
    return tuple(_fault(number, row) for number, row in enumerate(rows))


def _fault(number: int, row: dict[str, object]) -> Fault:
    cause = row.get("cause")
    return Fault(
        id=str(row["id"]),
        group=str(row["group"]),
        outside=bool(row["outside"]),
        kind=str(row["kind"]),
        message=str(row["message"]),
        places=_texts(row["places"]),
        tail=_texts(row["tail"]),
        cause=(_texts(cause)[0], _texts(cause)[1]) if cause else None,
        stage=str(row.get("stage", "")),
        seen=number % 2 == 0 and row.get("batch") is None,
    )


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, list)
    return tuple(str(text) for text in value)


def cases() -> Iterator[Case]:
    """Every fault in each of its places, in two of the four shapes."""
    for number, fault in enumerate(faults()):
        for turn, name in enumerate(fault.places):
            for shape in (SHAPES[(number + turn) % 4], SHAPES[(number + turn + 2) % 4]):
                yield _case(fault, name, shape)


def _case(fault: Fault, name: str, shape: str) -> Case:
    place = PLACES[name]
    fails = place.managed and not fault.outside
    log = (_before(place) + "\n".join(_SHAPES[shape](fault, place)) + "\n").encode()
    verdicts, stages = FAIL if fails else BLOCKED, (fault.stage or place.stage,)
    return Case(fault.group, f"{fault.id}/{name}/{shape}", log, verdicts, stages, unseen=not fault.seen)


@cache
def _before(place: Place) -> str:
    """The recorded run up to the place, without its printed configuration."""
    rows = recorded("level0-pass").decode().split("\n")
    rows = [*rows[119:128], *rows[1132 : place.keep]]
    return "".join(f"{row}\n" for row in [*rows, *([f"{place.prefix}{place.line}"] if place.line else [])])


def _frames(calls: tuple[str, ...]) -> list[str]:
    rows = []
    for number, call in enumerate(calls):
        path, function = call.rsplit(":", 1)
        rows += [f'  File "/opt/kit/{path}", line {number * 31 + 17}, in {function}', "    result = work(value)"]
    return rows


def _raise(fault: Fault, calls: tuple[str, ...]) -> list[str]:
    """The traceback below its header; a library's cause stands before the error that wraps it."""
    if fault.cause is None:
        return [*_frames((*calls, *fault.tail)), *fault.raised.split("\n")]
    inner = next(
        (call for kind, call in INNER.items() if fault.cause[0].startswith(kind)), "socket.py:create_connection"
    )
    cause = [*_frames((*fault.tail[:1], inner)), f"{fault.cause[0]}: {fault.cause[1]}"]
    return [*cause, *CAUSE, H, *_frames((*calls, *fault.tail)), *fault.raised.split("\n")]


def _plain(fault: Fault, place: Place) -> list[str]:
    return [H, *_raise(fault, place.frames)]


def _ray(fault: Fault, place: Place) -> list[str]:
    short = fault.kind.rsplit(".", 1)[-1]
    driver = ("verl/trainer/main_ppo.py:main", "ray/_private/worker.py:get_objects")
    if fault.cause is not None:
        return [*(f"{place.prefix}{row}" for row in [H, *_raise(fault, place.frames)]), *_died()]
    return [
        "Error executing job with overrides: ['algorithm.adv_estimator=gae']",
        H,
        *_frames(driver),
        f"ray.exceptions.RayTaskError({short}): ray::TaskRunnerV1.run() (pid=6726, ip=192.0.2.2)",
        *_frames(FIT if place.keep > 1280 else INIT),
        f"ray.exceptions.RayTaskError({short}): ray::{place.remote}() {IP}",
        *_raise(fault, place.frames),
    ]


def _chained(fault: Fault, place: Place) -> list[str]:
    """What the library raised, and an error of the project around it."""
    wrapper = f"RuntimeError: rank 0 failed: {fault.message.split('.', 1)[0].split(chr(10), 1)[0]}"
    return [H, *_raise(fault, place.frames), *CAUSE, H, *_frames(place.frames[:2]), wrapper]


def _logged(fault: Fault, place: Place) -> list[str]:
    """A worker logs its traceback; the driver only learns that the worker died."""
    rows = ["ERROR:2026-11-20 14:24:50,300:unhandled exception", H, *_raise(fault, place.frames)]
    return [*(f"{place.prefix}{row}" for row in rows), *_died()]


def _died() -> list[str]:
    return [
        "Error executing job with overrides: ['algorithm.adv_estimator=gae']",
        H,
        *_frames(("verl/trainer/main_ppo.py:main", "ray/_private/worker.py:get_objects")),
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ]


_SHAPES = {"plain": _plain, "ray": _ray, "chained": _chained, "logged": _logged}

"""What a job made for a change is there for: bounded, on one line, and read back as it was written."""

from tests.core.builders import make_job
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.purposes import Purpose, purpose_of
from verl_e2e.core.model.wants import Axis, Want

WANT = Want(
    "src/a.py", "A.f", tuple(range(1, 900)), "tp > 1\n  and\tx", {Axis.TENSOR: 2}, overrides={"a.b": None},
    open=("x " * 300, "y", "z", "more"), rules=("tensor size",),
)  # fmt: skip


def test_a_purpose_is_what_a_want_says_and_never_long() -> None:
    made = purpose_of(WANT)
    assert (made.path, made.symbol, made.place) == ("src/a.py", "A.f", "src/a.py:A.f")
    assert made.condition == "tp > 1 and x"
    assert (made.settings, made.overrides, made.rules) == ({Axis.TENSOR: 2}, {"a.b": None}, ("tensor size",))
    assert made.lines == tuple(range(1, 41))
    assert [len(part) for part in made.open] == [80, 1, 1]
    assert purpose_of(Want("a\udcff.py", "", (), "c" * 500)).path == "a\\xff.py"
    assert purpose_of(Want("a.py", "", (), "c" * 500)).condition == "c" * 197 + "..."
    assert purpose_of(Want("a.py", "", (), "c")).place == "a.py"


def test_a_job_with_purposes_is_read_back_and_one_without_has_the_digest_of_earlier_versions() -> None:
    job = make_job(purposes=(purpose_of(WANT),), settings={Axis.TENSOR: 2, Axis.FSDP: True})
    assert Job.model_validate_json(job.model_dump_json(by_alias=True)) == job
    assert {"purposes", "settings"}.isdisjoint(make_job().model_dump(mode="json"))
    assert make_job(purposes=(), settings={}).digest() == make_job().digest() != job.digest()
    assert Purpose.model_validate_json(purpose_of(WANT).model_dump_json()) == purpose_of(WANT)

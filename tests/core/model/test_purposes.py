"""What a job made for a change is there for: bounded, on one line, and read back as it was written."""

from tests.core.builders import make_job
from verl_e2e.core.model.execution import ChangedFunction, Purpose, Side, purpose_of
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.settings import Axis


def purpose(path: str = "src/a.py", symbol: str = "A.f", condition: str = "entered by\n  one and\tx") -> Purpose:
    function = ChangedFunction(path=path, symbol=symbol, first_line=1, last_line=9, side=Side.MERGE_BASE)
    return purpose_of(function, range(1, 900), condition, {Axis.TENSOR: 2})


def test_a_purpose_says_the_place_and_what_enters_it_and_is_never_long() -> None:
    made = purpose()
    assert (made.path, made.symbol, made.place) == ("src/a.py", "A.f", "src/a.py:A.f")
    assert (made.condition, made.settings, made.side) == ("entered by one and x", {Axis.TENSOR: 2}, Side.MERGE_BASE)
    assert made.lines == tuple(range(1, 41))
    assert purpose("a\udcff.py").path == "a\\xff.py"
    assert purpose(condition="c" * 500).condition == "c" * 197 + "..."
    assert purpose("a.py", "").place == "a.py"


def test_a_job_with_purposes_is_read_back_and_they_are_in_its_digest() -> None:
    job = make_job(purposes=(purpose(),), settings={Axis.TENSOR: 2, Axis.FSDP: True})
    assert Job.model_validate_json(job.model_dump_json(by_alias=True)) == job
    assert make_job(purposes=(), settings={}).digest() == make_job().digest() != job.digest()
    assert Purpose.model_validate_json(purpose().model_dump_json()) == purpose()

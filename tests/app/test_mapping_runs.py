"""`maps add`: which runs give a map, and what is said of a run that gives none."""

from pathlib import Path

import pytest

from tests.core.builders import ended, make_facts, make_job, make_record
from tests.core.model.test_execution_maps import LORA, map_of, process
from tests.fakes.run_folders import FakeFolders
from verl_e2e.app.judge_folder import NotMappableError, add_maps, described_maps
from verl_e2e.core.model.execution import NO_MAPS, Executed, ExecutedFile, ExecutedFunction, ExecutionMaps, ProcessRole
from verl_e2e.core.model.record import Event, Record
from verl_e2e.core.model.settings import Axis

FUNCTION = ExecutedFunction(symbol="LoRA.transform", line=3, first_s={0: 12.5})
EXECUTED = Executed(
    processes=(process(ProcessRole.TRAINER), process(ProcessRole.BRIDGE_TEST)),
    files=(ExecutedFile(path=LORA, functions=(FUNCTION,)),),
)
DAY = 1_795_000_000.0
OUT = Path("/out/jobs")


def whole(**given: object) -> Record:
    """A healthy run that was recorded."""
    start = Event(t_s=0.0, kind="started", data={"unix_s": given.pop("unix_s", DAY)})
    fields = {"executed": EXECUTED, "events": (start, *ended()[1:]), **given}
    return make_record(**fields)


def folders(*records: Record) -> FakeFolders:
    places = {OUT / str(number): record for number, record in enumerate(records)}
    return FakeFolders(records=dict(places), logs={place: make_facts() for place in places})


def added(*records: Record, maps: ExecutionMaps = NO_MAPS) -> ExecutionMaps:
    here = folders(*records)
    return add_maps(here, maps, list(here.records))


def test_a_whole_run_becomes_the_map_of_its_job() -> None:
    job = make_job()
    (found,) = added(whole()).maps
    assert (found.job, found.variant, found.model) == ("0-lora-ddp", "0-lora-ddp", job.checkpoint.model_id)
    assert (found.bridge, found.verl, found.megatron_lm) == ("a" * 40, "b" * 40, "c" * 40)
    assert (found.measured, found.files) == ("2026-11-18", {LORA: {"LoRA.transform": (ProcessRole.TRAINER,)}})


def test_the_new_map_of_a_job_replaces_the_old_one_and_keeps_the_others() -> None:
    old = ExecutionMaps(maps=(map_of(), map_of("1-resume")))
    both = added(whole(), maps=old)
    assert [found.job for found in both.maps] == ["0-lora-ddp", "1-resume"]
    assert both.maps[0] != map_of()
    assert described_maps(both)[0] == (
        "0-lora-ddp: 1 functions of Bridge and 0 of Megatron-LM, on local/tiny-qwen2, Bridge aaaaaaaaaaaa, "
        "verl bbbbbbbbbbbb, 2026-11-18"
    )
    assert "no job is measured yet" in described_maps(NO_MAPS)[0]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (whole(executed=None), "it holds no record of what ran"),
        (whole(job=None), "it holds no record of what ran"),
        (whole(executed=Executed(problem="Python 3.11 cannot record")), "Python 3.11 cannot record"),
        (whole(executed=EXECUTED.model_copy(update={"cut": ("512 processes",)})), "512 processes"),
        (whole(executed=Executed()), "no function of the trees under test ran"),
        (whole(events=ended(exit_code=1)), "the process ended by exited, exit code 1"),
        (whole(imports=()), "no import line of megatron.bridge"),
        (whole(unix_s=None), "the start of the run has no date"),
        (whole(unix_s=1e300), "the start of the run has no date"),
    ],
)
def test_a_run_that_gives_no_map_is_refused_with_the_reason(record: Record, text: str) -> None:
    with pytest.raises(NotMappableError, match=text):
        added(record)


def test_two_runs_of_one_job_are_refused() -> None:
    with pytest.raises(NotMappableError, match="0-lora-ddp is in several of the folders"):
        added(whole(), whole())


def test_the_map_of_a_derived_job_has_its_settings() -> None:
    here = folders(whole(job=make_job(variant="r4", id="0-r4", settings={Axis.ADAPTER_RANK: 4})))
    (found,) = add_maps(here, NO_MAPS, list(here.records)).maps
    assert (found.job, found.settings) == ("0-r4", {Axis.ADAPTER_RANK: 4})
